/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank waits for its peers, with an account of whom it missed: who is late, has died, has
 * left or has broken the protocol. How it sleeps meanwhile is base/wait.c's. */
#include "exchange/cpu/liveness.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "base/wait.h"
#include "exchange/elastic.h"
#include "path/path.h"

struct wait {
	tern_moe *moe;
	uint32_t slot, epoch;
	enum word_kind kind;
	enum tern_phase phase;
	uint32_t next; /* ranks below it have arrived */
	uint64_t start_ns;
	uint64_t *waited_ns; /* [R], or NULL: nobody wants to know */
	bool *noted;         /* [R] arrived, and added; or NULL: nobody looks when each came */
};

static uint64_t word_of(const struct wait *w, uint32_t rank)
{
	return arrival_observe((const struct arrival *)own(
		w->moe, layout_word(&w->moe->layout, w->slot, w->kind, rank)));
}

static bool is_missing(const struct wait *w, uint32_t peer)
{
	return word_epoch(word_of(w, peer)) != w->epoch && w->moe->alive[peer];
}

/* Each rank is looked at until it has arrived, and never again: polling costs one load. */
static bool all_arrived(struct wait *w)
{
	while (w->next < w->moe->nr_ranks && !is_missing(w, w->next))
		w->next++;
	return w->next == w->moe->nr_ranks;
}

static const char *phase_name(enum tern_phase phase)
{
	static const char *const names[NR_PHASES] = {"counts", "dispatch", "combine"};

	return names[phase];
}

static void fill_report(struct wait *w, int error, uint32_t peer)
{
	struct tern_wait_report *report = &w->moe->report;
	uint64_t word = word_of(w, peer);

	*report = (struct tern_wait_report){.size = sizeof(*report),
		.rank = (int32_t)w->moe->rank,
		.peer = (int32_t)peer,
		.slot = w->slot,
		.phase = w->phase,
		.epoch_expected = w->epoch,
		.epoch_seen = word_epoch(word),
		.count_seen = word_epoch(word) == w->epoch ? word_count(word) : 0,
		.expected = w->moe->nr_ranks,
		.waited_ns = scheduler_now(w->moe->group->scheduler) - w->start_ns,
		.error = error};
	for (uint32_t r = 0; r < w->moe->nr_ranks; r++)
		report->nr_missing += is_missing(w, r);
	report->arrived = report->expected - report->nr_missing;
}

/* "rank 0 waited 30000 ms in dispatch (slot 0, epoch 5) with 2 of 4 ranks missing: rank 1 (at epoch
 * 4), rank 3 (at epoch 4)" */
static int wait_expired(struct wait *w)
{
	char text[480];
	size_t at = 0;
	uint32_t told = 0;

	fill_report(w, TERN_ERR_TIMEOUT, w->next);
	for (uint32_t r = 0; r < w->moe->nr_ranks && told < 8; r++) {
		uint64_t word = word_of(w, r);

		if (!is_missing(w, r))
			continue;
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%srank %u (at epoch %u)",
			told++ ? ", " : "", r, word_epoch(word));
	}
	return fail(TERN_ERR_TIMEOUT,
		"rank %u waited %.3f ms in %s (slot %u, epoch %u) with %u of %u ranks missing: "
		"%s%s",
		w->moe->rank, (double)w->moe->report.waited_ns / 1e6, phase_name(w->phase), w->slot,
		w->epoch, w->moe->report.nr_missing, w->moe->nr_ranks, text,
		told < w->moe->report.nr_missing ? ", ..." : "");
}

/* `witness` is the rank that left because `peer` had died, or the peer itself. */
static int wait_lost(struct wait *w, int error, uint32_t peer, uint32_t witness,
	uint64_t leave_status, const char *text)
{
	char cause[160] = "";

	fill_report(w, error, peer);
	if (error == TERN_ERR_PEER_DEAD && w->moe->config.elastic)
		return elastic_lost(w->moe);
	if (witness != peer)
		snprintf(cause, sizeof(cause), ", as rank %u found,", witness);
	else if (error == TERN_ERR_PEER_LEFT && leave_status_error(leave_status))
		snprintf(cause, sizeof(cause), " after %s",
			tern_strerror(leave_status_error(leave_status)));
	else if (text)
		snprintf(cause, sizeof(cause), " (%s)", text);
	fail(error,
		"rank %u %s%s while rank %u waited for rank %u in %s (slot %u, epoch %u; rank %u "
		"was at epoch %u)",
		peer, error == TERN_ERR_PEER_DEAD ? "died" : "left the exchange", cause,
		w->moe->rank, witness, phase_name(w->phase), w->slot, w->epoch, peer,
		w->moe->report.epoch_seen);
	return exchange_fail(w->moe, error, (int)peer);
}

