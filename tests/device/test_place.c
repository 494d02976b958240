/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that move between rounds of exchanges on GPUs: rounds right whatever is under way on
 * other slots, graphs that follow, ranks whose tables differ, calls that are refused. Skipped where
 * there is no GPU. */
#include <stdio.h>
#include <string.h>

#include "exchange/state.h"
#include "gpu/host/inside.h"
#include "tests/device/devices.h"

#define NR_RANKS 3
#define EXPERTS 8
#define SPARE 4
#define PLACES (EXPERTS + SPARE)
#define ROUNDS 24

static const struct bench_device_ops *ops;
static int nr_devices;

static void placed_job(struct job *job, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = NR_RANKS;
	job->nr_tokens = 20;
	job->nr_redundant = SPARE;
	job->config.mode = mode;
	job->config.hidden = 256;
	job->config.nr_experts = EXPERTS;
	job->config.topk = 3;
	job->config.max_tokens = 20;
	job->config.device = TERN_DEVICE_CUDA;
	job->config.wait_ms = 4000;
	job->routing.uneven = true;
}

static bool open_rounds(struct rank *rank, struct device_rounds *r)
{
	int rc = device_choose(ops, (uint32_t)rank->rank);

	memset(r, 0, sizeof(*r));
	rc = rc ? rc : device_rounds_open(r, rank->group, rank->ctx, ops);
	if (rc)
		rank_fails(rank, "open: %s", tern_last_error());
	return !rc;
}

static void expect(struct rank *rank, const char *what, int rc, int wanted, const char *text)
{
	if (rc != wanted || (text && !strstr(tern_last_error(), text)))
		rank_fails(rank, "%s: got %d (%s), wanted %d (...%s...)", what, rc,
			rc ? tern_last_error() : "", wanted, text ? text : "");
}

/* A round of every element that is compared. */
static void expect_round(struct rank *rank, struct device_rounds *r, uint64_t round)
{
	expect(rank, "a round", device_rounds_verify(r, round), 0, NULL);
	if (r->difference.nr)
		rank_fails(rank, "round %llu: %s", (unsigned long long)round, r->difference.first);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Two slots, each on a stream of its own, and half of all rounds by graphs that were captured
 * before any expert had moved. */
static void moves(struct rank *rank)
{
	struct device_rounds r;
	uint64_t i = 0;
	uint32_t nr_replayed = 0;
	int rc = 0;

	if (open_rounds(rank, &r)) {
		for (; i < ROUNDS && !rc; i += 2) {
			nr_replayed += device_rounds_replay(&r, i);
			rc = device_rounds_verify(&r, i);
		}
		devices_judge(rank, &r, i, rc);
		if (!*rank->failure && (!nr_replayed || r.moe->placement.placed.version < 6))
			rank_fails(rank, "%u rounds by graph, version %u", nr_replayed,
				r.moe->placement.placed.version);
	}
	devices_close(rank, &r);
}

/* ---- ranks whose tables differ --------------------------------------------------------------- */

static int place(struct device_rounds *r, uint32_t version, int shift)
{
	int32_t logical[PLACES];

	for (int p = 0; p < PLACES; p++)
		logical[p] = (p + shift) % EXPERTS;
	return tern_moe_place(r->moe, version, logical, PLACES);
}

/* One that knows its round will fail puts what it can. */
static int bad_round(struct device_rounds *r)
{
	struct device_lane *lane = &r->lanes[0];
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = 4, .x = lane->x, .topk_ids = lane->ids};
	struct tern_received received = {.size = sizeof(received)};
	int32_t ids[12] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3};
	int rc = ops->copy(lane->ids, ids, sizeof(ids), lane->stream);

	rc = rc ? rc : ops->stream_wait(lane->stream);
	rc = rc ? rc : tern_dispatch(r->moe, &args, &received);
	rc = rc ? rc : ops->stream_wait(lane->stream);
	return rc ? rc : tern_moe_status(r->moe);
}

static void differ(struct rank *rank, bool liar)
{
	struct device_rounds r;
	bool odd = rank->rank == 1;

	if (open_rounds(rank, &r)) {
		expect(rank, "placed", place(&r, 6, 1), 0, NULL);
		if (liar || !odd)
			expect(rank, "placed", place(&r, 7, odd ? 2 : 3), 0, NULL);
		expect(rank, "a round of two tables", bad_round(&r), TERN_ERR_MISMATCH,
			liar ? "by another version 7" : "version 7");
		expect(rank, "is over", place(&r, 8, 0), TERN_ERR_MISMATCH, NULL);
	}
	devices_close(rank, &r);
}

static void one_is_stale(struct rank *rank)
{
	differ(rank, false);
}

static void one_lies(struct rank *rank)
{
	differ(rank, true);
}

/* ---- refused --------------------------------------------------------------------------------- */

