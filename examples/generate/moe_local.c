/* SPDX-License-Identifier: Apache-2.0 */
#include "moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "maths.h"

struct moe_local {
	struct experts *experts;
	uint32_t topk, max_tokens, hidden;
	struct moe_types types;
	float *x;         /* [tokens][hidden], as they would arrive */
	float *rows;      /* [tokens][hidden], one expert's */
	float *results;   /* [tokens][hidden], one expert's */
	float *y;         /* [tokens][topk][hidden] */
	uint32_t *routes; /* [tokens], of one expert: token * topk + k */
};

void moe_local_destroy(struct moe_local *local)
{
	if (!local)
		return;
	free(local->x);
	free(local->rows);
	free(local->results);
	free(local->y);
	free(local->routes);
	free(local);
}

struct moe_local *moe_local_create(
	struct experts *experts, uint32_t topk, uint32_t max_tokens, struct moe_types types)
{
	size_t rows = (size_t)max_tokens * experts->hidden * sizeof(float);
	struct moe_local *local = calloc(1, sizeof(*local));

	if (!local)
		return NULL;
	*local = (struct moe_local){
		.experts = experts,
		.topk = topk,
		.max_tokens = max_tokens,
		.hidden = experts->hidden,
		.types = types,
		.x = malloc(rows),
		.rows = malloc(rows),
		.results = malloc(rows),
		.y = malloc(rows * topk),
		.routes = malloc(max_tokens * sizeof(uint32_t)),
	};
	if (local->x && local->rows && local->results && local->y && local->routes)
		return local;
	moe_local_destroy(local);
	return NULL;
}

static void receive(struct moe_local *local, const struct moe_call *call)
{
	memcpy(local->x, call->hidden, (size_t)call->nr_tokens * local->hidden * sizeof(float));
	for (uint32_t t = 0; t < call->nr_tokens; t++)
		row_round(
			local->types.dispatch, local->x + (size_t)t * local->hidden, local->hidden);
}

/* The tokens that chose this expert; a token chooses it once at most. */
static uint32_t gather(struct moe_local *local, const struct moe_call *call, int32_t id)
{
	uint32_t nr = 0;

	for (uint32_t route = 0; route < call->nr_tokens * local->topk; route++) {
		if (call->ids[route] != id)
			continue;
		memcpy(local->rows + (size_t)nr * local->hidden,
			local->x + (size_t)(route / local->topk) * local->hidden,
			local->hidden * sizeof(float));
		local->routes[nr++] = route;
	}
	return nr;
}

static void run_expert(struct moe_local *local, const struct moe_call *call, uint32_t id)
{
	uint32_t nr = gather(local, call, (int32_t)id);

	experts_run(local->experts, call->layer, id, local->rows, nr, local->results);
	for (uint32_t i = 0; i < nr; i++) {
		float *y = local->y + (size_t)local->routes[i] * local->hidden;

		memcpy(y, local->results + (size_t)i * local->hidden,
			local->hidden * sizeof(float));
		row_round(local->types.combine, y, local->hidden);
	}
}

/* As tern_combine does: weight * y is added by a fused multiply-add. */
static void combine(struct moe_local *local, const struct moe_call *call)
{
	memset(call->out, 0, (size_t)call->nr_tokens * local->hidden * sizeof(float));
	for (uint32_t t = 0; t < call->nr_tokens; t++) {
		float *out = call->out + (size_t)t * local->hidden;

		for (uint32_t route = t * local->topk; route < (t + 1) * local->topk; route++)
			for (uint32_t i = 0; i < local->hidden; i++)
				out[i] = fmaf(call->weights[route],
					local->y[(size_t)route * local->hidden + i], out[i]);
		row_round(local->types.combine, out, local->hidden);
	}
}

static int run(void *ctx, const struct moe_call *call, struct fault *fault)
{
	struct moe_local *local = ctx;

	if (call->nr_tokens > local->max_tokens)
		return fault_say(fault, "%u tokens in an exchange made for %u", call->nr_tokens,
			local->max_tokens);
	receive(local, call);
	for (uint32_t id = 0; id < local->experts->nr; id++)
		run_expert(local, call, id);
	combine(local, call);
	return 0;
}

struct moe_exchange moe_local_exchange(struct moe_local *local)
{
	return (struct moe_exchange){.run = run, .ctx = local};
}
