/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/draw.h"

#include "testkit/random.h"

/* One of ascending values that does not exceed `most`; the first always may be. */
static uint32_t one_below(uint64_t *state, const uint32_t *values, uint32_t nr, uint32_t most)
{
	while (nr > 1 && values[nr - 1] > most)
		nr--;
	return values[random_below(state, nr)];
}

#define ONE_BELOW(values, most) one_below(state, values, sizeof(values) / sizeof((values)[0]), most)
#define ONE_OF(values) (values)[random_below(state, sizeof(values) / sizeof((values)[0]))]

static void draw_dtypes(uint64_t *state, struct tern_moe_config *c)
{
	c->x_dtype = (enum tern_dtype)(1 + random_below(state, 5));
	c->dispatch_dtype = c->x_dtype;
	if (c->x_dtype <= TERN_FP32 && random_below(state, 2))
		c->dispatch_dtype = TERN_FP8_E4M3;
	c->scale = c->dispatch_dtype == TERN_FP8_E4M3
			   ? (enum tern_scale)(1 + random_below(state, 2))
			   : TERN_SCALE_NONE;
	c->payload_bytes = c->dispatch_dtype == TERN_BYTES ? 16 * (1 + random_below(state, 40)) : 0;
	c->combine_dtype = (enum tern_dtype)(1 + random_below(state, 3));
}

static void draw_kind(uint64_t *state, struct tern_moe_config *c)
{
	c->mode = (enum tern_mode)(1 + random_below(state, 2));
	c->layout = (enum tern_layout)(1 + random_below(state, 3));
	c->reduce = (enum tern_reduce)(1 + random_below(state, 2));
	c->weights = (enum tern_weights)(1 + random_below(state, 2));
	if (c->layout == TERN_BY_SOURCE) {
		c->reduce = TERN_REDUCE_EXPERT;
		c->weights = TERN_WEIGHTS_PASS;
	}
}

static void draw_sizes(uint64_t *state, const struct draw_limits *limits, struct job *job)
{
	static const uint32_t hidden[] = {16, 32, 48, 112, 128, 144, 256, 272, 640, 1024, 2880};
	static const uint32_t experts[] = {1, 2, 3, 5, 8, 16, 33, 60, 64, 128};
	static const uint32_t tokens[] = {1, 2, 3, 7, 16, 33, 64, 130};
	static const uint32_t ranks[] = {1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 13, 16, 24, 32};
	static const uint32_t slots[] = {1, 1, 1, 2, 2, 3, 7};
	static const uint32_t alignment[] = {1, 1, 2, 8, 16, 128};
	static const uint32_t epochs[] = {1, 1, 0, 7, UINT32_MAX, UINT32_MAX - 3, 1u << 31};
	struct tern_moe_config *c = &job->config;

	job->nr_ranks = ONE_BELOW(ranks, limits->nr_ranks);
	c->hidden = ONE_BELOW(hidden, limits->hidden);
	c->nr_experts = ONE_BELOW(experts, limits->nr_experts);
	c->topk = 1 + random_below(
			      state, c->nr_experts < TERN_MAX_TOPK ? c->nr_experts : TERN_MAX_TOPK);
	if (random_below(state, 2) && c->topk > 8)
		c->topk = 8;
	c->max_tokens = ONE_BELOW(tokens, limits->nr_tokens);
	job->nr_tokens =
		random_below(state, 4) ? c->max_tokens : random_below(state, c->max_tokens + 1);
	c->nr_slots = ONE_OF(slots);
	c->alignment = ONE_OF(alignment);
	c->first_epoch = ONE_OF(epochs);
	c->replica_ranks = random_below(state, 3) ? 1 : 1 + random_below(state, job->nr_ranks);
	while (job->nr_ranks % c->replica_ranks)
		c->replica_ranks--;
	if (c->mode == TERN_HIGH_THROUGHPUT && random_below(state, 3) == 0)
		c->capacity = 1 + random_below(state, 2 * c->max_tokens * c->topk);
}

void draw_job(uint64_t *state, const struct draw_limits *limits, struct job *job)
{
	job_init(job);
	draw_kind(state, &job->config);
	draw_dtypes(state, &job->config);
	draw_sizes(state, limits, job);
	job->seed = random_next(state);
	job->input = (enum job_input)random_below(state, 3);
	job->routing.kind = random_below(state, 5) == 0 ? ROUTING_ONE
			    : random_below(state, 2)    ? ROUTING_ZIPF
							: ROUTING_UNIFORM;
	job->routing.exponent = 1.2;
	job->routing.drop = random_below(state, 2) ? 0 : 0.3;
	job->routing.uneven = random_below(state, 2);
	job->nr_redundant = random_below(state, 3) ? 0 : random_below(state, 9);
	job->spread = random_below(state, 3) == 0;
	job->no_weights = random_below(state, 4) == 0;
	job->config.replicas = random_below(state, 4) ? TERN_REPLICAS_AUTO : TERN_REPLICAS_IN_TURN;
}
