/* SPDX-License-Identifier: Apache-2.0 */
/* A driver in CUDA's place, and memory that it says is a GPU's: a file that this process maps
 * without the right to read it. */
#ifndef TERN_TESTS_DEVICE_GPU_MEMORY_H
#define TERN_TESTS_DEVICE_GPU_MEMORY_H

#include "tests/device/driver/libcuda.h"

struct gpu_driver {
	void *library;
	void (*set)(const struct driver_memory *memory);
	void (*told)(struct driver_asked *asked);
};

/* which: "new", or "old", which has no dma-buf. False: it is not there, and dlerror() says why. */
bool gpu_driver_open(struct gpu_driver *driver, const char *which);
void gpu_driver_close(struct gpu_driver *driver);

struct gpu_memory {
	struct gpu_driver driver;
	struct driver_memory known; /* as the driver has been told of it */
	uint8_t *memory;            /* where the GPU has it; nobody may look there */
	uint8_t *seen;              /* what the GPU sees of it */
	uint64_t bytes;
};

/* Whole pages, zeros. False: errno, or dlerror(), says why. */
bool gpu_memory_open(struct gpu_memory *gpu, uint64_t bytes);
void gpu_memory_close(struct gpu_memory *gpu);

#endif
