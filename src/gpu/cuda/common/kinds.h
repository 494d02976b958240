/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_GPU_CUDA_COMMON_KINDS_H
#define TERN_GPU_CUDA_COMMON_KINDS_H

/* What travels, and what x is: as it is; FP8 with its scales; or quantised on the way out. */
enum gpu_x {
	GPU_X_COPY = 0,
	GPU_X_GIVEN = 1,
	GPU_X_BF16 = 2,
	GPU_X_FP16 = 3,
	GPU_X_FP32 = 4
};

/* Of y, of results on the way, and of out. */
enum gpu_y {
	GPU_Y_BF16 = 0,
	GPU_Y_FP16 = 1,
	GPU_Y_FP32 = 2
};

#endif
