/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that this rank makes, on the caller's thread: pages are asked for, taken into their place,
 * and judged there. A source that fails is passed over, and the next goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/patience.h"
#include "weights/store.h"
#include "weights/sum.h"

#define MOST_WRONG 3 /* pages of one source */
#define LEAST_BUSY_NS 20000

/* ---- making and ending ----------------------------------------------------------------------- */

struct copy *copy_make(tern_weight_store *store, struct ticket *ticket, struct weights_place *place,
	int32_t expert, uint32_t first)
{
	struct copy *copy = calloc(1, sizeof(*copy));

	if (!copy)
		return NULL;
	*copy = (struct copy){.ticket = ticket,
		.place = place,
		.expert = expert,
		.first = first,
		.source = WEIGHTS_NOBODY,
		.asked = calloc(store->nr_words, sizeof(*copy->asked)),
		.pages = calloc(store->nr_pages, sizeof(*copy->pages))};
	if (copy->asked && copy->pages)
		return copy;
	copy_free(copy);
	return NULL;
}

void copy_free(struct copy *copy)
{
	if (!copy)
		return;
	free(copy->asked);
	free(copy->pages);
	free(copy);
}

static void forget_asks(tern_weight_store *store, const struct copy *copy)
{
	for (uint32_t i = 0; i < store->config.window; i++)
		if (store->slots[i].copy == copy)
			store->slots[i].copy = NULL;
}

static void set_place(tern_weight_store *store, struct copy *copy, enum place_state state)
{
	pthread_mutex_lock(&store->lock);
	copy->place->whole = copy->whole;
	copy->place->expert = state == PLACE_WHOLE ? copy->expert : -1;
	copy->place->state = state;
	store->stats.copies += state == PLACE_WHOLE;
	store->stats.failed += state != PLACE_WHOLE;
	pthread_mutex_unlock(&store->lock);
}

static void copy_ends(tern_weight_store *store, struct copy *copy, int error)
{
	copy->ended = true;
	copy->error = error;
	forget_asks(store, copy);
	set_place(store, copy, error ? PLACE_EMPTY : PLACE_WHOLE);
}

/* Whoever was asked is told that it is over. False: there was no room for that yet. */
static bool tell_end(tern_weight_store *store, struct copy *copy)
{
	struct store_message message = {
		.kind = STORE_END, .layer = copy->place->layer, .expert = copy->expert};

	for (uint32_t r = 0; r < store->nr_ranks; r++) {
		if (!bit_of(copy->asked, r))
			continue;
		if (r == store->self)
			serve_end(store, r, &message);
		else if (!engine_peer_down(store->engine, r, NULL) &&
			 serve_send(store, r, &message))
			return false;
		clear_bit(copy->asked, r);
	}
	return true;
}

static void tell_ticket(struct copy *copy)
{
	struct ticket *ticket = copy->ticket;

	ticket->nr_whole += !copy->error;
	ticket->nr_failed += copy->error != 0;
	if (!copy->error || ticket->error)
		return;
	ticket->error = copy->error;
	snprintf(ticket->cause, sizeof(ticket->cause), "%s", copy->cause);
}

static void remove_ended(tern_weight_store *store)
{
	struct copy **link = &store->copies, *copy;

	while ((copy = *link)) {
		if (!copy->ended || !tell_end(store, copy)) {
			link = &copy->next;
			continue;
		}
		*link = copy->next;
		tell_ticket(copy);
		copy_free(copy);
	}
}

void copies_abandon(tern_weight_store *store)
{
	struct ticket *ticket;
	struct copy *copy;

	pthread_mutex_lock(&store->lock);
	store->closing = true;
	pthread_mutex_unlock(&store->lock);
	while ((copy = store->copies)) {
		store->copies = copy->next;
		if (!copy->ended)
			copy_ends(store, copy, TERN_ERR_STATE);
		(void)tell_end(store, copy);
		copy_free(copy);
	}
	while ((ticket = store->tickets)) {
		store->tickets = ticket->next;
		free(ticket);
	}
}

/* ---- sources --------------------------------------------------------------------------------- */

static bool is_load(const tern_weight_store *store, const struct copy *copy)
{
	return copy->source == store->nr_ranks;
}

static void note_cause(struct copy *copy, const char *what)
{
	size_t at = strlen(copy->cause);

	if (at + 3 < sizeof(copy->cause))
		snprintf(copy->cause + at, sizeof(copy->cause) - at, "%s%s", at ? "; " : "", what);
}

