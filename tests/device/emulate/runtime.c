/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime: devices, streams, graphs and events. Memory is in memory.c, settings are in
 * settings.c. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/emulate/inside.h"

static _Thread_local int current;
static _Thread_local cudaError_t last;

/* ---- errors ---------------------------------------------------------------------------------- */

static cudaError_t result(cudaError_t rc)
{
	if (rc)
		last = rc;
	return rc;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t rc = last;

	last = cudaSuccess;
	return rc;
}

const char *cudaGetErrorName(cudaError_t rc)
{
	static const char *const names[] = {"cudaSuccess", "cudaErrorInvalidValue",
		"cudaErrorMemoryAllocation", "cudaErrorNoDevice", "cudaErrorInsufficientDriver",
		"cudaErrorNoKernelImageForDevice", "cudaErrorInvalidDevice",
		"cudaErrorInvalidResourceHandle", "cudaErrorPeerAccessAlreadyEnabled",
		"cudaErrorPeerAccessNotEnabled", "cudaErrorStreamCaptureUnsupported",
		"cudaErrorNotSupported", "cudaErrorNotReady",
		"cudaErrorHostMemoryAlreadyRegistered"};

	return rc < sizeof(names) / sizeof(names[0]) ? names[rc] : "unknown";
}

const char *cudaGetErrorString(cudaError_t rc)
{
	return rc ? "refused by the emulation" : "no error";
}

/* ---- devices --------------------------------------------------------------------------------- */

static bool is_device(int device)
{
	return device >= 0 && (uint32_t)device < emulated_settings()->nr_devices;
}

