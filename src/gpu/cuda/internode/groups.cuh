/* SPDX-License-Identifier: Apache-2.0 */
/* Gates between nodes: rows for a rank lie, and travel, by groups of its experts, a run each, and
 * are received in that order while later runs are on their way. In low latency rows go straight,
 * and a row is of the lowest group that it has an expert of there. In high throughput rows go in
 * two hops, by the lowest group of all ranks that the gateway passes it on to; so on each it is
 * there with its own lowest group, or before.
 *
 *   before (release)             after (acquire)               so that
 *   internode_runs_publish,      internode_collect, of heads   plans are there; and what came of
 *     on the proxy                                             runs is not of an earlier round
 *   internode_runs_publish       internode_collect_runs        a run that is told has come
 *   internode_collect_runs       run_has_come                  what one warp has acquired is all
 *                                                              warps'
 *
 * Why all runs leave when the last row is staged, and not each when its own are: staging is stores
 * to memory of this machine, and a run is on its way for as long as the network takes for all that
 * is ahead of it. To count each group's rows would put a fence of the system behind each of them.
 *
 * Why a run of the next round does not meet one that is read: the collecting warp ends with the
 * arrival words of whole messages, so a kernel ends behind all runs, as without gates. */
#ifndef TERN_GPU_CUDA_INTERNODE_GROUPS_CUH
#define TERN_GPU_CUDA_INTERNODE_GROUPS_CUH

#include "gpu/cuda/internode/numbers.cuh"

__device__ __forceinline__ uint32_t group_of_local(const struct gpu_exchange *e, uint32_t local)
{
	return min(gpu_div(local, e->internode->by_group), INTERNODE_GROUPS - 1);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Where groups of the rows that are sent to internode rank `number` are noted: in two hops behind
 * what note_going notes, by which results are numbered. */
__device__ __forceinline__ uint32_t groups_number(const struct gpu_exchange *e, uint32_t number)
{
	return number + (e->internode->two_hops ? e->internode->nr_internode : 0);
}

/* As note_going: x, tokens that are sent there; y and z, the bits of their groups. */
static __device__ __noinline__ void note_groups(
	const struct gpu_dispatch *d, uint32_t epoch, uint32_t word, uint32_t nr_tokens)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t token = word * LANES + lane_id(), nr = e->internode->nr_internode;

	for (uint32_t first = 0; first < nr; first += LANES) {
		uint32_t goes[INTERNODE_GROUPS] = {}; /* ranks, by the token's lowest group there */
		uint4 mine = make_uint4(0, 0, 0, epoch);

		for (uint32_t k = 0; k < e->topk && token < nr_tokens; k++) {
			uint32_t index = token * e->topk + k,
				 physical = physical_expert<GPU_ANY>(
					 e, expert_id<GPU_ANY>(d, index), index),
				 place = physical == GPU_NO_EXPERT
						 ? UINT32_MAX
						 : expert_place(&e->placement, physical),
				 number = physical == GPU_NO_EXPERT
						  ? UINT32_MAX
						  : internode_number(e, via_rank(e, place >> 16)) -
							    1 - first,
				 group = group_of_local(e, place & 0xffff);

			for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
				goes[g] |= g >= group && number < LANES ? 1u << number : 0;
		}
		__syncwarp();
		for (uint32_t i = 0; i < LANES && first + i < nr; i++) {
			uint32_t group = 0, all = goes[INTERNODE_GROUPS - 1] >> i & 1;

			for (uint32_t g = 0; g + 1 < INTERNODE_GROUPS; g++)
				group += all && !(goes[g] >> i & 1);
			uint4 v = make_uint4(__ballot_sync(ALL_LANES, all),
				__ballot_sync(ALL_LANES, group & 1),
				__ballot_sync(ALL_LANES, group >> 1), epoch);

			mine = lane_id() == i ? v : mine;
		}
		if (first + lane_id() < nr)
			piece_store(going_at(e, groups_number(e, first + lane_id()), word), mine);
	}
}

__device__ __forceinline__ void note_all_groups(const struct gpu_dispatch *d, uint32_t epoch,
	uint32_t nr_tokens, uint32_t warp, uint32_t nr_warps)
{
	for (uint32_t word = warp; word * LANES < nr_tokens; word += nr_warps)
		note_groups(d, epoch, word, nr_tokens);
}

/* Of a word of tokens those whose group is `group`, or below it. */
__device__ __forceinline__ uint32_t tokens_of_group(uint4 going, uint32_t group)
{
	return going.x & (group & 1 ? going.y : ~going.y) & (group & 2 ? going.z : ~going.z);
}

__device__ __forceinline__ uint32_t tokens_below_group(uint4 going, uint32_t group)
{
	uint32_t low = group & 1 ? ~going.y : 0;

	return going.x & (group & 2 ? ~going.z | low : ~going.z & low);
}

