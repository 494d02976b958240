/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated network's own structures; sim.h is for everybody else.
 *   network.c  virtual time: the heap of events, randomness, who is ready
 *   faults.c   links, cuts, stalls and deaths
 *   wire.c     what happens to a write and a message between posting and completion
 *   end.c      how it ends, and what the engine is told
 *   post.c     the calls on the data path: write, send, poll
 *   sim.c      the others: open, connect, reg */
#ifndef TERN_TESTKIT_SIM_INSIDE_H
#define TERN_TESTKIT_SIM_INSIDE_H

#include "testkit/sim/sim.h"

#define MAX_PIECES 64
#define SIM_INLINE_BYTES 64 /* most */
#define POOLED_MESSAGE_BYTES 512
#define NO_PEER UINT32_MAX

/* ---- events ---------------------------------------------------------------------------------- */

enum happening_kind {
	HAPPEN_WAKE = 1, /* serial: the endpoint to mark ready, or 0 */
	HAPPEN_DOWN,     /* serial: the endpoint to tell; detail: its peer */
	HAPPEN_KILL,     /* detail: the rank */
	HAPPEN_MESSAGE,  /* subject: the message, at its target */
	HAPPEN_ENTER,    /* subject, from here on: the write; it enters its queue pair */
	HAPPEN_ARRIVE,   /* its first byte is at the target */
	HAPPEN_LAND,     /* detail: the piece */
	HAPPEN_REPORT,   /* its immediate */
	HAPPEN_ACKED,    /* detail: 1 for the duplicate */
	HAPPEN_EXPIRE
};

struct happening {
	uint64_t at, order; /* order breaks ties: first come, first served */
	void *subject;
	uint64_t serial; /* of the write when this was foreseen: another by now means that the write
			    is over */
	uint32_t kind, detail;
};

/* ---- pools: free objects in a list, made in blocks ------------------------------------------- */

struct pool_block {
	struct pool_block *next;
};

struct pool {
	size_t bytes; /* of an object; its first pointer links free ones */
	void *free;
	struct pool_block *blocks;
	uint64_t total_bytes;
};

void *sim_pool_take(struct pool *pool); /* zeroed; NULL: no memory */
void sim_pool_give(struct pool *pool, void *object);

/* ---- writes, messages, events for the engine ------------------------------------------------- */

struct flight {
	struct flight *next; /* in its queue pair, or in the target's arrivals; first, for the pool
			      */
	struct flight *newer, *older; /* in its endpoint */
	uint64_t serial;              /* changes when it is over */
	struct endpoint *source; /* NULL: the source is done with it; its immediate may still be due
				  */
	uint64_t target;         /* endpoint_id */
	uint64_t from_id;        /* the source's, also when source is NULL */
	uint32_t from_rank, to_rank;
	uint32_t peer, flags, immediate;
	uint32_t nr_pieces;
	uint64_t landed; /* a bit for each piece */
	bool injected, arriving, reported, fenced, bad_key;
	const uint8_t *from;
	uint64_t address, key, bytes, cookie;
	uint64_t wire_ns; /* how long its bytes take */
	uint8_t inlined[SIM_INLINE_BYTES];
};

struct note { /* an event for the engine; first: the pool's link */
	struct note *next;
	struct transport_event event;
	struct message *message;
};

struct message {
	struct message *next;
	uint64_t target; /* endpoint_id */
	uint64_t from_id;
	uint32_t from_rank, to_rank, bytes;
	bool pooled;
	uint8_t data[];
};

/* ---- endpoints: one for each opened transport ------------------------------------------------ */

struct queue_pair {
	struct flight *head, *tail; /* entered, not yet with the NIC */
	uint32_t nr_outstanding;    /* with the NIC, not acknowledged */
};

struct peer {
	uint64_t target; /* endpoint_id; 0: not connected */
	uint32_t rank;
	bool down;
	uint64_t ready_ns;
	uint64_t arrive_ns, land_ns, acked_ns, message_ns; /* the last ones; ordered: nothing before
							      these */
};

struct transport_region {
	uint8_t *base;
	uint64_t bytes, key; /* key: its place in the endpoint's table below, a count above */
};

struct refused { /* a write that was answered AGAIN */
	uint32_t peer, flags, immediate;
	uint64_t cookie, address, bytes;
	const void *from;
	bool any;
};

