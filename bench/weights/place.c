/* SPDX-License-Identifier: Apache-2.0 */
/* tern-place: what it takes to put experts into other places between rounds (tern_moe_place): the
 * call, and the rounds with one before each, over rounds without. On GPUs rounds are one captured
 * graph, launched again and again. Rounds in which all elements are compared come first.
 *
 *   tern run -n 2 -- tern-place [cpu|cuda [ll|ht [TOKENS [ROUNDS]]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tern.h"
#include "testkit/device/rounds.h"

#define EXPERTS 256
#define SPARE 32
#define PLACES (EXPERTS + SPARE)
#define BLOCK 50 /* rounds with, then as many without */

struct bench {
	tern_group *group;
	struct job job;
	struct device_rounds rounds; /* cuda */
	tern_moe *moe;
	uint8_t *x, *y, *out;
	int32_t *ids;
	int32_t tables[2][PLACES];
	uint32_t version;
	double *calls, *with, *without; /* us */
	int nr_calls, nr_blocks;
};

static _Noreturn void give_up(const char *what)
{
	fprintf(stderr, "tern-place: %s: %s\n", what, tern_last_error());
	exit(1);
}

static void must(int rc, const char *what)
{
	if (rc)
		give_up(what);
}

static int in_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double at(double *values, int nr, double part)
{
	qsort(values, (size_t)nr, sizeof(*values), in_order);
	return values[(int)((nr - 1) * part)];
}

static void meet(struct bench *b)
{
	char all[1024];

	must(tern_group_allgather(b->group, "", all, 1), "meeting");
}

static void place(struct bench *b)
{
	uint64_t begun = clock_ns();

	b->version++;
	must(tern_moe_place(b->moe, b->version, b->tables[b->version & 1], PLACES), "place");
	b->calls[b->nr_calls++] = (double)(clock_ns() - begun) / 1e3;
}

static void make_job(struct bench *b, int cuda, enum tern_mode mode, uint32_t nr_tokens)
{
	struct reason why;

	job_init(&b->job);
	b->job.nr_ranks = (uint32_t)tern_group_nr_ranks(b->group);
	b->job.nr_tokens = b->job.config.max_tokens = nr_tokens;
	b->job.nr_redundant = SPARE;
	b->job.place_in = 1;
	b->job.config.hidden = 7168;
	b->job.config.nr_experts = EXPERTS;
	b->job.config.topk = 8;
	b->job.config.mode = mode;
	b->job.config.device = cuda ? TERN_DEVICE_CUDA : TERN_DEVICE_CPU;
	if (job_open(&b->job, &why)) {
		fprintf(stderr, "tern-place: %s\n", why.text);
		exit(1);
	}
	for (uint32_t v = 0; v < 2; v++)
		job_place(&b->job, v + 1, b->tables[v]);
}

/* ---- on GPUs --------------------------------------------------------------------------------- */

static void open_cuda(struct bench *b)
{
	const struct bench_device_ops *ops = bench_device_ops_load();

	if (!ops)
		give_up("no GPU");
	must(device_choose(ops, (uint32_t)tern_group_rank(b->group)), "a GPU");
	must(device_rounds_open(&b->rounds, b->group, &b->job, ops), "rounds");
	for (uint64_t i = 0; i < 24; i++)
		must(device_rounds_verify(&b->rounds, i), "a round that is compared");
	if (b->rounds.difference.nr) {
		fprintf(stderr, "tern-place: WRONG: %s\n", b->rounds.difference.first);
		exit(1);
	}
	b->moe = b->rounds.moe;
	b->version = 100;
	must(device_rounds_prepare(&b->rounds), "graphs");
}

static void launch(struct bench *b)
{
	must(b->rounds.ops->graph_launch(b->rounds.lanes[0].pair, b->rounds.lanes[0].stream),
		"a launch");
}

static void wait(struct bench *b)
{
	must(b->rounds.ops->stream_wait(b->rounds.lanes[0].stream), "the stream");
	must(tern_moe_status(b->moe), "the rounds");
}

/* ---- on CPUs --------------------------------------------------------------------------------- */