/* As find_number, of rows by groups; results lie by token. rank: that it is sent to. */
template <bool LOW>
static __device__ __noinline__ bool find_number_by_group(const struct gpu_exchange *e,
	uint32_t epoch, uint32_t rank, uint32_t token, uint32_t nr_tokens, struct row_number *found)
{
	uint32_t sent = internode_number(e, rank), number = sent ? groups_number(e, sent) : 0,
		 replica = token - gpu_div(token, e->by_replicas) * e->by_replicas.d,
		 end = gpu_ceil(nr_tokens, LANES), at = token / LANES, group, row = 0, result = 0;
	uint4 bits[GOING_LOOKS];

	*found = {token, token};
	if (!__any_sync(ALL_LANES, number))
		return true;
	if (!await_going<LOW>(e, epoch, number, token, at, end, bits))
		return false;
	group = (bits[0].y >> token % LANES & 1) + 2 * (bits[0].z >> token % LANES & 1);
	for (uint32_t first = 0; first < end; first += GOING_LOOKS) {
		if (!await_going<LOW>(e, epoch, number, token, first, end, bits))
			return false;
#pragma unroll
		for (uint32_t i = 0; i < GOING_LOOKS; i++) {
			uint32_t word = first + i,
				 before = word < at    ? UINT32_MAX
					  : word == at ? (1u << token % LANES) - 1
						       : 0,
				 mine = bits_of_replica(e, word, replica, false);

			row += __popc(mine & (tokens_below_group(bits[i], group) |
						     (tokens_of_group(bits[i], group) & before)));
			result += __popc(bits[i].x & ((mine & before) | bits_of_replica(e, word,
										replica, true)));
		}
	}
	if (number)
		*found = {row, result};
	return true;
}

/* By a warp, when all words have come: of the rows that are sent from here to internode rank
 * `number`, those up to each group. */
static __device__ __forceinline__ uint4 count_groups(
	const struct gpu_exchange *e, uint32_t number, uint32_t nr_tokens)
{
	uint32_t replica = e->rank - home_first(e, e->rank), nr[INTERNODE_GROUPS] = {};

	for (uint32_t word = lane_id(); word * LANES < nr_tokens; word += LANES) {
		uint4 going = piece_load(going_at(e, groups_number(e, number), word));

		going.x &= bits_of_replica(e, word, replica, false);
#pragma unroll
		for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
			nr[g] += __popc(g + 1 < INTERNODE_GROUPS ? tokens_below_group(going, g + 1)
								 : going.x);
	}
	__syncwarp();
#pragma unroll
	for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
		nr[g] = __reduce_add_sync(ALL_LANES, nr[g]);
	return make_uint4(nr[0], nr[1], nr[2], nr[3]);
}

/* Lane k's, of number first + k. */
static __device__ __forceinline__ uint4 count_groups_of_ranks(
	const struct gpu_exchange *e, uint32_t first, uint32_t nr_tokens)
{
	uint4 mine = make_uint4(0, 0, 0, 0);

	for (uint32_t i = 0; i < LANES && first + i < e->internode->nr_internode; i++) {
		uint4 ends = count_groups(e, first + i, nr_tokens);

		mine = lane_id() == i ? ends : mine;
	}
	return mine;
}

__device__ __forceinline__ uint32_t end_of_group(uint4 ends, uint32_t group)
{
	return group == 0 ? ends.x : group == 1 ? ends.y : group == 2 ? ends.z : ends.w;
}

__device__ __forceinline__ uint32_t start_of_group(uint4 ends, uint32_t group)
{
	return group ? end_of_group(ends, group - 1) : 0;
}

/* Two hops: what a gateway has to know of all ways, in the one before the first. */
__device__ __forceinline__ void tell_groups(
	const struct gpu_exchange *e, uint32_t epoch, uint8_t *way, uint4 ends)
{
	piece_store(way, make_uint4(ends.w, 0, 0, epoch));
	piece_store(way + INTERNODE_WAY_BYTES, ends);
}

/* By one warp, when all have stored what internode ranks get: all heads, then of each group to each
 * rank its rows, so that the first ones are ahead of all others in the engine. */
