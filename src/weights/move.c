/* SPDX-License-Identifier: Apache-2.0 */
/* What callers ask for: moves and backups are checked as a whole, then begun; polls and waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "engine/inside.h"
#include "engine/patience.h"
#include "weights/store.h"

#define NAP_NS 1000000u

/* ---- beginning ------------------------------------------------------------------------------- */

/* What is to be filled, until all of it was checked. */
struct order {
	struct weights_place *place;
	int32_t expert;
	uint32_t first;
};

static void free_list(struct copy *copies)
{
	struct copy *copy;

	while ((copy = copies)) {
		copies = copy->next;
		copy_free(copy);
	}
}

static struct copy *make_copies(
	tern_weight_store *store, struct ticket *ticket, const struct order *orders, uint32_t nr)
{
	struct copy *first = NULL, **end = &first;

	for (uint32_t i = 0; i < nr; i++) {
		*end = copy_make(store, ticket, orders[i].place, orders[i].expert, orders[i].first);
		if (!*end) {
			free_list(first);
			return NULL;
		}
		end = &(*end)->next;
	}
	return first;
}

/* All of these places are free, and from here on hold nothing: at one moment, as others ask for
 * pages meanwhile. */
static int fill_places(
	tern_weight_store *store, uint32_t layer, const struct order *orders, uint32_t nr)
{
	int rc = 0;

	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < nr && !rc; i++) {
		char name[64];

		place_name(store, orders[i].place, name, sizeof(name));
		rc = place_is_free(store, orders[i].place, name);
	}
	for (uint32_t i = 0; i < nr && !rc; i++) {
		orders[i].place->state = PLACE_FILLING;
		orders[i].place->layer = layer;
		orders[i].place->expert = orders[i].expert;
	}
	pthread_mutex_unlock(&store->lock);
	return rc;
}

static void append(tern_weight_store *store, struct ticket *ticket, struct copy *copies)
{
	struct ticket **last = &store->tickets;
	struct copy **end = &store->copies;

	while (*last)
		last = &(*last)->next;
	*last = ticket;
	while (*end)
		end = &(*end)->next;
	*end = copies;
}

static int begin(tern_weight_store *store, uint32_t layer, const struct order *orders, uint32_t nr,
	uint64_t *number)
{
	struct ticket *ticket = calloc(1, sizeof(*ticket));
	struct copy *copies = ticket ? make_copies(store, ticket, orders, nr) : NULL;
	int rc = 0;

	if (!ticket || (nr && !copies))
		rc = fail(TERN_ERR_NOMEM, "no memory for a move of %u experts", nr);
	if (!rc)
		rc = fill_places(store, layer, orders, nr);
	if (rc) {
		free_list(copies);
		free(ticket);
		return rc;
	}
	*ticket = (struct ticket){.number = ++store->nr_tickets,
		.nr_copies = nr,
		.bytes_left = nr * store->expert_bytes};
	append(store, ticket, copies);
	*number = ticket->number;
	return 0;
}

/* ---- moves ----------------------------------------------------------------------------------- */

static int check_copy(const tern_weight_store *store, const struct tern_copy *copy, uint32_t i)
{
	int64_t nr = store->config.nr_physical;

	if (copy->expert < 0 || copy->expert >= (int64_t)store->config.nr_experts)
		return fail(TERN_ERR_INVALID, "copies[%u].expert is %d of %u", i, copy->expert,
			store->config.nr_experts);
	if (copy->to < 0 || copy->to >= nr || copy->from < -1 || copy->from >= nr)
		return fail(TERN_ERR_INVALID, "copies[%u] goes from place %d to %d of %u", i,
			copy->from, copy->to, store->config.nr_physical);
	return 0;
}

enum use {
	IS_SOURCE = 1,
	IS_TARGET = 2
};

static int check_uses(const struct tern_copy *copies, uint32_t nr, uint8_t *uses)
{
	for (uint32_t i = 0; i < nr; i++)
		if (copies[i].from >= 0)
			uses[copies[i].from] |= IS_SOURCE;
	for (uint32_t i = 0; i < nr; i++) {
		if (uses[copies[i].to])
			return fail(TERN_ERR_INVALID, "copies[%u] goes to place %d, which is %s", i,
				copies[i].to,
				uses[copies[i].to] & IS_TARGET ? "a target already"
							       : "a source of the same move");
		uses[copies[i].to] |= IS_TARGET;
	}
	return 0;
}

static uint32_t list_orders(tern_weight_store *store, uint32_t layer,
	const struct tern_copy *copies, uint32_t nr, struct order *orders)
{
	uint32_t mine = 0;

	for (uint32_t i = 0; i < nr; i++) {
		struct weights_place *place = place_of(store, layer, (uint32_t)copies[i].to);

		if (place)
			orders[mine++] = (struct order){place, copies[i].expert,
				copies[i].from < 0 ? WEIGHTS_NOBODY
						   : (uint32_t)store->rank_of[copies[i].from]};
	}
	return mine;
}

