/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-ways: should rows be stored or fetched, once a rank or once an expert, with an epoch in
 * each line or a flag behind so many rows, by lanes or by the copy engine? Each way by itself, with
 * no plan and nothing to compute: from the start of all GPUs until every row is where it belongs on
 * the slowest. Every row is compared. */
#include "bench/lab/gpus.h"

#include <stdio.h>
#include <string.h>

#include "bench/lab/floor_ht.h"
#include "bench/lab/ways/transfer.h"

#define ROUNDS 60
#define WARM_UP 5
#define MOST_ROWS 3712
#define ROW_BYTES 7168
#define COPIES 2 /* a token of deepseek-v3 goes to 3.6 of 4 ranks, for 8 experts */

struct shape {
	uint32_t tokens, rows; /* of each rank; from each to each other one, on 4 ranks */
	uint32_t few, many;    /* blocks */
};

static const struct shape shapes[] = {
	{1, 1, 24, 132}, {8, 8, 24, 132}, {128, 116, 24, 132}, {4096, 3712, 24, 132}};

static const struct {
	enum transfer_way way;
	uint32_t unit;
	const char *what;
} ways[] = {
	{PUSH_LINES, 1, "stores, an epoch in each line"},
	{PUSH_STORES, 1, "stores, a flag a row"},
	{PUSH_STORES, 8, "stores, a flag behind 8 rows"},
	{PUSH_STORES, 0, "stores, a flag a rank"},
	{PUSH_BULK, 1, "copy engine, a flag a row"},
	{PUSH_BULK, 8, "copy engine, a flag behind 8 rows"},
	{PUSH_BULK, 0, "copy engine, a flag a rank"},
	{PUSH_TO_PLACES, 1, "stores, to each place, a flag a row"},
	{PUSH_TO_PLACES, 0, "stores, to each place, a flag a rank"},
	{PUSH_BULK_TO_PLACES, 8, "copy engine, to each place, 8 rows"},
	{PUSH_BULK_TO_PLACES, 0, "copy engine, to each place, a rank"},
	{PULL_LOADS, 0, "fetched by loads"},
	{PULL_BULK, 0, "fetched by the copy engine"},
};
#define NR(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

struct run {
	struct transfer t;
	uint32_t nr_blocks;
	struct transfer of[LAB_MAX_GPUS];
	unsigned long long *different[LAB_MAX_GPUS]; /* on each GPU */
	float us[LAB_MAX_GPUS][ROUNDS];
};

static uint32_t epoch = 1;

static uint64_t place_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct run *run = ctx;
	struct transfer *t = &run->of[rank->rank];
	uint64_t rows = (uint64_t)lab->nr_ranks * MOST_ROWS,
		 flags = (uint64_t)lab->nr_ranks * (MOST_ROWS + 1) * TRANSFER_FLAG_BYTES;

	rank->next = rank->arena;
	memset(t, 0, sizeof(*t));
	t->rank = rank->rank;
	t->nr_ranks = lab->nr_ranks;
	t->from[rank->rank] = lab_take(rank, rows * ROW_BYTES);
	t->window[rank->rank] = lab_take(rank, rows * ROW_BYTES);
	t->places[rank->rank] = lab_take(rank, rows * ROW_BYTES * COPIES);
	t->flags[rank->rank] = lab_take(rank, flags);
	t->blocks_done = lab_take(rank, sizeof(uint32_t));
	run->different[rank->rank] = lab_take(rank, sizeof(unsigned long long));
	CHECK(cudaMemset(t->blocks_done, 0, sizeof(uint32_t)));
	CHECK(cudaMemset(t->flags[rank->rank], 0, flags));
	CHECK(cudaDeviceSynchronize());
	return 0;
}

static void know_peers(struct lab *lab, struct run *run)
{
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		for (uint32_t q = 0; q < lab->nr_ranks; q++) {
			run->of[r].from[q] = run->of[q].from[q];
			run->of[r].window[q] = run->of[q].window[q];
			run->of[r].places[q] = run->of[q].places[q];
			run->of[r].flags[q] = run->of[q].flags[q];
		}
}

/* Fresh rows, and rubbish where they go. */
static void fill(struct lab *lab, struct lab_rank *rank, const struct transfer *t, uint64_t seed)
{
	uint64_t nr = (uint64_t)lab->nr_ranks * t->nr_rows * ROW_BYTES / 2;

	CHECK(lab_fill_launch(
		(void *)t->from[rank->rank], nr, seed * LAB_MAX_GPUS + rank->rank, rank->stream));
	CHECK(cudaMemsetAsync(t->window[rank->rank], 0xa5, nr * 2, rank->stream));
	CHECK(cudaMemsetAsync(t->places[rank->rank], 0x5a, nr * 2 * COPIES, rank->stream));
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
}

