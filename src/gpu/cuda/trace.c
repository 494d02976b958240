/* SPDX-License-Identifier: Apache-2.0 */
/* When blocks came where, in a build with marks. */
#include <stdlib.h>

#include "base/error.h"
#include "gpu/cuda/backend.h"
#include "gpu/cuda/exchange_inside.h"
#include "gpu/cuda/layer/gemm.h"

#ifdef TERN_TRACE

#define SLOT_WORDS (GPU_TRACE_BLOCKS * GPU_TRACE_MARKS)
#define LAYER_WORDS (GPU_TRACE_BLOCKS * LAYER_MARKS)

_Static_assert((int)LAYER_MARKS <= (int)GPU_TRACE_DOWN - (int)GPU_TRACE_GATE_UP, "columns");

static int begin(struct device_exchange *x)
{
	uint64_t words = x->config.nr_slots * SLOT_WORDS + 2 * LAYER_WORDS;
	int rc = cuda_check(
		cudaMalloc((void **)&x->trace, words * sizeof(*x->trace)), "cudaMalloc of marks");

	if (rc)
		return rc;
	for (uint32_t slot = 0; slot < x->config.nr_slots; slot++) {
		struct device_slot *s = &x->slots[slot];

		s->dispatch.exchange.trace = s->combine.exchange.trace =
			x->trace + slot * SLOT_WORDS;
	}
	x->layer_trace[0] = x->trace + x->config.nr_slots * SLOT_WORDS;
	x->layer_trace[1] = x->layer_trace[0] + LAYER_WORDS;
	return cuda_check(
		cudaMemset(x->trace, 0, words * sizeof(*x->trace)), "cudaMemset of marks");
}

/* nr words a block into the columns from `column` on; there they begin anew. */
static int take(uint64_t *there, uint32_t nr, uint32_t column, uint64_t *room, uint64_t *marks)
{
	size_t bytes = GPU_TRACE_BLOCKS * nr * sizeof(*there);
	int rc = cuda_check(
		cudaMemcpy(room, there, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy of marks");

	for (uint32_t b = 0; b < GPU_TRACE_BLOCKS && !rc && marks; b++)
		for (uint32_t i = 0; i < nr; i++)
			marks[b * GPU_TRACE_COLUMNS + column + i] = room[b * nr + i];
	return rc ? rc : cuda_check(cudaMemset(there, 0, bytes), "cudaMemset of marks");
}

int device_exchange_trace(struct device_exchange *x, uint32_t slot, uint64_t *marks)
{
	uint64_t *room = malloc(SLOT_WORDS * sizeof(*room));
	int rc = room ? 0 : fail(TERN_ERR_NOMEM, "no memory for marks");

	rc = rc || x->trace ? rc : begin(x);
	rc = rc ? rc : take(x->trace + slot * SLOT_WORDS, GPU_TRACE_MARKS, 0, room, marks);
	rc = rc ? rc : take(x->layer_trace[0], LAYER_MARKS, GPU_TRACE_GATE_UP, room, marks);
	rc = rc ? rc : take(x->layer_trace[1], LAYER_MARKS, GPU_TRACE_DOWN, room, marks);
	free(room);
	return rc ? rc : cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

#endif
