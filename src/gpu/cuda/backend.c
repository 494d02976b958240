/* SPDX-License-Identifier: Apache-2.0 */
/* libtern_cuda.so: devices, memory and streams through CUDA's runtime, and the table that libtern
 * loads. */
#include "gpu/cuda/backend.h"
#include "gpu/cuda/spin.h"
#include "gpu/cuda/work.h"
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char text[256];

int fail(int code, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	return code;
}

static const char *error_text(void)
{
	return text;
}

int cuda_check(cudaError_t rc, const char *call)
{
	if (rc == cudaSuccess)
		return 0;
	(void)cudaGetLastError(); /* so that it is not taken for a later call's */
	return fail(rc == cudaErrorMemoryAllocation ? TERN_ERR_NOMEM
		    : rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver ||
				    rc == cudaErrorNoKernelImageForDevice
			    ? TERN_ERR_UNSUPPORTED
			    : TERN_ERR_SYSTEM,
		"%s: %s (%s)", call, cudaGetErrorName(rc), cudaGetErrorString(rc));
}

/* ---- devices --------------------------------------------------------------------------------- */

static int nr_devices(int *nr)
{
	*nr = 0;
	return cuda_check(cudaGetDeviceCount(nr), "cudaGetDeviceCount");
}

static int use(int ordinal)
{
	return cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
}

static int identify(struct device_identity *identity)
{
	struct cudaDeviceProp prop;
	int rc;

	memset(identity, 0, sizeof(*identity));
	rc = cuda_check(cudaGetDevice(&identity->ordinal), "cudaGetDevice");
	rc = rc ? rc
		: cuda_check(cudaGetDeviceProperties(&prop, identity->ordinal),
			  "cudaGetDeviceProperties");
	if (rc)
		return rc;
	if (prop.major < 8)
		return fail(TERN_ERR_UNSUPPORTED,
			"%s is of compute capability %d.%d; 8.0 is the least", prop.name,
			prop.major, prop.minor);
	memcpy(identity->uuid, &prop.uuid, sizeof(identity->uuid));
	identity->block_bytes = (uint32_t)prop.sharedMemPerBlockOptin;
	snprintf(identity->name, sizeof(identity->name), "%.63s", prop.name);
	return 0;
}

static int describe(char *to, size_t bytes)
{
	struct cudaDeviceProp prop;
	int ordinal, version, rc = cuda_check(cudaGetDevice(&ordinal), "cudaGetDevice");

	rc = rc ? rc
		: cuda_check(cudaGetDeviceProperties(&prop, ordinal), "cudaGetDeviceProperties");
	rc = rc ? rc : cuda_check(code_version(&version), "cudaFuncGetAttributes");
	if (!rc)
		snprintf(to, bytes,
			"%s, compute capability %d.%d, runs code for %d.%d; %d SMs, %.0f GiB, %zu "
			"KiB of shared memory for a block",
			prop.name, prop.major, prop.minor, version / 10, version % 10,
			prop.multiProcessorCount, (double)prop.totalGlobalMem / (1 << 30),
			prop.sharedMemPerBlockOptin / 1024);
	return rc;
}

static int reach(const uint8_t uuid[16], enum device_link *link)
{
	struct cudaDeviceProp prop;
	int nr = 0, here = 0, can = 0, atomics = 0, rc = nr_devices(&nr);

	*link = DEVICE_LINK_LINES;
	rc = rc ? rc : cuda_check(cudaGetDevice(&here), "cudaGetDevice");
	for (int d = 0; d < nr && !rc; d++) {
		rc = cuda_check(cudaGetDeviceProperties(&prop, d), "cudaGetDeviceProperties");
		if (rc || memcmp(&prop.uuid, uuid, sizeof(prop.uuid)))
			continue;
		if (d == here)
			return 0;
		rc = cuda_check(cudaDeviceCanAccessPeer(&can, here, d), "cudaDeviceCanAccessPeer");
		rc = rc ? rc
			: cuda_check(cudaDeviceGetP2PAttribute(&atomics,
					     cudaDevP2PAttrNativeAtomicSupported, here, d),
				  "cudaDeviceGetP2PAttribute");
		*link = !can ? DEVICE_LINK_NONE : atomics ? DEVICE_LINK_LINES : DEVICE_LINK_CELLS;
		return rc;
	}
	return rc ? rc
		  : fail(TERN_ERR_UNSUPPORTED,
			    "a peer's device is not visible here (CUDA_VISIBLE_DEVICES)");
}

/* ---- windows --------------------------------------------------------------------------------- */

/* A handle stands for a whole allocation of the driver: of 2 MiB or more, it is this window alone.
 */
