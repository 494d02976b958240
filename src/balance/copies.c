/* SPDX-License-Identifier: Apache-2.0 */
/* A placement from another, by few copies. */
#include "balance/state.h"

/* What may change: the place gets the expert; or both places get what the other has. */
struct change {
	uint32_t place, expert;
	uint32_t other; /* a place, or BALANCE_NOBODY */
	double gain;    /* off the sum of squares, for each copy */
};

/* May a place lose what it has? Not if the expert would be in fewer domains then, and fewer than
 * that. */
static bool may_drop(const struct tern_balance *b, uint32_t place, uint32_t nr_domains)
{
	int32_t e = b->at[place];
	uint32_t without;

	if (e < 0 || b->count[e] < 2 || nr_domains < 2)
		return e < 0 || b->count[e] >= 2;
	without = balance_nr_domains(b, (uint32_t)e, place);
	return without >= nr_domains ||
	       without == balance_nr_domains(b, (uint32_t)e, BALANCE_NOBODY);
}

/* How many copies more it is that a place has that expert. */
static int32_t cost(const struct tern_balance *b, uint32_t place, uint32_t expert)
{
	return (b->was[place] != (int32_t)expert) -
	       (b->at[place] >= 0 && b->at[place] != b->was[place]);
}

/* By the square: what two copies take off one rank, they would take off two ranks one by one, and
 * few copies go further so (docs/balance.md). */
static double per_copy(double gain, int32_t copies)
{
	return copies > 1 ? gain / ((double)copies * copies) : gain;
}

/* So much more on so many ranks, whose loads add up to `loads`: by how much squares become more. */
static double more_squares(double loads, uint32_t nr, double more)
{
	return more * (2 * loads + nr * more);
}

/* What every expert would have in each place if it had one more, and what that takes off the
 * squares where it is now. */
static void look_ahead(struct tern_balance *b)
{
	for (uint32_t e = 0; e < b->nr_experts; e++) {
		double loads = 0;

		for (uint32_t p = b->head[e]; p != BALANCE_NOBODY; p = b->following[p])
			loads += b->rank_load[b->rank_of[p]];
		b->holders_load[e] = loads;
		b->share_ahead[e] = b->load[e] / (b->count[e] + 1);
		b->gain_ahead[e] =
			-more_squares(loads, b->count[e], b->share_ahead[e] - b->share[e]);
	}
}

/* A place that may get another expert: what its rank has without it, and what it costs the others
 * of its kind. */
struct vacancy {
	uint32_t place;
	double here, drops, loss;
};

static struct vacancy vacate(const struct tern_balance *b, uint32_t place)
{
	struct vacancy v = {.place = place, .here = b->rank_load[b->rank_of[place]]};
	int32_t old = b->at[place];

	if (old >= 0) {
		uint32_t others = b->count[old] - 1;

		v.drops = b->share[old];
		v.loss = more_squares(
			b->holders_load[old] - v.here, others, b->load[old] / others - v.drops);
	}
	return v;
}

/* A rank that has both the expert and what the place has now would gain a little more. */
static void try_place(const struct tern_balance *b, const struct vacancy *v, uint32_t expert,
	uint32_t left, struct change *best)
{
	double gain = b->gain_ahead[expert] - v->loss -
		      more_squares(v->here, 1, b->share_ahead[expert] - v->drops);

	if (gain > best->gain && cost(b, v->place, expert) <= (int32_t)left &&
		!balance_holds(b, b->rank_of[v->place], expert))
		*best = (struct change){v->place, expert, BALANCE_NOBODY, gain};
}

/* Replicas of what the busiest rank has, elsewhere. */
static void try_elsewhere(
	const struct tern_balance *b, uint32_t busy, uint32_t left, struct change *best)
{
	for (uint32_t p = 0; p < b->nr_places; p++) {
		uint32_t rank = b->rank_of[p];
		struct vacancy v;

		if (!b->alive[rank] || b->rank_load[rank] >= b->rank_load[busy] ||
			!may_drop(b, p, b->spread))
			continue;
		v = vacate(b, p);
		for (uint32_t i = b->first_place[busy]; i < b->first_place[busy + 1]; i++)
			if (b->at[b->places[i]] >= 0)
				try_place(b, &v, (uint32_t)b->at[b->places[i]], left, best);
	}
}

