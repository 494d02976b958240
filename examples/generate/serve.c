/* SPDX-License-Identifier: Apache-2.0 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t serve_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint32_t serve_most_sequences(const struct serve_plan *plan, uint32_t nr_ranks)
{
	return plan->elastic ? plan->nr_prompts : (plan->nr_prompts + nr_ranks - 1) / nr_ranks;
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

/* ---- creating -------------------------------------------------------------------------------- */

static int create_sequence(
	const struct service *service, uint32_t prompt, struct sequence *s, struct fault *fault)
{
	const struct model_config *config = &service->model->config;
	const struct serve_plan *plan = service->plan;
	size_t bytes = strlen(plan->prompts[prompt]);

	if (!bytes || bytes + plan->nr_tokens > config->max_positions)
		return fault_say(fault,
			"prompt %u has %zu bytes; with %u generated the model has room for 1 to %u",
			prompt + 1, bytes, plan->nr_tokens,
			config->max_positions > plan->nr_tokens
				? config->max_positions - plan->nr_tokens
				: 0);
	s->prompt = prompt;
	s->prompt_bytes = s->nr_bytes = (uint32_t)bytes;
	s->sampler = sampler_make(plan->seed, prompt, plan->temperature, plan->top_p);
	s->text = malloc(bytes + plan->nr_tokens);
	s->logits = malloc(config->vocab * sizeof(float));
	if (plan->keeps_logits)
		s->kept = malloc((size_t)plan->nr_tokens * config->vocab * sizeof(float));
	if (!s->text || !s->logits || (plan->keeps_logits && !s->kept) ||
		cache_create(config, (uint32_t)bytes + plan->nr_tokens, &s->cache))
		return fault_say(fault, "no memory for prompt %u", prompt + 1);
	memcpy(s->text, plan->prompts[prompt], bytes);
	return 0;
}

int service_add(struct service *service, uint32_t prompt, struct fault *fault)
{
	return create_sequence(
		service, prompt, &service->sequences[service->nr_sequences++], fault);
}

static int create(struct service *service, struct fault *fault)
{
	const struct serve_plan *plan = service->plan;
	uint32_t most = serve_most_sequences(plan, service->nr_ranks);
	uint32_t room = most > SERVE_PREFILL_TOKENS ? most : SERVE_PREFILL_TOKENS;

	if (service->model->config.vocab != 256)
		return fault_say(fault,
			"the model has a vocabulary of %u: this program has no tokenizer and needs "
			"a model of bytes",
			service->model->config.vocab);
	service->sequences = calloc(most, sizeof(*service->sequences));
	service->batch = malloc(room * sizeof(*service->batch));
	service->order = malloc(service->model->config.vocab * sizeof(*service->order));
	service->workspace = workspace_create(&service->model->config, room);
	if (!service->sequences || !service->batch || !service->order || !service->workspace)
		return fault_say(fault, "no memory for %u prompts", most);
	for (uint32_t i = service->rank; i < plan->nr_prompts; i += service->nr_ranks)
		if (service_add(service, i, fault))
			return -1;
	return 0;
}

int service_create(const struct model *model, const struct serve_plan *plan, uint32_t rank,
	uint32_t nr_ranks, struct service *service, struct fault *fault)
{
	struct service made = {.model = model, .plan = plan, .rank = rank, .nr_ranks = nr_ranks};

	if (create(&made, fault)) {
		service_destroy(&made);
		return -1;
	}
	*service = made;
	return 0;
}

void service_clear(struct service *service)
{
	for (uint32_t i = 0; i < service->nr_sequences; i++) {
		free(service->sequences[i].text);
		free(service->sequences[i].logits);
		free(service->sequences[i].kept);
		cache_destroy(&service->sequences[i].cache);
		service->sequences[i] = (struct sequence){0};
	}
	service->nr_sequences = 0;
}

void service_destroy(struct service *service)
{
	service_clear(service);
	free(service->sequences);
	free(service->batch);
	free(service->order);
	workspace_destroy(service->workspace);
	*service = (struct service){0};
}

/* ---- running --------------------------------------------------------------------------------- */

