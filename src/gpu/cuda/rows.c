/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device that a network reads and writes, and when kernels see what it has written.
 * Never run on a NIC. */
#include "gpu/cuda/backend.h"
#include "gpu/cuda/check.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <string.h>

#define UNIT ((uint64_t)2 << 20) /* of what drivers make dma-bufs of */

static bool find(const char *name, unsigned version, void *function)
{
	enum cudaDriverEntryPointQueryResult found;
	bool there = !cudaGetDriverEntryPointByVersion(
			     name, (void **)function, version, cudaEnableDefault, &found) &&
		     found == cudaDriverEntryPointSuccess;

	(void)cudaGetLastError();
	return there;
}

/* Else a copy that the host believes to be over may still be under way, and pass what a network
 * writes. A driver that does not know the attribute moves no such memory either. */
static void order_copies(void *memory)
{
	PFN_cuPointerSetAttribute_v6000 set;
	unsigned on = 1;

	if (find("cuPointerSetAttribute", 6000, &set))
		(void)set(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)memory);
}

int device_rows_create(uint64_t bytes, void **memory)
{
	uint64_t whole = (bytes + UNIT - 1) / UNIT * UNIT;
	int rc = cuda_check(cudaMalloc(memory, whole), "cudaMalloc");

	if (rc)
		return rc;
	rc = cuda_check(cudaMemset(*memory, 0, whole), "cudaMemset");
	rc = rc ? rc : cuda_check(cudaStreamSynchronize(NULL), "cudaStreamSynchronize");
	if (rc)
		(void)cudaFree(*memory);
	else
		order_copies(*memory);
	return rc;
}

static bool has_dma_buf(int ordinal)
{
	PFN_cuDeviceGetAttribute_v2000 attribute;
	int has = 0;

	return find("cuDeviceGetAttribute", 2000, &attribute) &&
	       !attribute(&has, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ordinal) && has;
}

static enum device_rdma_ordering ordering_of(int value)
{
	switch (value) {
	case cudaGPUDirectRDMAWritesOrderingNone:
		return DEVICE_RDMA_UNORDERED;
	case cudaGPUDirectRDMAWritesOrderingOwner:
	case cudaGPUDirectRDMAWritesOrderingAllDevices:
		return DEVICE_RDMA_ORDERED;
	default:
		return DEVICE_RDMA_UNKNOWN;
	}
}

int device_rdma_find(struct device_rdma *rdma)
{
	int supported = 0, order = 0, flush = 0,
	    rc = cuda_check(cudaGetDevice(&rdma->ordinal), "cudaGetDevice");

	if (rc)
		return rc;
	rdma->dma_buf = has_dma_buf(rdma->ordinal);
	rdma->ordering = DEVICE_RDMA_UNKNOWN;
	if (!cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering, rdma->ordinal))
		rdma->ordering = ordering_of(order);
	if (!cudaDeviceGetAttribute(
		    &flush, cudaDevAttrGPUDirectRDMAFlushWritesOptions, rdma->ordinal))
		rdma->can_flush = flush & cudaFlushGPUDirectRDMAWritesOptionHost;
	if (!cudaDeviceGetAttribute(&supported, cudaDevAttrGPUDirectRDMASupported, rdma->ordinal))
		rdma->supported = supported;
	(void)cudaGetLastError();
	return 0;
}

/* The thread is the engine's, which has no device of its own. */
int device_rdma_flush(int ordinal)
{
	int rc = cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");

	return rc ? rc
		  : cuda_check(cudaDeviceFlushGPUDirectRDMAWrites(
				       cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
				       cudaFlushGPUDirectRDMAWritesToOwner),
			    "cudaDeviceFlushGPUDirectRDMAWrites");
}
