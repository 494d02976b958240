/* SPDX-License-Identifier: Apache-2.0 */
/* Routing turned into rows. Pure functions: the same ids and tables give the same plan on every
 * rank. */
#ifndef TERN_EXCHANGE_PLAN_H
#define TERN_EXCHANGE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "exchange/placement.h"
#include "tern.h"

/* One token's rows: its routes grouped by destination rank, ranks ascending, k ascending within a
 * rank. */
struct token_rows {
	uint32_t nr_rows;
	struct {
		uint32_t rank;
		uint32_t first, nr; /* its routes: k[first] .. k[first + nr - 1] */
	} rows[TERN_MAX_TOPK];
	uint8_t k[TERN_MAX_TOPK];
};

/* physical[topk]: -1 for no expert. */
void plan_token(const struct placement *placement, const int32_t *physical, uint32_t topk,
	struct token_rows *rows);

/* High throughput, after all counts are known: `counts(s)` of source s is [P] routes to each
 * expert, then [R] rows to each rank, at counts + s * stride bytes. */
struct plan_counts {
	const uint8_t *counts;
	uint64_t stride;
	uint32_t nr_ranks, nr_physical;
};

struct plan_limits {
	enum tern_layout layout;
	uint32_t alignment;
	uint64_t capacity;
};

/* Where rows of source `me` go: place[p] is the position of its first row for expert p on that
 * expert's rank (BY_SOURCE: place[r], for rank r). totals[P + R]: rows that each expert receives,
 * then row positions that each rank's output spans. Returns the first rank over capacity, or -1. */
int plan_places(const struct placement *placement, const struct plan_counts *counts,
	const struct plan_limits *limits, uint32_t me, uint64_t *place, uint64_t *totals);

#endif
