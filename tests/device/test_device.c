/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on GPUs, between threads of one process: random jobs over all settings, from a seed,
 * and what kernels find wrong with ids and capacities. Ranks share GPUs when there are fewer of
 * these. Skipped where there is none. TERN_TEST_SEED: where to start (1); TERN_TEST_CASES: how many
 * (40); TERN_TEST_SECONDS: go on for so long instead; TERN_TEST_ROUNDS: of each case (8).
 * TERN_TEST_REPLICAS (1; 0: no replica ranks, where devices do not all reach each other).
 * TERN_TEST_NODES: ranks on several nodes, as in tests/exchange/ranks.h. TERN_TEST_WITHOUT: leaves
 * out tests whose names contain one of these words, with commas between them. TERN_TEST_DIVISOR: so
 * many times fewer rounds with a rank that is late, and questions after one has left (1).
 * TERN_TEST_WIDE: one more group, of so many ranks (0: none), made for
 * TERN_TEST_WIDE_TOKENS (256). TERN_TEST_RANKS: at most so many (8); TERN_TEST_SHARING: so many
 * slots of ranks on a device (16).
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "testkit/draw.h"
#include "testkit/random.h"
#include "gpu/host/inside.h"
#include "tests/device/devices.h"
#include "tests/exchange/scale_edges.h"

static const struct bench_device_ops *ops;
static int nr_devices;

/* ---- random jobs ----------------------------------------------------------------------------- */

static void body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct device_rounds rounds = {0};
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 8), i = 0;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&rounds, rank->group, job, ops);
	for (; i < nr && !rc; i += job->config.nr_slots)
		rc = device_rounds_verify(&rounds, i);
	devices_judge(rank, &rounds, i, rc);
	devices_close(rank, &rounds);
}

static void draw_device_job(uint64_t seed, struct job *job)
{
	const struct draw_limits limits = {
		.nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 8),
		.hidden = 2880,
		.nr_experts = 128,
		.nr_tokens = 130};
	uint64_t state = hash2(seed, 0x637564);

	devices_draw_job(&state, &limits, nr_devices, job);
	job->place_in = random_below(&state, 3) ? 0 : 1 + random_below(&state, 4);
	job->wants = seed % 2;
	devices_draw_late_weights(random_next(&state), job);
}

static int run_case(uint64_t seed)
{
	const char *failure;
	struct reason why;
	struct job job;

	draw_device_job(seed, &job);
	if (job_open(&job, &why)) {
		printf("seed %llu: no job: %s\n", (unsigned long long)seed, why.text);
		return 1;
	}
	failure = run_ranks((int)job.nr_ranks, body, &job);
	if (failure) {
		printf("seed %llu: %s\n", (unsigned long long)seed, failure);
		devices_print_job(&job);
		printf("repeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=1 "
		       "build/tests/device/test_device\n",
			(unsigned long long)seed);
	}
	job_close(&job);
	return failure != NULL;
}

static int random_jobs(void)
{
	uint64_t seed = devices_setting("TERN_TEST_SEED", 1),
		 seconds = devices_setting("TERN_TEST_SECONDS", 0),
		 cases = devices_setting("TERN_TEST_CASES", 40), done = 0;
	time_t end = time(NULL) + (time_t)seconds;
	int bad = 0;

	for (; !bad && (seconds ? time(NULL) < end : done < cases); done++)
		bad = run_case(seed + done);
	printf("# seeds %llu to %llu, %llu rounds each\n", (unsigned long long)seed,
		(unsigned long long)(seed + done - 1),
		(unsigned long long)devices_setting("TERN_TEST_ROUNDS", 8));
	return bad;
}

/* ---- ids that are none ----------------------------------------------------------------------- */

static void small_job(struct job *job, uint32_t nr_ranks)
{
	job_init(job);
	job->nr_ranks = nr_ranks;
	job->nr_tokens = 4;
	job->config.hidden = 256;
	job->config.nr_experts = 8;
	job->config.topk = 2;
	job->config.max_tokens = 4;
	job->config.device = TERN_DEVICE_CUDA;
	job->config.wait_ms = 2000;
}

