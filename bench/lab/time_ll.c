/* SPDX-License-Identifier: Apache-2.0 */
/* Times halves and pairs by graph replay. A gate lets all GPUs start together; the time of a round
 * is the slowest GPU's. */
#include "bench/lab/lab_ll.h"

#include <stdlib.h>
#include <string.h>

#define WARM_UP 10
#define CHAIN 10 /* pairs in the chained graph */

enum graph_kind {
	GRAPH_DISPATCH,
	GRAPH_COMBINE,
	GRAPH_PAIR,
	GRAPH_CHAIN,
	NR_GRAPHS
};

struct timing {
	uint32_t rounds;
	bool pairs;
	int floor; /* 0: the exchange; 1: empty kernels; 2: copies */
	float *us[NR_GRAPHS][LAB_MAX_GPUS];
	struct lab_copy copies[LAB_MAX_GPUS][2];
};

static void launch_half(struct lab *lab, struct lab_rank *rank, const struct timing *timing,
	bool dispatch, bool early)
{
	struct gpu_launch launch = dispatch ? lab->way.dispatch : lab->way.combine;

	launch.early = launch.early && early;
	if (timing->floor == 1)
		CHECK(lab_empty_launch(launch.nr_blocks, launch.nr_warps * 32, rank->stream));
	else if (timing->floor == 2)
		CHECK(lab_copy_launch(
			&timing->copies[rank->rank][!dispatch], 132, 512, rank->stream));
	else if (dispatch)
		CHECK(ll_dispatch_launch(&rank->dispatch, &launch, rank->stream));
	else
		CHECK(ll_combine_launch(&rank->combine, &launch, rank->stream));
}

static struct lab_graph capture(
	struct lab *lab, struct lab_rank *rank, const struct timing *timing, enum graph_kind kind)
{
	int nr = kind == GRAPH_CHAIN ? CHAIN : 1;

	lab_capture(rank);
	for (int i = 0; i < nr; i++) {
		if (kind != GRAPH_COMBINE)
			launch_half(lab, rank, timing, true, i > 0);
		if (kind != GRAPH_DISPATCH)
			launch_half(lab, rank, timing, false, kind != GRAPH_COMBINE);
	}
	return lab_captured(rank);
}

static uint64_t time_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct timing *timing = ctx;
	struct lab_graph graphs[NR_GRAPHS];
	int last = timing->pairs ? NR_GRAPHS : GRAPH_PAIR;

	if (!timing->floor)
		lab_inputs(lab, rank, 1);
	for (int g = 0; g < last; g++)
		graphs[g] = capture(lab, rank, timing, g);
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
	for (uint32_t i = 0; i < WARM_UP + timing->rounds; i++) {
		for (int g = 0; g < last; g++)
			lab_replay(lab, rank, &graphs[g]);
		CHECK(cudaStreamSynchronize(rank->stream));
		for (int g = 0; g < last && i >= WARM_UP; g++)
			timing->us[g][rank->rank][i - WARM_UP] =
				lab_elapsed_us(&graphs[g]) / (g == GRAPH_CHAIN ? CHAIN : 1);
	}
	for (int g = 0; g < last; g++)
		lab_graph_close(&graphs[g]);
	return lab_expired(rank);
}

static void time_all(struct lab *lab, struct timing *timing, struct lab_times *times)
{
	memset(times, 0, sizeof(*times));
	for (int g = 0; g < NR_GRAPHS; g++)
		for (uint32_t r = 0; r < lab->nr_ranks; r++)
			timing->us[g][r] = calloc(timing->rounds, sizeof(float));
	if (lab_run(lab, time_rank, timing))
		exit(1);
	lab_slowest(lab, timing->us[GRAPH_DISPATCH], timing->rounds, &times->dispatch,
		&times->dispatch_p99);
	lab_slowest(lab, timing->us[GRAPH_COMBINE], timing->rounds, &times->combine,
		&times->combine_p99);
	if (timing->pairs) {
		lab_slowest(lab, timing->us[GRAPH_PAIR], timing->rounds, &times->pair,
			&times->pair_p99);
		lab_slowest(lab, timing->us[GRAPH_CHAIN], timing->rounds, &times->chained, NULL);
	}
	for (int g = 0; g < NR_GRAPHS; g++)
		for (uint32_t r = 0; r < lab->nr_ranks; r++)
			free(timing->us[g][r]);
}

void time_case(struct lab *lab, const struct lab_way *way, uint32_t rounds, bool pairs,
	struct lab_times *times)
{
	struct timing timing = {.rounds = rounds, .pairs = pairs};

	lab_setup(lab, lab->job, way);
	time_all(lab, &timing, times);
}

/* Rows that each rank sends to each other one: a pair's bytes. */
static void plan_copies(struct lab *lab, struct timing *timing)
{
	const struct job *job = lab->job;
	uint32_t R = lab->nr_ranks, K = job->config.topk, each = job->config.nr_experts / R;
	uint64_t row = job_received_bytes(job) + job_received_scales_bytes(job),
		 result = job_y_bytes(job);
	int32_t *ids = calloc((size_t)job->nr_tokens * K + 1, sizeof(*ids));
	float *weights = calloc((size_t)job->nr_tokens * K + 1, sizeof(*weights));

	for (uint32_t r = 0; r < R; r++)
		for (int half = 0; half < 2; half++)
			timing->copies[r][half] = (struct lab_copy){
				.from = lab->ranks[r].out_x, .rank = r, .nr_ranks = R};
	for (uint32_t r = 0; r < R; r++) {
		job_routes(job, 1, r, ids, weights);
		for (uint32_t t = 0; t < job->nr_tokens; t++)
			for (uint32_t q = 0; q < R; q++) {
				bool goes = false;

				for (uint32_t k = 0; k < K; k++)
					goes |= ids[t * K + k] >= 0 &&
						(uint32_t)ids[t * K + k] / each == q;
				if (!goes || q == r)
					continue;
				timing->copies[r][0].bytes[q] += row;
				timing->copies[q][1].bytes[r] += result;
			}
	}
	for (uint32_t r = 0; r < R; r++)
		for (uint32_t q = 0; q < R; q++) {
			timing->copies[r][0].to[q] =
				lab->ranks[q].window +
				r * (lab->ranks[q].dispatch.exchange.window.bytes / R / 128 * 128);
			timing->copies[r][1].to[q] = timing->copies[r][0].to[q];
		}
	free(ids);
	free(weights);
}

void time_floors(struct lab *lab, uint32_t rounds, struct lab_times *empty, struct lab_times *copy)
{
	struct timing timing = {.rounds = rounds, .pairs = true, .floor = 1};

	time_all(lab, &timing, empty);
	timing.floor = 2;
	plan_copies(lab, &timing);
	time_all(lab, &timing, copy);
}
