/* SPDX-License-Identifier: Apache-2.0 */
/* Devices' memory, and pinned memory: the heap's, so that AddressSanitizer sees each access beyond an allocation. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

struct allocation {
	struct allocation *next;
	uint8_t *memory;
	size_t bytes;
	int device;
	enum cudaMemoryType type;
};

static struct allocation *allocations;

static cudaError_t allocate(void **memory, size_t bytes, enum cudaMemoryType type)
{
	struct allocation *a = malloc(sizeof(*a));

	*memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (!a || !*memory) {
		free(a);
		free(*memory);
		return cudaErrorMemoryAllocation;
	}
	memset(*memory, 0xcd, bytes); /* nobody may count on zeros */
	*a = (struct allocation){.memory = *memory, .bytes = bytes, .type = type};
	cudaGetDevice(&a->device);
	emulated_enter();
	a->next = allocations;
	allocations = a;
	emulated_leave();
	return cudaSuccess;
}

/* As CUDA does, this waits for all kernels of the device. */
static cudaError_t release(void *memory)
{
	struct allocation **at = &allocations, *a;

	if (!memory)
		return cudaSuccess;
	emulated_enter();
	while ((a = *at) && a->memory != memory)
		at = &a->next;
	if (a) {
		device_wait(a->device);
		for (at = &allocations; *at != a;) /* others may have been here while it waited */
			at = &(*at)->next;
		*at = a->next;
	}
	emulated_leave();
	if (!a)
		return cudaErrorInvalidValue;
	free(memory);
	free(a);
	return cudaSuccess;
}

int memory_device(const void *pointer)
{
	const uint8_t *at = pointer;

	for (const struct allocation *a = allocations; a; a = a->next)
		if (at >= a->memory && at < a->memory + a->bytes)
			return a->device;
	return -1;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
	return allocate(memory, bytes, cudaMemoryTypeDevice);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
	return allocate(memory, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaFree(void *memory)
{
	return release(memory);
}

cudaError_t cudaFreeHost(void *memory)
{
	return release(memory);
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
	cudaError_t rc = cudaMemsetAsync(to, byte, bytes, NULL);

	return rc ? rc : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	cudaError_t rc = cudaMemcpyAsync(to, from, bytes, kind, NULL);

	return rc ? rc : cudaStreamSynchronize(NULL);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
	const uint8_t *at = pointer;

	attributes->type = cudaMemoryTypeUnregistered;
	attributes->device = -2;
	emulated_enter();
	for (const struct allocation *a = allocations; a; a = a->next) {
		if (at < a->memory || at >= a->memory + a->bytes)
			continue;
		attributes->type = a->type;
		attributes->device = a->device;
	}
	emulated_leave();
	return cudaSuccess;
}

/* Emulated devices are of one process. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
	(void)handle;
	(void)memory;
	return cudaErrorNotSupported;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
	(void)memory;
	(void)handle;
	(void)flags;
	return cudaErrorNotSupported;
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
	(void)memory;
	return cudaErrorNotSupported;
}
