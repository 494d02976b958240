/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/plan.h"

#include <string.h>

#include "exchange/layout.h"

void plan_token(const struct placement *placement, const int32_t *physical, uint32_t topk,
	struct token_rows *out)
{
	uint32_t nr = 0, rank[TERN_MAX_TOPK];

	for (uint32_t k = 0; k < topk; k++) { /* insertion sort by rank; stable, so k ascends within
						 a rank */
		uint32_t at, r;

		if (physical[k] < 0)
			continue;
		r = placement->rank[physical[k]];
		for (at = nr++; at > 0 && rank[at - 1] > r; at--) {
			rank[at] = rank[at - 1];
			out->k[at] = out->k[at - 1];
		}
		rank[at] = r;
		out->k[at] = (uint8_t)k;
	}
	out->nr_rows = 0;
	for (uint32_t i = 0; i < nr; i++) {
		if (i == 0 || rank[i] != rank[i - 1]) {
			out->rows[out->nr_rows].rank = rank[i];
			out->rows[out->nr_rows].first = i;
			out->rows[out->nr_rows++].nr = 0;
		}
		out->rows[out->nr_rows - 1].nr++;
	}
}

static const uint32_t *counts_of(const struct plan_counts *c, uint32_t source)
{
	return (const uint32_t *)(c->counts + source * c->stride);
}

static int places_by_source(const struct plan_counts *c, const struct plan_limits *limits,
	uint32_t me, uint64_t *place, uint64_t *totals)
{
	uint64_t *spans = totals + c->nr_physical;
	int over = -1;

	memset(totals, 0, (c->nr_physical + c->nr_ranks) * sizeof(*totals));
	for (uint32_t s = 0; s < c->nr_ranks; s++)
		for (uint32_t r = 0; r < c->nr_ranks; r++) {
			if (s == me)
				place[r] = spans[r];
			spans[r] += counts_of(c, s)[c->nr_physical + r];
		}
	for (uint32_t r = c->nr_ranks; r-- > 0;)
		if (spans[r] > limits->capacity)
			over = (int)r;
	return over;
}

static void add_up_routes(
	const struct plan_counts *c, uint32_t me, uint64_t *place, uint64_t *totals)
{
	memset(totals, 0, (c->nr_physical + c->nr_ranks) * sizeof(*totals));
	for (uint32_t s = 0; s < c->nr_ranks; s++) {
		const uint32_t *counts = counts_of(c, s);

		if (s == me)
			memcpy(place, totals, c->nr_physical * sizeof(*place));
		for (uint32_t p = 0; p < c->nr_physical; p++)
			totals[p] += counts[p];
	}
}

int plan_places(const struct placement *placement, const struct plan_counts *c,
	const struct plan_limits *limits, uint32_t me, uint64_t *place, uint64_t *totals)
{
	uint64_t *spans = totals + c->nr_physical;
	int over = -1;

	if (limits->layout == TERN_BY_SOURCE)
		return places_by_source(c, limits, me, place, totals);
	add_up_routes(c, me, place, totals);
	for (uint32_t p = 0; p < c->nr_physical; p++) {
		uint32_t rank = placement->rank[p];
		bool padded = limits->layout == TERN_PADDED;
		uint64_t start = padded ? placement->local[p] * limits->capacity
					: align_up(spans[rank], limits->alignment);

		place[p] += start;
		spans[rank] = padded ? start + limits->capacity : start + totals[p];
		if ((padded ? totals[p] : spans[rank]) > limits->capacity &&
			(over < 0 || rank < (uint32_t)over))
			over = (int)rank;
	}
	return over;
}
