/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of rows that go to ranks on other nodes. Rows for one rank lie together in staging and in
 * landing, so that all of them leave in one write; results of them lie so, too. A row's number
 * follows from which earlier tokens go there:
 *
 *   note_going     32 tokens by a warp -> a bit each, for every internode rank; with the epoch, as
 *                  other blocks poll it
 *   find_number    of a token: how many earlier ones go where lane k's route goes
 *
 * Of replica ranks each sends its share of the tokens, and all get all results: rows are numbered
 * among those of one source, results source by source. */
#ifndef TERN_GPU_CUDA_INTERNODE_NUMBERS_CUH
#define TERN_GPU_CUDA_INTERNODE_NUMBERS_CUH

#include "gpu/cuda/internode/internode.cuh"
#include "gpu/cuda/common/plan.cuh"

#define GOING_LOOKS 4 /* of a lane at once */

struct row_number {
	uint32_t row, result;
};

/* Counted from 1; 0: it is on this node, or none. */
__device__ __forceinline__ uint32_t internode_number(const struct gpu_exchange *e, uint32_t rank)
{
	return rank == UINT32_MAX ? 0 : e->internode->is_internode[rank];
}

/* Where a row for that rank is sent. */
__device__ __forceinline__ uint32_t via_rank(const struct gpu_exchange *e, uint32_t rank)
{
	return rank == UINT32_MAX ? UINT32_MAX : e->internode->via[rank];
}

__device__ __forceinline__ uint8_t *going_at(
	const struct gpu_exchange *e, uint32_t number, uint32_t word)
{
	return e->internode->going +
	       ((uint64_t)number * internode_going_words(e->max_tokens) + word) * 16;
}

/* LOW: out of the caller's ids; else out of what the plan has noted. */
template <bool LOW>
__device__ __forceinline__ uint32_t rank_of_route(const struct gpu_dispatch *d, uint32_t index)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t physical;

	if (!LOW)
		return e->home_routes[index].x;
	physical = physical_expert<GPU_ANY>(e, expert_id<GPU_ANY>(d, index), index);
	return physical == GPU_NO_EXPERT ? UINT32_MAX
					 : expert_rank<GPU_ANY>(&e->placement, physical);
}

/* Tokens 32 word to 32 word + 31 of nr_tokens, of all replicas. By a warp. */
template <bool LOW>
static __device__ __noinline__ void note_going(
	const struct gpu_dispatch *d, uint32_t epoch, uint32_t word, uint32_t nr_tokens)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t token = word * LANES + lane_id(), nr = e->internode->nr_internode;

	for (uint32_t first = 0; first < nr; first += LANES) {
		uint2 goes = make_uint2(0, 0), mine = goes;

		for (uint32_t k = 0; k < e->topk && token < nr_tokens; k++) {
			uint32_t rank = rank_of_route<LOW>(d, token * e->topk + k),
				 number = internode_number(e, rank) - 1 - first,
				 sent = internode_number(e, via_rank(e, rank)) - 1 - first;

			goes.x |= number < LANES ? 1u << number : 0;
			goes.y |= sent < LANES ? 1u << sent : 0;
		}
		__syncwarp();
		for (uint32_t i = 0; i < LANES && first + i < nr; i++) {
			uint32_t bits = __ballot_sync(ALL_LANES, goes.x >> i & 1),
				 sent = __ballot_sync(ALL_LANES, goes.y >> i & 1);

			mine = lane_id() == i ? make_uint2(bits, sent) : mine;
		}
		if (first + lane_id() < nr)
			piece_store(going_at(e, first + lane_id(), word),
				make_uint4(mine.x, mine.y, 0, epoch));
	}
}

/* All words of a round; by all warps that send. */
template <bool LOW>
__device__ __forceinline__ void note_all_going(const struct gpu_dispatch *d, uint32_t epoch,
	uint32_t nr_tokens, uint32_t warp, uint32_t nr_warps)
{
	for (uint32_t word = warp; word * LANES < nr_tokens; word += nr_warps)
		note_going<LOW>(d, epoch, word, nr_tokens);
}

/* Of a word's tokens those that number `replica` of the replicas sends, or with `below` those
 * before it. */