cudaError_t cudaGetDeviceCount(int *nr)
{
	*nr = (int)emulated_settings()->nr_devices;
	return result(*nr ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
	if (!is_device(device))
		return result(cudaErrorInvalidDevice);
	current = device;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = current;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
	if (!is_device(device))
		return result(cudaErrorInvalidDevice);
	memset(prop, 0, sizeof(*prop));
	snprintf(prop->name, sizeof(prop->name), "emulated GPU %d", device);
	memcpy(prop->uuid.bytes, "emulated", 8);
	prop->uuid.bytes[15] = (char)device;
	prop->totalGlobalMem = (size_t)1 << 32;
	prop->sharedMemPerBlockOptin = emulated_settings()->block_bytes;
	prop->major = 9;
	prop->multiProcessorCount = (int)emulated_settings()->nr_sms;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
	struct cudaDeviceProp prop;
	cudaError_t rc = cudaGetDeviceProperties(&prop, device);

	if (!rc && attribute >= cudaDevAttrGPUDirectRDMASupported)
		return result(rdma_attribute(value, attribute));
	if (!rc)
		*value = attribute == cudaDevAttrMultiProcessorCount
				 ? prop.multiProcessorCount
				 : (int)prop.sharedMemPerBlockOptin;
	return rc;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	uint32_t nvlink_domain = emulated_settings()->nvlink_domain;

	*can = is_device(device) && is_device(peer) && device != peer &&
	       (!nvlink_domain ||
		       (uint32_t)device / nvlink_domain == (uint32_t)peer / nvlink_domain);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(
	int *value, enum cudaDeviceP2PAttr attribute, int device, int peer)
{
	(void)attribute;
	*value = emulated_settings()->lines;
	return is_device(device) && is_device(peer) ? cudaSuccess : result(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
	(void)flags;
	int can;

	cudaDeviceCanAccessPeer(&can, current, peer);
	return result(can ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void)
{
	emulated_settings();
	emulated_enter();
	device_wait(current);
	emulated_leave();
	return cudaSuccess;
}

/* ---- streams and what is put on them --------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	struct emulated_stream *s = calloc(1, sizeof(*s));

	(void)flags;
	if (!s)
		return result(cudaErrorMemoryAllocation);
	emulated_settings();
	s->device = current;
	emulated_enter();
	stream_add(s);
	emulated_leave();
	*stream = s;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	(void)priority; /* blocks start in the order of launches */
	return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = *greatest = 0;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	struct emulated_stream *s = stream_of(stream);
	cudaError_t rc = cudaSuccess;

	emulated_enter();
	if (s->capture)
		rc = cudaErrorStreamCaptureUnsupported;
	else
		stream_wait(s);
	emulated_leave();
	return result(rc);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	emulated_enter();
	stream_wait(stream);
	stream_remove(stream);
	emulated_leave();
	free(stream);
	return cudaSuccess;
}

static cudaError_t put(cudaStream_t stream, const struct operation *op)
{
	emulated_enter();
	stream_put(stream_of(stream), op);
	emulated_leave();
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
	return put(stream, &(struct operation){
				   .kind = OPERATION_FILL, .to = to, .byte = byte, .bytes = bytes});
}

cudaError_t cudaMemcpyAsync(
	void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	(void)kind;
	return put(stream, &(struct operation){
				   .kind = OPERATION_COPY, .to = to, .from = from, .bytes = bytes});
}

cudaError_t emulated_launch(
	const cudaLaunchConfig_t *c, emulated_run run, const void *call, size_t bytes)
{
	struct operation op = {.kind = OPERATION_KERNEL,
		.run = run,
		.call = (void *)call,
		.call_bytes = bytes,
		.grid = c->gridDim,
		.block = c->blockDim,
		.shared_bytes = c->dynamicSmemBytes,
		.nr_blocks = c->gridDim.x};

	if (!c->gridDim.x || !c->blockDim.x || c->blockDim.x > 1024 ||
		c->gridDim.y * c->gridDim.z != 1 || c->blockDim.y * c->blockDim.z != 1 ||
		c->dynamicSmemBytes > emulated_settings()->block_bytes)
		return result(cudaErrorInvalidValue);
	for (unsigned i = 0; i < c->numAttrs; i++)
		op.early |= c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
			    c->attrs[i].val.programmaticStreamSerializationAllowed;
	return put(c->stream, &op);
}

/* What a kernel's blocks may have of shared memory: one setting for all of the process. Who lowers
 * it takes from other threads what they are about to launch with; a GPU lets him, and here it is an
 * error. */
#define USUAL_SHARED_BYTES (48 * 1024)
#define MOST_KERNELS 256

static struct allowance {
	const void *kernel;
	size_t bytes;
} allowances[MOST_KERNELS];
static pthread_mutex_t allowances_lock = PTHREAD_MUTEX_INITIALIZER;

/* Of a kernel; NULL: there is no place for one more. */
static struct allowance *allowance_of(const void *kernel)
{
	for (int i = 0; i < MOST_KERNELS; i++) {
		struct allowance *a = &allowances[i];

		if (!a->kernel)
			*a = (struct allowance){kernel, USUAL_SHARED_BYTES};
		if (a->kernel == kernel)
			return a;
	}
	return NULL;
}

size_t emulated_shared_bytes(const void *kernel)
{
	struct allowance *a;
	size_t bytes;

	pthread_mutex_lock(&allowances_lock);
	a = allowance_of(kernel);
	bytes = a ? a->bytes : 0;
	pthread_mutex_unlock(&allowances_lock);
	return bytes;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
	struct allowance *a;
	bool good;

	(void)attribute;
	pthread_mutex_lock(&allowances_lock);
	a = kernel ? allowance_of(kernel) : NULL;
	good = a && value >= 0 && (size_t)value <= emulated_settings()->block_bytes &&
	       (size_t)value >= a->bytes;
	if (good)
		a->bytes = (size_t)value;
	pthread_mutex_unlock(&allowances_lock);
	return result(good ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
	*attributes = (struct cudaFuncAttributes){
		.maxThreadsPerBlock = 1024, .ptxVersion = (int)emulated_settings()->code};
	return result(kernel ? cudaSuccess : cudaErrorInvalidValue);
}

/* ---- graphs and events ------------------------------------------------------------------------
 *
 * A graph is what was put on its streams, in one order. What was put on the stream where the
 * capture began is launched where the caller says; the rest on the stream that it was captured
 * from, which waits for whatever else is there: one of the orders that a GPU may choose. */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	struct emulated_stream *s = stream_of(stream);
	struct emulated_graph *g = calloc(1, sizeof(*g));

	(void)mode;
	if (!g)
		return result(cudaErrorMemoryAllocation);
	g->end = &g->first;
	g->origin = s;
	g->refs = 1;
	emulated_enter();
	s->capture = g;
	emulated_leave();
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	emulated_enter();
	*status = stream_of(stream)->capture ? cudaStreamCaptureStatusActive
					     : cudaStreamCaptureStatusNone;
	emulated_leave();
	return cudaSuccess;
}

/* Nothing is refused here while somebody captures. */
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeThreadLocal;
	enum cudaStreamCaptureMode before = current;

	current = *mode;
	*mode = before;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	struct emulated_stream *s = stream_of(stream);

	emulated_enter();
	*graph = s->capture;
	if (*graph)
		capture_end(*graph);
	emulated_leave();
	return result(*graph ? cudaSuccess : cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	(void)flags;
	emulated_enter();
	graph->refs++;
	emulated_leave();
	*exec = graph;
	return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
	(void)stream;
	return result(exec ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	emulated_enter();
	for (const struct operation *op = exec->first; op; op = op->next)
		stream_put(op->stream == exec->origin ? stream_of(stream) : op->stream, op);
	emulated_leave();
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	bool last_one;

	emulated_enter();
	last_one = --graph->refs == 0;
	for (struct operation *op = last_one ? graph->first : NULL, *next; op; op = next) {
		next = op->next;
		operation_free(op);
	}
	emulated_leave();
	if (last_one)
		free(graph);
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	return cudaGraphDestroy(exec);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	*event = calloc(1, sizeof(**event));
	if (*event)
		(*event)->refs = 1;
	return result(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	(void)flags;
	return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	emulated_enter();
	event_drop(event);
	emulated_leave();
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	emulated_enter();
	event->capture = stream_of(stream)->capture;
	stream_put(stream_of(stream), &(struct operation){.kind = OPERATION_EVENT, .event = event});
	emulated_leave();
	return cudaSuccess;
}

/* Behind an event of a capture the stream belongs to it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	struct emulated_stream *s = stream_of(stream);
	cudaError_t rc = cudaSuccess;

	(void)flags;
	emulated_enter();
	if (event->capture && !s->capture)
		s->capture = event->capture;
	if (s->capture != event->capture)
		rc = cudaErrorStreamCaptureUnsupported;
	else
		stream_put(s, &(struct operation){.kind = OPERATION_FOLLOW, .event = event});
	emulated_leave();
	return result(rc);
}

/* On GPUs work goes on while somebody asks: so it does here. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	const struct emulated_stream *s = stream_of(stream);
	bool under_way;

	emulated_enter();
	if (s->first)
		devices_run();
	under_way = s->first;
	emulated_leave();
	return result(under_way ? cudaErrorNotReady : cudaSuccess);
}

/* Likewise. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	bool under_way;

	emulated_enter();
	if (event->nr_put != event->nr_reached)
		devices_run();
	under_way = event->nr_put != event->nr_reached;
	emulated_leave();
	return result(under_way ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
	*ms = (float)(end->ns - begin->ns) / 1e6f;
	return cudaSuccess;
}
