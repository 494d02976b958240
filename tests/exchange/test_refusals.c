/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input gets a clear error before anything is sent, and changes nothing: after every refusal
 * the same exchange goes through verified rounds, on all ranks. */
#include "tests/exchange/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* Notes a failure unless rc is want and the last error contains text. */
static int refused(struct rank *rank, const char *call, int rc, int want, const char *text)
{
	if (rc != want)
		return rank_fails(rank, "%s returned %d (%s), not %s", call, rc,
			rc ? tern_last_error() : "success", tern_strerror(want));
	if (!strstr(tern_last_error(), text))
		return rank_fails(
			rank, "%s: \"%s\" does not say \"%s\"", call, tern_last_error(), text);
	return 0;
}

struct shape {
	enum tern_mode mode;
	enum tern_layout layout;
	bool fp8;
};

static void make_job(struct job *job, int nr_ranks, const struct shape *shape)
{
	job_init(job);
	job->nr_ranks = (uint32_t)nr_ranks;
	job->nr_tokens = job->config.max_tokens = 8;
	job->config.hidden = 64;
	job->config.nr_experts = 10;
	job->config.topk = 3;
	job->config.mode = shape->mode;
	job->config.layout = shape->layout;
	job->config.nr_slots = 2;
	if (shape->layout == TERN_BY_SOURCE) {
		job->config.reduce = TERN_REDUCE_EXPERT;
		job->config.weights = TERN_WEIGHTS_PASS;
	}
	if (shape->fp8) {
		job->config.dispatch_dtype = TERN_FP8_E4M3;
		job->config.scale = TERN_SCALE_FP32;
	}
	job->input = INPUT_RANDOM;
	if (job_open(job, NULL))
		fail_msg("no memory");
}

static void run_on_shape(rank_main body, int nr_ranks, const struct shape *shape)
{
	struct job job;
	const char *failure;

	make_job(&job, nr_ranks, shape);
	failure = run_ranks(nr_ranks, body, &job);
	if (failure)
		fail_msg("mode %d, layout %d%s: %s", (int)shape->mode, (int)shape->layout,
			shape->fp8 ? ", FP8" : "", failure);
	job_close(&job);
}

static void run_on_both_modes(rank_main body)
{
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		run_on_shape(body, 2, &(struct shape){mode, TERN_CONTIGUOUS, false});
}

/* ---- routing --------------------------------------------------------------------------------- */

struct bad_id {
	int64_t id;
	uint32_t token, k;
	const char *text; /* naming row, column and value */
};

static const struct bad_id bad_ids[] = {
	{10, 0, 0, "topk_ids[0][0] is 10"},
	{-2, 7, 2, "topk_ids[7][2] is -2"},
	{INT32_MAX, 3, 1, "topk_ids[3][1] is 2147483647"},
	{INT32_MIN, 3, 1, "topk_ids[3][1] is -2147483648"},
};

static const struct bad_id bad_wide_ids[] = {
	{10, 0, 0, "topk_ids[0][0] is 10"},
	{1ll << 32, 7, 2, "topk_ids[7][2] is 4294967296"},       /* 0 when cut to 32 bits */
	{(1ll << 32) - 1, 5, 0, "topk_ids[5][0] is 4294967295"}, /* -1 when cut */
	{INT64_MIN, 3, 1, "topk_ids[3][1] is -9223372036854775808"},
	{INT64_MAX, 3, 1, "topk_ids[3][1] is 9223372036854775807"},
};

static int try_bad_id(struct round *r, const struct bad_id *bad, bool wide)
{
	struct tern_dispatch args;
	size_t index = (size_t)bad->token * r->job->config.topk + bad->k;

	round_arguments(r, &args);
	r->buffers->ids[index] = (int32_t)bad->id;
	r->buffers->wide_ids[index] = bad->id;
	args.topk_ids = wide ? (void *)r->buffers->wide_ids : (void *)r->buffers->ids;
	args.topk_ids_bits = wide ? 64 : 32;
	return refused(r->rank, "dispatch_send", tern_dispatch_send(r->moe, &args),
		TERN_ERR_INVALID, bad->text);
}

static void ids_out_of_range_body(struct rank *rank)
{
	struct round round;
	uint64_t number = 0;
	int rc = round_open(&round, rank, rank->ctx, NULL);

	for (int wide = 0; wide < 2 && !rc; wide++) {
		const struct bad_id *bad = wide ? bad_wide_ids : bad_ids;
		size_t nr =
			wide ? sizeof(bad_wide_ids) / sizeof(*bad) : sizeof(bad_ids) / sizeof(*bad);

		for (size_t i = 0; i < nr && !rc; i++) {
			if (rank->rank == 1) /* the other rank knows nothing of it */
				rc = try_bad_id(&round, &bad[i], wide);
			rc = rc ? rc : run_round(&round, number++);
		}
	}
	round_close(&round);
}

static void ids_out_of_range(void **state)
{
	(void)state;
	run_on_both_modes(ids_out_of_range_body);
}

