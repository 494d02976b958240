/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the engine path: what its parts stand on. Above this:
 *   internode_send.c  rows in chunks to other nodes' gateways (high throughput)
 *   relay.c        the gateway: rows out of chunks to the ranks of its node, on the proxy thread
 *   results.c      results home in pieces (high throughput), or staged as a whole (low latency)
 * and above these:
 *   path_engine.c  opening and closing, immediates, words in one write
 */
#ifndef TERN_PATH_INSIDE_H
#define TERN_PATH_INSIDE_H

#include "engine/engine.h"
#include "path/leave_status.h"
#include "path/place.h"

/* Low bits of an epoch in an immediate; with them a kind has BITS + 5 of its own, and the source
 * the rest. A view has two epochs, and ranks of an elastic group see no word in some of them; there
 * are fewer of them. */
#define EPOCH_BITS 4
#define ELASTIC_EPOCH_BITS 8
#define SLOT_BITS 4 /* and one of whether it is released */

enum immediate_kind {
	IMMEDIATE_DISPATCH,
	IMMEDIATE_COMBINE,
	IMMEDIATE_COUNTS_EVEN,
	IMMEDIATE_COUNTS_ODD,
	IMMEDIATE_PART,
	IMMEDIATE_CHUNK,
	IMMEDIATE_CREDIT,
	IMMEDIATE_PIECE,
	NR_IMMEDIATE_KINDS
};

/* Writes begun by one thread and ended by the engine: how many of each. */
struct sent {
	const struct engine_counter *ended;
	uint32_t id; /* of that counter */
	uint64_t begun;
};

/* So many of these, which take one place in the engine's table together. */
struct sent_list {
	struct sent *each; /* [counters.nr] */
	struct engine_counters counters;
	bool open;
};

struct engine_path {
	tern_engine *engine;
	uint8_t prefix;
	bool claimed;
	uint8_t *staging; /* what this rank sends lies here until it has landed */
	uint64_t staging_bytes;
	uint64_t counts, notes, regions, results_at, channels_at; /* offsets in it */
	uint64_t results_bytes;                                   /* low latency: of one home's */
	uint32_t *number_of;   /* [R] of a rank that is not mapped, among these */
	uint32_t nr_internode; /* ranks that are not mapped */
	uint32_t epoch_bits;
	tern_region *staging_region, *window_region;
	struct elastic_path *elastic; /* of an elastic exchange; else NULL: elastic_path.h */
	struct path_view *view;       /* likewise: view.h */
	tern_remote **windows;        /* [R]; NULL: mapped */
	struct sent_list pieces;      /* [slots][NR_WORD_KINDS] */
	struct sent_list credits;     /* one: the proxy's own until it is unclaimed */
	struct leave_statuses leave_statuses;
	_Atomic uint32_t violation; /* the rank that sent something broken + 1 */
	char violation_text[160];
	struct channels *channels;
	struct relay *relay;
	struct results *results;
};

int sent_open(tern_engine *engine, struct sent_list *list, uint32_t nr);
/* What was begun has ended, or time is over: then the counters are closed. Also after a failed
 * sent_open, or none. */
void sent_close(const tern_moe *moe, struct sent_list *list, uint64_t deadline_ns);

static inline bool sent_has_ended(const struct sent *sent)
{
	return engine_counter_ended(sent->ended) == sent->begun;
}

static inline bool sent_have_ended(const struct sent_list *list)
{
	for (uint32_t i = 0; i < list->counters.nr; i++)
		if (!sent_has_ended(&list->each[i]))
			return false;
	return true;
}

static inline uint32_t own_bits(const struct engine_path *path)
{
	return path->epoch_bits + SLOT_BITS + 1;
}

uint32_t immediate_make(const tern_moe *moe, enum immediate_kind kind, uint32_t bits);
uint32_t immediate_round(const tern_moe *moe, uint32_t slot); /* own bits: slot and low bits of its
								 epoch */

/* One write of staged bytes into `rank`'s window with an immediate, counted by sent. A failure ends
 * the exchange. */
int path_write(tern_moe *moe, struct sent *sent, uint32_t rank, uint32_t immediate,
	const uint8_t *from, uint64_t offset, uint64_t bytes);

/* On the proxy: what `source` sent cannot come from a correct peer; the exchange ends. The first
 * one is told. */
void path_violation(tern_moe *moe, uint32_t source, const char *what);

/* On the proxy: stores source's arrival word in this rank's window and rings. */
void path_arrived(tern_moe *moe, uint32_t rank, uint32_t slot, enum word_kind kind, uint32_t source,
	uint64_t word);

/* Of a rank that is not mapped: path.h. */
uint64_t engine_path_leave_status(const tern_moe *moe, uint32_t rank);
bool engine_path_is_lost(const tern_moe *moe, uint32_t rank, const char **text);
int engine_path_broken(const tern_moe *moe, const char **text);

#endif