static int peer_has_left(struct wait *w, uint32_t peer, uint64_t leave_status)
{
	int named = leave_status_peer(leave_status);

	if (leave_status_error(leave_status) == TERN_ERR_PEER_DEAD && named >= 0 &&
		named < (int)w->moe->nr_ranks)
		return wait_lost(w, TERN_ERR_PEER_DEAD, (uint32_t)named, peer, leave_status, NULL);
	return wait_lost(w, TERN_ERR_PEER_LEFT, peer, peer, leave_status, NULL);
}

/* What came from this rank cannot have come from a correct one. */
static int peer_broke(tern_moe *moe)
{
	const char *text;
	int source = path_broken(moe, &text);

	if (source < 0)
		return 0;
	fail(TERN_ERR_PROTOCOL, "rank %d sent rank %u %s", source, moe->rank, text);
	return exchange_fail(moe, TERN_ERR_PROTOCOL, source);
}

/* A gateway through which the word of a missing rank would come. It is gone before it has passed on
 * what it got, so the word will not come, whether or not its source lives. */
static bool relay_is_gone(const struct wait *w, uint32_t missing, bool left)
{
	uint32_t relay = w->kind == WORD_DISPATCH ? path_relay_of(w->moe, missing) : missing;
	const char *text;

	if (relay == missing || relay == w->moe->rank)
		return false;
	if (left)
		return path_leave_status(w->moe, relay) != 0;
	return path_is_lost(w->moe, relay, &text) && !path_leave_status(w->moe, relay);
}

/* A missing peer that is gone will not come any more; what it published before it went counts, so
 * its word is looked at once more. Who left a leave word was not taken by surprise, even if its
 * process has ended since. A death without one explains the departures, so deaths are reported
 * first. */
static int look_after_deaths(struct wait *w)
{
	const char *text;

	for (uint32_t r = w->next; r < w->moe->nr_ranks; r++) {
		if (!is_missing(w, r))
			continue;
		if (path_is_lost(w->moe, r, &text) && !path_leave_status(w->moe, r) &&
			is_missing(w, r))
			return wait_lost(w, TERN_ERR_PEER_DEAD, r, r, 0, text);
		if (relay_is_gone(w, r, false) && is_missing(w, r)) {
			uint32_t relay = path_relay_of(w->moe, r);

			return wait_lost(w, TERN_ERR_PEER_DEAD, relay, relay, 0, NULL);
		}
	}
	return 0;
}

static int look_after_peers(struct wait *w)
{
	int rc = peer_broke(w->moe);

	if (!rc && w->moe->config.elastic)
		rc = elastic_look(w->moe);
	rc = rc ? rc : look_after_deaths(w);
	for (uint32_t r = w->next; r < w->moe->nr_ranks && !rc; r++) {
		uint64_t leave_status = path_leave_status(w->moe, r);

		if (leave_status && is_missing(w, r))
			rc = peer_has_left(w, r, leave_status);
		else if (is_missing(w, r) && relay_is_gone(w, r, true) && is_missing(w, r))
			rc = peer_has_left(w, path_relay_of(w->moe, r),
				path_leave_status(w->moe, path_relay_of(w->moe, r)));
	}
	return rc;
}

static bool is_complete(void *ctx)
{
	return all_arrived(ctx);
}

static void note(struct wait *w, uint32_t rank, uint64_t now_ns)
{
	if (w->waited_ns)
		w->waited_ns[rank] += now_ns - w->start_ns;
	w->noted[rank] = true;
	trace_moment(TRACE_CAME_FROM, rank);
}

/* Looks at all that have not come, as any may be the next. */
static bool is_complete_and_timed(void *ctx)
{
	struct wait *w = ctx;
	uint64_t now_ns = scheduler_now(w->moe->group->scheduler);

	for (uint32_t r = 0; r < w->moe->nr_ranks; r++)
		if (!w->noted[r] && !is_missing(w, r))
			note(w, r, now_ns);
	return all_arrived(w);
}

static int look(void *ctx)
{
	return look_after_peers(ctx);
}

/* After a change of members nobody knows how many arrivals of rounds that were given up have been
 * counted, nor of ranks that are masked: each wakes. Who wants to know when each came is woken by
 * each, too. */
static uint32_t wake_at(const struct wait *w, struct event_count *events)
{
	if (w->moe->view || w->moe->config.masks || w->noted)
		return atomic_load_explicit(&events->count, memory_order_relaxed);
	return (w->moe->slots[w->slot].rounds[w->phase] + 1) * w->moe->nr_ranks;
}