struct endpoint {
	struct transport base; /* first: a struct transport * is an endpoint * */
	struct sim_network *network;
	uint32_t number, incarnation, rank, nr_peers, depth, message_bytes;
	bool dead;
	struct peer *peers;
	uint32_t *peer_of; /* by endpoint number */
	uint32_t nr_peer_of;
	struct transport_region **regions;
	uint32_t nr_regions;
	struct queue_pair *queue_pairs;
	uint32_t nr_queue_pairs;
	struct flight *oldest, *newest;         /* writes under way */
	struct flight *arrivals, *last_arrival; /* target_polls: waiting for a poll */
	uint32_t nr_in_flight, nr_messages;
	struct note *notes, *last_note; /* for poll */
	struct message *lent;           /* data of the events that the last poll returned */
	struct refused refused;
	uint32_t nr_refusals;             /* in a row */
	uint64_t proxy_ns, out_ns, in_ns; /* until when proxy, NIC out and NIC in are busy */
	uint64_t wake_ns;                 /* the earliest wake that is pending; 0: none */
	bool ready;
	struct endpoint *next_ready;
};

struct pair_fault { /* what is special between two ranks, one way */
	uint32_t from, to;
	bool cut, has_link;
	struct sim_link link;
};

struct sim_network {
	struct sim_settings settings;
	uint64_t now, order, serial, nr_keys, random, hash;
	struct happening *heap;
	size_t nr_happenings, room;
	struct pool flights, notes, messages;
	struct endpoint **endpoints; /* by number; NULL: closed, to be used again */
	uint32_t *incarnations;
	uint32_t nr_endpoints, room_endpoints;
	struct pair_fault *faults;
	uint32_t nr_faults;
	struct endpoint *ready, *last_ready;
	struct sim_stats stats;
	uint64_t nr_in_flight; /* writes */
	int failed; /* no memory in the middle of an event: every call says so from then on */
};

/* network.c */
bool sim_foresee(struct sim_network *network, uint64_t at, enum happening_kind kind, void *subject,
	uint64_t serial, uint32_t detail);
bool sim_chance(struct sim_network *network, uint32_t per_mille);
uint64_t sim_delay(struct sim_network *network, uint64_t most_ns); /* 0 to most_ns */
void sim_endpoint_ready(struct endpoint *endpoint);
void sim_endpoint_wake(struct endpoint *endpoint, uint64_t at);

/* faults.c */
bool sim_is_cut(const struct sim_network *network, uint32_t from, uint32_t to);
const struct sim_link *sim_link_between(
	const struct sim_network *network, uint32_t from, uint32_t to);
bool sim_same_node(const struct sim_network *network, uint32_t a, uint32_t b);
void sim_kill_now(struct sim_network *network, uint32_t rank);
void sim_tell_end(struct endpoint *endpoint, uint64_t late_ns); /* all who are connected to it */

/* wire.c */
void sim_wire_happen(struct sim_network *network, const struct happening *what); /* HAPPEN_ENTER and
										    after */
void sim_wire_poison(struct flight *flight);
void sim_wire_message(struct sim_network *network, struct message *message);
void sim_wire_progress(struct endpoint *endpoint); /* what waited for a poll */
void sim_queue_pair_kick(struct sim_network *network, struct queue_pair *qp);
void sim_flight_copy_piece(struct endpoint *target, struct flight *flight, uint32_t piece);

static inline bool sim_keeps_order(const struct sim_settings *settings)
{
	return settings->ordered && !settings->lies;
}

/* end.c */
struct note *sim_note_add(struct endpoint *endpoint, enum transport_event_kind kind, uint32_t peer);
void sim_note_written(struct endpoint *endpoint, const struct flight *flight);
void sim_note_failed(
	struct endpoint *endpoint, const struct flight *flight, int error, const char *text);
uint32_t sim_peer_number(const struct endpoint *endpoint, uint64_t from_id, uint32_t from_rank);
bool sim_is_down(const struct endpoint *endpoint, uint32_t peer);
bool sim_flight_has_landed(const struct flight *flight);
struct queue_pair *sim_queue_pair_of(const struct flight *flight);
void sim_flight_release(struct sim_network *network, struct flight *flight);
void sim_flight_finish(struct flight *flight);
void sim_wire_peer_down(struct endpoint *endpoint, uint32_t peer, int error, const char *text);
void sim_wire_drop(struct endpoint *endpoint, uint32_t peer); /* the writes to this peer, without a
								 word */
void sim_wire_abandon(struct endpoint *endpoint, bool torn);  /* all of them; torn: pieces that are
								 on the wire may still land */

/* post.c */
int sim_write(struct transport *transport, const struct transport_write *write);
int sim_send(struct transport *transport, uint32_t peer, const void *data, uint32_t bytes);
int sim_poll(struct transport *transport, struct transport_event *events, int max);

/* sim.c */
static inline struct endpoint *endpoint_of(struct transport *transport)
{
	return (struct endpoint *)transport;
}

uint64_t sim_endpoint_id(const struct endpoint *endpoint);
struct endpoint *sim_endpoint_find(const struct sim_network *network, uint64_t id); /* NULL: closed
										       or dead */
void sim_message_give(struct sim_network *network, struct message *message);
void sim_give_lent(struct endpoint *endpoint); /* the messages that the last poll returned */

#endif