static void open_cpu(struct bench *b)
{
	size_t rows = (size_t)b->job.nr_tokens * b->job.config.topk * b->job.nr_ranks;
	uint32_t rank = (uint32_t)tern_group_rank(b->group);

	must(tern_moe_create(b->group, &b->job.config, &b->moe), "the exchange");
	b->x = calloc(b->job.nr_tokens, 7168 * 4);
	b->out = calloc(b->job.nr_tokens, 7168 * 4);
	b->y = aligned_alloc(64, (rows * 7168 * 4 + 63) / 64 * 64);
	b->ids = calloc(b->job.nr_tokens * (size_t)b->job.config.topk, sizeof(*b->ids));
	if (!b->x || !b->out || !b->y || !b->ids)
		give_up("memory");
	memset(b->y, 0, rows * 7168 * 4);
	for (uint32_t t = 0; t < b->job.nr_tokens; t++)
		for (uint32_t k = 0; k < b->job.config.topk; k++)
			b->ids[t * b->job.config.topk + k] =
				(int32_t)((t * 37 + k * 31 + rank * 11) % EXPERTS);
}

static void pair(struct bench *b)
{
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = b->job.nr_tokens,
		.x = b->x,
		.topk_ids = b->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = b->y};

	must(tern_dispatch(b->moe, &dispatch, &received), "dispatch");
	must(tern_combine(b->moe, &combine, b->out, 0), "combine");
}

/* ---- both ------------------------------------------------------------------------------------ */

static double block_us(struct bench *b, int cuda, int places)
{
	uint64_t begun;

	meet(b);
	if (cuda)
		must(device_rounds_start(&b->rounds), "start");
	begun = clock_ns();
	for (int i = 0; i < BLOCK; i++) {
		if (places)
			place(b);
		if (cuda)
			launch(b);
		else
			pair(b);
	}
	if (cuda)
		wait(b);
	return (double)(clock_ns() - begun) / 1e3 / BLOCK;
}

static void tell(struct bench *b, const char *device, const char *mode)
{
	double with = at(b->with, b->nr_blocks, 0.5), without = at(b->without, b->nr_blocks, 0.5);

	if (tern_group_rank(b->group))
		return;
	printf("%s, %s, %u ranks, %u tokens: a call p50 %.1f p99 %.1f us; a round %.1f us, with a "
	       "placement before it %.1f, so %.1f more (medians of %d blocks of %d)\n",
		device, mode, b->job.nr_ranks, b->job.nr_tokens, at(b->calls, b->nr_calls, 0.5),
		at(b->calls, b->nr_calls, 0.99), without, with, with - without, b->nr_blocks,
		BLOCK);
}

int main(int argc, char **argv)
{
	const char *device = argc > 1 ? argv[1] : "cpu", *mode = argc > 2 ? argv[2] : "ll";
	int cuda = !strcmp(device, "cuda"), nr_rounds = argc > 4 ? atoi(argv[4]) : 2000;
	struct tern_group_config config;
	struct bench b = {0};

	b.nr_blocks = nr_rounds / BLOCK;
	b.calls = calloc((size_t)nr_rounds + BLOCK, sizeof(double));
	b.with = calloc((size_t)b.nr_blocks + 1, sizeof(double));
	b.without = calloc((size_t)b.nr_blocks + 1, sizeof(double));
	if (!b.calls || !b.with || !b.without || b.nr_blocks < 1)
		give_up("memory, or rounds");
	tern_group_config_init(&config);
	must(tern_boot_env(&config.boot), "the boot");
	must(tern_group_create(&config, &b.group), "the group");
	make_job(&b, cuda, strcmp(mode, "ht") ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT,
		argc > 3 ? (uint32_t)atoi(argv[3]) : 64);
	if (cuda)
		open_cuda(&b);
	else
		open_cpu(&b);
	block_us(&b, cuda, 0);
	for (int i = 0; i < b.nr_blocks; i++) {
		b.without[i] = block_us(&b, cuda, 0);
		b.with[i] = block_us(&b, cuda, 1);
	}
	tell(&b, device, mode);
	meet(&b);
	if (cuda)
		device_rounds_close(&b.rounds);
	else
		must(tern_moe_destroy(b.moe), "the exchange's end");
	must(tern_group_destroy(b.group), "the group's end");
	return 0;
}