/* The source of a turn; nr_ranks: `load`; WEIGHTS_NOBODY: none of this turn. */
static uint32_t source_of(const tern_weight_store *store, struct copy *copy, uint32_t turn)
{
	uint32_t rank = turn == 1 ? copy->first : (store->self + turn - 1) % store->nr_ranks;
	const char *text;

	if (turn == 0)
		return place_with(store, copy->place->layer, copy->expert) ? store->self
									   : WEIGHTS_NOBODY;
	if (turn > store->nr_ranks)
		return store->config.load ? store->nr_ranks : WEIGHTS_NOBODY;
	if (rank == WEIGHTS_NOBODY || rank == store->self || (turn > 1 && rank == copy->first))
		return WEIGHTS_NOBODY;
	if (!store_peer_down(store, rank, &text))
		return rank;
	if (turn == 1)
		note_cause(copy, text);
	return WEIGHTS_NOBODY;
}

static void end_without(tern_weight_store *store, struct copy *copy)
{
	char what[sizeof(copy->cause)], name[64];

	snprintf(what, sizeof(what), "%s", *copy->cause ? copy->cause : "nobody was left to ask");
	snprintf(copy->cause, sizeof(copy->cause), "expert %d into %s: %.*s", copy->expert,
		place_name(store, copy->place, name, sizeof(name)), 110, what);
	copy_ends(store, copy, TERN_ERR_LOST_EXPERTS);
}

/* False: there is none any more, and the copy has ended. Turns are 0: this rank; 1: the one that
 * the caller said; to nr_ranks: all others; and `load`. */
static bool find_source(tern_weight_store *store, struct copy *copy)
{
	while (copy->source == WEIGHTS_NOBODY && copy->turn <= store->nr_ranks + 1)
		copy->source = source_of(store, copy, copy->turn++);
	copy->nr_wrong = 0;
	copy->not_before_ns = 0;
	if (copy->source == WEIGHTS_NOBODY)
		end_without(store, copy);
	return !copy->ended;
}

