/* SPDX-License-Identifier: Apache-2.0 */
/* libtern_cuda.so: devices through CUDA's runtime, and the table that libtern loads. */
#include "gpu/cuda/backend.h"
#include "gpu/cuda/check.h"
#include "gpu/cuda/common/kernels.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* ---- devices --------------------------------------------------------------------------------- */

static int nr_devices(int *nr)
{
	*nr = 0;
	return cuda_check(cudaGetDeviceCount(nr), "cudaGetDeviceCount");
}

static int use(int ordinal)
{
	return cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
}

static int identify(struct device_identity *identity)
{
	struct cudaDeviceProp prop;
	int rc;

	memset(identity, 0, sizeof(*identity));
	rc = cuda_check(cudaGetDevice(&identity->ordinal), "cudaGetDevice");
	rc = rc ? rc
		: cuda_check(cudaGetDeviceProperties(&prop, identity->ordinal),
			  "cudaGetDeviceProperties");
	if (rc)
		return rc;
	if (prop.major < 8)
		return fail(TERN_ERR_UNSUPPORTED,
			"%s is of compute capability %d.%d; 8.0 is the least", prop.name,
			prop.major, prop.minor);
	memcpy(identity->uuid, &prop.uuid, sizeof(identity->uuid));
	identity->block_bytes = (uint32_t)prop.sharedMemPerBlockOptin;
	identity->nr_sms = (uint32_t)prop.multiProcessorCount;
	identity->by_fd = windows_by_fd(identity->ordinal);
	snprintf(identity->name, sizeof(identity->name), "%.63s", prop.name);
	return 0;
}

static int describe(char *to, size_t bytes)
{
	struct cudaDeviceProp prop;
	int ordinal, version, rc = cuda_check(cudaGetDevice(&ordinal), "cudaGetDevice");

	rc = rc ? rc
		: cuda_check(cudaGetDeviceProperties(&prop, ordinal), "cudaGetDeviceProperties");
	rc = rc ? rc : cuda_check(code_version(&version), "cudaFuncGetAttributes");
	if (!rc)
		snprintf(to, bytes,
			"%s, compute capability %d.%d, runs code for %d.%d; %d SMs, %.0f GiB, %zu "
			"KiB of shared memory for a block",
			prop.name, prop.major, prop.minor, version / 10, version % 10,
			prop.multiProcessorCount, (double)prop.totalGlobalMem / (1 << 30),
			prop.sharedMemPerBlockOptin / 1024);
	return rc;
}

static int reach(const uint8_t uuid[16], enum device_link *link)
{
	struct cudaDeviceProp prop;
	int nr = 0, here = 0, can = 0, atomics = 0, rc = nr_devices(&nr);

	*link = DEVICE_LINK_LINES;
	rc = rc ? rc : cuda_check(cudaGetDevice(&here), "cudaGetDevice");
	for (int d = 0; d < nr && !rc; d++) {
		rc = cuda_check(cudaGetDeviceProperties(&prop, d), "cudaGetDeviceProperties");
		if (rc || memcmp(&prop.uuid, uuid, sizeof(prop.uuid)))
			continue;
		if (d == here)
			return 0;
		rc = cuda_check(cudaDeviceCanAccessPeer(&can, here, d), "cudaDeviceCanAccessPeer");
		rc = rc ? rc
			: cuda_check(cudaDeviceGetP2PAttribute(&atomics,
					     cudaDevP2PAttrNativeAtomicSupported, here, d),
				  "cudaDeviceGetP2PAttribute");
		*link = !can ? DEVICE_LINK_NONE : atomics ? DEVICE_LINK_LINES : DEVICE_LINK_CELLS;
		return rc;
	}
	return rc ? rc
		  : fail(TERN_ERR_UNSUPPORTED,
			    "a peer's device is not visible here (CUDA_VISIBLE_DEVICES)");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int peer_enable(int ordinal)
{
	int here = 0, rc = cuda_check(cudaGetDevice(&here), "cudaGetDevice");
	cudaError_t e =
		rc || here == ordinal ? cudaSuccess : cudaDeviceEnablePeerAccess(ordinal, 0);

	if (e == cudaErrorPeerAccessAlreadyEnabled) {
		(void)cudaGetLastError();
		return 0;
	}
	return rc ? rc : cuda_check(e, "cudaDeviceEnablePeerAccess");
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

static int host_register(void *memory, uint64_t bytes, void **there)
{
	int rc = cuda_check(
		cudaHostRegister(memory, bytes, cudaHostRegisterMapped), "cudaHostRegister");

	if (rc)
		return rc;
	rc = cuda_check(cudaHostGetDevicePointer(there, memory, 0), "cudaHostGetDevicePointer");
	if (rc)
		(void)cudaHostUnregister(memory);
	return rc;
}

static void host_unregister(void *memory)
{
	(void)cudaHostUnregister(memory);
	(void)cudaGetLastError();
}

static int pointer_check(const void *pointer)
{
	struct cudaPointerAttributes attributes;
	int rc = cuda_check(
		cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");

	if (!rc && attributes.type == cudaMemoryTypeUnregistered)
		rc = fail(TERN_ERR_INVALID,
			"%p is memory of the host, which the device cannot reach", pointer);
	return rc;
}

__attribute__((visibility("default"))) const void *tern_cuda_ops(void)
{
	static const struct device_ops table = {.version = DEVICE_OPS_VERSION,
		.error_text = check_text,
		.nr_devices = nr_devices,
		.use = use,
		.identify = identify,
		.describe = describe,
		.reach = reach,
		.window_create = window_create,
		.window_open = window_open,
		.window_close = window_close,
		.window_grant = window_grant,
		.window_renew = window_renew,
		.window_reopen = window_reopen,
		.peer_enable = peer_enable,
		.memory_create = memory_create,
		.memory_free = memory_free,
		.host_create = host_create,
		.host_free = host_free,
		.host_register = host_register,
		.host_unregister = host_unregister,
		.pointer_check = pointer_check,
		.exchange_open = device_exchange_open,
		.exchange_close = device_exchange_close,
		.dispatch = device_exchange_dispatch,
		.combine = device_exchange_combine,
		.release = device_exchange_release,
		.sizes = device_exchange_sizes,
		.plan_create = device_kept_create,
		.plan_destroy = device_kept_destroy,
		.plan_bytes = device_kept_bytes,
		.place_check = device_exchange_place_check,
		.place = device_exchange_place,
		.gate = device_exchange_gate,
		.layer_open = device_layer_open,
		.layer_close = device_layer_close,
		.layer_run = device_layer_run,
		.count_routes = device_routes_count,
		.quiesce = device_exchange_quiesce,
		.read_epoch = device_exchange_epoch,
		.resume = device_exchange_resume,
		.read_report = device_exchange_report,
		.take_input_error = device_exchange_input_error,
#ifdef TERN_TRACE
		.trace = device_exchange_trace,
#endif
		.read_counters = device_exchange_counters,
		.rows_create = device_rows_create,
		.rdma = device_rdma_find,
		.rdma_flush = device_rdma_flush};

	return &table;
}