struct small {
	struct rank *rank;
	struct device_rounds rounds;
};

static int small_open(struct small *s, struct rank *rank)
{
	int rc = device_choose(ops, (uint32_t)rank->rank);

	memset(s, 0, sizeof(*s));
	s->rank = rank;
	rc = rc ? rc : device_rounds_open(&s->rounds, rank->group, rank->ctx, ops);
	return rc ? rank_fails(rank, "open: %s", tern_last_error()) : 0;
}

/* Rows of zeros with these ids; the round goes through, and this is what tern_moe_status says then.
 */
static int round_with_ids(struct small *s, const int32_t *ids, uint32_t nr_tokens)
{
	struct device_rounds *r = &s->rounds;
	struct device_lane *lane = &r->lanes[0];
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = nr_tokens, .x = lane->x, .topk_ids = lane->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
	int rc = ops->copy(lane->ids, ids, nr_tokens * 8, lane->stream);

	rc = rc ? rc : ops->fill(lane->x, 0, nr_tokens * 512, lane->stream);
	rc = rc ? rc : ops->fill(lane->y, 0, r->positions * 512, lane->stream);
	rc = rc ? rc : tern_dispatch(r->moe, &args, &received);
	rc = rc ? rc : tern_combine(r->moe, &combine, lane->out, 0);
	rc = rc ? rc : ops->stream_wait(lane->stream);
	return rc ? rank_fails(s->rank, "the round failed: %s", tern_last_error())
		  : tern_moe_status(r->moe);
}

static void expect(struct small *s, const char *what, int rc, int wanted, const char *text)
{
	if (rc != wanted || (text && !strstr(tern_last_error(), text)))
		rank_fails(s->rank, "%s: got %d (%s), wanted %d (...%s...)", what, rc,
			tern_last_error(), wanted, text ? text : "");
}

static void bad_ids(struct rank *rank)
{
	static const int32_t good[] = {0, 1, -1, 7, 3, -1, -1, -1},
			     too_large[] = {0, 1, 8, 2, 3, 4, 5, 6},
			     below[] = {0, 1, 1, 2, 3, 4, -5, 6},
			     twice[] = {0, 1, 2, 2, 3, 4, 5, 6},
			     several[] = {0, 1, 3, 9, 2, 2, -7, 6};
	struct small s;

	if (!small_open(&s, rank)) {
		expect(&s, "good ids", round_with_ids(&s, good, 4), 0, NULL);
		expect(&s, "too large", round_with_ids(&s, too_large, 4), TERN_ERR_INVALID,
			"topk_ids[1][0] was 8");
		expect(&s, "told once", tern_moe_status(s.rounds.moe), 0, NULL);
		expect(&s, "below -1", round_with_ids(&s, below, 4), TERN_ERR_INVALID,
			"topk_ids[3][0] was -5");
		expect(&s, "twice", round_with_ids(&s, twice, 4), TERN_ERR_INVALID,
			"topk_ids[1] named expert 2 twice, again at column 1");
		expect(&s, "several", round_with_ids(&s, several, 4), TERN_ERR_INVALID,
			s.rounds.job->config.mode == TERN_HIGH_THROUGHPUT ? "topk_ids[1][1] was 9"
									  : "topk_ids["); /* there
											     the
											     first
											     of 128
											     tokens
											   */
		expect(&s, "good ids again", round_with_ids(&s, good, 4), 0, NULL);
	}
	devices_close(rank, &s.rounds);
}

/* ---- ranks that do not come ------------------------------------------------------------------ */

/* Rank 0 leaves the others alone in a half: bounded, reported, and over. Lanes of a warp look at
 * the clock one after the other, and the one that reports need not be the one that gave up: where
 * they are emulated it may have begun to wait later, by as long as a busy machine let it lie. */
