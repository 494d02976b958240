/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel and which launch is the best for each case: every kernel that fits, with several
 * launches, in the same buffers and rounds of the same inputs. In each turn every way gets a burst
 * of rounds, so that what changes with time hits all alike. */
#include "bench/lab/lab_ll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/cuda/tuning.h"
#include "gpu/wire/sizes.h"

#define MOST_WAYS 160
#define TURNS 7
#define DROPPED 2 /* rounds at the start of a burst */
#define BURST 8
#define PAIR_ROUNDS 200

static const uint32_t vectors[] = {1, 2, 4};
#define NR(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

/* ---- ways ------------------------------------------------------------------------------------ */

/* One half, one way. */
struct way {
	bool dispatch;
	uint32_t vectors, share;
	struct gpu_launch launch;
	float *us[LAB_MAX_GPUS]; /* [TURNS * BURST] */
	double p50;
};

struct ways {
	struct way way[MOST_WAYS];
	uint32_t nr;
};

static void add_way(const struct lab *lab, struct ways *ways, bool dispatch, uint32_t nr_vectors,
	struct gpu_launch launch, uint32_t share)
{
	struct way *w = &ways->way[ways->nr];

	if (ways->nr == MOST_WAYS)
		return;
	*w = (struct way){
		.dispatch = dispatch, .vectors = nr_vectors, .share = share, .launch = launch};
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

/* Launches around what the number of segments asks for. */
static void add_launches(const struct lab *lab, struct ways *ways, const struct target *t,
	bool dispatch, uint32_t nr_vectors)
{
	static const uint32_t few[][3] = {{12, 8, 2}, {24, 8, 2}, {24, 8, 4}, {48, 8, 2},
		{48, 8, 4}, {48, 16, 4}, {64, 16, 4}, {96, 8, 4}, {96, 16, 8}, {132, 8, 4},
		{132, 16, 4}, {64, 16, 8}, {132, 16, 8}};
	static const uint32_t many[][3] = {{132, 16, 2}, {132, 16, 4}, {132, 16, 6}, {132, 16, 8},
		{132, 16, 10}, {132, 16, 12}, {132, 12, 6}, {132, 8, 4}, {96, 16, 8}, {96, 16, 6},
		{96, 16, 4}, {112, 16, 4}, {112, 16, 6}, {112, 16, 8}, {64, 16, 8}, {64, 16, 4},
		{132, 16, 14}};
	const uint32_t(*grid)[3] = t->tokens <= 16 ? few : many;

	for (uint32_t i = 0; i < (t->tokens <= 16 ? NR(few) : NR(many)); i++) {
		struct gpu_launch launch = ll_blocks(grid[i][0], grid[i][1], grid[i][2]);

		add_way(lab, ways, dispatch, nr_vectors, launch, 1);
		launch.send_warps = launch.nr_warps;
		if (!dispatch && nr_vectors <= 2 &&
			(i == 0 || memcmp(grid[i - 1], grid[i], 2 * sizeof(grid[0][0])))) /* all
											     send,
											     and
											     then
											     receive
											   */
			add_way(lab, ways, dispatch, nr_vectors, launch, 1);
		launch.send_warps = grid[i][2];
		if (dispatch && nr_vectors > 1)
			add_way(lab, ways, dispatch, nr_vectors, launch, 2);
		if (dispatch && nr_vectors > 1 && lab->nr_ranks > 2)
			add_way(lab, ways, dispatch, nr_vectors, launch, lab->nr_ranks);
	}
}

static void put_half(const struct lab_rank *rank, const struct way *w)
{
	struct gpu_dispatch d = rank->dispatch;

	d.by_share = gpu_divisor_of(w->share);
	CHECK(w->dispatch ? ll_dispatch_launch(&d, &w->launch, rank->stream)
			  : ll_combine_launch(&rank->combine, &w->launch, rank->stream));
}

static struct lab_graph capture(struct lab_rank *rank, const struct way *way)
{
	lab_capture(rank);
	put_half(rank, way);
	return lab_captured(rank);
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* Number i of the dispatch's ways with number i of the combine's; the shorter list goes round. */
static uint64_t time_halves(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct ways *ways = ctx; /* [2] */
	uint32_t most = ways[0].nr > ways[1].nr ? ways[0].nr : ways[1].nr;
	struct lab_graph graphs[2][MOST_WAYS];

	lab_inputs(lab, rank, 1);
	for (int half = 0; half < 2; half++)
		for (uint32_t i = 0; i < ways[half].nr; i++)
			graphs[half][i] = capture(rank, &ways[half].way[i]);
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
	for (uint32_t turn = 0; turn < TURNS; turn++)
		for (uint32_t i = 0; i < most; i++)
			for (uint32_t b = 0; b < DROPPED + BURST; b++) {
				for (int half = 0; half < 2; half++)
					lab_replay(lab, rank, &graphs[half][i % ways[half].nr]);
				CHECK(cudaStreamSynchronize(rank->stream));
				for (int half = 0; half < 2 && b >= DROPPED; half++)
					ways[half]
						.way[i % ways[half].nr]
						.us[rank->rank][turn * BURST + b - DROPPED] =
						lab_elapsed_us(&graphs[half][i % ways[half].nr]);
			}
	for (int half = 0; half < 2; half++)
		for (uint32_t i = 0; i < ways[half].nr; i++)
			lab_graph_close(&graphs[half][i]);
	return lab_expired(rank);
}

/* ---- a case ---------------------------------------------------------------------------------- */

static void print_way(const struct way *w)
{
	printf("%c %u vectors, %3u blocks, %2u of %2u warps send, share %u: %6.2f us",
		w->dispatch ? 'D' : 'C', w->vectors, w->launch.nr_blocks, w->launch.send_warps,
		w->launch.nr_warps, w->share, w->p50);
}

/* The best three; the best of all goes to best. */
static void keep_best(const struct lab *lab, struct ways *ways, struct way *best)
{
	for (uint32_t i = 0; i < ways->nr; i++)
		lab_slowest(lab, ways->way[i].us, TURNS * BURST, &ways->way[i].p50, NULL);
	for (uint32_t shown = 0; shown < 3; shown++) {
		struct way *least = NULL;

		for (uint32_t i = 0; i < ways->nr; i++)
			if (ways->way[i].p50 > 0 && (!least || ways->way[i].p50 < least->p50))
				least = &ways->way[i];
		if (!least)
			break;
		printf("  ");
		print_way(least);
		printf("\n");
		if (!best->p50 || least->p50 < best->p50)
			*best = *least;
		least->p50 = 0;
	}
}

static void print_pair(struct lab *lab, const char *what, const struct lab_way *way)
{
	struct lab_times times;

	time_case(lab, way, PAIR_ROUNDS, true, &times);
	printf("  %-18s D %6.2f (p99 %6.2f)  C %6.2f (p99 %6.2f)  D+C %6.2f (p99 %6.2f)  chained "
	       "%6.2f\n",
		what, times.dispatch, times.dispatch_p99, times.combine, times.combine_p99,
		times.pair, times.pair_p99, times.chained);
}

static struct lab_way rule_way(const struct lab *lab, const struct target *t)
{
	uint32_t y_bytes = (uint32_t)job_y_bytes(lab->job),
		 row_vectors = ll_rule_row_vectors(t->fp8, t->tokens);
	uint32_t result_vectors = ll_rule_result_vectors(t->tokens, lab->nr_ranks);
	struct row_geometry row = row_geometry_of(GPU_FLAG128, t->fp8,
				    (uint32_t)job_received_bytes(lab->job), row_vectors),
			    result = row_geometry_of(GPU_FLAG128, 0, y_bytes, result_vectors);
	struct ll_sizes sizes = {.row = &row,
		.nr_ranks = lab->nr_ranks,
		.nr_tokens = t->tokens,
		.max_tokens = t->tokens,
		.scaled = t->fp8,
		.quantised = t->fp8};

