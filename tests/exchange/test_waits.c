/* SPDX-License-Identifier: Apache-2.0 */
/* A wait that expires says who waited for whom, in which phase and epoch, with which counts, and
 * goes on when it is repeated. A peer that leaves is named at once. */
#include "tests/exchange/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "tests/late.h"

#define RANKS 4
#define SHORT_MS 20
#define LONG_MS 60000
#define EPOCH 41 /* of the round that is disturbed; one has gone before */
#define WELL_BEFORE_NS 20000000000ull

static bool is_late(const struct rank *rank)
{
	return rank->rank == 1 || rank->rank == 3;
}

static void make_job(struct job *job, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = RANKS;
	job->nr_tokens = job->config.max_tokens = 8;
	job->config.hidden = 32;
	job->config.nr_experts = 12;
	job->config.topk = 3;
	job->config.mode = mode;
	job->config.nr_slots = 2;
	job->config.first_epoch = EPOCH - 1;
	job->config.wait_ms = LONG_MS;
	job->input = INPUT_RANDOM;
	assert_int_equal(job_open(job, NULL), 0);
}

static void run(enum tern_mode mode, rank_main body)
{
	struct job job;
	const char *failure;

	make_job(&job, mode);
	failure = run_ranks(RANKS, body, &job);
	job_close(&job);
	if (failure)
		fail_msg("mode %d: %s", (int)mode, failure);
}

static void run_both(rank_main body)
{
	run(TERN_LOW_LATENCY, body);
	run(TERN_HIGH_THROUGHPUT, body);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The first round of slot 1 has gone by; the second is next. */
static int open_disturbed(struct round *r, struct rank *rank)
{
	int rc = round_open(r, rank, rank->ctx, NULL);

	rc = rc ? rc : run_round(r, 1);
	r->number = 3;
	r->slot = 1;
	return rc;
}

/* ---- time-outs ------------------------------------------------------------------------------- */

static int check_report(struct round *r, enum tern_phase phase)
{
	struct tern_wait_report p = {.size = sizeof(p)};

	if (tern_moe_wait_report(r->moe, &p))
		return rank_fails(r->rank, "no report: %s", tern_last_error());
	if (p.rank != r->rank->rank || p.peer != 1 || p.nr_missing != 2 || p.slot != 1 ||
		p.phase != (int)phase || p.epoch_expected != EPOCH ||
		p.epoch_seen != (phase == TERN_PHASE_COUNTS ? EPOCH - 2u : EPOCH - 1u) ||
		p.arrived != RANKS - 2 || p.expected != RANKS || p.error != TERN_ERR_TIMEOUT ||
		p.count_seen != 0 || p.waited_ns < SHORT_MS * 1000000ull)
		return rank_fails(r->rank,
			"report: rank %d peer %d missing %u slot %u phase %d epoch %u, seen %u, "
			"arrived %llu of %llu, "
			"error %d, waited %llu ns",
			p.rank, p.peer, p.nr_missing, p.slot, p.phase, p.epoch_expected,
			p.epoch_seen, (unsigned long long)p.arrived, (unsigned long long)p.expected,
			p.error, (unsigned long long)p.waited_ns);
	return 0;
}

static int check_text(struct round *r, enum tern_phase phase)
{
	static const char *const names[] = {"counts", "dispatch", "combine"};
	unsigned int seen = phase == TERN_PHASE_COUNTS ? EPOCH - 2 : EPOCH - 1;
	char text[128];

	snprintf(text, sizeof(text),
		"in %s (slot 1, epoch %d) with 2 of 4 ranks missing: rank 1 (at epoch %u), rank 3 "
		"(at epoch %u)",
		names[phase], EPOCH, seen, seen);
	return strstr(tern_last_error(), text)
		       ? 0
		       : rank_fails(r->rank, "\"%s\" does not say \"%s\"", tern_last_error(), text);
}

/* Twice, as a call that timed out is to be repeated. */
static int expect_timeout(struct round *r, enum tern_phase phase, int (*half)(struct round *))
{
	int rc = 0;

	tern_moe_set_wait(r->moe, SHORT_MS);
	for (int i = 0; i < 2 && !rc; i++) {
		int got = half(r);

		if (got != TERN_ERR_TIMEOUT)
			return rank_fails(r->rank, "returned %d, not TERN_ERR_TIMEOUT (%s)", got,
				tern_last_error());
		rc = check_text(r, phase);
		rc = rc ? rc : check_report(r, phase);
	}
	tern_moe_set_wait(r->moe, LONG_MS);
	return rc;
}

static int try_recv(struct round *r)
{
	struct tern_received received = {.size = sizeof(received)};

	return tern_dispatch_recv(r->moe, r->slot, &received);
}

static int try_combine_recv(struct round *r)
{
	return tern_combine_recv(r->moe, r->slot, r->buffers->out, 0);
}

/* The rest of the round, on all ranks: nothing was lost by waiting. */
static int finish(struct round *r, int from)
{
	int rc = from <= 0 ? round_dispatch_send(r) : 0;

	rc = rc || from > 1 ? rc : round_dispatch_recv(r);
	rc = rc || from > 2 ? rc : round_combine_send(r);
	rc = rc || from > 3 ? rc : round_combine_recv(r);
	for (uint64_t i = 4; i < 8 && !rc; i++)
		rc = run_round(r, i);
	return rc;
}

static void late_dispatch_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	bool asks = job->config.mode == TERN_HIGH_THROUGHPUT;
	struct round r;
	int rc = open_disturbed(&r, rank);

	if (!rc && !is_late(rank)) {
		rc = asks ? 0 : round_dispatch_send(&r);
		rc = rc ? rc
			: expect_timeout(&r, asks ? TERN_PHASE_COUNTS : TERN_PHASE_DISPATCH,
				  asks ? round_try_send : try_recv);
	}
	rc = rc ? rc : ranks_meet(rank);
	rc = rc ? rc : finish(&r, is_late(rank) || asks ? 0 : 1);
	round_close(&r);
}

