/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that falls behind is masked by the others: they go on without it, and what it sends later
 * spoils none of their sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "tests/exchange/ranks.h"

#define RANKS 4
#define LATE 3 /* falls behind */
#define HIDDEN 64
#define EXPERTS 8
#define TOPK 3
#define TOKENS 7
#define ROUNDS 60
#define FALLS_AT 5
#define RISES_AT 20 /* when the others are there */

struct scene {
	enum tern_reduce reduce;
	uint32_t nr_copies; /* of each expert, on neighbours */
	_Atomic int nr_past;
	_Atomic bool is_behind, has_ended;
	_Atomic uint64_t end; /* round of the others' end; 0: not known */
};

struct worker {
	struct rank *rank;
	struct scene *scene;
	tern_moe *moe;
	uint64_t number;
	bool masked[RANKS];
	float x[TOKENS][HIDDEN] __attribute__((aligned(16)));
	float out[TOKENS][HIDDEN] __attribute__((aligned(16)));
	int32_t ids[TOKENS][TOPK];
	float y[RANKS * TOKENS * TOPK][HIDDEN] __attribute__((aligned(16)));
};

static float expert_result(float x, int32_t expert)
{
	return x * (float)(expert + 1) + 1;
}

static void draw_inputs(struct worker *w)
{
	uint64_t random = w->number * 64 + (uint64_t)w->rank->rank + 1;

	for (uint32_t t = 0; t < TOKENS; t++) {
		uint32_t first = (uint32_t)random_below(&random, EXPERTS);

		for (uint32_t k = 0; k < TOPK; k++)
			w->ids[t][k] = (int32_t)((first + k * 3) % EXPERTS);
		for (uint32_t h = 0; h < HIDDEN; h++)
			w->x[t][h] = (float)random_below(&random, 64);
	}
}

static bool is_served(const struct worker *w, int32_t expert)
{
	for (uint32_t i = 0; i < w->scene->nr_copies; i++)
		if (!w->masked[((uint32_t)expert + i) % RANKS])
			return true;
	return false;
}

/* Of the round in which a rank is masked: its share may have come before that. */
static int check_sums(struct worker *w, bool just_masked)
{
	for (uint32_t t = 0; t < TOKENS && !just_masked; t++)
		for (uint32_t h = 0; h < HIDDEN; h++) {
			float sum = 0;

			for (uint32_t k = 0; k < TOPK; k++)
				sum += is_served(w, w->ids[t][k])
					       ? expert_result(w->x[t][h], w->ids[t][k])
					       : 0;
			if (sum != w->out[t][h])
				return rank_fails(w->rank,
					"round %llu, token %u, element %u: %g and not %g",
					(unsigned long long)w->number, t, h, (double)w->out[t][h],
					(double)sum);
		}
	return 0;
}

static int mask(struct worker *w, int rank)
{
	w->masked[rank] = true;
	return tern_moe_mask(w->moe, rank) ? rank_fails(w->rank, "%s", tern_last_error()) : 0;
}

/* Slow ranks are waited for; the one that is behind masks all others, as they do it. */
static int expired(struct worker *w, bool *just_masked)
{
	int rc = 0;

	if (!atomic_load(&w->scene->is_behind) || w->number < FALLS_AT || w->masked[LATE])
		return 0;
	*just_masked = true;
	if (w->rank->rank != LATE)
		return mask(w, LATE);
	for (int r = 0; r < LATE && !rc; r++)
		rc = w->masked[r] ? 0 : mask(w, r);
	return rc;
}

/* To other places of the same ranks. */
static int move_experts(struct worker *w)
{
	int32_t logical[2 * EXPERTS];
	uint32_t nr = EXPERTS * w->scene->nr_copies;

	for (uint32_t p = 0; p < nr; p++)
		logical[p] = (int32_t)((p + RANKS * w->number) % EXPERTS);
	return tern_moe_place(w->moe, (uint32_t)w->number, logical, nr)
		       ? rank_fails(w->rank, "%s", tern_last_error())
		       : 0;
}

static int make_round(struct worker *w)
{
	struct tern_dispatch dispatch = {
		.size = sizeof(dispatch), .nr_tokens = TOKENS, .x = w->x, .topk_ids = w->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = w->y};
	bool just_masked = false;
	int rc;

	draw_inputs(w);
	if (w->number % 3 == 2 && move_experts(w))
		return -1;
	while ((rc = tern_dispatch(w->moe, &dispatch, &received)) == TERN_ERR_TIMEOUT)
		if (expired(w, &just_masked))
			return -1;
	if (rc)
		return rank_fails(w->rank, "dispatch: %s", tern_last_error());
	for (int l = 0; l < tern_moe_nr_local(w->moe); l++)
		for (uint64_t i = 0; i < received.counts[l]; i++)
			for (uint32_t h = 0; h < HIDDEN; h++) {
				uint64_t row = received.offsets[l] + i;

				w->y[row][h] =
					expert_result(((const float *)received.x)[row * HIDDEN + h],
						tern_moe_local_expert(w->moe, (uint32_t)l));
			}
	while ((rc = tern_combine(w->moe, &combine, w->out, 0)) == TERN_ERR_TIMEOUT)
		if (expired(w, &just_masked))
			return -1;
	if (rc)
		return rank_fails(w->rank, "combine: %s", tern_last_error());
	return check_sums(w, just_masked);
}

