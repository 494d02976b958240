/* SPDX-License-Identifier: Apache-2.0 */
/* How much a low-latency exchange takes on a GPU: pure arithmetic, the same on the host and in
 * kernels. */
#ifndef TERN_GPU_WIRE_SIZES_H
#define TERN_GPU_WIRE_SIZES_H

#include "gpu/wire/ll.h"

/* Vectors of 16 bytes a lane and segment: fewer, and a warp has less in a row; more, and fewer
 * bytes travel beside the rows. As measured: docs/notebook/gpu-low-latency.md. */
static inline uint32_t ll_rule_row_vectors(int scaled, uint32_t max_tokens)
{
	return scaled || max_tokens <= 64 ? 2 : 4;
}

/* Ids of a plan in shared memory: whole warps' pieces. */
HOST_DEVICE uint32_t positions_ids(enum gpu_format format, uint32_t nr_ids)
{
	uint32_t warp = 4 * 7 * ll_lane_ids(format);

	return gpu_ceil(nr_ids, warp) * warp;
}

/* Words from one row of bits to the next, one for 32 tokens: four are loaded at once; more are
 * an odd number, so that lanes that look at a row each use a bank each. */
HOST_DEVICE uint32_t positions_stride(uint32_t max_tokens)
{
	uint32_t words = gpu_ceil(max_tokens, 32);

	return words <= 4 ? words : words | 1;
}

/* Shared memory of a block that receives: struct positions. */
HOST_DEVICE uint64_t positions_bytes(enum gpu_format format, uint32_t nr_ranks, uint32_t nr_local,
	uint32_t max_tokens, uint32_t topk)
{
	uint64_t words = positions_stride(max_tokens), local = nr_local ? nr_local : 1;

	return 4 * (nr_ranks * (nr_local * words + local) + nr_ranks * (words + 1) + nr_local + 2 +
			   2 * 16) +
	       2ull * nr_ranks * positions_ids(format, max_tokens * topk);
}

/* Tokens of a source for which there is room where whole pieces of a plan of `tokens` are noted. */
HOST_DEVICE uint32_t positions_room(
	enum gpu_format format, uint32_t tokens, uint32_t topk, uint32_t max_tokens)
{
	return gpu_least(gpu_ceil(positions_ids(format, tokens * topk), topk), max_tokens);
}

/* And with gates between nodes: which of a source's tokens go to the first groups of experts. */
#define POSITIONS_GROUPS 3u
HOST_DEVICE uint64_t positions_groups_bytes(uint32_t nr_ranks, uint32_t max_tokens)
{
	return 4ull * POSITIONS_GROUPS * nr_ranks * positions_stride(max_tokens);
}

/* A slice of a source's tokens, which a block notes (cuda/ll/slices.cuh): counts of it are bytes.
 */
#define SLICE_LEAST 4u
#define SLICE_TOKENS 128u
#define SLICE_WORDS 4u    /* of bits, one a token */
#define SLICE_COLUMNS 12u /* counts of a piece of 16 bytes, beside the epoch */
#define SLICE_BLOCKS 256u /* at most so many slices are made where tokens are few */

/* How many tokens a slice has where nr come in all: as few as give each block one slice, every
 * source having one of its own. */
HOST_DEVICE uint32_t tokens_of_slice(uint32_t nr, uint32_t nr_ranks, uint32_t nr_blocks)
{
	uint32_t blocks = gpu_least(nr_blocks, SLICE_BLOCKS), tokens;

	tokens = gpu_ceil(nr, blocks > 2 * nr_ranks ? blocks - nr_ranks : blocks);
	return tokens < SLICE_LEAST ? SLICE_LEAST : gpu_least(tokens, SLICE_TOKENS);
}

/* Pieces of a slice's counts: of each local expert, and of tokens that come at all. */
HOST_DEVICE uint32_t slice_pieces(uint32_t nr_local)
{
	return gpu_ceil(nr_local + 1, SLICE_COLUMNS);
}

HOST_DEVICE uint32_t most_slices_of(uint32_t nr_ranks, uint32_t max_tokens)
{
	return SLICE_BLOCKS + nr_ranks * (gpu_ceil(max_tokens, SLICE_TOKENS) + 1);
}

/* Shared memory of a block that receives slices: struct slices. */
HOST_DEVICE uint64_t slices_bytes(
	enum gpu_format format, uint32_t nr_ranks, uint32_t nr_local, uint32_t topk)
{
	uint32_t ids = positions_ids(format, SLICE_TOKENS * topk) +
		       4 * 7 * ll_lane_ids(format); /* it begins within a piece */

	uint64_t bytes = 16 +
			 4ull * ((nr_local + 1) * (SLICE_WORDS + 2) + 1 + nr_local + 2 * 16 +
					2 * nr_ranks + 1 + 2) +
			 slice_pieces(nr_local) * SLICE_COLUMNS + 2ull * ids;

	return (bytes + 15) / 16 * 16;
}

/* Of one that receives either so, or notes all plans of up to `few` tokens a rank, behind it. */
HOST_DEVICE uint64_t either_bytes(enum gpu_format format, uint32_t nr_ranks, uint32_t nr_local,
	uint32_t few, uint32_t max_tokens, uint32_t topk)
{
	return slices_bytes(format, nr_ranks, nr_local, topk) +
	       positions_bytes(format, nr_ranks, nr_local,
		       positions_room(format, few, topk, max_tokens), topk);
}

/* With so many tokens of all ranks or fewer each block notes all plans; with more, noting takes it
 * longer than to hear from other blocks: so it was between two ranks. */
#define SLICES_FROM 768u

#endif