static void stalled(struct rank *rank, bool in_combine)
{
	struct tern_wait_report report = {.size = sizeof(report)};
	struct tern_received received = {.size = sizeof(received)};
	struct small s;

	if (!small_open(&s, rank)) {
		struct device_lane *lane = &s.rounds.lanes[0];
		struct tern_dispatch args = {
			.size = sizeof(args), .x = lane->x, .topk_ids = lane->ids};
		struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
		tern_moe *moe = s.rounds.moe;
		bool gone = rank->rank == 0;
		int rc = tern_moe_set_wait(moe, 300);

		if (in_combine || !gone)
			rc = rc ? rc : tern_dispatch(moe, &args, &received);
		if (in_combine && !gone)
			rc = rc ? rc : tern_combine(moe, &combine, lane->out, 0);
		rc = rc ? rc : ops->stream_wait(lane->stream);
		if (rc)
			rank_fails(rank, "%s", tern_last_error());
		if (!gone) {
			enum tern_phase phase = in_combine ? TERN_PHASE_COMBINE
						: ((const struct job *)rank->ctx)->config.mode ==
								TERN_HIGH_THROUGHPUT
							? TERN_PHASE_COUNTS
							: TERN_PHASE_DISPATCH;

			expect(&s, "status", tern_moe_status(moe), TERN_ERR_TIMEOUT,
				in_combine ? "in combine" : NULL);
			expect(&s, "report", tern_moe_wait_report(moe, &report), 0, NULL);
			if (report.peer != 0 || report.rank != rank->rank ||
				report.phase != (int)phase || report.waited_ns < 150000000u ||
				report.waited_ns > 60000000000u)
				rank_fails(rank, "reported: rank %d for %d, phase %d, %llu ns",
					report.rank, report.peer, report.phase,
					(unsigned long long)report.waited_ns);
			expect(&s, "it is over", tern_dispatch(moe, &args, &received),
				TERN_ERR_TIMEOUT, NULL);
		}
	}
	devices_close(rank, &s.rounds);
}

static void stalled_in_dispatch(struct rank *rank)
{
	stalled(rank, false);
}

static void stalled_in_combine(struct rank *rank)
{
	stalled(rank, true);
}

/* ---- ranks that leave ------------------------------------------------------------------------ */

/* So long that only a machine that does nothing for us for a minute and more would come to it. */
#define LONG_MS 90000

/* Calls of one kind each, which learn what kernels have found if they are the first to be made. */
static int ask_status(tern_moe *moe)
{
	return tern_moe_status(moe);
}

static int ask_stats(tern_moe *moe)
{
	struct tern_stats stats = {.size = sizeof(stats)};

	return tern_moe_stats(moe, &stats);
}

static int ask_load(tern_moe *moe)
{
	uint64_t counts[8];

	return tern_moe_expert_load(moe, counts, 8);
}

static int ask_stream(tern_moe *moe)
{
	return tern_moe_set_stream(moe, 0, NULL);
}

static int ask_nr_tokens(tern_moe *moe)
{
	return tern_moe_set_nr_tokens_at(moe, 0, NULL);
}

static int ask_sms(tern_moe *moe)
{
	return tern_moe_set_sms(moe, 0);
}

static int ask_wait(tern_moe *moe)
{
	return tern_moe_set_wait(moe, LONG_MS);
}

/* Its answer is its report. */
static int ask_report(tern_moe *moe)
{
	struct tern_wait_report report = {.size = sizeof(report)};
	int rc = tern_moe_wait_report(moe, &report);

	return rc ? rc : report.error;
}

static int ask_release(tern_moe *moe)
{
	return tern_release(moe, 0);
}

static int (*const questions[])(tern_moe *moe) = {ask_status, tern_moe_stats_reset, ask_stats,
	ask_load, ask_stream, ask_nr_tokens, ask_sms, ask_wait, ask_report, ask_release,
	tern_moe_leave};
#define NR_QUESTIONS (sizeof(questions) / sizeof(questions[0]))

/* A half, or both, of rank 0's that are the last before it leaves, and what the others go on with:
 * they wait for it in vain. */
struct departure {
	const char *name;
	uint32_t nr_halves; /* rank 0's */
	bool release;
	bool before; /* it has left when they begin */
};

static int put_half(struct small *s, uint32_t half, bool release)
{
	struct device_lane *lane = &s->rounds.lanes[0];
	tern_moe *moe = s->rounds.moe;
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = 4, .x = lane->x, .topk_ids = lane->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};

	if (half == 0)
		return tern_dispatch(moe, &args, &received);
	return release ? tern_release(moe, 0) : tern_combine(moe, &combine, lane->out, 0);
}

