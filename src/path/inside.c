/* SPDX-License-Identifier: Apache-2.0 */
#include "path/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/elastic.h"

/* ---- immediates ------------------------------------------------------------------------------ */

uint32_t immediate_make(const tern_moe *moe, enum immediate_kind kind, uint32_t bits)
{
	return (uint32_t)moe->engine->prefix << 24 | (uint32_t)kind << 21 |
	       moe->rank << own_bits(moe->engine) | bits;
}

uint32_t immediate_round(const tern_moe *moe, uint32_t slot)
{
	uint32_t epoch_bits = moe->engine->epoch_bits;

	return slot << (epoch_bits + 1) | (moe->slots[slot].epoch & ((1u << epoch_bits) - 1));
}

/* ---- writes ---------------------------------------------------------------------------------- */

int sent_open(tern_engine *engine, struct sent_list *list, uint32_t nr)
{
	struct engine_counters *counters = &list->counters;
	int rc;

	list->each = calloc(nr, sizeof(*list->each));
	counters->first = aligned_alloc(CACHE_LINE, nr * sizeof(*counters->first));
	if (!list->each || !counters->first)
		return fail(TERN_ERR_NOMEM, "no memory to count %u writes", nr);
	memset(counters->first, 0, nr * sizeof(*counters->first));
	counters->nr = nr;
	rc = engine_counters_open(engine, counters);
	list->open = !rc;
	for (uint32_t i = 0; i < nr; i++)
		list->each[i] = (struct sent){.ended = &counters->first[i], .id = counters->id + i};
	return rc;
}

void sent_close(const tern_moe *moe, struct sent_list *list, uint64_t deadline_ns)
{
	const struct scheduler *scheduler = moe->group->scheduler;

	while (list->open && !sent_have_ended(list) && scheduler_now(scheduler) < deadline_ns)
		scheduler_yield(scheduler, deadline_ns);
	if (list->open)
		engine_counters_close(moe->engine->engine, &list->counters);
	free(list->counters.first);
	free(list->each);
	*list = (struct sent_list){0};
}

int path_write(tern_moe *moe, struct sent *sent, uint32_t rank, uint32_t immediate,
	const uint8_t *from, uint64_t offset, uint64_t bytes)
{
	struct engine_path *path = moe->engine;
	struct engine_write write = {.peer = rank,
		.flags = TERN_IMMEDIATE,
		.immediate = immediate,
		.counter = sent->id,
		.local = bytes ? path->staging_region : NULL,
		.remote = bytes ? path->windows[rank] : NULL,
		.local_offset = bytes ? (uint64_t)(from - path->staging) : 0,
		.remote_offset = offset,
		.bytes = bytes};
	int rc = engine_write(path->engine, &write);

	if (rc && path->elastic)
		return elastic_lost(moe);
	if (rc)
		return exchange_fail(moe, rc, (int)rank);
	sent->begun++;
	moe->stats.engine_bytes += bytes;
	return 0;
}

/* ---- what has come --------------------------------------------------------------------------- */

static enum tern_phase phase_of(enum word_kind kind)
{
	return kind == WORD_DISPATCH  ? TERN_PHASE_DISPATCH
	       : kind == WORD_COMBINE ? TERN_PHASE_COMBINE
				      : TERN_PHASE_COUNTS;
}

/* The bytes that it announces are visible to this thread, or were stored by it; the release in
 * arrival_deliver hands them on to the one that waits. */
void path_arrived(tern_moe *moe, uint32_t rank, uint32_t slot, enum word_kind kind, uint32_t source,
	uint64_t word)
{
	const struct layout *l = &moe->layout;

	arrival_deliver(
		(struct arrival *)path_window(moe, rank, layout_word(l, slot, kind, source)),
		(struct event_count *)path_window(
			moe, rank, layout_event_count(l, slot, phase_of(kind))),
		word);
	scheduler_wake(moe->group->scheduler, rank);
}

void path_violation(tern_moe *moe, uint32_t source, const char *what)
{
	struct engine_path *path = moe->engine;

	if (violation_observe(&path->violation))
		return;
	snprintf(path->violation_text, sizeof(path->violation_text), "%s", what);
	violation_publish(&path->violation, source + 1);
}

int engine_path_broken(const tern_moe *moe, const char **text)
{
	*text = moe->engine->violation_text;
	return (int)violation_observe(&moe->engine->violation) - 1;
}

uint64_t engine_path_leave_status(const tern_moe *moe, uint32_t rank)
{
	return leave_statuses_of(
		&moe->engine->leave_statuses, rank, scheduler_now(moe->group->scheduler));
}

bool engine_path_is_lost(const tern_moe *moe, uint32_t rank, const char **text)
{
	const struct engine_path *path = moe->engine;

	return !leave_statuses_told(&path->leave_statuses, rank) &&
	       engine_peer_down(path->engine, rank, text) != 0;
}
