/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput combine: what the experts here made of a token is summed (at_home: each row as it
 * is), stored in the home's window, and summed there.
 *
 *   sent        a token of another source: its head -> y rows -> a result in the home's window
 *   come home   a token of this rank: the words of its results -> their rows, and rows of y that
 *               are its own -> out
 *
 * Own rows pass through no window, but where halves are called apart, or ranks have replicas. Then
 * own tokens are sent like others. Both are sums of rows, by teams of warps (team.cuh). A team's
 * loading warp finds out which rows there are (combine_send.cuh, combine_home.cuh). It looks at
 * several tokens at a time, at those that come home between those that are sent, and at the next
 * ones while rows of these are loaded. NVLink is what all wait for, so what is sent comes first;
 * but only as long as it finds a place to go. What comes home would wait behind it in the same
 * buffers. Floor: the results' bytes over NVLink.
 */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/ht/combine_home.cuh"
#include "gpu/cuda/ht/combine_send.cuh"
#include "gpu/cuda/ht/team_store.cuh"

/* ---- the kernel ------------------------------------------------------------------------------ */

template <bool GATED>
static __device__ __forceinline__ void team_load_all(const struct gpu_combine *c,
	const struct ht_exchange *h, const struct combine_launch *l, shared_at team, uint32_t epoch,
	uint32_t nr_tokens)
{
	const struct gpu_exchange *e = &c->exchange;
	struct buffers in = buffers_of(l->shape, team, false),
		       out = buffers_of(l->shape, team, true);
	uint32_t put = 0; /* results */
	uint32_t shift = token_shift(e->topk);
	bool abandoned = e->state->abandoned,
	     sends = l->sends && !abandoned && !(l->keeps_own && e->nr_ranks == 1),
	     receives = l->receives;
	uint32_t extent = e->state->extent;
	struct dealer results = {}, homes = {};
	struct sent sent = {};
	struct home home = {};

	if (sends) {
		results = dealer_of(&e->state->tickets[HT_TICKETS_RESULTS], l->nr_tokens, shift);
		sent = look_at_sent(e, h, l, &results);
	}
	if (receives) {
		homes = dealer_of(&e->state->tickets[HT_TICKETS_HOME], l->nr_tokens, shift);
		home = look_at_home(e, h, l, &homes, nr_tokens, abandoned);
	}
	while (sends || receives) {
		uint32_t seen = epoch;

		receives = receives && __any_sync(ALL_LANES, home.any);
		if (receives && !home.shared_out)
			share_out(e, h, l, epoch, shift, &home);
		sends = sends && __any_sync(ALL_LANES, sent.any);
		if (sends && (!receives || !l->yields || buffer_is_free(&out, put))) {
			struct sent next = look_at_sent(e, h, l, &results);

			if (receives)
				seen = glance_at_result(e, h, epoch, &home);
			sends = load_sent<GATED>(
				c, h, l->shape, epoch, extent, &in, &put, &results, &sent);
			sent = next;
		}
		if (sends && !__all_sync(ALL_LANES, seen == epoch))
			continue;
		if (receives && await_results(e, h, epoch, &home, sends)) {
			struct home next = look_at_home(e, h, l, &homes, nr_tokens, abandoned);

			receives =
				load_home<GATED>(c, h, l->shape, epoch, extent, &in, &homes, &home);
			home = next;
		} else if (!sends) {
			break;
		}
	}
	team_stop(&in);
}

