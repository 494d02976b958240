/* SPDX-License-Identifier: Apache-2.0 */
/* Where experts should live. From scratch: replicas to whom they help most, the heaviest first to
 * the rank with least, then swaps. From a placement: the change that takes most off the squares of
 * ranks' loads, for each copy that it costs, as long as copies are left. */
#include "tern_balance.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "balance/state.h"
#include "base/blocks.h"
#include "base/error.h"
#include "base/struct_size.h"

/* ---- making one ------------------------------------------------------------------------------ */

static int check_config(const struct tern_balance_config *c)
{
	if (!c->nr_experts || c->nr_physical < c->nr_experts || !c->nr_ranks ||
		c->nr_physical > INT32_MAX || c->nr_ranks > INT32_MAX)
		return fail(TERN_ERR_INVALID,
			"balance: %u experts, %u places, %u ranks; at least one of each, and as "
			"many places as experts",
			c->nr_experts, c->nr_physical, c->nr_ranks);
	for (uint32_t p = 0; c->rank && p < c->nr_physical; p++)
		if (c->rank[p] < 0 || (uint32_t)c->rank[p] >= c->nr_ranks)
			return fail(TERN_ERR_INVALID, "balance: rank[%u] is %d; ranks are 0 to %u",
				p, c->rank[p], c->nr_ranks - 1);
	return 0;
}

enum extent {
	OF_EXPERTS,
	OF_PLACES,
	OF_RANKS,
	NR_EXTENTS
};

#define FIELD(name, of)                                                                            \
	{                                                                                          \
		offsetof(struct tern_balance, name), sizeof(*((struct tern_balance *)0)->name), of \
	}

/* Each has two entries more than that, which first_place needs. */
static const struct {
	size_t at, bytes;
	enum extent of;
} arrays[] = {
	FIELD(rank_of, OF_PLACES),
	FIELD(places, OF_PLACES),
	FIELD(domain, OF_RANKS),
	FIELD(load, OF_EXPERTS),
	FIELD(share, OF_EXPERTS),
	FIELD(count, OF_EXPERTS),
	FIELD(head, OF_EXPERTS),
	FIELD(at, OF_PLACES),
	FIELD(was, OF_PLACES),
	FIELD(zone_left, OF_RANKS),
	FIELD(zone_load, OF_RANKS),
	FIELD(home, OF_EXPERTS),
	FIELD(zone, OF_RANKS),
	FIELD(kept, OF_PLACES),
	FIELD(following, OF_PLACES),
	FIELD(holders_load, OF_EXPERTS),
	FIELD(share_ahead, OF_EXPERTS),
	FIELD(gain_ahead, OF_EXPERTS),
	FIELD(rank_load, OF_RANKS),
	FIELD(nr_free, OF_RANKS),
	FIELD(alive, OF_RANKS),
	FIELD(nr_from, OF_RANKS),
	FIELD(first_place, OF_RANKS),
	FIELD(order, OF_PLACES),
};

#define NR_ARRAYS (sizeof(arrays) / sizeof(arrays[0]))

static int take_memory(tern_balance *b)
{
	const size_t extent[NR_EXTENTS] = {b->nr_experts, b->nr_places, b->nr_ranks};

	for (size_t i = 0; i < NR_ARRAYS; i++) {
		void *array = calloc(extent[arrays[i].of] + 2, arrays[i].bytes);

		memcpy((char *)b + arrays[i].at, &array, sizeof(array));
		if (!array)
			return fail(TERN_ERR_NOMEM, "no memory for a balance of %u places",
				b->nr_places);
	}
	return 0;
}

static void index_places(tern_balance *b, const struct tern_balance_config *c)
{
	for (uint32_t p = 0; p < b->nr_places; p++) {
		b->rank_of[p] =
			c->rank ? (uint32_t)c->rank[p] : block_of(p, c->nr_physical, c->nr_ranks);
		b->first_place[b->rank_of[p] + 2]++;
	}
	for (uint32_t r = 0; r < b->nr_ranks; r++) {
		b->first_place[r + 2] += b->first_place[r + 1];
		b->domain[r] = c->domain ? c->domain[r] : (int32_t)r;
	}
	for (uint32_t p = 0; p < b->nr_places; p++) /* which leaves starts */
		b->places[b->first_place[b->rank_of[p] + 1]++] = p;
}

