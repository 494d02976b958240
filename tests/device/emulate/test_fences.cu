/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that stores behind what it has been given ends, in a device's memory, in pinned memory
 * and in its block's. */
#include "cuda_runtime.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 320

static __global__ void store(uint32_t *memory, uint32_t at)
{
	BLOCK_MEMORY(shared);

	(memory ? memory : shared)[at] = 1;
}

static int store_in_child(cudaError_t (*allocate)(void **memory, size_t bytes), uint32_t at)
{
	cudaLaunchConfig_t config = {};
	void *memory = NULL;
	int status = 0;
	pid_t pid;

	config.gridDim = config.blockDim = dim3(1, 1, 1);
	config.dynamicSmemBytes = 4 * WORDS;
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit((allocate && allocate(&memory, 4 * WORDS)) ||
			cudaLaunchKernelEx(&config, store, (uint32_t *)memory, at) ||
			cudaDeviceSynchronize());
	return pid < 0 || waitpid(pid, &status, 0) != pid ? -1 : status;
}

int main(void)
{
	static const struct {
		const char *name;
		cudaError_t (*allocate)(void **memory, size_t bytes);
	} cases[] = {{"device", cudaMalloc}, {"pinned", cudaMallocHost}, {"shared", NULL}};
	int bad = 0;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int within = store_in_child(cases[i].allocate, WORDS - 1),
		    behind = store_in_child(cases[i].allocate, WORDS);

		printf("%s - %s: within %d, behind %d\n", within || !behind ? "not ok" : "ok",
			cases[i].name, within, behind);
		bad |= within || !behind;
	}
	return bad;
}
