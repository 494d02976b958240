/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTS_DEVICE_DRIVER_LIBCUDA_H
#define TERN_TESTS_DEVICE_DRIVER_LIBCUDA_H

#include <stdbool.h>
#include <stdint.h>

/* All memory that the driver knows. */
struct driver_memory {
	uint64_t base, bytes;
	bool pinned; /* the host's */
	int ordinal;
	int error; /* what asking for a descriptor ends with */
	int fd;    /* the file that it is, with a seal against shrinking; 0: none, and descriptors
		      are of nothing */
};

/* The last descriptor. */
struct driver_asked {
	uint32_t nr;
	uint64_t base, bytes;
	uint64_t start; /* where the buffer begins in its descriptor: 0 of a dma-buf */
	int fd;
};

/* By dlsym. */
void driver_set(const struct driver_memory *memory);
void driver_told(struct driver_asked *asked);

#endif
