/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* CUDA's numbers. */
#define HOST_TO_DEVICE 1
#define DEVICE_TO_HOST 2
#define NON_BLOCKING 1 /* a stream that does not wait for the one without a name */

/* What is called of CUDA's runtime, each returning 0 or an error. */
struct runtime {
	int (*get_device_count)(int *nr);
	int (*set_device)(int ordinal);
	int (*stream_create)(void **stream, unsigned flags);
	int (*stream_destroy)(void *stream);
	int (*stream_synchronize)(void *stream);
	int (*malloc)(void **memory, size_t bytes);
	int (*free)(void *memory);
	int (*malloc_host)(void **memory, size_t bytes);
	int (*free_host)(void *memory);
	int (*memcpy_async)(void *to, const void *from, size_t bytes, int kind, void *stream);
	const char *(*error_string)(int error);
};

struct gpu {
	struct runtime cuda;
	int nr;
	void *stream;
};

/* ---- CUDA's runtime -------------------------------------------------------------------------- */

static void *load_library(struct fault *fault)
{
	static const char *const names[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12",
		"libcudart.so.11.0", "/usr/local/cuda/lib64/libcudart.so"};
	const char *setting = getenv("TERN_CUDART_LIBRARY");
	void *library = setting ? dlopen(setting, RTLD_NOW | RTLD_LOCAL) : NULL;

	for (size_t i = 0; !setting && !library && i < sizeof(names) / sizeof(names[0]); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library && setting)
		fault_say(fault, "TERN_CUDART_LIBRARY: %.200s", dlerror());
	else if (!library)
		fault_say(fault, "CUDA's runtime, libcudart.so, is not where the loader looks; "
				 "install it, or give its path in TERN_CUDART_LIBRARY");
	return library;
}

/* `function` points to a pointer to a function; POSIX says that dlsym's result is one. */
static int find(void *library, const char *name, void *function, struct fault *fault)
{
	void *symbol = dlsym(library, name);

	memcpy(function, &symbol, sizeof(symbol));
	return symbol ? 0 : fault_say(fault, "CUDA's runtime has no %s: %.200s", name, dlerror());
}

/* It stays loaded: CUDA goes on until the process ends. */
static int load(struct runtime *cuda, struct fault *fault)
{
	void *library = load_library(fault);
	int rc = library ? 0 : -1;

	rc = rc ? rc : find(library, "cudaGetDeviceCount", &cuda->get_device_count, fault);
	rc = rc ? rc : find(library, "cudaSetDevice", &cuda->set_device, fault);
	rc = rc ? rc : find(library, "cudaStreamCreateWithFlags", &cuda->stream_create, fault);
	rc = rc ? rc : find(library, "cudaStreamDestroy", &cuda->stream_destroy, fault);
	rc = rc ? rc : find(library, "cudaStreamSynchronize", &cuda->stream_synchronize, fault);
	rc = rc ? rc : find(library, "cudaMalloc", &cuda->malloc, fault);
	rc = rc ? rc : find(library, "cudaFree", &cuda->free, fault);
	rc = rc ? rc : find(library, "cudaMallocHost", &cuda->malloc_host, fault);
	rc = rc ? rc : find(library, "cudaFreeHost", &cuda->free_host, fault);
	rc = rc ? rc : find(library, "cudaMemcpyAsync", &cuda->memcpy_async, fault);
	return rc ? rc : find(library, "cudaGetErrorString", &cuda->error_string, fault);
}

static int check(const struct gpu *gpu, int error, const char *call, struct fault *fault)
{
	return error ? fault_say(fault, "%s: %s", call, gpu->cuda.error_string(error)) : 0;
}

/* ---- the GPU --------------------------------------------------------------------------------- */

