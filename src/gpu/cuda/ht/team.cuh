/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows by teams of warps, through a block's shared memory.
 *
 *   loading warp   has rows copied into the team's buffers, one after the other, each with a ticket
 *                  that says what becomes of it
 *   summing warps  each adds its part of every row; a complete sum goes into a buffer on its way
 * out, or to its place in this GPU's memory
 *   storing warp   has sums copied to the ranks that they are for; then releases their words behind
 *                  them
 *
 * So as many rows are under way as buffers hold, however few SMs there are, and nobody who sums
 * waits for anything else. A buffer is passed on by two barriers in shared memory:
 *
 *             arrives                               waits               so that
 *   in, full  a copy into it; its ticket's lane     summing warps       they read that row
 *   in, free  summing warps, when they have read    loading warp        the next row's copy overwrites nothing that is still read
 *             the row
 *   out, full summing warps, when they have         storing warp        its copy takes the whole sum
 *             written the sum
 *   out, free storing warp, when its copy has       summing warps       they overwrite nothing that is still copied
 *             read the sum (copies_read)
 */
#ifndef TERN_GPU_CUDA_HT_TEAM_CUH
#define TERN_GPU_CUDA_HT_TEAM_CUH

#include "gpu/cuda/ht/ht.cuh"
#include "gpu/cuda/common/results.cuh"

#define TEAM_VECTORS 4 /* of a lane: what a summing warp has of each row */
#define TEAM_PART_BYTES (TEAM_VECTORS * LANES * 16)
#define TEAM_MOST_SUMMING 7
#define TEAM_MOST_WARPS 20 /* of a block, for which each thread has registers enough */
#define TEAM_MOST_IN 16    /* buffers of a team */
#define TEAM_OUT 2
#define TEAM_LEAST_BUFFERS (TEAM_OUT + 2)
#define TEAM_BESIDE_BUFFER (16 + 2 * COPY_BARRIER_BYTES) /* ticket, barriers */
/* Of a team's memory: copies into rows that begin elsewhere are slower. */
#define TEAM_ALIGNMENT 128

/* A block's division. Rows that are longer than the summing warps of a team hold go in parts. */
struct team_shape {
	uint32_t nr_teams, nr_summing;
	uint32_t nr_in, buffer_bytes; /* buffers of a team for rows that come, beside TEAM_OUT */
	uint32_t nr_parts, part_bytes;
	uint32_t most_untold; /* results */
};

HOST_DEVICE uint32_t team_warps(struct team_shape shape)
{
	return shape.nr_summing + 2;
}

HOST_DEVICE uint32_t team_bytes(struct team_shape shape)
{
	return gpu_ceil((shape.nr_in + TEAM_OUT) * (shape.buffer_bytes + TEAM_BESIDE_BUFFER),
		       TEAM_ALIGNMENT) *
	       TEAM_ALIGNMENT;
}

/* A fence for several results takes as long as for one; but with more of them homes begin late, and
 * are not ready when the last result comes. Few blocks gain more than they lose where most results
 * leave: a team has two buffers for those, and while its storing warp fences none is freed. */
#define TEAM_FEW_BLOCKS 32
#define TEAM_UNTOLD_FEW 8
#define TEAM_UNTOLD 4

/* With many blocks a team less, and more buffers for each: rows are under way enough, and of more
 * results at once each takes longer (docs/notebook/gpu-high-throughput.md). */
#define TEAM_MANY_BLOCKS 64

/* block_bytes: shared memory that a block may have. */
HOST_DEVICE struct team_shape team_shape_of(
	uint32_t row_bytes, uint32_t block_bytes, uint32_t nr_blocks, uint32_t nr_ranks)
{
	uint32_t most_summing = gpu_least(TEAM_MOST_SUMMING,
		block_bytes / (TEAM_LEAST_BUFFERS * (TEAM_PART_BYTES + TEAM_BESIDE_BUFFER)));
	uint32_t of_team;
	struct team_shape s;

	s.nr_parts = gpu_ceil(row_bytes, most_summing * TEAM_PART_BYTES);
	s.nr_summing = gpu_ceil(gpu_ceil(row_bytes, s.nr_parts), TEAM_PART_BYTES);
	s.buffer_bytes = s.part_bytes = s.nr_summing * TEAM_PART_BYTES;
	s.nr_teams = gpu_least(TEAM_MOST_WARPS / (s.nr_summing + 2),
		block_bytes / (TEAM_LEAST_BUFFERS * (s.buffer_bytes + TEAM_BESIDE_BUFFER)));
	s.nr_teams -= nr_blocks > TEAM_MANY_BLOCKS && s.nr_teams > 2;
	of_team = block_bytes / s.nr_teams / TEAM_ALIGNMENT * TEAM_ALIGNMENT;
	s.nr_in =
		gpu_least(TEAM_MOST_IN, of_team / (s.buffer_bytes + TEAM_BESIDE_BUFFER) - TEAM_OUT);
	s.most_untold =
		nr_ranks > 2 && nr_blocks <= TEAM_FEW_BLOCKS ? TEAM_UNTOLD_FEW : TEAM_UNTOLD;
	return s;
}

