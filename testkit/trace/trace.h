/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the marks of base/trace.h: what a rank's threads have done, in memory, until they are
 * taken. Marks cost a look at a flag while nothing is kept. */
#ifndef TERN_TESTKIT_TRACE_TRACE_H
#define TERN_TESTKIT_TRACE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"

#define TRACE_NAME_BYTES 16

enum trace_shape {
	TRACE_IS_SPAN,   /* of a thread: whole, or inside another, or beside it */
	TRACE_IS_WRITE,  /* several may be under way at once */
	TRACE_IS_MOMENT, /* began and ended are the same */
};

struct trace_event {
	uint64_t began_ns, ended_ns; /* of CLOCK_MONOTONIC, or of whatever clock a device was told
					to have */
	uint8_t kind, shape;
	uint16_t thread; /* as trace_thread_name counts them */
	uint32_t peer;   /* TRACE_NOBODY: none */
};

/* Memory for so many; 0 or TERN_ERR_NOMEM. */
int trace_open(uint32_t most_events);
void trace_close(void);

/* From now on marks are kept, or no more: of what began before, or ends after, nothing is. */
void trace_start(void);
void trace_stop(void);

/* What has been kept since trace_open or trace_clear, in the order of their ends; *nr_lost: for
 * which there was no room. */
const struct trace_event *trace_events(uint32_t *nr, uint64_t *nr_lost);
void trace_clear(void);

/* NULL: no such thread. */
const char *trace_thread_name(uint32_t thread);

/* One more thread, that is none: a block of a GPU, say. */
uint16_t trace_thread_add(const char *name);
void trace_put(const struct trace_event *event);

#endif
