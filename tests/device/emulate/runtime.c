/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime: devices, streams, graphs and events. Memory is in memory.c. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/emulate/inside.h"

#define MOST_WITHOUT 8 /* lines of one function that are left out, or numbered for it */

static _Thread_local int current;
static _Thread_local cudaError_t last;
static struct settings settings;
static uint64_t random_state;

/* ---- settings -------------------------------------------------------------------------------- */

void emulated_die(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fflush(stdout);
	fprintf(stderr,
		"emulated GPU, TERN_EMULATED_SEED=%llu: ", (unsigned long long)settings.seed);
	vfprintf(stderr, format, list);
	fprintf(stderr, "\n");
	va_end(list);
	abort();
}

static uint64_t setting(const char *name, uint64_t otherwise, uint64_t most)
{
	const char *text = getenv(name);
	uint64_t value = text && *text ? strtoull(text, NULL, 0) : otherwise;

	return value < most ? value : most;
}

static void load_settings(void)
{
	const char *stores = getenv("TERN_EMULATED_STORES"),
		   *processes = getenv("TERN_EMULATED_PROCESSES");

	settings.nr_devices = (uint32_t)setting("TERN_EMULATED_GPUS", 4, MAX_DEVICES);
	settings.nr_sms = (uint32_t)setting("TERN_EMULATED_SMS", 8, 1024);
	settings.seed = setting("TERN_EMULATED_SEED", 1, UINT64_MAX);
	settings.lines = setting("TERN_EMULATED_LINES", 1, 1);
	settings.nvlink_domain = (uint32_t)setting("TERN_EMULATED_NVLINK_DOMAIN", 0, MAX_DEVICES);
	settings.block_bytes = (size_t)setting("TERN_EMULATED_BLOCK_KIB", 227, 227) * 1024;
	settings.code = (uint32_t)setting("TERN_EMULATED_CODE", 90, 100);
	settings.without = getenv("TERN_EMULATED_WITHOUT");
	settings.delayed = !stores || strcmp(stores, "direct") != 0;
	random_state = settings.seed;
	if (processes && *processes)
		processes_open(processes);
	for (uint32_t d = 0; d < settings.nr_devices; d++) {
		emulated_devices[d].room = settings.nr_sms;
		emulated_devices[d].stream.device = (int)d;
		stream_add(&emulated_devices[d].stream);
	}
}

/* Lines are numbered as they are come to. A template's function has its arguments in its name. */
static bool is_left_out(const char *what, const char *in, int line)
{
	static int lines[MOST_WITHOUT];
	const char *at = settings.without;
	size_t nr = strcspn(in, "<"), nr_what = strlen(what);
	unsigned number = 0;

	if (strncmp(at, in, nr) || at[nr] != ':' || strncmp(at + nr + 1, what, nr_what))
		return false;
	at += nr + 1 + nr_what;
	if (*at && *at != ':')
		return false;
	while (number < MOST_WITHOUT && lines[number] && lines[number] != line)
		number++;
	if (number == MOST_WITHOUT)
		emulated_die("more than %d places are %s", MOST_WITHOUT, settings.without);
	if (*at && strtoul(at + 1, NULL, 10) != number + 1) {
		lines[number] = line;
		return false;
	}
	if (!lines[number])
		fprintf(stderr, "emulated GPUs: left out: %s, line %d\n", settings.without, line);
	lines[number] = line;
	return true;
}

bool emulated_without(const char *what, const char *in, int line)
{
	return settings.without && is_left_out(what, in, line);
}

const struct settings *emulated_settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_settings);
	return &settings;
}

void random_reset(uint64_t seed)
{
	settings.seed = random_state = seed;
}

/* splitmix64 */
uint32_t emulated_random(uint32_t below)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)(((z ^ z >> 31) >> 32) * below >> 32);
}

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
