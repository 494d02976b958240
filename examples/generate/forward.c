/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of tokens on its way through the layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

struct workspace {
	uint32_t max_tokens;
	float *x;         /* [tokens][hidden]: the residual stream */
	float *normed;    /* [tokens][hidden] */
	float *block;     /* [tokens][hidden]: what a block adds */
	float *q, *heads; /* [tokens][heads][head_dim] */
	float *k, *v;     /* [tokens][kv heads][head_dim] */
	float *scores;    /* [max_positions] */
	float *router;    /* [tokens][experts] */
	int32_t *ids;     /* [tokens][topk] */
	float *weights;   /* [tokens][topk] */
	float *logits;    /* [tokens][vocab] */
};

/* What one batch's pass needs in every step. */
struct pass {
	const struct model *model;
	const struct model_config *config;
	const struct batch_token *tokens;
	uint32_t nr_tokens;
	struct workspace *w;
};

void workspace_destroy(struct workspace *w)
{
	if (!w)
		return;
	free(w->x);
	free(w->normed);
	free(w->block);
	free(w->q);
	free(w->heads);
	free(w->k);
	free(w->v);
	free(w->scores);
	free(w->router);
	free(w->ids);
	free(w->weights);
	free(w->logits);
	free(w);
}

static float *rows(uint32_t nr, size_t size)
{
	return malloc((nr ? nr : 1) * size * sizeof(float));
}

struct workspace *workspace_create(const struct model_config *c, uint32_t max_tokens)
{
	size_t q_size = (size_t)c->nr_heads * c->head_dim,
	       kv_size = (size_t)c->nr_kv_heads * c->head_dim;
	struct workspace *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	*w = (struct workspace){
		.max_tokens = max_tokens,
		.x = rows(max_tokens, c->hidden),
		.normed = rows(max_tokens, c->hidden),
		.block = rows(max_tokens, c->hidden),
		.q = rows(max_tokens, q_size),
		.heads = rows(max_tokens, q_size),
		.k = rows(max_tokens, kv_size),
		.v = rows(max_tokens, kv_size),
		.scores = rows(1, c->max_positions),
		.router = rows(max_tokens, c->nr_experts),
		.ids = malloc((max_tokens ? max_tokens : 1) * c->topk * sizeof(int32_t)),
		.weights = rows(max_tokens, c->topk),
		.logits = rows(max_tokens, c->vocab),
	};
	if (w->x && w->normed && w->block && w->q && w->heads && w->k && w->v && w->scores &&
		w->router && w->ids && w->weights && w->logits)
		return w;
	workspace_destroy(w);
	return NULL;
}

static void norm_rows(const struct pass *p, const float *weight)
{
	uint32_t hidden = p->config->hidden;

	for (uint32_t t = 0; t < p->nr_tokens; t++)
		rms_norm(p->w->x + (size_t)t * hidden, weight, hidden, p->config->norm_eps,
			p->w->normed + (size_t)t * hidden);
}

