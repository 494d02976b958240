/* SPDX-License-Identifier: Apache-2.0 */
/* What places hold, who reads them, and whether they may be filled. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/inside.h"
#include "group/group.h"
#include "weights/store.h"
#include "weights/sum.h"

static struct weights_place *places_of(const tern_weight_store *store, uint32_t layer)
{
	return &store->places[(size_t)layer * store->nr_local];
}

struct weights_place *first_backup(const tern_weight_store *store)
{
	return &store->places[(size_t)store->config.nr_layers * store->nr_local];
}

/* NULL: another rank's. */
struct weights_place *place_of(const tern_weight_store *store, uint32_t layer, uint32_t physical)
{
	return store->rank_of[physical] == (int32_t)store->self
		       ? &places_of(store, layer)[store->local_of[physical]]
		       : NULL;
}

static bool holds(const struct weights_place *place, uint32_t layer, int32_t expert)
{
	return place->state == PLACE_WHOLE && place->expert == expert && place->layer == layer;
}

struct weights_place *place_with(const tern_weight_store *store, uint32_t layer, int32_t expert)
{
	struct weights_place *places = places_of(store, layer), *backups = first_backup(store);

	for (uint32_t i = 0; i < store->nr_local; i++)
		if (holds(&places[i], layer, expert))
			return &places[i];
	for (uint32_t i = 0; i < store->config.nr_backups; i++)
		if (holds(&backups[i], layer, expert))
			return &backups[i];
	return NULL;
}

const char *place_name(
	const tern_weight_store *store, const struct weights_place *place, char *text, size_t bytes)
{
	uint32_t number = (uint32_t)(place - places_of(store, place->layer));

	if (is_backup(store, place)) {
		snprintf(text, bytes, "backup %u", (uint32_t)(place - first_backup(store)));
		return text;
	}
	for (uint32_t p = 0; p < store->config.nr_physical; p++)
		if (place_of(store, place->layer, p) && store->local_of[p] == number)
			snprintf(text, bytes, "place %u of layer %u", p, place->layer);
	return text;
}

int store_peer_down(const tern_weight_store *store, uint32_t rank, const char **text)
{
	int down = engine_peer_down(store->engine, rank, text);

	if (down || !group_has_lost(store->engine->setup.group, rank))
		return down;
	if (text)
		*text = "the group has gone on without it";
	return TERN_ERR_PEER_DEAD;
}

/* Who has gone copies no more. */
static uint32_t borrower_of(const tern_weight_store *store, const struct weights_place *place)
{
	for (uint32_t r = 0; r < store->nr_ranks; r++) {
		if (!bit_of(place->borrowers, r))
			continue;
		if (!store_peer_down(store, r, NULL))
			return r;
		clear_bit(place->borrowers, r);
	}
	return WEIGHTS_NOBODY;
}

int place_is_free(tern_weight_store *store, const struct weights_place *place, const char *name)
{
	uint32_t borrower = borrower_of(store, place);

	if (place->named)
		return fail(TERN_ERR_STATE, "%s holds expert %d, which the placement in use names",
			name, place->expert);
	if (place->state == PLACE_FILLING)
		return fail(TERN_ERR_STATE, "%s is being filled by another move", name);
	if (borrower != WEIGHTS_NOBODY)
		return fail(TERN_ERR_STATE, "%s holds expert %d, which rank %u copies", name,
			place->expert, borrower);
	if (place->nr_reading)
		return fail(TERN_ERR_STATE, "%s holds expert %d, and pages of it are on their way",
			name, place->expert);
	return 0;
}

int check_layer(const tern_weight_store *store, uint32_t layer)
{
	if (!store)
		return fail(TERN_ERR_INVALID, "store is NULL");
	return layer < store->config.nr_layers
		       ? 0
		       : fail(TERN_ERR_INVALID, "layer %u of %u", layer, store->config.nr_layers);
}

/* ---- hold ------------------------------------------------------------------------------------ */

