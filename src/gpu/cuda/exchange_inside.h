/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange as the host keeps it for its kernels. */
#ifndef TERN_GPU_CUDA_EXCHANGE_INSIDE_H
#define TERN_GPU_CUDA_EXCHANGE_INSIDE_H

#include "gpu/cuda/backend.h"
#include "gpu/cuda/beside/kernels.h"
#include "gpu/cuda/ht/kernels.h"

#define MAX_SLOTS 16

struct reports {
	struct gpu_report report;
	struct gpu_input_error input_error;
	uint64_t sums[2]; /* of the last dispatch whose sizes were asked for */
};

struct device_kept;

struct device_slot {
	uint8_t *memory;
	struct gpu_dispatch dispatch; /* with what does not change from round to round */
	struct gpu_combine combine;
	struct ht_exchange ht; /* high throughput */
	struct gpu_beside beside;
};

/* A placement's tables on the device. Those that change are there for each slot, whose stream
 * orders the change; they come out of pinned memory, which has room for some that are under way. */
#define TABLES_UNDER_WAY 8

struct device_tables {
	uint8_t *memory, *moving, *pinned;
	const uint32_t *order, *first; /* experts by rank */
	uint32_t nr_experts, nr_physical;
	uint32_t per_rank; /* as in struct gpu_placement */
	uint32_t rank;
	bool sends_own; /* this rank alone passes its tokens */
	bool looked_at; /* by kernels; else physical = logical for good */
	uint32_t next;  /* of those under way */
	cudaEvent_t copied[TABLES_UNDER_WAY][MAX_SLOTS]; /* NULL: not yet made */
};

struct slot_tables {
	struct gpu_placement placement;
	const uint32_t *logical;
};

struct device_exchange {
	struct tern_moe_config config;
	uint32_t nr_ranks;
	struct device_layout layout;
	uint64_t positions;
	uint32_t nr_sharing;
	int device;           /* that was current when it was made, and has to be for each half */
	uint32_t most_blocks; /* of 16 warps that fit at once, over nr_sharing */
	uint32_t block_bytes; /* shared memory that a block may have */
	bool early; /* kernels may be scheduled before those ahead have ended: not where others need
		       the room */
	uint8_t *memory;
	struct device_tables tables;
	struct gpu_view *view;             /* NULL: not elastic */
	struct internode_table *internode; /* [slots] NULL: no rank is on another node */
	uint8_t *sink; /* high throughput: heads for ranks on other nodes, which nobody reads */
	struct gpu_counters *counters;
	cudaStream_t reader;       /* of the counters; made when it is first asked for */
	struct reports *reports;   /* [slots] pinned */
	struct gpu_counters *read; /* behind them */
	struct device_kept *kept;  /* plans, and what is left of those that are gone: plans.c */
	uint64_t kept_bytes;
#ifdef TERN_TRACE
	uint64_t *trace; /* [slots][GPU_TRACE_BLOCKS][GPU_TRACE_MARKS]; NULL: nobody has asked */
	uint64_t *layer_trace[2]; /* [GPU_TRACE_BLOCKS][LAYER_MARKS], enum layer_which */
#endif
	struct device_slot slots[MAX_SLOTS];
};

/* On another device kernels would not find their streams, or run where no peer looks for them. */
int device_check_current(const struct device_exchange *x);

/* Low latency: how many vectors of a result this rank's warps take in a round of so many tokens.
 * The other ranks may take others. */
void cut_results(struct gpu_combine *c, uint32_t nr_tokens);

/* A round with a plan: its arguments in place of the caller's; the beginning of its combine; and,
 * behind what reads it, that it is used. */
void device_kept_dispatch(
	const struct device_exchange *x, const struct device_kept *kept, struct gpu_dispatch *d);
int device_kept_combine(
	struct device_exchange *x, struct device_kept *kept, const struct device_call *call);
int device_kept_used(struct device_kept *kept, const struct device_call *call);
void device_kept_close(struct device_exchange *x);

/* tables.c */
int tables_open(struct device_exchange *x, uint32_t rank, const struct placement *placement);
/* When no kernel runs. */
int tables_write(struct device_exchange *x, const struct placement *placement);
void tables_close(struct device_exchange *x);
struct slot_tables tables_of(const struct device_exchange *x, uint32_t slot);

#endif
