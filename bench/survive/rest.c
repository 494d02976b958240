/* SPDX-License-Identifier: Apache-2.0 */
/* tern-rest: what a pair of dispatch and combine takes on GPUs where nobody dies, by replays of a
 * graph: an exchange whose kernels take experts to be in blocks, one whose kernels look into
 * tables, and an elastic one, in turns. Summed at home. Under tern run, a GPU each.
 *
 *   tern-rest [TOKENS [MODE [ROUNDS [KIND...]]]]      128 tokens, ll (or ht), 200 of each
 *
 * KIND: blocks, tables, elastic; one by itself has caches of code and rows for itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tern.h"
#include "testkit/device/ops.h"
#include "testkit/device/rounds.h"
#include "testkit/random.h"

#define HIDDEN 7168
#define EXPERTS 256
#define TOPK 8
#define MOST_ROUNDS 4000

enum kind {
	BLOCKS,
	TABLES,
	ELASTIC,
	NR_KINDS
};

static const char *const names[NR_KINDS] = {"blocks", "tables", "elastic"};

struct side {
	tern_moe *moe;
	struct device_graph *graph;
	double us[MOST_ROUNDS];
};

struct rest {
	const struct bench_device_ops *ops;
	tern_group *group;
	uint32_t nr_tokens;
	enum tern_mode mode;
	void *stream;
	uint8_t *x, *ids, *out;
	struct side sides[NR_KINDS];
	enum kind kinds[NR_KINDS]; /* those that are timed */
	uint32_t nr_kinds;
};

static int fails(const struct rest *r, const char *what)
{
	fprintf(stderr, "tern-rest: %s: %s; %s\n", what, tern_last_error(),
		r->ops ? r->ops->error_text() : "");
	return 1;
}

static int make_side(struct rest *r, enum kind kind)
{
	int32_t logical[EXPERTS];
	struct tern_moe_config c;

	for (int i = 0; i < EXPERTS; i++)
		logical[i] = i;
	tern_moe_config_init(&c);
	c.mode = r->mode;
	c.reduce = TERN_REDUCE_HOME;
	c.hidden = HIDDEN;
	c.nr_experts = EXPERTS;
	c.topk = TOPK;
	c.max_tokens = r->nr_tokens;
	c.device = TERN_DEVICE_CUDA;
	c.elastic = kind == ELASTIC;
	if (kind != BLOCKS)
		c.placement = (struct tern_placement){.nr_physical = EXPERTS, .logical = logical};
	if (tern_moe_create(r->group, &c, &r->sides[kind].moe) ||
		tern_moe_set_stream(r->sides[kind].moe, 0, r->stream))
		return fails(r, names[kind]);
	return 0;
}

/* The rows that came are what the experts made. */
static int capture(struct rest *r, struct side *s)
{
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = r->nr_tokens,
		.x = r->x,
		.topk_ids = (const void *)r->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine)};
	int rc = r->ops->capture_begin(r->stream);

	rc = rc ? rc : tern_dispatch(s->moe, &dispatch, &received);
	combine.y = received.x;
	rc = rc ? rc : tern_combine(s->moe, &combine, r->out, 0);
	rc = rc ? rc : r->ops->capture_end(r->stream, &s->graph);
	return rc ? fails(r, "capturing") : 0;
}

static int make_inputs(struct rest *r, int rank)
{
	uint64_t x_bytes = (uint64_t)r->nr_tokens * HIDDEN * 2,
		 ids_bytes = (uint64_t)r->nr_tokens * TOPK * 4, random = (uint64_t)rank + 1;
	int32_t *ids;
	int rc = r->ops->memory_create(x_bytes, (void **)&r->x);

	rc = rc ? rc : r->ops->memory_create(x_bytes, (void **)&r->out);
	rc = rc ? rc : r->ops->memory_create(ids_bytes, (void **)&r->ids);
	rc = rc ? rc : r->ops->host_create(ids_bytes, (void **)&ids);
	for (uint32_t t = 0; t < r->nr_tokens && !rc; t++) {
		uint32_t first = (uint32_t)random_below(&random, EXPERTS);

		for (uint32_t k = 0; k < TOPK; k++)
			ids[t * TOPK + k] = (int32_t)((first + k * 37) % EXPERTS);
	}
	rc = rc ? rc : r->ops->fill(r->x, 0, x_bytes, r->stream);
	rc = rc ? rc : r->ops->copy(r->ids, ids, ids_bytes, r->stream);
	rc = rc ? rc : r->ops->stream_wait(r->stream);
	return rc ? fails(r, "inputs") : 0;
}

