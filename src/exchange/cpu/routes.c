/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/routes.h"

#include <string.h>

#include "base/error.h"
#include "exchange/plan.h"

static int64_t topk_id(const struct tern_dispatch *args, size_t index)
{
	return args->topk_ids_bits == 64 ? ((const int64_t *)args->topk_ids)[index]
					 : ((const int32_t *)args->topk_ids)[index];
}

/* A route whose replica is chosen when all that have one place alone are counted. */
static int32_t route_put_off(int64_t id)
{
	return -2 - (int32_t)id;
}

/* With as many places as experts each has one: there is nothing to choose. */
static bool chooses_by_load(const tern_moe *moe)
{
	return moe->config.replicas != TERN_REPLICAS_IN_TURN &&
	       moe->placement.nr_physical > moe->config.nr_experts;
}

/* By load, of token t: the only place, or put off. */
static int32_t first_choice(tern_moe *moe, uint32_t id, uint32_t t)
{
	const struct placement *p = &moe->placement;
	uint32_t physical;

	if (placement_nr_replicas(p, id) > 1)
		return route_put_off(id);
	physical = placement_choose(p, id, token_source(moe, t), t);
	if (physical != PLACEMENT_NOBODY)
		moe->rank_load[p->rank[physical]]++;
	return (int32_t)physical;
}

/* In the order of tokens: the same on all ranks that pass the same tokens, and again when the round
 * is made again. */
static void choose_replicas(tern_moe *moe, struct slot *s, uint32_t nr_tokens)
{
	const struct placement *p = &moe->placement;
	uint32_t topk = moe->config.topk;

	for (uint32_t t = 0; t < nr_tokens; t++)
		for (uint32_t k = 0; k < topk; k++) {
			int32_t *route = &s->physical[(size_t)t * topk + k];

			if (*route >= -1)
				continue;
			*route = (int32_t)placement_choose_least(p, (uint32_t)(-2 - *route),
				token_source(moe, t), t, moe->rank_load);
			moe->rank_load[p->rank[*route]]++;
		}
}

int routes_read(tern_moe *moe, struct slot *s, const struct tern_dispatch *args)
{
	uint32_t topk = moe->config.topk;
	bool by_load = chooses_by_load(moe);

	memset(moe->seen, 0, moe->config.nr_experts * sizeof(*moe->seen));
	if (by_load)
		memset(moe->rank_load, 0, moe->nr_ranks * sizeof(*moe->rank_load));
	for (uint32_t t = 0; t < args->nr_tokens; t++)
		for (uint32_t k = 0; k < topk; k++) {
			size_t index = (size_t)t * topk + k;
			int64_t id = topk_id(args, index);

			if (id < -1 || id >= (int64_t)moe->config.nr_experts)
				return fail(TERN_ERR_INVALID,
					"dispatch: topk_ids[%u][%u] is %lld; experts are 0 to %u, "
					"or -1",
					t, k, (long long)id, moe->config.nr_experts - 1);
			s->physical[index] = -1;
			if (id < 0)
				continue;
			if (moe->seen[id] == t + 1)
				return fail(TERN_ERR_INVALID,
					"dispatch: topk_ids[%u] names expert %lld twice, again at "
					"column %u",
					t, (long long)id, k);
			moe->seen[id] = t + 1;
			s->physical[index] =
				by_load ? first_choice(moe, (uint32_t)id, t)
					: (int32_t)placement_choose(&moe->placement, (uint32_t)id,
						  token_source(moe, t), t);
		}
	if (by_load)
		choose_replicas(moe, s, args->nr_tokens);
	return 0;
}

static void count_rows(tern_moe *moe, struct slot *s)
{
	struct token_rows rows;
	uint32_t topk = moe->config.topk;

	memset(s->rows_to, 0, moe->nr_ranks * sizeof(*s->rows_to));
	memset(s->rows_home, 0, moe->nr_ranks * sizeof(*s->rows_home));
	memset(s->home_start, 0,
		(size_t)moe->nr_ranks * moe->config.replica_ranks * sizeof(*s->home_start));
	memset(s->routes_to, 0, moe->placement.nr_physical * sizeof(*s->routes_to));
	for (uint32_t t = 0; t < s->nr_tokens; t++) {
		const int32_t *physical = s->physical + (size_t)t * topk;
		bool mine = token_source(moe, t) == moe->rank;

		plan_token(&moe->placement, physical, topk, &rows);
		for (uint32_t i = 0; i < rows.nr_rows; i++) {
			s->rows_home[rows.rows[i].rank]++;
			s->rows_to[rows.rows[i].rank] += mine;
			*home_counter(moe, s->home_start, rows.rows[i].rank, t) +=
				results_of_row(moe, rows.rows[i].nr);
		}
		for (uint32_t k = 0; k < topk && mine; k++)
			if (physical[k] >= 0)
				s->routes_to[physical[k]]++;
	}
}

/* From how many results to where they begin: by expert's rank, then by the replica that sent the
 * token. So what comes from one rank lies together, in the order of its tokens. With masks each
 * rank has a place of its own: what comes from one that is masked spoils nothing. */
static void place_results(tern_moe *moe, struct slot *s)
{
	uint32_t next = 0;

	for (uint32_t i = 0; i < moe->nr_ranks * moe->config.replica_ranks; i++) {
		uint32_t results = s->home_start[i];

		s->home_start[i] = next;
		next += moe->config.masks ? layout_results_of_rank(&moe->layout, &moe->config)
					  : results;
	}
}

void routes_count(tern_moe *moe, struct slot *s, const struct tern_dispatch *args)
{
	size_t routes = (size_t)args->nr_tokens * moe->config.topk;

	s->nr_tokens = args->nr_tokens;
	for (size_t i = 0; i < routes; i++)
		s->weights[i] = args->topk_weights ? args->topk_weights[i] : 1.0f;
	count_rows(moe, s);
	place_results(moe, s);
}

/* A row is stored once for each rank, or straight into every place where it belongs. */
uint64_t routes_bytes(const tern_moe *moe, const struct slot *s)
{
	const struct layout *l = &moe->layout;
	bool in_place =
		moe->config.mode == TERN_HIGH_THROUGHPUT && moe->config.layout != TERN_BY_SOURCE;
	uint64_t rows = 0, routes = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		rows += s->rows_to[r];
	for (uint32_t p = 0; p < moe->placement.nr_physical; p++)
		routes += s->routes_to[p];
	return rows * l->header_bytes +
	       (in_place ? routes : rows) * ((uint64_t)l->payload_bytes + l->scales_bytes);
}

void routes_account(tern_moe *moe, const struct slot *s)
{
	struct tern_stats *stats = &moe->stats;
	uint32_t topk = moe->config.topk;
	uint64_t rows = 0, routes = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		rows += s->rows_to[r];
	for (uint32_t p = 0; p < moe->placement.nr_physical; p++) {
		routes += s->routes_to[p];
		moe->expert_load[moe->placement.logical[p]] += s->routes_to[p];
	}
	stats->rounds++;
	stats->routes += routes;
	stats->rows += rows;
	stats->rows_away += rows - s->rows_to[moe->rank];
	stats->dispatch_bytes += routes_bytes(moe, s);
	for (uint32_t t = moe->rank - home_first(moe, moe->rank); t < s->nr_tokens;
		t += moe->config.replica_ranks) {
		bool away = false;

		for (uint32_t k = 0; k < topk; k++) {
			int32_t p = s->physical[(size_t)t * topk + k];

			away |= p >= 0 && moe->placement.rank[p] != moe->rank;
		}
		stats->tokens++;
		stats->tokens_away += away;
	}
}
