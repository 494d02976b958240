/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of a layer whose sums are exact, and so the same in any order: the same on the host and in
 * kernels. Weights' rows have a few elements that are not 0, at most one in each block of 128, and
 * scales are powers of two. So each block's sum is one product, which a short accumulator holds.
 *
 *   x                    7 at the beginning of each block of 128, 4 as element 1, else -1, 0 or 1:
 *                        quantised without loss, 7 / 448 being a power of two
 *   gate, up, 128 * i    8 at element 0, and at element 1: so that h is 1792 there times a power of
 *                        two, which is more than anything else in its block, and as 7 above
 *   other rows           8 elements of -1 and 1, none of them where x is always the same
 */
#ifndef TERN_TESTKIT_LAYER_VALUES_H
#define TERN_TESTKIT_LAYER_VALUES_H

#include <stdint.h>

#ifdef __CUDACC__
#define LAYER_VALUE static inline __host__ __device__
#else
#define LAYER_VALUE static inline
#endif

#define LAYER_TERMS 8 /* of a row of weights, at most */
#define LAYER_BLOCK 128

enum layer_matrix {
	LAYER_GATE,
	LAYER_UP,
	LAYER_OUT /* down */
};

struct layer_term {
	uint32_t at;
	float value;
};

LAYER_VALUE uint64_t layer_mix(uint64_t a, uint64_t b)
{
	uint64_t z = (a + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u ^ b;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Of a row of that expert's matrix, of k elements. */
LAYER_VALUE uint32_t layer_nr_terms(enum layer_matrix matrix, uint32_t row, uint32_t k)
{
	uint32_t blocks = (k + LAYER_BLOCK - 1) / LAYER_BLOCK;

	if (matrix != LAYER_OUT && row % LAYER_BLOCK == 0)
		return 1;
	return blocks < LAYER_TERMS ? blocks : LAYER_TERMS;
}

LAYER_VALUE struct layer_term layer_term_of(
	enum layer_matrix matrix, uint32_t expert, uint32_t row, uint32_t k, uint32_t i)
{
	uint64_t hash = layer_mix(layer_mix((uint64_t)expert * 4 + matrix, row), i + 0x6c61796572u);
	uint32_t blocks = (k + LAYER_BLOCK - 1) / LAYER_BLOCK, nr = layer_nr_terms(matrix, row, k);
	uint32_t first = i * blocks / nr, next = (i + 1) * blocks / nr;
	uint32_t block = first + (uint32_t)(hash >> 40) % (next - first);
	uint32_t wide =
		k - block * LAYER_BLOCK < LAYER_BLOCK ? k - block * LAYER_BLOCK : LAYER_BLOCK;
	struct layer_term term = {matrix == LAYER_GATE ? 0u : 1u, 8};

	if (matrix != LAYER_OUT && row % LAYER_BLOCK == 0)
		return term;
	term.at = block * LAYER_BLOCK + 2 + (uint32_t)(hash & 0xffff) % (wide - 2);
	term.value = hash >> 20 & 1 ? 1.0f : -1.0f;
	return term;
}

/* Of a block of 128 x 128. */
LAYER_VALUE float layer_scale_of(
	enum layer_matrix matrix, uint32_t expert, uint32_t row_block, uint32_t k_block)
{
	uint64_t hash = layer_mix(layer_mix((uint64_t)expert * 4 + matrix, row_block), k_block);

	return hash % 3 == 0 ? 0.5f : hash % 3 == 1 ? 1.0f : 2.0f;
}

LAYER_VALUE float layer_x_of(uint64_t round, uint32_t home, uint32_t token, uint32_t i)
{
	uint64_t hash = layer_mix(layer_mix(round, (uint64_t)home << 32 | token), i);

	if (i % LAYER_BLOCK == 0)
		return 7;
	return i == 1 ? 4.0f : (float)(int)(hash % 3) - 1.0f;
}

#endif