static void duplicates_body(struct rank *rank)
{
	static const struct {
		uint32_t token, first, again;
	} cases[] = {{0, 0, 1}, {0, 0, 2}, {7, 1, 2}};
	struct round round;
	int rc = round_open(&round, rank, rank->ctx, NULL);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && !rc; i++) {
		struct tern_dispatch args;
		int32_t *row;
		char text[80];

		round_arguments(&round, &args);
		row = round.buffers->ids + cases[i].token * round.job->config.topk;
		row[cases[i].again] = row[cases[i].first];
		snprintf(text, sizeof(text),
			"topk_ids[%u] names expert %d twice, again at column %u", cases[i].token,
			row[cases[i].first], cases[i].again);
		rc = refused(rank, "dispatch_send", tern_dispatch_send(round.moe, &args),
			TERN_ERR_INVALID, text);
		rc = rc ? rc : run_round(&round, i);
	}
	round_close(&round);
}

static void duplicate_ids(void **state)
{
	(void)state;
	run_on_both_modes(duplicates_body);
}

/* The same expert in two rows, and several -1 in one row, are no duplicates. */
static void not_duplicates_body(struct rank *rank)
{
	struct tern_received received = {.size = sizeof(received)};
	struct tern_dispatch args;
	struct round round;
	int rc = round_open(&round, rank, rank->ctx, NULL);

	if (!rc) {
		round_arguments(&round, &args);
		for (uint32_t i = 0; i < args.nr_tokens * 3; i++)
			round.buffers->ids[i] = i % 3 == 1 ? 4 : -1;
		if (tern_dispatch(round.moe, &args, &received))
			rank_fails(rank, "dispatch: %s", tern_last_error());
		else if (received.nr_rows != (rank->rank ? 0u : 16u)) /* expert 4 of 10 is on rank 0
								       */
			rank_fails(
				rank, "%llu rows received", (unsigned long long)received.nr_rows);
	}
	round_close(&round);
}

