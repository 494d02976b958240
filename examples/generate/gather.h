/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other besides tokens: that they do the same, what they have written so far,
 * and what they measured. */
#ifndef TERN_EXAMPLES_GENERATE_GATHER_H
#define TERN_EXAMPLES_GENERATE_GATHER_H

#include <stdbool.h>

#include "moe_tern.h"
#include "options.h"
#include "serve.h"
#include "tern.h"

/* Fails on all ranks if they were started with different prompts or settings. *live is set if rank
 * 0 shows texts. */
int gather_agreement(
	tern_group *group, const struct options *options, bool *live, struct fault *fault);

/* Collective. *rank is the first one whose `mine` is false, -1: there is none. */
int gather_first_without(tern_group *group, bool mine, int *rank, struct fault *fault);

/* All prompts' texts. */
struct texts {
	uint32_t nr_prompts, nr_tokens;
	uint32_t *nr_bytes;     /* generated so far, of each prompt */
	uint64_t *fingerprints; /* of its logits */
	uint8_t *bytes;         /* [prompt][nr_tokens], without the prompts */
};

int texts_create(const struct serve_plan *plan, struct texts *texts, struct fault *fault);
void texts_destroy(struct texts *texts);

/* Of this rank's prompts alone. */
void texts_take(struct texts *texts, const struct service *service);

/* Of all ranks' prompts; collective. */
int gather_texts(
	tern_group *group, const struct service *service, struct texts *texts, struct fault *fault);

/* Over calls, in microseconds. A rank's time holds its waiting for ranks that are still computing,
 * so of each call the slowest rank is what the model waits for, and the fastest, which came last,
 * is near to what the exchange itself takes. */
struct latency {
	double slowest_p50, slowest_p99;
	double fastest_p50, fastest_p99;
};

/* Of the whole run. Times are the slowest rank's. */
struct figures {
	uint32_t nr_ranks;
	int nr_gpus; /* 0: on the CPU; else what is moved is not counted, and calls copy rows to
			GPUs and back, too */
	uint64_t prefill_tokens, decode_tokens;
	double prefill_s, decode_s;
	struct latency dispatch, combine; /* of decoding */
	uint64_t dispatch_bytes, combine_bytes;
	double logits_far; /* with --layer: RMS of differences from one rank's over theirs */
	uint64_t tokens, tokens_away; /* passed to dispatch, and those of them with a row to another
					 rank */
};

/* Collective: the sums of all ranks' numbers. */
int gather_sums(tern_group *group, double *numbers, uint32_t nr, struct fault *fault);

/* Collective. */
int gather_figures(tern_group *group, const struct service *service, struct moe_tern *moe,
	struct figures *figures, struct fault *fault);

#endif
