/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xa5

struct start {
	struct tern_threads *threads;
	rank_main body;
	struct rank rank;
};

int rank_fails(struct rank *rank, const char *format, ...)
{
	va_list args;
	int at;

	if (*rank->failure)
		return -1;
	at = snprintf(rank->failure, sizeof(rank->failure), "rank %d: ", rank->rank);
	va_start(args, format);
	vsnprintf(rank->failure + at, sizeof(rank->failure) - (size_t)at, format, args);
	va_end(args);
	return -1;
}

static void *rank_thread(void *arg)
{
	struct start *start = arg;
	struct tern_group_config config;

	tern_group_config_init(&config);
	if (tern_threads_boot(start->threads, start->rank.rank, &config.boot) || tern_group_create(&config, &start->rank.group)) {
		rank_fails(&start->rank, "joining: %s", tern_last_error());
		return NULL;
	}
	start->body(&start->rank);
	if (tern_group_destroy(start->rank.group))
		rank_fails(&start->rank, "leaving: %s", tern_last_error());
	return NULL;
}

const char *run_ranks(int nr_ranks, rank_main body, void *ctx)
{
	static char failure[640];
	struct start *starts = calloc((size_t)nr_ranks, sizeof(*starts));
	pthread_t *ids = calloc((size_t)nr_ranks, sizeof(*ids));
	struct tern_threads *threads = NULL;

	*failure = 0;
	if (!starts || !ids || tern_threads_create(nr_ranks, 60000, &threads)) {
		free(starts);
		free(ids);
		return "run_ranks: no memory or no threads";
	}
	for (int r = 0; r < nr_ranks; r++) {
		starts[r] = (struct start){.threads = threads, .body = body, .rank = {.rank = r, .nr_ranks = nr_ranks, .ctx = ctx}};
		if (pthread_create(&ids[r], NULL, rank_thread, &starts[r]))
			abort();
	}
	for (int r = 0; r < nr_ranks; r++) {
		pthread_join(ids[r], NULL);
		if (*starts[r].rank.failure && !*failure)
			snprintf(failure, sizeof(failure), "%s", starts[r].rank.failure);
	}
	tern_threads_destroy(threads);
	free(starts);
	free(ids);
	return *failure ? failure : NULL;
}

static void *aligned(size_t bytes)
{
	bytes = (bytes + 127) / 64 * 64;
	return aligned_alloc(64, bytes);
}

int buffers_open(struct buffers *b, const struct job *job)
{
	size_t max = job->config.max_tokens, topk = job->config.topk;

	memset(b, 0, sizeof(*b));
	b->x = aligned(max * job_x_bytes(job));
	b->scales = aligned(max * job_x_scales_bytes(job));
	b->out = aligned(max * job_y_bytes(job));
	b->ids = aligned(max * topk * sizeof(int32_t));
	b->weights = aligned(max * topk * sizeof(float));
	return b->x && b->scales && b->out && b->ids && b->weights ? 0 : -1;
}

void buffers_close(struct buffers *b)
{
	free(b->x);
	free(b->scales);
	free(b->y);
	free(b->out);
	free(b->ids);
	free(b->weights);
}

int round_dispatch_send(struct round *r)
{
	const struct job *job = r->job;
	struct buffers *b = r->buffers;
	uint32_t rank = (uint32_t)r->rank->rank, n = job_nr_tokens(job, r->number, rank);
	bool fp8 = job_x_scales_bytes(job) != 0;
	struct tern_dispatch args = {.size = sizeof(args), .slot = r->slot, .nr_tokens = n, .x = b->x, .scales = fp8 ? b->scales : NULL,
		.topk_ids = b->ids, .topk_weights = job->no_weights ? NULL : b->weights};
	int rc;

	job_routes(job, r->number, rank, b->ids, b->weights);
	job_x(job, r->number, rank, b->x, job_x_bytes(job), fp8 ? b->scales : NULL, job_x_scales_bytes(job));
	rc = tern_dispatch_send(r->moe, &args);
	memset(b->x, POISON, n * job_x_bytes(job)); /* what was sent is the library's business no more */
	memset(b->ids, POISON, n * job->config.topk * sizeof(*b->ids));
	return rc ? rank_fails(r->rank, "round %llu: dispatch_send: %s", (unsigned long long)r->number, tern_last_error()) : 0;
}

