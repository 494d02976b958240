/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that the library has not: made for less, or by other ways (enum ll_how), until a measurement decides. */
#ifndef TERN_LAB_HOWS_H
#define TERN_LAB_HOWS_H

#include <stdbool.h>

#include "kernels/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is such a kernel here, and made for these arguments? how 0, the library's own, always is. */
bool lab_dispatch_fits(uint32_t how, const struct ll_dispatch *args);
bool lab_combine_fits(uint32_t how, const struct ll_combine *args);

/* cudaErrorInvalidValue: it does not fit. */
cudaError_t lab_dispatch_launch(uint32_t how, const struct ll_dispatch *args, const struct ll_launch *launch, cudaStream_t stream);
cudaError_t lab_combine_launch(uint32_t how, const struct ll_combine *args, const struct ll_launch *launch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