static void not_duplicates(void **state)
{
	(void)state;
	run_on_both_modes(not_duplicates_body);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int try_dispatches(struct round *r)
{
	struct tern_dispatch good, args;
	struct rank *rank = r->rank;
	int rc = 0;

	round_arguments(r, &good);
#define TRY(want, text, ...)                                                                       \
	do {                                                                                       \
		args = good;                                                                       \
		__VA_ARGS__;                                                                       \
		if (!rc)                                                                           \
			rc = refused(rank, #__VA_ARGS__, tern_dispatch_send(r->moe, &args), want,  \
				text);                                                             \
	} while (0)
	TRY(TERN_ERR_INVALID, "size", args.size = 0);
	TRY(TERN_ERR_INVALID, "size", args.size--);
	TRY(TERN_ERR_INVALID, "slot is 2 of 2", args.slot = 2);
	TRY(TERN_ERR_INVALID, "slot", args.slot = UINT32_MAX);
	TRY(TERN_ERR_INVALID, "9 tokens; this exchange was made for at most 8", args.nr_tokens = 9);
	TRY(TERN_ERR_INVALID, "at most 8", args.nr_tokens = UINT32_MAX);
	TRY(TERN_ERR_INVALID, "x is NULL", args.x = NULL);
	TRY(TERN_ERR_INVALID, "aligned to 16", args.x = (const char *)good.x + 8);
	TRY(TERN_ERR_INVALID, "aligned to 16", args.x_stride = 136);
	TRY(TERN_ERR_INVALID, "stride of 112 bytes for rows of 128", args.x_stride = 112);
	TRY(TERN_ERR_INVALID, "scales are given", args.scales = good.x);
	TRY(TERN_ERR_INVALID, "topk_ids is NULL", args.topk_ids = NULL);
	TRY(TERN_ERR_INVALID, "aligned to 4", args.topk_ids = (const char *)good.topk_ids + 2);
	TRY(TERN_ERR_INVALID, "aligned to 8", args.topk_ids_bits = 64;
		args.topk_ids = (const char *)good.topk_ids + 4);
	TRY(TERN_ERR_INVALID, "topk_weights at",
		args.topk_weights = (const void *)((const char *)good.topk_weights + 2));
	TRY(TERN_ERR_INVALID, "topk_ids_bits is 16", args.topk_ids_bits = 16);
#undef TRY
	rc = rc ? rc
		: refused(rank, "NULL moe", tern_dispatch_send(NULL, &good), TERN_ERR_INVALID,
			  "NULL");
	rc = rc ? rc
		: refused(rank, "NULL args", tern_dispatch_send(r->moe, NULL), TERN_ERR_INVALID,
			  "NULL");
	rc = rc ? rc
		: refused(rank, "NULL received", tern_dispatch(r->moe, &good, NULL),
			  TERN_ERR_INVALID, "received");
	return rc;
}

static int try_receives(struct round *r)
{
	struct tern_received received = {.size = sizeof(received)}, short_one = {.size = 8},
			     odd = received;
	int rc = refused(r->rank, "recv, NULL", tern_dispatch_recv(r->moe, r->slot, NULL),
		TERN_ERR_INVALID, "NULL");

	odd.into_x = (char *)r->buffers->out + 8;
	rc = rc ? rc
		: refused(r->rank, "recv, size", tern_dispatch_recv(r->moe, r->slot, &short_one),
			  TERN_ERR_INVALID, "size");
	rc = rc ? rc
		: refused(r->rank, "recv, slot", tern_dispatch_recv(r->moe, 2, &received),
			  TERN_ERR_INVALID, "slot is 2 of 2");
	rc = rc ? rc
		: refused(r->rank, "recv, into", tern_dispatch_recv(r->moe, r->slot, &odd),
			  TERN_ERR_INVALID, "into_x");
	return rc;
}

static int try_combines(struct round *r)
{
	struct tern_combine good = {.size = sizeof(good), .slot = r->slot, .y = r->buffers->out},
			    args;
	struct rank *rank = r->rank;
	int rc = refused(
		rank, "NULL args", tern_combine_send(r->moe, NULL), TERN_ERR_INVALID, "NULL");

#define TRY(text, ...)                                                                             \
	do {                                                                                       \
		args = good;                                                                       \
		__VA_ARGS__;                                                                       \
		if (!rc)                                                                           \
			rc = refused(rank, #__VA_ARGS__, tern_combine_send(r->moe, &args),         \
				TERN_ERR_INVALID, text);                                           \
	} while (0)
	TRY("size", args.size = 1);
	TRY("slot", args.slot = 9);
	if (r->received.nr_rows)
		TRY("y is NULL", args.y = NULL);
	TRY("aligned", args.y = (const char *)good.y + 4);
	TRY("aligned", args.y_stride = 129);
	TRY("stride of 16", args.y_stride = 16);
#undef TRY
	return rc;
}

static int try_outs(struct round *r)
{
	char *out = r->buffers->out;
	int rc = refused(
		r->rank, "slot", tern_combine_recv(r->moe, 2, out, 0), TERN_ERR_INVALID, "slot");

	rc = rc ? rc
		: refused(r->rank, "out", tern_combine_recv(r->moe, r->slot, NULL, 0),
			  TERN_ERR_INVALID, "NULL");
	rc = rc ? rc
		: refused(r->rank, "out odd", tern_combine_recv(r->moe, r->slot, out + 2, 0),
			  TERN_ERR_INVALID, "out at");
	rc = rc ? rc
		: refused(r->rank, "stride", tern_combine_recv(r->moe, r->slot, out, 64),
			  TERN_ERR_INVALID, "stride of 64");
	return rc ? rc
		  : refused(r->rank, "stride", tern_combine_recv(r->moe, r->slot, out, 130),
			    TERN_ERR_INVALID, "stride of 130");
}

static void arguments_body(struct rank *rank)
{
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	for (uint64_t i = 0; i < 4 && !rc; i++) { /* each half is refused, then done right */
		r.number = i;
		r.slot = i & 1;
		rc = try_dispatches(&r);
		rc = rc ? rc : round_dispatch_send(&r);
		rc = rc ? rc : try_receives(&r);
		rc = rc ? rc : round_dispatch_recv(&r);
		rc = rc ? rc : try_combines(&r);
		rc = rc ? rc : round_combine_send(&r);
		rc = rc ? rc : try_outs(&r);
		rc = rc ? rc : round_combine_recv(&r);
	}
	round_close(&r);
}

static void bad_arguments(void **state)
{
	(void)state;
	run_on_both_modes(arguments_body);
}

/* ---- both halves in one call ----------------------------------------------------------------- */

/* Between two calls of this nothing was sent, and nothing received. */
static int no_news(struct round *r, struct tern_stats *before)
{
	struct tern_stats now = {.size = sizeof(now)};

	if (tern_moe_stats(r->moe, &now))
		return rank_fails(r->rank, "stats: %s", tern_last_error());
	if (before->size && memcmp(before, &now, sizeof(now)))
		return rank_fails(r->rank, "round %d: a refused call was counted", (int)r->number);
	*before = now;
	return 0;
}

static int not_dispatched(struct round *r, const struct tern_dispatch *args,
	struct tern_received *received, const char *text)
{
	int rc = tern_dispatch(r->moe, args, received);

	return refused(r->rank, "dispatch", rc, TERN_ERR_INVALID, text);
}

static int not_combined(struct round *r, const struct tern_combine *args, size_t at, size_t stride,
	const char *text)
{
	int rc = tern_combine(r->moe, args, (char *)r->buffers->out + at, stride);

	return refused(r->rank, "combine", rc, TERN_ERR_INVALID, text);
}

/* Of another round's tokens, which no later call may bring. */
static int try_dispatch(struct round *r)
{
	struct round old = *r;
	struct buffers *b = r->buffers;
	bool low = r->job->config.mode == TERN_LOW_LATENCY;
	char *scales = b->into_scales;
	struct tern_received small = {.size = sizeof(small) - 1}, into = {.size = sizeof(into)};
	struct tern_dispatch args;
	struct tern_stats stats = {0};
	int rc = no_news(r, &stats);

	old.number += 1000;
	round_arguments(&old, &args);
	rc = rc ? rc : not_dispatched(r, &args, NULL, "received");
	rc = rc ? rc : not_dispatched(r, &args, &small, "size");
	into.into_x = (char *)b->out + (low ? 8 : 0);
	rc = rc ? rc : not_dispatched(r, &args, &into, "into_x");
	into.into_x = b->into;
	if (low && job_received_scales_bytes(r->job)) {
		rc = rc ? rc : not_dispatched(r, &args, &into, "into_scales");
		into.into_scales = scales + 2;
		rc = rc ? rc : not_dispatched(r, &args, &into, "into_scales");
	}
	return rc ? rc : no_news(r, &stats);
}

/* With results that nobody made: no sum may have them. */
static int try_combine(struct round *r)
{
	struct tern_combine args, other;
	struct tern_stats stats = {0};
	size_t bytes = job_y_bytes(r->job);
	int rc = round_results(r, &args) || no_news(r, &stats);

	if (rc)
		return rc;
	memset(r->buffers->y, 0x3f, r->received.extent * bytes);
	rc = tern_combine(r->moe, &args, NULL, 0);
	rc = refused(r->rank, "out NULL", rc, TERN_ERR_INVALID, "out is NULL for");
	rc = rc ? rc : not_combined(r, &args, 2, 0, "out at");
	rc = rc ? rc : not_combined(r, &args, 0, bytes - 16, "out at");
	rc = rc ? rc : not_combined(r, &args, 0, bytes + 2, "out at");
	other = args;
	other.y = (const char *)args.y + 4;
	rc = rc ? rc : not_combined(r, &other, 0, 0, "y at");
	other.y = NULL;
	if (r->received.nr_rows)
		rc = rc ? rc : not_combined(r, &other, 0, 0, "y is NULL");
	return rc ? rc : no_news(r, &stats);
}

static void joined_body(struct rank *rank)
{
	struct round r;
	const struct job *job = rank->ctx;
	struct manner manner = {.into = job->config.mode == TERN_LOW_LATENCY};
	int rc = round_open(&r, rank, job, &manner);

	for (uint64_t i = 0; i < 6 && !rc; i++) {
		r.number = i;
		r.slot = i & 1;
		rc = try_dispatch(&r);
		rc = rc ? rc : round_dispatch(&r);
		rc = rc ? rc : try_combine(&r);
		rc = rc ? rc : i == 2 ? round_release(&r) : round_combine(&r);
	}
	round_close(&r);
}

static int expired(struct round *r, int rc)
{
	return refused(r->rank, "a call without rank 1", rc, TERN_ERR_TIMEOUT, "rank 1");
}

/* Refused after it has begun; the right call goes on. */
static int begin_dispatch(struct round *r)
{
	struct tern_received received = {.size = sizeof(received)};
	struct tern_dispatch args, other;
	struct tern_stats stats = {0};
	int rc;

	round_arguments(r, &args);
	rc = expired(r, tern_dispatch(r->moe, &args, &received));
	rc = rc ? rc : no_news(r, &stats);
	other = args;
	other.nr_tokens--;
	rc = rc ? rc : not_dispatched(r, &other, &received, "7 tokens");
	other = args;
	other.x = (const char *)args.x + 8;
	rc = rc ? rc : not_dispatched(r, &other, &received, "x at");
	received.size--;
	rc = rc ? rc : not_dispatched(r, &args, &received, "size");
	return rc ? rc : no_news(r, &stats);
}

static int begin_combine(struct round *r)
{
	struct tern_combine args, other;
	int rc = round_results(r, &args);

	rc = rc ? rc : expired(r, tern_combine(r->moe, &args, r->buffers->out, 0));
	rc = rc ? rc : not_combined(r, &args, 4, 0, "out at");
	other = args;
	other.y = (const char *)args.y + 4;
	return rc ? rc : not_combined(r, &other, 0, 0, "y at");
}

static void going_on_body(struct rank *rank)
{
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	if (!rc && rank->rank == 0) {
		rc = tern_moe_set_wait(r.moe, 0);
		r.polls = true;
	}
	for (uint64_t i = 0; i < 4 && !rc; i++) {
		r.number = i;
		r.slot = i & 1;
		if (rank->rank == 0)
			rc = begin_dispatch(&r);
		rc = ranks_meet(rank) || rc;
		rc = rc ? rc : round_dispatch(&r);
		rc = ranks_meet(rank) || rc;
		if (!rc && rank->rank == 0)
			rc = begin_combine(&r);
		rc = ranks_meet(rank) || rc;
		rc = rc ? rc : round_combine(&r);
	}
	round_close(&r);
}

static void run_on_all_shapes(rank_main body)
{
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++)
			for (int fp8 = 0; fp8 < 2; fp8++)
				run_on_shape(body, 2, &(struct shape){mode, layout, fp8});
}