static int open_worker(struct worker *w)
{
	int32_t logical[2 * EXPERTS], rank_of[2 * EXPERTS];
	struct tern_moe_config config;

	tern_moe_config_init(&config);
	config.reduce = w->scene->reduce;
	config.hidden = HIDDEN;
	config.nr_experts = EXPERTS;
	config.topk = TOPK;
	config.max_tokens = TOKENS;
	config.x_dtype = config.dispatch_dtype = config.combine_dtype = TERN_FP32;
	config.masks = 1;
	config.wait_ms = 20;
	for (uint32_t i = 0; i < EXPERTS * w->scene->nr_copies; i++) {
		logical[i] = (int32_t)(i % EXPERTS);
		rank_of[i] = (int32_t)((i % EXPERTS + i / EXPERTS) % RANKS);
	}
	config.placement = (struct tern_placement){
		.nr_physical = EXPERTS * w->scene->nr_copies, .logical = logical, .rank = rank_of};
	return tern_moe_create(w->rank->group, &config, &w->moe)
		       ? rank_fails(w->rank, "%s", tern_last_error())
		       : 0;
}

/* The others go on for as long as the late one sends, and end with the same round: they are one
 * apart at most. */
static bool is_over(const struct worker *w)
{
	struct scene *s = w->scene;
	uint64_t none = 0;

	if (w->rank->rank == LATE)
		return w->number >= ROUNDS;
	if (atomic_load(&s->has_ended))
		atomic_compare_exchange_strong(&s->end, &none, w->number + 2);
	return w->number >= ROUNDS && atomic_load(&s->end) && w->number >= atomic_load(&s->end);
}

static void body(struct rank *rank)
{
	struct worker *w = aligned_alloc(64, (sizeof(*w) + 63) / 64 * 64);
	struct scene *s = rank->ctx;
	int rc;

	*w = (struct worker){.rank = rank, .scene = s};
	rc = open_worker(w);
	if (!rc && !tern_moe_mask(w->moe, rank->rank))
		rc = rank_fails(rank, "masks itself");
	for (w->number = 0; !is_over(w) && !rc; w->number++) {
		if (w->number == FALLS_AT && rank->rank == LATE) {
			atomic_store(&s->is_behind, true);
			while (atomic_load(&s->nr_past) < LATE)
				nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		}
		rc = make_round(w);
		if (w->number == RISES_AT || (rc && w->number < RISES_AT))
			atomic_fetch_add(&s->nr_past, 1);
	}
	if (rank->rank == LATE || rc)
		atomic_store(&s->has_ended, true);
	tern_moe_destroy(w->moe);
	free(w);
}

static void play(enum tern_reduce reduce, uint32_t nr_copies)
{
	struct scene s = {.reduce = reduce, .nr_copies = nr_copies};
	const char *failure = run_ranks(RANKS, body, &s);

	if (failure)
		fail_msg("reduce %d, %u copies: %s", (int)reduce, nr_copies, failure);
}

static void without_replicas(void **state)
{
	(void)state;
	play(TERN_REDUCE_HOME, 1);
	play(TERN_REDUCE_EXPERT, 1);
}

static void with_replicas(void **state)
{
	(void)state;
	play(TERN_REDUCE_HOME, 2);
	play(TERN_REDUCE_EXPERT, 2);
}

static void refused_body(struct rank *rank)
{
	struct tern_moe_config config;
	tern_moe *moe;

	tern_moe_config_init(&config);
	config.hidden = HIDDEN;
	config.nr_experts = EXPERTS;
	config.topk = TOPK;
	config.max_tokens = TOKENS;
	config.x_dtype = config.dispatch_dtype = config.combine_dtype = TERN_FP32;
	config.mode = TERN_HIGH_THROUGHPUT;
	config.masks = 1;
	if (tern_moe_create(rank->group, &config, &moe) != TERN_ERR_UNSUPPORTED)
		rank_fails(rank, "masks in high throughput: %s", tern_last_error());
	config.masks = 0;
	if (tern_moe_create(rank->group, &config, &moe)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	if (tern_moe_mask(moe, !rank->rank) != TERN_ERR_INVALID)
		rank_fails(rank, "masks without the setting");
	tern_moe_destroy(moe);
}

static void refused(void **state)
{
	const char *failure = run_ranks(2, refused_body, NULL);

	(void)state;
	if (failure)
		fail_msg("%s", failure);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_replicas),
		cmocka_unit_test(with_replicas),
		cmocka_unit_test(refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
