/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that writes anything into this rank's window between the halves: counts, headers, words,
 * event_counts. The library answers with TERN_ERR_PROTOCOL or TERN_ERR_MISMATCH, or goes on
 * waiting, or goes on; it never follows a number out of bounds. Two ranks in one thread, polling.
 */
#include <pthread.h>
#include <string.h>

#include "tests/fuzz/bytes.h"
#include "exchange/state.h"

#define NR_RANKS 2
#define HIDDEN 16
#define MAX_TOKENS 6
#define MAX_MUTATIONS 64

static struct tern_threads *threads;
static tern_group *groups[NR_RANKS];

struct pair {
	struct tern_moe_config config;
	tern_moe *moe[NR_RANKS];
	int rc[NR_RANKS];
	struct tern_received received[NR_RANKS];
	uint32_t nr_tokens[NR_RANKS];
	int32_t ids[NR_RANKS][MAX_TOKENS * 4];
	bool mutated, over;
};

static void *join(void *arg)
{
	long rank = (long)arg;
	struct tern_group_config config;

	tern_group_config_init(&config);
	MUST(!tern_threads_boot(threads, (int)rank, &config.boot));
	MUST(!tern_group_create(&config, &groups[rank]));
	return NULL;
}

struct creation {
	struct pair *pair;
	int rank;
};

static void *create(void *arg)
{
	struct creation *c = arg;

	c->pair->rc[c->rank] =
		tern_moe_create(groups[c->rank], &c->pair->config, &c->pair->moe[c->rank]);
	return NULL;
}

static void beside(void *(*first)(void *), void *a, void *b)
{
	pthread_t other;

	MUST(!pthread_create(&other, NULL, first, b));
	first(a);
	pthread_join(other, NULL);
}

static void draw_config(struct bytes *b, struct tern_moe_config *c)
{
	uint8_t kind = take_byte(b);

	tern_moe_config_init(c);
	c->mode = kind & 1 ? TERN_HIGH_THROUGHPUT : TERN_LOW_LATENCY;
	c->layout = (enum tern_layout)(1 + (kind >> 1) % 3);
	c->reduce = kind & 8 ? TERN_REDUCE_EXPERT : TERN_REDUCE_HOME;
	if (c->layout == TERN_BY_SOURCE) {
		c->reduce = TERN_REDUCE_EXPERT;
		c->weights = TERN_WEIGHTS_PASS;
	}
	c->hidden = HIDDEN;
	c->nr_experts = take_from(b, 1, 6);
	c->topk = take_from(b, 1, c->nr_experts < 4 ? c->nr_experts : 4);
	c->max_tokens = take_from(b, 1, MAX_TOKENS);
	c->replica_ranks = kind & 16 ? 2 : 1;
	c->alignment = kind & 32 ? 4 : 1;
	c->capacity = c->mode == TERN_HIGH_THROUGHPUT && kind & 64 ? take_from(b, 1, 40) : 0;
	c->wait_ms = 0;
}

/* Both ranks' tokens; replicas pass the same. */
static void draw_routes(struct bytes *b, struct pair *p)
{
	for (int r = 0; r < NR_RANKS; r++) {
		p->nr_tokens[r] = take_from(b, 0, p->config.max_tokens);
		for (uint32_t t = 0; t < p->nr_tokens[r]; t++) {
			uint32_t first = take_byte(b);

			for (uint32_t k = 0; k < p->config.topk; k++)
				p->ids[r][t * p->config.topk + k] =
					first & 1u << k
						? (int32_t)((first + k) % p->config.nr_experts)
						: -1;
		}
	}
	if (p->config.replica_ranks == 2) {
		p->nr_tokens[1] = p->nr_tokens[0];
		memcpy(p->ids[1], p->ids[0], sizeof(p->ids[0]));
	}
}

/* ---- mutations ------------------------------------------------------------------------------- */

static uint64_t target(const tern_moe *moe, uint8_t kind, uint32_t source, uint32_t index)
{
	const struct layout *l = &moe->layout;

	switch (kind % 6) {
	case 0:
		return layout_word(l, 0, (enum word_kind)(index % NR_WORD_KINDS), source);
	case 1: /* low latency: rows of each expert; high throughput: headers */
		return layout_region(l, 0, source) + index * 4 % l->region_bytes;
	case 2: /* a header */
		return (uint64_t)((uint8_t *)header_at(moe, own(moe, layout_region(l, 0, source)),
					  index / 32 % l->share_tokens) -
				  own(moe, 0)) +
		       index % 32 * 2;
	case 3:
		return l->counts_bytes && moe->config.mode == TERN_HIGH_THROUGHPUT
			       ? layout_counts(l, 0, moe->slots[0].epoch, source) +
					 index * 4 % l->counts_bytes
			       : layout_region(l, 0, source);
	case 4:
		return layout_event_count(l, 0, (enum tern_phase)(index % NR_PHASES)) +
		       index / 4 % 3 * 4;
	default:
		return layout_slot(l, 0) + index * 64ull % l->slot_bytes;
	}
}

static uint16_t draw_value(struct bytes *b)
{
	static const uint16_t values[] = {
		0, 1, 2, 3, 4, 5, 6, 7, 0xff, 0x100, 0x7fff, 0x8000, 0xfffe, 0xffff};
	uint8_t choice = take_byte(b);

	return choice < 128 ? values[choice % 14] : (uint16_t)(choice * 257);
}