static void refused_in_the_second_half(void **state)
{
	(void)state;
	run_on_all_shapes(joined_body);
}

static void refused_while_going_on(void **state)
{
	(void)state;
	run_on_all_shapes(going_on_body);
}

/* ---- order ----------------------------------------------------------------------------------- */

enum call {
	CALL_DISPATCH_SEND,
	CALL_DISPATCH_RECV,
	CALL_COMBINE_SEND,
	CALL_COMBINE_RECV,
	CALL_RELEASE,
	NR_CALLS
};

static int call_out_of_order(struct round *r, enum call call)
{
	static const char *const names[] = {"tern_dispatch_send", "tern_dispatch_recv",
		"tern_combine_send", "tern_combine_recv", "tern_release"};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {
		.size = sizeof(combine), .slot = r->slot, .y = r->buffers->out};
	struct tern_dispatch dispatch;
	int rc = 0;

	switch (call) {
	case CALL_DISPATCH_SEND:
		round_arguments(r, &dispatch);
		rc = tern_dispatch_send(r->moe, &dispatch);
		break;
	case CALL_DISPATCH_RECV:
		rc = tern_dispatch_recv(r->moe, r->slot, &received);
		break;
	case CALL_COMBINE_SEND:
		rc = tern_combine_send(r->moe, &combine);
		break;
	case CALL_COMBINE_RECV:
		rc = tern_combine_recv(r->moe, r->slot, r->buffers->out, 0);
		break;
	case CALL_RELEASE:
		rc = tern_release(r->moe, r->slot);
		break;
	case NR_CALLS:
		break;
	}
	return refused(r->rank, names[call], rc, TERN_ERR_STATE, names[call]);
}

