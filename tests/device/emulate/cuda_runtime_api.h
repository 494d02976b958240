/* SPDX-License-Identifier: Apache-2.0 */
/* As much of CUDA's runtime as Tern calls, for GPUs that are emulated on the CPU. Values of enums are not CUDA's. */
#ifndef EMULATED_CUDA_RUNTIME_API_H
#define EMULATED_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct uint2 {
	uint32_t x, y;
} __attribute__((aligned(8))) uint2;

typedef struct uint3 {
	uint32_t x, y, z;
} uint3;

typedef struct uint4 {
	uint32_t x, y, z, w;
} __attribute__((aligned(16))) uint4;

typedef struct int4 {
	int32_t x, y, z, w;
} __attribute__((aligned(16))) int4;

typedef struct dim3 {
	uint32_t x, y, z;
#ifdef __cplusplus
	dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z)
	{
	}
#endif
} dim3;

typedef enum cudaError {
	cudaSuccess,
	cudaErrorInvalidValue,
	cudaErrorMemoryAllocation,
	cudaErrorNoDevice,
	cudaErrorInsufficientDriver,
	cudaErrorNoKernelImageForDevice,
	cudaErrorInvalidDevice,
	cudaErrorInvalidResourceHandle,
	cudaErrorPeerAccessAlreadyEnabled,
	cudaErrorPeerAccessNotEnabled,
	cudaErrorStreamCaptureUnsupported,
	cudaErrorNotSupported,
	cudaErrorNotReady,
	cudaErrorHostMemoryAlreadyRegistered
} cudaError_t;

typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_graph *cudaGraphExec_t;
typedef struct emulated_event *cudaEvent_t;

typedef struct cudaUUID {
	char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
	char name[256];
	cudaUUID_t uuid;
	size_t totalGlobalMem;
	size_t sharedMemPerBlockOptin;
	int major, minor, multiProcessorCount;
};

enum cudaDeviceAttr {
	cudaDevAttrMultiProcessorCount,
	cudaDevAttrMaxSharedMemoryPerBlockOptin,
	cudaDevAttrGPUDirectRDMASupported,
	cudaDevAttrGPUDirectRDMAFlushWritesOptions,
	cudaDevAttrGPUDirectRDMAWritesOrdering
};

enum cudaFlushGPUDirectRDMAWritesOptions {
	cudaFlushGPUDirectRDMAWritesOptionHost = 1
};

enum cudaGPUDirectRDMAWritesOrdering {
	cudaGPUDirectRDMAWritesOrderingNone = 0,
	cudaGPUDirectRDMAWritesOrderingOwner = 100,
	cudaGPUDirectRDMAWritesOrderingAllDevices = 200
};

enum cudaFlushGPUDirectRDMAWritesScope {
	cudaFlushGPUDirectRDMAWritesToOwner = 100
};

enum cudaFlushGPUDirectRDMAWritesTarget {
	cudaFlushGPUDirectRDMAWritesTargetCurrentDevice
};

enum cudaDeviceP2PAttr {
	cudaDevP2PAttrNativeAtomicSupported
};

enum cudaMemcpyKind {
	cudaMemcpyHostToDevice,
	cudaMemcpyDeviceToHost,
	cudaMemcpyDeviceToDevice,
	cudaMemcpyDefault
};

enum cudaMemoryType {
	cudaMemoryTypeUnregistered,
	cudaMemoryTypeHost,
	cudaMemoryTypeDevice
};

struct cudaPointerAttributes {
	enum cudaMemoryType type;
	int device;
};

typedef struct cudaIpcMemHandle {
	char reserved[64];
} cudaIpcMemHandle_t;

struct cudaFuncAttributes {
	int maxThreadsPerBlock, ptxVersion;
};

enum cudaFuncAttribute {
	cudaFuncAttributeMaxDynamicSharedMemorySize
};

enum cudaStreamCaptureMode {
	cudaStreamCaptureModeThreadLocal,
	cudaStreamCaptureModeRelaxed
};

enum cudaStreamCaptureStatus {
	cudaStreamCaptureStatusNone,
	cudaStreamCaptureStatusActive
};

enum cudaLaunchAttributeID {
	cudaLaunchAttributeProgrammaticStreamSerialization
};

typedef enum cudaDriverEntryPointQueryResult {
	cudaDriverEntryPointSuccess,
	cudaDriverEntryPointSymbolNotFound
} cudaDriverEntryPointQueryResult;

typedef struct cudaLaunchAttribute {
	enum cudaLaunchAttributeID id;
	union {
		int programmaticStreamSerializationAllowed;
	} val;
} cudaLaunchAttribute;

typedef struct cudaLaunchConfig {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	cudaLaunchAttribute *attrs;
	unsigned numAttrs;
} cudaLaunchConfig_t;

#define cudaStreamNonBlocking 1
#define cudaEnableDefault 0
#define cudaEventDisableTiming 2
#define cudaGraphInstantiateFlagUseNodePriority 8
#define cudaIpcMemLazyEnablePeerAccess 1

/* Programs may load it as CUDA's own. */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t rc);
const char *cudaGetErrorString(cudaError_t rc);

cudaError_t cudaGetDeviceCount(int *nr);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target, enum cudaFlushGPUDirectRDMAWritesScope scope);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaHostGetDevicePointer(void **there, void *memory, unsigned flags);
#define cudaHostRegisterMapped 2
cudaError_t cudaMemset(void *to, int byte, size_t bytes);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory);
cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *memory);

cudaError_t cudaGetDriverEntryPointByVersion(
	const char *name, void **function, unsigned version, unsigned long long flags, cudaDriverEntryPointQueryResult *result);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