int tern_weights_move(tern_weight_store *store, uint32_t layer, const struct tern_copy *copies,
	uint32_t nr, uint64_t *ticket)
{
	int rc = check_layer(store, layer);
	struct order *orders;
	uint8_t *uses;

	if (!rc && ((!copies && nr) || !ticket))
		rc = fail(TERN_ERR_INVALID, "copies or ticket is NULL");
	if (!rc && nr > store->config.nr_physical)
		rc = fail(TERN_ERR_INVALID, "%u copies into %u places", nr,
			store->config.nr_physical);
	for (uint32_t i = 0; i < nr && !rc; i++)
		rc = check_copy(store, &copies[i], i);
	if (rc)
		return rc;
	orders = calloc(nr + 1, sizeof(*orders));
	uses = calloc(store->config.nr_physical, 1);
	if (!orders || !uses)
		rc = fail(TERN_ERR_NOMEM, "no memory for a move of %u experts", nr);
	if (!rc)
		rc = check_uses(copies, nr, uses);
	if (!rc)
		rc = begin(store, layer, orders, list_orders(store, layer, copies, nr, orders),
			ticket);
	free(orders);
	free(uses);
	return rc;
}

/* ---- backups --------------------------------------------------------------------------------- */

/* Whose backup each expert of the layer is: of those that live and do not serve it, one that has
 * fewest so far, another to begin with for each expert and layer. WEIGHTS_NOBODY: none can be. */
static uint32_t backup_rank(const tern_weight_store *store, uint32_t first, const uint8_t *serves,
	const uint8_t *alive, const uint32_t *count)
{
	uint32_t best = WEIGHTS_NOBODY;

	for (uint32_t i = 0; i < store->nr_ranks; i++) {
		uint32_t r = (first + i) % store->nr_ranks;

		if ((alive && !alive[r]) || serves[r])
			continue;
		if (best == WEIGHTS_NOBODY || count[r] < count[best])
			best = r;
	}
	return best;
}

/* Sets mine[e], and counts. */
static uint32_t assign(const tern_weight_store *store, uint32_t layer, const int32_t *logical,
	const uint8_t *alive, uint8_t *serves, uint32_t *count, uint8_t *mine)
{
	const struct tern_weights_config *c = &store->config;

	for (uint32_t e = 0; e < c->nr_experts; e++) {
		bool placed = false;
		uint32_t rank;

		memset(serves, 0, store->nr_ranks);
		for (uint32_t p = 0; p < c->nr_physical; p++)
			if (logical[p] == (int32_t)e) {
				placed = true;
				serves[store->rank_of[p]] = 1;
			}
		rank = placed ? backup_rank(
					store, (e + layer) % store->nr_ranks, serves, alive, count)
			      : WEIGHTS_NOBODY;
		if (rank == WEIGHTS_NOBODY)
			continue;
		count[rank]++;
		mine[e] = rank == store->self;
	}
	return count[store->self];
}

/* Backups that are of this layer and not wanted are free, as empty ones are. */
static uint32_t list_backups(
	tern_weight_store *store, uint32_t layer, uint8_t *mine, struct order *orders)
{
	struct weights_place *backups = first_backup(store);
	uint32_t nr_free = 0, nr = 0;

	for (uint32_t i = 0; i < store->config.nr_backups; i++) {
		struct weights_place *b = &backups[i];

		if (b->state != PLACE_EMPTY && b->layer == layer && mine[b->expert])
			mine[b->expert] = 0;
		else if (b->state == PLACE_EMPTY || (b->layer == layer && b->state == PLACE_WHOLE))
			orders[nr_free++].place = b;
	}
	for (uint32_t e = 0; e < store->config.nr_experts; e++) {
		if (!mine[e])
			continue;
		if (nr < nr_free)
			orders[nr] = (struct order){orders[nr].place, (int32_t)e, WEIGHTS_NOBODY};
		nr++;
	}
	return nr <= nr_free ? nr : UINT32_MAX;
}

/* Their first source is a rank that serves them. */
static void find_servers(
	const tern_weight_store *store, const int32_t *logical, struct order *orders, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		for (uint32_t p = 0; p < store->config.nr_physical; p++)
			if (logical[p] == orders[i].expert &&
				!store_peer_down(store, (uint32_t)store->rank_of[p], NULL))
				orders[i].first = (uint32_t)store->rank_of[p];
}