/* Less there, where what it has has replicas. */
static void try_less(
	const struct tern_balance *b, uint32_t busy, uint32_t left, struct change *best)
{
	for (uint32_t i = b->first_place[busy]; i < b->first_place[busy + 1]; i++) {
		struct vacancy v;

		if (!may_drop(b, b->places[i], b->spread))
			continue;
		v = vacate(b, b->places[i]);
		for (uint32_t e = 0; e < b->nr_experts; e++)
			try_place(b, &v, e, left, best);
	}
}

static bool may_swap(const struct tern_balance *b, uint32_t p, uint32_t q)
{
	return balance_may_move(b, (uint32_t)b->at[p], b->rank_of[p], b->rank_of[q], false) &&
	       balance_may_move(b, (uint32_t)b->at[q], b->rank_of[q], b->rank_of[p], false);
}

static void try_swap(const struct tern_balance *b, uint32_t p, uint32_t q, double over,
	uint32_t left, struct change *best)
{
	double d = b->share[b->at[p]] - b->share[b->at[q]], gain = 2 * d * (over - d);
	int32_t copies;

	if (gain / 2 <= best->gain)
		return;
	copies = cost(b, p, (uint32_t)b->at[q]) + cost(b, q, (uint32_t)b->at[p]);
	if (copies <= (int32_t)left && per_copy(gain, copies) > best->gain && may_swap(b, p, q))
		*best = (struct change){p, (uint32_t)b->at[q], q, per_copy(gain, copies)};
}

static void try_swaps(
	const struct tern_balance *b, uint32_t busy, uint32_t left, struct change *best)
{
	for (uint32_t r = 0; r < b->nr_ranks; r++) {
		double over = b->rank_load[busy] - b->rank_load[r];

		if (!b->alive[r] || over <= 0 || over * over / 2 <= best->gain) /* the most of d */
			continue;
		for (uint32_t i = b->first_place[busy]; i < b->first_place[busy + 1]; i++)
			for (uint32_t j = b->first_place[r]; j < b->first_place[r + 1]; j++)
				if (b->at[b->places[i]] >= 0 && b->at[b->places[j]] >= 0)
					try_swap(b, b->places[i], b->places[j], over, left, best);
	}
}

static uint32_t nr_copies(const struct tern_balance *b)
{
	uint32_t nr = 0;

	for (uint32_t p = 0; p < b->nr_places; p++)
		nr += b->at[p] >= 0 && b->at[p] != b->was[p];
	return nr;
}

static void take_change(struct tern_balance *b, const struct change *c)
{
	int32_t old = b->at[c->place];

	if (c->other != BALANCE_NOBODY)
		balance_drop(b, c->other);
	if (old >= 0)
		balance_drop(b, c->place);
	balance_put(b, c->place, c->expert);
	if (c->other != BALANCE_NOBODY)
		balance_put(b, c->other, (uint32_t)old);
}

/* ---- what no living rank holds --------------------------------------------------------------- */

/* Where nothing lies, else what may be dropped; of the rank with least that is in a domain without
 * the expert. For who is nowhere there is one: living ranks have room for all. */
static uint32_t find_place(const struct tern_balance *b, uint32_t expert, uint32_t nr_domains)
{
	uint32_t best = BALANCE_NOBODY;

	for (uint32_t p = 0; p < b->nr_places; p++) {
		uint32_t r = b->rank_of[p];

		if (!b->alive[r] || balance_domain_holds(b, r, expert) ||
			!may_drop(b, p, nr_domains))
			continue;
		if (best == BALANCE_NOBODY || (b->at[p] < 0) > (b->at[best] < 0) ||
			((b->at[p] < 0) == (b->at[best] < 0) &&
				b->rank_load[r] < b->rank_load[b->rank_of[best]]))
			best = p;
	}
	return best;
}