/* All calls but the next one (and release, where combine_send may come). */
static int all_but(struct round *r, enum call next)
{
	int rc = 0;

	for (enum call call = 0; call < NR_CALLS && !rc; call++)
		if (call != next && !(next == CALL_COMBINE_SEND && call == CALL_RELEASE))
			rc = call_out_of_order(r, call);
	return rc;
}

static void order_body(struct rank *rank)
{
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	for (uint64_t i = 0; i < 6 && !rc; i++) {
		r.number = i;
		r.slot = i & 1;
		rc = i < 2 || i >= 4 ? all_but(&r, CALL_DISPATCH_SEND) : 0;
		rc = rc ? rc : round_dispatch_send(&r);
		rc = rc ? rc : all_but(&r, CALL_DISPATCH_RECV);
		rc = rc ? rc : round_dispatch_recv(&r);
		rc = rc ? rc : all_but(&r, CALL_COMBINE_SEND);
		if (i == 2 || i == 3) { /* one round of each slot is released */
			rc = rc ? rc : round_release(&r);
			rc = rc ? rc : all_but(&r, CALL_DISPATCH_SEND);
			continue;
		}
		rc = rc ? rc : round_combine_send(&r);
		rc = rc ? rc : all_but(&r, CALL_COMBINE_RECV);
		rc = rc ? rc : round_combine_recv(&r);
	}
	round_close(&r);
}

static void halves_out_of_order(void **state)
{
	(void)state;
	run_on_both_modes(order_body);
}

/* ---- settings -------------------------------------------------------------------------------- */

