/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of rows: the CPU's, where Tern and the model work on the same bytes; or a GPU's, where
 * Tern works, beside the CPU's, where the model does. Of CUDA it needs the runtime library alone,
 * and loads it when a GPU is wanted. */
#ifndef TERN_EXAMPLES_GENERATE_GPU_H
#define TERN_EXAMPLES_GENERATE_GPU_H

#include <stddef.h>

#include "fault.h"

/* A GPU and a stream on it. NULL in its place: the CPU. */
struct gpu;

/* Of the GPUs that are there, rank r takes number r modulo their number; it is the calling thread's
 * from then on. *gpu is set only on success. */
int gpu_open(int rank, struct gpu **gpu, struct fault *fault);
void gpu_close(struct gpu *gpu);
int gpu_nr(const struct gpu *gpu); /* how many there are; 0: the CPU */
void *gpu_stream(const struct gpu *gpu);

struct buffer {
	void *here;  /* where the model works */
	void *there; /* where Tern does; on the CPU the same */
	size_t bytes;
};

/* Room for so many bytes, 64-byte aligned. When it grows it at least doubles, and what it held is
 * lost; nothing on the stream may still use it. */
int buffer_grow(struct gpu *gpu, struct buffer *buffer, size_t bytes, struct fault *fault);
void buffer_free(struct gpu *gpu, struct buffer *buffer);

/* Both are put on the stream; on the CPU there is nothing to copy. */
int buffer_send(struct gpu *gpu, const struct buffer *buffer, size_t bytes, struct fault *fault);
int buffer_fetch(struct gpu *gpu, const struct buffer *buffer, size_t bytes, struct fault *fault);

/* Makes room, then brings here what lies on the GPU at `from`, Tern's memory; for GPUs only. */
int buffer_take(struct gpu *gpu, struct buffer *buffer, const void *from, size_t bytes,
	struct fault *fault);

/* Until all that was put on the stream is done. */
int gpu_wait(struct gpu *gpu, struct fault *fault);

#endif
