/* SPDX-License-Identifier: Apache-2.0 */
/* How a kernel's launch is written: in plain C++, for any compiler. */
#ifndef TERN_GPU_CUDA_COMMON_LAUNCH_CUH
#define TERN_GPU_CUDA_COMMON_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

static inline cudaLaunchConfig_t launch_config(
	uint32_t nr_blocks, uint32_t nr_threads, uint32_t shared_bytes, cudaStream_t stream)
{
	cudaLaunchConfig_t config = {};

	config.gridDim = dim3(nr_blocks);
	config.blockDim = dim3(nr_threads);
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	return config;
}

/* Lets a kernel's blocks have what this device gives a block; no kernel has shared memory beside
 * it. The setting is one for all exchanges of the process: with less, a thread could take from
 * another what that one is about to launch with. */
static inline cudaError_t allow_shared(const void *kernel)
{
	int device, most;
	cudaError_t rc = cudaGetDevice(&device);

	rc = rc ? rc
		: cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
	return rc ? rc
		  : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

/* At its first launch that might wait for kernels under way. */
static inline cudaError_t load_kernel(const void *kernel)
{
	cudaFuncAttributes attributes;

	return cudaFuncGetAttributes(&attributes, kernel);
}

/* attribute: lives until the launch. */
static inline void launch_early(
	cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute, uint32_t early)
{
	attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute->val.programmaticStreamSerializationAllowed = 1;
	config->attrs = attribute;
	config->numAttrs = early ? 1 : 0;
}

#endif
