/* SPDX-License-Identifier: Apache-2.0 */
#include "homes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tern_weights.h"

#define SILENCE_MS 300 /* of a source, which may have died unnoticed */
#define NAP_NS 100000

struct homes {
	uint32_t nr_experts, nr_ranks, rank, nr_home, nr_places; /* the last two of this rank */
	uint32_t nr_physical, first; /* places of all; this rank's first */
	int32_t *logical, *rank_of;  /* [nr_physical] the placement of `serving` */
	int32_t *weights;            /* [nr_physical] experts whose weights lie there; -1: none */
	int32_t *brought;            /* [nr_places] those that do lie in this rank's places */
	uint64_t serving[4];
	struct homes_config config;
	tern_engine *engine;
	tern_weight_store *store; /* NULL: the checkpoint alone */
	struct expert loaded;     /* the last one that the store took from the checkpoint */
	uint32_t loaded_layer;
	int32_t loaded_expert; /* -1: none */
	uint32_t nr_loaded;
	struct fault fault; /* of loading */
	uint32_t layer;     /* whose backups are made next; from nr_layers on: none are missing */
	uint64_t ticket;    /* of those; 0: not begun */
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool serves(const struct homes *homes, uint32_t rank)
{
	return homes->serving[rank / 64] >> rank % 64 & 1;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static uint32_t first_at_home(const struct homes *homes, uint32_t rank)
{
	return (rank * homes->nr_experts + homes->nr_ranks - 1) / homes->nr_ranks;
}

static uint32_t nr_at_home(const struct homes *homes, uint32_t rank)
{
	return first_at_home(homes, rank + 1) - first_at_home(homes, rank);
}

/* For one rank that is missing. */
static uint32_t nr_spare(const struct homes *homes)
{
	uint32_t most = (homes->nr_experts + homes->nr_ranks - 1) / homes->nr_ranks,
		 others = homes->nr_ranks - 1;

	return others ? (most + others - 1) / others : 0;
}

static uint32_t first_place(const struct homes *homes, uint32_t rank)
{
	return first_at_home(homes, rank) + rank * nr_spare(homes);
}

/* A spare place that is free, on the next rank that serves and has one; -1: none. */
static int64_t find_spare(const struct homes *homes, uint32_t rank)
{
	for (uint32_t i = 0; i < homes->nr_ranks; i++) {
		uint32_t r = (rank + i) % homes->nr_ranks;

		for (uint32_t p = first_place(homes, r) + nr_at_home(homes, r);
			serves(homes, r) && p < first_place(homes, r + 1); p++)
			if (homes->weights[p] < 0)
				return p;
	}
	return -1;
}

static void place_at_home(struct homes *homes, uint32_t rank)
{
	uint32_t first = first_place(homes, rank), nr = nr_at_home(homes, rank);

	for (uint32_t i = 0; first + i < first_place(homes, rank + 1); i++) {
		uint32_t p = first + i, at = nr ? i % nr : 0;

		homes->rank_of[p] = (int32_t)rank;
		homes->logical[p] =
			nr ? (int32_t)(first_at_home(homes, rank) + at) : 0; /* nobody's,
										then */
		homes->weights[p] = i < nr ? homes->logical[p] : -1;
	}
}

/* Experts of who does not serve go to the others in turn. Without a place they stay where they are
 * lost, and rounds say so. */
static void place_all(struct homes *homes)
{
	for (uint32_t r = 0; r < homes->nr_ranks; r++)
		place_at_home(homes, r);
	for (uint32_t r = 0; r < homes->nr_ranks; r++) {
		for (uint32_t i = 0; i < nr_at_home(homes, r) && !serves(homes, r); i++) {
			int64_t p = find_spare(homes, r + 1 + i);

			if (p >= 0)
				homes->logical[p] = homes->weights[p] =
					(int32_t)(first_at_home(homes, r) + i);
		}
	}
}

struct homes *homes_create(uint32_t nr_experts, uint32_t nr_ranks, uint32_t rank)
{
	struct homes *homes = calloc(1, sizeof(*homes));

	if (!homes)
		return NULL;
	homes->nr_experts = nr_experts;
	homes->nr_ranks = nr_ranks;
	homes->rank = rank;
	homes->nr_home = nr_at_home(homes, rank);
	homes->first = first_place(homes, rank);
	homes->nr_places = first_place(homes, rank + 1) - homes->first;
	homes->nr_physical = first_place(homes, nr_ranks);
	homes->loaded_expert = -1;
	homes->logical = calloc(homes->nr_physical, sizeof(*homes->logical));
	homes->rank_of = calloc(homes->nr_physical, sizeof(*homes->rank_of));
	homes->weights = calloc(homes->nr_physical, sizeof(*homes->weights));
	homes->brought = calloc(homes->nr_places + 1, sizeof(*homes->brought));
	if (!homes->logical || !homes->rank_of || !homes->weights || !homes->brought) {
		homes_destroy(homes);
		return NULL;
	}
	for (uint32_t r = 0; r < nr_ranks; r++)
		homes->serving[r / 64] |= 1ull << r % 64;
	place_all(homes);
	memcpy(homes->brought, homes->weights + homes->first,
		homes->nr_places * sizeof(*homes->brought));
	return homes;
}

void homes_destroy(struct homes *homes)
{
	if (!homes)
		return;
	while (homes->store && tern_weights_destroy(homes->store) == TERN_ERR_TIMEOUT)
		;
	tern_engine_destroy(homes->engine);
	expert_destroy(&homes->loaded);
	free(homes->logical);
	free(homes->rank_of);
	free(homes->weights);
	free(homes->brought);
	free(homes);
}

struct tern_placement homes_placement(const struct homes *homes)
{
	return (struct tern_placement){.nr_physical = homes->nr_physical,
		.logical = homes->logical,
		.rank = homes->rank_of};
}

const int32_t *homes_mine(const struct homes *homes, uint32_t *nr_home, uint32_t *nr_places)
{
	*nr_home = homes->nr_home;
	*nr_places = homes->nr_places;
	return homes->logical + homes->first;
}

uint32_t homes_version(const struct homes *homes)
{
	uint64_t set = 0;

	for (int i = 0; i < 4; i++)
		set = (set ^ homes->serving[i]) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(set >> 32) | 1;
}

uint32_t homes_weights(const struct homes *homes, uint32_t local)
{
	bool empty = homes->weights[homes->first + local] < 0;

	return empty ? (local % (homes->nr_home ? homes->nr_home : 1)) : local;
}

/* ---- the store ------------------------------------------------------------------------------- */

static int store_failed(struct fault *fault, const char *doing, int rc)
{
	return fault_say(fault, "%s: %s (%s)", doing, tern_last_error(), tern_strerror(rc));
}

static int load(
	void *ctx, uint32_t layer, int32_t expert, uint64_t offset, void *into, uint64_t bytes)
{
	struct homes *homes = ctx;

	if (homes->loaded_expert != expert || homes->loaded_layer != layer) {
		homes->loaded_expert = -1;
		if (expert_load(homes->config.checkpoint, layer, (uint32_t)expert, &homes->loaded,
			    &homes->fault))
			return -1;
		homes->loaded_layer = layer;
		homes->loaded_expert = expert;
		homes->nr_loaded++;
	}
	memcpy(into, (const uint8_t *)homes->loaded.gate.panels + offset, bytes);
	return 0;
}

/* Ranks of one machine reach each other over its memory. */
static const char *network(tern_group *group, uint32_t nr_ranks)
{
	for (uint32_t r = 0; r < nr_ranks; r++)
		if (tern_group_path(group, (int)r) == TERN_PATH_ENGINE)
			return "ofi:tcp;ofi_rxm";
	return "shm";
}

static int make_store(struct homes *homes)
{
	const struct experts *experts = homes->config.experts;
	uint32_t nr_layers = experts->nr_layers;
	struct tern_weights_part *parts = calloc(nr_layers, sizeof(*parts));
	struct tern_weights_config config = {.size = sizeof(config),
		.nr_layers = nr_layers,
		.nr_experts = homes->nr_experts,
		.nr_physical = homes->nr_physical,
		.nr_parts = 1,
		.rank = homes->rank_of,
		.parts = parts,
		.nr_backups = nr_layers * homes->nr_experts, /* pages are taken when they come */
		.page_bytes = 64 << 10,
		.silence_ms = SILENCE_MS,
		.load = load,
		.load_ctx = homes};
	struct tern_engine_config engine;
	int rc;

	if (!parts)
		return TERN_ERR_NOMEM;
	for (uint32_t layer = 0; layer < nr_layers; layer++)
		parts[layer] = (struct tern_weights_part){
			experts_base(experts, layer), experts_bytes(experts), 0};
	tern_engine_config_init(&engine);
	engine.transport = network(homes->config.group, homes->nr_ranks);
	engine.wait_ms = homes->config.wait_ms;
	rc = tern_engine_create(homes->config.group, &engine, &homes->engine);
	rc = rc ? rc : tern_weights_create(homes->engine, &config, &homes->store);
	free(parts);
	return rc;
}

static int hold_all(struct homes *homes)
{
	uint32_t nr_layers = homes->config.experts->nr_layers;
	int rc = 0;

	for (uint32_t layer = 0; layer < nr_layers && !rc; layer++) {
		for (uint32_t i = 0; i < homes->nr_home && !rc; i++)
			rc = tern_weights_hold(homes->store, layer, homes->first + i,
				homes->weights[homes->first + i]);
		rc = rc ? rc : tern_weights_use(homes->store, layer, homes->weights);
	}
	return rc;
}

/* All hold what they have before anybody asks for it. */
static int meet(struct homes *homes)
{
	uint8_t *all = calloc(homes->nr_ranks, 1), mine = 1;
	int rc = all ? tern_group_allgather(homes->config.group, &mine, all, 1) : TERN_ERR_NOMEM;

	free(all);
	return rc;
}

/* ---- backups --------------------------------------------------------------------------------- */

/* The next layer's, in a move of their own: false when none are missing, or it is not their time.
 */
static bool begin_backups(struct homes *homes)
{
	uint8_t alive[256];

	if (homes->layer >= homes->config.experts->nr_layers)
		return false;
	for (uint32_t r = 0; r < homes->nr_ranks; r++)
		alive[r] = serves(homes, r) && !tern_engine_peer(homes->engine, r);
	return !tern_weights_backup(
		homes->store, homes->layer, homes->weights, alive, &homes->ticket);
}

/* A backup that cannot be had is missing: the checkpoint is there for it. */
void homes_step(struct homes *homes)
{
	if (!homes->store || (!homes->ticket && !begin_backups(homes)))
		return;
	if (tern_weights_poll(homes->store, homes->ticket, NULL) == TERN_ERR_TIMEOUT)
		return;
	homes->ticket = 0;
	homes->layer++;
}

int homes_open(struct homes *homes, const struct homes_config *config, struct fault *fault)
{
	int rc;

	homes->config = *config;
	if (expert_create(config->experts, &homes->loaded))
		return fault_say(fault, "no memory for an expert");
	if (config->joins) {
		memset(homes->serving, 0, sizeof(homes->serving)); /* others know who does */
		return 0;
	}
	rc = make_store(homes);
	rc = rc ? rc : hold_all(homes);
	rc = rc ? rc : meet(homes);
	if (rc)
		return store_failed(fault, "a store of experts", rc);
	while (!rc && homes->layer < config->experts->nr_layers) {
		if (!begin_backups(homes))
			return store_failed(fault, "backups of experts", TERN_ERR_STATE);
		rc = tern_weights_wait(homes->store, homes->ticket, config->wait_ms, NULL);
		homes->ticket = 0;
		homes->layer++;
	}
	rc = rc ? rc : meet(homes);
	return rc ? store_failed(fault, "backups of experts", rc) : 0;
}

/* ---- who serves ------------------------------------------------------------------------------ */

/* Places of this rank that are to hold something else. */
static uint32_t list_lacking(const struct homes *homes, struct tern_copy *copies)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < homes->nr_places; i++) {
		int32_t expert = homes->weights[homes->first + i];

		if (expert >= 0 && homes->brought[i] != expert)
			copies[nr++] = (struct tern_copy){expert, -1, (int32_t)(homes->first + i)};
	}
	return nr;
}

