/* SPDX-License-Identifier: Apache-2.0 */
#include "balance/state.h"

#include <string.h>

/* All its ranks carry the same more, or less. */
static void change_share(struct tern_balance *b, uint32_t expert)
{
	double before = b->share[expert], more;

	b->share[expert] = b->count[expert] ? b->load[expert] / b->count[expert] : 0;
	more = b->share[expert] - before;
	for (uint32_t p = b->head[expert]; p != BALANCE_NOBODY; p = b->following[p])
		b->rank_load[b->rank_of[p]] += more;
}

void balance_put(struct tern_balance *b, uint32_t place, uint32_t expert)
{
	b->count[expert]++;
	change_share(b, expert);
	b->at[place] = (int32_t)expert;
	b->following[place] = b->head[expert];
	b->head[expert] = place;
	b->rank_load[b->rank_of[place]] += b->share[expert];
}

void balance_drop(struct tern_balance *b, uint32_t place)
{
	uint32_t expert = (uint32_t)b->at[place], *link = &b->head[expert];

	while (*link != place)
		link = &b->following[*link];
	*link = b->following[place];
	b->at[place] = -1;
	b->rank_load[b->rank_of[place]] -= b->share[expert];
	b->count[expert]--;
	change_share(b, expert);
}

void balance_take(struct tern_balance *b, const int32_t *at)
{
	for (uint32_t e = 0; e < b->nr_experts; e++) {
		b->head[e] = BALANCE_NOBODY;
		b->count[e] = 0;
		b->share[e] = 0;
	}
	memset(b->rank_load, 0, b->nr_ranks * sizeof(*b->rank_load));
	for (uint32_t p = 0; p < b->nr_places; p++) {
		b->at[p] = -1;
		if (at && at[p] >= 0)
			balance_put(b, p, (uint32_t)at[p]);
	}
}

bool balance_holds(const struct tern_balance *b, uint32_t rank, uint32_t expert)
{
	for (uint32_t p = b->head[expert]; p != BALANCE_NOBODY; p = b->following[p])
		if (b->rank_of[p] == rank)
			return true;
	return false;
}

bool balance_domain_holds(const struct tern_balance *b, uint32_t rank, uint32_t expert)
{
	for (uint32_t p = b->head[expert]; p != BALANCE_NOBODY; p = b->following[p])
		if (b->domain[b->rank_of[p]] == b->domain[rank])
			return true;
	return false;
}

bool balance_may_move(
	const struct tern_balance *b, uint32_t expert, uint32_t from, uint32_t to, bool twice)
{
	if (!twice && balance_holds(b, to, expert))
		return false;
	return b->spread < 2 || b->domain[from] == b->domain[to] ||
	       !balance_domain_holds(b, to, expert);
}

uint32_t balance_nr_domains(const struct tern_balance *b, uint32_t expert, uint32_t but)
{
	uint32_t nr = 0;

	for (uint32_t p = b->head[expert]; p != BALANCE_NOBODY; p = b->following[p]) {
		uint32_t before = b->head[expert];

		while (before != p && (before == but || b->domain[b->rank_of[before]] !=
								b->domain[b->rank_of[p]]))
			before = b->following[before];
		nr += before == p && p != but;
	}
	return nr;
}

bool balance_is_whole(const struct tern_balance *b)
{
	for (uint32_t e = 0; e < b->nr_experts; e++)
		if (!b->count[e])
			return false;
	return true;
}

uint32_t balance_busiest(const struct tern_balance *b)
{
	uint32_t best = BALANCE_NOBODY;

	for (uint32_t r = 0; r < b->nr_ranks; r++)
		if (b->alive[r] && (best == BALANCE_NOBODY || b->rank_load[r] > b->rank_load[best]))
			best = r;
	return best;
}

double balance_ratio(const struct tern_balance *b)
{
	return b->rank_load[balance_busiest(b)] * b->nr_alive;
}
