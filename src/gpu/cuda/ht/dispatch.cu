/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch: each token once to every rank that has one of its experts, straight
 * into its final place there; the receiver copies it to further experts' places.
 *
 *   sending warps     before the plan: the first tokens, one each: x -> (quantise) -> early slots
 *                     of the other ranks that have one of its experts; where buffers hold another
 *                     row, that is made, too, and leaves first when places are known. Then a token
 *                     each: rows in the destinations' x; then its heads to all ranks, or with few
 *                     blocks, or large rows, a note of them for
 *   a telling warp    which stores them (dispatch_heads.cuh)
 *   receiving warps   a token of a source each: waits for its head, describes its rows, copies
 *
 * Floor: the rows' bytes over NVLink; the copies run beside (4 x H200, deepseek-v3: a third of the
 * time in a GPU's own memory).
 */
#include "gpu/cuda/ht/dispatch_receive.cuh"
#include "gpu/cuda/ht/dispatch_send.cuh"
#include "gpu/cuda/common/launch.cuh"

/* Buffers of a block's warps. */
HOST_DEVICE uint32_t buffers_bytes(const struct gpu_dispatch *d, uint32_t nr_warps)
{
	return stream_shared_bytes(nr_warps, DISPATCH_BUFFERS,
		ht_part_buffer(d->exchange.row.row_bytes, d->scale_bytes));
}

/* ---- the kernel ------------------------------------------------------------------------------ */

