/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/check.h"
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char text[256];

int fail(int code, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	return code;
}

const char *check_text(void)
{
	return text;
}

int cuda_check(cudaError_t rc, const char *call)
{
	if (rc == cudaSuccess)
		return 0;
	(void)cudaGetLastError(); /* so that it is not taken for a later call's */
	return fail(rc == cudaErrorMemoryAllocation ? TERN_ERR_NOMEM
		    : rc == cudaErrorNoDevice || rc == cudaErrorInsufficientDriver ||
				    rc == cudaErrorNoKernelImageForDevice
			    ? TERN_ERR_UNSUPPORTED
			    : TERN_ERR_SYSTEM,
		"%s: %s (%s)", call, cudaGetErrorName(rc), cudaGetErrorString(rc));
}

int device_switch(int to, int *before)
{
	int rc = cuda_check(cudaGetDevice(before), "cudaGetDevice");

	return rc || *before == to ? rc : cuda_check(cudaSetDevice(to), "cudaSetDevice");
}
