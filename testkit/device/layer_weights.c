/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/device/layer_weights.h"

#include <string.h>

#include "base/error.h"
#include "exchange/layout.h"
#include "exchange/state.h"

static int passed_on(const struct layer_weights *w, int rc)
{
	return rc ? fail(rc, "%s", w->ops->error_text()) : 0;
}

static uint64_t nr_blocks(uint32_t n)
{
	return (n + SCALE_BLOCK - 1) / SCALE_BLOCK;
}

int layer_weights_create(struct layer_weights *w, const struct bench_device_ops *ops,
	const tern_moe *moe, uint32_t inner)
{
	const struct tern_moe_config *c = &moe->config;
	uint32_t nr = (uint32_t)tern_moe_nr_local(moe),
		 first = nr ? (uint32_t)tern_moe_local_expert(moe, 0) : 0;
	bool scaled = c->dispatch_dtype == TERN_FP8_E4M3;
	uint64_t bytes = (uint64_t)nr * inner * c->hidden * (scaled ? 1 : 2) + 16,
		 scales = nr * nr_blocks(inner) * nr_blocks(c->hidden) * sizeof(float) + 16;
	int rc;

	w->first_expert = first;
	if (w->ops && w->hidden == c->hidden && w->inner == inner && w->nr_experts == nr &&
		w->scaled == scaled)
		return 0;
	layer_weights_free(w);
	*w = (struct layer_weights){.ops = ops,
		.inner = inner,
		.first_expert = first,
		.nr_experts = nr,
		.scaled = scaled};
	rc = ops->memory_create(2 * bytes, &w->gate_up);
	rc = rc ? rc : ops->memory_create(bytes, &w->down);
	if (!rc && scaled)
		rc = ops->memory_create(2 * scales, (void **)&w->gate_up_scales);
	if (!rc && scaled)
		rc = ops->memory_create(scales, (void **)&w->down_scales);
	w->hidden = rc ? 0 : c->hidden;
	return passed_on(w, rc);
}

int layer_weights_fill(const struct layer_weights *w, bool exact, uint64_t seed, void *stream)
{
	struct layer_fill gate_up = {.to = w->gate_up,
		.scales = w->gate_up_scales,
		.first_expert = w->first_expert,
		.nr_experts = w->nr_experts,
		.nr_matrices = 2,
		.rows = w->inner,
		.k = w->hidden,
		.exact = exact,
		.seed = seed};
	struct layer_fill down = gate_up;
	int rc = w->nr_experts ? w->ops->weights(&gate_up, stream) : 0;

	down.to = w->down;
	down.scales = w->down_scales;
	down.nr_matrices = 1;
	down.rows = w->hidden;
	down.k = w->inner;
	if (!rc && w->nr_experts)
		rc = w->ops->weights(&down, stream);
	return passed_on(w, rc);
}

void layer_weights_free(struct layer_weights *w)
{
	void *all[] = {w->gate_up, w->down, w->gate_up_scales, w->down_scales};

	for (int i = 0; i < 4; i++)
		if (all[i])
			w->ops->memory_free(all[i]);
	memset(w, 0, sizeof(*w));
}

void layer_weights_give(const struct layer_weights *w, struct tern_layer_config *config)
{
	config->inner = w->inner;
	config->gate_up = w->gate_up;
	config->down = w->down;
	config->gate_up_scales = w->gate_up_scales;
	config->down_scales = w->down_scales;
}
