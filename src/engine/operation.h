/* SPDX-License-Identifier: Apache-2.0 */
/* What callers asked for: operations are given out, end once, are waited for and given back.
 * completion_end is for whoever may have an operation, a counter or nothing to tell. */
#ifndef TERN_ENGINE_OPERATION_H
#define TERN_ENGINE_OPERATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/inside.h"

enum operation_kind {
	OPERATION_PLAIN, /* all is in the command */
	OPERATION_PAGES,
	OPERATION_SCATTER,
	OPERATION_EXPECT, /* barriers too */
	OPERATION_GROUP,
	OPERATION_CALL
};

/* Given out by its number; the handle is generation and number + 1. It belongs to the proxy, and to
 * the handle if there is one: who lets go last gives it back. */
struct operation {
	_Atomic uint32_t generation;
	_Atomic uint32_t holders;
	_Atomic uint32_t ended; /* 1: error and cause stand. Release and acquire: operation_end,
				   operation_has_ended */
	struct wakeup wakeup;
	enum operation_kind kind;
	int error;
	tern_done_fn done;
	void *ctx;
	union {
		struct tern_paged_write pages;
		struct tern_scatter scatter;
		struct {
			uint32_t immediate;
			uint64_t count;
			struct tern_peers *peers;
		} expect;
		struct {
			enum tern_signal_policy policy;
			uint32_t nr_puts;
			_Atomic uint32_t arrived; /* puts added by callers */
		} group;
		struct {
			int (*fn)(tern_engine *engine, void *ctx);
			void *ctx;
		} call;
	};
	/* the proxy's own */
	uint32_t pending; /* requests that have not ended, and one while they are being made */
	uint32_t puts_taken, puts_pending; /* group: puts that came, and that have not ended */
	uint32_t parked, last_parked; /* group: requests of signals that wait for their puts or for
					 the others */
	uint32_t next_expecting;      /* of the same value */
	bool expecting; /* never touched by operation_take: the proxy looks at those of free
			   operations too */
	char cause[CAUSE_TEXT];
};

uint32_t operation_take(tern_engine *engine, enum operation_kind kind, tern_done_fn done, void *ctx,
	bool with_handle);
tern_op operation_handle(const tern_engine *engine, uint32_t number);
struct operation *operation_of_handle(tern_engine *engine, tern_op op);
void operation_drop(tern_engine *engine, uint32_t number);
int operation_wait(tern_engine *engine, uint32_t number, uint64_t wait_ns);

/* On the proxy. The first error and cause stand; it ends with its last part. */
void operation_fail(struct operation *operation, int error, const char *cause);
void operation_part_ended(tern_engine *engine, uint32_t number);
void operation_end(tern_engine *engine, uint32_t number);

/* Of a counter's number: its index among those that were opened together; above them their place in
 * the table */
#define COUNTER_BITS 21
#define MAX_COUNTERS (1u << (32 - COUNTER_BITS))

/* NULL: none has this number. */
struct engine_counter *counter_of(const tern_engine *engine, uint32_t completion);

/* What became of something: to its operation, its counter, or nobody (NONE). */
void completion_end(
	tern_engine *engine, uint32_t completion, bool counted, int error, const char *cause);

#endif