static int try_configs(struct rank *rank, const struct tern_moe_config *good)
{
	tern_moe *moe = NULL;
	struct tern_moe_config c;
	int rc = 0;

#define TRY(text, ...)                                                                             \
	do {                                                                                       \
		c = *good;                                                                         \
		__VA_ARGS__;                                                                       \
		if (!rc)                                                                           \
			rc = refused(rank, #__VA_ARGS__, tern_moe_create(rank->group, &c, &moe),   \
				TERN_ERR_INVALID, text);                                           \
	} while (0)
	TRY("tern_moe_config_init", c.size = 0);
	TRY("mode is 3", c.mode = (enum tern_mode)3);
	TRY("mode is 3", c.mode = (enum tern_mode)3);
	TRY("layout is 4", c.layout = (enum tern_layout)4);
	TRY("TERN_BY_SOURCE", c.layout = TERN_BY_SOURCE);
	TRY("reduce is 0", c.reduce = (enum tern_reduce)0);
	TRY("weights is 3", c.weights = (enum tern_weights)3);
	TRY("hidden is 0", c.hidden = 0);
	TRY("multiple of 16 bytes", c.hidden = 9);
	TRY("hidden is 4294967295", c.hidden = UINT32_MAX);
	TRY("nr_experts is 0", c.nr_experts = 0);
	TRY("topk is 0", c.topk = 0);
	TRY("topk is 33", c.topk = 33);
	TRY("topk is 11 of 10 experts", c.topk = 11);
	TRY("max_tokens is 0", c.max_tokens = 0);
	TRY("max_tokens", c.max_tokens = UINT32_MAX);
	TRY("x_dtype is 0", c.x_dtype = (enum tern_dtype)0);
	TRY("x_dtype is 6", c.x_dtype = (enum tern_dtype)6);
	TRY("only BF16, FP16 and FP32 are converted", c.x_dtype = TERN_FP32);
	TRY("scale 0 with dispatch_dtype 4", c.dispatch_dtype = TERN_FP8_E4M3);
	TRY("scale 1 with dispatch_dtype 1", c.scale = TERN_SCALE_FP32);
	TRY("payload_bytes is 16", c.payload_bytes = 16);
	TRY("payload_bytes is 0", c.x_dtype = c.dispatch_dtype = TERN_BYTES);
	TRY("multiple of 16", c.x_dtype = c.dispatch_dtype = TERN_BYTES; c.payload_bytes = 20);
	TRY("combine_dtype is 4", c.combine_dtype = TERN_FP8_E4M3);
	TRY("nr_slots is 0", c.nr_slots = 0);
	TRY("nr_slots is 17", c.nr_slots = 17);
	TRY("alignment is 0", c.alignment = 0);
	TRY("low-latency mode takes only 0", c.mode = TERN_LOW_LATENCY; c.capacity = 5);
	TRY("replica_ranks is 3; 1 to 2", c.replica_ranks = 3);
	TRY("replica_ranks is 0", c.replica_ranks = 0);
	TRY("wait_ms", c.wait_ms = -1);
	TRY("replicas is 3; 0 to 2 are possible", c.replicas = 3);
	TRY("placement.logical[1] is 10", c.placement = (struct tern_placement){.nr_physical = 2,
						  .logical = (const int32_t[]){0, 10}});
	TRY("placement.rank[1] is 2",
		c.placement = (struct tern_placement){.nr_physical = 10,
			.rank = (const int32_t[]){0, 2, 0, 0, 0, 0, 0, 0, 0, 0}});
	TRY("expert 2 is on no rank", c.placement = (struct tern_placement){.nr_physical = 2,
					      .logical = (const int32_t[]){0, 1}});
	TRY("no table", c.placement = (struct tern_placement){.nr_physical = 11});
	TRY("address space", c.max_tokens = 1u << 24; c.hidden = 1u << 24);
	/* Of results alone: 2 slots of 3 * 2^24, 2^26 bytes each. */
	TRY("need 67554", c.max_tokens = 1u << 24; c.combine_dtype = TERN_FP32; c.hidden = 1u << 24;
		c.x_dtype = c.dispatch_dtype = TERN_BYTES; c.payload_bytes = 16);
	/* Times five experts it is 4. */
	TRY("capacity is 3689348814741910324; 0 (the worst case) to 4294967295",
		c.capacity = UINT64_MAX / 5 + 1;
		c.mode = TERN_HIGH_THROUGHPUT; c.layout = TERN_PADDED);
	TRY("payload_bytes is 4294967280; 0 to", c.payload_bytes = UINT32_MAX - 15;
		c.x_dtype = c.dispatch_dtype = TERN_BYTES);
#undef TRY
	if (!rc && moe)
		rc = rank_fails(rank, "a refused tern_moe_create has set moe");
	rc = rc ? rc
		: refused(rank, "group NULL", tern_moe_create(NULL, good, &moe), TERN_ERR_INVALID,
			  "NULL");
	return rc ? rc
		  : refused(rank, "moe NULL", tern_moe_create(rank->group, good, NULL),
			    TERN_ERR_INVALID, "NULL");
}

static void settings_body(struct rank *rank)
{
	const struct job *job = rank->ctx;

	if (!try_configs(rank, &job->config))
		run_rounds(rank, job, 2); /* the group is none the worse for it */
}