int tern_balance_create(const struct tern_balance_config *config, tern_balance **balance)
{
	struct tern_balance_config c = {.size = sizeof(c)};
	tern_balance *b;
	int rc;

	if (!config || !balance)
		return fail(TERN_ERR_INVALID, "tern_balance_create: config or balance is NULL");
	rc = struct_read(&kind_balance_config, config, &c);
	rc = rc ? rc : check_config(&c);
	if (rc)
		return rc;
	b = calloc(1, sizeof(*b));
	if (!b)
		return fail(TERN_ERR_NOMEM, "no memory for a balance");
	b->nr_experts = c.nr_experts;
	b->nr_places = c.nr_physical;
	b->nr_ranks = c.nr_ranks;
	rc = take_memory(b);
	if (rc) {
		tern_balance_destroy(b);
		return rc;
	}
	index_places(b, &c);
	*balance = b;
	return 0;
}

int tern_balance_destroy(tern_balance *b)
{
	if (!b)
		return 0;
	for (size_t i = 0; i < NR_ARRAYS; i++) {
		void *array;

		memcpy(&array, (char *)b + arrays[i].at, sizeof(array));
		free(array);
	}
	free(b);
	return 0;
}

/* ---- what a caller passes -------------------------------------------------------------------- */

static int check_input(const tern_balance *b, const struct tern_balance_input *in)
{
	uint32_t usable = 0;

	for (uint32_t e = 0; e < b->nr_experts; e++)
		if (!isfinite(in->load[e]) || in->load[e] < 0)
			return fail(TERN_ERR_INVALID,
				"balance: load[%u] is %g; loads are finite and not negative", e,
				in->load[e]);
	for (uint32_t p = 0; in->now && p < b->nr_places; p++)
		if (in->now[p] < -1 || in->now[p] >= (int64_t)b->nr_experts)
			return fail(TERN_ERR_INVALID,
				"balance: now[%u] is %d; experts are 0 to %u, or -1", p, in->now[p],
				b->nr_experts - 1);
	for (uint32_t p = 0; p < b->nr_places; p++)
		usable += !in->alive || in->alive[b->rank_of[p]];
	if (usable < b->nr_experts)
		return fail(TERN_ERR_INVALID, "balance: living ranks have %u places for %u experts",
			usable, b->nr_experts);
	return 0;
}

/* Loads so that their sum is 1; all alike where all are 0. */
static void take_loads(tern_balance *b, const double *load)
{
	double most = 0, sum = 0;

	for (uint32_t e = 0; e < b->nr_experts; e++)
		most = load[e] > most ? load[e] : most;
	for (uint32_t e = 0; e < b->nr_experts; e++) {
		b->load[e] = most > 0 ? load[e] / most : 1;
		sum += b->load[e];
	}
	for (uint32_t e = 0; e < b->nr_experts; e++)
		b->load[e] /= sum;
}

/* Domains of living ranks that have places, numbered as they come. zone_left: their places. */
static void number_domains(tern_balance *b)
{
	for (uint32_t r = 0; r < b->nr_ranks; r++) {
		uint32_t nr = b->first_place[r + 1] - b->first_place[r], before = 0;

		if (!b->alive[r] || !nr)
			continue;
		while (before < r && (b->domain[before] != b->domain[r] || !b->alive[before] ||
					     b->first_place[before] == b->first_place[before + 1]))
			before++;
		b->zone[r] = before < r ? b->zone[before] : b->nr_domains++;
		b->zone_left[b->zone[r]] = (before < r ? b->zone_left[b->zone[r]] : 0) + nr;
	}
	b->even_domains = b->nr_domains > 1 && b->nr_experts % b->nr_domains == 0;
	for (uint32_t z = 1; z < b->nr_domains; z++)
		b->even_domains &= b->zone_left[z] == b->zone_left[0];
}

