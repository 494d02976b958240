/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/exchange/tally.h"

static void tally_token(struct tally *tally, const struct reference *ref, uint32_t sender, const int32_t *physical)
{
	bool seen[256] = {false}, away = false; /* by rank */

	for (uint32_t k = 0; k < ref->job->config.topk; k++) {
		uint32_t to;

		if (physical[k] < 0)
			continue;
		to = (uint32_t)ref->rank[physical[k]];
		tally->stats.routes++;
		tally->load[ref->logical[physical[k]]]++;
		tally->stats.rows += !seen[to];
		tally->stats.rows_away += !seen[to] && to != sender;
		away |= to != sender;
		seen[to] = true;
	}
	tally->stats.tokens++;
	tally->stats.tokens_away += away;
}

/* What this rank's experts send home for a token. */
static void tally_results(struct tally *tally, const struct reference *ref, uint32_t rank, const int32_t *physical, bool released)
{
	const struct tern_moe_config *c = &ref->job->config;
	uint32_t here = 0;

	for (uint32_t k = 0; k < c->topk; k++)
		here += physical[k] >= 0 && ref->rank[physical[k]] == (int32_t)rank;
	tally->stats.rows_received += c->layout == TERN_BY_SOURCE ? here > 0 : here;
	if (c->reduce == TERN_REDUCE_EXPERT)
		here = here > 0;
	tally->results += released ? 0 : here * c->replica_ranks;
}

void tally_round(struct tally *tally, const struct reference *ref, uint32_t rank, bool released)
{
	const struct job *job = ref->job;

	tally->stats.rounds++;
	for (uint32_t home = 0; home < job_nr_homes(job); home++)
		for (uint32_t t = 0; t < ref->nr_tokens[home]; t++) {
			const int32_t *physical = reference_physical(ref, home, t);

			if (job_sender(job, home, t) == rank)
				tally_token(tally, ref, rank, physical);
			tally_results(tally, ref, rank, physical, released);
		}
}

void tally_bytes(struct tally *tally, uint64_t row_bytes, uint64_t route_bytes, uint64_t result_bytes)
{
	tally->stats.dispatch_bytes = tally->stats.rows * row_bytes + tally->stats.routes * route_bytes;
	tally->stats.combine_bytes = tally->results * result_bytes;
}

int tally_compare(const struct tally *want, struct rank *rank, const tern_moe *moe, uint32_t nr_experts)
{
	struct tern_stats s = {.size = sizeof(s)};
	uint64_t load[TALLY_MOST_EXPERTS];

	if (tern_moe_stats(moe, &s) || tern_moe_expert_load(moe, load, nr_experts))
		return rank_fails(rank, "%s", tern_last_error());
#define SAME(field)                                                                                                          \
	if (s.field != want->stats.field)                                                                                    \
		return rank_fails(rank, #field " is %llu, counted %llu", (unsigned long long)s.field, (unsigned long long)want->stats.field)
	SAME(rounds);
	SAME(tokens);
	SAME(routes);
	SAME(rows);
	SAME(rows_away);
	SAME(tokens_away);
	SAME(dispatch_bytes);
	SAME(combine_bytes);
	SAME(rows_received);
#undef SAME
	for (uint32_t e = 0; e < nr_experts; e++)
		if (load[e] != want->load[e])
			return rank_fails(rank, "expert %u: load %llu, counted %llu", e, (unsigned long long)load[e], (unsigned long long)want->load[e]);
	return 0;
}
