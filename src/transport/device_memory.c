/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/device_memory.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tern.h"

#define CUDA_LIBRARY "libcuda.so.1"
#define CUDA_MEMORY_TYPE 2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define CUDA_ORDINAL 9     /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
#define CUDA_ON_DEVICE 2   /* CU_MEMORYTYPE_DEVICE */
#define CUDA_DMA_BUF 1     /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

struct cuda_driver {
	int (*attribute)(void *, int, uint64_t);
	int (*handle)(void *, uint64_t, size_t, int, unsigned long long);
};

static void find(struct cuda_driver *driver)
{
	void *library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	void *attribute = library ? dlsym(library, "cuPointerGetAttribute") : NULL;
	void *handle = library ? dlsym(library, "cuMemGetHandleForAddressRange") : NULL;

	memcpy(&driver->attribute, &attribute, sizeof(attribute));
	memcpy(&driver->handle, &handle, sizeof(handle));
	if (library)
		dlclose(library); /* whoever has loaded it keeps it */
}

bool device_memory_is(const void *base, int *ordinal)
{
	struct cuda_driver driver;
	unsigned int type = 0;

	find(&driver);
	*ordinal = 0;
	return driver.attribute && !driver.attribute(&type, CUDA_MEMORY_TYPE, (uintptr_t)base) &&
	       type == CUDA_ON_DEVICE && !driver.attribute(ordinal, CUDA_ORDINAL, (uintptr_t)base);
}

/* The driver makes buffers of whole pages. */
int device_memory_buffer(const void *base, uint64_t bytes, struct dma_buffer *buffer)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)base,
		 first = from / page * page, last = (from + bytes + page - 1) / page * page;
	struct cuda_driver driver;
	int rc;

	find(&driver);
	if (!driver.handle)
		return fail(TERN_ERR_UNSUPPORTED, "the CUDA driver knows no dma-buf (it has no "
						  "cuMemGetHandleForAddressRange)");
	*buffer = (struct dma_buffer){.fd = -1, .offset = from - first, .bytes = last - first};
	rc = driver.handle(&buffer->fd, first, last - first, CUDA_DMA_BUF, 0);
	return rc ? fail(TERN_ERR_UNSUPPORTED,
			    "the CUDA driver makes no dma-buf of a GPU's memory (error %d)", rc)
		  : 0;
}
