/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <stdlib.h>

#include "maths.h"

/* splitmix64: every state is a good one, so seeds need no care. */
static uint64_t random_u64(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

struct sampler sampler_make(uint64_t seed, uint32_t prompt, float temperature, float top_p)
{
	struct sampler sampler = {.state = seed, .temperature = temperature, .top_p = top_p};

	sampler.state = random_u64(&sampler.state) + prompt;
	sampler.state = random_u64(&sampler.state);
	return sampler;
}

static uint32_t most_likely(const float *logits, uint32_t vocab)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* Most likely first; of equals the lower token, so that the order does not hang on the sort. */
static int by_probability(const void *a, const void *b, void *shares)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	float p = ((const float *)shares)[x], q = ((const float *)shares)[y];

	return p != q ? (p < q ? 1 : -1) : (x > y) - (x < y);
}

/* How many of the most likely tokens it takes to reach top_p; *sum is what they reach. */
static uint32_t count_nucleus(
	const float *shares, const uint32_t *order, uint32_t vocab, float top_p, double *sum)
{
	uint32_t nr = 0;

	*sum = 0;
	while (nr < vocab && (nr == 0 || *sum < top_p))
		*sum += shares[order[nr++]];
	return nr;
}

uint32_t sampler_choose(struct sampler *sampler, float *logits, uint32_t *order, uint32_t vocab)
{
	double left, sum;
	uint32_t nr;

	if (sampler->temperature <= 0)
		return most_likely(logits, vocab);
	for (uint32_t i = 0; i < vocab; i++) {
		logits[i] /= sampler->temperature;
		order[i] = i;
	}
	softmax(logits, vocab);
	qsort_r(order, vocab, sizeof(*order), by_probability, logits);
	nr = count_nucleus(logits, order, vocab, sampler->top_p, &sum);
	left = sum * (double)(random_u64(&sampler->state) >> 11) * 0x1p-53;
	for (uint32_t i = 0; i < nr; i++) {
		left -= logits[order[i]];
		if (left < 0)
			return order[i];
	}
	return order[nr - 1];
}
