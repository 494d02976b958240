/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTKIT_DEVICE_CUDA_LAYER_H
#define TERN_TESTKIT_DEVICE_CUDA_LAYER_H

#include <cuda_runtime_api.h>

#include "testkit/device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t weights_launch(const struct layer_fill *fill, cudaStream_t stream);

/* Reads so much that caches hold nothing else, and nothing that would have to be written back. */
cudaError_t flush_launch(const void *memory, uint64_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
