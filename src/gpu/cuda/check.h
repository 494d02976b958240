/* SPDX-License-Identifier: Apache-2.0 */
/* What calls of CUDA return, as an error of Tern and a text. Also in libtern_bench_cuda.so. */
#ifndef TERN_GPU_CUDA_CHECK_H
#define TERN_GPU_CUDA_CHECK_H

#include <cuda_runtime_api.h>

/* 0, or the enum tern_error for rc, with a text of this thread that names the call. */
/* For calls by a thread whose current device may be another: makes that one current, and says which
 * it was. */
int device_switch(int to, int *before);
int cuda_check(cudaError_t rc, const char *call);
const char *check_text(void);

#endif
