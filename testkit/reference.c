/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/reference.h"
#include "testkit/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts and routes ---------------------------------------------------------------------- */

/* Contiguous blocks, the first nr % R ranks one more. */
static int32_t default_rank(uint32_t physical, uint32_t nr, uint32_t nr_ranks)
{
	uint32_t block = nr / nr_ranks, larger = nr % nr_ranks;
	uint32_t border = larger * (block + 1);

	if (physical < border)
		return (int32_t)(physical / (block + 1));
	return (int32_t)(larger + (physical - border) / block);
}

/* Which expert is where, of one version of the placement. */
static void name_experts(struct reference *reference, uint32_t version)
{
	uint32_t p, expert, nr = 0;

	job_place(reference->job, version, reference->logical);
	for (expert = 0; expert < reference->job->config.nr_experts; expert++) {
		reference->replica_start[expert] = nr;
		for (p = 0; p < reference->nr_physical; p++)
			if (reference->logical[p] == (int32_t)expert)
				reference->replicas[nr++] = (int32_t)p;
	}
	reference->replica_start[expert] = nr;
}

static void place_experts(struct reference *reference)
{
	const struct tern_placement *placement = &reference->job->config.placement;
	uint32_t p;

	for (p = 0; p < reference->nr_physical; p++) {
		int32_t rank =
			placement->nr_physical && placement->rank
				? placement->rank[p]
				: default_rank(p, reference->nr_physical, reference->job->nr_ranks);

		reference->rank[p] = rank;
		reference->local[p] = (int32_t)reference->nr_local[rank]++;
	}
	name_experts(reference, 0);
}

/* In turn: the replica on the source's own rank if there is one, else number (source + token) %
 * replicas. */
static int32_t replica_in_turn(
	const struct reference *reference, int32_t expert, uint32_t source, uint32_t token)
{
	uint32_t start = reference->replica_start[expert],
		 end = reference->replica_start[expert + 1];
	uint32_t i;

	for (i = start; i < end; i++)
		if (reference->rank[reference->replicas[i]] == (int32_t)source)
			return reference->replicas[i];
	return reference->replicas[start + (source + token) % (end - start)];
}

static uint32_t sent_to_rank_of(const struct reference *reference, int32_t physical)
{
	return reference->sent[reference->rank[physical]];
}

/* The one in turn, unless others are on ranks with less to do: then the first of those with the
 * least, from number (source + token) % replicas on. */
static int32_t replica_with_least(
	const struct reference *reference, int32_t expert, uint32_t source, uint32_t token)
{
	uint32_t start = reference->replica_start[expert], i,
		 nr = reference->replica_start[expert + 1] - start;
	int32_t best = replica_in_turn(reference, expert, source, token);
	uint32_t least = sent_to_rank_of(reference, best);

	for (i = source + token; i < source + token + nr; i++) {
		int32_t replica = reference->replicas[start + i % nr];

		if (sent_to_rank_of(reference, replica) < least) {
			least = sent_to_rank_of(reference, replica);
			best = replica;
		}
	}
	return best;
}

static bool is_in_turn(const struct reference *reference)
{
	const struct tern_moe_config *config = &reference->job->config;

	return config->replicas == TERN_REPLICAS_IN_TURN || config->device == TERN_DEVICE_CUDA;
}

static size_t route_index(const struct reference *reference, uint32_t home, uint32_t token)
{
	return ((size_t)home * reference->job->config.max_tokens + token) *
	       reference->job->config.topk;
}

/* First those that have one place to go to. */
void reference_route_home(struct reference *reference, uint32_t home)
{
	const struct job *job = reference->job;
	const int32_t *ids = reference->ids + route_index(reference, home, 0);
	int32_t *physical = reference->physical + route_index(reference, home, 0);
	uint32_t topk = job->config.topk;
	size_t route, nr = (size_t)reference->nr_tokens[home] * topk;

	memset(reference->sent, 0, job->nr_ranks * sizeof(*reference->sent));
	for (route = 0; route < nr; route++) {
		int32_t id = ids[route];
		uint32_t token = (uint32_t)(route / topk), copies;

		copies = id < 0 ? 0
				: reference->replica_start[id + 1] - reference->replica_start[id];
		physical[route] = -1;
		if (!copies || (copies > 1 && !is_in_turn(reference)))
			continue;
		physical[route] =
			replica_in_turn(reference, id, job_sender(job, home, token), token);
		reference->sent[reference->rank[physical[route]]]++;
	}
	for (route = 0; route < nr; route++) {
		uint32_t token = (uint32_t)(route / topk);

		if (ids[route] < 0 || physical[route] >= 0)
			continue;
		physical[route] = replica_with_least(
			reference, ids[route], job_sender(job, home, token), token);
		reference->sent[reference->rank[physical[route]]]++;
	}
}

