/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/exchange/ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "testkit/random.h"
#include "exchange/state.h"

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

const char *test_node(int rank, int nr_ranks, char *text, size_t bytes)
{
	const char *nodes = getenv("TERN_TEST_NODES");

	if (!nodes || !*nodes)
		return NULL;
	if (atoi(nodes))
		snprintf(text, bytes, "%d", rank * atoi(nodes) / nr_ranks);
	else
		snprintf(text, bytes, "%c", nodes[(size_t)rank % strlen(nodes)]);
	return text;
}

const char *test_transport(int rank, char *text, size_t bytes)
{
	const char *all = getenv("TERN_TEST_TRANSPORTS"), *at = all;
	int nr = 1;

	if (!all || !*all)
		return NULL;
	for (const char *space = all; (space = strchr(space, ' ')); space++)
		nr++;
	for (int i = 0; i < rank % nr; i++)
		at = strchr(at, ' ') + 1;
	snprintf(text, bytes, "%.*s", (int)strcspn(at, " "), at);
	return text;
}

static void *rank_thread(void *arg)
{
	struct start *start = arg;
	struct tern_group_config config;
	char node[16], transport[256];

	tern_group_config_init(&config);
	config.node = test_node(start->rank.rank, start->rank.nr_ranks, node, sizeof(node));
	config.transport = test_transport(start->rank.rank, transport, sizeof(transport));
	if (tern_threads_boot(start->threads, start->rank.rank, &config.boot) ||
		tern_group_create(&config, &start->rank.group)) {
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
		starts[r] = (struct start){.threads = threads,
			.body = body,
			.rank = {.rank = r, .nr_ranks = nr_ranks, .ctx = ctx}};
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

int scaled(int full)
{
	const char *divisor = getenv("TERN_TEST_DIVISOR");
	int by = divisor ? atoi(divisor) : 1;

	return by > 1 ? (full / by ? full / by : 1) : full;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static void *aligned(size_t bytes)
{
	bytes = (bytes + 127) / 64 * 64;
	return aligned_alloc(64, bytes);
}

int buffers_open(struct buffers *b, const struct job *job, size_t rows_apart)
{
	size_t max = job->config.max_tokens, topk = job->config.topk;

	memset(b, 0, sizeof(*b));
	b->rows_apart = rows_apart;
	b->x = aligned(max * (job_x_bytes(job) + rows_apart));
	b->scales = aligned(max * (job_x_scales_bytes(job) + rows_apart));
	b->out = aligned(max * (job_y_bytes(job) + rows_apart));
	b->ids = aligned(max * topk * sizeof(int32_t));
	b->wide_ids = aligned(max * topk * sizeof(int64_t));
	b->weights = aligned(max * topk * sizeof(float));
	b->combine_weights = aligned(max * topk * sizeof(float));
	b->out_floats = aligned(max * topk * sizeof(float));
	return b->x && b->scales && b->out && b->ids && b->wide_ids && b->weights &&
			       b->combine_weights && b->out_floats
		       ? 0
		       : -1;
}

void buffers_close(struct buffers *b)
{
	free(b->x);
	free(b->scales);
	free(b->y);
	free(b->out);
	free(b->into);
	free(b->into_scales);
	free(b->ids);
	free(b->wide_ids);
	free(b->weights);
	free(b->combine_weights);
	free(b->floats);
	free(b->out_floats);
	free(b->wide_received);
	free(b->expert_counts);
	free(b->expert_totals);
	free(b->into_counts);
	free(b->into_offsets);
	free(b->totals);
	free(b->gemm_scales);
	free(b->waited_ns);
}

/* Row positions that a rank's received rows can span in low-latency mode: tern.h, into_x. */
static size_t worst_case(const struct round *r)
{
	const struct tern_moe_config *c = &r->job->config;
	size_t local = (size_t)tern_moe_nr_local(r->moe),
	       routes = c->topk < local ? c->topk : local;
	size_t rows = (size_t)r->job->nr_ranks *
		      ((c->max_tokens + c->replica_ranks - 1) / c->replica_ranks);

	if (c->layout == TERN_CONTIGUOUS)
		return rows * routes + local * (c->alignment - 1);
	return c->layout == TERN_PADDED ? rows * local : rows;
}

static int into_open(struct round *r)
{
	struct buffers *b = r->buffers;
	size_t positions = worst_case(r);

	b->into = aligned(positions * job_received_bytes(r->job));
	b->into_scales = aligned(positions * job_received_scales_bytes(r->job));
	return b->into && b->into_scales
		       ? 0
		       : rank_fails(r->rank, "no memory for %zu row positions", positions);
}

static int round_alloc(
	struct round *r, struct rank *rank, const struct job *job, const struct manner *manner)
{
	*r = (struct round){.rank = rank, .job = job, .manner = *manner};
	r->reference = reference_create(job);
	r->buffers = calloc(1, sizeof(*r->buffers));
	r->polls = job->config.wait_ms == 0;
	if (!r->reference || !r->buffers || buffers_open(r->buffers, job, r->manner.rows_apart))
		return rank_fails(rank, "no memory");
	return 0;
}

int round_open(
	struct round *r, struct rank *rank, const struct job *job, const struct manner *manner)
{
	static const struct manner plain;

	if (round_alloc(r, rank, job, manner ? manner : &plain))
		return -1;
	if (tern_moe_create(rank->group, &job->config, &r->moe))
		return rank_fails(rank, "tern_moe_create: %s", tern_last_error());
	if (r->manner.stream)
		r->moe->stream_bytes = 0;
	return r->manner.into ? into_open(r) : 0;
}

int round_open_beside(struct round *r, const struct round *owner, uint32_t slot)
{
	if (round_alloc(r, owner->rank, owner->job, &owner->manner))
		return -1;
	r->moe = owner->moe;
	r->shared = true;
	r->slot = slot;
	return r->manner.into ? into_open(r) : 0;
}

void round_close(struct round *r)
{
	if (!r->shared)
		tern_moe_destroy(r->moe);
	reference_destroy(r->reference);
	if (r->buffers)
		buffers_close(r->buffers);
	free(r->buffers);
}

/* ---- halves ---------------------------------------------------------------------------------- */

static int failed(struct round *r, int rc, const char *call)
{
	r->rc = rc;
	return rank_fails(r->rank, "round %llu: %s: %s", (unsigned long long)r->number, call,
		tern_last_error());
}

/* True: the call has to be repeated. */
static bool again(const struct round *r, int rc)
{
	if (rc != TERN_ERR_TIMEOUT || !r->polls)
		return false;
	sched_yield();
	return true;
}

static uint64_t routes_of(const struct round *r)
{
	return r->plan ? r->routes : r->number;
}

static void set_reference(struct round *r)
{
	reference_set_round(r->reference, routes_of(r));
	r->reference->weighting = r->weighting;
	r->reference->round = r->number;
}

static void fill_x(struct round *r, uint32_t n, size_t x_stride, size_t scales_stride)
{
	const struct job *job = r->job;
	size_t x_bytes = job_x_bytes(job), scales_bytes = job_x_scales_bytes(job);
	uint32_t home = job_home(job, (uint32_t)r->rank->rank);

	for (uint32_t t = 0; t < n; t++) {
		memcpy((char *)r->buffers->x + t * x_stride, job_x_row(job, r->number, home, t),
			x_bytes);
		if (scales_bytes)
			memcpy((char *)r->buffers->scales + t * scales_stride,
				job_scales_row(job, r->number, home, t), scales_bytes);
	}
}

void round_arguments(struct round *r, struct tern_dispatch *args)
{
	const struct job *job = r->job;
	struct buffers *b = r->buffers;
	uint32_t rank = (uint32_t)r->rank->rank, n = job_nr_tokens(job, routes_of(r), rank);
	size_t x_stride = job_x_bytes(job) + b->rows_apart,
	       scales_stride = job_x_scales_bytes(job) + b->rows_apart;
	bool fp8 = job_x_scales_bytes(job) != 0;

	job_routes(job, routes_of(r), rank, b->ids, b->weights);
	fill_x(r, n, x_stride, scales_stride);
	for (size_t i = 0; i < (size_t)n * job->config.topk; i++)
		b->wide_ids[i] = b->ids[i];
	*args = (struct tern_dispatch){.size = sizeof(*args),
		.slot = r->slot,
		.nr_tokens = n,
		.x = b->x,
		.x_stride = b->rows_apart ? x_stride : 0,
		.scales = fp8 ? b->scales : NULL,
		.scales_stride = b->rows_apart && fp8 ? scales_stride : 0,
		.topk_ids = r->manner.wide_ids ? (void *)b->wide_ids : (void *)b->ids,
		.topk_ids_bits = r->manner.wide_ids ? 64 : 0,
		.topk_weights = job->no_weights ? NULL : b->weights};
	if (!r->plan)
		return;
	args->plan = r->plan;
	args->topk_ids = NULL;
	args->topk_weights = NULL;
}

/* What was sent is the library's business no more. */
static void spoil_arguments(struct round *r, uint32_t n)
{
	memset(r->buffers->x, POISON, n * (job_x_bytes(r->job) + r->buffers->rows_apart));
	memset(r->buffers->ids, POISON, n * r->job->config.topk * sizeof(*r->buffers->ids));
	memset(r->buffers->wide_ids, POISON,
		n * r->job->config.topk * sizeof(*r->buffers->wide_ids));
}

int round_place(struct round *r)
{
	uint32_t version = job_version(r->job, routes_of(r)), nr = job_nr_physical(r->job);
	int32_t *logical;
	int rc;

	if (!r->job->place_in || r->moe->placement.placed.version == version)
		return 0;
	logical = calloc(nr, sizeof(*logical));
	if (!logical)
		return TERN_ERR_NOMEM;
	job_place(r->job, version, logical);
	rc = tern_moe_place(r->moe, version, logical, nr);
	free(logical);
	return rc;
}

int round_try_send(struct round *r)
{
	struct tern_dispatch args;
	int rc = round_place(r);

	if (rc)
		return rc;
	round_arguments(r, &args);
	do
		rc = tern_dispatch_send(r->moe, &args);
	while (again(r, rc));
	spoil_arguments(r, args.nr_tokens);
	return rc;
}

int round_dispatch_send(struct round *r)
{
	int rc = round_try_send(r);

	return rc ? failed(r, rc, "dispatch_send") : 0;
}

static uint64_t wanted_stride(const struct round *r)
{
	const struct layout *l = &r->moe->layout;
	uint64_t rows = r->job->config.layout == TERN_PADDED ? l->capacity : l->positions;

	return align_up(rows, 4) + (r->job->seed % 2 ? 8 : 0);
}

/* All of it. */
static void want(struct round *r)
{
	uint64_t positions = r->moe->layout.positions, stride = wanted_stride(r);
	uint32_t nr_local = r->moe->nr_local;
	size_t ids = wide_ids_bytes(r->job, positions),
	       scales = gemm_scales_bytes(r->job, nr_local, stride);
	struct buffers *b = r->buffers;

	uint32_t lists = r->job->config.layout == TERN_BY_SOURCE ? r->job->nr_ranks : nr_local;

	if (!b->expert_counts) {
		b->into_counts = calloc(lists + 1, sizeof(*b->into_counts));
		b->into_offsets = calloc(lists + 1, sizeof(*b->into_offsets));
		b->wide_received = aligned(ids + 8);
		b->expert_counts = aligned((nr_local + 1) * sizeof(*b->expert_counts));
		b->expert_totals = calloc(nr_local + 1, sizeof(*b->expert_totals));
		b->totals = calloc(nr_local + 1, sizeof(*b->totals));
		b->gemm_scales = aligned(scales + 16);
		b->waited_ns = calloc(r->job->nr_ranks, sizeof(*b->waited_ns));
	}
	memset(b->wide_received, POISON, ids);
	memset(b->gemm_scales, POISON, scales);
	r->received.wide_ids = ids ? b->wide_received : NULL;
	r->received.into_counts = b->into_counts;
	r->received.into_offsets = b->into_offsets;
	r->received.expert_counts = b->expert_counts;
	r->received.expert_totals = b->expert_totals;
	r->received.waited_ns = b->waited_ns;
	r->received.gemm_scales = job_received_scales_bytes(r->job) ? b->gemm_scales : NULL;
	r->received.gemm_scales_stride =
		r->received.gemm_scales && r->job->seed % 2 ? (uint32_t)stride : 0;
	r->received.counts_alignment = (uint32_t)(r->job->seed % 7);
}

/* Beside rows, and how many there are. */
static int check_wanted(struct round *r, struct difference *difference)
{
	uint64_t nr_rows = 0, extent = 0;

	if (r->received.counts != r->buffers->into_counts ||
		r->received.offsets != r->buffers->into_offsets)
		return rank_fails(r->rank, "round %llu: lists are not in the caller's buffers",
			(unsigned long long)r->number);
	if (tern_received_sizes(r->moe, r->slot, &nr_rows, &extent) ||
		nr_rows != r->received.nr_rows || extent != r->received.extent)
		return rank_fails(r->rank, "round %llu: sizes: %s", (unsigned long long)r->number,
			tern_last_error());
	return verify_wanted(r->reference, (uint32_t)r->rank->rank, &r->received,
		r->moe->layout.positions, wanted_stride(r), r->buffers->totals, difference);
}

static void expect_rows(struct round *r)
{
	r->received = (struct tern_received){.size = sizeof(r->received)};
	if (r->job->wants)
		want(r);
	if (r->manner.into) {
		r->received.into_x = r->buffers->into;
		r->received.into_scales = r->buffers->into_scales;
	}
}

int round_check_received(struct round *r)
{
	struct difference difference = {0};

	if (r->manner.into && r->received.x != r->buffers->into)
		return rank_fails(r->rank, "round %llu: received x is not the caller's buffer",
			(unsigned long long)r->number);
	if (r->job->place_in && r->received.version != job_version(r->job, routes_of(r)))
		return rank_fails(r->rank, "round %llu is of version %u of the placement",
			(unsigned long long)r->number, r->received.version);
	set_reference(r);
	if (r->job->wants && check_wanted(r, &difference))
		return -1;
	if (verify_received(r->reference, (uint32_t)r->rank->rank, &r->received, &difference) ||
		difference.nr)
		return rank_fails(r->rank, "round %llu: %llu wrong after dispatch: %s",
			(unsigned long long)r->number, (unsigned long long)difference.nr,
			difference.first);
	return 0;
}

int round_dispatch_recv(struct round *r)
{
	int rc;

	expect_rows(r);
	do
		rc = tern_dispatch_recv(r->moe, r->slot, &r->received);
	while (again(r, rc));
	return rc ? failed(r, rc, "dispatch_recv") : round_check_received(r);
}

int round_dispatch(struct round *r)
{
	struct tern_dispatch args;
	int rc = round_place(r);

	if (rc)
		return failed(r, rc, "place");
	round_arguments(r, &args);
	expect_rows(r);
	do
		rc = tern_dispatch(r->moe, &args, &r->received);
	while (again(r, rc));
	spoil_arguments(r, args.nr_tokens);
	return rc ? failed(r, rc, "dispatch") : round_check_received(r);
}

static int fill_round_floats(struct round *r)
{
	const struct tern_moe_config *c = &r->job->config;
	struct buffers *b = r->buffers;
	size_t each = (c->layout == TERN_BY_SOURCE ? c->topk : 1) * sizeof(float),
	       need = (r->received.extent + 1) * each;

	if (need > b->floats_bytes) {
		free(b->floats);
		b->floats = aligned(need);
		b->floats_bytes = need;
	}
	memset(b->out_floats, POISON, (size_t)c->max_tokens * c->topk * sizeof(float));
	return b->floats && !fill_floats(r->reference, (uint32_t)r->rank->rank, b->floats)
		       ? 0
		       : rank_fails(r->rank, "no memory for floats");
}

/* How rows are weighted, and what goes with them. */
static int set_manner(struct round *r, struct tern_combine *args)
{
	uint32_t topk = r->job->config.topk, home = job_home(r->job, (uint32_t)r->rank->rank);
	struct buffers *b = r->buffers;

	args->unweighted = r->weighting == WEIGHTED_NOT;
	if (r->weighting == WEIGHTED_AT_COMBINE)
		args->topk_weights = b->combine_weights;
	for (uint32_t t = 0; t < r->reference->nr_tokens[home] && args->topk_weights; t++)
		for (uint32_t k = 0; k < topk; k++)
			b->combine_weights[t * topk + k] =
				job_combine_weight(r->job, r->number, home, t, k);
	if (!r->job->config.combine_floats)
		return 0;
	if (fill_round_floats(r))
		return -1;
	args->floats = b->floats;
	args->out_floats = b->out_floats;
	return 0;
}

int round_results(struct round *r, struct tern_combine *args)
{
	struct buffers *b = r->buffers;
	size_t stride = job_y_bytes(r->job) + b->rows_apart, need = r->received.extent * stride;

	if (need > b->y_bytes) {
		free(b->y);
		b->y = aligned(need);
		b->y_bytes = need;
	}
	if (need && !b->y)
		return rank_fails(r->rank, "no memory for %zu bytes of y", need);
	set_reference(r);
	if (fill_y(r->reference, (uint32_t)r->rank->rank, b->y, stride))
		return rank_fails(r->rank, "no memory for y");
	*args = (struct tern_combine){.size = sizeof(*args),
		.slot = r->slot,
		.y = b->y,
		.y_stride = b->rows_apart ? stride : 0,
		.plan = r->replays ? r->plan : 0};
	return set_manner(r, args);
}

int round_combine_send(struct round *r)
{
	struct tern_combine args;
	int rc;

	if (round_results(r, &args))
		return -1;
	do
		rc = tern_combine_send(r->moe, &args);
	while (again(r, rc));
	return rc ? failed(r, rc, "combine_send") : 0;
}

/* The bytes between rows are the caller's. */
static int check_gaps(struct round *r)
{
	size_t y_bytes = job_y_bytes(r->job), stride = y_bytes + r->buffers->rows_apart;
	const unsigned char *out = r->buffers->out;

	for (uint32_t t = 0; t < r->job->config.max_tokens; t++)
		for (size_t i = y_bytes; i < stride; i++)
			if (out[t * stride + i] != POISON)
				return rank_fails(r->rank,
					"round %llu: byte %zu behind row %u of out was written",
					(unsigned long long)r->number, i - y_bytes, t);
	return 0;
}

int round_check_combined(struct round *r)
{
	struct difference difference = {0};

	set_reference(r);
	if (r->job->config.combine_floats)
		verify_floats(
			r->reference, (uint32_t)r->rank->rank, r->buffers->out_floats, &difference);
	if (verify_combined(r->reference, (uint32_t)r->rank->rank, r->buffers->out,
		    job_y_bytes(r->job) + r->buffers->rows_apart, &difference) ||
		difference.nr)
		return rank_fails(r->rank, "round %llu: %llu wrong after combine: %s",
			(unsigned long long)r->number, (unsigned long long)difference.nr,
			difference.first);
	return check_gaps(r);
}

static size_t spoil_out(struct round *r)
{
	size_t stride = job_y_bytes(r->job) + r->buffers->rows_apart;

	memset(r->buffers->out, POISON, r->job->config.max_tokens * stride);
	return r->buffers->rows_apart ? stride : 0;
}

int round_combine_recv(struct round *r)
{
	struct buffers *b = r->buffers;
	size_t stride = spoil_out(r);
	int rc;

	if (b->y && b->y_bytes < (64u << 20))
		memset(b->y, POISON, b->y_bytes);
	do
		rc = tern_combine_recv(r->moe, r->slot, b->out, stride);
	while (again(r, rc));
	return rc ? failed(r, rc, "combine_recv") : round_check_combined(r);
}

int round_combine(struct round *r)
{
	struct tern_combine args;
	size_t stride = spoil_out(r);
	int rc;

	if (round_results(r, &args))
		return -1;
	do
		rc = tern_combine(r->moe, &args, r->buffers->out, stride);
	while (again(r, rc));
	return rc ? failed(r, rc, "combine") : round_check_combined(r);
}

int round_release(struct round *r)
{
	int rc = tern_release(r->moe, r->slot);

	return rc ? failed(r, rc, "release") : 0;
}

int run_round(struct round *r, uint64_t number)
{
	int rc;

	r->number = number;
	r->slot = (uint32_t)(number % r->job->config.nr_slots);
	if (r->manner.joined) {
		rc = round_dispatch(r);
	} else {
		rc = round_dispatch_send(r);
		rc = rc ? rc : round_dispatch_recv(r);
	}
	if (rc)
		return rc;
	if (r->manner.release)
		return round_release(r);
	if (r->manner.joined)
		return round_combine(r);
	rc = round_combine_send(r);
	return rc ? rc : round_combine_recv(r);
}

int run_rounds_with(
	struct rank *rank, const struct job *job, int rounds, const struct manner *manner)
{
	struct round round;
	int rc = round_open(&round, rank, job, manner);

	for (int i = 0; i < rounds && !rc; i++)
		rc = run_round(&round, (uint64_t)i);
	round_close(&round);
	return rc;
}

int run_rounds(struct rank *rank, const struct job *job, int rounds)
{
	return run_rounds_with(rank, job, rounds, NULL);
}

int ranks_meet(struct rank *rank)
{
	char all[64 * 1024], mine = 0;

	return tern_group_allgather(rank->group, &mine, all, 1)
		       ? rank_fails(rank, "meeting: %s", tern_last_error())
		       : 0;
}

/* ---- rounds in flight on all slots ----------------------------------------------------------- */

enum next_half {
	NEXT_DISPATCH_SEND,
	NEXT_DISPATCH_RECV,
	NEXT_COMBINE_SEND,
	NEXT_COMBINE_RECV
};

static bool over_capacity(const struct job *job, const struct received_layout *layout)
{
	for (uint32_t i = 0; i < layout->nr_groups && job->config.layout == TERN_PADDED; i++)
		if (layout->counts[i] > job->config.capacity)
			return true;
	return job->config.layout != TERN_PADDED && layout->end > job->config.capacity;
}

/* The first rank that would receive more than it can take in this round; -1: none. */
static int rank_over_capacity(struct round *r)
{
	struct received_layout layout;
	int over = -1;

	set_reference(r);
	for (uint32_t rank = 0; r->job->config.capacity && rank < r->job->nr_ranks && over < 0;
		rank++) {
		if (received_layout_create(r->reference, rank, &layout))
			return rank_fails(r->rank, "no memory");
		over = over_capacity(r->job, &layout) ? (int)rank : -1;
		received_layout_destroy(&layout);
	}
	return over;
}

/* 0: sent; 1: over capacity, as it should be; -1: a failure, noted. */
static int send_or_exceed(struct round *r)
{
	int over = rank_over_capacity(r), rc = round_try_send(r);
	char text[64];

	if (over < 0)
		return rc ? failed(r, rc, "dispatch_send") : 0;
	snprintf(text, sizeof(text), "rank %d would receive more than its capacity", over);
	if (rc == TERN_ERR_CAPACITY && strstr(tern_last_error(), text))
		return 1;
	return rank_fails(r->rank, "round %llu: %d (%s), though %s", (unsigned long long)r->number,
		rc, rc ? tern_last_error() : "success", text);
}

static int flow_step(struct flow *flow, struct round *r, enum next_half *next, uint64_t *started,
	uint64_t *state)
{
	bool released = flow->release_in && random_below(state, flow->release_in) == 0;
	int rc;

	switch (*next) {
	case NEXT_DISPATCH_SEND:
		if (*started == (uint64_t)flow->rounds)
			return 0;
		r->number = (*started)++;
		rc = send_or_exceed(r);
		if (rc > 0 && r->rank->rank == 0)
			flow->nr_over++;
		if (rc == 0)
			*next = NEXT_DISPATCH_RECV;
		return rc < 0 ? rc : 0;
	case NEXT_DISPATCH_RECV:
		*next = NEXT_COMBINE_SEND;
		return round_dispatch_recv(r);
	case NEXT_COMBINE_SEND:
		*next = released ? NEXT_DISPATCH_SEND : NEXT_COMBINE_RECV;
		return released ? round_release(r) : round_combine_send(r);
	case NEXT_COMBINE_RECV:
		*next = NEXT_DISPATCH_SEND;
		return round_combine_recv(r);
	}
	return -1;
}

static bool all_idle(const enum next_half *next, uint32_t nr_slots)
{
	for (uint32_t i = 0; i < nr_slots; i++)
		if (next[i] != NEXT_DISPATCH_SEND)
			return false;
	return true;
}

static void doze(struct flow *flow, const struct rank *rank, uint64_t *own_state)
{
	struct timespec nap = {.tv_nsec = random_below(own_state, 3000000)};

	if (rank->rank == flow->sleeper && random_below(own_state, 4) == 0)
		nanosleep(&nap, NULL);
}

int run_flow(struct rank *rank, struct flow *flow)
{
	uint32_t nr_slots = flow->job->config.nr_slots;
	struct round *rounds = calloc(nr_slots, sizeof(*rounds));
	enum next_half next[16] = {NEXT_DISPATCH_SEND};
	uint64_t state = flow->seed, own_state = hash2(flow->seed, (uint64_t)rank->rank),
		 started = 0;
	int rc = rounds ? round_open(&rounds[0], rank, flow->job, &flow->manner)
			: rank_fails(rank, "no memory");

	for (uint32_t i = 1; i < nr_slots && !rc; i++)
		rc = round_open_beside(&rounds[i], &rounds[0], i);
	while (!rc && (started < (uint64_t)flow->rounds || !all_idle(next, nr_slots))) {
		uint32_t slot = random_below(&state, nr_slots);

		doze(flow, rank, &own_state);
		rc = flow_step(flow, &rounds[slot], &next[slot], &started, &state);
	}
	for (uint32_t i = nr_slots; rounds && i-- > 0;)
		round_close(&rounds[i]);
	free(rounds);
	return rc;
}
