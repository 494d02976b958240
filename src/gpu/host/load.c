/* SPDX-License-Identifier: Apache-2.0 */
/* Finding libtern_cuda.so: TERN_CUDA_LIBRARY, else beside the program or library that holds this
 * code, else wherever the loader looks. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/host/ops.h"
#include "base/error.h"
#include "base/trace.h"

#if TRACING
#define NAME "libtern_cuda_traced.so"
#else
#define NAME "libtern_cuda.so"
#endif

static const struct device_ops *ops;
static char cause[512];

const void *device_table_load(
	const char *path, const char *symbol, uint32_t version, char *why, size_t bytes)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	device_table_fn get = library ? (device_table_fn)dlsym(library, symbol) : NULL;
	size_t at = strlen(why);

	if (!get)
		snprintf(why + at, bytes - at, "%s%.200s", at ? "; " : "", dlerror());
	else if (*(const uint32_t *)get() != version)
		snprintf(why, bytes, "%.300s is of version %u; this library needs %u", path,
			*(const uint32_t *)get(), version);
	else
		return get();
	return NULL;
}

static void try_load(const char *path)
{
	ops = device_table_load(path, DEVICE_OPS_SYMBOL, DEVICE_OPS_VERSION, cause, sizeof(cause));
}

static void beside(const char *file)
{
	char path[PATH_MAX];
	const char *slash = strrchr(file, '/');

	if (!slash)
		return;
	snprintf(path, sizeof(path), "%.*s" NAME, (int)(slash - file + 1), file);
	if (!access(path, R_OK))
		try_load(path);
}

static void load(void)
{
	const char *setting = getenv("TERN_CUDA_LIBRARY");
	char program[PATH_MAX] = "";
	Dl_info here;

	if (setting) {
		try_load(setting);
		return;
	}
	if (dladdr((void *)device_ops_load, &here) && here.dli_fname)
		beside(here.dli_fname);
	if (!ops && readlink("/proc/self/exe", program, sizeof(program) - 1) > 0)
		beside(program);
	if (!ops)
		try_load(NAME);
}

const struct device_ops *device_ops_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	if (!ops)
		fail(TERN_ERR_UNSUPPORTED, "no GPUs here: %s", cause);
	return ops;
}