namespace tern
{
/* GATED: others read rows meanwhile. */
template <int X, int ND, bool GATED = false>
static __global__ void __launch_bounds__(512, 1) dispatch_ht(
	const __grid_constant__ struct gpu_dispatch d, const __grid_constant__ struct ht_exchange h,
	uint32_t send_warps, uint32_t nr_early, uint32_t noted)
{
	const struct gpu_exchange *e = &d.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES - noted,
		 part_bytes = ht_part_bytes(e->row.row_bytes);
	BLOCK_MEMORY(shared);
	uint32_t number = warp * gridDim.x + blockIdx.x; /* among all sending warps */
	struct heads_way way = {
		{head_notes_at(in_shared(shared) + buffers_bytes(&d, nr_warps), e->topk),
			warp * NOTES_OF_WARP, 0},
		noted != 0, 0};
	struct before before = {};
	struct dispatch_warp w;
	uint32_t dealt, gate_round;

	if (warp == 0)
		trace_mark(e, GPU_TRACE_DISPATCH);
	if (warp == nr_warps)
		head_notes_open(&way.notes.notes);
	else
		w.stream = stream_open(in_shared(shared), warp, nr_warps, DISPATCH_BUFFERS,
			ht_part_buffer(e->row.row_bytes, d.scale_bytes));
	w.part_bytes = part_bytes;
	w.parts = gpu_ceil(e->row.row_bytes, part_bytes);
	w.whole_scales = d.scale_bytes && e->row.nr_lines * d.scale_bytes % 16 == 0 &&
			 (w.parts == 1 || part_bytes / GPU_LINE_BYTES * d.scale_bytes % 16 == 0);
	dealt = dealt_tokens(&w, gridDim.x * send_warps, nr_early);
	if (warp < send_warps && number < nr_early)
		before = send_early<X, ND>(&d, &h, &w, number, dealt);
	wait_for_previous();
	gate_round = let_next_start_at_gate<GATED>(&d, warp, nr_warps);
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */
	bool abandoned = e->state->abandoned,
	     failed = noted ? __syncthreads_or(state.w) : state.w; /* another block may just have
								      failed: all warps or none,
								      where they wait for each other
								    */

	if (failed || abandoned)
		copies_done<0>();
	if (failed)
		return;
	if (warp == nr_warps) {
		tell_heads(e, &h, &way.notes.notes, send_warps, state.y);
		return;
	}
	way.epoch = state.y;
	if (abandoned)
		drop_early(&d, &h, &way, &before.early);
	else if (warp < send_warps)
		send_all<X, ND>(&d, &h, &w, &way, state.z, &before, dealt);
	trace_mark(e, GPU_TRACE_ROWS_SENT);
	if (noted && warp < send_warps)
		stop_notes(&way.notes);
	if (d.roles & GPU_RECEIVE) {
		if (GATED && warp == nr_warps - 1)
			gate_open(
				&d, [&](uint32_t local) { return d.out_counts[local]; }, warp,
				nr_warps, gate_round);
		receive_all<GATED>(&d, &h, &w, state.y, abandoned);
		trace_mark(e, GPU_TRACE_ROWS);
	}
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

typedef void (*dispatch_kernel)(
	const struct gpu_dispatch, const struct ht_exchange, uint32_t, uint32_t, uint32_t);

/* Of what layers' kernels read. NULL: there is none. */
static dispatch_kernel choose_gated(const struct gpu_dispatch *d)
{
	return d->kind == GPU_X_COPY    ? tern::dispatch_ht<GPU_X_COPY, 4, true>
	       : d->kind == GPU_X_GIVEN ? tern::dispatch_ht<GPU_X_GIVEN, 2, true>
	       : d->kind == GPU_X_BF16  ? tern::dispatch_ht<GPU_X_BF16, 2, true>
					: NULL;
}

static dispatch_kernel choose(const struct gpu_dispatch *d)
{
	if (d->gate.row_bits)
		return choose_gated(d);
	switch (d->kind) {
	case GPU_X_COPY:
		return tern::dispatch_ht<GPU_X_COPY, 4>;
	case GPU_X_GIVEN:
		return tern::dispatch_ht<GPU_X_GIVEN, 2>;
	case GPU_X_BF16:
		return tern::dispatch_ht<GPU_X_BF16, 2>;
	case GPU_X_FP16:
		return tern::dispatch_ht<GPU_X_FP16, 2>;
	case GPU_X_FP32:
		return tern::dispatch_ht<GPU_X_FP32, 2>;
	}
	return NULL;
}

/* Is there a telling warp? */
static bool is_noted(const struct gpu_dispatch *d, uint32_t nr_blocks)
{
	return d->roles & GPU_SEND &&
	       (nr_blocks <= HT_FEW_BLOCKS || d->exchange.row.row_bytes > HT_LARGE_ROW);
}

static uint32_t notes_bytes(const struct gpu_dispatch *d, bool noted)
{
	return noted ? head_notes_bytes(d->exchange.topk) : 0;
}

/* Of a block, beside a telling one: as many as have room for their buffers. */
static uint32_t warps_of(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t wanted, bool noted)
{
	return min(noted ? min(wanted, DISPATCH_MOST_WARPS) : wanted,
		(h->block_bytes - notes_bytes(d, noted)) / buffers_bytes(d, 1));
}

cudaError_t ht_dispatch_blocks(
	const struct gpu_dispatch *d, const struct ht_exchange *h, uint32_t wanted, int *per_sm)
{
	int of[2] = {0, 0};
	cudaError_t rc = allow_shared((const void *)choose(d));

	for (int noted = 0; noted < 2; noted++) {
		uint32_t nr_warps = warps_of(d, h, wanted, noted),
			 shared = buffers_bytes(d, nr_warps) + notes_bytes(d, noted);

		rc = rc ? rc
			: cudaOccupancyMaxActiveBlocksPerMultiprocessor(
				  &of[noted], choose(d), (int)(nr_warps + noted) * LANES, shared);
	}
	*per_sm = of[0] < of[1] ? of[0] : of[1];
	return rc;
}

static uint32_t senders(
	const struct gpu_dispatch *d, const struct ht_exchange *h, const struct gpu_launch *launch)
{
	uint32_t nr_warps = warps_of(d, h, launch->nr_warps, is_noted(d, launch->nr_blocks));

	return d->roles == GPU_SEND      ? nr_warps
	       : d->roles == GPU_RECEIVE ? 0
					 : min(launch->send_warps, nr_warps - 1);
}

/* The rows stay in the warp's buffers until places are known. No more of them where all warps send:
 * what comes when places are known is only copied once more. */
uint32_t ht_early_tokens(
	const struct gpu_dispatch *d, const struct ht_exchange *h, const struct gpu_launch *launch)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t most = min(h->window.nr_early, d->nr_tokens);

	if (!launch->early || e->internode ||
		e->row.row_bytes > DISPATCH_BUFFERS * ht_part_bytes(e->row.row_bytes))
		return 0;
	return min(most, launch->nr_blocks * min(launch->send_warps, senders(d, h, launch)));
}

cudaError_t ht_dispatch_launch(const struct gpu_dispatch *d, const struct ht_exchange *h,
	const struct gpu_launch *launch, cudaStream_t stream)
{
	bool noted = is_noted(d, launch->nr_blocks);
	uint32_t nr_warps = warps_of(d, h, launch->nr_warps, noted),
		 shared = buffers_bytes(d, nr_warps) + notes_bytes(d, noted);
	uint32_t nr_early = d->roles & GPU_SEND ? ht_early_tokens(d, h, launch) : 0;
	cudaLaunchConfig_t config =
		launch_config(launch->nr_blocks, (nr_warps + noted) * LANES, shared, stream);
	cudaLaunchAttribute early = {};

	launch_early(&config, &early, launch->early);
	return cudaLaunchKernelEx(
		&config, choose(d), *d, *h, senders(d, h, launch), nr_early, (uint32_t)noted);
}
