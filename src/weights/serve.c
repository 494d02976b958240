/* SPDX-License-Identifier: Apache-2.0 */
/* On the engine's proxy: a page is sent to whoever asks, and answers are noted for the caller's
 * thread. In constant time, but for the look for who holds an expert. What a peer says is checked
 * before it is followed. Messages that find no room are dropped: who has asked asks again, or
 * another. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/patience.h"
#include "weights/store.h"

#define MOST_JOBS 4096

int serve_open(tern_weight_store *store)
{
	uint64_t nr = (uint64_t)store->nr_ranks * store->config.window;

	store->nr_jobs = nr < MOST_JOBS ? (uint32_t)nr : MOST_JOBS;
	store->jobs = calloc(store->nr_jobs, sizeof(*store->jobs));
	if (!store->jobs)
		return fail(TERN_ERR_NOMEM, "no memory for %u pages on their way", store->nr_jobs);
	for (uint32_t i = 0; i < store->nr_jobs; i++) {
		store->jobs[i].store = store;
		store->jobs[i].next = store->free_jobs;
		store->free_jobs = &store->jobs[i];
	}
	return 0;
}

int serve_send(tern_weight_store *store, uint32_t peer, struct store_message *message)
{
	const struct tern_send send = {.size = sizeof(send),
		.peer = peer,
		.flags = TERN_TRY,
		.data = message,
		.bytes = sizeof(*message)};

	message->generation = store->generation;
	return tern_engine_send(store->engine, &send, NULL);
}

static void answer(tern_weight_store *store, const struct weights_job *job, enum answer status,
	uint64_t busy_ns)
{
	struct store_message message = {.kind = STORE_ANSWER,
		.status = (uint16_t)status,
		.slot = job->slot,
		.number = job->number,
		.sum = job->sum,
		.whole = job->whole,
		.busy_ns = busy_ns};

	(void)serve_send(store, job->peer, &message);
}

/* ---- asks ------------------------------------------------------------------------------------ */

/* The page lies with the peer, or it has gone. */
static void given(void *ctx, int error, const char *text)
{
	struct weights_job *job = ctx, done = *job;
	tern_weight_store *store = job->store;

	(void)text;
	if (!error)
		answer(store, &done, ANSWER_PAGE, 0);
	pthread_mutex_lock(&store->lock);
	done.place->nr_reading--;
	store->stats.pages_given += !error;
	store->nr_busy_jobs--;
	job->next = store->free_jobs;
	store->free_jobs = job;
	pthread_mutex_unlock(&store->lock);
}

static bool ask_is_possible(
	const tern_weight_store *store, uint32_t peer, const struct store_message *m)
{
	return peer != store->self && m->slot < store->config.window &&
	       m->layer < store->config.nr_layers && m->page < store->nr_pages && m->expert >= 0 &&
	       (uint32_t)m->expert < store->config.nr_experts;
}

/* Under the lock. NULL: *status says what is answered. */
static struct weights_job *take_job(tern_weight_store *store, uint32_t peer,
	const struct store_message *m, uint64_t page_bytes, enum answer *status, uint64_t *busy_ns)
{
	struct weights_place *place = place_with(store, m->layer, m->expert);
	struct weights_job *job = store->free_jobs;

	*status = ANSWER_NO;
	if (!place || store->closing)
		return NULL;
	*status = ANSWER_BUSY;
	set_bit(place->borrowers, peer);
	*busy_ns = job ? bucket_take(&store->giving, store->config.rate, page_bytes,
				 engine_now(store->engine))
		       : 0;
	if (!job || *busy_ns)
		return NULL;
	store->free_jobs = job->next;
	store->nr_busy_jobs++;
	place->nr_reading++;
	*job = (struct weights_job){.store = store,
		.place = place,
		.peer = peer,
		.slot = m->slot,
		.number = m->number,
		.sum = place->sums[m->page],
		.whole = place->whole};
	return job;
}

static int give(tern_weight_store *store, struct weights_job *job, const struct page *page)
{
	struct tern_write write = {.size = sizeof(write),
		.peer = job->peer,
		.flags = TERN_TRY,
		.remote = store->remotes[job->peer],
		.remote_offset = (uint64_t)job->slot * store->config.page_bytes,
		.bytes = page->bytes,
		.done = given,
		.ctx = job};

	write.local = page_region(store, job->place, page, &write.local_offset);
	return tern_engine_write(store->engine, &write, NULL);
}

static void put_back(tern_weight_store *store, struct weights_job *job)
{
	pthread_mutex_lock(&store->lock);
	job->place->nr_reading--;
	store->nr_busy_jobs--;
	job->next = store->free_jobs;
	store->free_jobs = job;
	pthread_mutex_unlock(&store->lock);
}

static void asked(tern_weight_store *store, uint32_t peer, const struct store_message *m)
{
	const struct weights_job refused = {.peer = peer, .slot = m->slot, .number = m->number};
	uint64_t busy_ns = 0;
	enum answer status;
	struct page page;
	struct weights_job *job;

	if (!ask_is_possible(store, peer, m))
		return;
	page_of(store, m->page, &page);
	pthread_mutex_lock(&store->lock);
	job = take_job(store, peer, m, page.bytes, &status, &busy_ns);
	pthread_mutex_unlock(&store->lock);
	if (job && !give(store, job, &page))
		return;
	if (job)
		put_back(store, job);
	answer(store, &refused, job ? ANSWER_BUSY : status, busy_ns);
}

void serve_end(tern_weight_store *store, uint32_t peer, const struct store_message *m)
{
	struct weights_place *place;

	if (m->layer >= store->config.nr_layers || m->expert < 0 ||
		(uint32_t)m->expert >= store->config.nr_experts)
		return;
	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < store->nr_places; i++) {
		place = &store->places[i];
		if (place->layer == m->layer && place->expert == m->expert)
			clear_bit(place->borrowers, peer);
	}
	pthread_mutex_unlock(&store->lock);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answered(tern_weight_store *store, uint32_t peer, const struct store_message *m)
{
	struct slot *slot = &store->slots[m->slot < store->config.window ? m->slot : 0];
	bool mine;

	pthread_mutex_lock(&store->lock);
	mine = m->slot < store->config.window && slot->state == SLOT_ASKED &&
	       slot->number == m->number && slot->source == peer;
	if (mine) {
		slot->status = m->status;
		slot->sum = m->sum;
		slot->whole = m->whole;
		slot->busy_ns = m->busy_ns;
		slot->state = SLOT_ANSWERED;
	}
	pthread_mutex_unlock(&store->lock);
	if (mine)
		wakeup_signal(&store->wakeup);
}

void serve_message(void *ctx, uint32_t peer, const void *data, uint32_t bytes)
{
	tern_weight_store *store = ctx;
	struct store_message m;

	if (bytes != sizeof(m))
		return;
	memcpy(&m, data, sizeof(m));
	if (m.generation != store->generation)
		return;
	if (m.kind == STORE_ASK)
		asked(store, peer, &m);
	else if (m.kind == STORE_ANSWER)
		answered(store, peer, &m);
	else if (m.kind == STORE_END)
		serve_end(store, peer, &m);
}