static void bring_back(struct tern_balance *b)
{
	for (uint32_t e = 0; e < b->nr_experts; e++) {
		struct change c = {.expert = e, .other = BALANCE_NOBODY};

		if (b->count[e])
			continue;
		c.place = find_place(b, e, 1);
		take_change(b, &c);
	}
}

/* Who is in too few domains, the busiest; BALANCE_NOBODY: nobody is. */
static uint32_t find_together(const struct tern_balance *b, uint32_t nr_domains)
{
	uint32_t best = BALANCE_NOBODY;

	for (uint32_t e = 0; e < b->nr_experts; e++)
		if (balance_nr_domains(b, e, BALANCE_NOBODY) < nr_domains &&
			(best == BALANCE_NOBODY || b->load[e] > b->load[best]))
			best = e;
	return best;
}

/* Nothing may be dropped in other domains: what lies there moves to where something may be. */
static bool make_room(struct tern_balance *b, uint32_t expert, uint32_t nr_domains, uint32_t *room)
{
	for (uint32_t p = 0; p < b->nr_places; p++) {
		if (!b->alive[b->rank_of[p]] || !may_drop(b, p, nr_domains))
			continue;
		for (uint32_t q = 0; q < b->nr_places; q++) {
			struct change c = {.place = p, .other = BALANCE_NOBODY};

			if (b->at[q] < 0 || balance_domain_holds(b, b->rank_of[q], expert) ||
				balance_domain_holds(b, b->rank_of[p], (uint32_t)b->at[q]))
				continue;
			c.expert = (uint32_t)b->at[q];
			take_change(b, &c);
			*room = q;
			return true;
		}
	}
	return false;
}

/* Replicas for experts that are in too few domains, busy ones first. */
static void bring_apart(struct tern_balance *b, uint32_t max_copies)
{
	uint32_t e;

	for (uint32_t level = 2; level <= b->spread; level++)
		while ((e = find_together(b, level)) != BALANCE_NOBODY) {
			struct change c = {.place = find_place(b, e, level),
				.expert = e,
				.other = BALANCE_NOBODY};

			if (nr_copies(b) + (c.place == BALANCE_NOBODY) >= max_copies ||
				(c.place == BALANCE_NOBODY && !make_room(b, e, level, &c.place)))
				return;
			take_change(b, &c);
		}
}

static bool find_change(struct tern_balance *b, uint32_t left, struct change *best)
{
	uint32_t busy = balance_busiest(b);

	*best = (struct change){.gain = 1e-12};
	look_ahead(b);
	try_swaps(b, busy, left, best);
	try_elsewhere(b, busy, left, best);
	try_less(b, busy, left, best);
	return best->gain > 1e-12;
}

void balance_by_copies(struct tern_balance *b, uint32_t max_copies)
{
	struct change c;

	b->twice = false;
	bring_back(b);
	bring_apart(b, max_copies);
	for (uint32_t n = 0; n < 4 * b->nr_places && balance_ratio(b) > GOOD_ENOUGH; n++) {
		uint32_t used = nr_copies(b);

		if (used >= max_copies || !find_change(b, max_copies - used, &c))
			return;
		take_change(b, &c);
	}
}

void balance_improve(struct tern_balance *b)
{
	struct change c, back;

	for (uint32_t n = 0; n < 4 * b->nr_places && balance_ratio(b) > GOOD_ENOUGH; n++) {
		double ratio = balance_ratio(b);

		if (!find_change(b, INT32_MAX, &c))
			return;
		back = c;
		back.expert = (uint32_t)b->at[c.place];
		take_change(b, &c);
		if (balance_ratio(b) < ratio)
			continue;
		take_change(b, &back);
		return;
	}
}
