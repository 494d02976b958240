/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels call an exchange's dtypes. What else a new one touches: docs/adding.md. */
#ifndef TERN_GPU_CUDA_DTYPES_H
#define TERN_GPU_CUDA_DTYPES_H

#include "gpu/cuda/common/kinds.h"
#include "tern.h"

static inline enum gpu_x gpu_x_kind(const struct tern_moe_config *c)
{
	if (c->dispatch_dtype != TERN_FP8_E4M3)
		return GPU_X_COPY;
	return c->x_dtype == TERN_FP8_E4M3 ? GPU_X_GIVEN
	       : c->x_dtype == TERN_BF16   ? GPU_X_BF16
	       : c->x_dtype == TERN_FP16   ? GPU_X_FP16
					   : GPU_X_FP32;
}

static inline enum gpu_y gpu_y_kind(const struct tern_moe_config *c)
{
	return c->combine_dtype == TERN_BF16   ? GPU_Y_BF16
	       : c->combine_dtype == TERN_FP16 ? GPU_Y_FP16
					       : GPU_Y_FP32;
}

#endif