static void mutate(struct bytes *b, struct pair *p)
{
	uint32_t nr = take_byte(b) % 8;

	for (uint32_t i = 0; i < nr && b->left; i++) {
		uint8_t kind = take_byte(b);
		tern_moe *moe = p->moe[kind >> 7]; /* whose window */
		uint32_t index = take_word(b);
		uint64_t at = target(moe, kind & 0x3f, kind >> 6 & 1, index) & ~1ull;
		uint16_t value = draw_value(b);

		if (at + 2 <= moe->layout.window_bytes)
			memcpy(own(moe, at), &value, sizeof(value));
		p->mutated = true;
	}
}

/* ---- the round ------------------------------------------------------------------------------- */

static void expect(struct pair *p, int rc)
{
	if (!rc)
		return;
	p->over = true;
	MUST(rc == TERN_ERR_PROTOCOL || rc == TERN_ERR_TIMEOUT || rc == TERN_ERR_PEER_LEFT ||
		rc == TERN_ERR_PEER_DEAD || rc == TERN_ERR_CAPACITY || rc == TERN_ERR_MISMATCH);
	MUST(p->mutated || rc == TERN_ERR_CAPACITY);
	MUST(*tern_last_error());
}

static int send(struct pair *p, int r)
{
	static uint16_t x[MAX_TOKENS * HIDDEN] __attribute__((aligned(16)));
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = p->nr_tokens[r], .x = x, .topk_ids = p->ids[r]};

	return tern_dispatch_send(p->moe[r], &args);
}

/* What is handed to the caller must be safe to use. */
static void look_at_rows(struct pair *p, int r)
{
	struct tern_received *got = &p->received[r];
	uint32_t nr = p->config.layout == TERN_BY_SOURCE ? NR_RANKS
							 : (uint32_t)tern_moe_nr_local(p->moe[r]);
	uint32_t sum = 0;

	for (uint32_t i = 0; i < nr; i++) {
		MUST(got->offsets[i] + got->counts[i] <= got->extent || !got->counts[i]);
		for (uint64_t at = got->offsets[i]; at < got->offsets[i] + got->counts[i]; at++) {
			const struct tern_row *row = &got->rows[at];

			for (uint32_t h = 0; h < HIDDEN; h++)
				sum += ((uint16_t *)got->x)[at * HIDDEN + h];
			if (p->config.mode == TERN_HIGH_THROUGHPUT)
				continue; /* written by the peer itself, in memory that it can
					     always write */
			MUST(row->rank >= 0 && row->rank < NR_RANKS && row->token >= 0 &&
				row->token < (int)p->config.max_tokens);
			MUST(row->k >= -1 && row->k < (int)p->config.topk);
			for (uint32_t k = 0; k < p->config.topk && got->topk_ids; k++)
				MUST(got->topk_ids[at * p->config.topk + k] <
					tern_moe_nr_local(p->moe[r]));
		}
	}
	MUST(got->nr_rows <= got->extent && sum < UINT32_MAX);
}

static void receive(struct pair *p, int r)
{
	int rc;

	p->received[r] = (struct tern_received){.size = sizeof(p->received[r])};
	rc = tern_dispatch_recv(p->moe[r], 0, &p->received[r]);
	expect(p, rc);
	if (!rc)
		look_at_rows(p, r);
}

/* y is as large as it has to be, so that a read beyond it is seen. */
static void give_back(struct pair *p, int r)
{
	size_t bytes = p->received[r].extent * HIDDEN * sizeof(uint16_t);
	void *y = aligned_alloc(16, bytes ? bytes : 16);
	struct tern_combine args = {.size = sizeof(args), .y = y};

	MUST(y);
	memset(y, 0, bytes);
	expect(p, tern_combine_send(p->moe[r], &args));
	free(y);
}

static void take_home(struct pair *p, int r)
{
	uint16_t *out = aligned_alloc(16, MAX_TOKENS * HIDDEN * sizeof(*out));

	MUST(out);
	expect(p, tern_combine_recv(p->moe[r], 0, out, 0));
	free(out);
}

static void send_both(struct bytes *b, struct pair *p)
{
	int rc[NR_RANKS] = {TERN_ERR_TIMEOUT, TERN_ERR_TIMEOUT};

	for (int tries = 0; tries < 3; tries++)
		for (int r = 0; r < NR_RANKS; r++)
			if (rc[r] == TERN_ERR_TIMEOUT) {
				rc[r] = send(p, r);
				mutate(b, p);
			}
	for (int r = 0; r < NR_RANKS; r++)
		expect(p, rc[r]);
}

static void run_round(struct bytes *b, struct pair *p)
{
	draw_routes(b, p);
	send_both(b, p);
	for (int half = 0; half < 3 && !p->over; half++)
		for (int r = 0; r < NR_RANKS && !p->over; r++) {
			if (half == 0)
				receive(p, r);
			else if (half == 1)
				give_back(p, r);
			else
				take_home(p, r);
			mutate(b, p);
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct bytes b = {bytes, size};
	struct pair p = {0};

	if (!threads) {
		MUST(!tern_threads_create(NR_RANKS, 10000, &threads));
		beside(join, (void *)0, (void *)1);
	}
	draw_config(&b, &p.config);
	beside(create, &(struct creation){&p, 0}, &(struct creation){&p, 1});
	MUST(!p.rc[0] && !p.rc[1]);
	for (int i = 0; i < 3 && !p.over; i++)
		run_round(&b, &p);
	for (int r = 0; r < NR_RANKS; r++)
		MUST(!tern_moe_destroy(p.moe[r]));
	return 0;
}
