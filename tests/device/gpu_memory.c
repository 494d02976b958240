/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/gpu_memory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Beside the folder of the program that runs. */
bool gpu_driver_open(struct gpu_driver *driver, const char *which)
{
	char path[4096];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 64);
	void *set, *told;

	if (length <= 0)
		return false;
	path[length] = 0;
	*strrchr(path, '/') = 0;
	snprintf(strrchr(path, '/'), 64, "/driver/%s/libcuda.so.1", which);
	driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!driver->library)
		return false;
	set = dlsym(driver->library, "driver_set");
	told = dlsym(driver->library, "driver_told");
	memcpy(&driver->set, &set, sizeof(set));
	memcpy(&driver->told, &told, sizeof(told));
	return true;
}

void gpu_driver_close(struct gpu_driver *driver)
{
	dlclose(driver->library);
}

static bool map(struct gpu_memory *gpu)
{
	gpu->memory = mmap(NULL, gpu->bytes, PROT_NONE, MAP_SHARED, gpu->known.fd, 0);
	gpu->seen = mmap(NULL, gpu->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, gpu->known.fd, 0);
	return gpu->memory != MAP_FAILED && gpu->seen != MAP_FAILED;
}

bool gpu_memory_open(struct gpu_memory *gpu, uint64_t bytes)
{
	*gpu = (struct gpu_memory){.bytes = bytes};
	if (!gpu_driver_open(&gpu->driver, "new"))
		return false;
	gpu->known.fd = memfd_create("GPU", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (gpu->known.fd < 0 || ftruncate(gpu->known.fd, (off_t)bytes) ||
		fcntl(gpu->known.fd, F_ADD_SEALS, F_SEAL_SHRINK) /* udmabuf wants it */
		|| !map(gpu))
		return false;
	gpu->known.base = (uintptr_t)gpu->memory;
	gpu->known.bytes = bytes;
	gpu->driver.set(&gpu->known);
	return true;
}

void gpu_memory_close(struct gpu_memory *gpu)
{
	munmap(gpu->memory, gpu->bytes);
	munmap(gpu->seen, gpu->bytes);
	close(gpu->known.fd);
	gpu_driver_close(&gpu->driver);
}