__device__ __forceinline__ uint32_t bits_of_replica(
	const struct gpu_exchange *e, uint32_t word, uint32_t replica, bool below)
{
	uint32_t bits = 0;

	if (e->by_replicas.d == 1)
		return below ? 0 : UINT32_MAX;
	for (uint32_t i = 0; i < LANES; i++) {
		uint32_t token = word * LANES + i,
			 sender = token - gpu_div(token, e->by_replicas) * e->by_replicas.d;

		bits |= (uint32_t)(below ? sender < replica : sender == replica) << i;
	}
	return bits;
}

/* As may_wait, but that a round in which something fails sends all the same what others need to
 * find that (LOW: has_failed_before). */
template <bool LOW>
static __device__ __noinline__ bool going_may_come(
	struct patience *p, const struct gpu_exchange *e, uint32_t epoch)
{
	uint64_t now;
	uint32_t failed;

	if (++p->polls % POLLS_PER_LOOK)
		return true;
	now = now_ns();
	p->start_ns = p->start_ns ? p->start_ns : now;
	failed = word_load(&e->state->failed);
	if (LOW)
		failed = has_failed_before(e, failed, epoch);
	return !__any_sync(ALL_LANES, failed || now - p->start_ns >= e->wait_ns);
}

__device__ __forceinline__ void keep_going(uint2 *bits, uint4 v)
{
	*bits = make_uint2(v.x, v.y);
}

__device__ __forceinline__ void keep_going(uint4 *bits, uint4 v)
{
	*bits = v;
}

/* Words `first` to first + GOING_LOOKS - 1 of lane k's rank; those from `end` on are empty. To bits
 * the tokens that go there, and those that are sent there. */
template <bool LOW, typename BITS>
static __device__ __forceinline__ bool await_going(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t number, uint32_t token, uint32_t first, uint32_t end, BITS (&bits)[GOING_LOOKS])
{
	struct patience patience = {0, 0};
	uint32_t seen;

	for (;;) {
		uint4 v[GOING_LOOKS];

		seen = epoch;
#pragma unroll
		for (uint32_t i = 0; i < GOING_LOOKS; i++)
			v[i] = number && first + i < end
				       ? piece_load(going_at(e, number - 1, first + i))
				       : make_uint4(0, 0, 0, epoch);
#pragma unroll
		for (uint32_t i = 0; i < GOING_LOOKS; i++) {
			keep_going(&bits[i], v[i]);
			seen = v[i].w == epoch ? seen : v[i].w;
		}
		if (__all_sync(ALL_LANES, seen == epoch))
			return true;
		if (!going_may_come<LOW>(&patience, e, epoch))
			break;
	}
	if (lane_id() == __ffs(__ballot_sync(ALL_LANES, seen != epoch)) - 1)
		report_wait(e, GPU_WAIT_PLAN, e->rank, token, epoch, seen, patience.start_ns);
	return false;
}

/* Of a token's route in lane k, where rank is on another node; else {token, token}. By a warp.
 * False: who notes it did not. */
template <bool LOW>
static __device__ __noinline__ bool find_number(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t rank, uint32_t token, uint32_t nr_tokens, struct row_number *found)
{
	uint32_t number = internode_number(e, rank), sent = internode_number(e, via_rank(e, rank)),
		 replica = token - gpu_div(token, e->by_replicas) * e->by_replicas.d,
		 end = e->by_replicas.d == 1 ? token / LANES + 1 : gpu_ceil(nr_tokens, LANES),
		 row = 0, result = 0;

	*found = {token, token};
	if (!__any_sync(ALL_LANES, number))
		return true;
	for (uint32_t first = 0; first < end; first += GOING_LOOKS) {
		uint2 bits[GOING_LOOKS], ways[GOING_LOOKS];

		if (!await_going<LOW>(e, epoch, number, token, first, end, bits))
			return false;
#pragma unroll
		for (uint32_t i = 0; i < GOING_LOOKS; i++)
			ways[i] = bits[i]; /* where rows go straight it is the same word */
		if (e->internode->two_hops &&
			!await_going<LOW>(e, epoch, sent, token, first, end, ways))
			return false;
#pragma unroll
		for (uint32_t i = 0; i < GOING_LOOKS; i++) {
			uint32_t word = first + i, before = word < token / LANES ? UINT32_MAX
							    : word == token / LANES
								    ? (1u << token % LANES) - 1
								    : 0;

			before &= bits_of_replica(e, word, replica, false);
			row += __popc(ways[i].y & before);
			result += __popc(
				bits[i].x & (before | bits_of_replica(e, word, replica, true)));
		}
	}
	if (number)
		*found = {row, result};
	return true;
}