/* How many pieces are wrong, or missing. */
static uint64_t wrong(struct lab *lab, struct lab_rank *rank, const struct run *run)
{
	unsigned long long *on_gpu = run->different[rank->rank], different;

	pthread_barrier_wait(&lab->barrier);
	CHECK(cudaMemsetAsync(on_gpu, 0, sizeof(different), rank->stream));
	CHECK(transfer_compare(&run->of[rank->rank], on_gpu, rank->stream));
	CHECK(cudaMemcpyAsync(
		&different, on_gpu, sizeof(different), cudaMemcpyDeviceToHost, rank->stream));
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
	return different;
}

static float run_round(
	struct lab *lab, struct lab_rank *rank, const struct run *run, const cudaEvent_t between[2])
{
	float ms;

	lab_gate(lab, rank, LAB_HOLD_NS);
	CHECK(cudaEventRecord(between[0], rank->stream));
	CHECK(transfer_launch(&run->of[rank->rank], run->nr_blocks, rank->stream));
	CHECK(cudaEventRecord(between[1], rank->stream));
	CHECK(cudaStreamSynchronize(rank->stream));
	CHECK(cudaEventElapsedTime(&ms, between[0], between[1]));
	return ms * 1000;
}

/* The last round, of fresh rows, is compared and not timed. */
static uint64_t run_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct run *run = ctx;
	struct transfer *t = &run->of[rank->rank];
	cudaEvent_t between[2];

	t->epoch = epoch;
	for (int i = 0; i < 2; i++)
		CHECK(cudaEventCreate(&between[i]));
	fill(lab, rank, t, t->epoch);
	for (int i = -WARM_UP; i < ROUNDS; i++) {
		float us = run_round(lab, rank, run, between);

		if (i >= 0)
			run->us[rank->rank][i] = us;
		t->epoch++;
	}
	fill(lab, rank, t, t->epoch);
	run_round(lab, rank, run, between);
	for (int i = 0; i < 2; i++)
		CHECK(cudaEventDestroy(between[i]));
	return wrong(lab, rank, run);
}

static uint64_t time_way(struct lab *lab, struct run *run, const struct shape *s, uint32_t way,
	uint32_t nr_blocks, double *p50, double *p99)
{
	float *us[LAB_MAX_GPUS];
	uint64_t bad;

	for (uint32_t r = 0; r < lab->nr_ranks; r++) {
		run->of[r].way = ways[way].way;
		run->of[r].unit = ways[way].unit;
		run->of[r].nr_rows = s->rows;
		run->of[r].row_bytes = ROW_BYTES;
		run->of[r].copies = COPIES;
		us[r] = run->us[r];
	}
	run->nr_blocks = nr_blocks;
	bad = lab_run(lab, run_rank, run);
	epoch += WARM_UP + ROUNDS + 1;
	lab_slowest(lab, us, ROUNDS, p50, p99);
	return bad;
}

static uint64_t print_way(struct lab *lab, struct run *run, const struct shape *s, uint32_t way)
{
	double many, many_p99, few, few_p99,
		bytes = (double)(lab->nr_ranks - 1) * s->rows * ROW_BYTES;
	uint64_t bad = time_way(lab, run, s, way, s->many, &many, &many_p99);

	bad += time_way(lab, run, s, way, s->few, &few, &few_p99);
	printf("%6u  %-38s %8.2f %8.2f %8.1f   %8.2f %8.2f   %s\n", s->tokens, ways[way].what, many,
		many_p99, bytes / many / 1000, few, few_p99, bad ? "WRONG" : "right");
	return bad;
}

int main(int argc, char **argv)
{
	static struct run run;
	struct lab lab;
	uint64_t bad = 0;
	int nr_gpus = 0;

	if (cudaGetDeviceCount(&nr_gpus) != cudaSuccess || nr_gpus < 2) {
		fprintf(stderr, "fewer than two GPUs\n");
		return 77;
	}
	if (argc > 1) {
		fprintf(stderr, "usage: %s (on 2 to 4 GPUs)\n", argv[0]);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	lab_open(&lab, nr_gpus < 4 ? (uint32_t)nr_gpus : 4, 640u << 20, 1 << 20);
	lab_run(&lab, place_rank, &run);
	know_peers(&lab, &run);
	printf("%u GPUs, rows of %u bytes, each to %u places; us until all are there on the "
	       "slowest GPU, p50 and p99 of %u rounds; GB/s: of rows over NVLink, each once\n",
		lab.nr_ranks, ROW_BYTES, COPIES, ROUNDS);
	printf("tokens  %-38s %8s %8s %8s   %8s %8s\n", "", "132 SMs", "p99", "GB/s", "24 SMs",
		"p99");
	for (uint32_t s = 0; s < NR(shapes); s++)
		for (uint32_t way = 0; way < NR(ways); way++)
			bad += print_way(&lab, &run, &shapes[s], way);
	lab_close(&lab);
	printf("%s\n", bad ? "WRONG" : "every row of every way is right");
	return bad ? 1 : 0;
}
