/* SPDX-License-Identifier: Apache-2.0 */
/* Ways to run an exchange, side by side: every kernel that fits, with several launches, in the same buffers and rounds of the same inputs. All ways are
 * verified first. In each turn every way gets a burst of rounds, so that what changes with time hits all alike. */
#include "lab_ll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/rule_ll.h"

#define MOST_WAYS 160
#define MOST_PAIRS 24
#define TURNS 7
#define DROPPED 2 /* rounds at the start of a burst */
#define BURST 8

static const uint32_t dispatch_hows[] = {0, LL_PLAIN, LL_PLAIN | LL_ONCE, LL_PLAIN | LL_ONCE | LL_QUIET, LL_PLAIN | LL_VOTES};
static const uint32_t combine_hows[] = {0, LL_QUIET, LL_AHEAD, LL_QUIET | LL_AHEAD};
#define NR(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

static const char *how_name(uint32_t how)
{
	switch (how) {
	case 0:
		return "as it is";
	case LL_PLAIN:
		return "plain";
	case LL_PLAIN | LL_ONCE:
		return "plain, once";
	case LL_PLAIN | LL_ONCE | LL_QUIET:
		return "plain, once, quiet";
	case LL_PLAIN | LL_VOTES:
		return "plain, votes";
	case LL_QUIET:
		return "quiet";
	case LL_AHEAD:
		return "ahead";
	case LL_QUIET | LL_AHEAD:
		return "quiet, ahead";
	}
	return "?";
}

/* ---- ways ---------------------------------------------------------------------------------------------------- */

/* One half, one way. */
struct way {
	bool dispatch;
	uint32_t how, share;
	struct ll_launch launch;
	float *us[LAB_MAX_GPUS]; /* [TURNS * BURST] */
	double p50;
};

struct ways {
	struct way way[MOST_WAYS];
	uint32_t nr;
};

static bool fits(const struct lab *lab, bool dispatch, uint32_t how)
{
	return dispatch ? lab_dispatch_fits(how, &lab->ranks[0].dispatch) : lab_combine_fits(how, &lab->ranks[0].combine);
}

static void add_way(const struct lab *lab, struct ways *ways, bool dispatch, uint32_t how, struct ll_launch launch, uint32_t share)
{
	struct way *w = &ways->way[ways->nr];

	if (ways->nr == MOST_WAYS || !fits(lab, dispatch, how))
		return;
	*w = (struct way){.dispatch = dispatch, .how = how, .share = share, .launch = launch};
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		w->us[r] = calloc(TURNS * BURST, sizeof(float));
	ways->nr++;
}

static void free_ways(struct ways *ways)
{
	for (uint32_t i = 0; i < ways->nr; i++)
		for (uint32_t r = 0; r < LAB_MAX_GPUS; r++)
			free(ways->way[i].us[r]);
	ways->nr = 0;
}

/* The library's launch first, then others around what the number of segments asks for. */
static void add_how(const struct lab *lab, struct ways *ways, const struct target *t, bool dispatch, uint32_t how)
{
	static const uint32_t few[][3] = {{12, 8, 2}, {24, 8, 2}, {48, 8, 2}, {48, 8, 4}, {96, 8, 2}, {96, 8, 4}, {132, 8, 2}, {132, 8, 4}};
	static const uint32_t many[][3] = {{132, 16, 2}, {132, 16, 4}, {132, 16, 6}, {132, 16, 8}, {132, 16, 10}, {132, 16, 12}, {132, 8, 4}, {96, 16, 8}};
	const uint32_t(*grid)[3] = t->tokens <= 16 ? few : many;
	uint32_t vectors = ll_rule_vectors(t->tokens), share = ll_rule_share(vectors, lab->nr_ranks);
	struct ll_launch rule = {dispatch ? ll_rule_dispatch_blocks(t->tokens) : ll_rule_combine_blocks(t->tokens), LL_MAX_WARPS,
		dispatch ? LL_DISPATCH_SENDERS : LL_COMBINE_SENDERS, 0};

	add_way(lab, ways, dispatch, how, rule, share);
	for (uint32_t i = 0; i < 8; i++) {
		struct ll_launch launch = {grid[i][0], grid[i][1], grid[i][2], 0};

		if (memcmp(&launch, &rule, sizeof(rule)))
			add_way(lab, ways, dispatch, how, launch, share);
		if (dispatch && vectors > 1)
			add_way(lab, ways, dispatch, how, launch, share == 2 ? lab->nr_ranks : 2);
	}
}