int tern_weights_backup(tern_weight_store *store, uint32_t layer, const int32_t *logical,
	const uint8_t *alive, uint64_t *ticket)
{
	int rc = check_layer(store, layer);
	uint8_t *serves, *mine;
	struct order *orders;
	uint32_t *count, nr, needed;

	if (!rc && (!logical || !ticket))
		rc = fail(TERN_ERR_INVALID, "logical or ticket is NULL");
	for (uint32_t p = 0; !rc && p < store->config.nr_physical; p++)
		rc = check_logical(store, logical, p);
	if (rc)
		return rc;
	serves = calloc(store->nr_ranks, 1);
	mine = calloc(store->config.nr_experts, 1);
	count = calloc(store->nr_ranks, sizeof(*count));
	orders = calloc(store->config.nr_backups + 1, sizeof(*orders));
	if (!serves || !mine || !count || !orders) {
		rc = fail(TERN_ERR_NOMEM, "no memory for a backup");
	} else {
		needed = assign(store, layer, logical, alive, serves, count, mine);
		nr = list_backups(store, layer, mine, orders);
		if (nr == UINT32_MAX) {
			rc = fail(TERN_ERR_CAPACITY,
				"layer %u takes %u backups here, and not so many of %u are free",
				layer, needed, store->config.nr_backups);
		} else {
			find_servers(store, logical, orders, nr);
			rc = begin(store, layer, orders, nr, ticket);
		}
	}
	free(serves);
	free(mine);
	free(count);
	free(orders);
	return rc;
}

/* ---- asking how far -------------------------------------------------------------------------- */

static struct ticket **ticket_of(tern_weight_store *store, uint64_t number)
{
	struct ticket **link = &store->tickets;

	while (*link && (*link)->number != number)
		link = &(*link)->next;
	return link;
}

static int check_poll(
	tern_weight_store *store, uint64_t ticket, const struct tern_weights_progress *progress)
{
	int rc = store ? 0 : fail(TERN_ERR_INVALID, "store is NULL");

	if (!rc && progress)
		rc = struct_check(&kind_weights_progress, progress);
	if (!rc && ticket && !*ticket_of(store, ticket))
		rc = fail(TERN_ERR_INVALID,
			"%llu is no move: its end was told before, or it is another store's",
			(unsigned long long)ticket);
	return rc;
}

/* After a step. */
static int tell(tern_weight_store *store, uint64_t number, struct tern_weights_progress *progress)
{
	struct tern_weights_progress p = {.size = sizeof(p)};
	struct ticket **link = ticket_of(store, number), *ticket = *link;
	int rc = 0;

	if (!ticket && store->copies)
		return fail(TERN_ERR_TIMEOUT, "moves are under way");
	if (!ticket)
		return 0;
	p.nr_copies = ticket->nr_copies;
	p.nr_whole = ticket->nr_whole;
	p.nr_failed = ticket->nr_failed;
	p.bytes_left = ticket->bytes_left;
	if (progress)
		rc = struct_out(&kind_weights_progress, progress, &p);
	if (!rc && p.nr_whole + p.nr_failed < p.nr_copies)
		return fail(TERN_ERR_TIMEOUT, "%u of %u experts are whole, %llu bytes are to come",
			p.nr_whole, p.nr_copies, (unsigned long long)p.bytes_left);
	if (rc)
		return rc;
	if (ticket->error)
		rc = fail(ticket->error, "%s", ticket->cause);
	*link = ticket->next;
	free(ticket);
	return rc;
}

int tern_weights_poll(
	tern_weight_store *store, uint64_t ticket, struct tern_weights_progress *progress)
{
	int rc = check_poll(store, ticket, progress);

	if (rc)
		return rc;
	(void)copies_step(store);
	return tell(store, ticket, progress);
}

static bool answer_is_here(tern_weight_store *store)
{
	bool here = false;

	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < store->config.window; i++)
		here = here || store->slots[i].state == SLOT_ANSWERED;
	pthread_mutex_unlock(&store->lock);
	return here;
}

/* Until an answer comes; rates and silence are looked at again now and then. */
static void nap(tern_weight_store *store, uint64_t left_ns)
{
	uint32_t count = wakeup_listen(&store->wakeup);

	if (!answer_is_here(store))
		wakeup_sleep(&store->wakeup, count, left_ns < NAP_NS ? left_ns : NAP_NS);
	wakeup_leave(&store->wakeup);
}

int tern_weights_wait(tern_weight_store *store, uint64_t ticket, int wait_ms,
	struct tern_weights_progress *progress)
{
	int rc = check_poll(store, ticket, progress);
	struct patience patience;
	uint64_t now_ns;
	bool any;

	if (rc)
		return rc;
	if (engine_on_proxy(store->engine) && wait_ms)
		return fail(TERN_ERR_STATE, "a callback of the engine may not wait");
	patience = patience_for(store->engine, (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000000);
	do {
		any = copies_step(store);
		rc = tell(store, ticket, progress);
		if (rc != TERN_ERR_TIMEOUT)
			return rc;
		now_ns = engine_now(store->engine);
		if (!any && !store->engine->setup.scheduler && now_ns < patience.deadline_ns)
			nap(store, patience.deadline_ns - now_ns);
	} while (patience_left(&patience));
	return rc;
}

int tern_weights_stats(tern_weight_store *store, struct tern_weights_stats *stats)
{
	struct tern_weights_stats mine;

	if (!store)
		return fail(TERN_ERR_INVALID, "store is NULL");
	pthread_mutex_lock(&store->lock);
	mine = store->stats;
	pthread_mutex_unlock(&store->lock);
	return struct_out(&kind_weights_stats, stats, &mine);
}