static void sum_all(const tern_weight_store *store, struct weights_place *place)
{
	struct page page;

	for (uint32_t i = 0; i < store->nr_pages; i++) {
		page_of(store, i, &page);
		place->sums[i] = weights_sum(page_address(store, place, &page), page.bytes);
	}
	place->whole = weights_sum(place->sums, store->nr_pages * sizeof(*place->sums));
}

static int check_hold(
	const tern_weight_store *store, uint32_t layer, uint32_t place, int32_t expert)
{
	int rc = check_layer(store, layer);

	if (rc)
		return rc;
	if (place >= store->config.nr_physical)
		return fail(TERN_ERR_INVALID, "place %u of %u", place, store->config.nr_physical);
	if (store->rank_of[place] != (int32_t)store->self)
		return fail(
			TERN_ERR_INVALID, "place %u is rank %d's", place, store->rank_of[place]);
	if (expert < -1 || expert >= (int64_t)store->config.nr_experts)
		return fail(TERN_ERR_INVALID, "expert %d of %u", expert, store->config.nr_experts);
	return 0;
}

int tern_weights_hold(tern_weight_store *store, uint32_t layer, uint32_t number, int32_t expert)
{
	struct weights_place *place;
	char name[64];
	int rc = check_hold(store, layer, number, expert);

	if (rc)
		return rc;
	place = place_of(store, layer, number);
	place_name(store, place, name, sizeof(name));
	pthread_mutex_lock(&store->lock);
	rc = place_is_free(store, place, name);
	if (!rc)
		place->state = PLACE_FILLING; /* nobody asks for it while it is summed */
	pthread_mutex_unlock(&store->lock);
	if (rc)
		return rc;
	if (expert >= 0)
		sum_all(store, place);
	pthread_mutex_lock(&store->lock);
	place->state = expert >= 0 ? PLACE_WHOLE : PLACE_EMPTY;
	place->expert = expert;
	pthread_mutex_unlock(&store->lock);
	return 0;
}

int tern_weights_held(const tern_weight_store *store, uint32_t layer, int32_t *held)
{
	int rc = check_layer(store, layer);

	if (!rc && !held)
		rc = fail(TERN_ERR_INVALID, "held is NULL");
	for (uint32_t p = 0; p < store->config.nr_physical && !rc; p++) {
		const struct weights_place *place = place_of(store, layer, p);

		/* Only this thread changes states. */
		held[p] = place && place->state == PLACE_WHOLE ? place->expert : -1;
	}
	return rc;
}

int check_logical(const tern_weight_store *store, const int32_t *logical, uint32_t p)
{
	return logical[p] >= -1 && logical[p] < (int64_t)store->config.nr_experts
		       ? 0
		       : fail(TERN_ERR_INVALID, "logical[%u] is %d; there are %u experts", p,
				 logical[p], store->config.nr_experts);
}

/* ---- use ------------------------------------------------------------------------------------- */

static int check_named(
	const tern_weight_store *store, uint32_t layer, const int32_t *logical, uint32_t p)
{
	const struct weights_place *place = place_of(store, layer, p);
	int rc = check_logical(store, logical, p);

	if (rc || !place || logical[p] < 0 || holds(place, layer, logical[p]))
		return rc;
	return fail(TERN_ERR_STATE,
		"place %u of layer %u is to serve expert %d, and does not hold it whole%s", p,
		layer, logical[p], place->state == PLACE_FILLING ? ": a move fills it" : "");
}

int tern_weights_use(tern_weight_store *store, uint32_t layer, const int32_t *logical)
{
	int rc = check_layer(store, layer);

	for (uint32_t p = 0; p < store->config.nr_physical && logical && !rc; p++)
		rc = check_named(store, layer, logical, p);
	if (rc)
		return rc;
	for (uint32_t p = 0; p < store->config.nr_physical; p++) {
		struct weights_place *place = place_of(store, layer, p);

		if (place)
			place->named = logical && logical[p] >= 0;
	}
	return 0;
}
