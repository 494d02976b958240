/* SPDX-License-Identifier: Apache-2.0 */
/* Contiguous blocks, the first of which may have one more than the others. */
#ifndef TERN_BASE_BLOCKS_H
#define TERN_BASE_BLOCKS_H

#include <stdint.h>

/* Which of nr_blocks has number i of nr. The first nr % nr_blocks have one more. */
static inline uint32_t block_of(uint32_t i, uint32_t nr, uint32_t nr_blocks)
{
	uint32_t small = nr / nr_blocks, more = nr % nr_blocks, in_large = more * (small + 1);

	return i < in_large ? i / (small + 1) : more + (i - in_large) / small;
}

#endif
