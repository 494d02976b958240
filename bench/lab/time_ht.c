/* SPDX-License-Identifier: Apache-2.0 */
/* Times high throughput by graph replay, and what it is measured against. A gate lets all GPUs
 * start together; the time of a round is the slowest GPU's. */
#include "bench/lab/lab_ht.h"

#include <stdio.h>

#define ROUNDS 12
#define WARM_UP 3

/* ---- timing ---------------------------------------------------------------------------------- */

static float times[NR_TIMED][LAB_MAX_GPUS][ROUNDS];

static double slowest(const struct lab *lab, float (*us)[ROUNDS])
{
	float *of_rank[LAB_MAX_GPUS];
	double p50;

	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		of_rank[r] = us[r];
	lab_slowest(lab, of_rank, ROUNDS, &p50, NULL);
	return p50;
}

/* The plan by itself changes nothing: the dispatch behind it, which has its own, comes to the same.
 */
static struct lab_graph capture(struct lab_rank *rank, const struct ht_way *w, enum ht_timed what)
{
	lab_capture(rank);
	if (what != TIME_COMBINE)
		put_plan(rank, w);
	if (what == TIME_DISPATCH || what == TIME_PAIR)
		put_dispatch(rank, w);
	if (what == TIME_COMBINE || what == TIME_PAIR)
		put_combine(rank, w);
	return lab_captured(rank);
}

static uint64_t time_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct lab_graph graphs[NR_TIMED];

	(void)ctx;
	for (int g = 0; g < NR_TIMED; g++)
		graphs[g] = capture(rank, way_now, g);
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
	for (int i = -WARM_UP; i < ROUNDS; i++) {
		for (int g = 0; g < NR_TIMED; g++)
			lab_replay(lab, rank, &graphs[g]);
		CHECK(cudaStreamSynchronize(rank->stream));
		for (int g = 0; g < NR_TIMED && i >= 0; g++)
			times[g][rank->rank][i] = lab_elapsed_us(&graphs[g]);
	}
	for (int g = 0; g < NR_TIMED; g++)
		lab_graph_close(&graphs[g]);
	return lab_expired(rank);
}

uint64_t time_way(struct lab *lab, double us[NR_TIMED])
{
	uint64_t expired = lab_run(lab, time_rank, NULL);

	for (int t = 0; t < NR_TIMED; t++)
		us[t] = slowest(lab, times[t]);
	return expired;
}

/* ---- floors ---------------------------------------------------------------------------------- */

struct floor {
	const char *name;
	uint32_t blocks, warps, chunk; /* chunk 0: plain stores; else the copy engine */
	bool from_memory, local, read_only;
};

static const struct floor floors[] = {
	{"plain stores", 132, 16, 0, false, false, false},
	{"plain stores", 24, 16, 0, false, false, false},
	{"plain stores", 24, 32, 0, false, false, false},
	{"plain stores", 12, 32, 0, false, false, false},
	{"bulk", 132, 16, 2048, true, false, false},
	{"bulk", 132, 8, 7168, true, false, false},
	{"bulk", 132, 4, 14336, true, false, false},
	{"bulk", 64, 8, 7168, true, false, false},
	{"bulk", 24, 16, 2048, true, false, false},
	{"bulk", 24, 8, 7168, true, false, false},
	{"bulk", 24, 4, 14336, true, false, false},
	{"bulk, nothing read", 24, 8, 7168, false, false, false},
	{"bulk", 12, 16, 2048, true, false, false},
	{"bulk", 12, 8, 7168, true, false, false},
	{"bulk, nothing read", 12, 8, 7168, false, false, false},
	{"bulk, only read", 132, 16, 2048, true, true, true},
	{"bulk, only read", 24, 16, 2048, true, true, true},
	{"bulk, only read", 24, 8, 7168, true, true, true},
	{"bulk, own memory", 132, 8, 7168, true, true, false},
	{"bulk, own memory", 24, 8, 7168, true, true, false},
	{"bulk, own memory", 24, 16, 2048, true, true, false},
};

static const struct floor *floor_now;
static uint32_t floor_row;

