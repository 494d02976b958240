/* SPDX-License-Identifier: Apache-2.0 */
/* The halves on the CPU, as exchange/ops.h says of them. */
#ifndef TERN_EXCHANGE_CPU_HALVES_H
#define TERN_EXCHANGE_CPU_HALVES_H

#include "exchange/state.h"

int cpu_dispatch_send(tern_moe *moe, const struct tern_dispatch *args);
int cpu_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received);
int cpu_dispatch(tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received);
int cpu_received_sizes(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent);
int cpu_combine_send(tern_moe *moe, const struct tern_combine *args);
int cpu_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride);
int cpu_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride);
int cpu_release(tern_moe *moe, uint32_t slot);

#endif
