/* SPDX-License-Identifier: Apache-2.0 */
/* A placement from nothing. */
#include <math.h>
#include <string.h>

#include "balance/state.h"

/* ---- an order ------------------------------------------------------------------------------- */

/* Is expert `one` to come behind `other`? Equal keys keep the order of numbers. */
static bool is_behind(const double *key, uint32_t one, uint32_t other)
{
	return key[one] < key[other] || (key[one] == key[other] && one > other);
}

static void sift(uint32_t *order, const double *key, uint32_t at, uint32_t nr)
{
	for (uint32_t child; (child = 2 * at + 1) < nr; at = child) {
		uint32_t mine = order[at];

		if (child + 1 < nr && is_behind(key, order[child + 1], order[child]))
			child++;
		if (!is_behind(key, order[child], mine))
			return;
		order[at] = order[child];
		order[child] = mine;
	}
}

/* Experts, the largest key first. In place: the library's qsort may take memory. */
static void sort_experts(uint32_t *order, const double *key, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		order[i] = i;
	for (uint32_t i = nr / 2; i-- > 0;)
		sift(order, key, i, nr);
	for (uint32_t end = nr; end-- > 1;) {
		uint32_t last = order[0];

		order[0] = order[end];
		order[end] = last;
		sift(order, key, 0, end);
	}
}

/* ---- how many of each ------------------------------------------------------------------------ */

/* count and share of all experts, which lie nowhere yet. */
static void want(struct tern_balance *b, uint32_t expert, uint32_t count)
{
	b->count[expert] = count;
	b->share[expert] = b->load[expert] / count;
}

/* The expert whose replicas have most each. One on every rank already helps no more. */
static uint32_t heaviest(const struct tern_balance *b, uint32_t zone)
{
	uint32_t best = BALANCE_NOBODY;

	for (uint32_t e = 0; e < b->nr_experts; e++)
		if (b->home[e] == zone && (b->twice || b->count[e] < b->nr_alive) &&
			(best == BALANCE_NOBODY || b->share[e] > b->share[best]))
			best = e;
	return best;
}

static void choose_counts(struct tern_balance *b)
{
	uint32_t left = b->nr_usable - b->nr_experts, each = left / b->nr_zones;

	for (uint32_t e = 0; e < b->nr_experts; e++)
		want(b, e, 1);
	sort_experts(b->order, b->load, b->nr_experts);
	for (uint32_t level = 2; level <= b->spread; level++)
		for (uint32_t i = 0; i < b->nr_experts && left; i++, left--)
			want(b, b->order[i], level);
	for (; left; left--) {
		uint32_t e = heaviest(b, b->nr_zones > 1 ? (left - 1) / each : 0);

		if (e == BALANCE_NOBODY) /* all are everywhere */
			e = left % b->nr_experts;
		want(b, e, b->count[e] + 1);
	}
}

/* ---- where ----------------------------------------------------------------------------------- */

/* The rank with least that has room, if there can be one, without the expert, or in a domain
 * without it. */
static uint32_t find_room(const struct tern_balance *b, uint32_t expert, bool other_domain)
{
	uint32_t best = BALANCE_NOBODY, any = BALANCE_NOBODY, apart = BALANCE_NOBODY;

	for (uint32_t r = 0; r < b->nr_ranks; r++) {
		if (!b->nr_free[r] || (b->nr_zones > 1 && b->zone[r] != b->home[expert]))
			continue;
		if (any == BALANCE_NOBODY || b->rank_load[r] < b->rank_load[any])
			any = r;
		if (b->nr_from[r] == expert + 1 && !b->twice)
			continue;
		if (best == BALANCE_NOBODY || b->rank_load[r] < b->rank_load[best])
			best = r;
		if (other_domain && !balance_domain_holds(b, r, expert) &&
			(apart == BALANCE_NOBODY || b->rank_load[r] < b->rank_load[apart]))
			apart = r;
	}
	return apart != BALANCE_NOBODY ? apart : best != BALANCE_NOBODY ? best : any;
}

/* Shares are known, so they do not change while places fill. nr_from: who holds the expert. */
static void put_all(struct tern_balance *b)
{
	sort_experts(b->order, b->share, b->nr_experts);
	for (uint32_t i = 0; i < b->nr_experts; i++) {
		uint32_t e = b->order[i];

		for (uint32_t n = 0; n < b->count[e]; n++) {
			uint32_t r = find_room(b, e, n && n < b->spread),
				 p = b->places[b->first_place[r + 1] - b->nr_free[r]--];

			b->nr_from[r] = e + 1;
			b->at[p] = (int32_t)e;
			b->following[p] = b->head[e];
			b->head[e] = p;
			b->rank_load[r] += b->share[e];
		}
	}
}

