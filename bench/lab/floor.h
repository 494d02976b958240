/* SPDX-License-Identifier: Apache-2.0 */
/* What exchanges are measured against, and what a measurement needs. */
#ifndef TERN_BENCH_LAB_FLOOR_H
#define TERN_BENCH_LAB_FLOOR_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LAB_MAX_GPUS 8

/* Lets all GPUs start together: waits until every rank is at this gate, then hold_ns more, so that
 * hosts have queued what follows. */
struct lab_gate {
	uint32_t *flags[LAB_MAX_GPUS]; /* [R] on each rank */
	uint32_t rank, nr_ranks, number;
	uint64_t hold_ns;
};
cudaError_t lab_gate_launch(const struct lab_gate *gate, cudaStream_t stream);

cudaError_t lab_empty_launch(uint32_t nr_blocks, uint32_t nr_threads, cudaStream_t stream);
cudaError_t lab_spin_launch(uint64_t ns, cudaStream_t stream);

/* Only the bytes: stored into each rank's memory, 16 at a time, announced to nobody. */
struct lab_copy {
	const uint8_t *from;
	uint8_t *to[LAB_MAX_GPUS];
	uint64_t bytes[LAB_MAX_GPUS];
	uint32_t rank, nr_ranks;
};
cudaError_t lab_copy_launch(
	const struct lab_copy *copy, uint32_t nr_blocks, uint32_t nr_threads, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
