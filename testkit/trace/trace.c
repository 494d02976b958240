/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/trace/trace.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "tern.h"

#define MOST_THREADS 4096

static struct {
	struct trace_event *events;
	uint32_t most;
	_Atomic uint64_t nr; /* also those for which there was no room */
	_Atomic bool runs;
	_Atomic uint32_t nr_inside; /* threads that put an event */
	pthread_mutex_t lock;       /* of names */
	char names[MOST_THREADS][TRACE_NAME_BYTES];
	_Atomic uint32_t nr_threads;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local uint32_t own_thread; /* + 1 */

int trace_open(uint32_t most_events)
{
	kept.events = calloc(most_events, sizeof(*kept.events));
	kept.most = kept.events ? most_events : 0;
	return kept.events ? 0 : TERN_ERR_NOMEM;
}

void trace_close(void)
{
	trace_stop();
	free(kept.events);
	kept.events = NULL;
	kept.most = 0;
}

void trace_start(void)
{
	atomic_store(&kept.runs, kept.most > 0);
}

void trace_stop(void)
{
	atomic_store(&kept.runs, false);
	while (atomic_load(&kept.nr_inside))
		sched_yield();
}

const struct trace_event *trace_events(uint32_t *nr, uint64_t *nr_lost)
{
	uint64_t all = atomic_load(&kept.nr);

	*nr = all < kept.most ? (uint32_t)all : kept.most;
	*nr_lost = all - *nr;
	return kept.events;
}

void trace_clear(void)
{
	atomic_store(&kept.nr, 0);
}

uint16_t trace_thread_add(const char *name)
{
	uint32_t number;

	pthread_mutex_lock(&kept.lock);
	number = atomic_load(&kept.nr_threads);
	if (number < MOST_THREADS - 1) /* the last one is of all that are too many */
		atomic_store(&kept.nr_threads, number + 1);
	snprintf(kept.names[number], TRACE_NAME_BYTES, "%s", name);
	pthread_mutex_unlock(&kept.lock);
	return (uint16_t)number;
}

const char *trace_thread_name(uint32_t thread)
{
	return thread < atomic_load(&kept.nr_threads) ? kept.names[thread] : NULL;
}

static uint16_t this_thread(void)
{
	char name[TRACE_NAME_BYTES] = "";

	if (!own_thread) {
		prctl(PR_GET_NAME, name);
		own_thread = 1u + trace_thread_add(name);
	}
	return (uint16_t)(own_thread - 1);
}

void trace_put(const struct trace_event *event)
{
	uint64_t at;

	atomic_fetch_add(&kept.nr_inside, 1);
	if (atomic_load(&kept.runs)) { /* trace_stop has not begun to wait */
		at = atomic_fetch_add_explicit(&kept.nr, 1, memory_order_relaxed);
		if (at < kept.most)
			kept.events[at] = *event;
	}
	atomic_fetch_sub(&kept.nr_inside, 1);
}

static void keep(enum trace_kind kind, enum trace_shape shape, uint32_t peer, uint64_t began_ns,
	uint64_t ended_ns)
{
	struct trace_event event = {.began_ns = began_ns,
		.ended_ns = ended_ns,
		.kind = (uint8_t)kind,
		.shape = (uint8_t)shape,
		.peer = peer};

	if (!atomic_load_explicit(&kept.runs, memory_order_relaxed))
		return;
	event.thread = this_thread();
	trace_put(&event);
}

struct trace_mark trace_begin(enum trace_kind kind, uint32_t peer)
{
	return (struct trace_mark){
		.began_ns = atomic_load_explicit(&kept.runs, memory_order_relaxed) ? clock_ns() : 0,
		.kind = kind,
		.peer = peer};
}

void trace_end(struct trace_mark *mark)
{
	if (mark->began_ns)
		keep((enum trace_kind)mark->kind, TRACE_IS_SPAN, mark->peer, mark->began_ns,
			clock_ns());
}

void trace_ended(enum trace_kind kind, uint32_t peer, uint64_t began_ns)
{
	keep(kind, TRACE_IS_WRITE, peer, began_ns, clock_ns());
}

void trace_moment(enum trace_kind kind, uint32_t peer)
{
	uint64_t now_ns = clock_ns();

	keep(kind, TRACE_IS_MOMENT, peer, now_ns, now_ns);
}
