/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges whose halves are kernels on a device: tern.h, "on a device". The rest of the library
 * knows of GPUs what stands here. */
#ifndef TERN_GPU_HOST_DEVICE_H
#define TERN_GPU_HOST_DEVICE_H

#include "exchange/ops.h"

extern const struct exchange_ops exchange_gpu_ops;

/* tern_count_routes, whose arguments have been looked at, on a device. */
int device_count_routes(const struct tern_routes *routes);

#endif