static int put_inputs(struct small *s)
{
	static const int32_t ids[] = {0, 7, 1, 6, 2, 5, 3, 4};
	struct device_lane *lane = &s->rounds.lanes[0];
	int rc = ops->copy(lane->ids, ids, sizeof(ids), lane->stream);

	rc = rc ? rc : ops->fill(lane->x, 0, 4 * 512, lane->stream);
	rc = rc ? rc : ops->fill(lane->y, 0, s->rounds.positions * 512, lane->stream);
	return rc ? rc : ops->stream_wait(lane->stream);
}

/* The first call after the kernel tells, whatever it is, and so do the halves from then on. */
static void expect_left(struct small *s, const struct departure *d, int (*ask)(tern_moe *moe))
{
	struct tern_wait_report report = {.size = sizeof(report)};
	tern_moe *moe = s->rounds.moe;
	int rc = ask(moe);

	if (rc != TERN_ERR_PEER_LEFT ||
		(ask != ask_report && !strstr(tern_last_error(), "left the exchange")))
		rank_fails(s->rank, "%s: the first question got %d (%s)", d->name, rc,
			tern_last_error());
	expect(s, d->name, tern_moe_status(moe), TERN_ERR_PEER_LEFT, "left the exchange");
	expect(s, "a half", put_half(s, 0, false), TERN_ERR_PEER_LEFT, "left the exchange");
	expect(s, "report", tern_moe_wait_report(moe, &report), 0, NULL);
	if (report.error != TERN_ERR_PEER_LEFT || report.peer == s->rank->rank || report.peer < 0)
		rank_fails(s->rank, "%s: the report has error %d, peer %d", d->name, report.error,
			report.peer);
}

static int leave(struct small *s, const struct departure *d)
{
	int rc = 0;

	for (uint32_t half = 0; half < d->nr_halves && !rc; half++)
		rc = put_half(s, half, d->release);
	/* What it has begun is over: the others wait for it in the half that is named. */
	rc = rc ? rc : ops->stream_wait(s->rounds.lanes[0].stream);
	if (!d->before)
		ranks_meet(s->rank);
	rc = rc ? rc : tern_moe_leave(s->rounds.moe);
	if (d->before)
		ranks_meet(s->rank);
	return rc;
}

/* High throughput's release waits for nobody; the counts of the next round do. */
static int go_on(struct small *s, const struct departure *d)
{
	bool in_vain = d->release && d->nr_halves == 1 &&
		       s->rounds.job->config.mode == TERN_HIGH_THROUGHPUT;
	int rc = 0;

	for (uint32_t half = 0; half < d->nr_halves && !rc; half++)
		rc = put_half(s, half, d->release);
	ranks_meet(s->rank);
	rc = rc ? rc : put_half(s, d->nr_halves % 2, d->release);
	rc = rc || !in_vain ? rc : put_half(s, 0, false);
	return rc ? rc : ops->stream_wait(s->rounds.lanes[0].stream);
}

static void depart(struct rank *rank, const struct departure *d, size_t question)
{
	struct small s;
	void *window;
	int rc;

	if (small_open(&s, rank))
		return;
	window = s.rounds.moe->device->window[0].base;
	rc = put_inputs(&s) || tern_moe_set_wait(s.rounds.moe, LONG_MS);
	rc = rc ? rc : rank->rank ? go_on(&s, d) : leave(&s, d);
	if (rc)
		rank_fails(rank, "%s: %s", d->name, tern_last_error());
	else if (rank->rank && questions[question] == tern_moe_leave)
		expect(&s, d->name, tern_moe_leave(s.rounds.moe), 0, NULL); /* of a slot that is
									       idle, as far as calls
									       go */
	else if (rank->rank)
		expect_left(&s, d, questions[question]);
	devices_close(rank, &s.rounds);
	if (rank->rank && device_ops_load()->pointer_check(window))
		rank_fails(
			rank, "%s: peers may still store into a window that is no more", d->name);
	ranks_meet(rank); /* nobody else's memory has come to lie there */
}

