/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange whose halves run on a device: tern.h, "on a device". The public halves turn to these
 * when moe->device is set. */
#ifndef TERN_GPU_HOST_DEVICE_H
#define TERN_GPU_HOST_DEVICE_H

#include "exchange/state.h"

/* Collective. The settings have been checked and compared; what a device cannot do is refused here,
 * on all ranks. */
int device_open(tern_moe *moe);
/* Before it is known as left. Not 0: it had failed, and its peers know. */
int device_leave(tern_moe *moe);
void device_close(tern_moe *moe); /* nothing on the CPU */

/* What kernels have reported since it was last asked: 0, or the error that ended the exchange, as
 * all calls return it. */
int device_look(tern_moe *moe);
/* Peers that wait for this rank are told that it has left. */
void device_publish_leave(tern_moe *moe, uint64_t leave_status);

int device_dispatch_send(tern_moe *moe, const struct tern_dispatch *args);
int device_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received);
int device_dispatch(
	tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received);
int device_combine_send(tern_moe *moe, const struct tern_combine *args);
int device_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride);
int device_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride);
int device_release(tern_moe *moe, uint32_t slot);

void device_memory(const tern_moe *moe, struct tern_memory *memory);

/* What kernels have counted so far. */
int device_stats(const tern_moe *moe, struct tern_stats *stats);
int device_expert_load(const tern_moe *moe, uint64_t *counts);
int device_stats_reset(tern_moe *moe);
struct gpu_counters *device_counters_create(const tern_moe *moe); /* zeros; NULL: no memory */

#endif
