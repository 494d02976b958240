/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BENCH_LAB_CHECK_H
#define TERN_BENCH_LAB_CHECK_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

/* Programs of one file: a call of CUDA's that fails ends them. */
#define CHECK(call)                                                                                \
	do {                                                                                       \
		cudaError_t check_rc = (call);                                                     \
		if (check_rc) {                                                                    \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(check_rc));          \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#endif
