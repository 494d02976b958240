/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller passes to a half, checked: on the CPU and for devices alike, and for both halves of
 * a call before the first of them sends anything. */
#ifndef TERN_EXCHANGE_ARGUMENTS_H
#define TERN_EXCHANGE_ARGUMENTS_H

#include "exchange/state.h"

/* Bytes from row to row of a dense x. */
uint64_t x_row_bytes(const tern_moe *moe);

/* Everything about a dispatch but the ids, which routes_read looks at. */
int arguments_dispatch(const tern_moe *moe, const struct tern_dispatch *args);

/* Where its rows are to go. */
/* A dispatch with a plan of so many tokens. */
int arguments_plan(const struct tern_dispatch *args, uint32_t nr_tokens);
/* Of gemm_scales: rows of a column, as the caller says or as many as there can be; and of experts
 * that have columns of their own. */
uint64_t gemm_scales_stride(const tern_moe *moe, const struct tern_received *received);
int arguments_received(const tern_moe *moe, const struct tern_received *received, const char *call);

int arguments_beside(const tern_moe *moe, const struct tern_plan_beside *beside);

/* Results of the received rows. How many came the host knows on the CPU alone. */
int arguments_y(const tern_moe *moe, const struct tern_combine *args, uint64_t nr_rows);

/* Where the sums are to go. */
int arguments_out(const tern_moe *moe, uint32_t nr_tokens, const void *out, size_t stride);

#endif