static int window_create(uint64_t bytes, void **window, uint8_t handle[DEVICE_HANDLE_BYTES])
{
	cudaIpcMemHandle_t ipc;
	int rc = cuda_check(
		cudaMalloc(window, (bytes + (2u << 20) - 1) >> 21 << 21), "cudaMalloc of a window");

	_Static_assert(sizeof(ipc) == DEVICE_HANDLE_BYTES, "a handle fits");
	if (rc)
		return rc;
	rc = cuda_check(cudaMemset(*window, 0, bytes), "cudaMemset");
	rc = rc ? rc : cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	memset(handle, 0, DEVICE_HANDLE_BYTES);
	if (!rc && cudaIpcGetMemHandle(&ipc, *window) == cudaSuccess) /* threads of one process do
									 without */
		memcpy(handle, &ipc, sizeof(ipc));
	(void)cudaGetLastError();
	return rc;
}

static int window_open(const uint8_t handle[DEVICE_HANDLE_BYTES], void **window)
{
	cudaIpcMemHandle_t ipc;

	memcpy(&ipc, handle, sizeof(ipc));
	return cuda_check(cudaIpcOpenMemHandle(window, ipc, cudaIpcMemLazyEnablePeerAccess),
		"cudaIpcOpenMemHandle");
}

static void window_close(void *window)
{
	(void)cudaIpcCloseMemHandle(window);
	(void)cudaGetLastError();
}

static int peer_enable(int ordinal)
{
	int here = 0, rc = cuda_check(cudaGetDevice(&here), "cudaGetDevice");
	cudaError_t e =
		rc || here == ordinal ? cudaSuccess : cudaDeviceEnablePeerAccess(ordinal, 0);

	if (e == cudaErrorPeerAccessAlreadyEnabled) {
		(void)cudaGetLastError();
		return 0;
	}
	return rc ? rc : cuda_check(e, "cudaDeviceEnablePeerAccess");
}

static void memory_free(void *memory)
{
	(void)cudaFree(memory);
	(void)cudaGetLastError();
}

static int host_register(void *memory, uint64_t bytes, void **there)
{
	int rc = cuda_check(
		cudaHostRegister(memory, bytes, cudaHostRegisterMapped), "cudaHostRegister");

	if (rc)
		return rc;
	rc = cuda_check(cudaHostGetDevicePointer(there, memory, 0), "cudaHostGetDevicePointer");
	if (rc)
		(void)cudaHostUnregister(memory);
	return rc;
}

static void host_unregister(void *memory)
{
	(void)cudaHostUnregister(memory);
	(void)cudaGetLastError();
}

static int pointer_check(const void *pointer)
{
	struct cudaPointerAttributes attributes;
	int rc = cuda_check(
		cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");

	if (!rc && attributes.type == cudaMemoryTypeUnregistered)
		rc = fail(TERN_ERR_INVALID,
			"%p is memory of the host, which the device cannot reach", pointer);
	return rc;
}

/* ---- for benchmarks and tests ---------------------------------------------------------------- */

struct device_graph {
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
};

static int memory_create(uint64_t bytes, void **memory)
{
	return cuda_check(cudaMalloc(memory, bytes), "cudaMalloc");
}

static int host_create(uint64_t bytes, void **memory)
{
	return cuda_check(cudaMallocHost(memory, bytes), "cudaMallocHost");
}

static void host_free(void *memory)
{
	(void)cudaFreeHost(memory);
}

static int copy(void *to, const void *from, uint64_t bytes, void *stream)
{
	return bytes ? cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
			       "cudaMemcpyAsync")
		     : 0;
}

static int fill(void *to, int byte, uint64_t bytes, void *stream)
{
	return bytes ? cuda_check(cudaMemsetAsync(to, byte, bytes, stream), "cudaMemsetAsync") : 0;
}

static int stream_create(void **stream, bool urgent)
{
	int least = 0, greatest = 0,
	    rc = cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
		    "cudaDeviceGetStreamPriorityRange");

	return rc ? rc
		  : cuda_check(cudaStreamCreateWithPriority((cudaStream_t *)stream,
				       cudaStreamNonBlocking, urgent ? greatest : least),
			    "cudaStreamCreateWithPriority");
}

static void stream_destroy(void *stream)
{
	(void)cudaStreamDestroy(stream);
}

static int stream_wait(void *stream)
{
	return cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static int stream_follow(void *stream, void *other)
{
	cudaEvent_t event = NULL;
	int rc = cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
		"cudaEventCreateWithFlags");

	rc = rc ? rc : cuda_check(cudaEventRecord(event, other), "cudaEventRecord");
	rc = rc ? rc : cuda_check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
	if (event)
		(void)cudaEventDestroy(event);
	return rc;
}