/* Without the places that are to be filled. */
static int use_what_is_here(struct homes *homes, uint32_t layer)
{
	int32_t *now = malloc(homes->nr_physical * sizeof(*now));
	int rc;

	if (!now)
		return TERN_ERR_NOMEM;
	memcpy(now, homes->weights, homes->nr_physical * sizeof(*now));
	for (uint32_t i = 0; i < homes->nr_places; i++)
		if (homes->brought[i] != now[homes->first + i])
			now[homes->first + i] = -1;
	rc = tern_weights_use(homes->store, layer, now);
	free(now);
	return rc;
}

/* Others may still copy from a place, but not for long. */
static int move(struct homes *homes, uint32_t layer, const struct tern_copy *copies, uint32_t nr,
	uint64_t *ticket)
{
	uint64_t end = now_ns() + (uint64_t)homes->config.wait_ms * 1000000;
	int rc = use_what_is_here(homes, layer);

	while (!rc &&
		(rc = tern_weights_move(homes->store, layer, copies, nr, ticket)) ==
			TERN_ERR_STATE &&
		now_ns() < end) {
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
		rc = 0;
	}
	return rc;
}

/* All layers at once; a source that dies is passed over. */
static int bring_from_others(struct homes *homes, const struct tern_copy *copies, uint32_t nr)
{
	uint32_t nr_layers = homes->config.experts->nr_layers;
	uint64_t *tickets = calloc(nr_layers, sizeof(*tickets));
	int rc = tickets ? 0 : TERN_ERR_NOMEM;

	for (uint32_t layer = 0; layer < nr_layers && !rc; layer++)
		rc = move(homes, layer, copies, nr, &tickets[layer]);
	for (uint32_t layer = 0; layer < nr_layers && !rc; layer++)
		rc = tern_weights_wait(homes->store, tickets[layer], homes->config.wait_ms, NULL);
	for (uint32_t layer = 0; layer < nr_layers && !rc; layer++)
		rc = tern_weights_use(homes->store, layer, homes->weights);
	free(tickets);
	return rc;
}

