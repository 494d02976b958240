/* SPDX-License-Identifier: Apache-2.0 */
/* libtern_bench_cuda.so: memory, streams and graphs through CUDA's runtime. */
#include "base/error.h"
#include "gpu/cuda/check.h"
#include "testkit/device/cuda/consumer.h"
#include "testkit/device/cuda/layer.h"
#include "testkit/device/cuda/spin.h"
#include "testkit/device/cuda/work.h"
#include "testkit/device/ops.h"

#include <stdlib.h>

extern const struct records_ops records_ops; /* bench/nccl/ */

struct device_graph {
	cudaGraphExec_t exec;
	cudaEvent_t begin, end;
};

static int use(int ordinal)
{
	int rc = cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");

	return rc ? rc : cuda_check(spin_load(), "loading kernels");
}

static int memory_create(uint64_t bytes, void **memory)
{
	return cuda_check(cudaMalloc(memory, bytes), "cudaMalloc");
}

static void memory_free(void *memory)
{
	(void)cudaFree(memory);
	(void)cudaGetLastError();
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

static int stream_idle(void *stream, bool *idle)
{
	cudaError_t e = cudaStreamQuery(stream);

	*idle = e == cudaSuccess;
	if (e == cudaErrorNotReady)
		(void)cudaGetLastError();
	return e == cudaErrorNotReady ? 0 : cuda_check(e, "cudaStreamQuery");
}

static int on_device(const void *memory, bool *is)
{
	struct cudaPointerAttributes attributes;
	int rc = cuda_check(
		cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");

	*is = !rc && attributes.type == cudaMemoryTypeDevice;
	return rc;
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

static int weights(const struct layer_fill *fill, void *stream)
{
	return cuda_check(weights_launch(fill, stream), "the kernels that fill weights");
}

static int flush(const void *memory, uint64_t bytes, void *stream)
{
	return cuda_check(flush_launch(memory, bytes, stream), "the kernel that flushes caches");
}

static int consume(const struct gate_consumer *consumer, void *stream)
{
	return cuda_check(consumer_launch(consumer, stream), "the kernels behind gates");
}

static int spin(uint64_t ns, void *stream)
{
	return cuda_check(spin_launch(ns, stream), "spin");
}

static int read_clock(uint64_t *ns, void *stream)
{
	return cuda_check(clock_launch(ns, stream), "clock");
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

__attribute__((visibility("default"))) const void *tern_bench_cuda_ops(void)
{
	static const struct bench_device_ops table = {.version = BENCH_DEVICE_OPS_VERSION,
		.error_text = check_text,
		.use = use,
		.memory_create = memory_create,
		.memory_free = memory_free,
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
		.weights = weights,
		.consume = consume,
		.flush = flush,
		.barrier = barrier,
		.capture_begin = capture_begin,
		.capture_end = capture_end,
		.graph_launch = graph_launch,
		.graph_destroy = graph_destroy,
		.graph_time = graph_time,
		.records = &records_ops,
		.clock = read_clock,
		.stream_idle = stream_idle,
		.on_device = on_device};

	return &table;
}