enum team_role {
	TEAM_LOADS,
	TEAM_SUMS,
	TEAM_STORES
};

struct team_place {
	uint32_t team, which; /* which: of the summing warps */
	enum team_role role;
};

/* Storing warps are a block's last. So of rows that are as long as can be, the two loading warps,
 * which all others wait for, share a scheduler with each other and with two summing warps, where
 * the others have four: C 368 us in place of 402 (docs/notebook/gpu-high-throughput.md). */
__device__ __forceinline__ struct team_place team_place_of(struct team_shape s, uint32_t warp)
{
	uint32_t without_storing = s.nr_summing + 1, team = warp / without_storing,
		 which = warp - team * without_storing;

	if (team >= s.nr_teams)
		return {warp - s.nr_teams * without_storing, 0, TEAM_STORES};
	return {team, which - 1, which ? TEAM_SUMS : TEAM_LOADS};
}

/* ---- tickets --------------------------------------------------------------------------------- */

enum ticket_flags {
	TICKET_LAST = 1, /* of a sum */
	TICKET_HOME = 2, /* to: an address of this GPU's. Else: the result's cell, and which part of
			    it */
	TICKET_EMPTY = 4, /* no row: the sum is 0 */
	TICKET_AS_IS = 8, /* no sum: the row itself */
	TICKET_TELL = 16, /* the result's last part */
	TICKET_STOP = 32,
	TICKET_HOLD = 64, /* the last row of a part of the sum: rounded, that part is held until its
			     turn */
	TICKET_BEHIND = 128, /* what is held comes before this row; else behind all */
	/* Any of these: not a row that is just added. */
	TICKET_SPECIAL = TICKET_LAST | TICKET_EMPTY | TICKET_AS_IS | TICKET_STOP | TICKET_HOLD |
			 TICKET_BEHIND
};

struct ticket {
	float weight;
	uint32_t flags, rank, bytes; /* rank: whose result it is */
	uint64_t to;
};

__device__ __forceinline__ uint4 ticket_pack(struct ticket t)
{
	return make_uint4(__float_as_uint(t.weight), t.flags | t.rank << 8 | t.bytes / 16 << 16,
		(uint32_t)t.to, (uint32_t)(t.to >> 32));
}

__device__ __forceinline__ struct ticket ticket_unpack(uint4 v)
{
	return {__uint_as_float(v.x), v.y & 0xff, v.y >> 8 & 0xff, (v.y >> 16) * 16,
		(uint64_t)v.w << 32 | v.z};
}

static_assert(GPU_MAX_RANKS <= 256 && TEAM_MOST_SUMMING * TEAM_PART_BYTES / 16 < 65536,
	"a ticket has a byte for a rank, and two for 16 bytes each");

/* ---- buffers --------------------------------------------------------------------------------- */

/* Used in turn. Behind all of a team's rows, which the copy engine wants whole lines for, lie their
 * tickets and barriers. */
struct buffers {
	shared_at row, beside; /* of buffer `at` */
	uint32_t nr, buffer_bytes;
	uint32_t at, parity; /* parity: of the phase that ends when buffer `at` is full */
};

/* A team's: those for rows that come, then those for sums on their way out. */
__device__ __forceinline__ struct buffers buffers_of(struct team_shape s, shared_at team, bool out)
{
	uint32_t first = out ? s.nr_in : 0;

	return {team + first * s.buffer_bytes,
		team + (s.nr_in + TEAM_OUT) * s.buffer_bytes + first * TEAM_BESIDE_BUFFER,
		out ? TEAM_OUT : s.nr_in, s.buffer_bytes, 0, 0};
}