static int wait_for_missing(struct wait *w)
{
	TRACE(TRACE_WAIT, TRACE_NOBODY);
	tern_moe *moe = w->moe;
	struct event_count *events =
		(struct event_count *)own(moe, layout_event_count(&moe->layout, w->slot, w->phase));
	struct awaited awaited = {.events = events,
		.wake_at = wake_at(w, events),
		.is_complete = w->noted ? is_complete_and_timed : is_complete,
		.look = look,
		.ctx = w,
		.start_ns = w->start_ns,
		.limit_ns = (uint64_t)moe->wait_ms * 1000000};
	int said = wait_for_arrivals(&moe->wait_policy, &awaited);

	return said == WAIT_EXPIRED ? wait_expired(w) : said == WAIT_COMPLETE ? 0 : said;
}

int wait_for_all(tern_moe *moe, uint32_t slot, enum word_kind kind, enum tern_phase phase)
{
	bool noted[TRACING ? moe->nr_ranks : 1];
	struct wait w = {.moe = moe,
		.slot = slot,
		.epoch = moe->slots[slot].epoch,
		.kind = kind,
		.phase = phase,
		.start_ns = scheduler_now(moe->group->scheduler),
		.noted = TRACING ? noted : NULL};
	int rc;

	memset(noted, 0, sizeof(noted));
	rc = all_arrived(&w) ? 0 : wait_for_missing(&w);
	rc = rc ? rc : peer_broke(moe);
	if (!rc)
		moe->slots[slot].rounds[phase]++;
	return rc;
}

int wait_and_time(tern_moe *moe, uint32_t slot, uint64_t *waited_ns)
{
	bool noted[moe->nr_ranks];
	struct wait w = {.moe = moe,
		.slot = slot,
		.epoch = moe->slots[slot].epoch,
		.kind = WORD_DISPATCH,
		.phase = TERN_PHASE_DISPATCH,
		.start_ns = scheduler_now(moe->group->scheduler),
		.waited_ns = waited_ns,
		.noted = noted};
	int rc;

	memset(noted, 0, sizeof(noted));
	rc = is_complete_and_timed(&w) ? 0 : wait_for_missing(&w);
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (!noted[r])
			note(&w, r, scheduler_now(moe->group->scheduler));
	rc = rc ? rc : peer_broke(moe);
	if (!rc)
		moe->slots[slot].rounds[TERN_PHASE_DISPATCH]++;
	return rc;
}

/* ---- room in a gateway's chunks ---------------------------------------------------------------
 */

struct room {
	struct wait wait;
	uint32_t peer;
	bool (*ready)(void *ctx);
	void *ctx;
};

static int look_for_room(void *ctx)
{
	struct room *room = ctx;
	tern_moe *moe = room->wait.moe;
	const char *text;
	uint64_t leave_status;
	int rc;

	if (room->ready(room->ctx))
		return 1;
	rc = peer_broke(moe);
	if (!rc && moe->config.elastic)
		rc = elastic_look(moe);
	leave_status = path_leave_status(moe, room->peer);
	if (rc)
		return rc;
	if (leave_status)
		return peer_has_left(&room->wait, room->peer, leave_status);
	if (path_is_lost(moe, room->peer, &text))
		return wait_lost(&room->wait, TERN_ERR_PEER_DEAD, room->peer, room->peer, 0, text);
	return 0;
}

int wait_for_room(tern_moe *moe, uint32_t slot, uint32_t peer, bool (*ready)(void *ctx), void *ctx)
{
	struct room room = {.wait = {.moe = moe,
				    .slot = slot,
				    .epoch = moe->slots[slot].epoch,
				    .kind = WORD_DISPATCH,
				    .phase = TERN_PHASE_DISPATCH,
				    .start_ns = scheduler_now(moe->group->scheduler)},
		.peer = peer,
		.ready = ready,
		.ctx = ctx};
	int said = wait_until(
		&moe->wait_policy, (uint64_t)moe->wait_ms * 1000000, look_for_room, &room);

	if (said)
		return said < 0 ? said : 0;
	fill_report(&room.wait, TERN_ERR_TIMEOUT, peer);
	return fail(TERN_ERR_TIMEOUT,
		"rank %u waited %.3f ms in dispatch (slot %u, epoch %u) for rank %u to make room "
		"for more rows",
		moe->rank, (double)moe->report.waited_ns / 1e6, slot, moe->slots[slot].epoch, peer);
}