static void peer_left(struct rank *rank)
{
	static const struct departure departures[] = {{"before a dispatch", 0, false, true},
		{"during a dispatch", 0, false, false}, {"before a combine", 1, false, true},
		{"during a combine", 1, false, false}, {"before a release", 1, true, true},
		{"after a round", 2, false, true}, {"after a released round", 2, true, false}};
	size_t nr = sizeof(departures) / sizeof(departures[0]);
	size_t nr_questions = NR_QUESTIONS / devices_setting("TERN_TEST_DIVISOR", 1);

	for (size_t i = 0; i < nr_questions && !*rank->failure; i++)
		depart(rank, &departures[i % nr], i);
	if (*rank->failure)
		printf("# %s\n", rank->failure);
}

/* A rank that comes late, within the bound: nothing is lost. */
static void slow_rank(struct rank *rank)
{
	uint64_t nr = 24 / devices_setting("TERN_TEST_DIVISOR", 1);
	struct small s;
	int rc = 0;

	if (!small_open(&s, rank)) {
		for (uint64_t i = 0; i < nr && !rc; i++) {
			if (i % (uint64_t)rank->nr_ranks == (uint64_t)rank->rank)
				rc = ops->spin(20000000, s.rounds.lanes[0].stream);
			rc = rc ? rc : device_rounds_verify(&s.rounds, i);
		}
		if (rc || s.rounds.difference.nr)
			rank_fails(rank, "%s %s", rc ? tern_last_error() : "",
				s.rounds.difference.first);
	}
	devices_close(rank, &s.rounds);
}

/* Ranks with few tokens beside ranks with many, in an exchange made for more: what a round does
 * follows what came. Halves by themselves, graphs and kernels that only receive among them. */
static void uneven_tokens(struct rank *rank)
{
	uint64_t nr = 4 / devices_setting("TERN_TEST_DIVISOR", 1), i = 0;
	struct small s;
	int rc = 0;

	if (!small_open(&s, rank))
		for (; i < nr && !rc; i++)
			rc = device_rounds_verify(&s.rounds, i);
	if (rc || s.rounds.difference.nr)
		rank_fails(rank, "round %llu: %s %s", (unsigned long long)i,
			rc ? tern_last_error() : "", s.rounds.difference.first);
	devices_close(rank, &s.rounds);
}

/* All tokens go to expert 7, of the last rank, which takes 11 rows; then to all experts: the round
 * after it is like any other. */
static void over_capacity(struct rank *rank)
{
	static const int32_t one[] = {7, -1, 7, -1, -1, 7, 7, -1}, all[] = {0, 1, 2, 3, 4, 5, 6, 7};
	uint64_t nr_after = 1 + 7 / devices_setting("TERN_TEST_DIVISOR", 1);
	struct device_rounds *r;
	uint64_t sums[2];
	uint16_t out[4][256];
	struct small s;
	int rc;

	if (!small_open(&s, rank)) {
		r = &s.rounds;
		expect(&s, "over", round_with_ids(&s, one, 4), TERN_ERR_CAPACITY,
			"rank 2 would receive 12 rows; its capacity is 11");
		rc = ops->copy(sums, r->lanes[0].captured.offsets + tern_moe_nr_local(r->moe),
			sizeof(sums), r->lanes[0].stream);
		rc = rc ? rc : ops->copy(out, r->lanes[0].out, sizeof(out), r->lanes[0].stream);
		rc = rc ? rc : ops->stream_wait(r->lanes[0].stream);
		if (rc || sums[0] || sums[1] || out[3][255])
			rank_fails(rank, "an abandoned round has %llu rows, %llu positions",
				(unsigned long long)sums[0], (unsigned long long)sums[1]);
		expect(&s, "told once", tern_moe_status(r->moe), 0, NULL);
		expect(&s, "the next one", round_with_ids(&s, all, 4), 0, NULL);
		for (uint64_t i = 8; i < 8 + nr_after && !r->difference.nr; i++)
			expect(&s, "rounds after it", device_rounds_verify(r, i), 0, NULL);
		if (r->difference.nr)
			rank_fails(rank, "%s", r->difference.first);
	}
	devices_close(rank, &s.rounds);
}

