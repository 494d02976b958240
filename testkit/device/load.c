/* SPDX-License-Identifier: Apache-2.0 */
/* Finding libtern_bench_cuda.so: TERN_BENCH_CUDA_LIBRARY, else beside libtern_cuda.so. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gpu/host/ops.h"
#include "testkit/device/ops.h"

#define NAME "libtern_bench_cuda.so"

static const struct bench_device_ops *ops;
static char cause[512];

static void load(void)
{
	const char *path = getenv("TERN_BENCH_CUDA_LIBRARY"), *slash;
	char beside[PATH_MAX];
	Dl_info there;

	if (!path && dladdr((void *)device_ops_load()->error_text, &there)) {
		slash = strrchr(there.dli_fname, '/');
		snprintf(beside, sizeof(beside), "%.*s" NAME,
			slash ? (int)(slash - there.dli_fname + 1) : 0, there.dli_fname);
		path = beside;
	}
	ops = device_table_load(path ? path : NAME, BENCH_DEVICE_OPS_SYMBOL,
		BENCH_DEVICE_OPS_VERSION, cause, sizeof(cause));
}

const struct bench_device_ops *bench_device_ops_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (!device_ops_load())
		return NULL;
	pthread_once(&once, load);
	if (!ops)
		fail(TERN_ERR_UNSUPPORTED, "what drives GPUs here: %s", cause);
	return ops;
}
