/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/nccl/launches.h"
#include "gpu/cuda/check.h"
#include "base/error.h"

#include <stdlib.h>

static int count(const struct records *r, void *stream)
{
	return cuda_check(records_count_launch(r, stream), "counting records");
}

static int pack(const struct records *r, void *stream)
{
	return r->nr_tokens ? cuda_check(records_pack_launch(r, stream), "packing records") : 0;
}

static int place(const struct records *r, uint32_t nr_records, void *stream)
{
	return cuda_check(records_place_launch(r, nr_records, stream), "placing rows");
}

static int pack_results(const struct records *r, uint32_t nr_records, void *stream)
{
	return nr_records ? cuda_check(records_results_launch(r, nr_records, stream),
				    "packing results")
			  : 0;
}

static int sum(const struct records *r, void *stream)
{
	return r->nr_tokens ? cuda_check(records_sum_launch(r, stream), "summing results") : 0;
}

/* ---- marks ----------------------------------------------------------------------------------- */

struct device_mark {
	cudaEvent_t event;
};

static int mark_create(struct device_mark **out)
{
	struct device_mark *mark = calloc(1, sizeof(*mark));
	int rc = mark ? cuda_check(cudaEventCreate(&mark->event), "cudaEventCreate")
		      : fail(TERN_ERR_NOMEM, "no memory for an event");

	if (rc)
		free(mark);
	else
		*out = mark;
	return rc;
}

static void mark_destroy(struct device_mark *mark)
{
	if (mark)
		(void)cudaEventDestroy(mark->event);
	free(mark);
}

static int mark_put(struct device_mark *mark, void *stream)
{
	return cuda_check(cudaEventRecord(mark->event, stream), "cudaEventRecord");
}

static int mark_reached(struct device_mark *mark, bool *reached)
{
	cudaError_t rc = cudaEventQuery(mark->event);

	*reached = rc == cudaSuccess;
	if (rc != cudaErrorNotReady)
		return cuda_check(rc, "cudaEventQuery");
	(void)cudaGetLastError();
	return 0;
}

static int mark_us(struct device_mark *begin, struct device_mark *end, double *us)
{
	float ms = 0;
	int rc = cuda_check(
		cudaEventElapsedTime(&ms, begin->event, end->event), "cudaEventElapsedTime");

	*us = (double)ms * 1000;
	return rc;
}

const struct records_ops records_ops = {.count = count,
	.pack = pack,
	.place = place,
	.pack_results = pack_results,
	.sum = sum,
	.mark_create = mark_create,
	.mark_destroy = mark_destroy,
	.mark_put = mark_put,
	.mark_reached = mark_reached,
	.mark_us = mark_us};