static void add_block(const struct pass *p)
{
	add_scaled(p->w->x, 1.0f, p->w->block, p->nr_tokens * p->config->hidden);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Turns each pair (i, i + half) of a head by its position's angle. */
static void rotate(const struct pass *p, float *head, uint32_t position)
{
	uint32_t half = p->config->head_dim / 2;
	const float *cosines = p->model->cosines + (size_t)position * half,
		    *sines = p->model->sines + (size_t)position * half;

	for (uint32_t i = 0; i < half; i++) {
		float a = head[i], b = head[i + half];

		head[i] = a * cosines[i] - b * sines[i];
		head[i + half] = b * cosines[i] + a * sines[i];
	}
}

static void norm_and_rotate(const struct pass *p, float *heads, uint32_t nr_heads,
	const float *weight, uint32_t position)
{
	uint32_t size = p->config->head_dim;

	for (uint32_t h = 0; h < nr_heads; h++) {
		rms_norm(heads + h * size, weight, size, p->config->norm_eps, heads + h * size);
		rotate(p, heads + h * size, position);
	}
}

/* Where this head's positions start in a cache. */
static size_t cache_place(
	const struct pass *p, const struct cache *cache, uint32_t layer, uint32_t kv_head)
{
	return ((size_t)layer * p->config->nr_kv_heads + kv_head) * cache->capacity *
	       p->config->head_dim;
}

static void remember(const struct pass *p, uint32_t layer, uint32_t t)
{
	const struct batch_token *token = &p->tokens[t];
	uint32_t size = p->config->head_dim, nr_heads = p->config->nr_kv_heads;

	for (uint32_t h = 0; h < nr_heads; h++) {
		size_t place =
			cache_place(p, token->cache, layer, h) + (size_t)token->position * size;
		size_t from = ((size_t)t * nr_heads + h) * size;

		memcpy(token->cache->keys + place, p->w->k + from, size * sizeof(float));
		memcpy(token->cache->values + place, p->w->v + from, size * sizeof(float));
	}
}

static void attend_head(const struct pass *p, uint32_t layer, const struct batch_token *token,
	uint32_t head, const float *q, float *out)
{
	uint32_t size = p->config->head_dim,
		 kv_head = head / (p->config->nr_heads / p->config->nr_kv_heads);
	size_t place = cache_place(p, token->cache, layer, kv_head);
	const float *keys = token->cache->keys + place, *values = token->cache->values + place;
	float scale = 1.0f / sqrtf((float)size), *scores = p->w->scores;

	for (uint32_t j = 0; j <= token->position; j++)
		scores[j] = dot(q, keys + (size_t)j * size, size) * scale;
	softmax(scores, token->position + 1);
	memset(out, 0, size * sizeof(float));
	for (uint32_t j = 0; j <= token->position; j++)
		add_scaled(out, scores[j], values + (size_t)j * size, size);
}

static void attention(const struct pass *p, uint32_t index)
{
	const struct model_layer *layer = &p->model->layers[index];
	uint32_t size = p->config->head_dim, nr_heads = p->config->nr_heads,
		 nr_kv_heads = p->config->nr_kv_heads;
	struct workspace *w = p->w;

	norm_rows(p, layer->input_norm);
	matrix_multiply(&layer->q, w->normed, p->nr_tokens, w->q);
	matrix_multiply(&layer->k, w->normed, p->nr_tokens, w->k);
	matrix_multiply(&layer->v, w->normed, p->nr_tokens, w->v);
	for (uint32_t t = 0; t < p->nr_tokens; t++) {
		uint32_t position = p->tokens[t].position;

		norm_and_rotate(
			p, w->q + (size_t)t * nr_heads * size, nr_heads, layer->q_norm, position);
		norm_and_rotate(p, w->k + (size_t)t * nr_kv_heads * size, nr_kv_heads,
			layer->k_norm, position);
		remember(p, index, t);
	}
	for (uint32_t t = 0; t < p->nr_tokens; t++)
		for (uint32_t h = 0; h < nr_heads; h++) {
			size_t place = ((size_t)t * nr_heads + h) * size;

			attend_head(p, index, &p->tokens[t], h, w->q + place, w->heads + place);
		}
	matrix_multiply(&layer->o, w->heads, p->nr_tokens, w->block);
	add_block(p);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* The topk largest, largest first; of equals the one with the lowest id. */
static void choose(const struct model_config *config, float *shares, int32_t *ids, float *weights)
{
	float sum = 0;

	for (uint32_t k = 0; k < config->topk; k++) {
		uint32_t best = 0;

		for (uint32_t e = 1; e < config->nr_experts; e++)
			if (shares[e] > shares[best])
				best = e;
		ids[k] = (int32_t)best;
		weights[k] = shares[best];
		sum += shares[best];
		shares[best] = -1.0f;
	}
	for (uint32_t k = 0; config->norm_topk && k < config->topk; k++)
		weights[k] /= sum;
}

static int experts(const struct pass *p, uint32_t index, const struct moe_exchange *exchange,
	struct fault *fault)
{
	const struct model_layer *layer = &p->model->layers[index];
	const struct model_config *config = p->config;
	struct workspace *w = p->w;
	struct moe_call call = {
		.layer = index,
		.nr_tokens = p->nr_tokens,
		.hidden = w->normed,
		.ids = w->ids,
		.weights = w->weights,
		.out = w->block,
	};

	norm_rows(p, layer->post_norm);
	matrix_multiply(&layer->router, w->normed, p->nr_tokens, w->router);
	for (uint32_t t = 0; t < p->nr_tokens; t++) {
		float *shares = w->router + (size_t)t * config->nr_experts;

		softmax(shares, config->nr_experts);
		choose(config, shares, w->ids + (size_t)t * config->topk,
			w->weights + (size_t)t * config->topk);
	}
	if (exchange->run(exchange->ctx, &call, fault))
		return -1;
	add_block(p);
	return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int embed(const struct pass *p, struct fault *fault)
{
	const struct model_config *config = p->config;

	if (p->nr_tokens > p->w->max_tokens)
		return fault_say(fault, "a batch of %u tokens in a workspace for %u", p->nr_tokens,
			p->w->max_tokens);
	for (uint32_t t = 0; t < p->nr_tokens; t++) {
		const struct batch_token *token = &p->tokens[t];

		if (token->id < 0 || (uint32_t)token->id >= config->vocab)
			return fault_say(fault, "token %d is outside of the vocabulary of %u",
				token->id, config->vocab);
		if (token->position >= token->cache->capacity ||
			token->position >= config->max_positions)
			return fault_say(fault,
				"position %u is beyond the %u that there is room for",
				token->position, token->cache->capacity);
		memcpy(p->w->x + (size_t)t * config->hidden,
			p->model->embedding + (size_t)token->id * config->hidden,
			config->hidden * sizeof(float));
	}
	return 0;
}

/* Only for rows whose logits are wanted: a prompt needs those of its last token alone. */
static void write_logits(const struct pass *p)
{
	const struct model_config *config = p->config;
	struct workspace *w = p->w;
	uint32_t nr = 0;

	for (uint32_t t = 0; t < p->nr_tokens; t++)
		if (p->tokens[t].logits)
			rms_norm(w->x + (size_t)t * config->hidden, p->model->final_norm,
				config->hidden, config->norm_eps,
				w->normed + (size_t)nr++ * config->hidden);
	matrix_multiply(&p->model->head, w->normed, nr, w->logits);
	nr = 0;
	for (uint32_t t = 0; t < p->nr_tokens; t++)
		if (p->tokens[t].logits)
			memcpy(p->tokens[t].logits, w->logits + (size_t)nr++ * config->vocab,
				config->vocab * sizeof(float));
}

int model_forward(const struct model *model, struct workspace *workspace,
	const struct batch_token *tokens, uint32_t nr_tokens, const struct moe_exchange *exchange,
	struct fault *fault)
{
	struct pass pass = {.model = model,
		.config = &model->config,
		.tokens = tokens,
		.nr_tokens = nr_tokens,
		.w = workspace};

	if (embed(&pass, fault))
		return -1;
	for (uint32_t layer = 0; layer < model->config.nr_layers; layer++) {
		attention(&pass, layer);
		if (experts(&pass, layer, exchange, fault))
			return -1;
	}
	write_logits(&pass);
	return 0;
}
