/* SPDX-License-Identifier: Apache-2.0 */
/* A store is made and ended; where the pages of an expert lie. */
#include "weights/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/blocks.h"
#include "base/error.h"
#include "base/private_memory.h"
#include "base/struct_size.h"
#include "engine/inside.h"
#include "engine/patience.h"
#include "group/group.h"

#define DEFAULT_PAGE (256u << 10)
#define DEFAULT_WINDOW 4
#define DEFAULT_SILENCE_MS 1000
#define MOST_BYTES (1ull << 40) /* of an expert */

/* ---- pages ----------------------------------------------------------------------------------- */

void page_of(const tern_weight_store *store, uint32_t number, struct page *page)
{
	uint64_t bytes;

	page->part = 0;
	while (number >= store->first_page[page->part + 1])
		page->part++;
	bytes = store->part_at[page->part + 1] - store->part_at[page->part];
	page->offset =
		(uint64_t)(number - store->first_page[page->part]) * store->config.page_bytes;
	page->at = store->part_at[page->part] + page->offset;
	page->bytes = bytes - page->offset < store->config.page_bytes ? bytes - page->offset
								      : store->config.page_bytes;
}

bool is_backup(const tern_weight_store *store, const struct weights_place *place)
{
	return place >= first_backup(store);
}

static const struct tern_weights_part *part_of(
	const tern_weight_store *store, uint32_t layer, uint32_t part)
{
	return &store->parts[(size_t)layer * store->config.nr_parts + part];
}

tern_region *page_region(const tern_weight_store *store, const struct weights_place *place,
	const struct page *page, uint64_t *offset)
{
	uint64_t number = (uint64_t)(place - store->places);

	if (is_backup(store, place)) {
		*offset = (uint64_t)(place - first_backup(store)) * store->expert_bytes + page->at;
		return store->regions[store->nr_regions - 1];
	}
	*offset = number % store->nr_local * part_of(store, place->layer, page->part)->stride +
		  page->offset;
	return store->regions[(size_t)place->layer * store->config.nr_parts + page->part];
}

uint8_t *page_address(
	const tern_weight_store *store, const struct weights_place *place, const struct page *page)
{
	uint64_t offset;

	(void)page_region(store, place, page, &offset);
	return (is_backup(store, place)
			       ? store->backups
			       : (uint8_t *)part_of(store, place->layer, page->part)->base) +
	       offset;
}

/* What was not used of the past counts for one of these at most. */
uint64_t bucket_take(struct bucket *bucket, uint64_t rate, uint64_t bytes, uint64_t now_ns)
{
	uint64_t cost_ns;

	if (!rate)
		return 0;
	if (bucket->next_ns > now_ns)
		return bucket->next_ns - now_ns;
	cost_ns = (uint64_t)((double)bytes * 1e9 / (double)rate);
	if (bucket->next_ns + cost_ns < now_ns)
		bucket->next_ns = now_ns - cost_ns;
	bucket->next_ns += cost_ns;
	return 0;
}

/* ---- settings -------------------------------------------------------------------------------- */

static int check_counts(const struct tern_weights_config *c)
{
	int rc = check_range("nr_layers", c->nr_layers, 1, 65536);

	if (!rc)
		rc = check_range("nr_experts", c->nr_experts, 1, INT32_MAX);
	if (!rc)
		rc = check_range("nr_physical", c->nr_physical, 1, 1 << 20);
	if (!rc)
		rc = check_range("nr_parts", c->nr_parts, 1, TERN_WEIGHTS_MAX_PARTS);
	if (!rc)
		rc = check_range("page_bytes", c->page_bytes, 64, 1 << 30);
	if (!rc && c->page_bytes % 64)
		rc = fail(TERN_ERR_INVALID, "page_bytes is %u, which is no multiple of 64",
			c->page_bytes);
	if (!rc)
		rc = check_range("window", c->window, 1, WEIGHTS_MAX_WINDOW);
	if (!rc)
		rc = check_range("silence_ms", c->silence_ms, 1, INT32_MAX);
	if (!rc)
		rc = check_range("nr_backups", c->nr_backups, 0, 1 << 24);
	if (!rc && !c->parts)
		rc = fail(TERN_ERR_INVALID, "parts is NULL");
	return rc;
}