static void refuse_tables(struct rank *rank, struct device_rounds *r)
{
	int32_t logical[PLACES];

	for (int p = 0; p < PLACES; p++)
		logical[p] = p % EXPERTS;
	expect(rank, "no table", tern_moe_place(r->moe, 1, NULL, PLACES), TERN_ERR_INVALID, "NULL");
	expect(rank, "a short table", tern_moe_place(r->moe, 1, logical, PLACES - 1),
		TERN_ERR_INVALID, "11 places");
	logical[5] = EXPERTS;
	expect(rank, "an expert that there is not", tern_moe_place(r->moe, 1, logical, PLACES),
		TERN_ERR_INVALID, "placement.logical[5] is 8");
	logical[5] = 4;
	expect(rank, "an expert without a place", tern_moe_place(r->moe, 1, logical, PLACES),
		TERN_ERR_INVALID, "expert 5 is on no rank");
}

static void refuse_capture(struct rank *rank, struct device_rounds *r)
{
	struct device_graph *graph = NULL;
	int rc = ops->capture_begin(r->lanes[1].stream);

	expect(rank, "while a stream is captured", place(r, 1, 1), TERN_ERR_STATE, "captured");
	rc = rc ? rc : ops->capture_end(r->lanes[1].stream, &graph);
	ops->graph_destroy(graph);
	if (rc)
		rank_fails(rank, "capture: %s", ops->error_text());
}

/* Nothing has changed after any of them; more calls than copies may be under way are fine. */
static void refused(struct rank *rank)
{
	struct device_rounds r;

	if (open_rounds(rank, &r)) {
		expect_round(rank, &r, 0);
		refuse_tables(rank, &r);
		refuse_capture(rank, &r);
		if (r.moe->placement.placed.version)
			rank_fails(rank, "a refused call has changed the version");
		expect_round(rank, &r, 2);
		for (uint32_t i = 1; i < 40; i++)
			expect(rank, "one of many", place(&r, i, (int)i % EXPERTS), 0, NULL);
		expect(rank, "back", tern_moe_place(r.moe, 0, r.job->logical, PLACES), 0, NULL);
		expect_round(rank, &r, 4);
	}
	devices_close(rank, &r);
}

/* Kernels of one that was made without a table take experts to be where they were. */
static void fixed(struct rank *rank)
{
	int32_t logical[EXPERTS] = {1, 0, 2, 3, 4, 5, 6, 7};
	struct device_rounds r;

	if (open_rounds(rank, &r)) {
		expect(rank, "without tables", tern_moe_place(r.moe, 1, logical, EXPERTS),
			TERN_ERR_STATE, "made without placement.logical");
		expect_round(rank, &r, 0);
	}
	devices_close(rank, &r);
}

static void old_plan(struct rank *rank)
{
	struct device_rounds r;
	uint64_t plan = 0;

	if (open_rounds(rank, &r)) {
		struct tern_combine again = {.size = sizeof(again), .y = r.lanes[0].y};

		expect(rank, "a dispatch", bad_round(&r), 0, NULL);
		expect(rank, "a plan", tern_plan_create(r.moe, 0, &plan), 0, NULL);
		expect(rank, "its combine", devices_combine(&r), 0, NULL);
		expect(rank, "placed", place(&r, 3, 2), 0, NULL);
		again.plan = plan;
		expect(rank, "an old plan", tern_combine(r.moe, &again, r.lanes[0].out, 0),
			TERN_ERR_STATE, "routed by version 0");
		expect(rank, "its end", tern_plan_destroy(r.moe, plan), 0, NULL);
		expect(rank, "back", tern_moe_place(r.moe, 0, r.job->logical, PLACES), 0, NULL);
		expect_round(rank, &r, 0);
	}
	devices_close(rank, &r);
}

/* ---- running --------------------------------------------------------------------------------- */

static int run(const char *name, rank_main body, enum tern_mode mode, uint32_t place_in)
{
	const char *failure;
	struct reason why;
	struct job job;

	placed_job(&job, mode);
	job.place_in = place_in;
	job.config.nr_slots = body == moves || body == refused ? 2 : 1;
	if (body == fixed)
		job.nr_redundant = 0;
	if (job_open(&job, &why)) {
		printf("not ok - %s: %s\n", name, why.text);
		return 1;
	}
	failure = run_ranks(NR_RANKS, body, &job);
	printf("%s - %s, %s%s%s\n", failure ? "not ok" : "ok", name,
		mode == TERN_LOW_LATENCY ? "low latency" : "high throughput", failure ? ": " : "",
		failure ? failure : "");
	job_close(&job);
	return failure != NULL;
}

int main(void)
{
	static const struct {
		const char *name;
		rank_main body;
		uint32_t place_in;
	} tests[] = {{"moves", moves, 1}, {"moves_now_and_then", moves, 3},
		{"one_is_stale", one_is_stale, 0}, {"one_lies", one_lies, 0},
		{"refused", refused, 0}, {"fixed", fixed, 0}, {"old_plan", old_plan, 0}};
	int bad = 0;

	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
			bad |= devices_without(tests[i].name)
				       ? 0
				       : run(tests[i].name, tests[i].body, mode, tests[i].place_in);
	return bad;
}
