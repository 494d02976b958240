/* SPDX-License-Identifier: Apache-2.0 */
/* Records: signalled writes under way, each peer's in the order of posting. */
#ifndef TERN_ENGINE_RECORD_H
#define TERN_ENGINE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"
#include "engine/inside.h"
#include "engine/peer.h"

struct record {
	uint32_t generation;
	uint32_t request, peer, nic;
	uint32_t next, previous; /* of the same peer, in order of posting; next: also of the free
				    list */
	uint32_t covers;         /* unsignalled writes before it that end with it */
	bool used, given_up; /* given up: its operation has been told; credit and memory are still
				in use */
	uint64_t posted_ns;
};

/* Behind its peer's others. */
static inline void record_link(tern_engine *engine, struct record *record)
{
	struct engine_peer *peer = &engine->peers[record->peer];
	uint32_t number = (uint32_t)(record - engine->records);

	record->next = NONE;
	record->previous = peer->last_record;
	if (peer->last_record == NONE)
		peer->first_record = number;
	else
		engine->records[peer->last_record].next = number;
	peer->last_record = number;
	peer->nr_records++;
}

static inline void record_unlink(tern_engine *engine, struct record *record)
{
	struct engine_peer *peer = &engine->peers[record->peer];

	if (record->previous == NONE)
		peer->first_record = record->next;
	else
		engine->records[record->previous].next = record->next;
	if (record->next == NONE)
		peer->last_record = record->previous;
	else
		engine->records[record->next].previous = record->previous;
	peer->nr_records--;
}

/* Gives its credits back, and those of the unsignalled writes before it. */
static inline void record_free(tern_engine *engine, struct record *record)
{
	struct nic *nic = &engine->nics[record->nic];

	if (!record->given_up)
		record_unlink(engine, record);
	trace_ended(TRACE_WRITE_TO, record->peer, record->posted_ns);
	nic->under_way -= 1 + record->covers;
	engine->peers[record->peer].under_way -= 1 + record->covers;
	record->used = false;
	record->generation++;
	record->next = engine->free_records;
	engine->free_records = (uint32_t)(record - engine->records);
}

#endif
