/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: one peer's part of an operation, from the peer's queue to its last completion. */
#ifndef TERN_ENGINE_REQUEST_H
#define TERN_ENGINE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/inside.h"
#include "engine/memory.h"
#include "engine/operation.h"
#include "engine/peer.h"

enum request_kind {
	REQUEST_WRITE, /* bytes at local_offset to remote_offset */
	REQUEST_PAGES,
	REQUEST_SIGNAL /* the 8 bytes of `value` */
};

enum request_flags {
	REQUEST_IMMEDIATE = 1, /* still to be sent */
	REQUEST_COUNTED = 2,   /* completion is a counter */
	REQUEST_PINNED = 4,    /* all of it on the peer's own NIC, for its order there */
	REQUEST_FENCE = 8,     /* the next write carries WRITE_FENCE */
	REQUEST_PUT = 16,      /* of a group: partner is its signal, or none */
	REQUEST_QUEUED = 32,
	REQUEST_LAST = 64, /* all of its bytes are posted; only an immediate is left, to go when
			      they have landed */
	REQUEST_TOLD = 128 /* its end was told; what is left is the network's */
};

/* It was to go unsignalled, and still is: its place among the NIC's unsignalled writes is kept. */
#define PUT_OFF_UNSIGNALLED 0x100

/* A part of an operation that goes to one peer; in that peer's queue until all of it is posted,
 * alive until all of it has landed. */
struct request {
	uint8_t kind, flags;
	uint16_t put_off; /* its next write was: the NIC + 1, which is asked again, and
			     PUT_OFF_UNSIGNALLED */
	uint32_t generation;
	uint32_t next; /* in a queue, a parking list or the free list */
	uint32_t peer;
	uint32_t completion; /* operation or counter, or NONE */
	uint32_t partner;
	uint32_t immediate;
	uint32_t outstanding; /* signalled writes that have not landed */
	int error;
	uint32_t page; /* next one */
	struct tern_region *local;
	struct tern_remote *remote;
	struct tern_peers *peers; /* in use as long as the request is */
	uint64_t local_offset, remote_offset, bytes;
	uint64_t at; /* bytes posted (REQUEST_PAGES: of this page) */
	uint64_t value;
};

/* NULL: none is left. */
struct request *request_take(tern_engine *engine, uint32_t peer, enum request_kind kind);
uint32_t request_number(const tern_engine *engine, const struct request *request);
void request_queue(tern_engine *engine, struct request *request);
/* What was put off is posted, or will not be. */
void request_take_up_again(tern_engine *engine, struct request *request);
struct request *queue_first(tern_engine *engine, struct queue *queue);
void queue_pop(tern_engine *engine, struct queue *queue);

/* Notes it; it ends when nothing of it is under way. */
void request_fail(tern_engine *engine, struct request *request, int error, const char *cause);
/* Its end is told now, with this error unless it had one; the network may still have it. */
void request_give_up(tern_engine *engine, struct request *request, int error, const char *cause);
/* Ends it if nothing of it is queued or under way. */
void request_check_ended(tern_engine *engine, struct request *request);

static inline void request_set_memory(
	struct request *request, struct tern_region *local, struct tern_remote *remote)
{
	request->local = local;
	request->remote = remote;
	if (local)
		local->uses++;
	if (remote)
		remote->uses++;
}

static inline void request_set_completion(
	tern_engine *engine, struct request *request, uint32_t completion, bool counted)
{
	request->completion = completion;
	if (counted)
		request->flags |= REQUEST_COUNTED;
	else if (completion != NONE)
		engine->operations[completion].pending++;
}

#endif
