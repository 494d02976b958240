/* SPDX-License-Identifier: Apache-2.0 */
/* tern-beside: what rounds take while experts' weights move beside them, and while nothing moves.
 * Blocks of rounds with and without moves take turns, so that both meet the same machine.
 *
 *   tern run -n 4 -- tern-beside [RATE [PAGE [BLOCKS [TOKENS]]]]
 *                                      100 MB/s, pages of 64 KiB, 40 blocks of each of 250 rounds,
 * 64 tokens */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tern.h"
#include "tern_weights.h"
#include "testkit/random.h"
#include "weights/sum.h"

#define EXPERTS 32
#define TOPK 4
#define HIDDEN 2048
#define ROUNDS 250
#define EXPERT_BYTES (8u << 20)

struct bench {
	tern_group *group;
	tern_moe *moe;
	tern_engine *engine;
	tern_weight_store *store;
	int rank, nr_ranks;
	uint32_t nr_tokens;
	uint16_t *x, *y, *out;
	int32_t *ids;
	uint8_t *weights; /* two places: one that is copied, one that is filled */
	uint64_t ticket, rate, page;
	uint64_t *taken[2]; /* ns of each round: without and with moves */
	size_t nr_taken[2];
	uint64_t ns[2], bytes;
};

static _Noreturn void give_up(const char *what)
{
	fprintf(stderr, "tern-beside: %s: %s\n", what, tern_last_error());
	exit(1);
}

static void must(int rc, const char *what)
{
	if (rc)
		give_up(what);
}

static void open_exchange(struct bench *b)
{
	struct tern_group_config group;
	struct tern_moe_config config;
	size_t rows = (size_t)b->nr_tokens * TOPK;
	uint64_t random;

	tern_group_config_init(&group);
	must(tern_boot_env(&group.boot), "the boot");
	must(tern_group_create(&group, &b->group), "the group");
	b->rank = tern_group_rank(b->group);
	b->nr_ranks = tern_group_nr_ranks(b->group);
	tern_moe_config_init(&config);
	config.hidden = HIDDEN;
	config.nr_experts = EXPERTS;
	config.topk = TOPK;
	config.max_tokens = b->nr_tokens;
	must(tern_moe_create(b->group, &config, &b->moe), "the exchange");
	b->x = calloc((size_t)b->nr_tokens * HIDDEN, 2);
	b->out = calloc((size_t)b->nr_tokens * HIDDEN, 2);
	b->y = aligned_alloc(64, rows * (size_t)b->nr_ranks * HIDDEN * 2 + 64);
	b->ids = calloc(rows, sizeof(*b->ids));
	if (!b->x || !b->out || !b->y || !b->ids)
		give_up("memory");
	memset(b->y, 0, rows * (size_t)b->nr_ranks * HIDDEN * 2 + 64);
	random = (uint64_t)b->rank + 1;
	for (uint32_t t = 0; t < b->nr_tokens; t++) {
		uint32_t first = (uint32_t)random_below(&random, EXPERTS);

		for (uint32_t k = 0; k < TOPK; k++)
			b->ids[t * TOPK + k] = (int32_t)((first + k * 7) % EXPERTS);
	}
}

/* Expert r lies on rank r, and each takes the next one's, over and over. */
static void open_store(struct bench *b)
{
	struct tern_weights_part part;
	struct tern_weights_config config = {.size = sizeof(config),
		.nr_layers = 1,
		.nr_experts = (uint32_t)b->nr_ranks,
		.nr_physical = 2 * (uint32_t)b->nr_ranks,
		.nr_parts = 1,
		.parts = &part,
		.page_bytes = (uint32_t)b->page,
		.rate = b->rate};
	struct tern_engine_config engine;

	b->weights = calloc(2, EXPERT_BYTES);
	if (!b->weights)
		give_up("memory");
	memset(b->weights, b->rank + 1, EXPERT_BYTES);
	part = (struct tern_weights_part){b->weights, EXPERT_BYTES, 0};
	tern_engine_config_init(&engine);
	must(tern_engine_create(b->group, &engine, &b->engine), "the engine");
	must(tern_weights_create(b->engine, &config, &b->store), "the store");
	must(tern_weights_hold(b->store, 0, 2 * (uint32_t)b->rank, b->rank), "hold");
}

static void begin_move(struct bench *b)
{
	int32_t next = (b->rank + 1) % b->nr_ranks;
	const struct tern_copy copy = {.expert = next, .from = 2 * next, .to = 2 * b->rank + 1};

	must(tern_weights_move(b->store, 0, &copy, 1, &b->ticket), "move");
}

