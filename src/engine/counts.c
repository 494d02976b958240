/* SPDX-License-Identifier: Apache-2.0 */
/* Immediates by value: how many have come, and who expects how many. A hash table of fixed size
 * with linear probing; an entry lives while it has a count or an expectation, and its going closes
 * the gap that it leaves. */
#include "engine/counts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/inside.h"
#include "engine/memory.h"
#include "engine/operation.h"
#include "engine/peer.h"

int counts_open(tern_engine *engine)
{
	uint32_t nr = 16;

	while (nr < engine->config.nr_operations * 2)
		nr *= 2;
	engine->counts = calloc(nr, sizeof(*engine->counts));
	engine->counts_mask = nr - 1;
	return engine->counts
		       ? 0
		       : fail(TERN_ERR_NOMEM, "no memory for the counts of %u immediates", nr);
}

void counts_close(tern_engine *engine)
{
	free(engine->counts);
}

static uint32_t home_of(const tern_engine *engine, uint32_t value)
{
	return (uint32_t)((value * 0x9e3779b97f4a7c15u) >> 32) & engine->counts_mask;
}

/* Its entry, or the free one where it would be. At least half of the table is free. */
static struct immediate_count *find(const tern_engine *engine, uint32_t value)
{
	uint32_t at = home_of(engine, value);

	while (engine->counts[at].used && engine->counts[at].value != value)
		at = (at + 1) & engine->counts_mask;
	return &engine->counts[at];
}

static struct immediate_count *find_or_add(tern_engine *engine, uint32_t value)
{
	struct immediate_count *entry = find(engine, value);

	if (entry->used)
		return entry;
	if (engine->nr_counts == engine->config.nr_operations)
		return NULL;
	engine->nr_counts++;
	*entry =
		(struct immediate_count){.used = true, .value = value, .first = NONE, .last = NONE};
	return entry;
}

/* Entries behind the gap move into it if they would not be found otherwise. */
static void remove_if_empty(tern_engine *engine, struct immediate_count *entry)
{
	uint32_t gap = (uint32_t)(entry - engine->counts), at = gap;

	if (entry->count || entry->first != NONE)
		return;
	engine->nr_counts--;
	for (;;) {
		uint32_t home;

		engine->counts[gap].used = false;
		do {
			at = (at + 1) & engine->counts_mask;
			if (!engine->counts[at].used)
				return;
			home = home_of(engine, engine->counts[at].value);
		} while (((at - home) & engine->counts_mask) < ((at - gap) & engine->counts_mask));
		engine->counts[gap] = engine->counts[at];
		gap = at;
	}
}

static void pop_expecting(tern_engine *engine, struct immediate_count *entry)
{
	struct operation *operation = &engine->operations[entry->first];

	operation->expecting = false;
	entry->first = operation->next_expecting;
	if (entry->first == NONE)
		entry->last = NONE;
}

/* Who expects first is served first. Ends may run callbacks, which do not come back here: they can
 * only put commands into the ring. */
static void serve(tern_engine *engine, struct immediate_count *entry)
{
	while (entry->first != NONE &&
		engine->operations[entry->first].expect.count <= entry->count) {
		uint32_t number = entry->first;

		entry->count -= engine->operations[number].expect.count;
		pop_expecting(engine, entry);
		operation_part_ended(engine, number);
	}
	remove_if_empty(engine, entry);
}

void counts_arrive(tern_engine *engine, uint32_t value)
{
	struct immediate_count *entry = find_or_add(engine, value);

	if (!entry) {
		engine->counts_lost = true;
		engine->stats.immediates_lost++;
		return;
	}
	entry->count++;
	serve(engine, entry);
}

static uint32_t lost_member(const tern_engine *engine, const struct tern_peers *peers)
{
	for (uint32_t i = 0; peers && i < peers->nr; i++)
		if (peer_observe_down(&engine->peers[peers->members[i].peer]))
			return peers->members[i].peer;
	return NONE;
}

/* Takes an expectation out of its line and ends it. */
static void end_expecting(tern_engine *engine, uint32_t number, int error, const char *cause)
{
	struct operation *operation = &engine->operations[number];
	struct immediate_count *entry = find(engine, operation->expect.immediate);
	uint32_t before = NONE, at = entry->first;

	while (at != number) {
		before = at;
		at = engine->operations[at].next_expecting;
	}
	if (before == NONE)
		entry->first = operation->next_expecting;
	else
		engine->operations[before].next_expecting = operation->next_expecting;
	if (entry->last == number)
		entry->last = before;
	operation->expecting = false;
	operation_fail(operation, error, cause);
	serve(engine, entry); /* those behind it may need less */
	operation_part_ended(engine, number);
}

static void end_lost(tern_engine *engine, uint32_t number)
{
	uint32_t lost = lost_member(engine, engine->operations[number].expect.peers);

	end_expecting(
		engine, number, peer_observe_down(&engine->peers[lost]), engine->peers[lost].cause);
}

void counts_expect(tern_engine *engine, uint32_t number)
{
	struct operation *operation = &engine->operations[number];
	struct immediate_count *entry = find_or_add(engine, operation->expect.immediate);

	if (!entry || engine->counts_lost) {
		operation_fail(operation, TERN_ERR_CAPACITY,
			"immediates of more different values came than nr_operations has room for, "
			"and counts were lost");
		operation_part_ended(engine, number);
		if (entry)
			remove_if_empty(engine, entry);
		return;
	}
	operation->expecting = true;
	operation->next_expecting = NONE;
	if (entry->last == NONE)
		entry->first = number;
	else
		engine->operations[entry->last].next_expecting = number;
	entry->last = number;
	serve(engine, entry);
	if (operation->expecting && lost_member(engine, operation->expect.peers) != NONE)
		end_lost(engine, number);
}

/* Ends the expectations that need a peer that is gone. `expecting` is the proxy's own, also of
 * operations that are free. */
void counts_peer_down(tern_engine *engine)
{
	for (uint32_t i = 0; i < engine->config.nr_operations; i++)
		if (engine->operations[i].expecting &&
			lost_member(engine, engine->operations[i].expect.peers) != NONE)
			end_lost(engine, i);
}

void counts_end_all(tern_engine *engine, int error, const char *cause)
{
	for (uint32_t i = 0; i < engine->config.nr_operations; i++)
		if (engine->operations[i].expecting)
			end_expecting(engine, i, error, cause);
}

uint64_t counts_of(const tern_engine *engine, uint32_t value)
{
	const struct immediate_count *entry = find(engine, value);

	return entry->used ? entry->count : 0;
}
