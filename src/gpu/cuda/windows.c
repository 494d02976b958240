/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: memory of a device that peers store into. Address space and memory are apart (the
 * driver's virtual memory management): a descriptor stands for the memory, which lives as long as
 * somebody has it mapped, and may be put in place of other memory at the same addresses, which is
 * how who has been left out of a group is fenced. Where a driver has no descriptors for memory of
 * devices, windows are cudaMalloc's, and a handle of CUDA's runtime stands for them. */
#include "gpu/cuda/backend.h"
#include "gpu/cuda/check.h"
#include "base/error.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* ---- the driver ------------------------------------------------------------------------------ */

/* Not linked to, as the runtime does not either. */
static struct {
	PFN_cuDeviceGetAttribute_v2000 attribute;
	PFN_cuMemGetAllocationGranularity_v10020 granularity;
	PFN_cuMemAddressReserve_v10020 reserve;
	PFN_cuMemAddressFree_v10020 give_back;
	PFN_cuMemCreate_v10020 create;
	PFN_cuMemRelease_v10020 release;
	PFN_cuMemMap_v10020 map;
	PFN_cuMemUnmap_v10020 unmap;
	PFN_cuMemSetAccess_v10020 access;
	PFN_cuMemExportToShareableHandle_v10020 export_fd;
	PFN_cuMemImportFromShareableHandle_v10020 import_fd;
	bool there;
} driver;

static bool find(const char *name, unsigned version, void *function)
{
	enum cudaDriverEntryPointQueryResult found;

	return !cudaGetDriverEntryPointByVersion(
		       name, (void **)function, version, cudaEnableDefault, &found) &&
	       found == cudaDriverEntryPointSuccess;
}

static void find_all(void)
{
	driver.there = find("cuDeviceGetAttribute", 2000, &driver.attribute) &&
		       find("cuMemGetAllocationGranularity", 10020, &driver.granularity) &&
		       find("cuMemAddressReserve", 10020, &driver.reserve) &&
		       find("cuMemAddressFree", 10020, &driver.give_back) &&
		       find("cuMemCreate", 10020, &driver.create) &&
		       find("cuMemRelease", 10020, &driver.release) &&
		       find("cuMemMap", 10020, &driver.map) &&
		       find("cuMemUnmap", 10020, &driver.unmap) &&
		       find("cuMemSetAccess", 10020, &driver.access) &&
		       find("cuMemExportToShareableHandle", 10020, &driver.export_fd) &&
		       find("cuMemImportFromShareableHandle", 10020, &driver.import_fd);
	(void)cudaGetLastError();
}

static bool driver_there(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_all);
	return driver.there;
}

static int driver_check(CUresult rc, const char *call)
{
	if (rc == CUDA_SUCCESS)
		return 0;
	return fail(rc == CUDA_ERROR_OUT_OF_MEMORY ? TERN_ERR_NOMEM : TERN_ERR_SYSTEM,
		"%s of a window: the driver's error %d", call, (int)rc);
}

bool windows_by_fd(int ordinal)
{
	int manages = 0, passes = 0;

	return driver_there() &&
	       !driver.attribute(&manages, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		       ordinal) &&
	       !driver.attribute(&passes,
		       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal) &&
	       manages && passes;
}

/* ---- memory by descriptors ------------------------------------------------------------------- */

static CUmemAllocationProp memory_of(int ordinal)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = ordinal;
	return prop;
}

