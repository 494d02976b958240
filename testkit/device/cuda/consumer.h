/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTKIT_DEVICE_CUDA_CONSUMER_H
#define TERN_TESTKIT_DEVICE_CUDA_CONSUMER_H

#include <cuda_runtime_api.h>

#include "testkit/device/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t consumer_launch(const struct gate_consumer *c, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
