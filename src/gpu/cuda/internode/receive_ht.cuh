/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: a token of a source on another node, by a warp: landing, or in two hops its
 * first place here -> the final places of its rows, and their descriptions. */
#ifndef TERN_GPU_CUDA_INTERNODE_RECEIVE_HT_CUH
#define TERN_GPU_CUDA_INTERNODE_RECEIVE_HT_CUH

#include "gpu/cuda/internode/forward_ht.cuh"

/* As await_forwarded; with gates what was stored before is counted before it waits. */
template <bool GATED>
static __device__ __forceinline__ bool await_passed_on(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token,
	struct gate_stored *stored)
{
	const struct gpu_exchange *e = &d->exchange;

	if constexpr (GATED) {
		if (was_forwarded(e, h, epoch, source, token))
			return true;
		gate_count_rows(&d->gate, stored);
	}
	return await_forwarded(e, h, epoch, source, token);
}

/* False: it names what there is not, or its row has not come. stored: of gates. */
template <bool GATED>
static __device__ __forceinline__ bool take_row_of(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token, uint4 head,
	struct gate_stored *stored)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t same = __match_any_sync(ALL_LANES, head.x); /* an expert named twice has one place
							      */
	uint32_t first,
		tile = UINT32_MAX,
		lanes = __ballot_sync(ALL_LANES, head.x != UINT32_MAX && is_lowest_of(same));
	struct row_from from;

	if constexpr (GATED)
		if (!tile_of_head(d, epoch, source, token, head, &tile))
			return false;
	first = __shfl_sync(ALL_LANES, head.x, __ffs(lanes) - 1);
	describe_rows(d, source, token, head, first);
	if (e->internode->two_hops) {
		if (!await_passed_on<GATED>(d, h, epoch, source, token, stored))
			return false;
		from = row_in_window(d, h, first);
		lanes &= lanes - 1;
	} else {
		uint32_t number = word_load(numbers_from(e, source, token));

		if (!check_number(e, epoch, source, token, number))
			return false;
		from = row_in_landing(e, source, number);
	}
	copy_row_to(d, h, from, lanes, e->rank, head.x);
	if constexpr (GATED)
		gate_note_rows(&d->gate, stored, tile);
	return true;
}

static __device__ __forceinline__ bool take_token(const struct gpu_dispatch *d,
	const struct ht_exchange *h, uint32_t epoch, uint32_t source, uint32_t token)
{
	const struct gpu_exchange *e = &d->exchange;
	uint4 head = internode_token_head(e, h, source, token, epoch);

	if (!check_head(e, e->state->extent, epoch, source, token, head))
		return false;
	return !__any_sync(ALL_LANES, head.x != UINT32_MAX) ||
	       take_row_of<false>(d, h, epoch, source, token, head, NULL);
}

#endif
