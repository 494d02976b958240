/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/tokens.h"

#include "testkit/random.h"

void tokens_draw(struct tokens *tokens, uint64_t *routes, uint64_t *elements)
{
	tokens->nr_tokens = (uint32_t)random_below(routes, TOKENS + 1);
	for (uint32_t t = 0; t < tokens->nr_tokens; t++) {
		uint32_t first = (uint32_t)random_below(routes, EXPERTS);

		for (uint32_t k = 0; k < TOPK; k++) {
			tokens->ids[t][k] = (int32_t)((first + k * 5) % EXPERTS);
			tokens->weights[t][k] = (float)(1 + random_below(routes, 4));
		}
		for (uint32_t h = 0; h < HIDDEN; h++)
			tokens->x[t][h] = (float)random_below(elements, 64);
	}
}

float tokens_result(float x, uint64_t number, int32_t expert)
{
	return x * (float)(expert + 1) + (float)(number % 7);
}

void tokens_serve(
	const tern_moe *moe, const struct tern_received *received, float *y, uint64_t number)
{
	for (int l = 0; l < tern_moe_nr_local(moe); l++) {
		uint64_t first = received->offsets[l] * HIDDEN;
		uint64_t end = first + (uint64_t)received->counts[l] * HIDDEN;
		int32_t expert = tern_moe_local_expert(moe, (uint32_t)l);

		for (uint64_t at = first; at < end; at++)
			y[at] = tokens_result(((const float *)received->x)[at], number, expert);
	}
}

int tokens_check(struct rank *rank, const struct tokens *tokens, float (*out)[HIDDEN],
	uint64_t round, float (*result)(float x, uint64_t of, int32_t expert), uint64_t of)
{
	for (uint32_t t = 0; t < tokens->nr_tokens; t++)
		for (uint32_t h = 0; h < HIDDEN; h++) {
			float sum = 0;

			for (uint32_t k = 0; k < TOPK; k++)
				sum += tokens->weights[t][k] *
				       result(tokens->x[t][h], of, tokens->ids[t][k]);
			if (sum != out[t][h])
				return rank_fails(rank,
					"round %llu, token %u, element %u: %g and not %g",
					(unsigned long long)round, t, h, (double)out[t][h],
					(double)sum);
		}
	return 0;
}

void tokens_config(struct tern_moe_config *config, enum tern_mode mode)
{
	tern_moe_config_init(config);
	config->mode = mode;
	config->reduce = TERN_REDUCE_HOME;
	config->hidden = HIDDEN;
	config->nr_experts = EXPERTS;
	config->topk = TOPK;
	config->max_tokens = TOKENS;
	config->x_dtype = config->dispatch_dtype = config->combine_dtype = TERN_FP32;
	config->elastic = 1;
}

struct tern_placement tokens_placement(
	int32_t *logical, int32_t *rank_of, uint32_t nr_copies, uint32_t nr_ranks)
{
	for (uint32_t i = 0; i < EXPERTS * nr_copies; i++) {
		logical[i] = (int32_t)(i % EXPERTS);
		rank_of[i] = (int32_t)((i % EXPERTS + i / EXPERTS) % nr_ranks);
	}
	return (struct tern_placement){
		.nr_physical = EXPERTS * nr_copies, .logical = logical, .rank = rank_of};
}
