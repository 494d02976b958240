/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an engine.
 *
 *   submit.c, memory.c, message.c (callers)      ring      dequeue.c         post.c              events.c
 *   operation (what the caller asked) ──────► command ──► requests ──► transport writes ──► completions ──► requests ──► operation ends
 *                                                         one peer each   (records)                       operation.c: wakes, calls
 *
 * Everything below `the proxy's own` is touched by the proxy alone (or the scheduler of a stepped
 * engine). The pools of operations and messages, the ring, the inbox and the flags of lost peers
 * are shared, and what orders them is said where they stand.
 */
#ifndef TERN_ENGINE_INSIDE_H
#define TERN_ENGINE_INSIDE_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/wakeup.h"
#include "engine/command.h"
#include "engine/engine.h"
#include "base/error.h"
#include "group/group.h"
#include "engine/pool.h"
#include "engine/ring.h"
#include "base/struct_size.h"

#define NONE UINT32_MAX
#define CAUSE_TEXT 192
#define WHY_TEXT 256
#define MAX_TABLE 65536
/* of a counter's number: its index among those that were opened together; above them their place in
 * the table */
#define COUNTER_BITS 21
#define MAX_COUNTERS (1u << (32 - COUNTER_BITS))
#define MAX_RINGS 32 /* of devices */

/* ---- what callers asked for ------------------------------------------------------------------ */

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

/* ---- memory ---------------------------------------------------------------------------------- */

struct tern_region {
	tern_engine *engine;
	uint8_t *base;
	uint64_t bytes;
	struct transport_region *on[TERN_MAX_NICS];
	struct transport_key keys[TERN_MAX_NICS];
	uint32_t id;
	uint32_t uses;             /* the proxy's own: requests that name it */
	engine_release_fn release; /* it was given up, and could not be yet */
	void *release_ctx;
	struct tern_region *next_given_up; /* when the engine ends */
};

struct tern_remote {
	tern_engine *engine;
	uint64_t bytes;
	struct transport_key keys[TERN_MAX_NICS];
	uint32_t id, peer;
	uint32_t uses; /* the proxy's own */
};

/* The work request of a member, as far as it is the same for all operations. */
struct work_template {
	uint32_t peer;
	struct tern_remote *remote;
};

struct tern_peers {
	tern_engine *engine;
	uint32_t nr, id;
	uint32_t uses; /* the proxy's own */
	struct work_template members[];
};

/* ---- work ------------------------------------------------------------------------------------ */

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

/* it was to go unsignalled, and still is: its place among the NIC's unsignalled writes is kept */
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

/* A signalled write under way. */
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

struct queue {
	uint32_t first, last;
};

struct engine_peer {
	_Atomic int down; /* 0, or why: peer_publish_down, peer_observe_down */
	char cause[CAUSE_TEXT];
	_Atomic uint32_t unread_returned; /* messages that were read and whose credits have not gone
					     back */
	struct network *network;          /* that leads to it; set once */
	/* the proxy's own */
	struct queue writes, messages;
	uint32_t next_active;
	bool active, fence_pending, spoke; /* spoke: a message of its came */
	uint32_t under_way;                /* credits taken */
	uint32_t unsignalled;              /* of these, since the last signalled write */
	uint32_t nr_records, first_record, last_record;
	uint32_t message_credits;
	uint64_t heard_ns, told_ns, progress_ns;
	struct engine_traffic posted;
	bool said_goodbye, goodbye_sent, knows_goodbye; /* it leaves; it was told that this rank
							   does; it has answered */
	uint64_t suspect_ns; /* when it was first seen gone; 0: it was not */
	char why[WHY_TEXT];  /* its network leads to it; set once */
};

/* A network that leads to some of the peers, and its NICs among the engine's: first_nic, nr_nics.
 */
struct network {
	uint32_t first_nic, nr_nics;
	uint32_t caps;   /* enum transport_caps that all of its NICs have; TRANSPORT_TARGET_POLLS:
			    that one has */
	bool one_order;  /* all writes to a peer land in the order of posting, whichever they are */
	bool heartbeats; /* silence means something there */
	/* the proxy's own */
	bool failed;         /* it could not be polled any more */
	uint32_t next_nic;   /* of its own, whose turn it is */
	uint64_t starved_ns; /* the last look at which none of its NICs had a credit left */
};

struct nic {
	struct transport *transport; /* NULL: closed, as its network leads to no peer of this rank
				      */
	struct network *network;
	struct transport_info info;
	uint32_t depth, under_way;
	uint32_t unsignalled; /* of these, since the last signalled write of their peer; and those
				 that were put off */
	struct transport_region *words_region;
};