static int bring_from_checkpoint(
	struct homes *homes, const struct tern_copy *copies, uint32_t nr, struct fault *fault)
{
	struct experts *experts = homes->config.experts;

	for (uint32_t layer = 0; layer < experts->nr_layers; layer++)
		for (uint32_t i = 0; i < nr; i++) {
			uint32_t at = (uint32_t)copies[i].to - homes->first;

			if (expert_load(homes->config.checkpoint, layer, (uint32_t)copies[i].expert,
				    experts_at(experts, layer, at), fault))
				return -1;
			homes->nr_loaded++;
		}
	return 0;
}

static int bring(struct homes *homes, struct homes_brought *brought, struct fault *fault)
{
	uint32_t loaded = homes->nr_loaded, nr;
	struct tern_copy *copies = calloc(homes->nr_places + 1, sizeof(*copies));
	uint64_t start = now_ns();
	int rc = copies ? 0 : fault_say(fault, "no memory for moves");

	nr = rc ? 0 : list_lacking(homes, copies);
	if (nr && homes->store) {
		rc = bring_from_others(homes, copies, nr);
		rc = rc ? store_failed(fault, "experts of a rank that is gone", rc) : 0;
	} else if (nr) {
		rc = bring_from_checkpoint(homes, copies, nr, fault);
	}
	for (uint32_t i = 0; i < nr && !rc; i++)
		homes->brought[(uint32_t)copies[i].to - homes->first] = copies[i].expert;
	free(copies);
	*brought = (struct homes_brought){.nr = nr * homes->config.experts->nr_layers,
		.nr_loaded = homes->nr_loaded - loaded,
		.ns = now_ns() - start};
	return rc;
}

int homes_follow(struct homes *homes, const uint64_t serving[4], struct homes_brought *brought,
	struct fault *fault)
{
	*brought = (struct homes_brought){0};
	if (!memcmp(homes->serving, serving, sizeof(homes->serving)))
		return 0;
	memcpy(homes->serving, serving, sizeof(homes->serving));
	place_all(homes);
	if (bring(homes, brought, fault))
		return -1;
	homes->layer = 0; /* backups of what lies elsewhere now */
	return 0;
}