static int check_part(const tern_weight_store *store, uint32_t layer, uint32_t part)
{
	const struct tern_weights_part *p = part_of(store, layer, part);
	uint64_t span;

	if (!p->bytes || p->bytes > MOST_BYTES || p->bytes != part_of(store, 0, part)->bytes)
		return fail(TERN_ERR_INVALID,
			"part %u of layer %u has %llu bytes; in layer 0 it has %llu", part, layer,
			(unsigned long long)p->bytes,
			(unsigned long long)part_of(store, 0, part)->bytes);
	if (store->nr_local && !p->base)
		return fail(TERN_ERR_INVALID, "part %u of layer %u has no base", part, layer);
	if (p->stride < p->bytes ||
		__builtin_mul_overflow(p->stride, (uint64_t)store->nr_local, &span) ||
		span > INT64_MAX)
		return fail(TERN_ERR_INVALID,
			"part %u of layer %u: %llu bytes, %llu from place to place", part, layer,
			(unsigned long long)p->bytes, (unsigned long long)p->stride);
	return 0;
}

static int index_places(tern_weight_store *store, const struct tern_weights_config *c)
{
	uint32_t *next = calloc(store->nr_ranks, sizeof(*next));

	store->rank_of = calloc(c->nr_physical, sizeof(*store->rank_of));
	store->local_of = calloc(c->nr_physical, sizeof(*store->local_of));
	if (!next || !store->rank_of || !store->local_of) {
		free(next);
		return fail(TERN_ERR_NOMEM, "no memory for %u places", c->nr_physical);
	}
	for (uint32_t p = 0; p < c->nr_physical; p++) {
		int64_t rank = c->rank ? c->rank[p]
				       : (int64_t)block_of(p, c->nr_physical, store->nr_ranks);

		if (rank < 0 || rank >= store->nr_ranks) {
			free(next);
			return fail(TERN_ERR_INVALID, "rank[%u] is %lld; ranks are 0 to %u", p,
				(long long)rank, store->nr_ranks - 1);
		}
		store->rank_of[p] = (int32_t)rank;
		store->local_of[p] = next[rank]++;
	}
	store->nr_local = next[store->self];
	free(next);
	return 0;
}