namespace tern
{
/* GATED: y is still made while this runs, by a kernel that has let it start when all was there that
 * the dispatch has left; what comes behind this is behind that one, too. */
template <int Y, bool GATED = false>
static __global__ void __launch_bounds__(TEAM_MOST_WARPS *LANES, 1) combine_ht(
	const __grid_constant__ struct gpu_combine c, const __grid_constant__ struct ht_exchange h,
	const __grid_constant__ struct combine_launch l)
{
	BLOCK_MEMORY(shared);
	const struct gpu_exchange *e = &c.exchange;
	struct team_place place = team_place_of(l.shape, threadIdx.x / LANES);
	shared_at of_team = in_shared(shared) + place.team * team_bytes(l.shape);

	if (place.role == TEAM_LOADS)
		buffers_open(l.shape, of_team);
	trace_mark(e, GPU_TRACE_COMBINE);
	__syncthreads();
	if (!GATED) {
		wait_for_previous();
		let_next_start();
	}
	uint4 state = *(const uint4 *)e->state; /* epoch_dispatch, epoch_combine, nr_tokens, failed
						 */

	if (__syncthreads_or(state.w)) { /* another block may just have failed: all of this one or
					    none, as its warps wait for each other */
		if (GATED)
			wait_for_previous();
		return;
	}
	if (blockIdx.x == 0 && threadIdx.x == 0) {
		if (l.receives) /* read by kernels behind this one, and by who asks what is owed */
			e->state->epoch_dispatch = ht_epoch_after(state.y);
		if (l.sends && !c.release && !e->state->abandoned)
			counters_results(e);
	}
	if (c.release) /* never gated */
		return;
	if (place.role == TEAM_LOADS)
		team_load_all<GATED>(&c, &h, &l, of_team, state.y, state.z);
	else if (place.role == TEAM_STORES)
		team_store(e, &h, l.shape, of_team, state.y);
	else
		team_sum<Y>(l.shape, of_team, place.which);
	trace_mark(e, GPU_TRACE_HOME);
	if (GATED)
		wait_for_previous();
}
} // namespace tern

/* ---- launching ------------------------------------------------------------------------------- */

typedef void (*combine_kernel)(
	const struct gpu_combine, const struct ht_exchange, const struct combine_launch);

static combine_kernel choose(const struct gpu_combine *c)
{
	if (c->gate.marks) /* results are BF16 */
		return tern::combine_ht<GPU_Y_BF16, true>;
	return c->kind == GPU_Y_BF16   ? tern::combine_ht<GPU_Y_BF16>
	       : c->kind == GPU_Y_FP16 ? tern::combine_ht<GPU_Y_FP16>
				       : tern::combine_ht<GPU_Y_FP32>;
}

/* One token at a time where there are few for each team, as the last ones decide when all have
 * ended; and with many blocks, where NVLink and memory are waited for, not loading warps. */
static struct combine_launch division(
	const struct gpu_combine *c, const struct ht_exchange *h, uint32_t nr_blocks)
{
	const struct gpu_exchange *e = &c->exchange;
	struct combine_launch l = {
		team_shape_of(e->result.row_bytes, h->block_bytes, nr_blocks, e->nr_ranks), 0,
		c->roles & GPU_SEND, c->roles & GPU_RECEIVE, 0, 0, e->by_ranks};
	uint32_t of_team = e->max_tokens * e->nr_ranks / (nr_blocks * l.shape.nr_teams),
		 together = gpu_least(MOST_TOKENS, LANES >> token_shift(e->topk));

	l.keeps_own = c->roles == (GPU_SEND | GPU_RECEIVE) && e->by_replicas.d == 1;
	if (l.keeps_own)
		l.by_sources = e->by_others;
	l.nr_tokens = of_team < 32 || nr_blocks > TEAM_MANY_BLOCKS
			      ? 1
			      : gpu_least(together, of_team / 32);
	l.yields = l.nr_tokens == 1;
	return l;
}

static uint32_t shared_bytes(const struct combine_launch *l)
{
	return l->shape.nr_teams * team_bytes(l->shape);
}

cudaError_t ht_combine_launch(const struct gpu_combine *c, const struct ht_exchange *h,
	const struct gpu_launch *launch, cudaStream_t stream)
{
	struct combine_launch l = division(c, h, launch->nr_blocks);
	cudaLaunchConfig_t config = launch_config(launch->nr_blocks,
		l.shape.nr_teams * team_warps(l.shape) * LANES, shared_bytes(&l), stream);
	cudaLaunchAttribute early = {};

	launch_early(&config, &early, launch->early);
	return cudaLaunchKernelEx(&config, choose(c), *c, *h, l);
}

cudaError_t ht_combine_blocks(const struct gpu_combine *c, const struct ht_exchange *h, int *per_sm)
{
	struct combine_launch l = division(c, h, 1);
	cudaError_t rc = allow_shared((const void *)choose(c));

	if (!rc && c->gate.row_bits)
		rc = allow_shared((const void *)tern::combine_ht<GPU_Y_BF16, true>);
	return rc ? rc
		  : cudaOccupancyMaxActiveBlocksPerMultiprocessor(per_sm, choose(c),
			    (int)l.shape.nr_teams * team_warps(l.shape) * LANES, shared_bytes(&l));
}