static int work(void *memory, uint64_t bytes, uint32_t nr_waves, void *stream)
{
	int device = 0, nr_sms = 0, shared_bytes = 0,
	    rc = cuda_check(cudaGetDevice(&device), "cudaGetDevice");

	rc = rc ? rc
		: cuda_check(
			  cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device),
			  "cudaDeviceGetAttribute");
	rc = rc ? rc
		: cuda_check(cudaDeviceGetAttribute(&shared_bytes,
				     cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
			  "cudaDeviceGetAttribute");
	shared_bytes = shared_bytes / 2 + 1024; /* an SM has no room for two */
	return rc ? rc
		  : cuda_check(work_launch(memory, bytes, nr_waves * (uint32_t)nr_sms,
				       (uint32_t)shared_bytes, stream),
			    "the kernel of work");
}

static int spin(uint64_t ns, void *stream)
{
	return cuda_check(spin_launch(ns, stream), "spin");
}

static int barrier(void *const *windows, uint32_t rank, uint32_t nr_ranks, uint32_t number,
	uint64_t wait_ns, void *stream)
{
	struct stream_barrier m = {
		.rank = rank, .nr_ranks = nr_ranks, .number = number, .wait_ns = wait_ns};

	for (uint32_t r = 0; r < nr_ranks; r++)
		m.windows[r] = windows[r];
	return cuda_check(barrier_launch(&m, stream), "the kernel of a barrier");
}

static int capture_begin(void *stream)
{
	return cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
		"cudaStreamBeginCapture");
}

static void graph_destroy(struct device_graph *g)
{
	if (!g)
		return;
	if (g->exec)
		(void)cudaGraphExecDestroy(g->exec);
	if (g->begin)
		(void)cudaEventDestroy(g->begin);
	if (g->end)
		(void)cudaEventDestroy(g->end);
	free(g);
}

static int capture_end(void *stream, struct device_graph **out)
{
	struct device_graph *g = calloc(1, sizeof(*g));
	cudaGraph_t graph = NULL;
	int rc = cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");

	if (!rc && !g)
		rc = fail(TERN_ERR_NOMEM, "no memory for a graph");
	rc = rc ? rc
		: cuda_check(cudaGraphInstantiate(
				     &g->exec, graph, cudaGraphInstantiateFlagUseNodePriority),
			  "cudaGraphInstantiate");
	rc = rc ? rc : cuda_check(cudaEventCreate(&g->begin), "cudaEventCreate");
	rc = rc ? rc : cuda_check(cudaEventCreate(&g->end), "cudaEventCreate");
	rc = rc ? rc : cuda_check(cudaGraphUpload(g->exec, stream), "cudaGraphUpload");
	if (graph)
		(void)cudaGraphDestroy(graph);
	if (rc)
		graph_destroy(g);
	else
		*out = g;
	return rc;
}

static int graph_launch(struct device_graph *g, void *stream)
{
	int rc = cuda_check(cudaEventRecord(g->begin, stream), "cudaEventRecord");

	rc = rc ? rc : cuda_check(cudaGraphLaunch(g->exec, stream), "cudaGraphLaunch");
	return rc ? rc : cuda_check(cudaEventRecord(g->end, stream), "cudaEventRecord");
}

static int graph_time(struct device_graph *g, double *us)
{
	float ms = 0;
	int rc = cuda_check(cudaEventElapsedTime(&ms, g->begin, g->end), "cudaEventElapsedTime");

	*us = (double)ms * 1000;
	return rc;
}

__attribute__((visibility("default"))) const struct device_ops *tern_cuda_ops(void)
{
	static const struct device_ops table = {.version = DEVICE_OPS_VERSION,
		.error_text = error_text,
		.nr_devices = nr_devices,
		.use = use,
		.identify = identify,
		.describe = describe,
		.reach = reach,
		.window_create = window_create,
		.window_open = window_open,
		.window_close = window_close,
		.peer_enable = peer_enable,
		.memory_free = memory_free,
		.host_register = host_register,
		.host_unregister = host_unregister,
		.pointer_check = pointer_check,
		.exchange_open = device_exchange_open,
		.exchange_close = device_exchange_close,
		.dispatch = device_exchange_dispatch,
		.combine = device_exchange_combine,
		.release = device_exchange_release,
		.read_report = device_exchange_report,
		.take_input_error = device_exchange_input_error,
		.read_counters = device_exchange_counters,
		.memory_create = memory_create,
		.host_create = host_create,
		.host_free = host_free,
		.copy = copy,
		.fill = fill,
		.stream_create = stream_create,
		.stream_destroy = stream_destroy,
		.stream_wait = stream_wait,
		.stream_follow = stream_follow,
		.work = work,
		.spin = spin,
		.barrier = barrier,
		.capture_begin = capture_begin,
		.capture_end = capture_end,
		.graph_launch = graph_launch,
		.graph_destroy = graph_destroy,
		.graph_time = graph_time,
		.records = &records_ops};

	return &table;
}
