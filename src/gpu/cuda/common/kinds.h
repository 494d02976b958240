/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_CUDA_KERNEL_KINDS_H
#define TERN_CUDA_KERNEL_KINDS_H

/* What travels, and what x is: as it is; FP8 with its scales; or quantised on the way out. */
enum ll_x {
	LL_X_COPY = 0,
	LL_X_GIVEN = 1,
	LL_X_BF16 = 2,
	LL_X_FP16 = 3,
	LL_X_FP32 = 4
};

/* Of y, of results on the way, and of out. */
enum ll_y {
	LL_Y_BF16 = 0,
	LL_Y_FP16 = 1,
	LL_Y_FP32 = 2
};

#endif