/* Of row number `number` to that gateway; counted from 1. */
__device__ __forceinline__ uint8_t *way_to(
	const struct gpu_exchange *e, uint32_t gateway, uint32_t number)
{
	return part_to<true>(e, INTERNODE_WAYS, gateway) +
	       (uint64_t)number * e->internode->way_bytes;
}

/* Two hops, by a warp: which ranks of its node a row goes to from there. rank: of lane k's route.
 */
static __device__ __noinline__ void tell_way(const struct gpu_exchange *e, uint32_t epoch,
	uint32_t token, uint32_t gateway, uint32_t number, uint32_t rank)
{
	bool goes = rank != UINT32_MAX && via_rank(e, rank) == gateway;
	uint32_t place = goes ? e->internode->place_on_node[rank] : 0;
	uint32_t low = __reduce_or_sync(ALL_LANES, goes && place < 32 ? 1u << place : 0),
		 high = __reduce_or_sync(ALL_LANES, goes && place >= 32 ? 1u << (place - 32) : 0);

	if (lane_id() == 0)
		piece_store(way_to(e, gateway, number + 1), make_uint4(token, low, high, epoch));
}

/* High throughput, by a warp: the first position on each of these ranks; lane k's route leads to
 * rank and position, and is the first there if so. */
static __device__ __forceinline__ void tell_positions(const struct gpu_exchange *e,
	uint32_t gateway, uint32_t number, uint32_t rank, uint32_t position, bool first)
{
	if (first && via_rank(e, rank) == gateway)
		word_store(way_to(e, gateway, number + 1) + INTERNODE_WAY_BYTES +
				   e->internode->place_on_node[rank] * 4,
			position);
}

/* Of a dispatch message with so many rows, all that is not sparse. */
__device__ __forceinline__ uint64_t dispatch_head_bytes(
	const struct internode_table *internode, uint32_t nr_rows)
{
	return internode->two_hops
		       ? internode->ways_offset + (nr_rows + 1ull) * internode->way_bytes
		       : internode->head_bytes[INTERNODE_DISPATCH];
}

/* By one lane, when all words have come: rows that are sent from here to that internode rank. */
__device__ __forceinline__ uint32_t count_going(
	const struct gpu_exchange *e, uint32_t number, uint32_t nr_tokens)
{
	uint32_t replica = e->rank - home_first(e, e->rank), nr = 0;

#pragma unroll 4
	for (uint32_t word = 0; word * LANES < nr_tokens; word++)
		nr += __popc(piece_load(going_at(e, number, word)).y &
			     bits_of_replica(e, word, replica, false));
	return nr;
}

/* By one warp, when all have stored what internode ranks get: to each its rows in one write, and
 * the head. */
static __device__ __noinline__ void ring_internode_rows(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t nr_tokens)
{
	struct internode_table *internode = e->internode;
	uint32_t begun = 0;

	for (uint32_t i = lane_id(); i < internode->nr_internode; i += LANES) {
		const struct internode_rank *to = &internode->ranks[i];
		uint32_t nr = count_going(e, i, nr_tokens);

		if (nr)
			internode_ring_run(internode, to, INTERNODE_DISPATCH, 0, nr);
		if (internode->two_hops)
			piece_store(way_to(e, to->rank, 0), make_uint4(nr, 0, 0, epoch));
		internode_ring_head(internode, to, INTERNODE_DISPATCH, epoch, nr != 0,
			dispatch_head_bytes(internode, nr));
		begun += 1 + (nr != 0);
	}
	begun = __reduce_add_sync(ALL_LANES, begun);
	if (lane_id() == 0)
		internode_has_begun(internode, INTERNODE_DISPATCH, begun);
}

#endif