	return (struct lab_way){.row_vectors = row_vectors,
		.result_vectors = result_vectors,
		.share = ll_rule_share(&sizes),
		.dispatch = ll_rule_dispatch(&sizes),
		.combine = ll_rule_combine(t->tokens, t->tokens, lab->nr_ranks, &result,
			gpu_ceil(lab->job->config.topk, lab->nr_ranks),
			ll_combine_whole(&lab->ranks[0].combine))};
}

/* The library's, the best halves together, and those with the combine launched early. */
static void time_pairs(struct lab *lab, const struct target *t, const struct way *best)
{
	struct lab_way way = rule_way(lab, t);
	struct lab_times empty, copy;

	lab_setup(lab, lab->job, &way);
	time_floors(lab, PAIR_ROUNDS, &empty, &copy);
	printf("  empty: D %.2f, D+C %.2f us; copy: D %.2f, C %.2f, D+C %.2f us\n", empty.dispatch,
		empty.pair, copy.dispatch, copy.combine, copy.pair);
	print_pair(lab, "library", &way);
	print_trace(lab, &way);
	way.dispatch.early = way.combine.early = 1;
	print_pair(lab, "library, early", &way);
	way = (struct lab_way){.row_vectors = best[0].vectors,
		.result_vectors = best[1].vectors,
		.share = best[0].share,
		.dispatch = best[0].launch,
		.combine = best[1].launch};
	print_pair(lab, "best", &way);
	print_trace(lab, &way);
	way.dispatch.early = way.combine.early = 1;
	print_pair(lab, "best, early", &way);
	print_trace(lab, &way);
}

static uint64_t sweep_target(struct lab *lab, const struct job *job, const struct target *t)
{
	struct way best[2] = {{.p50 = 0}, {.p50 = 0}};
	struct ways *ways = calloc(2, sizeof(*ways));
	uint64_t bad = 0;

	for (uint32_t v = 0; v < NR(vectors); v++) {
		struct lab_way way = {.row_vectors = vectors[v] == 1 ? 2 : vectors[v],
			.result_vectors = vectors[v],
			.share = 1};

		if ((vectors[v] == 4 && t->tokens <= 8))
			continue;
		lab_setup(lab, job, &way);
		add_launches(lab, &ways[0], t, true, way.row_vectors);
		add_launches(lab, &ways[1], t, false, way.result_vectors);
		bad += lab_run(lab, time_halves, ways);
		for (int half = 0; half < 2; half++) {
			keep_best(lab, &ways[half], &best[half]);
			free_ways(&ways[half]);
		}
	}
	free(ways);
	if (!bad)
		time_pairs(lab, t, best);
	return bad;
}

/* The library's launch alone, and when its blocks come where. */
static void trace_target(struct lab *lab, const struct job *job, const struct target *t)
{
	struct lab_way way = {.row_vectors = 2, .result_vectors = 2, .share = 1};

	lab_setup(lab, job, &way); /* the rule asks for what a combine can do */
	way = rule_way(lab, t);
	way.dispatch.early = way.combine.early = 1;
	print_pair(lab, "library, early", &way);
	print_trace(lab, &way);
}

static uint64_t run_target(struct lab *lab, const struct target *t, bool whole)
{
	struct shape s = target_shape(t);
	uint64_t bad = 0;
	struct job job;

	shape_job(&s, lab->nr_ranks, &job);
	if (job_open(&job, NULL))
		return 1;
	if (whole)
		bad = sweep_target(lab, &job, t);
	else
		trace_target(lab, &job, t);
	job_close(&job);
	return bad;
}

static double seconds_since(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

int sweep(uint32_t nr_ranks, uint32_t only, bool whole)
{
	struct timespec start;
	struct lab lab;
	uint64_t bad = 0;

	clock_gettime(CLOCK_MONOTONIC, &start);
	lab_open(&lab, nr_ranks, 1200u << 20, 160u << 20);
	for (uint32_t i = 0; i < NR_TARGETS && !bad; i++) {
		if (!(only >> i & 1))
			continue;
		printf("%s, %u tokens, %u ranks\n", targets[i].name, targets[i].tokens, nr_ranks);
		bad = run_target(&lab, &targets[i], whole);
		printf("  %.1f s since the start\n", seconds_since(&start));
		fflush(stdout);
	}
	lab_close(&lab);
	if (bad)
		printf("sweep: a wait expired\n");
	return bad ? 1 : 0;
}
