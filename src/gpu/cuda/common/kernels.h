/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU kernels' launchers, in C. They start work on a stream and return; nothing here waits,
 * allocates or prints.
 *
 *   dispatch_ll   x, topk_ids, topk_weights -> rows in expert-major order, counts, offsets,
 *                 descriptions
 *   combine_ll    y at the same positions   -> out, each token's weighted sum
 *
 * Each is one kernel, and may be captured in a graph: the epoch lives in device memory (struct
 * gpu_state), the dispatch hands it to the combine, and the combine moves it on. Every replay may
 * bring other tokens, ids and weights, and, through nr_tokens_at, another number of them.
 *
 * In a kernel some warps of each block send and the others receive; with only one role all warps
 * have it, so that the halves can be launched apart. Blocks wait for other GPUs, so all of a launch
 * have to fit on the GPU at once: ll_dispatch_most_blocks.
 */
#ifndef TERN_GPU_CUDA_COMMON_KERNELS_H
#define TERN_GPU_CUDA_COMMON_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "gpu/wire/internode.h"
#include "gpu/wire/state.h"
#include "gpu/wire/trace.h"
#include "gpu/cuda/common/kinds.h"
#include "gpu/cuda/tuning.h"
#include "gpu/wire/ll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which rank has an expert. No tables for contiguous blocks of equal size without replicas. */
struct gpu_placement {
	uint32_t nr_experts; /* logical */
	uint32_t nr_physical;
	uint32_t per_rank; /* physical experts of each rank; 0: look into place */
	struct gpu_divisor by_per_rank;
	const uint32_t *place; /* [P] rank << 16 | local expert */
	const uint2 *serving;  /* [E] by logical expert: y of `replicas`, from number x on; where y
				  is  1, x is the physical expert itself. One on the rank that sends
				  is  the only one. NULL: physical = logical */
	const uint32_t *replicas; /* [P] */
	const uint32_t *placed;   /* struct placed of these tables, which may change between rounds;
				     NULL: they do not */
};

struct gpu_exchange {
	uint32_t rank, nr_ranks, topk, max_tokens, nr_local;
	uint32_t at_home; /* results are summed at home; else at the expert */
	enum gpu_format format;
	struct gpu_placement placement;
	struct row_geometry row, result;
	struct gpu_divisor by_topk, by_ranks, by_result_segments;
	struct gpu_divisor by_others;    /* ranks but this one; at least 1 */
	struct gpu_divisor by_row_parts; /* segments, and the head */
	struct gpu_divisor by_replicas;  /* ranks that pass the same tokens: each sends its share,
					    all are home */
	struct ll_window window;
	uint8_t *windows[GPU_MAX_RANKS];   /* as mapped here; NULL: on another node */
	struct internode_table *internode; /* NULL: no rank is on another node */
	struct gpu_state *state;
	struct gpu_report *report;
	struct gpu_input_error *input_error;
	const uint8_t *leave_statuses; /* [R] leave words of this node's ranks (wire.h), in memory
					  of the host; NULL: not looked at */
	struct gpu_counters *counters; /* NULL: nothing is counted */
	uint64_t wait_ns;
	/* What the dispatch leaves for the combine, in private memory: */
	uint32_t *row_tokens;    /* [R][T] the tokens of a source that came here, in order */
	uint2 *row_routes;       /* [R][T][K] likewise: position (UINT32_MAX: not here), weight */
	uint2 *home_routes;      /* [T][K] rank (UINT32_MAX: none), weight */
	uint32_t *own_positions; /* [T][K] of this rank's tokens: position, where the route ends
				    here; undefined for tokens without any such route */
	const struct gpu_view *view; /* NULL: not elastic */
	uint8_t *slice_counts; /* [pieces][most_slices] of 16 bytes: what blocks tell each other
				  of the rows that come (ll/slices.cuh) */
	uint32_t most_slices;
#ifdef TERN_TRACE
	uint64_t *trace; /* NULL, or [blocks][GPU_TRACE_MARKS] nanoseconds */
#endif
};

enum gpu_roles {
	GPU_SEND = 1,
	GPU_RECEIVE = 2
};

/* Words by which others learn how far a round has come: common/gate.cuh. */
enum gpu_gate_words {
	GPU_GATE_ROUND,   /* rounds that have begun */
	GPU_GATE_COUNTED, /* of which this one's counts are there */
	GPU_GATE_WORDS
};