static void put_half(const struct lab_rank *rank, const struct way *w, bool early)
{
	struct ll_dispatch d = rank->dispatch;
	struct ll_launch launch = w->launch;

	d.by_share = ll_divisor_of(w->share);
	launch.early = early;
	CHECK(w->dispatch ? lab_dispatch_launch(w->how, &d, &launch, rank->stream) : lab_combine_launch(w->how, &rank->combine, &launch, rank->stream));
}

/* second: NULL for one half. */
static cudaGraphExec_t capture(struct lab_rank *rank, const struct way *first, const struct way *second)
{

	CHECK(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
	put_half(rank, first, false);
	if (second)
		put_half(rank, second, true);
	return lab_captured(rank);
}

/* ---- timing -------------------------------------------------------------------------------------------------- */

static float elapsed_us(cudaEvent_t *events)
{
	float ms;

	CHECK(cudaEventElapsedTime(&ms, events[0], events[1]));
	return ms * 1000;
}

/* Number i of the dispatch's ways with number i of the combine's; the shorter list goes round. */
static uint64_t time_halves(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct ways *ways = ctx; /* [2] */
	uint32_t most = ways[0].nr > ways[1].nr ? ways[0].nr : ways[1].nr;
	cudaGraphExec_t graphs[2][MOST_WAYS];
	cudaEvent_t events[2][2];

	lab_inputs(lab, rank, 1);
	for (int half = 0; half < 2; half++) {
		for (uint32_t i = 0; i < ways[half].nr; i++)
			graphs[half][i] = capture(rank, &ways[half].way[i], NULL);
		CHECK(cudaEventCreate(&events[half][0]));
		CHECK(cudaEventCreate(&events[half][1]));
	}
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
	for (uint32_t turn = 0; turn < TURNS; turn++)
		for (uint32_t i = 0; i < most; i++)
			for (uint32_t b = 0; b < DROPPED + BURST; b++) {
				for (int half = 0; half < 2; half++)
					lab_replay(lab, rank, graphs[half][i % ways[half].nr], events[half]);
				CHECK(cudaStreamSynchronize(rank->stream));
				for (int half = 0; half < 2 && b >= DROPPED; half++)
					ways[half].way[i % ways[half].nr].us[rank->rank][turn * BURST + b - DROPPED] = elapsed_us(events[half]);
			}
	for (int half = 0; half < 2; half++) {
		for (uint32_t i = 0; i < ways[half].nr; i++)
			CHECK(cudaGraphExecDestroy(graphs[half][i]));
		CHECK(cudaEventDestroy(events[half][0]));
		CHECK(cudaEventDestroy(events[half][1]));
	}
	return lab_expired(rank);
}

struct pair {
	const struct way *dispatch, *combine;
	float *us[LAB_MAX_GPUS];
};

struct pairs {
	struct pair pair[MOST_PAIRS];
	uint32_t nr;
};

static uint64_t time_pairs(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct pairs *pairs = ctx;
	cudaGraphExec_t graphs[MOST_PAIRS];
	cudaEvent_t events[2];

	for (uint32_t i = 0; i < pairs->nr; i++)
		graphs[i] = capture(rank, pairs->pair[i].dispatch, pairs->pair[i].combine);
	CHECK(cudaEventCreate(&events[0]));
	CHECK(cudaEventCreate(&events[1]));
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
	for (uint32_t turn = 0; turn < 4 * TURNS; turn++)
		for (uint32_t i = 0; i < pairs->nr; i++)
			for (uint32_t b = 0; b < DROPPED + BURST; b++) {
				lab_replay(lab, rank, graphs[i], events);
				CHECK(cudaStreamSynchronize(rank->stream));
				if (b >= DROPPED)
					pairs->pair[i].us[rank->rank][turn * BURST + b - DROPPED] = elapsed_us(events);
			}
	for (uint32_t i = 0; i < pairs->nr; i++)
		CHECK(cudaGraphExecDestroy(graphs[i]));
	CHECK(cudaEventDestroy(events[0]));
	CHECK(cudaEventDestroy(events[1]));
	return lab_expired(rank);
}

/* ---- a case -------------------------------------------------------------------------------------------------- */

static const struct way *best_of(const struct ways *ways, uint32_t how)
{
	const struct way *best = NULL;

	for (uint32_t i = 0; i < ways->nr; i++)
		if (ways->way[i].how == how && (!best || ways->way[i].p50 < best->p50))
			best = &ways->way[i];
	return best;
}

static void print_way(const struct way *w)
{
	printf("%-18s %3u blocks, %2u of %2u warps send, share %u", how_name(w->how), w->launch.nr_blocks, w->launch.send_warps, w->launch.nr_warps, w->share);
}

/* Each kernel's launch as the library has it, and its best. */
static void print_halves(const struct lab *lab, struct ways *ways, const uint32_t *hows, uint32_t nr_hows)
{
	for (uint32_t i = 0; i < ways->nr; i++)
		lab_slowest(lab, ways->way[i].us, TURNS * BURST, &ways->way[i].p50, NULL);
	for (uint32_t h = 0; h < nr_hows; h++) {
		const struct way *best = best_of(ways, hows[h]), *rule = NULL;

		for (uint32_t i = ways->nr; i-- > 0;)
			if (ways->way[i].how == hows[h])
				rule = &ways->way[i];
		if (!best)
			continue;
		printf("  %c ", best->dispatch ? 'D' : 'C');
		print_way(best);
		printf(": %6.2f us; launched as the library does %6.2f\n", best->p50, rule->p50);
	}
}

static void add_pair(const struct lab *lab, struct pairs *pairs, const struct way *dispatch, const struct way *combine)
{
	struct pair *p = &pairs->pair[pairs->nr];

	if (!dispatch || !combine || pairs->nr == MOST_PAIRS)
		return;
	*p = (struct pair){dispatch, combine, {NULL}};
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		p->us[r] = calloc(4 * TURNS * BURST, sizeof(float));
	pairs->nr++;
}

static uint64_t run_pairs(struct lab *lab, const struct ways *ways)
{
	struct pairs *pairs = calloc(1, sizeof(*pairs));
	double first = 0, p50, p99;
	uint64_t bad;

	add_pair(lab, pairs, &ways[0].way[0], &ways[1].way[0]); /* the library's */
	for (uint32_t d = 0; d < NR(dispatch_hows); d++)
		for (uint32_t c = 0; c < NR(combine_hows); c++)
			add_pair(lab, pairs, best_of(&ways[0], dispatch_hows[d]), best_of(&ways[1], combine_hows[c]));
	bad = lab_run(lab, time_pairs, pairs);
	for (uint32_t i = 0; i < pairs->nr; i++) {
		lab_slowest(lab, pairs->pair[i].us, 4 * TURNS * BURST, &p50, &p99);
		first = i ? first : p50;
		printf("  D+C %6.2f us (p99 %6.2f, %+6.2f)  ", p50, p99, p50 - first);
		print_way(pairs->pair[i].dispatch);
		printf(" | ");
		print_way(pairs->pair[i].combine);
		printf("%s\n", i ? "" : "  <- the library's");
		for (uint32_t r = 0; r < lab->nr_ranks; r++)
			free(pairs->pair[i].us[r]);
	}
	free(pairs);
	return bad;
}

static void print_floors(struct lab *lab)
{
	struct lab_times empty, copy;

	time_floors(lab, 100, &empty, &copy);
	printf("  empty: D %.2f, D+C %.2f us; copy: D %.2f, C %.2f, D+C %.2f us\n", empty.dispatch, empty.pair, copy.dispatch, copy.combine, copy.pair);
}

/* What straight code costs that a warp runs for the first time. Before it the exchange's kernels have run on the same SMs. */
static uint64_t time_code(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	enum { BLOCKS = 132 };
	uint2 *clocks;
	double sum[2] = {0};

	(void)lab;
	(void)ctx;
	if (rank->rank)
		return 0;
	CHECK(cudaMallocHost((void **)&clocks, BLOCKS * sizeof(*clocks)));
	CHECK(lab_code_launch(clocks, BLOCKS, 1.0f, rank->stream));
	CHECK(cudaStreamSynchronize(rank->stream));
	for (int b = 0; b < BLOCKS; b++) {
		sum[0] += clocks[b].x;
		sum[1] += clocks[b].y;
	}
	printf("  straight code, clocks an instruction: %.2f the first time, %.2f the second\n", sum[0] / BLOCKS / LAB_CODE, sum[1] / BLOCKS / LAB_CODE);
	CHECK(cudaFreeHost(clocks));
	return 0;
}

static struct lab_way rule_way(const struct target *t, uint32_t nr_ranks)
{
	uint32_t vectors = ll_rule_vectors(t->tokens);

	return (struct lab_way){.row_vectors = vectors,
		.result_vectors = vectors,
		.share = ll_rule_share(vectors, nr_ranks),
		.dispatch = {ll_rule_dispatch_blocks(t->tokens), LL_MAX_WARPS, LL_DISPATCH_SENDERS, 0},
		.combine = {ll_rule_combine_blocks(t->tokens), LL_MAX_WARPS, LL_COMBINE_SENDERS, 0}};
}

/* Block 0 of each of the dispatch's kernels, with the combine's last. */
static void trace_ways(struct lab *lab, const struct target *t, const struct ways *ways)
{
	for (uint32_t i = 0; i < NR(dispatch_hows); i++) {
		const struct way *d = best_of(&ways[0], dispatch_hows[i]), *c = best_of(&ways[1], i ? LL_AHEAD : 0);
		struct lab_way way = rule_way(t, lab->nr_ranks);

		if (!d || !c)
			continue;
		way.share = d->share;
		way.dispatch = d->launch;
		way.dispatch_how = d->how;
		way.combine = c->launch;
		way.combine_how = c->how;
		printf("  %s | %s\n", how_name(d->how), how_name(c->how));
		print_trace(lab, &way);
	}
}

static uint64_t time_target(struct lab *lab, const struct target *t)
{
	struct ways *ways = calloc(2, sizeof(*ways));
	struct shape s = target_shape(t);
	struct lab_way way = rule_way(t, lab->nr_ranks);
	struct job job;
	uint64_t bad;

	shape_job(&s, lab->nr_ranks, &job);
	if (job_open(&job, NULL))
		return 1;
	lab_setup(lab, &job, &way);
	for (uint32_t i = 0; i < NR(dispatch_hows); i++)
		add_how(lab, &ways[0], t, true, dispatch_hows[i]);
	for (uint32_t i = 0; i < NR(combine_hows); i++)
		add_how(lab, &ways[1], t, false, combine_hows[i]);
	bad = lab_run(lab, time_halves, ways);
	bad += lab_run(lab, time_code, NULL);
	print_floors(lab);
	print_halves(lab, &ways[0], dispatch_hows, NR(dispatch_hows));
	print_halves(lab, &ways[1], combine_hows, NR(combine_hows));
	bad += run_pairs(lab, ways);
	trace_ways(lab, t, ways);
	for (int half = 0; half < 2; half++)
		free_ways(&ways[half]);
	free(ways);
	job_close(&job);
	return bad;
}

/* ---- verification -------------------------------------------------------------------------------------------- */

/* Every kernel that fits the shape at least once, `rounds` of each: the launch changes from one to the next. */
static uint64_t verify_ways(struct lab *lab, const struct shape *s, uint32_t vectors, uint64_t rounds)
{
	const uint32_t launches[][3] = {{s->blocks, 16, 4}, {s->blocks, 8, 2}, {5, 4, 1}, {7, 12, 6}};
	uint64_t bad = 0, total = 0;
	struct job job;

	for (uint32_t i = 0; i < NR(dispatch_hows) && !bad; i++) {
		const uint32_t *d = launches[i % 4], *c = launches[(i + 1) % 4];
		struct lab_way way = {.row_vectors = vectors, .result_vectors = vectors, .share = i % 2 ? 1 : lab->nr_ranks,
			.dispatch = {d[0], d[1], d[2], 0}, .combine = {c[0], c[1], c[2], i & 1},
			.dispatch_how = dispatch_hows[i], .combine_how = combine_hows[i % NR(combine_hows)]};

		shape_job(s, lab->nr_ranks, &job);
		if (job_open(&job, NULL))
			return 1;
		lab_setup(lab, &job, &way);
		job_close(&job);
		if (!fits(lab, true, way.dispatch_how))
			continue;
		if (!fits(lab, false, way.combine_how))
			way.combine_how = LL_AHEAD;
		shape_job(s, lab->nr_ranks, &job);
		bad = verify_case(lab, &job, &way, rounds);
		total += bad ? 0 : rounds;
		if (bad)
			printf("  WRONG: %s, %u vectors; dispatch %s, combine %s\n", s->name, vectors, how_name(way.dispatch_how), how_name(way.combine_how));
	}
	printf("  %-32s %u vectors: %llu rounds %s\n", s->name, vectors, (unsigned long long)total, bad ? "and one WRONG" : "right");
	fflush(stdout);
	return bad;
}

static const struct shape small[] = {
	{"1 token", 512, 64, 8, 1, 1, .fp8 = true, .input = INPUT_RANDOM, .blocks = 6, .rounds = 40},
	{"5 of 7, uneven, -1", 512, 64, 8, 5, 7, .fp8 = true, .input = INPUT_RANDOM, .uneven = true, .drop = 0.3, .blocks = 6, .rounds = 60},
	{"28 tokens, as many as one piece has", 256, 32, 8, 28, 28, .input = INPUT_RANDOM, .uneven = true, .drop = 0.1, .blocks = 6, .rounds = 40},
	{"29 tokens, one more", 256, 32, 8, 29, 29, .input = INPUT_RANDOM, .uneven = true, .drop = 0.1, .blocks = 6, .rounds = 40},
	{"top-2, 112 tokens", 128, 16, 2, 100, 112, .fp8 = true, .input = INPUT_RANDOM, .uneven = true, .blocks = 6, .rounds = 30},
	{"top-32, 7 tokens", 256, 64, 32, 7, 7, .input = INPUT_RANDOM, .uneven = true, .drop = 0.4, .blocks = 6, .rounds = 40},
	{"top-6", 384, 24, 6, 9, 12, .fp8 = true, .input = INPUT_RANDOM, .uneven = true, .drop = 0.1, .blocks = 6, .rounds = 40},
	{"70 of 128, zipf", 2048, 128, 8, 70, 128, .fp8 = true, .input = INPUT_RANDOM, .routing = ROUTING_ZIPF, .uneven = true, .blocks = 6, .rounds = 12},
	{"short last line", 2880, 32, 4, 9, 20, .fp8 = true, .input = INPUT_RANDOM, .uneven = true, .blocks = 6, .rounds = 30},
	{"special values", 1024, 32, 4, 6, 8, .fp8 = true, .input = INPUT_SPECIAL, .blocks = 6, .rounds = 30},
	{"home", 512, 32, 4, 20, 24, .at_home = true, .input = INPUT_RANDOM, .uneven = true, .drop = 0.1, .blocks = 6, .rounds = 30},
	{"all to one rank", 512, 64, 8, 12, 16, .fp8 = true, .input = INPUT_RANDOM, .routing = ROUTING_ONE, .blocks = 6, .rounds = 30},
	{"no tokens", 512, 64, 8, 0, 4, .fp8 = true, .input = INPUT_RANDOM, .blocks = 6, .rounds = 10},
};

int try_ways(uint32_t nr_ranks, double factor)
{
	static const uint32_t vectors[] = {1, 2, 4};
	struct lab lab;
	uint64_t bad = 0;

	lab_open(&lab, nr_ranks, 300u << 20, 64u << 20);
	for (uint32_t i = 0; i < NR(small) && !bad; i++)
		for (uint32_t v = 0; v < NR(vectors) && !bad; v++)
			bad = verify_ways(&lab, &small[i], vectors[v], 1 + (uint64_t)(small[i].rounds * factor));
	lab_close(&lab);
	printf("try, %u ranks: %s\n", nr_ranks, bad ? "WRONG" : "all right");
	return bad ? 1 : 0;
}

static double seconds_since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

int candidates(uint32_t nr_ranks, uint32_t only)
{
	struct timespec start;
	struct lab lab;
	uint64_t bad = 0;

	clock_gettime(CLOCK_MONOTONIC, &start);
	lab_open(&lab, nr_ranks, 1200u << 20, 160u << 20);
	for (uint32_t i = 0; i < NR_TARGETS && !bad; i++) {
		const struct target *t = &targets[i];
		struct shape s = target_shape(t);

		if (only < NR_TARGETS && only != i)
			continue;
		printf("%s, %u tokens, %u ranks\n", t->name, t->tokens, nr_ranks);
		s.blocks = 132;
		s.uneven = true;
		s.drop = 0.05;
		bad = verify_ways(&lab, &s, ll_rule_vectors(t->tokens), t->tokens <= 8 ? 20 : t->tokens <= 32 ? 8 : 4);
		bad = bad ? bad : time_target(&lab, t);
		printf("  %.1f s since the start\n", seconds_since(&start));
		fflush(stdout);
	}
	lab_close(&lab);
	printf("candidates: %s, %.1f s\n", bad ? "WRONG, or a wait expired" : "all right", seconds_since(&start));
	return bad ? 1 : 0;
}