static void take_input(tern_balance *b, const struct tern_balance_input *in)
{
	b->nr_alive = b->nr_usable = b->nr_domains = 0;
	take_loads(b, in->load);
	for (uint32_t r = 0; r < b->nr_ranks; r++) {
		uint32_t nr = b->first_place[r + 1] - b->first_place[r];

		b->alive[r] = !in->alive || in->alive[r];
		b->nr_usable += b->alive[r] ? nr : 0;
		b->nr_alive += b->alive[r] && nr;
	}
	number_domains(b);
	for (uint32_t p = 0; p < b->nr_places; p++)
		b->was[p] = in->now && b->alive[b->rank_of[p]] ? in->now[p] : -1;
	b->spread = in->spread < b->nr_domains ? in->spread : b->nr_domains;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* What stays on its rank stays in its place. */
static void stay_in_place(tern_balance *b, uint32_t rank)
{
	uint32_t first = b->first_place[rank], end = b->first_place[rank + 1];

	for (uint32_t i = first; i < end; i++)
		for (uint32_t j = first; j < end && b->at[b->places[i]] != b->was[b->places[i]];
			j++) {
			uint32_t mine = b->places[i], other = b->places[j];
			int32_t expert = b->at[other];

			if (expert != b->was[mine] || expert == b->was[other])
				continue;
			b->at[other] = b->at[mine];
			b->at[mine] = expert;
		}
}

static uint32_t nr_spread(const tern_balance *b)
{
	uint32_t nr = 0;

	for (uint32_t e = 0; e < b->nr_experts; e++)
		nr += balance_nr_domains(b, e, BALANCE_NOBODY) >= b->spread;
	return nr;
}

/* `before`: of what lies there now; 0: some expert is nowhere. That stays if it is no worse. */
static void plan_anew(tern_balance *b, double before)
{
	uint32_t spread_before = nr_spread(b);

	balance_from_scratch(b);
	if (before > 0 && before <= balance_ratio(b) * (1 + 1e-9) &&
		spread_before >= nr_spread(b)) {
		balance_take(b, b->was);
		return;
	}
	for (uint32_t r = 0; r < b->nr_ranks; r++)
		stay_in_place(b, r);
}

/* ---- telling --------------------------------------------------------------------------------- */

/* A place that held the expert, of the rank that has given least. */
static int32_t choose_source(tern_balance *b, uint32_t expert)
{
	int32_t best = -1;

	for (uint32_t p = 0; p < b->nr_places; p++)
		if (b->was[p] == (int32_t)expert &&
			(best < 0 || b->nr_from[b->rank_of[p]] < b->nr_from[b->rank_of[best]]))
			best = (int32_t)p;
	if (best >= 0)
		b->nr_from[b->rank_of[best]]++;
	return best;
}

static uint32_t tell_copies(tern_balance *b, struct tern_copy *copies)
{
	uint32_t nr = 0;

	memset(b->nr_from, 0, b->nr_ranks * sizeof(*b->nr_from));
	for (uint32_t p = 0; p < b->nr_places; p++) {
		if (b->at[p] < 0 || b->at[p] == b->was[p])
			continue;
		if (copies)
			copies[nr] = (struct tern_copy){
				b->at[p], choose_source(b, (uint32_t)b->at[p]), (int32_t)p};
		nr++;
	}
	return nr;
}

int tern_balance_plan(tern_balance *b, const struct tern_balance_input *input, int32_t *next,
	struct tern_copy *copies, struct tern_balance_result *result)
{
	struct tern_balance_input in = {0};
	struct tern_balance_result told = {.size = sizeof(told)};
	int rc;

	if (!b || !input || !next)
		return fail(TERN_ERR_INVALID, "tern_balance_plan: balance, input or next is NULL");
	in.size = sizeof(in);
	rc = struct_read(&kind_balance_input, input, &in);
	rc = !rc && result ? struct_check(&kind_balance_result, result) : rc;
	if (!rc && !in.load)
		rc = fail(TERN_ERR_INVALID, "tern_balance_plan: load is NULL");
	rc = rc ? rc : check_input(b, &in);
	if (rc)
		return rc;
	take_input(b, &in);
	balance_take(b, b->was);
	told.before = balance_is_whole(b) ? balance_ratio(b) : 0;
	if (!in.now || in.max_copies == UINT32_MAX)
		plan_anew(b, told.before);
	else
		balance_by_copies(b, in.max_copies);
	told.after = balance_ratio(b);
	told.nr_copies = in.now ? tell_copies(b, copies) : 0;
	told.nr_spread = nr_spread(b);
	memcpy(next, b->at, b->nr_places * sizeof(*next));
	return result ? struct_out(&kind_balance_result, result, &told) : 0;
}
