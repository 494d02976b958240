/* SPDX-License-Identifier: Apache-2.0 */
/* When blocks came where, in a build with marks. */
#include "gpu/cuda/backend.h"
#include "gpu/cuda/exchange_inside.h"

#ifdef TERN_TRACE

#define SLOT_WORDS (GPU_TRACE_BLOCKS * GPU_TRACE_MARKS)

static int begin(struct device_exchange *x)
{
	size_t bytes = x->config.nr_slots * SLOT_WORDS * sizeof(*x->trace);
	int rc = cuda_check(cudaMalloc((void **)&x->trace, bytes), "cudaMalloc of marks");

	for (uint32_t slot = 0; slot < x->config.nr_slots && !rc; slot++) {
		struct device_slot *s = &x->slots[slot];

		s->dispatch.exchange.trace = s->combine.exchange.trace =
			x->trace + slot * SLOT_WORDS;
	}
	return rc ? rc : cuda_check(cudaMemset(x->trace, 0, bytes), "cudaMemset of marks");
}

int device_exchange_trace(struct device_exchange *x, uint32_t slot, uint64_t *marks)
{
	uint64_t *there;
	size_t bytes = SLOT_WORDS * sizeof(*there);
	int rc = x->trace ? 0 : begin(x);

	if (rc)
		return rc;
	there = x->trace + slot * SLOT_WORDS;
	if (marks)
		rc = cuda_check(cudaMemcpy(marks, there, bytes, cudaMemcpyDeviceToHost),
			"cudaMemcpy of marks");
	rc = rc ? rc : cuda_check(cudaMemset(there, 0, bytes), "cudaMemset of marks");
	return rc ? rc : cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

#endif
