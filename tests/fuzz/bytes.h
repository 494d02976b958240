/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzzer's input, taken apart. Beyond its end everything is 0. */
#ifndef TERN_TESTS_FUZZ_BYTES_H
#define TERN_TESTS_FUZZ_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

struct bytes {
	const uint8_t *at;
	size_t left;
};

static inline uint8_t take_byte(struct bytes *b)
{
	if (!b->left)
		return 0;
	b->left--;
	return *b->at++;
}

static inline uint16_t take_word(struct bytes *b)
{
	uint16_t low = take_byte(b);

	return (uint16_t)(low | take_byte(b) << 8);
}

/* least to most, both included. */
static inline uint32_t take_from(struct bytes *b, uint32_t least, uint32_t most)
{
	return least + take_byte(b) % (most - least + 1);
}

/* What a fuzzer must not find: ends the process with the reason. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#endif