/* What is taken has room for all that was asked for, and works. */
static int try_taken(struct rank *rank, tern_moe *moe, const struct tern_moe_config *c)
{
	static uint8_t x[64 << 20] __attribute__((aligned(64)));
	const int32_t ids[TERN_MAX_TOPK] = {0, 1, 2};
	struct tern_dispatch args = {.size = sizeof(args), .nr_tokens = 1, .x = x, .topk_ids = ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_memory memory = {.size = sizeof(memory)};
	bool opaque = c->x_dtype == TERN_BYTES;
	double row = opaque ? c->payload_bytes : 2.0 * c->hidden, tokens = c->max_tokens;
	double lists = c->layout == TERN_PADDED ? 10 : 1;
	double rows = c->capacity ? (double)c->capacity * lists : tokens;
	double results = tokens * (c->reduce == TERN_REDUCE_HOME ? 3 : 1) * c->hidden * 2;
	bool low = c->mode == TERN_LOW_LATENCY;

	if (tern_moe_memory(moe, &memory))
		return rank_fails(rank, "memory: %s", tern_last_error());
	if ((double)memory.output_bytes < c->nr_slots * rows * row ||
		(double)memory.window_bytes < c->nr_slots * (results + (low ? tokens * row : 0)))
		return rank_fails(rank, "taken, with too little memory: %s", tern_last_error());
	if (tern_dispatch(moe, &args, &received) == TERN_ERR_CAPACITY)
		return 0;
	if (received.nr_rows != (c->layout == TERN_BY_SOURCE ? 1 : 3) || tern_release(moe, 0))
		return rank_fails(rank, "%llu rows came: %s", (unsigned long long)received.nr_rows,
			tern_last_error());
	return 0;
}

static int try_size(struct rank *rank, const struct tern_moe_config *c)
{
	tern_moe *moe = NULL;
	int rc = tern_moe_create(rank->group, c, &moe);

	if (!rc)
		rc = try_taken(rank, moe, c);
	else if (rc == TERN_ERR_INVALID && !strpbrk(tern_last_error(), "0123456789"))
		rc = rank_fails(rank, "refused without figures: %s", tern_last_error());
	else if (rc == TERN_ERR_INVALID || rc == TERN_ERR_NOMEM || rc == TERN_ERR_SYSTEM)
		rc = 0;
	tern_moe_destroy(moe);
	return rc;
}

/* Near where 16, 24, 32 and 64 bits end, in each setting that is a size. */
static int try_sizes(struct rank *rank, const struct tern_moe_config *good)
{
	static const uint64_t sizes[] = {1ull << 16, 1ull << 24, 1ull << 26, 1ull << 31, 1ull << 32,
		1ull << 63, 0, UINT64_MAX / 10 + 1};
	int nr = scaled(2 * sizeof(sizes) / sizeof(sizes[0])); /* a sanitizer's memory is slow */
	struct tern_moe_config c;
	int rc = 0;

	for (int i = 0; i < nr && !rc; i++) {
		uint64_t size = sizes[i / 2] - 16 * (i % 2);

#define TRY(set) (c = *good, (set), rc = rc ? rc : try_size(rank, &c))
		TRY(c.capacity = size);
		TRY((c.capacity = size, c.nr_slots = 16));
		TRY(c.payload_bytes = c.x_dtype == TERN_BYTES ? (uint32_t)size : 0);
		TRY(c.hidden = (uint32_t)size);
		TRY(c.max_tokens = (uint32_t)size);
		TRY(c.nr_experts = (uint32_t)size);
		TRY(c.alignment = (uint32_t)size);
		TRY(c.topk = (uint32_t)size);
		TRY((c.chunk_bytes = (uint32_t)size, c.nr_chunks = 512));
#undef TRY
	}
	return rc;
}

static void sizes_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct tern_moe_config c = job->config;

	c.placement = (struct tern_placement){0};
	if (try_sizes(rank, &c))
		return;
	c.x_dtype = c.dispatch_dtype = TERN_BYTES;
	c.payload_bytes = 48;
	if (!try_sizes(rank, &c))
		run_rounds(rank, job, 2);
}

static void large_sizes(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++)
			run_on_shape(sizes_body, 1, &(struct shape){mode, layout, false});
}

static void bad_settings(void **state)
{
	(void)state;
	run_on_both_modes(settings_body);
}

/* One rank's bad setting is refused on all, and they learn whose it was. */
static void one_bad_setting_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct tern_moe_config c = job->config;
	tern_moe *moe = NULL;

	if (rank->rank == 1)
		c.topk = 0;
	if (!refused(rank, "create", tern_moe_create(rank->group, &c, &moe), TERN_ERR_INVALID,
		    rank->rank ? "topk is 0" : "rank 1: topk is 0"))
		run_rounds(rank, job, 2);
}

static void one_bad_setting(void **state)
{
	(void)state;
	run_on_both_modes(one_bad_setting_body);
}

static int disagree(struct rank *rank, const struct tern_moe_config *c, const char *text)
{
	tern_moe *moe = NULL;

	return refused(rank, text, tern_moe_create(rank->group, c, &moe), TERN_ERR_MISMATCH, text);
}

static void disagreement_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	int32_t ranks[10] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
	struct tern_moe_config c;
	bool other = rank->rank == 1;
	int rc = 0;

