/* SPDX-License-Identifier: Apache-2.0 */
/* Into how many splits of k the tiles of a product's last wave are divided (split-K). Pure
 * arithmetic, for the kernels and for tests. */
#ifndef TERN_GPU_CUDA_LAYER_SPLIT_H
#define TERN_GPU_CUDA_LAYER_SPLIT_H

#include <stdint.h>

#ifdef __CUDACC__
#define SPLIT_CALL static __host__ __device__ __forceinline__
#else
#define SPLIT_CALL static inline
#endif

#define SPLIT_NEVER 0x3ffffffu
#define SPLIT_BLOCKS_BUSY 56u /* as many blocks that read weights keep memory busy */
/* Blocks of k that one of these could have read while splits meet. */
#define SPLIT_OVERHEAD 5u

/* Tiles from `whole` on are split. */
struct layer_split {
	uint32_t whole, splits;
};

/* What `rest` tiles, fewer than `blocks`, cost if each is divided into so many splits, of which
 * there is room for `most`. With one split it is never SPLIT_NEVER. */
SPLIT_CALL uint32_t layer_split_cost(
	uint32_t rest, uint32_t blocks, uint32_t k_blocks, uint32_t splits, uint32_t most)
{
	uint32_t each = (k_blocks + splits - 1) / splits, at_once = rest * splits;

	if (splits > 1 && (at_once > most || at_once > blocks || splits > k_blocks))
		return SPLIT_NEVER;
	return each * (at_once > SPLIT_BLOCKS_BUSY ? at_once : SPLIT_BLOCKS_BUSY) +
	       (splits > 1 ? SPLIT_OVERHEAD * SPLIT_BLOCKS_BUSY : 0);
}

/* The first block of k of a split, and of the one behind the last: all of them. */
SPLIT_CALL uint32_t layer_split_begin(uint32_t k_blocks, uint32_t splits, uint32_t split)
{
	return k_blocks * split / splits;
}

#endif