int round_dispatch_recv(struct round *r)
{
	struct difference difference = {0};

	r->received = (struct tern_received){.size = sizeof(r->received)};
	if (tern_dispatch_recv(r->moe, r->slot, &r->received))
		return rank_fails(r->rank, "round %llu: dispatch_recv: %s", (unsigned long long)r->number, tern_last_error());
	reference_set_round(r->reference, r->number);
	if (verify_received(r->reference, (uint32_t)r->rank->rank, &r->received, &difference) || difference.nr)
		return rank_fails(r->rank, "round %llu: %llu wrong after dispatch: %s", (unsigned long long)r->number,
			(unsigned long long)difference.nr, difference.first);
	return 0;
}

int round_combine_send(struct round *r)
{
	struct buffers *b = r->buffers;
	size_t need = r->received.extent * job_y_bytes(r->job);
	struct tern_combine args = {.size = sizeof(args), .slot = r->slot};
	int rc;

	if (need > b->y_bytes) {
		free(b->y);
		b->y = aligned(need);
		b->y_bytes = need;
	}
	if (need && !b->y)
		return rank_fails(r->rank, "no memory for %zu bytes of y", need);
	reference_set_round(r->reference, r->number);
	if (fill_y(r->reference, (uint32_t)r->rank->rank, b->y, job_y_bytes(r->job)))
		return rank_fails(r->rank, "no memory for y");
	args.y = b->y;
	rc = tern_combine_send(r->moe, &args);
	return rc ? rank_fails(r->rank, "round %llu: combine_send: %s", (unsigned long long)r->number, tern_last_error()) : 0;
}

int round_combine_recv(struct round *r)
{
	struct difference difference = {0};
	struct buffers *b = r->buffers;

	if (b->y && b->y_bytes < (64u << 20))
		memset(b->y, POISON, b->y_bytes);
	memset(b->out, POISON, r->job->config.max_tokens * job_y_bytes(r->job));
	if (tern_combine_recv(r->moe, r->slot, b->out, 0))
		return rank_fails(r->rank, "round %llu: combine_recv: %s", (unsigned long long)r->number, tern_last_error());
	reference_set_round(r->reference, r->number);
	if (verify_combined(r->reference, (uint32_t)r->rank->rank, b->out, job_y_bytes(r->job), &difference) || difference.nr)
		return rank_fails(r->rank, "round %llu: %llu wrong after combine: %s", (unsigned long long)r->number,
			(unsigned long long)difference.nr, difference.first);
	return 0;
}

int run_rounds(struct rank *rank, const struct job *job, int rounds)
{
	struct buffers buffers;
	struct round round = {.rank = rank, .job = job, .buffers = &buffers, .reference = reference_create(job)};
	int rc = buffers_open(&buffers, job);

	if (rc || !round.reference)
		rc = rank_fails(rank, "no memory");
	else if (tern_moe_create(rank->group, &job->config, &round.moe))
		rc = rank_fails(rank, "tern_moe_create: %s", tern_last_error());
	for (int i = 0; i < rounds && !rc; i++) {
		round.number = (uint64_t)i;
		round.slot = (uint32_t)i % job->config.nr_slots;
		rc = round_dispatch_send(&round);
		rc = rc ? rc : round_dispatch_recv(&round);
		rc = rc ? rc : round_combine_send(&round);
		rc = rc ? rc : round_combine_recv(&round);
	}
	tern_moe_destroy(round.moe);
	reference_destroy(round.reference);
	buffers_close(&buffers);
	return rc;
}