static int round_up(struct device_window *w, const CUmemAllocationProp *prop)
{
	size_t unit = 0;
	int rc = driver_check(
		driver.granularity(&unit, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity");

	if (!rc)
		w->bytes = (w->bytes + unit - 1) / unit * unit;
	return rc;
}

static int grant(const struct device_window *w, int ordinal)
{
	CUmemAccessDesc access;

	memset(&access, 0, sizeof(access));
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = ordinal;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return driver_check(
		driver.access((CUdeviceptr)w->base, w->bytes, &access, 1), "cuMemSetAccess");
}

/* The mapping keeps the memory; the handle goes. */
static int put_in_place(struct device_window *w, CUmemGenericAllocationHandle memory)
{
	int rc = driver_check(driver.map((CUdeviceptr)w->base, w->bytes, 0, memory, 0), "cuMemMap");

	w->mapped = !rc;
	for (int d = 0; d < DEVICE_MOST_ORDINALS && !rc; d++)
		rc = w->devices >> d & 1 ? grant(w, d) : 0;
	return rc;
}

static void take_out(struct device_window *w)
{
	if (w->mapped)
		(void)driver.unmap((CUdeviceptr)w->base, w->bytes);
	w->mapped = false;
}

static int reserve(struct device_window *w)
{
	CUdeviceptr at = 0;
	int rc;

	if (w->within)
		return 0;
	w->room = w->room > w->bytes ? w->room : w->bytes;
	rc = driver_check(driver.reserve(&at, w->room, 0, 0, 0), "cuMemAddressReserve");
	w->base = (void *)at;
	return rc;
}

static int create(struct device_window *w, const CUmemAllocationProp *prop,
	CUmemGenericAllocationHandle *memory)
{
	int rc = driver_check(driver.create(memory, w->bytes, prop, 0), "cuMemCreate");

	if (rc)
		return rc;
	rc = driver_check(
		driver.export_fd(&w->fd, *memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		"cuMemExportToShareableHandle");
	if (!rc)
		return 0;
	w->fd = -1;
	(void)driver.release(*memory);
	return rc;
}

static int import(const struct device_window *w, CUmemGenericAllocationHandle *memory)
{
	return driver_check(driver.import_fd(memory, (void *)(uintptr_t)w->fd,
				    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		"cuMemImportFromShareableHandle");
}

/* On a stream of its own, which waits for no kernel; also while the caller captures others. */
static int clear(void *memory, uint64_t bytes)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	cudaStream_t stream = NULL;
	int rc;

	(void)cudaThreadExchangeStreamCaptureMode(&mode);
	rc = cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
		"cudaStreamCreateWithFlags");
	rc = rc ? rc
		: cuda_check(
			  cudaMemsetAsync(memory, 0, bytes, stream), "cudaMemsetAsync of a window");
	rc = rc ? rc : cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
	if (stream)
		(void)cudaStreamDestroy(stream);
	(void)cudaThreadExchangeStreamCaptureMode(&mode);
	return rc;
}

static int this_device(struct device_window *w)
{
	int here = 0, rc = cuda_check(cudaGetDevice(&here), "cudaGetDevice");

	if (!rc && here >= DEVICE_MOST_ORDINALS)
		rc = fail(TERN_ERR_UNSUPPORTED, "device %d; %d are told apart", here,
			DEVICE_MOST_ORDINALS);
	w->devices |= rc ? 0 : 1ull << here;
	w->ordinal = here;
	return rc;
}

static int create_by_fd(struct device_window *w)
{
	CUmemAllocationProp prop;
	CUmemGenericAllocationHandle memory;
	int rc = this_device(w);

	prop = memory_of(w->ordinal);
	rc = rc ? rc : round_up(w, &prop);
	rc = rc ? rc : reserve(w);
	rc = rc ? rc : create(w, &prop, &memory);
	if (rc)
		return rc;
	rc = put_in_place(w, memory);
	(void)driver.release(memory);
	return rc ? rc : clear(w->base, w->bytes);
}

static int open_by_fd(struct device_window *w)
{
	CUmemGenericAllocationHandle memory;
	int rc = this_device(w);

	rc = rc ? rc : import(w, &memory);
	if (rc)
		return rc;
	rc = reserve(w);
	rc = rc ? rc : put_in_place(w, memory);
	(void)driver.release(memory);
	return rc;
}

/* ---- by handles of the runtime --------------------------------------------------------------- */

/* A handle stands for a whole allocation of the driver: of 2 MiB or more, it is this window alone.
 */
static int create_by_handle(struct device_window *w)
{
	cudaIpcMemHandle_t ipc;
	int rc;

	_Static_assert(sizeof(ipc) == DEVICE_HANDLE_BYTES, "a handle fits");
	w->bytes = (w->bytes + (2u << 20) - 1) >> 21 << 21;
	rc = cuda_check(cudaMalloc(&w->base, w->bytes), "cudaMalloc of a window");
	rc = rc ? rc : clear(w->base, w->bytes);
	if (!rc && cudaIpcGetMemHandle(&ipc, w->base) == cudaSuccess) /* threads of one process do
									 without */
		memcpy(w->handle, &ipc, sizeof(ipc));
	(void)cudaGetLastError();
	return rc;
}

static int open_by_handle(struct device_window *w)
{
	cudaIpcMemHandle_t ipc;

	memcpy(&ipc, w->handle, sizeof(ipc));
	w->opened = true;
	return cuda_check(cudaIpcOpenMemHandle(&w->base, ipc, cudaIpcMemLazyEnablePeerAccess),
		"cudaIpcOpenMemHandle");
}

/* ---- both ------------------------------------------------------------------------------------ */

int window_create(struct device_window *w)
{
	w->fd = -1;
	return w->by_fd ? create_by_fd(w) : create_by_handle(w);
}

int window_open(struct device_window *w)
{
	return w->by_fd ? open_by_fd(w) : open_by_handle(w);
}

int window_grant(struct device_window *w, int ordinal)
{
	if (!w->by_fd || w->devices >> ordinal & 1)
		return 0;
	w->devices |= 1ull << ordinal;
	return grant(w, ordinal);
}

static void close_fd(struct device_window *w)
{
	if (w->by_fd && w->fd >= 0)
		close(w->fd);
	w->fd = -1;
}

void window_close(struct device_window *w)
{
	if (w->by_fd) {
		close_fd(w);
		take_out(w);
		if (w->base && !w->within)
			(void)driver.give_back((CUdeviceptr)w->base, w->room);
	} else if (w->base && w->opened) {
		(void)cudaIpcCloseMemHandle(w->base);
	} else if (w->base) {
		(void)cudaFree(w->base);
	}
	(void)cudaGetLastError();
	w->base = NULL;
}

static int replace(struct device_window *w, CUmemGenericAllocationHandle memory)
{
	int rc;

	take_out(w);
	rc = put_in_place(w, memory);
	(void)driver.release(memory);
	return rc;
}

int window_renew(struct device_window *w)
{
	CUmemAllocationProp prop = memory_of(w->ordinal);
	CUmemGenericAllocationHandle memory;
	int before, rc;

	if (!w->by_fd)
		return fail(TERN_ERR_UNSUPPORTED, "the driver cannot put other memory in place");
	close_fd(w);
	rc = device_switch(w->ordinal, &before);
	if (rc)
		return rc;
	rc = create(w, &prop, &memory);
	rc = rc ? rc : replace(w, memory);
	rc = rc ? rc : clear(w->base, w->bytes);
	(void)device_switch(before, &(int){0});
	return rc;
}

int window_reopen(struct device_window *w)
{
	CUmemGenericAllocationHandle memory;
	int before, rc = device_switch(w->ordinal, &before);

	if (rc)
		return rc;
	rc = import(w, &memory);
	rc = rc ? rc : replace(w, memory);
	(void)device_switch(before, &(int){0});
	return rc;
}