struct gpu_gate {
	uint32_t row_bits;       /* a tile has 1 << row_bits rows; 0: there are no gates */
	uint32_t tiles;          /* of an expert, at most */
	uint32_t parts;          /* of a row, that are counted each */
	uint32_t marks;          /* of a tile's y; 0: it is not waited for */
	uint32_t *words;         /* enum gpu_gate_words */
	uint32_t *ready;         /* [L][tiles] */
	uint32_t *done;          /* [L][tiles] */
	const uint64_t *offsets; /* [L] the dispatch's */
	uint32_t *route_tiles;   /* [R][T][K] as row_routes: the tile, UINT32_MAX: not here */
};

struct gpu_dispatch {
	struct gpu_exchange exchange;
	uint32_t roles; /* enum gpu_roles */
	enum gpu_x kind;
	uint32_t scale_bytes; /* of one scale, as the caller has it: 4 (a float), 1 (UE8M0), 0: none
			       */
	uint32_t nr_tokens;   /* the caller's buffers hold as many */
	const uint32_t *nr_tokens_at; /* how many there are; NULL: nr_tokens */
	const uint8_t *x;
	uint64_t x_stride;
	const uint8_t *scales; /* GPU_X_GIVEN */
	uint64_t scales_stride;
	const void *topk_ids;
	uint32_t ids_64;
	const float *topk_weights; /* NULL: all 1 */
	/* Output; positions as in tern.h: */
	uint32_t padded, by_source;
	uint64_t capacity;
	struct gpu_divisor by_alignment;
	struct gpu_divisor by_slices; /* with slices tokens leave in turns of so many */
	uint32_t slice_tokens;
	uint32_t noted_tokens; /* likewise: where no rank has more, blocks note all plans; 0: they
				* note slices always */
	uint32_t helps;        /* with slices: who has sent receives too */
	uint32_t keeps; /* likewise, both roles: rows for this rank are taken from x, and pass
			 * through no window */
	struct gpu_divisor by_share; /* how many warps share a segment's destinations, 1 to R */
	uint8_t *out_x;
	uint8_t *out_scales;
	uint8_t *out_columns;   /* low latency: scales go there column by column, and not to
				   out_scales; NULL: row by row */
	uint32_t column_stride; /* elements from column to column */
	uint32_t list_skip;     /* and from an expert's last row to the next one's first */
	uint32_t scale_step;    /* bytes from a row's scale to the fourth after it */
	int4 *out_rows;         /* struct tern_row */
	int32_t *out_ids;       /* by_source: [rows][K] */
	float *out_weights;
	uint32_t *out_counts;
	uint64_t *out_offsets;
	uint64_t *out_sums; /* nr_rows, extent */
	struct gpu_gate gate;
};

struct gpu_combine {
	struct gpu_exchange exchange;
	uint32_t roles;
	uint32_t weighted;
	enum gpu_y kind;
	uint32_t release;          /* nothing comes home: only the arrival words */
	uint32_t late;             /* weights may come with the combine: ll/late_weights.cuh */
	uint32_t weights_come;     /* and do in this round, of all ranks */
	uint32_t late_tokens;      /* of late_weights: as many as the caller's buffers hold */
	const float *late_weights; /* [T][K] of this rank's tokens; may be NULL without any */
	uint64_t weight_cells;     /* in each window: [R][T][K] pieces */
	const uint8_t *y;
	uint64_t y_stride;
	uint8_t *out;
	uint64_t out_stride;
	struct gpu_gate gate;
};

/* cudaErrorInvalidValue: no such variant of nr_vectors, or too much shared memory for R, L and T.
 */
cudaError_t ll_dispatch_launch(
	const struct gpu_dispatch *args, const struct gpu_launch *launch, cudaStream_t stream);
cudaError_t ll_combine_launch(
	const struct gpu_combine *args, const struct gpu_launch *launch, cudaStream_t stream);

/* Can all warps of this combine send, and then receive? */
int ll_combine_whole(const struct gpu_combine *args);

/* Blocks of that size that the current device holds at once, of any kernel that could be chosen. */
cudaError_t ll_dispatch_most_blocks(
	const struct gpu_dispatch *args, const struct gpu_launch *launch, uint32_t *nr_blocks);
cudaError_t ll_combine_most_blocks(
	const struct gpu_combine *args, const struct gpu_launch *launch, uint32_t *nr_blocks);

/* Whose branches of ptx.cuh the current device runs, as __CUDA_ARCH__ / 10: 80, 90, 100. It may be
 * newer than its code, which the driver has then compiled for it. */
/* Tables of 16 bytes and more, out of pinned memory, on a stream. */
cudaError_t tables_prepare(void);
cudaError_t tables_launch(void *to, const void *from, uint32_t bytes, cudaStream_t stream);
cudaError_t code_version(int *version);

#ifdef __cplusplus
}
#endif
#endif
