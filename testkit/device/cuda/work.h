/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTKIT_DEVICE_CUDA_WORK_H
#define TERN_TESTKIT_DEVICE_CUDA_WORK_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* memory: set, aligned to 8 bytes, of at least 4 KiB. shared_bytes: of each block, so that an SM
 * holds one. */
cudaError_t work_launch(void *memory, uint64_t bytes, uint32_t nr_blocks, uint32_t shared_bytes,
	cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
