/* SPDX-License-Identifier: Apache-2.0 */
/* Serving prompts: prompt i belongs to rank i % nr_ranks, and a rank's prompts run as one batch.
 * All ranks make the same number of calls of the exchange in the same order, a rank with nothing
 * left to do with no tokens. */
#ifndef TERN_EXAMPLES_GENERATE_SERVE_H
#define TERN_EXAMPLES_GENERATE_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "sample.h"

#define SERVE_PREFILL_TOKENS 256 /* most tokens of prompts in one batch */

/* What is to be done; the same on all ranks. */
struct serve_plan {
	char *const *prompts;
	uint32_t nr_prompts;
	uint32_t nr_tokens; /* to generate for each prompt */
	bool keeps_logits;
	bool elastic; /* a rank may come to have all prompts: elastic.c */
	float temperature, top_p;
	uint64_t seed;
};

struct sequence {
	uint32_t prompt; /* its number */
	uint32_t prompt_bytes;
	uint32_t nr_cached; /* elastic: positions in the cache */
	uint32_t nr_bytes;  /* prompt and what was generated so far */
	uint8_t *text;      /* [prompt_bytes + nr_tokens] */
	struct cache cache;
	struct sampler sampler;
	float *logits; /* [vocab] */
	float *kept;   /* [nr_tokens][vocab] that each byte was chosen from; NULL: not kept */
	uint64_t fingerprint; /* of all logits that a token was chosen from */
};

struct service {
	const struct model *model;
	const struct serve_plan *plan;
	uint32_t rank, nr_ranks;
	struct sequence *sequences; /* this rank's, in the order of the prompts */
	uint32_t nr_sequences;
	struct batch_token *batch;
	struct workspace *workspace;
	uint32_t *order;            /* [vocab], scratch of sampling */
	const struct service *told; /* its texts are read, in place of choosing bytes; or NULL */
	uint64_t prefill_ns, decode_ns;
	uint32_t nr_prefilled, nr_decoded; /* tokens */
};

/* Most prompts that a rank serves. */
uint32_t serve_most_sequences(const struct serve_plan *plan, uint32_t nr_ranks);
uint64_t serve_now_ns(void);

/* *service is set only on success. model and plan must outlive it. */
int service_create(const struct model *model, const struct serve_plan *plan, uint32_t rank,
	uint32_t nr_ranks, struct service *service, struct fault *fault);
void service_destroy(struct service *service);

/* For elastic.c, where a rank takes over prompts of others: one more sequence, without caches. */
int service_add(struct service *service, uint32_t prompt, struct fault *fault);
/* None of the prompts are this rank's. */
void service_clear(struct service *service);
/* The next byte of a sequence whose logits are there. */
void service_choose(struct service *service, struct sequence *s);

/* Reads the prompts and chooses the first token of each. */
int service_prefill(
	struct service *service, const struct moe_exchange *exchange, struct fault *fault);

/* Chooses one more token for each prompt; to be called plan->nr_tokens - 1 times. */
int service_step(struct service *service, const struct moe_exchange *exchange, struct fault *fault);

/* How far the logits of two services are apart that have read the same texts: the sums of squares
 * of their differences and of the second's, each row without its mean, are added to far[2]. */
void service_distance(const struct service *a, const struct service *b, double far[2]);

#endif