static int take_parts(tern_weight_store *store)
{
	const struct tern_weights_config *c = &store->config;
	size_t nr = (size_t)c->nr_layers * c->nr_parts;

	store->parts = calloc(nr, sizeof(*store->parts));
	if (!store->parts)
		return fail(TERN_ERR_NOMEM, "no memory for %zu parts", nr);
	memcpy(store->parts, c->parts, nr * sizeof(*store->parts));
	for (size_t i = 0; i < nr; i++) {
		int rc;

		if (!store->parts[i].stride)
			store->parts[i].stride = store->parts[i].bytes;
		rc = check_part(store, (uint32_t)(i / c->nr_parts), (uint32_t)(i % c->nr_parts));
		if (rc)
			return rc;
	}
	for (uint32_t k = 0; k < c->nr_parts; k++) {
		uint64_t bytes = store->parts[k].bytes;

		store->part_at[k + 1] = store->part_at[k] + bytes;
		if ((bytes + c->page_bytes - 1) / c->page_bytes > UINT32_MAX / 32)
			return fail(TERN_ERR_INVALID, "part %u has %llu bytes in pages of %u", k,
				(unsigned long long)bytes, c->page_bytes);
		store->first_page[k + 1] = store->first_page[k] +
					   (uint32_t)((bytes + c->page_bytes - 1) / c->page_bytes);
	}
	store->nr_pages = store->first_page[c->nr_parts];
	store->expert_bytes = store->part_at[c->nr_parts];
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int take_places(tern_weight_store *store)
{
	const struct tern_weights_config *c = &store->config;
	uint64_t nr = (uint64_t)c->nr_layers * store->nr_local + c->nr_backups;

	if (nr > UINT32_MAX)
		return fail(TERN_ERR_INVALID, "%llu places", (unsigned long long)nr);
	store->nr_places = (uint32_t)nr;
	store->places = calloc(nr + 1, sizeof(*store->places));
	store->sums = calloc(nr * store->nr_pages + 1, sizeof(*store->sums));
	store->borrowers = calloc(nr * store->nr_words + 1, sizeof(*store->borrowers));
	store->regions = calloc((size_t)c->nr_layers * c->nr_parts + 1, sizeof(tern_region *));
	store->remotes = calloc(store->nr_ranks, sizeof(tern_remote *));
	store->staging = private_map((uint64_t)c->window * c->page_bytes, PRIVATE_DENSE);
	if (!store->places || !store->sums || !store->borrowers || !store->regions ||
		!store->remotes || !store->staging)
		return fail(TERN_ERR_NOMEM, "no memory for %llu places of %u pages",
			(unsigned long long)nr, store->nr_pages);
	if (c->nr_backups) {
		store->backups = private_map(c->nr_backups * store->expert_bytes, PRIVATE_DENSE);
		if (!store->backups)
			return fail(TERN_ERR_NOMEM, "no memory for %u backups of %llu bytes",
				c->nr_backups, (unsigned long long)store->expert_bytes);
	}
	for (uint32_t i = 0; i < store->nr_places; i++)
		store->places[i] =
			(struct weights_place){.layer = store->nr_local ? i / store->nr_local : 0,
				.expert = -1,
				.sums = store->sums + (uint64_t)i * store->nr_pages,
				.borrowers = store->borrowers + (uint64_t)i * store->nr_words};
	return 0;
}

static int register_all(tern_weight_store *store)
{
	const struct tern_weights_config *c = &store->config;
	uint32_t nr = c->nr_layers * c->nr_parts;
	int rc = tern_engine_register(store->engine, store->staging,
		(uint64_t)c->window * c->page_bytes, &store->landing);

	for (uint32_t i = 0; i < nr && !rc && store->nr_local; i++)
		rc = tern_engine_register(store->engine, store->parts[i].base,
			(store->nr_local - 1) * store->parts[i].stride + store->parts[i].bytes,
			&store->regions[i]);
	if (!rc && c->nr_backups)
		rc = tern_engine_register(store->engine, store->backups,
			c->nr_backups * store->expert_bytes, &store->regions[nr]);
	store->nr_regions = nr + 1;
	return rc;
}

/* ---- meeting --------------------------------------------------------------------------------- */

static int agree(tern_weight_store *store, tern_group *group)
{
	const struct tern_weights_config *c = &store->config;
	uint64_t ranks = 0;
	struct setting settings[8 + TERN_WEIGHTS_MAX_PARTS];
	int nr = 7;

	for (uint32_t p = 0; p < c->nr_physical; p++)
		ranks = ranks * 31 + (uint64_t)store->rank_of[p];
	settings[0] = (struct setting){"nr_layers", c->nr_layers};
	settings[1] = (struct setting){"nr_experts", c->nr_experts};
	settings[2] = (struct setting){"nr_physical", c->nr_physical};
	settings[3] = (struct setting){"nr_parts", c->nr_parts};
	settings[4] = (struct setting){"page_bytes", c->page_bytes};
	settings[5] = (struct setting){"window", c->window};
	settings[6] = (struct setting){"the table of ranks", ranks};
	for (uint32_t k = 0; k < TERN_WEIGHTS_MAX_PARTS; k++)
		settings[nr++] = (struct setting){
			"bytes of a part", k < c->nr_parts ? store->parts[k].bytes : 0};
	return group_agree_settings(group, settings, nr);
}

static int set_claim(tern_engine *engine, void *ctx)
{
	tern_weight_store *store = ctx;

	if (engine->message_claim.message)
		return fail(TERN_ERR_STATE, "the engine's messages belong to another store");
	engine->message_claim =
		(struct engine_message_claim){.message = serve_message, .ctx = store};
	store->claimed = true;
	return 0;
}

static int share_landings(tern_weight_store *store, tern_group *group)
{
	struct tern_descriptor mine, *all = calloc(store->nr_ranks, sizeof(*all));
	int rc = all ? tern_region_descriptor(store->landing, &mine)
		     : fail(TERN_ERR_NOMEM, "no memory for %u descriptors", store->nr_ranks);

	rc = group_agree_status(group, rc, "creating a store of weights");
	if (!rc)
		rc = group_allgather(group, &mine, all, sizeof(mine));
	for (uint32_t r = 0; r < store->nr_ranks && !rc; r++)
		if (r != store->self)
			rc = tern_engine_import(store->engine, &all[r], &store->remotes[r]);
	free(all);
	return group_agree_status(group, rc, "creating a store of weights");
}

static int open_store(tern_weight_store *store)
{
	int rc = check_counts(&store->config);

	if (!rc)
		rc = index_places(store, &store->config);
	if (!rc)
		rc = take_parts(store);
	if (!rc)
		rc = take_places(store);
	if (!rc)
		rc = serve_open(store);
	if (!rc)
		rc = register_all(store);
	return rc ? rc : engine_call(store->engine, set_claim, store);
}

/* ---- ending ---------------------------------------------------------------------------------- */

static int drop_claim(tern_engine *engine, void *ctx)
{
	(void)ctx;
	engine->message_claim = (struct engine_message_claim){0};
	return 0;
}

static void release_staging(void *ctx, void *base, uint64_t bytes)
{
	(void)ctx;
	private_unmap(base, bytes);
}

static int give_up_regions(tern_weight_store *store)
{
	int rc = 0;

	for (uint32_t i = 0; i < store->nr_regions && !rc; i++) {
		if (!store->regions[i])
			continue;
		rc = tern_region_deregister(store->regions[i], store->engine->config.wait_ms);
		if (!rc)
			store->regions[i] = NULL;
	}
	for (uint32_t r = 0; r < store->nr_ranks && !rc; r++) {
		if (!store->remotes || !store->remotes[r])
			continue;
		rc = tern_remote_forget(store->remotes[r], store->engine->config.wait_ms);
		if (!rc)
			store->remotes[r] = NULL;
	}
	return rc;
}

static void free_store(tern_weight_store *store)
{
	if (store->staging && !store->landing)
		private_unmap(
			store->staging, (uint64_t)store->config.window * store->config.page_bytes);
	else if (store->landing && (store->doubtful || asks_are_open(store)))
		engine_region_leave(store->landing, release_staging, NULL);
	else if (store->landing)
		engine_region_give_up(
			store->landing, store->engine->config.wait_ms, release_staging, NULL);
	private_unmap(store->backups, store->config.nr_backups * store->expert_bytes);
	free(store->jobs);
	free(store->places);
	free(store->sums);
	free(store->borrowers);
	free(store->regions);
	free(store->remotes);
	free(store->parts);
	free(store->rank_of);
	free(store->local_of);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

static bool is_busy(tern_weight_store *store)
{
	bool busy;

	pthread_mutex_lock(&store->lock);
	busy = store->nr_busy_jobs;
	pthread_mutex_unlock(&store->lock);
	return busy;
}

int tern_weights_destroy(tern_weight_store *store)
{
	struct patience patience;
	int rc;

	if (!store)
		return 0;
	copies_abandon(store);
	patience = patience_for(store->engine, (uint64_t)store->engine->config.wait_ms * 1000000);
	while (is_busy(store))
		if (!patience_left(&patience))
			return fail(
				TERN_ERR_TIMEOUT, "pages are still on their way to other ranks");
	patience = patience_for(store->engine, (uint64_t)store->config.silence_ms * 1000000);
	while (asks_are_open(store) && patience_left(&patience))
		;
	if (store->claimed)
		(void)engine_call(store->engine, drop_claim, NULL);
	store->claimed = false;
	rc = give_up_regions(store);
	if (!rc)
		free_store(store);
	return rc;
}

/* ---- making ---------------------------------------------------------------------------------- */

static int check_create(
	tern_engine *engine, const struct tern_weights_config *config, tern_weight_store **out)
{
	if (!engine || !config || !out)
		return fail(TERN_ERR_INVALID, "engine, config or store is NULL");
	if (!engine->setup.group)
		return fail(TERN_ERR_INVALID, "the engine belongs to no group");
	if (engine->config.message_bytes < sizeof(struct store_message))
		return fail(TERN_ERR_INVALID,
			"the engine's message_bytes is %u; a store of weights takes %zu",
			engine->config.message_bytes, sizeof(struct store_message));
	if (engine->setup.group->view)
		return fail(TERN_ERR_UNSUPPORTED,
			"a store of weights in a group that has lost members (view %llu)",
			(unsigned long long)engine->setup.group->view);
	return 0;
}

static tern_weight_store *make(tern_engine *engine, const struct tern_weights_config *config)
{
	tern_weight_store *store = calloc(1, sizeof(*store));

	if (!store)
		return NULL;
	pthread_mutex_init(&store->lock, NULL);
	store->engine = engine;
	store->config = *config;
	store->self = engine->setup.self;
	store->nr_ranks = engine->setup.nr_peers;
	store->nr_words = (store->nr_ranks + 63) / 64;
	store->generation = ++engine->nr_stores;
	store->stats.size = sizeof(store->stats);
	return store;
}

static void fill_in(struct tern_weights_config *c)
{
	c->page_bytes = c->page_bytes ? c->page_bytes : DEFAULT_PAGE;
	c->window = c->window ? c->window : DEFAULT_WINDOW;
	c->silence_ms = c->silence_ms ? c->silence_ms : DEFAULT_SILENCE_MS;
}

/* Nobody has used it. The text stays that of what went wrong. */
static void undo(tern_weight_store *store)
{
	char text[512];

	snprintf(text, sizeof(text), "%s", tern_last_error());
	(void)tern_weights_destroy(store);
	error_put_back(text);
}

int tern_weights_create(
	tern_engine *engine, const struct tern_weights_config *config, tern_weight_store **out)
{
	struct tern_weights_config c = {.size = sizeof(c)};
	tern_weight_store *store = NULL;
	tern_group *group;
	int rc = check_create(engine, config, out);

	if (rc)
		return rc;
	group = engine->setup.group;
	rc = struct_read(&kind_weights_config, config, &c);
	fill_in(&c);
	store = make(engine, &c);
	if (!rc && !store)
		rc = fail(TERN_ERR_NOMEM, "no memory for a store of weights");
	if (!rc)
		rc = open_store(store);
	rc = group_agree_status(group, rc, "creating a store of weights");
	if (!rc)
		rc = agree(store, group);
	if (!rc)
		rc = share_landings(store, group);
	if (!rc) {
		store->config.parts = NULL; /* the caller's */
		store->config.rank = NULL;
		*out = store;
		return 0;
	}
	undo(store);
	return rc;
}
