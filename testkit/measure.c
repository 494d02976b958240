/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

int times_create(struct times *times, uint32_t nr)
{
	unsigned int i;

	memset(times, 0, sizeof(*times));
	times->nr = nr;
	for (i = 0; i < NR_MEASURES; i++) {
		times->us[i] = calloc((size_t)nr + 1, sizeof(double));
		if (!times->us[i]) {
			times_destroy(times);
			return -1;
		}
	}
	return 0;
}

void times_destroy(struct times *times)
{
	unsigned int i;

	for (i = 0; i < NR_MEASURES; i++)
		free(times->us[i]);
	memset(times, 0, sizeof(*times));
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double percentile(const double *sorted, uint32_t nr, double share)
{
	uint32_t i = (uint32_t)(share * (nr - 1) + 0.5);

	return nr ? sorted[i < nr ? i : nr - 1] : 0;
}

void spread_of_slowest(
	const double *all, uint32_t nr_ranks, uint32_t nr, double *scratch, struct spread *spread)
{
	double sum = 0;
	uint32_t i, rank;

	memset(spread, 0, sizeof(*spread));
	if (!nr)
		return;
	for (i = 0; i < nr; i++) {
		scratch[i] = all[i];
		for (rank = 1; rank < nr_ranks; rank++)
			if (all[(size_t)rank * nr + i] > scratch[i])
				scratch[i] = all[(size_t)rank * nr + i];
		sum += scratch[i];
	}
	qsort(scratch, nr, sizeof(*scratch), ascending);
	*spread = (struct spread){percentile(scratch, nr, 0.5), percentile(scratch, nr, 0.99),
		scratch[0], scratch[nr - 1], sum / nr};
}

int measure_gather(const struct times *times, int nr_ranks, tern_allgather_fn allgather, void *ctx,
	struct spread spreads[NR_MEASURES])
{
	double *all = calloc((size_t)nr_ranks * times->nr + 1, sizeof(double));
	double *scratch = calloc((size_t)times->nr + 1, sizeof(double));
	unsigned int i;
	int status = all && scratch ? 0 : -1;

	for (i = 0; i < NR_MEASURES && !status; i++) {
		status = allgather(ctx, times->us[i], all, times->nr * sizeof(double)) ? -1 : 0;
		spread_of_slowest(all, (uint32_t)nr_ranks, times->nr, scratch, &spreads[i]);
	}
	free(all);
	free(scratch);
	return status;
}
