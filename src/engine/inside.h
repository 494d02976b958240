/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an engine, where a reader begins: how a command flows through, and what the modules
 * share. What each offers is in the header of its name.
 *
 *   submit.c, memory.c, message.c (callers)      ring      dequeue.c         post.c              events.c
 *   operation (what the caller asked) ──────► command ──► requests ──► transport writes ──► completions ──► requests ──► operation ends
 *                                                         one peer each   (records)                       operation.c: wakes, calls
 *
 * Files call each other one way, never in a circle; what comes back up is an outcome or a callback
 * that somebody has left (done, claims, COMMAND_CALL).
 *
 * Everything below `the proxy's own` is touched by the proxy alone (or the scheduler of a stepped
 * engine). The pools of operations and messages, the ring, the inbox and the flags of lost peers
 * are shared, and what orders them is said where they stand.
 */
#ifndef TERN_ENGINE_INSIDE_H
#define TERN_ENGINE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/command.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/nics.h"
#include "engine/pool.h"
#include "engine/ring.h"
#include "engine/signal.h"
#include "engine/wakeup.h"

#define NONE UINT32_MAX
#define CAUSE_TEXT 192
#define MAX_RINGS 32 /* of devices */

struct tern_engine {
	struct ring ring;
	struct wakeup wakeup; /* the proxy sleeps on it */
	struct pool free_operations, free_messages;
	_Atomic uint64_t parked_room; /* signals that may still be parked: submit.c, put_group */
	_Atomic uint32_t nr_down;
	_Atomic uint64_t timeout_ns; /* engine_bear_silence; a number of its own, so relaxed */
	_Atomic uint32_t leaving;    /* the proxy is to finish and end */
	_Atomic uint64_t polls;      /* of all networks */
	struct tern_engine_config config;
	struct engine_setup setup;
	char description[512];
	struct operation *operations;
	uint8_t *messages; /* struct outgoing [nr_messages], message_stride apart */
	uint32_t nr_messages, message_stride;
	struct inbox inbox;
	struct engine_peer *peers;
	pthread_t thread;
	bool thread_runs, connected;
	pthread_mutex_t tables_lock; /* of control calls alone */
	uint32_t table_end;
	struct tern_region **regions, *given_up;
	struct tern_remote **remotes;
	struct tern_peers **lists;
	struct engine_counters **counters;
	uint32_t caps; /* what all networks that are open have. TRANSPORT_TARGET_POLLS and _PINS:
			  what one has; TRANSPORT_FENCE: also where none is needed, as writes are in
			  order */
	uint32_t nr_networks, nr_nics;
	struct network networks[TERN_MAX_NICS];
	char network_names[TERN_MAX_NICS][ENGINE_NETWORK_NAME]; /* of an engine over a group */
	uint32_t nr_stores; /* of weights, that were made over it */
	char *names;        /* what the setup's networks point to, if it is the engine's to free */

	/* the proxy's own */
	bool inside_step, time_runs, saying_goodbye;
	uint64_t now_ns, next_look_ns, look_every_ns, last_look_ns, leave_ns;
	uint64_t heartbeat_ns;
	struct nic nics[TERN_MAX_NICS];
	struct request *requests;
	uint32_t nr_requests, free_requests, nr_free_requests;
	struct record *records;
	uint64_t *words; /* [nr_records] sources of signals */
	uint32_t nr_records, free_records;
	uint32_t first_active, last_active;
	struct ring *rings[MAX_RINGS]; /* of devices */
	bool keeps_awake[MAX_RINGS];   /* and the proxy with it */
	uint32_t nr_rings, nr_awake;
	struct command command; /* taken and not yet done with */
	bool command_held;
	uint32_t command_at; /* members done */
	struct stall stall;
	struct immediate_count *counts;
	uint32_t counts_mask, nr_counts;
	bool counts_lost;
	struct engine_claim claims[NR_PREFIXES];
	struct engine_message_claim message_claim;
	uint32_t on_their_way[NR_PREFIXES]; /* immediates of writes: sent from here, less those that
					       came here */
	bool used[NR_PREFIXES], spent[NR_PREFIXES]; /* claimed once; and a peer was lost since:
						       prefix.c */
	bool asked_again[NR_PREFIXES];              /* of claims */
	uint32_t nr_asked_again;
	struct pollfd *processes; /* of peers on this machine */
	uint32_t *process_peers, nr_processes;
	uint32_t nr_messages_queued;
	struct tern_engine_stats stats;
	uint64_t awake_until_ns;
};

/* Release: what polling brought comes before it. Pairs with polls_observe. */
static inline void polls_publish(tern_engine *engine)
{
	atomic_store_explicit(&engine->polls,
		atomic_load_explicit(&engine->polls, memory_order_relaxed) + 1,
		memory_order_release);
}

static inline uint64_t polls_observe(const tern_engine *engine)
{
	return atomic_load_explicit(&engine->polls, memory_order_acquire);
}

/* Where bytes move only while both ends poll, whoever sleeps holds them up, and plain writes bring
 * no news to the target. So both ends go on polling for so long after the last word of more. */
#define AWAKE_NS 20000000u
static inline void stay_awake(tern_engine *engine)
{
	engine->awake_until_ns = engine->now_ns + AWAKE_NS;
}

#endif
