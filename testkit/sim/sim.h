/* SPDX-License-Identifier: Apache-2.0 */
/* A network in virtual time, for tests and for scale: its scheduler makes it, transports join it
 * (transport_options.network), and nothing happens in it but what the scheduler steps through. The
 * same seed, settings and calls give the same run, to the last nanosecond.
 *
 *   sim_network_create ── transport_sim.open (each rank) ── ... ──┬── the ranks write and poll ──┬── close ── sim_network_destroy
 *                                                                └── sim_step / sim_run_until ──┘
 *
 * A write's way, each arrow an event or a time span:
 *
 *   proxy: post_ns ─► queue pair, in order, held by a fence ─► NIC out: request_ns or bytes ─► latency + jitter ─► NIC in: bytes
 *     ─► pieces land in any order (reorder_ns) ─► all there: immediate at the target; latency + completion_ns later EVENT_WRITTEN here
 *
 * Everything is single-threaded: one thread drives the network and all transports on it. */
#ifndef TERN_TESTKIT_SIM_SIM_H
#define TERN_TESTKIT_SIM_SIM_H

#include "transport/transport.h"

extern const struct transport_ops transport_sim;

struct sim_network;

struct sim_link {
	uint64_t latency_ns;       /* one way */
	uint64_t jitter_ns;        /* up to this much more, drawn for each write */
	uint64_t bytes_per_second; /* 0: no limit */
};

/* The NIC and the proxy that feeds it. All zero: they cost nothing. */
struct sim_nic {
	uint64_t post_ns; /* the proxy's time for each write or send, during which it polls nothing
			   */
	uint64_t inline_post_ns;   /* the same for an inline write; 0: post_ns */
	uint64_t poll_ns;          /* and for each event that it takes */
	uint64_t request_ns;       /* the NIC's least time between two writes: its message rate */
	uint64_t completion_ns;    /* from the acknowledgement's arrival until EVENT_WRITTEN can be
				      polled */
	uint64_t bytes_per_second; /* out, and the same in; 0: no limit */
	uint32_t nr_queue_pairs;   /* peers are pinned, peer modulo this; 0: one each */
};

struct sim_settings {
	uint64_t seed;
	uint32_t ranks_per_node; /* ranks of one node meet over `near`, past the NIC; 0: every rank
				    is its own node */
	struct sim_link near, far;
	struct sim_nic nic;

	/* What the transport can do. */
	bool ordered; /* TRANSPORT_ORDERED */
	bool fence;   /* TRANSPORT_FENCE: a fenced write stays in its queue pair until all before it
			 there are acknowledged */
	bool target_polls; /* TRANSPORT_TARGET_POLLS */
	bool sees_death;   /* TRANSPORT_SEES_DEATH, detect_ns after it */
	uint32_t depth;    /* most writes under way of one transport */
	uint32_t inline_bytes;
	uint32_t message_bytes;
	uint64_t write_bytes;

	/* How pieces land. */
	uint64_t piece_bytes; /* writes are cut into pieces of this size, */
	uint32_t max_pieces;  /* but at most so many */
	uint64_t reorder_ns;  /* each piece, and each immediate, lands up to this much late; not on
				 an ordered network */

	/* Trouble. Per mille of draws, so 1000 is always. */
	uint32_t again_per_mille; /* of writes and sends that are answered AGAIN for no reason */
	uint32_t again_first; /* so many times is every write and send refused before it is taken */
	uint64_t again_ns; /* a refused one may be tried again after this long; schedulers are woken
			      then */
	uint32_t duplicate_per_mille; /* of acknowledgements that come twice; the second is dropped,
					 unless */
	bool duplicates_pass;         /* (to test tests) the engine sees it too */
	uint32_t stall_per_mille;     /* of writes before which the NIC stands still for stall_ns */
	uint64_t stall_ns;
	uint64_t completion_jitter_ns; /* completions are up to this much late */
	uint64_t connect_ns;           /* writes answer AGAIN until then */
	uint64_t detect_ns;            /* from a death until its peers are told; see sees_death */
	uint64_t retry_ns; /* a write that is not acknowledged by then has failed, and its peer is
			      down; 0: never */
	bool lies;         /* (to test tests) ordered and fences are claimed, and not kept */
	uint32_t spoil_per_mille; /* of pieces of writes in which a bit is turned as they land */
	bool poison; /* a write's target is overwritten with SIM_POISON when it is posted */
};