static void late_in_dispatch(void **state)
{
	(void)state;
	run_both(late_dispatch_body);
}

/* Counts are out, rows are not. */
static void late_rows_body(struct rank *rank)
{
	struct round r;
	int rc = open_disturbed(&r, rank);

	if (!rc && is_late(rank)) {
		tern_moe_set_wait(r.moe, 0);
		rc = round_try_send(&r) == TERN_ERR_TIMEOUT
			     ? 0
			     : rank_fails(rank, "no time-out before the others have called");
		tern_moe_set_wait(r.moe, LONG_MS);
	}
	rc = rc ? rc : ranks_meet(rank);
	if (!rc && !is_late(rank)) {
		rc = round_dispatch_send(&r);
		rc = rc ? rc : expect_timeout(&r, TERN_PHASE_DISPATCH, try_recv);
	}
	rc = rc ? rc : ranks_meet(rank);
	rc = rc ? rc : finish(&r, is_late(rank) ? 0 : 1);
	round_close(&r);
}

static void late_with_rows(void **state)
{
	(void)state;
	run(TERN_HIGH_THROUGHPUT, late_rows_body);
}

static void late_combine_body(struct rank *rank)
{
	struct round r;
	int rc = open_disturbed(&r, rank);

	rc = rc ? rc : round_dispatch_send(&r);
	rc = rc ? rc : round_dispatch_recv(&r);
	if (!rc && !is_late(rank)) {
		rc = round_combine_send(&r);
		rc = rc ? rc : expect_timeout(&r, TERN_PHASE_COMBINE, try_combine_recv);
	}
	rc = rc ? rc : ranks_meet(rank);
	rc = rc ? rc : finish(&r, is_late(rank) ? 2 : 3);
	round_close(&r);
}

static void late_in_combine(void **state)
{
	(void)state;
	run_both(late_combine_body);
}

static void late_release_body(struct rank *rank)
{
	struct round r;
	int rc = open_disturbed(&r, rank);

	rc = rc ? rc : round_dispatch_send(&r);
	rc = rc ? rc : round_dispatch_recv(&r);
	if (!rc && !is_late(rank)) {
		rc = round_release(&r);
		rc = rc ? rc : expect_timeout(&r, TERN_PHASE_COMBINE, round_try_send);
	}
	rc = rc ? rc : ranks_meet(rank);
	rc = rc || !is_late(rank) ? rc : round_release(&r);
	r.number = 5;
	rc = rc ? rc : finish(&r, 0);
	round_close(&r);
}

static void late_in_release(void **state)
{
	(void)state;
	run_both(late_release_body);
}

static void no_report_body(struct rank *rank)
{
	struct tern_wait_report report = {.size = sizeof(report)};
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	rc = rc ? rc : run_round(&r, 0);
	if (!rc && (tern_moe_wait_report(r.moe, &report) || report.peer != -1))
		rank_fails(rank, "a report of peer %d without a failed wait", report.peer);
	round_close(&r);
}

static void no_report_without_failure(void **state)
{
	(void)state;
	run_both(no_report_body);
}

/* ---- ranks that leave ------------------------------------------------------------------------ */

/* How far rank 1 goes in the disturbed round before it destroys its exchange, or leaves it and
 * keeps its memory. */
struct departure {
	struct job job;
	int halves;
	bool keeps;
};

/* The half in which the others notice, by how many halves rank 1 has done: its word is missing from
 * there on. */
static int do_half(struct round *r, int half)
{
	struct tern_combine combine = {.size = sizeof(combine), .slot = r->slot};

	switch (half) {
	case 0:
		return round_try_send(r);
	case 1:
		r->received = (struct tern_received){.size = sizeof(r->received)};
		return tern_dispatch_recv(r->moe, r->slot, &r->received);
	case 2:
		combine.y = r->received.x; /* BF16 rows as they came: nobody will add them up */
		return tern_combine_send(r->moe, &combine);
	default:
		return try_combine_recv(r);
	}
}

