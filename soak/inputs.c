/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/inputs.h"

#include <stdlib.h>

static void *need(size_t bytes)
{
	return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

int inputs_make(const struct scenario *scenario, uint32_t rank, uint64_t round, struct inputs *in)
{
	const struct job *job = &scenario->job;
	size_t x_bytes = job_x_bytes(job), scales_bytes = job_x_scales_bytes(job);
	uint32_t n = job_nr_tokens(job, round, rank);
	size_t routes = (size_t)n * job->config.topk;

	*in = (struct inputs){.nr_tokens = n,
		.x_stride = x_bytes + scenario->rows_apart,
		.scales_stride = scales_bytes + scenario->rows_apart};
	in->x = need(n * in->x_stride);
	in->scales = scales_bytes ? need(n * in->scales_stride) : NULL;
	in->ids = need(routes * sizeof(*in->ids));
	in->wide_ids = need(routes * sizeof(*in->wide_ids));
	in->weights = need(routes * sizeof(*in->weights));
	if (!in->x || !in->ids || !in->wide_ids || !in->weights || (scales_bytes && !in->scales))
		return -1;
	job_routes(job, round, rank, in->ids, in->weights);
	job_x(job, round, rank, in->x, in->x_stride, in->scales, in->scales_stride);
	for (size_t i = 0; i < routes; i++)
		in->wide_ids[i] = in->ids[i];
	return 0;
}

void inputs_free(struct inputs *in)
{
	free(in->x);
	free(in->scales);
	free(in->ids);
	free(in->wide_ids);
	free(in->weights);
}
