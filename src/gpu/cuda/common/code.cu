/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda_runtime.h>

#include "gpu/cuda/common/kernels.h"

namespace tern
{
static __global__ void code()
{
}
} // namespace tern

/* All kernels are built for the same architectures. */
cudaError_t code_version(int *version)
{
	cudaFuncAttributes attributes;
	cudaError_t rc = cudaFuncGetAttributes(&attributes, (const void *)tern::code);

	*version = rc ? 0 : attributes.ptxVersion;
	return rc;
}
