/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch: heads, behind rows that have arrived.
 *
 * With many blocks a sending warp has a fence for each token, and tells its heads itself: NVLink
 * has enough of others. With few it is the sending warps that are lacking:
 *
 *   sending warp   when a token's rows are where they belong: leaves a note of its places in the
 *                  block's shared memory
 *   telling warp   one of a block: takes all notes that it finds, fences once, and stores their
 *                  heads to all ranks
 *
 * So nobody who sends waits for a fence, which waits for what NVLink has in its queues. A note is
 * passed on by two barriers:
 *
 *         arrives                                      waits           so that
 *   full  sending warp, when the rows are where they   telling lanes   their fence is behind the rows (copies_done orders them before what this lane does; barrier and fence are
 *         belong and the note is written                               cumulative), and the note is read whole
 *   free  telling lanes, when they have read it        sending warp    the next note overwrites nothing that is still read
 */
#ifndef TERN_GPU_CUDA_HT_DISPATCH_HEADS_CUH
#define TERN_GPU_CUDA_HT_DISPATCH_HEADS_CUH

#include "gpu/cuda/ht/dispatch_parts.cuh"

#define NOTES_OF_WARP 2
#define DISPATCH_MOST_WARPS (GPU_MAX_WARPS - 1) /* of a block, beside the telling one */
#define MOST_NOTES (NOTES_OF_WARP * DISPATCH_MOST_WARPS)

/* A token and, lane by lane, where a route of its leads. These ranks are none. */
#define NOTE_NO_RANK 0xffffu
#define NOTE_STOP 0xfffeu
static_assert(GPU_MAX_RANKS < NOTE_STOP, "a rank has 16 bits, and so has a token");

HOST_DEVICE uint32_t head_notes_bytes(uint32_t topk)
{
	return MOST_NOTES * (topk * 16 + 2 * COPY_BARRIER_BYTES);
}

/* A block's. */
struct head_notes {
	shared_at notes, full, free;
	uint32_t topk;
};

__device__ __forceinline__ struct head_notes head_notes_at(shared_at first, uint32_t topk)
{
	shared_at full = first + MOST_NOTES * topk * 16;

	return {first, full, full + MOST_NOTES * COPY_BARRIER_BYTES, topk};
}

/* By a warp; then a barrier of the block. */
__device__ __forceinline__ void head_notes_open(const struct head_notes *n)
{
	if (lane_id() < MOST_NOTES) {
		barrier_open(n->full + lane_id() * COPY_BARRIER_BYTES, LANES);
		barrier_open(n->free + lane_id() * COPY_BARRIER_BYTES, n->topk);
	}
	copy_out_ready();
}

/* A token's, to all ranks, from the next one on; behind a fence. This lane has the part of its k-th
 * route. head: that part for the rank to which the route leads. */
static __device__ __forceinline__ void store_heads(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t token, uint32_t k, uint4 head, uint32_t rank)
{
	for (uint32_t i = 1; i <= e->nr_ranks; i++) {
		uint32_t r = e->rank + i >= e->nr_ranks ? e->rank + i - e->nr_ranks : e->rank + i;

		piece_store(e->windows[r] + head_at(e, h, e->rank, token, k),
			make_uint4(r == rank ? head.x : UINT32_MAX, head.y,
				r == rank ? head.z : UINT32_MAX, head.w));
	}
}

/* ---- noting ---------------------------------------------------------------------------------- */

/* A sending warp's, used in turn. */
struct note_turns {
	struct head_notes notes;
	uint32_t first, nr; /* nr: notes so far */
};

/* By all lanes: rows of this token that they have stored are where they belong. In the note the
 * rank and the token have the epoch's place. */
static __device__ __forceinline__ void put_note(
	struct note_turns *t, uint32_t token, uint4 head, uint32_t rank)
{
	uint32_t at = t->first + t->nr % NOTES_OF_WARP;

	while (!copy_there(
		t->notes.free + at * COPY_BARRIER_BYTES, (t->nr / NOTES_OF_WARP & 1) ^ 1))
		;
	__syncwarp(); /* all have seen it free: else it could be free once more before the last one
			 looks */
	head.w = min(rank, NOTE_NO_RANK) | token << 16;
	if (lane_id() < t->notes.topk)
		shared_store(t->notes.notes + (at * t->notes.topk + lane_id()) * 16, head);
	barrier_arrive(t->notes.full + at * COPY_BARRIER_BYTES);
	t->nr++;
}

static __device__ __forceinline__ void stop_notes(struct note_turns *t)
{
	put_note(t, 0, make_uint4(0, 0, 0, 0), NOTE_STOP);
}

/* ---- telling --------------------------------------------------------------------------------- */

/* A group's note; parity: of the phase that has ended with it. True: no token, that warp sends no
 * more. */
static __device__ __forceinline__ bool tell_note(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct head_notes *n, uint32_t epoch, uint32_t note,
	uint32_t parity, uint32_t k)
{
	uint32_t rank;
	uint4 head;

	while (!copy_there(n->full + note * COPY_BARRIER_BYTES, parity)) /* seen by another lane;
									    what this one reads it
									    has to see itself, says
									    racecheck */
		;
	head = shared_load(n->notes + (note * n->topk + k) * 16);
	rank = head.w & 0xffff;
	barrier_arrive(n->free + note * COPY_BARRIER_BYTES);
	if (rank != NOTE_STOP)
		store_heads(e, h, head.w >> 16, k, make_uint4(head.x, head.y, head.z, epoch), rank);
	return rank == NOTE_STOP;
}

/* Of the notes of some senders the first ones, a group of lanes one each: which sender's this
 * lane's is; LANES: none. Takes them from `senders`. */
static __device__ __forceinline__ uint32_t share_notes(uint32_t shift, uint32_t *senders)
{
	uint32_t mine = LANES;

	for (uint32_t g = 0; g < LANES >> shift; g++) {
		if (g == group_of_lane(shift) && *senders)
			mine = __ffs(*senders) - 1;
		*senders &= *senders - 1;
	}
	return mine;
}

/* Until all warps that send have stopped. A lane looks at a sending warp's next note: looks at 32
 * barriers take 500 clocks, which the block's others lack (docs/notebook/gpu-high-throughput.md).
 */
static __device__ __forceinline__ void tell_heads(const struct gpu_exchange *e,
	const struct ht_exchange *h, const struct head_notes *n, uint32_t nr_senders,
	uint32_t epoch)
{
	uint32_t shift = token_shift(e->topk), turn = 0, stopped = 0;

	while (stopped < nr_senders) {
		uint32_t next = lane_id() * NOTES_OF_WARP + turn % NOTES_OF_WARP,
			 parity = turn / NOTES_OF_WARP & 1;
		bool here = lane_id() < nr_senders &&
			    barrier_passed(n->full + next * COPY_BARRIER_BYTES, parity);
		uint32_t senders = __ballot_sync(ALL_LANES, here);

		if (!senders)
			continue;
		turn += here;
		__syncwarp(); /* a vote orders nothing: now all lanes come after what one of them
				 has seen */
		stores_before();
		while (senders) {
			uint32_t sender = share_notes(shift, &senders),
				 note = __shfl_sync(ALL_LANES, next, sender % LANES),
				 phase = __shfl_sync(ALL_LANES, parity, sender % LANES);
			bool stop = sender < LANES && lane_of_group(shift) < e->topk &&
				    tell_note(e, h, n, epoch, note, phase, lane_of_group(shift));

			stopped +=
				__popc(__ballot_sync(ALL_LANES, stop && lane_of_group(shift) == 0));
		}
	}
}

#endif
