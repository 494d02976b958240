/* SPDX-License-Identifier: Apache-2.0 */
/* What a team's storing warp does: sums leave for the ranks that they are for, and words behind
 * them (team.cuh). */
#ifndef TERN_GPU_CUDA_HT_TEAM_STORE_CUH
#define TERN_GPU_CUDA_HT_TEAM_STORE_CUH

#include "gpu/cuda/ht/team.cuh"

/* Results on their way: of the last ones lane n % 32 knows the n-th. */
struct storing {
	uint32_t issued, freed, told;
	uint32_t rank, cell;
	bool tells; /* the result is complete */
};
#define LEFT_UNTOLD 1 /* when others are told: that one is still on its way */
#define IDLE_POLLS 8  /* before the last ones are told */

/* The number of this lane's, if it is one of those from `from` on, before `to`; else `to`. */
__device__ __forceinline__ uint32_t number_of_lane(uint32_t from, uint32_t to)
{
	uint32_t n = from + ((lane_id() - from) & (LANES - 1));

	return n - from < to - from ? n : to;
}

/* All but the last N have been read. */
template <int N>
static __device__ __forceinline__ void free_buffers(const struct buffers *t, struct storing *s)
{
	uint32_t to = s->issued - N;

	copies_read<N>();
	for (; s->freed != to; s->freed++) {
		struct buffers b = barriers_of(t, s->freed % TEAM_OUT);

		pass_buffer(free_at(&b));
	}
}

/* All but the last N are where they belong, and their words go behind them. */
template <int N>
static __device__ __forceinline__ void tell_results(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, struct storing *s)
{
	uint32_t to = s->issued - N, home = home_first(e, s->rank);

	copies_done<N>();
	__syncwarp();
	stores_before();
	if (number_of_lane(s->told, to) != to && s->tells)
		for (uint32_t r = home; r < home + e->by_replicas.d; r++)
			word_store(e->windows[r] + h->window.result_words + s->cell * 4ull, epoch);
	s->told = to;
}

/* Until a sum is in the next buffer. Meanwhile buffers are freed, and after a while what is left is
 * told. */
static __device__ __forceinline__ void await_sum(const struct gpu_exchange *e,
	const struct ht_exchange *h, uint32_t epoch, const struct buffers *out, struct storing *s)
{
	for (uint32_t idle = 0; !__all_sync(ALL_LANES, barrier_passed(full_at(out), out->parity));
		idle++) {
		if (s->freed != s->issued)
			free_buffers<0>(out, s);
		if (idle == IDLE_POLLS && s->told != s->issued)
			tell_results<0>(e, h, epoch, s);
	}
}

static __device__ __forceinline__ void store_result(const struct gpu_exchange *e,
	const struct ht_exchange *h, struct team_shape shape, uint32_t epoch,
	const struct buffers *out, const struct ticket *ticket, struct storing *s)
{
	uint32_t home = home_first(e, ticket->rank), cell = (uint32_t)ticket->to,
		 part = (uint32_t)(ticket->to >> 32);

	for (uint32_t r = home; r < home + e->by_replicas.d; r++)
		copy_out(e->windows[r] + h->window.results + (uint64_t)cell * e->result.row_bytes +
				 part * shape.part_bytes,
			out->row, ticket->bytes, 0);
	copies_close();
	if (lane_id() == s->issued % LANES) {
		s->rank = ticket->rank;
		s->cell = cell;
		s->tells = ticket->flags & TICKET_TELL;
	}
	s->issued++;
	if (s->issued - s->freed == TEAM_OUT)
		free_buffers<TEAM_OUT - 1>(out, s);
	if (s->issued - s->told == shape.most_untold)
		tell_results<LEFT_UNTOLD>(e, h, epoch, s);
}

static __device__ __forceinline__ void team_store(const struct gpu_exchange *e,
	const struct ht_exchange *h, struct team_shape shape, shared_at team, uint32_t epoch)
{
	struct buffers out = buffers_of(shape, team, true);
	struct storing s = {};

	for (;; next_buffer(&out)) {
		struct ticket ticket;

		await_sum(e, h, epoch, &out, &s);
		ticket = ticket_unpack(shared_load(ticket_at(&out)));
		if (ticket.flags & TICKET_STOP)
			break;
		store_result(e, h, shape, epoch, &out, &ticket, &s);
	}
	tell_results<0>(e, h, epoch, &s);
}

#endif
