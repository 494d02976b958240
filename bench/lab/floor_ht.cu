/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lab/floor_ht.h"

#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/stream.cuh"
#include "gpu/cuda/ht/kernels.h"

/* Each warp takes chunks in turns, the destinations round robin; two buffers at least, so that one
 * fills while the other drains. */
static __global__ void __launch_bounds__(1024)
	bulk_kernel(const __grid_constant__ struct lab_bulk c)
{
	BLOCK_MEMORY(shared);
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;
	struct stream s =
		stream_open(in_shared(shared), warp, nr_warps, LAB_BULK_BUFFERS, c.chunk_bytes);
	uint32_t ahead = 0, nr = c.from_memory ? LAB_BULK_BUFFERS - 1 : 0;
	uint64_t step = (uint64_t)gridDim.x * nr_warps * c.chunk_bytes,
		 at = (uint64_t)(warp * gridDim.x + blockIdx.x) * c.chunk_bytes, fetch = at;

	for (; at < c.bytes; at += step) {
		for (; ahead < nr && fetch < c.bytes; fetch += step, ahead++) {
			copies_read<LAB_BULK_BUFFERS - 2>();
			__syncwarp();
			stream_fetch(&s, 0, c.from + fetch, c.chunk_bytes, 0);
			stream_fetched(&s, c.chunk_bytes, 0);
		}
		shared_at buffer = s.buffers + s.take * s.bytes;

		if (c.from_memory) {
			stream_take(&s);
			__syncwarp();
			ahead--;
		} else {
			copies_read<LAB_BULK_BUFFERS - 1>();
			s.take = s.take + 1 == s.nr ? 0 : s.take + 1;
		}
		for (uint32_t i = 0; i < c.nr_to; i++)
			copy_out(c.to[i] + at, buffer, c.chunk_bytes, 0);
		copies_close();
	}
	copies_done<0>();
}

cudaError_t lab_bulk_launch(
	const struct lab_bulk *bulk, uint32_t nr_blocks, uint32_t nr_warps, cudaStream_t stream)
{
	uint32_t shared = stream_shared_bytes(nr_warps, LAB_BULK_BUFFERS, bulk->chunk_bytes);
	cudaLaunchConfig_t config = launch_config(nr_blocks, nr_warps * LANES, shared, stream);
	cudaError_t rc = allow_shared((const void *)bulk_kernel);

	return rc ? rc : cudaLaunchKernelEx(&config, bulk_kernel, *bulk);
}

static __device__ __forceinline__ uint32_t mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
	x = (x ^ x >> 27) * 0x81dadef4bc2dd44dull;
	return (uint32_t)(x >> 33);
}

/* BF16 of either sign, magnitudes from 2^-7 to 2. */
static __global__ void fill_kernel(uint16_t *to, uint64_t nr, uint64_t seed)
{
	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < nr;
		i += (uint64_t)gridDim.x * blockDim.x) {
		uint32_t bits = mix(i + (seed << 40));

		to[i] = (uint16_t)((bits & 0x8000) | (120 + (bits >> 16 & 7)) << 7 | (bits & 0x7f));
	}
}

cudaError_t lab_fill_launch(void *to, uint64_t nr, uint64_t seed, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(264, 512, 0, stream);

	return cudaLaunchKernelEx(&config, fill_kernel, (uint16_t *)to, nr, seed);
}

static __global__ void compare_kernel(
	const uint32_t *a, const uint32_t *b, uint64_t nr, unsigned long long *different)
{
	unsigned long long sum = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < nr;
		i += (uint64_t)gridDim.x * blockDim.x)
		sum += a[i] != b[i];
	if (sum)
		atomicAdd(different, sum);
}

cudaError_t lab_compare_launch(const void *a, const void *b, uint64_t nr_words,
	unsigned long long *different, cudaStream_t stream)
{
	cudaLaunchConfig_t config = launch_config(264, 512, 0, stream);

	return cudaLaunchKernelEx(&config, compare_kernel, (const uint32_t *)a, (const uint32_t *)b,
		nr_words, different);
}
