/* SPDX-License-Identifier: Apache-2.0 */
/* What a network writes to devices' memory: what the driver says of its order, and flushing it; and
 * what kernels load from pinned memory and store to it. */
#include <string.h>

#include "tests/device/emulate/inside.h"

struct rdma {
	int ordering;
	void (*flush)(void *ctx);
	void *ctx;
};

static struct rdma rdma = {.ordering = cudaGPUDirectRDMAWritesOrderingOwner};

void emulated_rdma(int ordering, void (*flush)(void *ctx), void *ctx)
{
	emulated_enter();
	rdma = (struct rdma){ordering, flush, ctx};
	emulated_leave();
}

static struct rdma rdma_now(void)
{
	struct rdma now;

	emulated_enter();
	now = rdma;
	emulated_leave();
	return now;
}

cudaError_t rdma_attribute(int *value, enum cudaDeviceAttr attribute)
{
	struct rdma now = rdma_now();

	if (attribute == cudaDevAttrGPUDirectRDMASupported)
		*value = 1;
	else if (attribute == cudaDevAttrGPUDirectRDMAFlushWritesOptions)
		*value = now.flush ? cudaFlushGPUDirectRDMAWritesOptionHost : 0;
	else
		*value = now.ordering;
	return attribute == cudaDevAttrGPUDirectRDMAWritesOrdering && now.ordering < 0
		       ? cudaErrorInvalidValue
		       : cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
	enum cudaFlushGPUDirectRDMAWritesScope scope)
{
	struct rdma now = rdma_now();

	(void)target;
	(void)scope;
	if (!now.flush)
		return cudaErrorNotSupported;
	now.flush(now.ctx);
	return cudaSuccess;
}

/* ---- what kernels do with pinned memory ------------------------------------------------------ */

int emulated_watches;
static uint64_t pinned_bytes;

uint64_t emulated_watch(int on)
{
	uint64_t seen;

	emulated_enter();
	seen = pinned_bytes;
	pinned_bytes = 0;
	emulated_watches = on;
	emulated_leave();
	return seen;
}

/* By lanes, so under the lock. */
void emulated_touches(const void *at, uint32_t bytes)
{
	if (memory_is_pinned(at))
		pinned_bytes += bytes;
}
