/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-planted memcheck | racecheck | racecheck-copy | racecheck-buffer | initcheck | synccheck:
 * a kernel with the very fault that this tool of compute-sanitizer is for. A tool that finds
 * nothing here would find nothing elsewhere: its silence about Tern's kernels is worth no more than
 * what it says here. */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "gpu/cuda/common/stream.cuh"

#define NR_WORDS 64
#define BUFFER_BYTES 128
#define NR_BUFFERS 2
#define NR_WARPS (NR_WORDS / LANES)

/* One word behind the allocation. */
static __global__ void beyond(uint32_t *words)
{
	words[threadIdx.x + 1] = threadIdx.x;
}

/* Two warps store one word of shared memory, and read it, without a barrier. */
static __global__ void race(uint32_t *words)
{
	__shared__ uint32_t word;

	*(volatile uint32_t *)&word = threadIdx.x;
	words[threadIdx.x] = *(volatile uint32_t *)&word;
}

/* A buffer is read before its copy has been waited for. */
static __global__ void unwaited(uint32_t *words)
{
	BLOCK_MEMORY(shared);
	uint32_t warp = threadIdx.x / LANES;
	struct stream s = stream_open(in_shared(shared), warp, NR_WARPS, NR_BUFFERS, BUFFER_BYTES);
	uint4 v;

	stream_fetch(&s, 0, words + warp * LANES, BUFFER_BYTES, 0);
	stream_fetched(&s, BUFFER_BYTES, 0);
	v = shared_load(s.buffers + lane_id() % 8 * 16);
	stream_take(&s); /* so that the block does not end before the copy */
	words[threadIdx.x] = v.x;
}

/* What one warp passes to the other is read before that has been waited for. */
static __global__ void unpassed(uint32_t *words)
{
	BLOCK_MEMORY(shared);
	shared_at full = in_shared(shared), buffer = full + 16 + lane_id() * 16;
	uint4 v = {};

	if (threadIdx.x == 0)
		barrier_open(full, LANES);
	__syncthreads();
	if (threadIdx.x < LANES) {
		shared_store(buffer, v);
		barrier_arrive(full);
		return;
	}
	v = shared_load(buffer);
	while (!copy_there(full, 0))
		;
	words[threadIdx.x] = v.x;
}

/* Nobody has ever stored what this reads. */
static __global__ void unset(uint32_t *words)
{
	words[threadIdx.x] = words[threadIdx.x] + 1;
}

/* A lane that its own mask leaves out. */
static __global__ void apart(uint32_t *words)
{
	if (threadIdx.x % 32 < 16)
		__syncwarp(0xffff0000u);
	words[threadIdx.x] = threadIdx.x;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*kernel)(uint32_t *words);
	} faults[] = {{"memcheck", beyond}, {"racecheck", race}, {"racecheck-copy", unwaited},
		{"racecheck-buffer", unpassed}, {"initcheck", unset}, {"synccheck", apart}};
	uint32_t *words;

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		if (argc < 2 || strcmp(argv[1], faults[i].name))
			continue;
		if (cudaMalloc((void **)&words, NR_WORDS * sizeof(*words)) != cudaSuccess) {
			printf("no GPU, or no memory there\n");
			return 1;
		}
		faults[i]
			.kernel<<<1, NR_WORDS,
				stream_shared_bytes(NR_WARPS, NR_BUFFERS, BUFFER_BYTES)>>>(words);
		printf("planted: %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
		return 0;
	}
	fprintf(stderr,
		"usage: %s memcheck | racecheck | racecheck-copy | racecheck-buffer | initcheck | "
		"synccheck\n",
		argv[0]);
	return 2;
}
