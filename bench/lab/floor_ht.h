/* SPDX-License-Identifier: Apache-2.0 */
/* What high throughput is measured against: bytes through the copy engine of few or many SMs. */
#ifndef TERN_BENCH_LAB_FLOOR_HT_H
#define TERN_BENCH_LAB_FLOOR_HT_H

#include "bench/lab/floor.h"
#include "gpu/cuda/ht/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Chunks through shared memory: read from own memory (or not), stored to nr_to places (0: read
 * only). */
#define LAB_BULK_BUFFERS 3
struct lab_bulk {
	const uint8_t *from;
	uint8_t *to[LAB_MAX_GPUS];
	uint64_t bytes; /* a multiple of chunk_bytes */
	uint32_t nr_to, chunk_bytes, from_memory;
};
cudaError_t lab_bulk_launch(
	const struct lab_bulk *bulk, uint32_t nr_blocks, uint32_t nr_warps, cudaStream_t stream);

cudaError_t lab_fill_launch(void *to, uint64_t nr, uint64_t seed, cudaStream_t stream);
cudaError_t lab_compare_launch(const void *a, const void *b, uint64_t nr_words,
	unsigned long long *different, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