/* Which may have been passed over already. */
static void source_fails(
	tern_weight_store *store, struct copy *copy, uint32_t source, const char *what)
{
	if (copy->ended || copy->source != source)
		return;
	note_cause(copy, what);
	store->stats.sources_left++;
	copy->source = WEIGHTS_NOBODY;
	(void)find_source(store, copy);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void begin_anew(tern_weight_store *store, struct copy *copy)
{
	struct page page;

	for (uint32_t i = 0; i < store->nr_pages; i++) {
		if (copy->pages[i] != PAGE_DONE)
			continue;
		page_of(store, i, &page);
		copy->ticket->bytes_left += page.bytes;
		copy->pages[i] = PAGE_MISSING;
	}
	copy->nr_done = copy->next_page = 0;
}

/* All pages are there: is it the expert that its source had? */
static void judge_whole(tern_weight_store *store, struct copy *copy)
{
	uint64_t whole =
		weights_sum(copy->place->sums, store->nr_pages * sizeof(*copy->place->sums));
	char what[96];

	if (!copy->has_whole || copy->whole == whole) {
		copy->whole = whole;
		copy_ends(store, copy, 0);
		return;
	}
	begin_anew(store, copy);
	copy->has_whole = false;
	if (is_load(store, copy))
		return; /* the pages before were others' */
	snprintf(what, sizeof(what), "the whole from rank %u is not what it says", copy->source);
	source_fails(store, copy, copy->source, what);
}

static void page_is_right(tern_weight_store *store, struct copy *copy, uint32_t number,
	const struct page *page, uint64_t sum)
{
	copy->place->sums[number] = sum;
	copy->pages[number] = PAGE_DONE;
	copy->ticket->bytes_left -= page->bytes;
	store->stats.pages++;
	store->stats.bytes += page->bytes;
	if (++copy->nr_done == store->nr_pages)
		judge_whole(store, copy);
}

static void page_is_wrong(tern_weight_store *store, struct copy *copy, const struct slot *slot)
{
	char what[96];

	store->stats.pages_wrong++;
	if (copy->source != slot->source || ++copy->nr_wrong < MOST_WRONG)
		return;
	snprintf(what, sizeof(what), "%u pages from rank %u came wrong, page %u the last",
		copy->nr_wrong, slot->source, slot->page);
	source_fails(store, copy, slot->source, what);
}

/* Pages of one expert alone come together: what another source calls the whole is another. */
static bool is_of_the_same(tern_weight_store *store, struct copy *copy, const struct slot *slot)
{
	if (copy->has_whole && copy->whole == slot->whole)
		return true;
	if (copy->source != slot->source)
		return false;
	if (copy->has_whole && ++copy->nr_wrong > MOST_WRONG)
		return false;
	begin_anew(store, copy);
	copy->has_whole = true;
	copy->whole = slot->whole;
	return true;
}

static void take_page(tern_weight_store *store, struct copy *copy, const struct slot *slot)
{
	const uint8_t *from =
		store->staging + (uint64_t)(slot - store->slots) * store->config.page_bytes;
	struct page page;
	uint8_t *to;
	uint64_t sum;

	page_of(store, slot->page, &page);
	to = page_address(store, copy->place, &page);
	memcpy(to, from, page.bytes);
	sum = weights_sum(to, page.bytes); /* of what lies there, whatever the slot has by now */
	if (sum != slot->sum || !is_of_the_same(store, copy, slot))
		page_is_wrong(store, copy, slot);
	else
		page_is_right(store, copy, slot->page, &page, sum);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void handle(tern_weight_store *store, const struct slot *slot, uint64_t now_ns)
{
	struct copy *copy = slot->copy;
	char what[64];

	if (!copy)
		return;
	copy->nr_asked--;
	copy->pages[slot->page] = PAGE_MISSING;
	if (slot->page < copy->next_page)
		copy->next_page = slot->page;
	if (slot->status == ANSWER_PAGE) {
		take_page(store, copy, slot);
	} else if (slot->status == ANSWER_BUSY) {
		if (copy->source == slot->source)
			copy->not_before_ns =
				now_ns +
				(slot->busy_ns < LEAST_BUSY_NS ? LEAST_BUSY_NS : slot->busy_ns);
	} else {
		snprintf(what, sizeof(what), "rank %u does not hold it", slot->source);
		source_fails(store, copy, slot->source, what);
	}
}

/* The first that was answered; it is the caller's thread's now. */
static struct slot *take_answer(tern_weight_store *store)
{
	struct slot *slot = NULL;

	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < store->config.window && !slot; i++)
		if (store->slots[i].state == SLOT_ANSWERED) {
			slot = &store->slots[i];
			slot->state = SLOT_FREE;
		}
	pthread_mutex_unlock(&store->lock);
	return slot;
}

/* False: it was answered meanwhile. */
static bool give_up_ask(tern_weight_store *store, struct slot *slot)
{
	bool given_up;

	pthread_mutex_lock(&store->lock);
	given_up = slot->state == SLOT_ASKED;
	if (given_up)
		slot->state = SLOT_FREE;
	pthread_mutex_unlock(&store->lock);
	return given_up;
}

static bool is_asked(tern_weight_store *store, const struct slot *slot)
{
	bool asked;

	pthread_mutex_lock(&store->lock);
	asked = slot->state == SLOT_ASKED;
	pthread_mutex_unlock(&store->lock);
	return asked;
}

bool asks_are_open(tern_weight_store *store)
{
	for (uint32_t i = 0; i < store->config.window; i++)
		if (is_asked(store, &store->slots[i]) &&
			!engine_peer_down(store->engine, store->slots[i].source, NULL))
			return true;
	return false;
}

static void look_after(tern_weight_store *store, struct slot *slot, uint64_t now_ns)
{
	uint64_t waited_ns = now_ns - slot->asked_ns;
	struct copy *copy = slot->copy;
	const char *text = NULL;
	char what[160];
	int down;

	if (!is_asked(store, slot))
		return;
	down = store_peer_down(store, slot->source, &text);
	if (!down && waited_ns < store->config.silence_ms * 1000000ull)
		return;
	if (!give_up_ask(store, slot))
		return;
	store->doubtful = true;
	if (!copy)
		return;
	copy->nr_asked--;
	copy->pages[slot->page] = PAGE_MISSING;
	copy->next_page = 0;
	if (down)
		snprintf(what, sizeof(what), "%s", text);
	else
		snprintf(what, sizeof(what), "rank %u has not answered for %llu ms", slot->source,
			(unsigned long long)(waited_ns / 1000000));
	source_fails(store, copy, slot->source, what);
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* nr_pages: none. */
static uint32_t missing_page(const tern_weight_store *store, struct copy *copy)
{
	if (copy->nr_done + copy->nr_asked >= store->nr_pages)
		return store->nr_pages;
	while (copy->next_page < store->nr_pages && copy->pages[copy->next_page] != PAGE_MISSING)
		copy->next_page++;
	return copy->next_page;
}

static struct slot *free_slot(tern_weight_store *store)
{
	struct slot *slot = NULL;

	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < store->config.window && !slot; i++)
		if (store->slots[i].state == SLOT_FREE)
			slot = &store->slots[i];
	pthread_mutex_unlock(&store->lock);
	return slot;
}

/* Ready before the message goes: an answer may come at once. */
static bool ask(tern_weight_store *store, struct copy *copy, struct slot *slot, uint32_t number,
	uint64_t now_ns)
{
	struct store_message message = {.kind = STORE_ASK,
		.slot = (uint32_t)(slot - store->slots),
		.layer = copy->place->layer,
		.page = number,
		.expert = copy->expert};

	pthread_mutex_lock(&store->lock);
	slot->state = SLOT_ASKED;
	slot->number++;
	slot->source = copy->source;
	slot->page = number;
	slot->asked_ns = now_ns;
	slot->copy = copy;
	message.number = slot->number;
	pthread_mutex_unlock(&store->lock);
	if (serve_send(store, copy->source, &message)) {
		(void)give_up_ask(store, slot);
		return false;
	}
	set_bit(copy->asked, copy->source);
	copy->pages[number] = PAGE_ASKED;
	copy->nr_asked++;
	return true;
}

static bool may_take(tern_weight_store *store, uint32_t number, uint64_t now_ns)
{
	struct page page;

	page_of(store, number, &page);
	return !bucket_take(&store->taking, store->config.rate, page.bytes, now_ns);
}

/* As many as there is room for. True: something was asked. */
static bool ask_for_pages(tern_weight_store *store, struct copy *copy, uint64_t now_ns)
{
	const char *text;
	bool any = false;

	while (copy->not_before_ns <= now_ns) {
		uint32_t number = missing_page(store, copy);
		struct slot *slot = number < store->nr_pages ? free_slot(store) : NULL;

		if (!slot || !may_take(store, number, now_ns))
			break;
		if (ask(store, copy, slot, number, now_ns)) {
			any = true;
			continue;
		}
		if (store_peer_down(store, copy->source, &text))
			source_fails(store, copy, copy->source, text);
		break;
	}
	return any;
}

/* ---- pages that need no asking --------------------------------------------------------------- */

static void copy_own(tern_weight_store *store, struct copy *copy, uint32_t number)
{
	struct weights_place *from = place_with(store, copy->place->layer, copy->expert);
	const struct slot as_if = {.source = store->self, .whole = from->whole};
	struct page page;
	uint8_t *to;

	page_of(store, number, &page);
	pthread_mutex_lock(&store->lock);
	set_bit(from->borrowers, store->self);
	pthread_mutex_unlock(&store->lock);
	set_bit(copy->asked, store->self);
	to = page_address(store, copy->place, &page);
	memcpy(to, page_address(store, from, &page), page.bytes);
	if (weights_sum(to, page.bytes) != from->sums[number]) {
		store->stats.pages_wrong++;
		source_fails(store, copy, store->self, "what this rank holds has changed");
	} else if (is_of_the_same(store, copy, &as_if)) {
		page_is_right(store, copy, number, &page, from->sums[number]);
	}
}

static void load_page(tern_weight_store *store, struct copy *copy, uint32_t number)
{
	struct page page;
	char what[64];
	uint8_t *to;
	int rc;

	page_of(store, number, &page);
	to = page_address(store, copy->place, &page);
	rc = store->config.load(
		store->config.load_ctx, copy->place->layer, copy->expert, page.at, to, page.bytes);
	if (rc) {
		snprintf(what, sizeof(what), "load returned %d", rc);
		source_fails(store, copy, store->nr_ranks, what);
		return;
	}
	store->stats.pages_loaded++;
	page_is_right(store, copy, number, &page, weights_sum(to, page.bytes));
}

static bool bring_page(tern_weight_store *store, struct copy *copy, uint64_t now_ns)
{
	uint32_t number = missing_page(store, copy);

	if (number >= store->nr_pages || !may_take(store, number, now_ns))
		return false;
	if (is_load(store, copy))
		load_page(store, copy, number);
	else
		copy_own(store, copy, number);
	return true;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool go_on(
	tern_weight_store *store, struct copy *copy, bool page_was_handled, uint64_t now_ns)
{
	if (copy->ended || (copy->source == WEIGHTS_NOBODY && !find_source(store, copy)))
		return false;
	if (copy->source != store->self && !is_load(store, copy))
		return ask_for_pages(store, copy, now_ns);
	return !page_was_handled && bring_page(store, copy, now_ns);
}

bool copies_step(tern_weight_store *store)
{
	uint64_t now_ns = engine_now(store->engine);
	struct slot *slot = take_answer(store);
	bool page = slot != NULL, any = page;

	if (slot)
		handle(store, slot, now_ns);
	for (uint32_t i = 0; i < store->config.window; i++)
		look_after(store, &store->slots[i], now_ns);
	for (struct copy *copy = store->copies; copy; copy = copy->next) {
		bool went_on = go_on(store, copy, page, now_ns);

		page = page || (went_on && (copy->source == store->self || is_load(store, copy)));
		any = any || went_on;
	}
	remove_ended(store);
	return any;
}