/* FNV-1a over the bits, so that "the same" means every bit of every logit. */
static void take_fingerprint(struct sequence *s, uint32_t vocab)
{
	const uint8_t *bytes = (const uint8_t *)s->logits;

	for (size_t i = 0; i < vocab * sizeof(float); i++)
		s->fingerprint = (s->fingerprint ^ bytes[i]) * 0x100000001b3u;
}

void service_choose(struct service *service, struct sequence *s)
{
	uint32_t vocab = service->model->config.vocab;

	take_fingerprint(s, vocab);
	if (s->kept)
		memcpy(s->kept + (size_t)(s->nr_bytes - s->prompt_bytes) * vocab, s->logits,
			vocab * sizeof(float));
	s->text[s->nr_bytes] =
		service->told
			? service->told->sequences[s - service->sequences].text[s->nr_bytes]
			: (uint8_t)sampler_choose(&s->sampler, s->logits, service->order, vocab);
	s->nr_bytes++;
}

static void choose_tokens(struct service *service)
{
	for (uint32_t i = 0; i < service->nr_sequences; i++)
		service_choose(service, &service->sequences[i]);
}

/* The next tokens of the prompts, up to a full batch. *sequence and *at tell where the last batch
 * ended. */
static uint32_t fill_prefill(struct service *service, uint32_t *sequence, uint32_t *at)
{
	uint32_t nr = 0;

	while (nr < SERVE_PREFILL_TOKENS && *sequence < service->nr_sequences) {
		struct sequence *s = &service->sequences[*sequence];
		bool last = *at + 1 == s->prompt_bytes;

		service->batch[nr++] =
			(struct batch_token){s->text[*at], *at, &s->cache, last ? s->logits : NULL};
		*sequence += last;
		*at = last ? 0 : *at + 1;
	}
	return nr;
}

int service_prefill(
	struct service *service, const struct moe_exchange *exchange, struct fault *fault)
{
	uint32_t nr_batches = prefill_batches(service->plan, service->nr_ranks), sequence = 0,
		 at = 0;
	uint64_t start = serve_now_ns();

	for (uint32_t i = 0; i < nr_batches; i++) {
		uint32_t nr = fill_prefill(service, &sequence, &at);

		if (model_forward(service->model, service->workspace, service->batch, nr, exchange,
			    fault))
			return -1;
		service->nr_prefilled += nr;
	}
	choose_tokens(service);
	service->prefill_ns = serve_now_ns() - start;
	return 0;
}

int service_step(struct service *service, const struct moe_exchange *exchange, struct fault *fault)
{
	uint64_t start = serve_now_ns();

	for (uint32_t i = 0; i < service->nr_sequences; i++) {
		struct sequence *s = &service->sequences[i];
		uint32_t last = s->nr_bytes - 1;

		service->batch[i] = (struct batch_token){s->text[last], last, &s->cache, s->logits};
	}
	if (model_forward(service->model, service->workspace, service->batch, service->nr_sequences,
		    exchange, fault))
		return -1;
	choose_tokens(service);
	service->nr_decoded += service->nr_sequences;
	service->decode_ns += serve_now_ns() - start;
	return 0;
}

static double mean(const float *row, uint32_t nr)
{
	double sum = 0;

	for (uint32_t i = 0; i < nr; i++)
		sum += (double)row[i];
	return sum / nr;
}

void service_distance(const struct service *a, const struct service *b, double far[2])
{
	uint32_t vocab = a->model->config.vocab;
	size_t nr_rows = a->plan->nr_tokens;

	for (uint32_t i = 0; i < a->nr_sequences; i++)
		for (size_t row = 0; row < nr_rows; row++) {
			const float *x = a->sequences[i].kept + row * vocab,
				    *y = b->sequences[i].kept + row * vocab;
			double of_x = mean(x, vocab), of_y = mean(y, vocab);

			for (uint32_t j = 0; j < vocab; j++) {
				double d = ((double)x[j] - of_x) - ((double)y[j] - of_y),
				       own = (double)y[j] - of_y;

				far[0] += d * d;
				far[1] += own * own;
			}
		}
}
