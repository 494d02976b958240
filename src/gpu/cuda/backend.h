/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of libtern_cuda. */
#ifndef TERN_GPU_CUDA_BACKEND_H
#define TERN_GPU_CUDA_BACKEND_H

#include <stdbool.h>

#include "gpu/cuda/check.h"
#include "gpu/host/ops.h"

/* windows.c */
bool windows_by_fd(int ordinal);
int window_create(struct device_window *window);
int window_open(struct device_window *window);
int window_grant(struct device_window *window, int ordinal);
int window_renew(struct device_window *window);
int window_reopen(struct device_window *window);
void window_close(struct device_window *window);

/* rows.c */
int device_rows_create(uint64_t bytes, void **memory);
int device_rdma_find(struct device_rdma *rdma);
int device_rdma_flush(int ordinal);

int device_exchange_open(const struct device_plan *plan, struct device_exchange **exchange);
void device_exchange_close(struct device_exchange *exchange);
int device_exchange_dispatch(struct device_exchange *exchange, const struct device_call *call,
	const struct tern_dispatch *args, struct tern_received *received);
int device_exchange_combine(struct device_exchange *exchange, const struct device_call *call,
	const struct tern_combine *args, void *out, size_t out_stride);
int device_exchange_release(struct device_exchange *exchange, const struct device_call *call);
void device_exchange_report(
	const struct device_exchange *exchange, uint32_t slot, struct gpu_report *report);
void device_exchange_input_error(
	struct device_exchange *exchange, uint32_t slot, struct gpu_input_error *input_error);

int device_exchange_sizes(
	struct device_exchange *exchange, const struct device_call *call, uint64_t sums[2]);
int device_kept_create(struct device_exchange *exchange, const struct device_call *call,
	uint32_t nr_tokens, const struct tern_plan_beside *beside, struct device_kept **kept);
void device_kept_destroy(struct device_exchange *exchange, struct device_kept *kept);
uint64_t device_kept_bytes(const struct device_exchange *exchange);

int device_exchange_place_check(struct device_exchange *exchange, void *const *streams);
int device_exchange_place(
	struct device_exchange *exchange, const struct placement *placement, void *const *streams);
void device_exchange_gate(const struct device_exchange *exchange, uint32_t slot, uint64_t wait_ns,
	struct tern_gate *gate);
int device_layer_open(struct device_exchange *exchange, const struct tern_layer_config *config,
	struct device_layer **layer);
void device_layer_close(struct device_layer *layer);
int device_routes_count(const struct tern_routes *routes);
int device_layer_run(struct device_layer *layer, const struct device_call *call,
	const struct device_layer_rows *rows, bool beside);
/* view.c */
int device_exchange_quiesce(const struct device_exchange *exchange);
int device_exchange_epoch(struct device_exchange *exchange, uint32_t slot, uint32_t *epoch);
int device_exchange_resume(struct device_exchange *exchange, const struct device_view *view);

int device_exchange_counters(struct device_exchange *exchange, struct gpu_counters *counters);

/* trace.c, with TERN_TRACE */
int device_exchange_trace(struct device_exchange *exchange, uint32_t slot, uint64_t *marks);

#endif