void reference_set_round(struct reference *reference, uint64_t round)
{
	const struct job *job = reference->job;
	uint32_t home;

	reference->round = round;
	if (job->place_in)
		name_experts(reference, job_version(job, round));
	for (home = 0; home < job_nr_homes(job); home++) {
		uint32_t first_rank = home * job->config.replica_ranks;
		size_t start = route_index(reference, home, 0);

		reference->nr_tokens[home] = job_nr_tokens(job, round, first_rank);
		job_routes(
			job, round, first_rank, reference->ids + start, reference->weights + start);
		reference_route_home(reference, home);
	}
}

const int32_t *reference_physical(const struct reference *reference, uint32_t home, uint32_t token)
{
	return reference->physical + route_index(reference, home, token);
}

const float *reference_weights(const struct reference *reference, uint32_t home, uint32_t token)
{
	return reference->weights + route_index(reference, home, token);
}

static bool is_here(const struct reference *reference, int32_t physical, uint32_t rank)
{
	return physical >= 0 && reference->rank[physical] == (int32_t)rank;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool allocate(struct reference *reference)
{
	const struct tern_moe_config *config = &reference->job->config;
	uint32_t nr_homes = job_nr_homes(reference->job);
	size_t routes = (size_t)nr_homes * config->max_tokens * config->topk + 1; /* not 0: calloc
										     might return
										     NULL */

	reference->logical = calloc(reference->nr_physical, sizeof(*reference->logical));
	reference->rank = calloc(reference->nr_physical, sizeof(*reference->rank));
	reference->local = calloc(reference->nr_physical, sizeof(*reference->local));
	reference->replicas = calloc(reference->nr_physical, sizeof(*reference->replicas));
	reference->replica_start =
		calloc(config->nr_experts + 1, sizeof(*reference->replica_start));
	reference->nr_local = calloc(reference->job->nr_ranks, sizeof(*reference->nr_local));
	reference->sent = calloc(reference->job->nr_ranks, sizeof(*reference->sent));
	reference->nr_tokens = calloc(nr_homes, sizeof(*reference->nr_tokens));
	reference->ids = calloc(routes, sizeof(*reference->ids));
	reference->physical = calloc(routes, sizeof(*reference->physical));
	reference->weights = calloc(routes, sizeof(*reference->weights));
	reference->values = calloc(config->hidden, sizeof(*reference->values));
	reference->partial = calloc(config->hidden, sizeof(*reference->partial));
	reference->sum = calloc(config->hidden, sizeof(*reference->sum));
	reference->elements = calloc(config->hidden, 1);
	reference->scales = calloc(job_nr_blocks(reference->job), sizeof(float));
	reference->row = calloc(config->hidden, sizeof(float));
	return reference->logical && reference->rank && reference->local && reference->replicas &&
	       reference->replica_start && reference->nr_local && reference->sent &&
	       reference->nr_tokens && reference->ids && reference->physical &&
	       reference->weights && reference->values && reference->partial && reference->sum &&
	       reference->elements && reference->scales && reference->row;
}

struct reference *reference_create(const struct job *job)
{
	struct reference *reference = calloc(1, sizeof(*reference));
	uint32_t nr_physical = job->config.placement.nr_physical;

	if (!reference)
		return NULL;
	reference->job = job;
	reference->nr_physical = nr_physical ? nr_physical : job->config.nr_experts;
	if (!allocate(reference)) {
		reference_destroy(reference);
		return NULL;
	}
	place_experts(reference);
	reference_set_round(reference, 0);
	return reference;
}

void reference_destroy(struct reference *reference)
{
	if (!reference)
		return;
	free(reference->logical);
	free(reference->rank);
	free(reference->local);
	free(reference->replicas);
	free(reference->replica_start);
	free(reference->nr_local);
	free(reference->sent);
	free(reference->nr_tokens);
	free(reference->ids);
	free(reference->physical);
	free(reference->weights);
	free(reference->values);
	free(reference->partial);
	free(reference->sum);
	free(reference->elements);
	free(reference->scales);
	free(reference->row);
	free(reference);
}

/* ---- layout ---------------------------------------------------------------------------------- */

struct walk {
	const struct reference *reference;
	uint32_t rank;
	struct received_layout *layout;
	place_visitor visit;
	void *ctx;
};

/* One token's rows: one for each route that ends here, or one for all of them in TERN_BY_SOURCE. */
static int walk_token(const struct walk *walk, struct place *place)
{
	const struct reference *reference = walk->reference;
	const struct tern_moe_config *config = &reference->job->config;
	const int32_t *physical = reference_physical(reference, place->home, place->token);
	const float *weights = reference_weights(reference, place->home, place->token);
	bool by_source = config->layout == TERN_BY_SOURCE;
	bool first = true;
	uint32_t k;
	int status = 0;

	for (k = 0; k < config->topk && !status && (first || !by_source); k++) {
		if (!is_here(reference, physical[k], walk->rank))
			continue;
		place->group = by_source ? place->source : (uint32_t)reference->local[physical[k]];
		place->k = by_source ? -1 : (int32_t)k;
		place->expert = by_source ? config->nr_experts + walk->rank
					  : (uint32_t)reference->logical[physical[k]];
		place->weight = by_source ? 0 : weights[k];
		place->position = walk->layout->next[place->group]++;
		status = walk->visit(walk->ctx, place, first);
		first = false;
	}
	return status;
}

static int walk_all(const struct walk *walk)
{
	const struct job *job = walk->reference->job;
	uint32_t source, token, step = job->config.replica_ranks;
	int status = 0;

	for (source = 0; source < job->nr_ranks; source++) {
		uint32_t home = job_home(job, source);

		for (token = source % step; token < walk->reference->nr_tokens[home];
			token += step) {
			struct place place = {.source = source, .home = home, .token = token};

			status = walk_token(walk, &place);
			if (status)
				return status;
		}
	}
	return status;
}

int reference_walk(const struct reference *reference, uint32_t rank, struct received_layout *layout,
	place_visitor visit, void *ctx)
{
	struct walk walk = {reference, rank, layout, visit, ctx};

	memcpy(layout->next, layout->offsets, layout->nr_groups * sizeof(*layout->next));
	return walk_all(&walk);
}

static int count_place(void *ctx, const struct place *place, bool first_of_token)
{
	struct received_layout *layout = ctx;

	(void)first_of_token;
	layout->counts[place->group]++;
	layout->nr_rows++;
	return 0;
}

static uint64_t align_up(uint64_t rows, uint32_t alignment)
{
	return alignment ? (rows + alignment - 1) / alignment * alignment : rows;
}

/* PADDED: the most rows of one expert, by default what all sources together can send. */
static uint64_t padded_capacity(const struct job *job)
{
	uint32_t n = job->config.replica_ranks;

	if (job->config.capacity)
		return job->config.capacity;
	return (uint64_t)job->nr_ranks * ((job->config.max_tokens + n - 1) / n);
}

static void place_groups(const struct job *job, struct received_layout *layout)
{
	uint64_t capacity = padded_capacity(job);
	uint32_t i;

	for (i = 0; i < layout->nr_groups; i++) {
		if (job->config.layout == TERN_PADDED)
			layout->offsets[i] = i * capacity;
		else if (job->config.layout == TERN_CONTIGUOUS)
			layout->offsets[i] = align_up(layout->end, job->config.alignment);
		else
			layout->offsets[i] = layout->end;
		layout->end = layout->offsets[i] +
			      (job->config.layout == TERN_PADDED ? capacity : layout->counts[i]);
	}
}

int received_layout_create(
	const struct reference *reference, uint32_t rank, struct received_layout *layout)
{
	const struct job *job = reference->job;
	struct walk walk = {reference, rank, layout, count_place, layout};

	memset(layout, 0, sizeof(*layout));
	layout->nr_groups =
		job->config.layout == TERN_BY_SOURCE ? job->nr_ranks : reference->nr_local[rank];
	layout->counts = calloc(layout->nr_groups + 1, sizeof(*layout->counts));
	layout->offsets = calloc(layout->nr_groups + 1, sizeof(*layout->offsets));
	layout->next = calloc(layout->nr_groups + 1, sizeof(*layout->next));
	if (!layout->counts || !layout->offsets || !layout->next) {
		received_layout_destroy(layout);
		return -1;
	}
	walk_all(&walk);
	place_groups(job, layout);
	return 0;
}

void received_layout_destroy(struct received_layout *layout)
{
	free(layout->counts);
	free(layout->offsets);
	free(layout->next);
	memset(layout, 0, sizeof(*layout));
}

void reference_received_row(struct reference *reference, uint32_t home, uint32_t token,
	const void **x, const void **scales)
{
	const struct job *job = reference->job;
	const struct tern_moe_config *config = &job->config;

	*x = job_x_row(job, reference->round, home, token);
	*scales = config->x_dtype == TERN_FP8_E4M3
			  ? job_scales_row(job, reference->round, home, token)
			  : NULL;
	if (config->dispatch_dtype == config->x_dtype)
		return;
	decode_row(config->x_dtype, *x, reference->values, config->hidden);
	reference_quantise(config->scale, reference->values, config->hidden, reference->elements,
		reference->scales);
	*x = reference->elements;
	*scales = reference->scales;
}

void reference_local_ids(const struct reference *reference, uint32_t rank, uint32_t home,
	uint32_t token, int32_t *local)
{
	const int32_t *physical = reference_physical(reference, home, token);
	uint32_t k;

	for (k = 0; k < reference->job->config.topk; k++)
		local[k] =
			is_here(reference, physical[k], rank) ? reference->local[physical[k]] : -1;
}

/* ---- combine --------------------------------------------------------------------------------- */

/* sum + weight * row, rounded once. */
static void add_row(struct reference *reference, const void *row, const float *weight, float *sum)
{
	uint32_t i, hidden = reference->job->config.hidden;

	decode_row(reference->job->config.combine_dtype, row, reference->values, hidden);
	for (i = 0; i < hidden; i++)
		sum[i] = weight ? fmaf(*weight, reference->values[i], sum[i])
				: sum[i] + reference->values[i];
}

static bool is_weighted(const struct reference *reference)
{
	return reference->weighting == WEIGHTED_AT_COMBINE ||
	       (reference->weighting == WEIGHTED_AS_MADE &&
		       reference->job->config.weights == TERN_WEIGHTS_COMBINE);
}

/* The routes of one token that end on one rank, in k order; in TERN_REDUCE_HOME all routes,
 * whatever their rank. */
static void add_routes(
	struct reference *reference, uint32_t home, uint32_t token, int32_t rank, float *sum)
{
	const struct job *job = reference->job;
	const int32_t *physical = reference_physical(reference, home, token);
	const float *weights = reference_weights(reference, home, token);
	uint32_t k;

	for (k = 0; k < job->config.topk; k++) {
		float own = reference->weighting == WEIGHTED_AT_COMBINE
				    ? job_combine_weight(job, reference->round, home, token, k)
				    : weights[k];
		uint32_t logical = physical[k] < 0 ? 0 : (uint32_t)reference->logical[physical[k]];

		if (physical[k] < 0 || (rank >= 0 && reference->rank[physical[k]] != rank))
			continue;
		add_row(reference, job_y_row(job, reference->round, logical, home, token),
			is_weighted(reference) ? &own : NULL, sum);
	}
}

/* What one rank sends home for a token: its routes summed, and rounded for the way. */
static void add_partial(struct reference *reference, uint32_t home, uint32_t token, int32_t rank)
{
	const struct job *job = reference->job;
	uint32_t hidden = job->config.hidden, expert = job->config.nr_experts + (uint32_t)rank;

	if (job->config.layout == TERN_BY_SOURCE) { /* the caller has summed */
		add_row(reference, job_y_row(job, reference->round, expert, home, token), NULL,
			reference->sum);
		return;
	}
	memset(reference->partial, 0, hidden * sizeof(float));
	add_routes(reference, home, token, rank, reference->partial);
	encode_row(job->config.combine_dtype, reference->partial, reference->row, hidden);
	add_row(reference, reference->row, NULL, reference->sum);
}

const void *reference_combined_row(struct reference *reference, uint32_t home, uint32_t token)
{
	const struct job *job = reference->job;
	const int32_t *physical = reference_physical(reference, home, token);
	uint32_t k, rank;

	memset(reference->sum, 0, job->config.hidden * sizeof(float));
	if (job->config.reduce == TERN_REDUCE_HOME)
		add_routes(reference, home, token, -1, reference->sum);
	for (rank = 0; job->config.reduce == TERN_REDUCE_EXPERT && rank < job->nr_ranks; rank++) {
		for (k = 0; k < job->config.topk && !is_here(reference, physical[k], rank); k++)
			;
		if (k < job->config.topk)
			add_partial(reference, home, token, (int32_t)rank);
	}
	encode_row(job->config.combine_dtype, reference->sum, reference->row, job->config.hidden);
	return reference->row;
}