/* ---- scales ---------------------------------------------------------------------------------- */

#define EDGE_ELEMENTS (SCALE_EDGES * 128)

/* One token for this rank's first expert, through memory of the device: x, its id, the received row
 * and scales. */
static int send_edges(tern_moe *moe, uint8_t *memory, void *stream, enum tern_dtype dtype,
	uint8_t *elements, float *scales)
{
	int32_t ids[2] = {tern_moe_local_expert(moe, 0), -1};
	uint8_t row[EDGE_ELEMENTS * 4];
	uint64_t offset;
	struct tern_dispatch args = {.size = sizeof(args),
		.nr_tokens = 1,
		.x = memory,
		.topk_ids = memory + sizeof(row)};
	struct tern_received received = {.size = sizeof(received)};
	int rc;

	scale_edges_fill(dtype, row);
	rc = tern_moe_set_stream(moe, 0, stream);
	rc = rc ? rc : ops->copy(memory, row, sizeof(row), stream);
	rc = rc ? rc : ops->copy(memory + sizeof(row), ids, sizeof(ids), stream);
	rc = rc ? rc : tern_dispatch(moe, &args, &received);
	rc = rc ? rc : tern_release(moe, 0);
	rc = rc ? rc : ops->copy(&offset, received.offsets, sizeof(offset), stream);
	rc = rc ? rc : ops->stream_wait(stream);
	rc = rc ? rc
		: ops->copy(elements, (uint8_t *)received.x + offset * EDGE_ELEMENTS, EDGE_ELEMENTS,
			  stream);
	rc = rc ? rc : ops->copy(scales, received.scales, SCALE_EDGES * sizeof(*scales), stream);
	return rc ? rc : ops->stream_wait(stream);
}

static void send_edges_as(struct rank *rank, uint8_t *memory, void *stream, enum tern_dtype dtype,
	enum tern_scale scale)
{
	struct tern_moe_config config = ((const struct job *)rank->ctx)->config;
	uint8_t elements[EDGE_ELEMENTS];
	float scales[SCALE_EDGES];
	const char *wrong = "call";
	tern_moe *moe = NULL;
	int rc;

	config.hidden = EDGE_ELEMENTS;
	config.x_dtype = dtype;
	config.dispatch_dtype = TERN_FP8_E4M3;
	config.scale = scale;
	rc = tern_moe_create(rank->group, &config, &moe);
	rc = rc ? rc : send_edges(moe, memory, stream, dtype, elements, scales);
	if (!rc)
		wrong = scale_edges_wrong(dtype, scale, elements, scales);
	if (wrong)
		rank_fails(rank, "x_dtype %d, scale %d: a wrong %s (%d, %s)", (int)dtype,
			(int)scale, wrong, rc, tern_last_error());
	ranks_meet(rank);
	tern_moe_destroy(moe);
}

static void scales_at_edges(struct rank *rank)
{
	void *memory = NULL, *stream = NULL; /* ranks that share a device share its default stream
					      */
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : ops->memory_create(EDGE_ELEMENTS * 4 + 64, &memory);
	rc = rc ? rc : ops->stream_create(&stream, false);
	if (rc) {
		rank_fails(rank, "memory: %s", ops->error_text());
		return;
	}
	for (enum tern_dtype dtype = TERN_BF16; dtype <= TERN_FP32; dtype++)
		for (enum tern_scale scale = TERN_SCALE_FP32; scale <= TERN_SCALE_UE8M0; scale++)
			send_edges_as(rank, memory, stream, dtype, scale);
	ops->stream_destroy(stream);
	ops->memory_free(memory);
}

struct test {
	const char *name;
	rank_main body;
	enum tern_mode mode;
	uint64_t capacity;
	uint32_t most_tokens; /* 0: four, of all ranks */
};

#define RARELY_NS 20000000ul

static bool wide;

/* What a proxy says of itself when it begins (engine/proxy.c). Of a wide group it takes what others
 * leave, and looks for news fifty times a second: hundreds that look five thousand times leave two
 * cores nothing for the kernels. */