/* A policy that holds up the ring until writes have landed. */
enum stall_kind {
	STALL_NONE,
	STALL_PEER,
	STALL_ALL_PEERS,
	STALL_GROUP
};

struct stall {
	enum stall_kind kind;
	uint32_t peer;   /* STALL_ALL_PEERS: the one that is being waited for */
	uint32_t group;  /* operation */
	uint64_t polled; /* step at which that peer's wait began: each is polled for at least once
			  */
};

/* Counts of one immediate value. */
struct immediate_count {
	bool used;
	uint32_t value;
	uint32_t first, last; /* operations that expect it */
	uint64_t count;
};

/* ---- messages -------------------------------------------------------------------------------- */

enum message_kind {
	MESSAGE_DATA = 1,
	MESSAGE_HEARTBEAT = 2, /* also gives credits back */
	MESSAGE_GOODBYE = 3,
	MESSAGE_GOODBYE_SEEN = 4
};

struct message_header {
	uint32_t kind;
	uint32_t credits; /* messages of the receiver's that were read since the last header */
	uint32_t bytes;
	uint32_t reserved;
};

/* One that waits to be sent. */
struct outgoing {
	uint32_t next; /* of the same peer */
	uint32_t completion;
	struct message_header header; /* goes out with the bytes behind it */
	uint8_t data[];
};

struct inbox_slot {
	_Atomic uint64_t turn;  /* position: free for it; position + 1: filled */
	_Atomic uint32_t bytes; /* read by who may lose the slot to another reader */
	uint32_t peer;
	uint8_t *data;
};

struct inbox {
	_Atomic uint64_t head;
	uint64_t tail; /* the proxy's own */
	uint64_t mask;
	struct inbox_slot *slots;
	uint8_t *memory;
	struct wakeup wakeup;
};

/* ---- engine ---------------------------------------------------------------------------------- */

struct tern_engine {
	struct ring ring;
	struct wakeup wakeup; /* the proxy sleeps on it */
	struct pool free_operations, free_messages;
	_Atomic uint64_t parked_room; /* signals that may still be parked: submit.c, put_group */
	_Atomic uint32_t nr_down;
	_Atomic uint64_t timeout_ns; /* engine_bear_silence; a number of its own, so relaxed */
	_Atomic uint32_t leaving;    /* the proxy is to finish and end */
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
	uint32_t caps; /* what all networks that are open have. TRANSPORT_TARGET_POLLS: what one
			  has; TRANSPORT_FENCE: also where none is needed, as writes are in order */
	uint32_t nr_networks, nr_nics;
	struct network networks[TERN_MAX_NICS];
	char *names; /* what the setup's networks point to, if it is the engine's to free */

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
	uint32_t nr_rings;
	struct command command; /* taken and not yet done with */
	bool command_held;
	uint32_t command_at; /* members done */
	struct stall stall;
	struct immediate_count *counts;
	uint32_t counts_mask, nr_counts;
	bool counts_lost;
	struct engine_claim claims[NR_PREFIXES];
	uint32_t on_their_way[NR_PREFIXES]; /* immediates of writes: sent from here, less those that
					       came here */
	bool asked_again[NR_PREFIXES];      /* of claims */
	uint32_t nr_asked_again;
	struct pollfd *processes; /* of peers on this machine */
	uint32_t *process_peers, nr_processes;
	uint32_t nr_messages_queued;
	struct tern_engine_stats stats;
};

/* operation.c */
uint32_t operation_take(tern_engine *engine, enum operation_kind kind, tern_done_fn done, void *ctx,
	bool with_handle);
tern_op operation_handle(const tern_engine *engine, uint32_t number);
struct operation *operation_of_handle(tern_engine *engine, tern_op op);
void operation_drop(tern_engine *engine, uint32_t number);
void operation_fail(struct operation *operation, int error, const char *cause); /* the first cause
										   stands */
void operation_end(tern_engine *engine, uint32_t number);
void operation_part_ended(tern_engine *engine, uint32_t number);
int operation_wait(tern_engine *engine, uint32_t number, uint64_t deadline_ns);

/* A bounded wait of a caller: spins, then yields, then gives time away; a stepped engine is stepped
 * by it. */
struct patience {
	tern_engine *engine;
	uint64_t deadline_ns, last_ns;
	uint32_t rounds, stuck;
};
struct patience patience_for(tern_engine *engine, uint64_t wait_ns);
bool patience_left(struct patience *patience); /* false: time is up */
uint64_t engine_now(const tern_engine *engine);
bool engine_on_proxy(const tern_engine *engine);

/* memory.c */
int memory_open(tern_engine *engine);
void memory_close(tern_engine *engine);
void memory_release(tern_engine *engine); /* once the transports are closed */