#define TRY(text, set)                                                                             \
	do {                                                                                       \
		c = job->config;                                                                   \
		if (other)                                                                         \
			set;                                                                       \
		rc = rc ? rc : disagree(rank, &c, text);                                           \
	} while (0)
	TRY("mode: ", c.mode = 3 - c.mode);
	TRY("layout: 2 on rank 0; 1 on rank 1", c.layout = TERN_PADDED);
	TRY("reduce: 1 on rank 0; 2 on rank 1", c.reduce = TERN_REDUCE_EXPERT);
	TRY("weights: ", c.weights = TERN_WEIGHTS_PASS);
	TRY("hidden: 64 on rank 0; 128 on rank 1", c.hidden = 128);
	TRY("nr_experts: 10 on rank 0; 11 on rank 1", c.nr_experts = 11);
	TRY("topk: 3 on rank 0; 2 on rank 1", c.topk = 2);
	TRY("max_tokens: 8 on rank 0; 9 on rank 1", c.max_tokens = 9);
	TRY("x_dtype: 1 on rank 0; 2 on rank 1", c.x_dtype = c.dispatch_dtype = TERN_FP16);
	TRY("combine_dtype: 1 on rank 0; 3 on rank 1", c.combine_dtype = TERN_FP32);
	TRY("nr_slots: 2 on rank 0; 1 on rank 1", c.nr_slots = 1);
	TRY("alignment: 1 on rank 0; 16 on rank 1", c.alignment = 16);
	TRY("replicas: 0 on rank 0; 1 on rank 1", c.replicas = TERN_REPLICAS_IN_TURN);
	TRY("placement tables", (ranks[0] = 1, c.placement = (struct tern_placement){
						       .nr_physical = 10, .rank = ranks}));
	TRY("replica_ranks: 1 on rank 0; 2 on rank 1", c.replica_ranks = 2);
	TRY("first_epoch: 1 on rank 0; 7 on rank 1", c.first_epoch = 7);
#undef TRY
	if (!rc)
		run_rounds(rank, job, 2);
}

static void disagreements(void **state)
{
	(void)state;
	run_on_both_modes(disagreement_body);
}

/* ---- what is asked of an exchange ------------------------------------------------------------ */

static void questions_body(struct rank *rank)
{
	struct tern_memory memory = {.size = 4};
	struct tern_stats stats = {.size = sizeof(stats) + 4};
	struct tern_wait_report report = {.size = 0};
	uint64_t load[11];
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	rc = rc ? rc
		: refused(rank, "memory", tern_moe_memory(r.moe, &memory), TERN_ERR_INVALID,
			  "tern_memory.size is 4");
	rc = rc ? rc
		: refused(rank, "stats", tern_moe_stats(r.moe, &stats), TERN_ERR_INVALID,
			  "tern_stats.size");
	rc = rc ? rc
		: refused(rank, "report", tern_moe_wait_report(r.moe, &report), TERN_ERR_INVALID,
			  "tern_wait_report.size is 0");
	rc = rc ? rc
		: refused(rank, "load", tern_moe_expert_load(r.moe, load, 11), TERN_ERR_INVALID,
			  "11 for 10 experts");
	rc = rc ? rc
		: refused(rank, "load", tern_moe_expert_load(r.moe, NULL, 10), TERN_ERR_INVALID,
			  "NULL");
	rc = rc ? rc
		: refused(rank, "local", tern_moe_local_expert(r.moe, 5), TERN_ERR_INVALID,
			  "local expert 5 is none of its 5");
	rc = rc ? rc : refused(rank, "wait", tern_moe_set_wait(r.moe, -1), TERN_ERR_INVALID, "-1");
	rc = rc ? rc
		: refused(rank, "leave", tern_group_destroy(rank->group), TERN_ERR_STATE,
			  "1 exchanges");
	rc = rc ? rc
		: refused(rank, "node", tern_group_node(rank->group, 2), TERN_ERR_INVALID,
			  "rank 2 of 2");
	rc = rc ? rc
		: refused(rank, "path", tern_group_path(rank->group, -1), TERN_ERR_INVALID,
			  "rank -1 of 2");
	rc = rc ? rc
		: refused(rank, "gather", tern_group_allgather(rank->group, NULL, load, 8),
			  TERN_ERR_INVALID, "NULL");
	for (uint64_t i = 0; i < 2 && !rc; i++)
		rc = run_round(&r, i);
	round_close(&r);
}

static void bad_questions(void **state)
{
	(void)state;
	assert_int_equal(tern_moe_nr_local(NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_moe_memory(NULL, NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_moe_stats(NULL, NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_moe_stats_reset(NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_moe_set_wait(NULL, 0), TERN_ERR_INVALID);
	assert_int_equal(tern_moe_wait_report(NULL, NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_group_rank(NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_group_nr_ranks(NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_group_nr_nodes(NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_release(NULL, 0), TERN_ERR_INVALID);
	assert_int_equal(tern_dispatch(NULL, NULL, NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_combine(NULL, NULL, NULL, 0), TERN_ERR_INVALID);
	assert_int_equal(tern_moe_destroy(NULL), 0);
	assert_int_equal(tern_group_destroy(NULL), 0);
	run_on_both_modes(questions_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ids_out_of_range),
		cmocka_unit_test(duplicate_ids),
		cmocka_unit_test(not_duplicates),
		cmocka_unit_test(bad_arguments),
		cmocka_unit_test(refused_in_the_second_half),
		cmocka_unit_test(refused_while_going_on),
		cmocka_unit_test(halves_out_of_order),
		cmocka_unit_test(bad_settings),
		cmocka_unit_test(large_sizes),
		cmocka_unit_test(one_bad_setting),
		cmocka_unit_test(disagreements),
		cmocka_unit_test(bad_questions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