__device__ __forceinline__ shared_at ticket_at(const struct buffers *t)
{
	return t->beside;
}

__device__ __forceinline__ shared_at full_at(const struct buffers *t)
{
	return t->beside + 16;
}

__device__ __forceinline__ shared_at free_at(const struct buffers *t)
{
	return t->beside + 16 + COPY_BARRIER_BYTES;
}

/* Of any of them; its row is not. */
__device__ __forceinline__ struct buffers barriers_of(const struct buffers *t, uint32_t at)
{
	struct buffers b = *t;

	b.beside = t->beside - t->at * TEAM_BESIDE_BUFFER + at * TEAM_BESIDE_BUFFER;
	return b;
}

/* By a warp of the team; then a barrier of the block. */
__device__ __forceinline__ void buffers_open(struct team_shape s, shared_at team)
{
	struct buffers in = buffers_of(s, team, false), out = buffers_of(s, team, true);

	if (lane_id() < in.nr) {
		struct buffers b = barriers_of(&in, lane_id());

		copy_barrier(full_at(&b));
		barrier_open(free_at(&b), s.nr_summing * LANES);
	}
	if (lane_id() < out.nr) {
		struct buffers b = barriers_of(&out, lane_id());

		barrier_open(full_at(&b), s.nr_summing * LANES);
		barrier_open(free_at(&b), LANES);
	}
	copy_out_ready();
}

__device__ __forceinline__ void next_buffer(struct buffers *t)
{
	t->row += t->buffer_bytes;
	t->beside += TEAM_BESIDE_BUFFER;
	if (++t->at < t->nr)
		return;
	t->at = 0;
	t->row -= t->nr * t->buffer_bytes;
	t->beside -= t->nr * TEAM_BESIDE_BUFFER;
	t->parity ^= 1;
}

__device__ __forceinline__ void await_full(const struct buffers *t)
{
	while (!copy_there(full_at(t), t->parity))
		;
}

/* A barrier that nobody has arrived at counts as one whose odd phase has ended, so the first turn
 * does not wait. */
__device__ __forceinline__ void await_free(const struct buffers *t)
{
	while (!copy_there(free_at(t), t->parity ^ 1))
		;
}

/* By all of a warp, each lane for itself: it has done with the buffer of that barrier. One lane
 * behind a __syncwarp would do, but racecheck does not follow that, and it is no faster
 * (docs/notebook/gpu-checks.md). */
__device__ __forceinline__ void pass_buffer(shared_at barrier)
{
	barrier_arrive(barrier);
}

/* Would a sum find its buffer free now, that goes out behind `put` others? Orders nothing, and is
 * exact only where no more are under way than there are buffers. */
__device__ __forceinline__ bool buffer_is_free(const struct buffers *out, uint32_t put)
{
	struct buffers b = barriers_of(out, put % TEAM_OUT);

	return __all_sync(ALL_LANES, barrier_passed(free_at(&b), (put / TEAM_OUT & 1) ^ 1));
}

/* ---- loading --------------------------------------------------------------------------------- */

/* A ticket for the next buffer; by: the lane that has it. Only when all lanes have seen the buffer
 * free may one use it. Else the buffer could be free once more before the last one looks, to which
 * that phase would seem not to have ended. */
__device__ __forceinline__ void put_ticket(const struct buffers *in, uint4 ticket, uint32_t by)
{
	await_free(in);
	__syncwarp();
	if (lane_id() == by)
		shared_store(ticket_at(in), ticket);
}

/* A row into the next buffer; by: the lane that has its ticket and its address. */
__device__ __forceinline__ void team_load(
	struct buffers *in, uint4 ticket, const uint8_t *row, uint32_t bytes, uint32_t by)
{
	put_ticket(in, ticket, by);
	copy_in(in->row, row, bytes, full_at(in), by);
	copy_in_close(full_at(in), bytes, by);
	next_buffer(in);
}

/* A ticket without a row. */
__device__ __forceinline__ void team_tell(struct buffers *in, uint4 ticket, uint32_t by)
{
	put_ticket(in, ticket, by);
	copy_in_close(full_at(in), 0, by);
	next_buffer(in);
}

__device__ __forceinline__ void team_stop(struct buffers *in)
{
	team_tell(in, ticket_pack({0, TICKET_STOP, 0, 0, 0}), 0);
}

/* ---- summing --------------------------------------------------------------------------------- */

