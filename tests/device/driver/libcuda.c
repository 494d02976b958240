/* SPDX-License-Identifier: Apache-2.0 */
/* As much of CUDA's driver as networks ask of it when memory is registered: whose memory it is, and
 * a descriptor for it. Loaded by a test as libcuda.so.1, from two files: OLD has no dma-buf. */
#include "tests/device/driver/libcuda.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_TYPE 2 /* CU_POINTER_ATTRIBUTE_... */
#define ORDINAL 9
#define HOST 1 /* CU_MEMORYTYPE_... */
#define DEVICE 2
#define DMA_BUF 1 /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
#define INVALID 1 /* CUDA_ERROR_INVALID_VALUE */

static struct driver_memory memory;
static struct driver_asked asked;

void driver_set(const struct driver_memory *as)
{
	memory = *as;
	asked = (struct driver_asked){0};
}

void driver_told(struct driver_asked *to)
{
	*to = asked;
}

int cuPointerGetAttribute(void *to, int which, uint64_t at)
{
	if (at < memory.base || at >= memory.base + memory.bytes)
		return INVALID;
	if (which == MEMORY_TYPE)
		*(unsigned *)to = memory.pinned ? HOST : DEVICE;
	else if (which == ORDINAL)
		*(int *)to = memory.ordinal;
	else
		return INVALID;
	return 0;
}

#ifndef OLD
/* As the driver does: whole pages. */
int cuMemGetHandleForAddressRange(
	void *handle, uint64_t base, size_t bytes, int type, unsigned long long flags)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	asked.nr++;
	asked.base = base;
	asked.bytes = bytes;
	if (memory.error)
		return memory.error;
	if (type != DMA_BUF || flags || base % page || bytes % page)
		return INVALID;
	asked.fd = *(int *)handle = memfd_create("dma-buf", MFD_CLOEXEC);
	return asked.fd < 0 ? INVALID : 0;
}
#endif
