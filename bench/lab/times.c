/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lab/gpus.h"

#include <stdlib.h>

float lab_elapsed_us(const struct lab_graph *graph)
{
	float ms;

	CHECK(cudaEventElapsedTime(&ms, graph->begin, graph->end));
	return ms * 1000;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

void lab_slowest(
	const struct lab *lab, float *const *of_rank, uint32_t rounds, double *p50, double *p99)
{
	float *us = malloc(rounds * sizeof(*us));

	for (uint32_t i = 0; i < rounds; i++) {
		us[i] = 0;
		for (uint32_t r = 0; r < lab->nr_ranks; r++)
			us[i] = of_rank[r][i] > us[i] ? of_rank[r][i] : us[i];
	}
	qsort(us, rounds, sizeof(*us), by_value);
	*p50 = us[rounds / 2];
	if (p99)
		*p99 = us[rounds * 99 / 100];
	free(us);
}
