/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/exchange/expected_stats.h"

static void expected_token(struct expected_stats *expected, const struct reference *ref,
	uint32_t sender, const int32_t *physical)
{
	bool seen[256] = {false}, away = false; /* by rank */

	for (uint32_t k = 0; k < ref->job->config.topk; k++) {
		uint32_t to;

		if (physical[k] < 0)
			continue;
		to = (uint32_t)ref->rank[physical[k]];
		expected->stats.routes++;
		expected->load[ref->logical[physical[k]]]++;
		expected->stats.rows += !seen[to];
		expected->stats.rows_away += !seen[to] && to != sender;
		away |= to != sender;
		seen[to] = true;
	}
	expected->stats.tokens++;
	expected->stats.tokens_away += away;
}

/* What this rank's experts send home for a token. */
static void expected_results(struct expected_stats *expected, const struct reference *ref,
	uint32_t rank, const int32_t *physical, bool released)
{
	const struct tern_moe_config *c = &ref->job->config;
	uint32_t here = 0;

	for (uint32_t k = 0; k < c->topk; k++)
		here += physical[k] >= 0 && ref->rank[physical[k]] == (int32_t)rank;
	expected->stats.rows_received += c->layout == TERN_BY_SOURCE ? here > 0 : here;
	if (c->reduce == TERN_REDUCE_EXPERT)
		here = here > 0;
	expected->results += released ? 0 : here * c->replica_ranks;
}

void expected_round(
	struct expected_stats *expected, const struct reference *ref, uint32_t rank, bool released)
{
	const struct job *job = ref->job;

	expected->stats.rounds++;
	for (uint32_t home = 0; home < job_nr_homes(job); home++)
		for (uint32_t t = 0; t < ref->nr_tokens[home]; t++) {
			const int32_t *physical = reference_physical(ref, home, t);

			if (job_sender(job, home, t) == rank)
				expected_token(expected, ref, rank, physical);
			expected_results(expected, ref, rank, physical, released);
		}
}

void expected_bytes(struct expected_stats *expected, uint64_t row_bytes, uint64_t route_bytes,
	uint64_t result_bytes)
{
	expected->stats.dispatch_bytes =
		expected->stats.rows * row_bytes + expected->stats.routes * route_bytes;
	expected->stats.combine_bytes = expected->results * result_bytes;
}

int expected_compare(const struct expected_stats *want, struct rank *rank, const tern_moe *moe,
	uint32_t nr_experts)
{
	struct tern_stats s = {.size = sizeof(s)};
	uint64_t load[TALLY_MOST_EXPERTS];

	if (tern_moe_stats(moe, &s) || tern_moe_expert_load(moe, load, nr_experts))
		return rank_fails(rank, "%s", tern_last_error());
#define SAME(field)                                                                                \
	if (s.field != want->stats.field)                                                          \
	return rank_fails(rank, #field " is %llu, counted %llu", (unsigned long long)s.field,      \
		(unsigned long long)want->stats.field)
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
			return rank_fails(rank, "expert %u: load %llu, counted %llu", e,
				(unsigned long long)load[e], (unsigned long long)want->load[e]);
	return 0;
}
