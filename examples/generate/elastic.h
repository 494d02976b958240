/* SPDX-License-Identifier: Apache-2.0 */
/* Serving while ranks die. After each step all ranks tell each other the bytes that they have
 * chosen. When a rank is gone, others take its prompts over: they read prompt and text again, as
 * its key-value caches are lost, and go on. Who comes in its place is told all that the others
 * know. What a rank does next follows from what all were told alone, so that all make the same
 * calls of the exchange. */
#ifndef TERN_EXAMPLES_GENERATE_ELASTIC_H
#define TERN_EXAMPLES_GENERATE_ELASTIC_H

#include "gather.h"
#include "moe_tern.h"
#include "serve.h"

struct elastic_run {
	struct service *service;
	struct moe_tern *moe;
	struct moe_exchange prefill, decode;
	struct texts *texts;                     /* of all prompts, as far as all know them */
	void (*shown)(void *ctx, uint32_t step); /* after each step */
	void *ctx;
	bool joins;             /* the others are in the middle of it: this rank comes to them */
	uint32_t nr_before;     /* texts that were written before these; out where it joins */
	uint32_t nr_taken_over; /* out: prompts, from ranks that died */
};

/* Until all prompts have their texts. */
int elastic_generate(struct elastic_run *run, struct fault *fault);

#endif
