/* SPDX-License-Identifier: Apache-2.0 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t serve_most_sequences(const struct serve_plan *plan, uint32_t nr_ranks)
{
	return (plan->nr_prompts + nr_ranks - 1) / nr_ranks;
}

/* Batches that the rank with the longest prompts needs; the others join in with what they have. */
static uint32_t prefill_batches(const struct serve_plan *plan, uint32_t nr_ranks)
{
	uint64_t most = 0;

	for (uint32_t rank = 0; rank < nr_ranks; rank++) {
		uint64_t bytes = 0;

		for (uint32_t i = rank; i < plan->nr_prompts; i += nr_ranks)
			bytes += strlen(plan->prompts[i]);
		most = bytes > most ? bytes : most;
	}
	return (uint32_t)((most + SERVE_PREFILL_TOKENS - 1) / SERVE_PREFILL_TOKENS);
}

/* ---- creating ---- */

static int create_sequence(const struct session *session, uint32_t prompt, struct sequence *s, struct fault *fault)
{
	const struct model_config *config = &session->model->config;
	const struct serve_plan *plan = session->plan;
	size_t bytes = strlen(plan->prompts[prompt]);

	if (!bytes || bytes + plan->nr_tokens > config->max_positions)
		return fault_say(fault, "prompt %u has %zu bytes; with %u generated the model has room for 1 to %u", prompt + 1, bytes,
			plan->nr_tokens, config->max_positions > plan->nr_tokens ? config->max_positions - plan->nr_tokens : 0);
	s->prompt = prompt;
	s->prompt_bytes = s->nr_bytes = (uint32_t)bytes;
	s->sampler = sampler_make(plan->seed, prompt, plan->temperature, plan->top_p);
	s->text = malloc(bytes + plan->nr_tokens);
	s->logits = malloc(config->vocab * sizeof(float));
	if (!s->text || !s->logits || cache_create(config, (uint32_t)bytes + plan->nr_tokens, &s->cache))
		return fault_say(fault, "no memory for prompt %u", prompt + 1);
	memcpy(s->text, plan->prompts[prompt], bytes);
	return 0;
}

static int create(struct session *session, struct fault *fault)
{
	const struct serve_plan *plan = session->plan;
	uint32_t most = serve_most_sequences(plan, session->nr_ranks);
	uint32_t room = most > SERVE_PREFILL_TOKENS ? most : SERVE_PREFILL_TOKENS;

	if (session->model->config.vocab != 256)
		return fault_say(fault, "the model has a vocabulary of %u: this program has no tokenizer and needs a model of bytes",
			session->model->config.vocab);
	session->sequences = calloc(most, sizeof(*session->sequences));
	session->batch = malloc(room * sizeof(*session->batch));
	session->order = malloc(session->model->config.vocab * sizeof(*session->order));
	session->workspace = workspace_create(&session->model->config, room);
	if (!session->sequences || !session->batch || !session->order || !session->workspace)
		return fault_say(fault, "no memory for %u prompts", most);
	for (uint32_t i = session->rank; i < plan->nr_prompts; i += session->nr_ranks)
		if (create_sequence(session, i, &session->sequences[session->nr_sequences++], fault))
			return -1;
	return 0;
}

int session_create(const struct model *model, const struct serve_plan *plan, uint32_t rank, uint32_t nr_ranks, struct session *session,
	struct fault *fault)
{
	struct session made = {.model = model, .plan = plan, .rank = rank, .nr_ranks = nr_ranks};

	if (create(&made, fault)) {
		session_destroy(&made);
		return -1;
	}
	*session = made;
	return 0;
}

void session_destroy(struct session *session)
{
	for (uint32_t i = 0; i < session->nr_sequences; i++) {
		free(session->sequences[i].text);
		free(session->sequences[i].logits);
		cache_destroy(&session->sequences[i].cache);
	}
	free(session->sequences);
	free(session->batch);
	free(session->order);
	workspace_destroy(session->workspace);
	*session = (struct session){0};
}

/* ---- running ---- */

/* FNV-1a over the bits, so that "the same" means every bit of every logit. */
static void take_fingerprint(struct sequence *s, uint32_t vocab)
{
	const uint8_t *bytes = (const uint8_t *)s->logits;

	for (size_t i = 0; i < vocab * sizeof(float); i++)
		s->fingerprint = (s->fingerprint ^ bytes[i]) * 0x100000001b3u;
}

static void choose_tokens(struct session *session)
{
	uint32_t vocab = session->model->config.vocab;

	for (uint32_t i = 0; i < session->nr_sequences; i++) {
		struct sequence *s = &session->sequences[i];

		take_fingerprint(s, vocab);
		s->text[s->nr_bytes++] = (uint8_t)sampler_choose(&s->sampler, s->logits, session->order, vocab);
	}
}

/* The next tokens of the prompts, up to a full batch. *sequence and *at tell where the last batch ended. */
static uint32_t fill_prefill(struct session *session, uint32_t *sequence, uint32_t *at)
{
	uint32_t nr = 0;

	while (nr < SERVE_PREFILL_TOKENS && *sequence < session->nr_sequences) {
		struct sequence *s = &session->sequences[*sequence];
		bool last = *at + 1 == s->prompt_bytes;

		session->batch[nr++] = (struct batch_token){s->text[*at], *at, &s->cache, last ? s->logits : NULL};
		*sequence += last;
		*at = last ? 0 : *at + 1;
	}
	return nr;
}

int session_prefill(struct session *session, const struct moe_exchange *exchange, struct fault *fault)
{
	uint32_t nr_batches = prefill_batches(session->plan, session->nr_ranks), sequence = 0, at = 0;
	uint64_t start = now_ns();

	for (uint32_t i = 0; i < nr_batches; i++) {
		uint32_t nr = fill_prefill(session, &sequence, &at);

		if (model_forward(session->model, session->workspace, session->batch, nr, exchange, fault))
			return -1;
		session->nr_prefilled += nr;
	}
	choose_tokens(session);
	session->prefill_ns = now_ns() - start;
	return 0;
}

int session_step(struct session *session, const struct moe_exchange *exchange, struct fault *fault)
{
	uint64_t start = now_ns();

	for (uint32_t i = 0; i < session->nr_sequences; i++) {
		struct sequence *s = &session->sequences[i];
		uint32_t last = s->nr_bytes - 1;

		session->batch[i] = (struct batch_token){s->text[last], last, &s->cache, s->logits};
	}
	if (model_forward(session->model, session->workspace, session->batch, session->nr_sequences, exchange, fault))
		return -1;
	choose_tokens(session);
	session->nr_decoded += session->nr_sequences;
	session->decode_ns += now_ns() - start;
	return 0;
}
