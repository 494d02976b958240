/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/sum.h"

#include <string.h>

#define LANES 8
/* Odd, so that each step is one to one in the lane and in the word. */
#define STEP 0x9fb21c651e98df25ull
#define LAST 0xd6e8feb86659fd93ull

static inline uint64_t turn(uint64_t word, unsigned int by)
{
	return word << by | word >> (64 - by);
}

static inline uint64_t step(uint64_t lane, uint64_t word)
{
	return turn((lane ^ word) * STEP, 29);
}

static inline uint64_t word_at(const uint8_t *from)
{
	uint64_t word;

	memcpy(&word, from, sizeof(word));
	return word;
}

/* What is left is filled up with zeros; the length, which is summed too, tells them apart. */
static uint64_t sum_rest(uint64_t sum, const uint8_t *from, uint64_t bytes)
{
	for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t))
		sum = step(sum, word_at(from));
	if (bytes) {
		uint64_t word = 0;

		memcpy(&word, from, bytes);
		sum = step(sum, word);
	}
	return sum;
}

uint64_t weights_sum(const void *data, uint64_t bytes)
{
	const uint8_t *from = data;
	uint64_t lane[LANES], sum = bytes, left = bytes;

	for (unsigned int i = 0; i < LANES; i++)
		lane[i] = LAST * (i + 1);
	for (; left >= sizeof(lane); left -= sizeof(lane), from += sizeof(lane))
		for (unsigned int i = 0; i < LANES; i++)
			lane[i] = step(lane[i], word_at(from + i * sizeof(uint64_t)));
	for (unsigned int i = 0; i < LANES; i++)
		sum = step(sum, lane[i]);
	sum = sum_rest(sum, from, left);
	sum = (sum ^ sum >> 32) * LAST;
	return sum ^ sum >> 29;
}
