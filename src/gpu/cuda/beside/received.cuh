/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_GPU_CUDA_BESIDE_RECEIVED_CUH
#define TERN_GPU_CUDA_BESIDE_RECEIVED_CUH

#include "gpu/cuda/beside/kernels.h"

/* Host. */
extern "C" cudaError_t dispatch_beside_prepare(void);
extern "C" cudaError_t count_routes_prepare(void);

#endif