/* ---- swaps ----------------------------------------------------------------------------------- */

struct swap {
	uint32_t from, to; /* places */
	double most;       /* of both ranks, afterwards */
};

static void try_swaps(
	const struct tern_balance *b, uint32_t busy, uint32_t other, struct swap *best)
{
	double high = b->rank_load[busy], low = b->rank_load[other];

	if ((high + low) / 2 >= best->most)
		return;
	for (uint32_t i = b->first_place[busy]; i < b->first_place[busy + 1]; i++) {
		uint32_t p = b->places[i], e = (uint32_t)b->at[p];

		for (uint32_t j = b->first_place[other]; j < b->first_place[other + 1]; j++) {
			uint32_t q = b->places[j], f = (uint32_t)b->at[q];
			double d = b->share[e] - b->share[f];
			double most = high - d > low + d ? high - d : low + d;

			if (d <= 0 || most >= best->most ||
				!balance_may_move(b, e, busy, other, b->twice) ||
				!balance_may_move(b, f, other, busy, b->twice))
				continue;
			*best = (struct swap){p, q, most};
		}
	}
}

static void take_swap(struct tern_balance *b, const struct swap *s)
{
	uint32_t e = (uint32_t)b->at[s->from], f = (uint32_t)b->at[s->to];

	balance_drop(b, s->from);
	balance_drop(b, s->to);
	balance_put(b, s->from, f);
	balance_put(b, s->to, e);
}

/* The busiest rank gives what takes most off it and does not make another as busy, until nothing
 * does. */
static void swap_all(struct tern_balance *b)
{
	for (uint32_t n = 0; n < 4 * b->nr_places && balance_ratio(b) > GOOD_ENOUGH; n++) {
		uint32_t busy = balance_busiest(b);
		struct swap best = {.most = b->rank_load[busy] * (1 - 1e-9)};

		for (uint32_t r = 0; r < b->nr_ranks; r++)
			if (b->alive[r] && b->rank_load[r] < b->rank_load[busy])
				try_swaps(b, busy, r, &best);
		if (best.from == best.to)
			return;
		take_swap(b, &best);
	}
}

/* ---- ways to begin --------------------------------------------------------------------------- */

enum way {
	ONCE,  /* no expert twice on a rank */
	TWICE, /* which takes a place and brings no safety, but evens loads out where places are few
		*/
	APART, /* domains share the experts out, and each goes on by itself */
	NR_WAYS
};

static void begin(struct tern_balance *b)
{
	balance_take(b, NULL);
	for (uint32_t r = 0; r < b->nr_ranks; r++) {
		b->nr_free[r] = b->alive[r] ? b->first_place[r + 1] - b->first_place[r] : 0;
		b->nr_from[r] = 0;
	}
	for (uint32_t e = 0; e < b->nr_experts; e++)
		b->home[e] = 0;
}

/* As many experts to each domain, the busiest first to the one with least so far. */
static void share_out(struct tern_balance *b)
{
	uint32_t each = b->nr_experts / b->nr_domains;

	sort_experts(b->order, b->load, b->nr_experts);
	for (uint32_t z = 0; z < b->nr_domains; z++) {
		b->zone_load[z] = 0;
		b->zone_left[z] = each;
	}
	for (uint32_t i = 0; i < b->nr_experts; i++) {
		uint32_t best = BALANCE_NOBODY;

		for (uint32_t z = 0; z < b->nr_domains; z++)
			if (b->zone_left[z] &&
				(best == BALANCE_NOBODY || b->zone_load[z] < b->zone_load[best]))
				best = z;
		b->home[b->order[i]] = best;
		b->zone_left[best]--;
		b->zone_load[best] += b->load[b->order[i]];
	}
}

static void place_all(struct tern_balance *b, enum way way)
{
	begin(b);
	b->twice = way != ONCE;
	b->nr_zones = way == APART ? b->nr_domains : 1;
	if (way == APART)
		share_out(b);
	choose_counts(b);
	put_all(b);
	swap_all(b);
	balance_improve(b);
}

static bool is_possible(const struct tern_balance *b, enum way way)
{
	return way == ONCE || (b->spread < 2 && (way == TWICE || b->even_domains));
}

void balance_from_scratch(struct tern_balance *b)
{
	double best = HUGE_VAL;
	bool twice = false;

	for (enum way way = ONCE; way < NR_WAYS && best > GOOD_ENOUGH; way++) {
		if (!is_possible(b, way))
			continue;
		place_all(b, way);
		if (balance_ratio(b) >= best)
			continue;
		best = balance_ratio(b);
		twice = b->twice;
		memcpy(b->kept, b->at, b->nr_places * sizeof(*b->kept));
	}
	b->twice = twice;
	balance_take(b, b->kept);
}