/* v: this lane's part of a sum, which begins at offset. */
static __device__ __forceinline__ void put_home(
	const struct ticket *ticket, uint32_t offset, const uint4 (&v)[TEAM_VECTORS])
{
	uint8_t *home = (uint8_t *)ticket->to + offset;

#pragma unroll
	for (int i = 0; i < TEAM_VECTORS; i++)
		if (offset + i * LANES * 16 < ticket->bytes)
			row_store(home + i * LANES * 16, v[i]);
}

/* which: of the summing warps. */
static __device__ __forceinline__ void put_out(struct buffers *out, uint32_t which,
	const struct ticket *ticket, uint32_t offset, const uint4 (&v)[TEAM_VECTORS])
{
	shared_at to = out->row + offset;

	await_free(out);
	if (!(ticket->flags & TICKET_STOP))
#pragma unroll
		for (int i = 0; i < TEAM_VECTORS; i++)
			shared_store(to + i * LANES * 16, v[i]);
	if (which == 0 && lane_id() == 0)
		shared_store(ticket_at(out), ticket_pack(*ticket));
	copy_out_ready();
	pass_buffer(full_at(out));
	next_buffer(out);
}

/* A lane's part of the sum under way, and of one that waits for its turn in it. */
template <int Y> struct team_sums {
	sums<Y, TEAM_VECTORS> sum;
	uint4 held[TEAM_VECTORS];
	bool holds;
};

template <int Y> static __device__ __forceinline__ void add_held(struct team_sums<Y> *s)
{
#pragma unroll
	for (int i = 0; i < TEAM_VECTORS; i++)
		add_vector<Y>(s->sum.of[i], s->held[i], 1);
	s->holds = false;
}

template <int Y>
static __device__ __forceinline__ void round_sum(struct team_sums<Y> *s, uint4 (&v)[TEAM_VECTORS])
{
#pragma unroll
	for (int i = 0; i < TEAM_VECTORS; i++)
		v[i] = round_vector<Y>(s->sum.of[i]);
	s->sum = {};
}

template <int Y>
static __device__ __forceinline__ void add_weighted(
	struct team_sums<Y> *s, const uint4 (&v)[TEAM_VECTORS], float weight)
{
#pragma unroll
	for (int i = 0; i < TEAM_VECTORS; i++)
		add_vector<Y>(s->sum.of[i], v[i], weight);
}

template <int Y>
static __device__ __forceinline__ void add_row(
	struct team_sums<Y> *s, const struct ticket *ticket, const uint4 (&v)[TEAM_VECTORS])
{
	if (s->holds && ticket->flags & TICKET_BEHIND)
		add_held(s);
	if (!(ticket->flags & (TICKET_EMPTY | TICKET_AS_IS | TICKET_STOP)))
		add_weighted(s, v, ticket->weight);
	if (ticket->flags & TICKET_HOLD) {
		round_sum(s, s->held);
		s->holds = true;
	}
}

template <int Y>
static __device__ __forceinline__ void team_sum(
	struct team_shape shape, shared_at team, uint32_t which)
{
	struct buffers in = buffers_of(shape, team, false), out = buffers_of(shape, team, true);
	uint32_t offset = which * TEAM_PART_BYTES + lane_id() * 16;
	struct team_sums<Y> s = {
	};
	struct ticket ticket;

	do {
		shared_at from = in.row + offset;
		uint4 v[TEAM_VECTORS];

		await_full(&in);
		ticket = ticket_unpack(shared_load(ticket_at(&in)));
#pragma unroll
		for (int i = 0; i < TEAM_VECTORS; i++)
			v[i] = shared_load(from + i * LANES * 16);
		pass_buffer(free_at(&in));
		next_buffer(&in);
		if (!(ticket.flags & TICKET_SPECIAL)) {
			add_weighted(&s, v, ticket.weight);
			continue;
		}
		add_row(&s, &ticket, v);
		if (!(ticket.flags & (TICKET_LAST | TICKET_STOP)))
			continue;
		if (s.holds)
			add_held(&s);
		if (!(ticket.flags & TICKET_AS_IS))
			round_sum(&s, v);
		if (ticket.flags & TICKET_HOME)
			put_home(&ticket, offset, v);
		else
			put_out(&out, which, &ticket, offset, v);
	} while (!(ticket.flags & TICKET_STOP));
}

#endif