static __device__ __noinline__ void ring_internode_groups(
	const struct gpu_exchange *e, uint32_t epoch, uint32_t nr_tokens)
{
	struct internode_table *internode = e->internode;
	uint32_t nr = internode->nr_internode, begun = 0;
	uint4 ends = make_uint4(0, 0, 0, 0);

	for (uint32_t first = 0; first < nr; first += LANES) {
		const struct internode_rank *to = &internode->ranks[first + lane_id()];
		uint32_t runs = 0;

		ends = count_groups_of_ranks(e, first, nr_tokens);
		if (first + lane_id() < nr) {
			for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
				runs += end_of_group(ends, g) != start_of_group(ends, g);
			if (internode->two_hops)
				tell_groups(e, epoch, way_to(e, to->rank, 0), ends);
			internode_ring_head(internode, to, INTERNODE_DISPATCH, epoch, runs,
				dispatch_head_bytes(internode, ends.w));
			begun += 1 + runs;
		}
		__syncwarp();
	}
	for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
		for (uint32_t first = 0; first < nr; first += LANES) {
			uint32_t start, end;

			if (nr > LANES)
				ends = count_groups_of_ranks(e, first, nr_tokens);
			start = start_of_group(ends, g);
			end = end_of_group(ends, g);
			if (first + lane_id() < nr && start != end)
				internode_ring_run(internode, &internode->ranks[first + lane_id()],
					INTERNODE_DISPATCH, start, end - start, g);
			__syncwarp();
		}
	begun = __reduce_add_sync(ALL_LANES, begun);
	if (lane_id() == 0)
		internode_has_begun(internode, INTERNODE_DISPATCH, begun);
}

/* ---- waiting --------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t *run_at(
	const struct gpu_exchange *e, uint32_t number, uint32_t group)
{
	return &e->internode->runs[number * INTERNODE_GROUPS + group];
}

/* By one lane: tells other warps which runs of a rank have come, and whether all have. */
static __device__ __forceinline__ bool pass_on_runs(
	const struct gpu_exchange *e, const uint8_t *line, uint32_t number, uint32_t epoch)
{
	bool all = word_acquire(line) == epoch;
	uint32_t runs = all ? UINT32_MAX : word_acquire(line + INTERNODE_RUNS_OFFSET);

	for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
		if (runs >> g & 1 && word_load(run_at(e, number, g)) != epoch)
			word_release(run_at(e, number, g), epoch);
	return all;
}

/* By one warp of all, which has seen that all heads have come: runs of all ranks as they come,
 * until all have. It is the one to report. */
static __device__ __noinline__ void internode_collect_runs(
	const struct gpu_exchange *e, uint32_t epoch)
{
	const struct internode_table *internode = e->internode;
	const uint8_t *lines =
		internode->words + (uint64_t)INTERNODE_DISPATCH * e->nr_ranks * GPU_LINE_BYTES;
	struct patience patience = {0, 0}, peace = {0, 0};
	uint64_t start_ns = now_ns();
	bool more = true;

	while (__any_sync(ALL_LANES, more)) {
		uint32_t missing = UINT32_MAX, left = UINT32_MAX, lost = UINT32_MAX;

		for (uint32_t i = lane_id(); i < internode->nr_internode && more; i += LANES) {
			uint32_t rank = internode->ranks[i].rank;
			const uint8_t *line = lines + (uint64_t)rank * GPU_LINE_BYTES;
			uint32_t gone = word_acquire(line + INTERNODE_GONE_OFFSET);

			if (pass_on_runs(e, line, i, epoch))
				continue;
			missing = missing == UINT32_MAX ? rank : missing;
			left = gone == INTERNODE_LEFT ? rank : left;
			lost = gone == INTERNODE_LOST ? rank : lost;
		}
		missing = lost != UINT32_MAX ? lost : left != UINT32_MAX ? left : missing;
		more = more && missing != UINT32_MAX;
		if (more &&
			(lost != UINT32_MAX ||
				!may_wait(left != UINT32_MAX ? &peace : &patience, e, e->rank,
					left != UINT32_MAX ? INTERNODE_PEACE_NS : e->wait_ns))) {
			report_wait(e, GPU_WAIT_ROW, missing, 0, epoch,
				word_load(lines + (uint64_t)missing * GPU_LINE_BYTES), start_ns);
			more = false;
		}
	}
}

static __device__ __forceinline__ bool run_has_come(
	const struct gpu_exchange *e, uint32_t source, uint32_t group, uint32_t epoch)
{
	bool come = word_acquire(run_at(e, e->internode->is_internode[source] - 1, group)) == epoch;

	come = __all_sync(ALL_LANES, come);
	__syncwarp();
	return come;
}

/* By any warp, before it looks at a row in landing. The one that collects reports; this bound is
 * there in case that it could not. */
static __device__ __noinline__ bool internode_await_run(
	const struct gpu_exchange *e, uint32_t source, uint32_t group, uint32_t epoch)
{
	struct patience patience = {0, 0};

	while (!run_has_come(e, source, group, epoch)) {
		if (patience.polls % POLLS_PER_FAILURE == 0 &&
			__any_sync(ALL_LANES, word_load(&e->state->failed) != 0))
			return false;
		if (warp_may_wait(&patience, e, e->rank, 2 * e->wait_ns))
			continue;
		if (lane_id() == 0)
			report_wait(e, GPU_WAIT_ROW, source, 0, epoch,
				word_load(run_at(e, e->internode->is_internode[source] - 1, group)),
				patience.start_ns);
		return false;
	}
	return true;
}

#endif