/* dequeue.c */
bool take_commands(tern_engine *engine, uint32_t budget);
bool commands_wait(const tern_engine *engine); /* in some ring */

/* request.c */
struct request *request_take(tern_engine *engine, uint32_t peer, enum request_kind kind);
uint32_t request_number(const tern_engine *engine, const struct request *request);
void request_queue(tern_engine *engine, struct request *request);
void request_fail(
	tern_engine *engine, struct request *request, int error, const char *cause); /* notes
											it;
											it
											ends
											when
											nothing
											of
											it
											is
											under
											way
										      */
/* Its end is told now, with this error unless it had one; the network may still have it. */
void request_give_up(tern_engine *engine, struct request *request, int error, const char *cause);
void request_check_ended(tern_engine *engine, struct request *request);
struct request *queue_first(tern_engine *engine, struct queue *queue);
void queue_pop(tern_engine *engine, struct queue *queue);
void request_take_up_again(tern_engine *engine, struct request *request);

/* post.c */
bool post_work(tern_engine *engine, uint32_t budget);

/* signal.c */
bool signal_stalled(tern_engine *engine); /* true: the ring is held up */
bool signal_take_put(tern_engine *engine, const struct command *command);

/* events.c */
bool poll_transports(tern_engine *engine);

/* counts.c */
int counts_open(tern_engine *engine);
void counts_close(tern_engine *engine);
void counts_arrive(tern_engine *engine, uint32_t value);
void counts_expect(tern_engine *engine, uint32_t number);
void counts_peer_down(tern_engine *engine);
void counts_end_all(tern_engine *engine, int error, const char *cause);
uint64_t counts_of(const tern_engine *engine, uint32_t value);

/* message.c */
int messages_open(tern_engine *engine);
void messages_close(tern_engine *engine);
void message_free(tern_engine *engine, uint32_t number);
struct outgoing *message_at(const tern_engine *engine, uint32_t number);
void message_queue(tern_engine *engine, uint32_t number, uint32_t peer, uint32_t completion);
/* How many went or ended; below 0: the peer is to be lost, with this error and its text. */
int post_messages(tern_engine *engine, uint32_t peer);
/* False: the peer has sent more or longer ones than it had credits for. */
bool message_arrived(tern_engine *engine, uint32_t peer, const void *data, uint32_t bytes);
void messages_peer_down(tern_engine *engine, uint32_t peer);
bool message_control(tern_engine *engine, uint32_t peer, enum message_kind kind);
void messages_return_credits(tern_engine *engine);

/* peer_lost.c */
void peer_lost(tern_engine *engine, uint32_t peer, int error, const char *cause);

/* failure_detector.c */
void look_after_peers(tern_engine *engine);
int watch_processes(tern_engine *engine);

/* nics.c */
void number_networks(tern_engine *engine);
int open_networks(tern_engine *engine);
void describe_networks(tern_engine *engine);
int register_words(tern_engine *engine);
void close_networks(tern_engine *engine);

/* leave.c */
bool leave_done(tern_engine *engine);
void end_everything(tern_engine *engine);

/* What became of something without an operation. */
struct engine_counter *counter_of(const tern_engine *engine, uint32_t completion); /* NULL: none has
										      this number */
void completion_end(
	tern_engine *engine, uint32_t completion, bool counted, int error, const char *cause);

/* proxy.c */
void *proxy_main(void *engine);

/* Release: the cause comes before it. Pairs with peer_observe_down. */
static inline void peer_publish_down(struct engine_peer *peer, int error)
{
	atomic_store_explicit(&peer->down, error, memory_order_release);
}

static inline int peer_observe_down(const struct engine_peer *peer)
{
	return atomic_load_explicit(&peer->down, memory_order_acquire);
}

static inline void peer_activate(tern_engine *engine, uint32_t peer)
{
	struct engine_peer *p = &engine->peers[peer];

	if (p->active)
		return;
	p->active = true;
	p->next_active = NONE;
	if (engine->last_active == NONE)
		engine->first_active = peer;
	else
		engine->peers[engine->last_active].next_active = peer;
	engine->last_active = peer;
}

static inline bool in_region(const struct tern_region *region, uint64_t offset, uint64_t bytes)
{
	return region && offset <= region->bytes && bytes <= region->bytes - offset;
}

static inline bool in_remote(
	const struct tern_remote *remote, uint32_t peer, uint64_t offset, uint64_t bytes)
{
	return remote && remote->peer == peer && offset <= remote->bytes &&
	       bytes <= remote->bytes - offset;
}

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
	nic->under_way -= 1 + record->covers;
	engine->peers[record->peer].under_way -= 1 + record->covers;
	record->used = false;
	record->generation++;
	record->next = engine->free_records;
	engine->free_records = (uint32_t)(record - engine->records);
}

#endif
