/* SPDX-License-Identifier: Apache-2.0 */
/* As much of the driver's virtual memory management as Tern calls, for emulated GPUs. Values of enums are not CUDA's. */
#ifndef EMULATED_CUDA_TYPEDEFS_H
#define EMULATED_CUDA_TYPEDEFS_H

#include "cuda_runtime_api.h"

typedef enum CUresult {
	CUDA_SUCCESS,
	CUDA_ERROR_INVALID_VALUE,
	CUDA_ERROR_OUT_OF_MEMORY
} CUresult;

typedef int CUdevice_v1;
typedef unsigned long long CUdeviceptr, CUdeviceptr_v2;
typedef unsigned long long CUmemGenericAllocationHandle, CUmemGenericAllocationHandle_v1;

typedef enum CUdevice_attribute {
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
	CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
} CUdevice_attribute;

typedef enum CUpointer_attribute {
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
} CUpointer_attribute;

typedef enum CUmemAllocationType {
	CU_MEM_ALLOCATION_TYPE_PINNED = 1
} CUmemAllocationType;

typedef enum CUmemAllocationHandleType {
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
} CUmemAllocationHandleType;

typedef enum CUmemLocationType {
	CU_MEM_LOCATION_TYPE_DEVICE = 1
} CUmemLocationType;

typedef enum CUmemAccess_flags {
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;

typedef enum CUmemAllocationGranularity_flags {
	CU_MEM_ALLOC_GRANULARITY_MINIMUM
} CUmemAllocationGranularity_flags;

typedef struct CUmemLocation {
	CUmemLocationType type;
	int id;
} CUmemLocation;

typedef struct CUmemAllocationProp {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
} CUmemAllocationProp, CUmemAllocationProp_v1;

typedef struct CUmemAccessDesc {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc, CUmemAccessDesc_v1;

typedef CUresult (*PFN_cuDeviceGetAttribute_v2000)(int *, CUdevice_attribute, CUdevice_v1);
typedef CUresult (*PFN_cuPointerSetAttribute_v6000)(const void *, CUpointer_attribute, CUdeviceptr_v2);
typedef CUresult (*PFN_cuMemGetAllocationGranularity_v10020)(size_t *, const CUmemAllocationProp_v1 *, CUmemAllocationGranularity_flags);
typedef CUresult (*PFN_cuMemAddressReserve_v10020)(CUdeviceptr_v2 *, size_t, size_t, CUdeviceptr_v2, unsigned long long);
typedef CUresult (*PFN_cuMemAddressFree_v10020)(CUdeviceptr_v2, size_t);
typedef CUresult (*PFN_cuMemCreate_v10020)(CUmemGenericAllocationHandle_v1 *, size_t, const CUmemAllocationProp_v1 *, unsigned long long);
typedef CUresult (*PFN_cuMemRelease_v10020)(CUmemGenericAllocationHandle_v1);
typedef CUresult (*PFN_cuMemMap_v10020)(CUdeviceptr_v2, size_t, size_t, CUmemGenericAllocationHandle_v1, unsigned long long);
typedef CUresult (*PFN_cuMemUnmap_v10020)(CUdeviceptr_v2, size_t);
typedef CUresult (*PFN_cuMemSetAccess_v10020)(CUdeviceptr_v2, size_t, const CUmemAccessDesc_v1 *, size_t);
typedef CUresult (*PFN_cuMemExportToShareableHandle_v10020)(void *, CUmemGenericAllocationHandle_v1, CUmemAllocationHandleType, unsigned long long);
typedef CUresult (*PFN_cuMemImportFromShareableHandle_v10020)(CUmemGenericAllocationHandle_v1 *, void *, CUmemAllocationHandleType);

#endif
