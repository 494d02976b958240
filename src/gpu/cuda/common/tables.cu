/* SPDX-License-Identifier: Apache-2.0 */
/* A placement's tables out of the host's pinned memory. A kernel, as a copy of a few KB by the copy
 * engine takes longer to begin and to be waited for than the rest of it does
 * (docs/notebook/moving-experts.md). */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/kernels.h"

#define TABLES_THREADS 1024

namespace tern
{
/* All of a thread's loads are under way at once. */
static __global__ void __launch_bounds__(TABLES_THREADS)
	take_tables(uint4 *to, const uint4 *from, uint32_t nr)
{
	for (uint32_t i = threadIdx.x; i < nr; i += TABLES_THREADS)
		to[i] = from[i];
}
} // namespace tern

cudaError_t tables_prepare(void)
{
	return load_kernel((const void *)tern::take_tables);
}

/* bytes: a multiple of 16 */
cudaError_t tables_launch(void *to, const void *from, uint32_t bytes, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(1, TABLES_THREADS, 0, stream);

	return cudaLaunchKernelEx(
		&config, tern::take_tables, (uint4 *)to, (const uint4 *)from, bytes / 16);
}
