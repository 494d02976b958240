/* SPDX-License-Identifier: Apache-2.0 */
/* Are the results of all methods the same? */
#include "bench/mpi/bench.h"

#include <string.h>

static uint64_t compare_received(const struct bench *b, const struct exchange *e)
{
	uint64_t wrong = 0;

	for (uint32_t l = 0; l < b->experts.nr_local; l++) {
		uint64_t at = e->offsets[l], n = e->counts[l];

		if (b->received.counts[l] != n || b->received.offsets[l] != at) {
			wrong++;
			continue;
		}
		wrong += memcmp((char *)b->received.x + at * e->row_bytes,
				 b->buffers.x + at * e->row_bytes, n * e->row_bytes) != 0;
		wrong += memcmp(b->received.rows + at, b->buffers.rows + at,
				 n * sizeof(struct tern_row)) != 0;
		if (e->scales_bytes)
			wrong += memcmp((char *)b->received.scales + at * e->scales_bytes,
					 b->buffers.scales + at * e->scales_bytes,
					 n * e->scales_bytes) != 0;
	}
	return wrong;
}

/* Sums at home are not those of sums on the experts' ranks, bit for bit: there some tokens are
 * compared with the reference. */
static uint64_t compare_with_reference(const struct bench *b)
{
	struct job home = *b->job;
	struct reference *reference;
	uint32_t step = b->input.nr_tokens / 16 + 1;
	uint64_t wrong = 0;

	home.config.reduce = TERN_REDUCE_HOME;
	reference = reference_create(&home);
	if (!reference)
		die("out of memory for the reference");
	for (uint32_t t = 0; t < b->input.nr_tokens; t += step)
		wrong += memcmp(reference_combined_row(reference, (uint32_t)b->rank, t),
				 b->buffers.out + (size_t)t * job_y_bytes(b->job),
				 job_y_bytes(b->job)) != 0;
	reference_destroy(reference);
	return wrong;
}

static uint64_t compare_out(const struct bench *b, const struct exchange *e)
{
	if (e->reduce_home != (b->job->config.reduce == TERN_REDUCE_HOME))
		return compare_with_reference(b);
	return memcmp(b->tern_out, b->buffers.out, b->input.nr_tokens * job_y_bytes(b->job)) != 0;
}

uint64_t compare(struct bench *b)
{
	uint64_t wrong = 0, all = 0;

	tern_method_dispatch(b);
	per_route_dispatch(b);
	wrong += compare_received(b, &b->per_route);
	per_rank_dispatch(b);
	wrong += compare_received(b, &b->per_rank);
	tern_method_combine(b);
	per_rank_combine(b);
	wrong += compare_out(b, &b->per_rank);
	per_route_dispatch(b);
	per_route_combine(b);
	wrong += compare_out(b, &b->per_route);
	MPI_Allreduce(&wrong, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	return all;
}