static int replay(struct rest *r, uint32_t nr_rounds)
{
	for (uint32_t i = 0; i < r->nr_kinds * nr_rounds; i++) {
		struct side *s = &r->sides[r->kinds[i % r->nr_kinds]];

		if (r->ops->graph_launch(s->graph, r->stream) || r->ops->stream_wait(r->stream) ||
			tern_moe_status(s->moe) ||
			r->ops->graph_time(s->graph, &s->us[i / r->nr_kinds]))
			return fails(r, "a replay");
	}
	return 0;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void say(struct rest *r, int rank, uint32_t nr_rounds)
{
	for (uint32_t i = 0; i < r->nr_kinds; i++) {
		double *us = r->sides[r->kinds[i]].us;

		qsort(us, nr_rounds, sizeof(*us), by_size);
		printf("rank %d, %u tokens, %s: p10 %.2f, p50 %.2f, p90 %.2f us\n", rank,
			r->nr_tokens, names[r->kinds[i]], us[nr_rounds / 10], us[nr_rounds / 2],
			us[nr_rounds * 9 / 10]);
	}
}

/* All, if none is named. */
static int choose_kinds(struct rest *r, char **argv)
{
	for (int kind = 0; kind < NR_KINDS; kind++) {
		bool named = !*argv;

		for (char **at = argv; *at; at++)
			named = named || !strcmp(*at, names[kind]);
		if (named)
			r->kinds[r->nr_kinds++] = (enum kind)kind;
	}
	return r->nr_kinds ? 0 : fails(r, "KIND is blocks, tables or elastic");
}

int main(int argc, char **argv)
{
	static struct rest r;
	struct tern_group_config gc;
	uint32_t nr_rounds = argc > 3 ? (uint32_t)atoi(argv[3]) : 200;

	r.nr_tokens = argc > 1 ? (uint32_t)atoi(argv[1]) : 128;
	r.mode = argc > 2 && !strcmp(argv[2], "ht") ? TERN_HIGH_THROUGHPUT : TERN_LOW_LATENCY;
	if (!r.nr_tokens || nr_rounds < 10 || nr_rounds > MOST_ROUNDS)
		return fails(&r, "TOKENS from 1, ROUNDS from 10 to 4000");
	if (choose_kinds(&r, argv + (argc > 4 ? 4 : argc)))
		return 1;
	tern_group_config_init(&gc);
	gc.elastic = 1;
	r.ops = bench_device_ops_load();
	if (!r.ops || tern_boot_env(&gc.boot) || device_choose(r.ops, (uint32_t)gc.boot.rank) ||
		r.ops->stream_create(&r.stream, false) || tern_group_create(&gc, &r.group) ||
		make_inputs(&r, gc.boot.rank))
		return fails(&r, "beginning");
	for (uint32_t i = 0; i < r.nr_kinds; i++)
		if (make_side(&r, r.kinds[i]))
			return 1;
	for (uint32_t i = 0; i < r.nr_kinds; i++)
		if (capture(&r, &r.sides[r.kinds[i]]))
			return 1;
	if (replay(&r, 10) || replay(&r, nr_rounds))
		return 1;
	say(&r, tern_group_rank(r.group), nr_rounds);
	for (uint32_t i = 0; i < r.nr_kinds; i++)
		tern_moe_destroy(r.sides[r.kinds[i]].moe);
	tern_group_destroy(r.group);
	return 0;
}
