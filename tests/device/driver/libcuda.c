/* SPDX-License-Identifier: Apache-2.0 */
/* As much of CUDA's driver as networks ask of it when memory is registered: whose memory it is, and
 * a descriptor for it; and what tern doctor asks. Loaded as libcuda.so.1, from two files: OLD has
 * no dma-buf. */
#include "tests/device/driver/libcuda.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_TYPE 2 /* CU_POINTER_ATTRIBUTE_... */
#define ORDINAL 9
#define HOST 1 /* CU_MEMORYTYPE_... */
#define DEVICE 2
#define DMA_BUF 1         /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
#define FLUSH_OPTIONS 117 /* CU_DEVICE_ATTRIBUTE_... */
#define WRITES_ORDERING 118
#define DMA_BUF_SUPPORTED 124
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
/* A dma-buf of so much of the memory's file, where the kernel makes any; else that file once more.
 */
static int buffer_of(uint64_t base, uint64_t bytes)
{
	struct udmabuf_create create = {.memfd = (uint32_t)memory.fd,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.offset = base - memory.base,
		.size = bytes};
	int device, fd;
	char path[32];

	if (!memory.fd)
		return memfd_create("dma-buf", MFD_CLOEXEC);
	device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (device >= 0) {
		fd = ioctl(device, UDMABUF_CREATE, &create);
		close(device);
		return fd;
	}
	asked.start = create.offset;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory.fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* As the driver does: whole pages. */
int cuMemGetHandleForAddressRange(
	void *handle, uint64_t base, size_t bytes, int type, unsigned long long flags)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	asked.nr++;
	asked.start = 0;
	asked.base = base;
	asked.bytes = bytes;
	if (memory.error)
		return memory.error;
	if (type != DMA_BUF || flags || base % page || bytes % page)
		return INVALID;
	asked.fd = *(int *)handle = buffer_of(base, bytes);
	return asked.fd < 0 ? INVALID : 0;
}
#endif

/* ---- devices, for who lists them ------------------------------------------------------------- */

/* DRIVER_ORDERING and DRIVER_FLUSH of the environment; not set: the attribute is not known. */
static int from_environment(const char *name, int *value)
{
	const char *text = getenv(name);

	*value = text ? atoi(text) : 0;
	return text ? 0 : INVALID;
}

int cuInit(unsigned flags)
{
	return flags ? INVALID : 0;
}

int cuDeviceGetCount(int *nr)
{
	*nr = 2;
	return 0;
}

int cuDeviceGetName(char *name, int bytes, int device)
{
	snprintf(name, (size_t)bytes, "a GPU of a test, number %d", device);
	return 0;
}

int cuDeviceGetPCIBusId(char *text, int bytes, int device)
{
	snprintf(text, (size_t)bytes, "FFFF:%02X:00.0", 0xa0 + device);
	return 0;
}

int cuDeviceCanAccessPeer(int *can, int device, int other)
{
	*can = device < other;
	return 0;
}

int cuDeviceGetAttribute(int *value, int which, int device)
{
	(void)device;
	if (which == DMA_BUF_SUPPORTED)
#ifdef OLD
		return INVALID;
#else
		return *value = 1, 0;
#endif
	return which == WRITES_ORDERING ? from_environment("DRIVER_ORDERING", value)
	       : which == FLUSH_OPTIONS ? from_environment("DRIVER_FLUSH", value)
					: INVALID;
}
