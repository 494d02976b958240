/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the next token from its logits. Each prompt has a random sequence of its own,
 * seeded by the run's seed and the prompt's number, so the text does not depend on which rank
 * serves the prompt or what runs beside it. */
#ifndef TERN_EXAMPLES_GENERATE_SAMPLE_H
#define TERN_EXAMPLES_GENERATE_SAMPLE_H

#include <stdint.h>

struct sampler {
	uint64_t state;
	float temperature; /* 0: the most likely token */
	float top_p;       /* of the most likely tokens that together reach this probability */
};

struct sampler sampler_make(uint64_t seed, uint32_t prompt, float temperature, float top_p);

/* logits[vocab] and order[vocab] are scratch afterwards. */
uint32_t sampler_choose(struct sampler *sampler, float *logits, uint32_t *order, uint32_t vocab);

#endif
