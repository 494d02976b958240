/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of elastic exchanges whose sums are small whole numbers: exact in any order, and telling
 * which expert, round and token. */
#ifndef TERN_TESTS_FAULTS_TOKENS_H
#define TERN_TESTS_FAULTS_TOKENS_H

#include "tests/exchange/ranks.h"

#define HIDDEN 64
#define EXPERTS 12
#define TOPK 3
#define TOKENS 9

struct tokens {
	uint32_t nr_tokens;
	float x[TOKENS][HIDDEN] __attribute__((aligned(16)));
	int32_t ids[TOKENS][TOPK];
	float weights[TOKENS][TOPK];
};

/* The two may be one: elements and routes are drawn in turn then. */
void tokens_draw(struct tokens *tokens, uint64_t *routes, uint64_t *elements);

/* What an expert makes of an element, in a round that has that number. */
float tokens_result(float x, uint64_t number, int32_t expert);

/* What this rank's experts make of all that has come, in their places in y. */
void tokens_serve(
	const tern_moe *moe, const struct tern_received *received, float *y, uint64_t number);

/* Else the rank's failure names round, token and element. `of` is for result. */
int tokens_check(struct rank *rank, const struct tokens *tokens, float (*out)[HIDDEN],
	uint64_t round, float (*result)(float x, uint64_t of, int32_t expert), uint64_t of);

/* Of an elastic exchange, but for its placement. */
void tokens_config(struct tern_moe_config *config, enum tern_mode mode);

/* So many copies of each expert, on neighbours; the tables have EXPERTS * nr_copies entries. */
struct tern_placement tokens_placement(
	int32_t *logical, int32_t *rank_of, uint32_t nr_copies, uint32_t nr_ranks);

#endif