static int choose(struct gpu *gpu, int rank, struct fault *fault)
{
	int rc = check(gpu, gpu->cuda.get_device_count(&gpu->nr), "counting GPUs", fault);

	if (!rc && gpu->nr <= 0)
		rc = fault_say(fault, "CUDA's runtime sees no GPU (CUDA_VISIBLE_DEVICES?)");
	rc = rc ? rc : check(gpu, gpu->cuda.set_device(rank % gpu->nr), "cudaSetDevice", fault);
	rc = rc ? rc : check(gpu, gpu->cuda.free(NULL), "starting CUDA", fault); /* before version
										    12 the line
										    above does not
										  */
	return rc ? rc
		  : check(gpu, gpu->cuda.stream_create(&gpu->stream, NON_BLOCKING),
			    "cudaStreamCreateWithFlags", fault);
}

int gpu_open(int rank, struct gpu **gpu, struct fault *fault)
{
	struct gpu *made = calloc(1, sizeof(*made));

	if (!made)
		return fault_say(fault, "no memory for a GPU");
	if (load(&made->cuda, fault) || choose(made, rank, fault)) {
		free(made);
		return -1;
	}
	*gpu = made;
	return 0;
}

void gpu_close(struct gpu *gpu)
{
	if (!gpu)
		return;
	gpu->cuda.stream_destroy(gpu->stream);
	free(gpu);
}

int gpu_nr(const struct gpu *gpu)
{
	return gpu ? gpu->nr : 0;
}

void *gpu_stream(const struct gpu *gpu)
{
	return gpu->stream;
}

int gpu_wait(struct gpu *gpu, struct fault *fault)
{
	return gpu ? check(gpu, gpu->cuda.stream_synchronize(gpu->stream), "cudaStreamSynchronize",
			     fault)
		   : 0;
}

/* ---- buffers --------------------------------------------------------------------------------- */

void buffer_free(struct gpu *gpu, struct buffer *buffer)
{
	if (!gpu) {
		free(buffer->here);
	} else {
		if (buffer->here)
			gpu->cuda.free_host(buffer->here);
		if (buffer->there)
			gpu->cuda.free(buffer->there);
	}
	*buffer = (struct buffer){0};
}

static int allocate(struct gpu *gpu, struct buffer *buffer, size_t bytes, struct fault *fault)
{
	int rc;

	if (!gpu) {
		buffer->here = buffer->there = aligned_alloc(64, bytes);
		return buffer->here ? 0 : fault_say(fault, "no memory for %zu bytes", bytes);
	}
	rc = check(gpu, gpu->cuda.malloc_host(&buffer->here, bytes), "cudaMallocHost", fault);
	return rc ? rc : check(gpu, gpu->cuda.malloc(&buffer->there, bytes), "cudaMalloc", fault);
}

int buffer_grow(struct gpu *gpu, struct buffer *buffer, size_t bytes, struct fault *fault)
{
	if (buffer->here && bytes <= buffer->bytes)
		return 0;
	bytes = ((buffer->here ? 2 * bytes : bytes) + 64) / 64 * 64;
	buffer_free(gpu, buffer);
	if (allocate(gpu, buffer, bytes, fault)) {
		buffer_free(gpu, buffer);
		return -1;
	}
	buffer->bytes = bytes;
	return 0;
}

static int copy(
	struct gpu *gpu, void *to, const void *from, size_t bytes, int kind, struct fault *fault)
{
	return bytes ? check(gpu, gpu->cuda.memcpy_async(to, from, bytes, kind, gpu->stream),
			       "cudaMemcpyAsync", fault)
		     : 0;
}

int buffer_send(struct gpu *gpu, const struct buffer *buffer, size_t bytes, struct fault *fault)
{
	return gpu ? copy(gpu, buffer->there, buffer->here, bytes, HOST_TO_DEVICE, fault) : 0;
}

int buffer_fetch(struct gpu *gpu, const struct buffer *buffer, size_t bytes, struct fault *fault)
{
	return gpu ? copy(gpu, buffer->here, buffer->there, bytes, DEVICE_TO_HOST, fault) : 0;
}

int buffer_take(
	struct gpu *gpu, struct buffer *buffer, const void *from, size_t bytes, struct fault *fault)
{
	int rc = buffer_grow(gpu, buffer, bytes, fault);

	return rc ? rc : copy(gpu, buffer->here, from, bytes, DEVICE_TO_HOST, fault);
}
