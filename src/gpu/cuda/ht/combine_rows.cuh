/* SPDX-License-Identifier: Apache-2.0 */
/* What a loading warp of the high-throughput combine does for either half: tokens that it asks for,
 * and the rows of their sums, with tickets, into its team's buffers. */
#ifndef TERN_GPU_CUDA_HT_COMBINE_ROWS_CUH
#define TERN_GPU_CUDA_HT_COMBINE_ROWS_CUH

#include "gpu/cuda/ht/team.cuh"

#define MOST_TOKENS 4 /* that are looked at together */

struct combine_launch {
	struct team_shape shape;
	uint32_t nr_tokens; /* that a loading warp looks at together */
	uint32_t sends, receives;
	uint32_t yields; /* what is sent, to what comes home, while it would find no place to go */
	uint32_t keeps_own;            /* own rows pass through no window */
	struct gpu_divisor by_sources; /* whose tokens are sent: others' alone, or all ranks' */
};

/* ---- tokens are dealt out as warps ask for them ---------------------------------------------- */

struct dealer {
	uint32_t *tickets;
	uint32_t drawn; /* lane 0's, not used yet */
	uint32_t nr;    /* tokens at a time */
	uint32_t shift; /* token_shift */
};

static __device__ __forceinline__ void draw(struct dealer *d)
{
	if (lane_id() == 0)
		d->drawn = atomicAdd(d->tickets, d->nr);
}

static __device__ __forceinline__ struct dealer dealer_of(
	uint32_t *tickets, uint32_t nr, uint32_t shift)
{
	struct dealer d = {tickets, 0, nr, shift};

	draw(&d);
	return d;
}

static __device__ __forceinline__ uint32_t use_drawn(struct dealer *d)
{
	uint32_t first = __shfl_sync(ALL_LANES, d->drawn, 0);

	draw(d);
	return first;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A row as one lane knows it, lane k of a group that of the token's k-th route. */
struct addend {
	const uint8_t *row;
	float weight;
	uint32_t place; /* in its token's sum */
	bool there;
};

/* Whose sums those are, by group. */
struct summed {
	uint32_t rank;    /* whose result it is */
	uint64_t to;      /* of this lane's row, or of the first part */
	uint64_t to_next; /* from a part to the next */
	uint32_t flags;   /* of a ticket */
	bool empty;       /* a token without any row */
};

/* All sums of a group: part by part, of each all rows in order. */
static __device__ __forceinline__ void load_group(const struct gpu_exchange *e, struct team_shape s,
	struct buffers *in, const struct addend *a, const struct summed *sum, bool in_group)
{
	bool mine = in_group && a->there, alone = sum->flags & TICKET_AS_IS;
	uint32_t nr = __popc(__ballot_sync(ALL_LANES, mine));
	uint32_t without = __ballot_sync(ALL_LANES, in_group && sum->empty);

	if (!nr && !without)
		return;
	for (uint32_t part = 0; part < s.nr_parts; part++) {
		uint32_t offset = part * s.part_bytes,
			 bytes = min(s.part_bytes, e->result.row_bytes - offset),
			 flags = sum->flags;
		uint4 ticket;

		flags |= part + 1 == s.nr_parts ? TICKET_TELL : 0;
		flags |= alone || a->place + 1 >= nr ? TICKET_LAST : 0;
		flags |= nr ? 0 : TICKET_LAST | TICKET_EMPTY;
		ticket = ticket_pack(
			{a->weight, flags, sum->rank, bytes, sum->to + part * sum->to_next});
		if (!nr)
			team_tell(in, ticket, __ffs(without) - 1);
		for (uint32_t j = 0; j < nr; j++)
			team_load(in, ticket, a->row + offset, bytes,
				__ffs(__ballot_sync(ALL_LANES, mine && a->place == j)) - 1);
	}
}

/* As await_row_of_y, before copies of them. */
static __device__ __forceinline__ bool await_row(
	const struct gpu_combine *c, uint32_t epoch, bool there, uint4 head)
{
	if (!await_row_of_y(c, epoch, there, head))
		return false;
	copy_in_ready();
	__syncwarp(); /* what one lane has acquired others copy */
	return true;
}

#endif
