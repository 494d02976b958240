/* SPDX-License-Identifier: Apache-2.0 */
/* Devices' memory, pinned memory and blocks' shared memory: fenced, so that an access beyond it
 * ends the test; or, devices' between processes, files'. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/device/emulate/inside.h"

#define UNIT 256 /* CUDA's least alignment */

/* ---- fences ---------------------------------------------------------------------------------- */

/* Sanitizers know the heap: what lies in it, and that who has it now has nothing to do with who had
 * it before. */
#if defined(__SANITIZE_ADDRESS__) || defined(EMULATED_TSAN)
#define EMULATED_HEAP
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_HEAP
#endif
#endif

static size_t units(size_t bytes)
{
	return (bytes + UNIT - 1) / UNIT * UNIT;
}

#ifdef EMULATED_HEAP
static void *fenced_create(size_t bytes)
{
	return aligned_alloc(UNIT, units(bytes + 1));
}

static void fenced_destroy(void *memory, size_t bytes)
{
	(void)bytes;
	free(memory);
}
#else
static void *fenced_create(size_t bytes)
{
	size_t used = units(bytes), room = pages(used);
	uint8_t *all =
		mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		return NULL;
	mprotect(all + room, PAGE, PROT_NONE);
	return all + room - used;
}

static void fenced_destroy(void *memory, size_t bytes)
{
	size_t used = units(bytes), room = pages(used);

	munmap((uint8_t *)memory + used - room, room + PAGE);
}
#endif

/* ---- shared memory of blocks ---------------------------------------------------------------- */

#ifdef EMULATED_HEAP
uint32_t *shared_take(size_t bytes)
{
	return fenced_create(bytes);
}

void shared_give(uint32_t *shared, size_t bytes)
{
	fenced_destroy(shared, bytes);
}
#else
/* A block's shared memory ends where its room does, whatever it takes; rooms are kept. */
struct room {
	struct room *next;
};

static struct room *rooms;

static size_t begins_at(size_t bytes)
{
	return (emulated_settings()->block_bytes - bytes) / 128 * 128;
}

uint32_t *shared_take(size_t bytes)
{
	struct room *room = rooms;

	if (room)
		rooms = room->next;
	else
		room = fenced_create(emulated_settings()->block_bytes);
	return room ? (uint32_t *)((uint8_t *)room + begins_at(bytes)) : NULL;
}

void shared_give(uint32_t *shared, size_t bytes)
{
	struct room *room = (struct room *)(void *)((uint8_t *)shared - begins_at(bytes));

	room->next = rooms;
	rooms = room;
}
#endif

/* ---- allocations ----------------------------------------------------------------------------- */

struct allocation {
	struct allocation *next;
	uint8_t *memory;
	size_t bytes;
	int device;
	int fd; /* -1: fenced; -2: the caller's */
	enum cudaMemoryType type;
};

static struct allocation *allocations;
static _Atomic unsigned nr_calls; /* that manage memory, of this process */

void memory_called(void)
{
	nr_calls++;
}

unsigned emulated_memory_calls(void)
{
	return nr_calls;
}

static cudaError_t keep(const struct allocation *as)
{
	struct allocation *a = malloc(sizeof(*a));

	memory_called();
	if (!a)
		emulated_die("no memory for an allocation's record");
	*a = *as;
	cudaGetDevice(&a->device);
	emulated_enter();
	a->next = allocations;
	allocations = a;
	emulated_leave();
	return cudaSuccess;
}

static cudaError_t allocate(void **memory, size_t bytes, enum cudaMemoryType type)
{
	struct allocation a = {.bytes = bytes, .fd = -1, .type = type};

	emulated_settings();
	if (type == cudaMemoryTypeDevice && processes_several())
		*memory = processes_allocate(bytes, &a.fd);
	else
		*memory = fenced_create(bytes);
	if (!*memory)
		return cudaErrorMemoryAllocation;
	memset(*memory, 0xcd, bytes); /* nobody may count on zeros */
	a.memory = *memory;
	return keep(&a);
}

static void give_back(struct allocation *a)
{
	if (a->fd == -1)
		fenced_destroy(a->memory, a->bytes);
	else if (a->fd >= 0)
		processes_free(a->memory, a->bytes, a->fd);
	free(a);
}

/* As CUDA does, this waits for all kernels of the device. */
static cudaError_t release(void *memory)
{
	struct allocation **at = &allocations, *a;

	if (!memory)
		return cudaSuccess;
	memory_called();
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
	give_back(a);
	return cudaSuccess;
}

void memory_keep(void *memory, size_t bytes)
{
	struct allocation a = {
		.memory = memory, .bytes = bytes, .fd = -2, .type = cudaMemoryTypeDevice};

	keep(&a);
}

void memory_forget(const void *memory)
{
	struct allocation **at, *a;

	memory_called();
	emulated_enter();
	for (at = &allocations; (a = *at) && a->memory != memory;)
		at = &a->next;
	if (a)
		*at = a->next;
	emulated_leave();
	free(a);
}

int memory_device(const void *pointer)
{
	const uint8_t *at = pointer;

	for (const struct allocation *a = allocations; a; a = a->next)
		if (at >= a->memory && at < a->memory + a->bytes)
			return a->device;
	return -1;
}

bool memory_is_pinned(const void *pointer)
{
	const uint8_t *at = pointer;

	for (const struct allocation *a = allocations; a; a = a->next)
		if (at >= a->memory && at < a->memory + a->bytes)
			return a->type == cudaMemoryTypeHost;
	return false;
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

static bool is_registered(const uint8_t *memory, size_t bytes)
{
	bool is = false;

	emulated_enter();
	for (const struct allocation *a = allocations; a; a = a->next)
		is |= memory < a->memory + a->bytes && a->memory < memory + bytes;
	emulated_leave();
	return is;
}

/* As CUDA does, each address once. */
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
	struct allocation a = {
		.memory = memory, .bytes = bytes, .fd = -2, .type = cudaMemoryTypeHost};

	(void)flags;
	return is_registered(memory, bytes) ? cudaErrorHostMemoryAlreadyRegistered : keep(&a);
}

cudaError_t cudaHostUnregister(void *memory)
{
	return release(memory);
}

cudaError_t cudaHostGetDevicePointer(void **there, void *memory, unsigned flags)
{
	(void)flags;
	*there = memory;
	return is_registered(memory, 1) ? cudaSuccess : cudaErrorInvalidValue;
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

/* ---- between processes ----------------------------------------------------------------------- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
	cudaError_t rc = cudaErrorNotSupported; /* of one process */

	emulated_enter();
	for (const struct allocation *a = allocations; a; a = a->next) {
		if (a->memory != memory || a->fd < 0)
			continue;
		processes_handle(handle, a->fd, a->bytes);
		rc = cudaSuccess;
	}
	emulated_leave();
	return rc;
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
	struct allocation a = {.type = cudaMemoryTypeDevice};

	(void)flags;
	if (!processes_several())
		return cudaErrorNotSupported;
	*memory = processes_map(&handle, &a.bytes, &a.fd);
	a.memory = *memory;
	return *memory ? keep(&a) : cudaErrorInvalidValue;
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
	return release(memory);
}
