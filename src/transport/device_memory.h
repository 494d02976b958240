/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's memory, as networks register it. CUDA's driver is asked at run time, and only if this
 * process has loaded it. */
#ifndef TERN_TRANSPORT_DEVICE_MEMORY_H
#define TERN_TRANSPORT_DEVICE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Whether memory is a GPU's, and of which. */
bool device_memory_is(const void *base, int *ordinal);

/* A file that stands for it, as RDMA devices' drivers take one. */
struct dma_buffer {
	int fd;          /* the caller's to close: who has registered it holds the memory */
	uint64_t offset; /* of the first byte asked for, in the buffer */
	uint64_t bytes;  /* of the buffer: whole pages */
};

/* TERN_ERR_UNSUPPORTED, with the driver's error: it makes none of this memory. */
int device_memory_buffer(const void *base, uint64_t bytes, struct dma_buffer *buffer);

#endif
