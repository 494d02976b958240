/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that are a pure function of what they stand for, so that every rank can make every
 * other rank's inputs without being sent them. */
#ifndef TERN_TESTKIT_RANDOM_H
#define TERN_TESTKIT_RANDOM_H

#include <stdint.h>

/* The finaliser of splitmix64: a bijection in which every input bit changes half of the output
 * bits. */
static inline uint64_t mix64(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static inline uint64_t hash2(uint64_t a, uint64_t b)
{
	return mix64(mix64(a + 0x9e3779b97f4a7c15u) ^ (b + 0xd1b54a32d192ed03u));
}

static inline uint64_t hash4(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	return hash2(hash2(hash2(a, b), c), d);
}

/* splitmix64: the state walks in equal steps, the finaliser scrambles it. */
static inline uint64_t random_next(uint64_t *state)
{
	return mix64(*state += 0x9e3779b97f4a7c15u);
}

/* 0 to n-1; the bias of the multiplication, n / 2^32, does not matter here. */
static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(((random_next(state) >> 32) * n) >> 32);
}

#endif