static int expect_departure(struct round *r, uint64_t from_ns, int rc)
{
	struct tern_wait_report report = {.size = sizeof(report)};

	if (rc != TERN_ERR_PEER_LEFT)
		return rank_fails(
			r->rank, "returned %d, not TERN_ERR_PEER_LEFT (%s)", rc, tern_last_error());
	if (passed_ns(from_ns) > WELL_BEFORE_NS)
		return rank_fails(r->rank, "noticed after %llu ms", passed_ns(from_ns) / 1000000);
	if (tern_moe_wait_report(r->moe, &report) || report.error != TERN_ERR_PEER_LEFT ||
		report.epoch_expected != EPOCH)
		return rank_fails(r->rank, "report of error %d, epoch %u", report.error,
			report.epoch_expected);
	/* Rank 1 left of its own will; a rank may see first that another one gave up because of it.
	 */
	if (!strstr(tern_last_error(), "left the exchange") ||
		(report.peer == 1 && !strstr(tern_last_error(), "rank 1 left the exchange")))
		return rank_fails(r->rank, "\"%s\", peer %d", tern_last_error(), report.peer);
	return 0;
}

/* The exchange is over: every call says so again. */
static int expect_over(struct round *r)
{
	for (int half = 0; half < 4; half++)
		if (do_half(r, half) != TERN_ERR_PEER_LEFT ||
			!strstr(tern_last_error(), "left the exchange"))
			return rank_fails(
				r->rank, "afterwards, half %d: %s", half, tern_last_error());
	if (tern_release(r->moe, 1) != TERN_ERR_PEER_LEFT)
		return rank_fails(r->rank, "afterwards, release: %s", tern_last_error());
	return 0;
}

/* What was received stays readable, and nothing else can be done with it. */
static int leave(struct round *r, int halves)
{
	const struct tern_row *rows = halves == 2 ? r->received.rows : NULL;
	struct tern_row first =
		rows && r->received.nr_rows ? rows[r->received.offsets[0]] : (struct tern_row){0};

	if (tern_moe_leave(r->moe) || tern_moe_leave(r->moe))
		return rank_fails(r->rank, "leaving: %s", tern_last_error());
	for (int half = 0; half < 4; half++)
		if (do_half(r, half) != TERN_ERR_STATE ||
			!strstr(tern_last_error(), "tern_moe_leave"))
			return rank_fails(
				r->rank, "having left, half %d: %s", half, tern_last_error());
	if (rows && r->received.nr_rows &&
		memcmp(rows + r->received.offsets[0], &first, sizeof(first)))
		return rank_fails(r->rank, "having left, its rows changed");
	return 0;
}

static void departure_body(struct rank *rank)
{
	struct departure *d = rank->ctx;
	uint64_t from_ns;
	struct round r;
	int rc, half = 0;

	rank->ctx = &d->job;
	rc = open_disturbed(&r, rank);
	from_ns = now_ns();
	if (rank->rank == 1) {
		for (half = 0; half < d->halves && !rc; half++)
			rc = do_half(&r, half);
		if (rc)
			rank_fails(rank, "half %d: %s", half - 1, tern_last_error());
		if (d->keeps && !rc)
			leave(&r, d->halves);
		if (!d->keeps)
			round_close(&r);
		run_rounds(rank, &d->job, 0); /* meets the others in a new exchange */
		if (d->keeps)
			round_close(&r);
		return;
	}
	for (half = 0; half < 4 && !rc; half++)
		rc = do_half(&r, half);
	if (!*rank->failure)
		rc = expect_departure(&r, from_ns, rc);
	rc = rc ? rc : expect_over(&r);
	round_close(&r);
	run_rounds(rank, &d->job, 0);
}

static void departures(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (int i = 0; i < 6; i++) {
			struct departure d = {.halves = i / 2, .keeps = i % 2};
			const char *failure;

			make_job(&d.job, mode);
			failure = run_ranks(RANKS, departure_body, &d);
			job_close(&d.job);
			if (failure)
				fail_msg("mode %d, after %d halves, %s: %s", (int)mode, d.halves,
					d.keeps ? "left" : "destroyed", failure);
		}
}

/* Whoever has sent all of its results may go: what it sent counts. */
static void last_word_body(struct rank *rank)
{
	struct round r;
	int rc = open_disturbed(&r, rank);

	rc = rc ? rc : round_dispatch_send(&r);
	rc = rc ? rc : round_dispatch_recv(&r);
	rc = rc ? rc : round_combine_send(&r);
	if (is_late(rank))
		round_close(&r);
	rc = rc ? rc : ranks_meet(rank);
	if (is_late(rank))
		return;
	rc = rc ? rc : round_combine_recv(&r);
	round_close(&r);
}

static void last_words_count(void **state)
{
	(void)state;
	run_both(last_word_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_in_dispatch),
		cmocka_unit_test(late_with_rows),
		cmocka_unit_test(late_in_combine),
		cmocka_unit_test(late_in_release),
		cmocka_unit_test(no_report_without_failure),
		cmocka_unit_test(departures),
		cmocka_unit_test(last_words_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
