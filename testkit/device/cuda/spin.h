/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTKIT_DEVICE_CUDA_SPIN_H
#define TERN_TESTKIT_DEVICE_CUDA_SPIN_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "gpu/wire/ll.h"

/* Each rank stores the number of the barrier into everybody's window, where otherwise nothing
 * happens, and waits for the others' there. Who has waited for too long goes on. */
struct stream_barrier {
	uint8_t *windows[GPU_MAX_RANKS]; /* as mapped here; all of them */
	uint32_t rank, nr_ranks, number;
	uint64_t wait_ns;
};

#ifdef __cplusplus
extern "C" {
#endif

/* What is not loaded yet could wait for kernels under way, and these for what is behind it. */
cudaError_t spin_load(void);
cudaError_t spin_launch(uint64_t ns, cudaStream_t stream);
cudaError_t clock_launch(uint64_t *ns, cudaStream_t stream);
cudaError_t barrier_launch(const struct stream_barrier *at, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