#define WHOLE 14336 /* bytes: of the largest chunk, and a multiple of all */

static uint64_t remote_bytes(uint32_t rank, uint32_t to)
{
	return to == rank ? 0 : remote_rows[rank][to] * floor_row / WHOLE * WHOLE;
}

/* In the own memory: a quarter of the rows that a rank receives in deepseek-v3's BF16, if there is
 * as much. */
static uint64_t local_bytes(uint32_t rank)
{
	uint64_t wanted = 32768ull * 14336 / 4, most = more[rank].x_bytes / WHOLE * WHOLE;

	return wanted < most ? wanted : most;
}

static void put_floor(struct lab *lab, struct lab_rank *rank)
{
	const struct floor *f = floor_now;
	uint32_t R = lab->nr_ranks, other = (rank->rank + 1) % R;
	uint64_t bytes = remote_bytes(rank->rank, other);
	struct lab_bulk bulk = {.from = rank->y,
		.bytes = bytes,
		.nr_to = R - 1,
		.chunk_bytes = f->chunk,
		.from_memory = f->from_memory};

	if (!f->chunk) {
		struct lab_copy copy = {.from = rank->y, .rank = rank->rank, .nr_ranks = R};

		for (uint32_t r = 0; r < R; r++) {
			copy.to[r] = more[r].sink +
				     (r > rank->rank ? rank->rank : rank->rank - 1) * bytes;
			copy.bytes[r] = r == rank->rank ? 0 : bytes;
		}
		CHECK(lab_copy_launch(&copy, f->blocks, f->warps * 32, rank->stream));
		return;
	}
	for (uint32_t i = 0; i + 1 < R; i++) {
		uint32_t r = (rank->rank + 1 + i) % R;

		bulk.to[i] = more[r].sink + (r > rank->rank ? rank->rank : rank->rank - 1) * bytes;
	}
	if (f->local) {
		bulk.bytes = local_bytes(rank->rank);
		bulk.nr_to = !f->read_only;
		bulk.to[0] = more[rank->rank].window + more[rank->rank].ht.window.x;
	}
	bulk.bytes = bulk.bytes / f->chunk * f->chunk;
	CHECK(lab_bulk_launch(&bulk, f->blocks, f->warps, rank->stream));
}

static uint64_t floor_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct lab_graph graph;

	(void)ctx;
	lab_capture(rank);
	put_floor(lab, rank);
	graph = lab_captured(rank);
	for (int i = -WARM_UP; i < ROUNDS; i++) {
		lab_replay(lab, rank, &graph);
		CHECK(cudaStreamSynchronize(rank->stream));
		if (i >= 0)
			times[0][rank->rank][i] = lab_elapsed_us(&graph);
	}
	lab_graph_close(&graph);
	return 0;
}

static double time_floor(struct lab *lab, const struct floor *f, uint32_t row)
{
	floor_now = f;
	floor_row = row;
	lab_run(lab, floor_rank, NULL);
	return slowest(lab, times[0]);
}

void time_bytes(struct lab *lab, double us[2][2])
{
	uint32_t row = shape->fp8 ? shape->hidden + shape->hidden / 128 * 4 : 2 * shape->hidden;

	for (int few = 0; few < 2; few++) {
		us[few][0] = time_floor(lab, &floors[few ? 9 : 5], row);
		us[few][1] = time_floor(lab, &floors[few ? 9 : 5], 2 * shape->hidden);
	}
}

void print_floors(struct lab *lab)
{
	for (uint32_t i = 0; i < NR(floors); i++) {
		const struct floor *f = &floors[i];
		double us = time_floor(lab, f, 2 * shape->hidden);
		uint64_t bytes =
			f->local ? local_bytes(0) : (lab->nr_ranks - 1) * remote_bytes(0, 1);

		printf("  floor: %-20s %3u blocks, %2u warps, chunks of %5u: %7.1f us, %6.1f GB/s "
		       "a GPU%s\n",
			f->name, f->blocks, f->warps, f->chunk, us,
			(double)bytes / (us - 4.5) / 1e3, f->local ? " (own memory)" : "");
	}
}
