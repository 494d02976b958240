/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that move between rounds, and which replica a route goes to. */
#include "tests/exchange/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "exchange/state.h"

static void placed_job(struct job *job, uint32_t nr_ranks, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = nr_ranks;
	job->nr_tokens = job->config.max_tokens = 12;
	job->config.hidden = 64;
	job->config.nr_experts = 10;
	job->config.topk = 4;
	job->config.mode = mode;
	job->config.nr_slots = 3;
	job->nr_redundant = 5;
	job->place_in = 2;
	job->input = INPUT_RANDOM;
	job->routing.uneven = true;
	job->routing.drop = 0.1;
}

static void open_job(struct job *job)
{
	struct reason why = {""};

	if (job_open(job, &why))
		fail_msg("job: %s", why.text);
}

static void expect_right(struct job *job, rank_main body, void *ctx)
{
	const char *failure = run_ranks((int)job->nr_ranks, body, ctx);

	if (failure)
		fail_msg("ranks %u of %u, mode %d, layout %d, reduce %d, replicas %u: %s",
			job->nr_ranks, job->config.replica_ranks, (int)job->config.mode,
			(int)job->config.layout, (int)job->config.reduce, job->config.replicas,
			failure);
	job_close(job);
}

#define BOTH_MODES(mode)                                                                           \
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)

static void in_both_modes(uint32_t nr_ranks, uint32_t place_in, rank_main body)
{
	BOTH_MODES(mode)
	{
		struct job job;

		placed_job(&job, nr_ranks, mode);
		job.place_in = place_in;
		open_job(&job);
		expect_right(&job, body, &job);
	}
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void flows(struct rank *rank)
{
	run_flow(rank, rank->ctx);
}

static void expect_flow(struct job *job)
{
	struct flow flow = {
		.job = job, .rounds = scaled(24), .seed = job->seed, .release_in = 5, .sleeper = 1};

	open_job(job);
	expect_right(job, flows, &flow);
}

/* With rounds of several versions under way at a time. */
static void experts_move(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++)
		for (uint32_t place_in = 1; place_in <= 3; place_in += 2) {
			struct job job;

			placed_job(&job, 4, mode);
			job.config.layout = layout;
			job.place_in = place_in;
			job.seed = place_in + 7 * layout;
			job.spread = layout != TERN_PADDED;
			if (layout == TERN_BY_SOURCE) {
				job.config.reduce = TERN_REDUCE_EXPERT;
				job.config.weights = TERN_WEIGHTS_PASS;
			}
			expect_flow(&job);
		}
}

static void experts_move_in_groups(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (uint32_t replicas = TERN_REPLICAS_AUTO; replicas <= TERN_REPLICAS_LEAST_LOADED;
		replicas++) {
		struct job job;

		placed_job(&job, 4, mode);
		job.config.replica_ranks = 2;
		job.config.reduce = TERN_REDUCE_EXPERT;
		job.config.replicas = replicas;
		job.seed = replicas + 1;
		expect_flow(&job);
	}
}

/* Every rank finds in its places what the round's tables say, and the sums are the same bits. */
static void bits(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct round r;

	if (round_open(&r, rank, job, NULL)) {
		round_close(&r);
		return;
	}
	for (uint64_t i = 0; i < 6 && !run_round(&r, i); i++)
		for (uint32_t p = 0, local = 0; p < job_nr_physical(job); p++)
			if (r.reference->rank[p] == rank->rank &&
				tern_moe_local_expert(r.moe, local++) != r.reference->logical[p])
				rank_fails(rank, "local expert %u is %d in version %u", local - 1,
					tern_moe_local_expert(r.moe, local - 1),
					r.received.version);
	round_close(&r);
}