#define SIM_POISON 0xdb

struct sim_stats {
	uint64_t events, writes, sends, bytes; /* taken from transports */
	uint64_t landed, immediates, completions, failures;
	uint64_t agains, duplicates_dropped, stalls, fences_waited;
	uint64_t changed_retries; /* writes repeated after AGAIN with other flags: the caller lost
				     some */
	uint64_t spoilt;          /* pieces */
	uint64_t bad_keys;        /* writes outside of registered memory */
	uint64_t most_in_flight;  /* writes */
	uint64_t pool_bytes;      /* memory for what is in flight */
};

/* A quick, benign network: unordered, 1 us, 25 GB/s, pieces of 4 KB, depth 4096, no trouble. */
void sim_settings_init(struct sim_settings *settings);

/* Foul weather drawn from the seed: jitter, reordering, stalls, AGAIN, duplicates, small depths,
 * slow connections. What the transport can do (caps) stays as init made it. */
void sim_settings_foul(struct sim_settings *settings, uint64_t seed);

int sim_network_create(const struct sim_settings *settings, struct sim_network **network);
void sim_network_destroy(struct sim_network *network); /* close the transports first */

/* ---- time ------------------------------------------------------------------------------------ */
uint64_t sim_now(const struct sim_network *network);
bool sim_step(struct sim_network *network); /* to the next event, and through it; false: nothing is
					       pending */
void sim_run_until(struct sim_network *network, uint64_t ns); /* through all events up to then */
void sim_wake_at(struct sim_network *network, uint64_t ns); /* an event in which nothing happens */
bool sim_next(const struct sim_network *network, uint64_t *ns); /* when the next event is */

/* A rank whose transport may have something to poll, or room after an AGAIN; each at most once
 * until something new comes. A scheduler of many ranks steps these after each event, instead of
 * all. */
bool sim_take_ready(struct sim_network *network, uint32_t *rank);

uint32_t sim_rank(const struct transport *transport); /* whose it is: transport_options.self */

/* ---- the proxy's time: of all transports of a rank ------------------------------------------- */
void sim_spend(struct sim_network *network, uint32_t rank, uint64_t ns);   /* it does something else
									      for so long */
uint64_t sim_proxy_free(const struct sim_network *network, uint32_t rank); /* when it has done all
									      that it was given; not
									      before now */

/* ---- links and faults ------------------------------------------------------------------------ */
int sim_link_set(struct sim_network *network, uint32_t from, uint32_t to,
	const struct sim_link *link);                                    /* one way, from now on */
void sim_cut(struct sim_network *network, uint32_t from, uint32_t to);   /* a black hole, one way:
									    swallows data and
									    acknowledgements */
void sim_mend(struct sim_network *network, uint32_t from, uint32_t to);  /* what was swallowed stays
									    lost */
void sim_stall(struct sim_network *network, uint32_t rank, uint64_t ns); /* its NIC sends nothing
									    for so long */
void sim_kill(struct sim_network *network, uint32_t rank); /* now: pieces that are on the wire may
							      land or not */
void sim_kill_at(struct sim_network *network, uint32_t rank, uint64_t ns);
uint32_t sim_kill_random(struct sim_network *network, uint32_t nr_ranks, uint64_t from_ns,
	uint64_t to_ns); /* who it will be */

/* ---- what happened --------------------------------------------------------------------------- */
uint64_t sim_trace_hash(const struct sim_network *network); /* of all events so far, with their
							       times */
void sim_stats(const struct sim_network *network, struct sim_stats *stats);
uint64_t sim_random(struct sim_network *network, uint64_t below); /* from the network's own
								     sequence, for schedulers; 0 for
								     below 2 */

#endif