int prctl(int option, ...)
{
	unsigned long value;
	va_list rest;

	va_start(rest, option);
	value = va_arg(rest, unsigned long);
	va_end(rest);
	if (wide && option == PR_SET_TIMERSLACK) {
		sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
		value = RARELY_NS;
	}
	return (int)syscall(SYS_prctl, option, value, 0, 0, 0);
}

/* As many ranks as there are settings for, in exchanges made for far more than is sent; both modes.
 */
static int wide_group(uint32_t nr_ranks)
{
	int bad = 0;

	wide = true;
	for (int mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT && !bad; mode++) {
		const char *name = mode == TERN_LOW_LATENCY ? "low latency" : "high throughput";
		const char *failure;
		struct reason why;
		struct job job;

		if (devices_without(name))
			continue;
		small_job(&job, nr_ranks);
		job.nr_tokens = 2;
		job.routing.uneven = true;
		job.config.mode = mode;
		job.config.hidden = 16;
		job.config.nr_experts = nr_ranks;
		job.config.topk = 8;
		job.config.max_tokens = (uint32_t)devices_setting("TERN_TEST_WIDE_TOKENS", 256);
		job.config.wait_ms = 60000;
		if (job_open(&job, &why))
			return 1;
		failure = run_ranks((int)nr_ranks, body, &job);
		bad = failure != NULL;
		printf("%s - wide_group, %s, %u ranks%s%s\n", bad ? "not ok" : "ok", name, nr_ranks,
			bad ? ": " : "", bad ? failure : "");
		job_close(&job);
	}
	wide = false;
	return bad;
}

static int run_small(const struct test *test)
{
	const char *failure;
	struct reason why;
	struct job job;

	small_job(&job, 3);
	job.config.mode = test->mode;
	job.config.capacity = test->capacity;
	job.routing.drop = test->capacity ? 0.5 : 0; /* so that random rounds are within it */
	job.nr_tokens = test->capacity ? 2 : 4;
	if (test->most_tokens) {
		job.config.max_tokens = job.nr_tokens = test->most_tokens;
		job.routing.uneven = true;
	}
	if (job_open(&job, &why))
		return 1;
	failure = run_ranks(3, test->body, &job);
	printf("%s - %s%s%s\n", failure ? "not ok" : "ok", test->name, failure ? ": " : "",
		failure ? failure : "");
	job_close(&job);
	return failure != NULL;
}

int main(void)
{
	static const struct test tests[] = {{"bad_ids", bad_ids, TERN_LOW_LATENCY, 0, 0},
		{"stalled_in_dispatch", stalled_in_dispatch, TERN_LOW_LATENCY, 0, 0},
		{"stalled_in_combine", stalled_in_combine, TERN_LOW_LATENCY, 0, 0},
		{"peer_left", peer_left, TERN_LOW_LATENCY, 0, 0},
		{"ht_peer_left", peer_left, TERN_HIGH_THROUGHPUT, 0, 0},
		{"slow_rank", slow_rank, TERN_LOW_LATENCY, 0, 0},
		{"ht_bad_ids", bad_ids, TERN_HIGH_THROUGHPUT, 0, 0},
		{"ht_stalled_in_counts", stalled_in_dispatch, TERN_HIGH_THROUGHPUT, 0, 0},
		{"ht_slow_rank", slow_rank, TERN_HIGH_THROUGHPUT, 0, 0},
		{"ht_over_capacity", over_capacity, TERN_HIGH_THROUGHPUT, 11, 0},
		{"scales_at_edges", scales_at_edges, TERN_LOW_LATENCY, 0, 0},
		{"ht_scales_at_edges", scales_at_edges, TERN_HIGH_THROUGHPUT, 0, 0},
		{"uneven_tokens", uneven_tokens, TERN_LOW_LATENCY, 0, 330}};
	int bad = 0;

	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!devices_without(tests[i].name))
			bad |= run_small(&tests[i]);
	if (devices_setting("TERN_TEST_WIDE", 0))
		bad |= wide_group((uint32_t)devices_setting("TERN_TEST_WIDE", 0));
	if (!bad)
		bad = random_jobs();
	printf("%s - random_jobs\n", bad ? "not ok" : "ok");
	return bad;
}