static void places_are_told(void **state)
{
	(void)state;
	in_both_modes(3, 1, bits);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

struct strays {
	struct job job;
	uint32_t version; /* that rank 2 has, where the others have 1 */
	bool table;       /* the tables differ */
};

static void expect_mismatch(struct round *r, const struct strays *s, int rc)
{
	const char *expected = r->rank->rank == 2 ? "rank 0 by" : "rank 2 by";
	char version[64];

	snprintf(version, sizeof(version), "%sversion %u", s->table ? "another " : "",
		r->rank->rank == 2 ? 1 : s->version);
	if (rc != TERN_ERR_MISMATCH || !strstr(tern_last_error(), expected) ||
		!strstr(tern_last_error(), version))
		rank_fails(r->rank, "%d (%s), without %s or %s", rc, tern_last_error(), expected,
			version);
	rc = tern_moe_status(r->moe);
	if (rc != TERN_ERR_MISMATCH)
		rank_fails(r->rank, "the exchange went on: %d", rc);
}

static void strays(struct rank *rank)
{
	const struct strays *s = rank->ctx;
	bool strayed = rank->rank == 2;
	int32_t logical[64];
	struct tern_dispatch args;
	struct round r;
	int rc;

	if (round_open(&r, rank, &s->job, NULL) || run_round(&r, 0)) {
		round_close(&r);
		return;
	}
	job_place(&s->job, strayed && s->table ? 2 : 1, logical);
	rc = tern_moe_place(r.moe, strayed ? s->version : 1, logical, job_nr_physical(&s->job));
	if (rc)
		rank_fails(rank, "tern_moe_place: %s", tern_last_error());
	r.number = 1;
	round_arguments(&r, &args);
	r.received = (struct tern_received){.size = sizeof(r.received)};
	expect_mismatch(&r, s, tern_dispatch(r.moe, &args, &r.received));
	ranks_meet(rank);
	round_close(&r);
}

static void ranks_that_differ(void **state)
{
	static const struct {
		uint32_t version;
		bool table;
	} cases[] = {{0, false}, {7, false}, {1, true}};

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct strays s = {.version = cases[i].version, .table = cases[i].table};

		placed_job(&s.job, 4, mode);
		s.job.place_in = 1000;
		open_job(&s.job);
		expect_right(&s.job, strays, &s);
	}
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuses(
	struct round *r, const char *text, int code, const int32_t *logical, uint32_t nr)
{
	int rc = tern_moe_place(r->moe, 9, logical, nr);

	if (rc != code || !strstr(tern_last_error(), text))
		rank_fails(r->rank, "%d (%s), not %d with %s", rc, tern_last_error(), code, text);
}

/* A dispatch that waits for counts has to go on first. */
static void refuse_unfinished(struct round *r, const int32_t *logical, uint32_t nr)
{
	struct tern_dispatch args;

	r->number = 1;
	if (r->rank->rank == 0) {
		round_arguments(r, &args);
		tern_moe_set_wait(r->moe, 0);
		if (tern_dispatch_send(r->moe, &args) != TERN_ERR_TIMEOUT)
			rank_fails(r->rank, "nobody was waited for");
		refuses(r, "tern_moe_place on slot 1, whose next call is dispatch_send again",
			TERN_ERR_STATE, logical, nr);
		tern_moe_set_wait(r->moe, 60000);
	}
	ranks_meet(r->rank);
}

static void refusals(struct rank *rank)
{
	const struct job *job = rank->ctx;
	uint32_t nr = job_nr_physical(job);
	int32_t logical[64];
	struct round r;

	if (round_open(&r, rank, job, NULL) || run_round(&r, 0)) {
		round_close(&r);
		return;
	}
	if (tern_moe_place(NULL, 1, logical, nr) != TERN_ERR_INVALID)
		rank_fails(rank, "moe is NULL, and it was placed");
	job_place(job, 5, logical);
	refuses(&r, "that is NULL", TERN_ERR_INVALID, NULL, nr);
	refuses(&r, "a table of 14 places; the exchange has 15", TERN_ERR_INVALID, logical, nr - 1);
	refuses(&r, "a table of 16 places", TERN_ERR_INVALID, logical, nr + 1);
	logical[3] = 10;
	refuses(&r, "logical[3] is 10; experts are 0 to 9", TERN_ERR_INVALID, logical, nr);
	logical[3] = -1;
	refuses(&r, "logical[3] is -1", TERN_ERR_INVALID, logical, nr);
	for (uint32_t p = 0; p < nr; p++)
		logical[p] = (int32_t)p % 9;
	refuses(&r, "expert 9 is on no rank", TERN_ERR_INVALID, logical, nr);
	job_place(job, 5, logical);
	r.slot = 1;
	if (job->config.mode == TERN_HIGH_THROUGHPUT)
		refuse_unfinished(&r, logical, nr);
	run_round(&r, 1);
	tern_moe_leave(r.moe);
	refuses(&r, "left this exchange", TERN_ERR_STATE, logical, nr);
	ranks_meet(rank);
	round_close(&r);
}

static void bad_tables(void **state)
{
	(void)state;
	in_both_modes(2, 1000, refusals);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* A plan is of its version: refused while it is another, and right when it is again. */
static void older_plans(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct tern_combine combine;
	struct tern_dispatch args;
	struct round r;
	int rc = round_open(&r, rank, job, NULL);

	r.number = r.routes = 1;
	rc = rc ? rc : round_dispatch(&r);
	if (!rc && tern_plan_create(r.moe, r.slot, &r.plan))
		rc = rank_fails(rank, "tern_plan_create: %s", tern_last_error());
	rc = rc ? rc : round_combine(&r);
	r.routes = 2;
	if (rc || round_place(&r)) {
		rank_fails(rank, "%s", tern_last_error());
		round_close(&r);
		return;
	}
	args = (struct tern_dispatch){.size = sizeof(args),
		.nr_tokens = r.reference->nr_tokens[rank->rank],
		.x = r.buffers->x,
		.plan = r.plan};
	if (tern_dispatch_send(r.moe, &args) != TERN_ERR_STATE ||
		!strstr(tern_last_error(), "by version 1 of the placement, and now it is 2"))
		rank_fails(rank, "a dispatch with an older plan: %s", tern_last_error());
	combine = (struct tern_combine){.size = sizeof(combine), .y = r.buffers->y, .plan = r.plan};
	if (tern_combine_send(r.moe, &combine) != TERN_ERR_STATE ||
		!strstr(tern_last_error(), "by version 1"))
		rank_fails(rank, "a combine of an older plan: %s", tern_last_error());
	r.routes = 1;
	r.number = 5;
	if (!round_dispatch(&r))
		round_combine(&r);
	r.number = 6;
	r.replays = true;
	round_combine(&r);
	round_close(&r);
}

static void plans_are_of_a_version(void **state)
{
	(void)state;
	in_both_modes(3, 1, older_plans);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_move),
		cmocka_unit_test(experts_move_in_groups),
		cmocka_unit_test(places_are_told),
		cmocka_unit_test(ranks_that_differ),
		cmocka_unit_test(bad_tables),
		cmocka_unit_test(plans_are_of_a_version),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