static void go_on_moving(struct bench *b)
{
	int rc = tern_weights_poll(b->store, b->ticket, NULL);

	if (rc == TERN_ERR_TIMEOUT)
		return;
	must(rc, "the move");
	begin_move(b);
}

static void one_round(struct bench *b, int moves)
{
	struct tern_dispatch dispatch = {
		.size = sizeof(dispatch), .nr_tokens = b->nr_tokens, .x = b->x, .topk_ids = b->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = b->y};
	uint64_t begun;

	if (moves)
		go_on_moving(b);
	begun = clock_ns();
	must(tern_dispatch(b->moe, &dispatch, &received), "dispatch");
	must(tern_combine(b->moe, &combine, b->out, 0), "combine");
	b->taken[moves][b->nr_taken[moves]++] = clock_ns() - begun;
}

static uint64_t bytes_so_far(struct bench *b)
{
	struct tern_weights_stats stats = {.size = sizeof(stats)};

	must(tern_weights_stats(b->store, &stats), "stats");
	return stats.bytes;
}

static void one_block(struct bench *b, int moves)
{
	char all[1024];
	uint64_t begun, bytes = bytes_so_far(b);

	must(tern_group_allgather(b->group, "", all, 1), "meeting");
	begun = clock_ns();
	for (int i = 0; i < ROUNDS; i++)
		one_round(b, moves);
	b->ns[moves] += clock_ns() - begun;
	b->bytes += moves ? bytes_so_far(b) - bytes : 0;
}

static int in_order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double us_at(struct bench *b, int moves, double part)
{
	size_t nr = b->nr_taken[moves];

	return (double)b->taken[moves][(size_t)((double)(nr - 1) * part)] / 1e3;
}

/* The least of many: others may have the processor. */
static double sum_us(struct bench *b)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 1000; i++) {
		uint64_t begun = clock_ns(), took;
		volatile uint64_t sum = weights_sum(b->weights + (size_t)i % 16 * b->page, b->page);

		(void)sum;
		took = clock_ns() - begun;
		least = took < least ? took : least;
	}
	return (double)least / 1e3;
}

static void tell(struct bench *b)
{
	static const struct {
		const char *name;
		double part;
	} of[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}};

	for (int m = 0; m < 2; m++)
		qsort(b->taken[m], b->nr_taken[m], sizeof(uint64_t), in_order);
	if (b->rank)
		return;
	printf("%d ranks, %u tokens of %u elements, top %d; experts of %u MiB in pages of %llu "
	       "KiB, at most %.0f MB/s into "
	       "each rank\n",
		b->nr_ranks, b->nr_tokens, HIDDEN, TOPK, EXPERT_BYTES >> 20,
		(unsigned long long)b->page >> 10, (double)b->rate / 1e6);
	printf("moved %.0f MB at %.0f MB/s into rank 0; a page is summed in %.1f us\n",
		(double)b->bytes / 1e6, (double)b->bytes * 1e3 / (double)b->ns[1], sum_us(b));
	printf("%-6s %12s %12s %8s\n", "", "alone, us", "moving, us", "ratio");
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		printf("%-6s %12.1f %12.1f %8.3f\n", of[i].name, us_at(b, 0, of[i].part),
			us_at(b, 1, of[i].part), us_at(b, 1, of[i].part) / us_at(b, 0, of[i].part));
}

int main(int argc, char **argv)
{
	struct bench b = {.rate = argc > 1 ? strtoull(argv[1], NULL, 10) * 1000000 : 100000000,
		.page = (argc > 2 ? strtoull(argv[2], NULL, 10) : 64) << 10,
		.nr_tokens = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 64};
	int nr_blocks = argc > 3 ? atoi(argv[3]) : 40;
	char all[1024];

	for (int m = 0; m < 2; m++)
		b.taken[m] = calloc((size_t)nr_blocks * ROUNDS + 1, sizeof(uint64_t));
	if (!b.taken[0] || !b.taken[1] || nr_blocks < 1 || !b.nr_tokens || !b.page ||
		16 * b.page > EXPERT_BYTES)
		give_up("memory, or blocks, tokens and pages");
	open_exchange(&b);
	open_store(&b);
	must(tern_group_allgather(b.group, "", all, 1), "meeting");
	begin_move(&b);
	for (int i = 0; i < nr_blocks; i++)
		for (int m = 0; m < 2; m++)
			one_block(&b, m);
	tell(&b);
	must(tern_group_allgather(b.group, "", all, 1), "meeting");
	must(tern_weights_destroy(b.store), "the store's end");
	must(tern_engine_destroy(b.engine), "the engine's end");
	must(tern_moe_destroy(b.moe), "the exchange's end");
	must(tern_group_destroy(b.group), "the group's end");
	return 0;
}
