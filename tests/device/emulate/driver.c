/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's virtual memory management: files in place of devices' memory, behind addresses that
 * are reserved apart. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cudaTypedefs.h"
#include "tests/device/emulate/inside.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

#define UNIT 256 /* so that little is mapped beyond what is asked for */

/* A page more, which nobody maps, lies behind. */
struct memory {
	int fd;
	size_t bytes;
};

static CUresult attribute(int *value, CUdevice_attribute which, CUdevice_v1 device)
{
	(void)which;
	(void)device;
	*value = 1;
	return CUDA_SUCCESS;
}

static CUresult granularity(
	size_t *unit, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags flags)
{
	(void)prop;
	(void)flags;
	*unit = UNIT;
	return CUDA_SUCCESS;
}

static CUresult reserve(
	CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
	void *memory = mmap(NULL, pages(bytes) + PAGE, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	memory_called();
	(void)alignment;
	(void)wish;
	(void)flags;
	*at = (CUdeviceptr)memory;
	return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult give_back(CUdeviceptr at, size_t bytes)
{
	memory_called();
	return munmap((void *)at, pages(bytes) + PAGE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult keep(CUmemGenericAllocationHandle *handle, int fd, size_t bytes)
{
	struct memory *m = malloc(sizeof(*m));

	if (!m || fd < 0)
		emulated_die("no memory of a device: descriptor %d", fd);
	*m = (struct memory){fd, bytes};
	*handle = (CUmemGenericAllocationHandle)m;
	return CUDA_SUCCESS;
}

/* Nobody may count on zeros. */
static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	int fd = memfd_create("emulated-device", MFD_CLOEXEC);
	void *memory;

	memory_called();
	(void)prop;
	(void)flags;
	if (fd < 0 || bytes % UNIT || ftruncate(fd, (off_t)bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(memory, 0xcd, bytes);
	munmap(memory, pages(bytes));
	return keep(handle, fd, bytes);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	struct memory *m = (struct memory *)handle;

	memory_called();
	close(m->fd);
	free(m);
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	const struct memory *m = (const struct memory *)handle;

	(void)flags;
	if (bytes != m->bytes || offset ||
		mmap((void *)at, pages(bytes), PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) ==
			MAP_FAILED)
		return CUDA_ERROR_INVALID_VALUE;
	memory_keep((void *)at, bytes);
	ASAN_POISON_MEMORY_REGION((char *)at + bytes, pages(bytes) - bytes);
	return CUDA_SUCCESS;
}

/* As CUDA does, this waits for no kernel. */
static CUresult unmap(CUdeviceptr at, size_t bytes)
{
	memory_forget((void *)at);
	ASAN_UNPOISON_MEMORY_REGION((char *)at + bytes, pages(bytes) - bytes);
	return mmap((void *)at, pages(bytes), PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED
		       ? CUDA_ERROR_INVALID_VALUE
		       : CUDA_SUCCESS;
}

static CUresult grant(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t nr)
{
	memory_called();
	(void)access;
	return nr != 1 || mprotect((void *)at, pages(bytes), PROT_READ | PROT_WRITE)
		       ? CUDA_ERROR_INVALID_VALUE
		       : CUDA_SUCCESS;
}

static CUresult export_fd(void *fd, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	memory_called();
	(void)type;
	(void)flags;
	*(int *)fd = fcntl(((struct memory *)handle)->fd, F_DUPFD_CLOEXEC, 0);
	return *(int *)fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Kernels of two processes would store into each other's lines at the same time, of which a GPU's
 * links deliver each as a whole: not without TERN_EMULATED_PROCESSES. */
static CUresult import_fd(
	CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	int mine;
	struct stat st;

	memory_called();
	(void)type;
	if (!processes_several())
		return CUDA_ERROR_INVALID_VALUE;
	mine = fcntl((int)(uintptr_t)fd, F_DUPFD_CLOEXEC, 0);
	if (mine < 0 || fstat(mine, &st))
		return CUDA_ERROR_INVALID_VALUE;
	return keep(handle, mine, (size_t)st.st_size);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
	unsigned long long flags, cudaDriverEntryPointQueryResult *result)
{
	static const struct {
		const char *name;
		void *function;
	} functions[] = {{"cuDeviceGetAttribute", (void *)attribute},
		{"cuMemGetAllocationGranularity", (void *)granularity},
		{"cuMemAddressReserve", (void *)reserve}, {"cuMemAddressFree", (void *)give_back},
		{"cuMemCreate", (void *)create}, {"cuMemRelease", (void *)release},
		{"cuMemMap", (void *)map}, {"cuMemUnmap", (void *)unmap},
		{"cuMemSetAccess", (void *)grant},
		{"cuMemExportToShareableHandle", (void *)export_fd},
		{"cuMemImportFromShareableHandle", (void *)import_fd}};

	(void)version;
	(void)flags;
	*result = cudaDriverEntryPointSymbolNotFound;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].name, name))
			continue;
		*function = functions[i].function;
		*result = cudaDriverEntryPointSuccess;
	}
	return cudaSuccess;
}
