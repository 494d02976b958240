/* SPDX-License-Identifier: Apache-2.0 */
/* What the transfer engine asks of a network. A transport is one ops table and the files behind it;
 * it moves bytes and does nothing else: backlog, credits, sharding over NICs, counting, retries and
 * time-outs are the engine's.
 *
 *   open ── address ── connect(peer, its address) ──┬── write ── poll ─┬── disconnect ── close
 *                      reg ─ key ─► to the peers    └── send           └── dereg
 *
 * THE CONTRACT
 * Thread.    All calls on one transport come from one thread at a time (the engine's proxy, once it
 *            runs).
 * Blocking.  write, send and poll never block, allocate or take a lock. write and send return
 *            TRANSPORT_AGAIN when a queue is full: poll, then try again with the same arguments
 *            (all flags included).
 * Promise.   The bytes of a write are visible at the target before its immediate is reported there,
 *            and before EVENT_WRITTEN is reported here. Of different writes nothing is promised,
 *            unless caps say so.
 * Progress.  With TRANSPORT_TARGET_POLLS bytes land only while the target polls.
 * Memory.    A write's source must stay as it is until EVENT_WRITTEN (or an error) comes for it, or
 *            for a later write to that peer if TRANSPORT_ORDERED, unless it was inline. The engine
 *            keeps regions registered while writes from or to them are under way.
 * Errors.    Calls return 0, TRANSPORT_AGAIN or a negative enum tern_error with its cause in
 *            tern_last_error(). A posted write that fails is reported by EVENT_FAILED with its
 *            cookie, if it was signalled, and a peer that is gone by EVENT_PEER_DOWN, once, after
 *            which all its writes that are under way have been reported as failed, and new ones are
 *            refused with TERN_ERR_PEER_DEAD.
 * Peers.     Numbered by the engine, 0 to nr_peers - 1, the same number in connect, write, send and
 *            events. A rank can connect to itself.
 */
#ifndef TERN_TRANSPORT_TRANSPORT_H
#define TERN_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tern.h"

#define TRANSPORT_AGAIN 1
#define TRANSPORT_ADDRESS_BYTES 256 /* most of an address */

enum transport_caps {
	TRANSPORT_ORDERED = 1, /* writes to one peer land, and their immediates are reported, in the
				  order of posting */
	TRANSPORT_FENCE = 2,   /* WRITE_FENCE is honoured: the write lands after all earlier ones to
				  that peer */
	TRANSPORT_TARGET_POLLS = 4, /* see Progress */
	TRANSPORT_SEES_DEATH = 8,   /* EVENT_PEER_DOWN comes without anything being sent; else only
				       when a write fails, or never */
	TRANSPORT_SHUTS_OUT = 16,   /* after disconnect nothing lands that the peer has written to
				       regions that were deregistered before */
	TRANSPORT_DEVICE_MEMORY = 32, /* reg takes a GPU's memory, or says why not. A write into it
					 is visible to that GPU as its driver's ordering says: what
					 an immediate has promised may need a flush first */
	TRANSPORT_PINS = 64           /* what is registered stays in memory, all of it */
};

/* How a transport is opened. */
struct transport_options {
	const char *provider; /* what comes after the colon of "ofi:tcp;ofi_rxm"; NULL: the
				 transport's choice */
	const char *device;   /* NIC or interface; NULL: the transport's choice */
	void *network;        /* the simulated network to join; other transports ignore it */
	uint32_t self;        /* this rank's own number among the peers */
	uint32_t nr_peers;
	uint32_t depth; /* writes that the engine wants under way at once, all peers together */
	uint32_t message_bytes; /* longest message of send */
};

/* What was opened. */
struct transport_info {
	const char *name;  /* "ofi", and */
	char provider[64]; /* what it runs on, for people */
	uint32_t caps;
	uint32_t depth;         /* writes that can be under way at once */
	uint32_t inline_bytes;  /* longest write that WRITE_INLINE takes */
	uint32_t message_bytes; /* longest message of send */
	uint64_t write_bytes;   /* longest write */
};

/* Registered local memory. */
struct transport_region;

/* What a peer has to know to write into a region: plain bytes, sent by the engine. */
struct transport_key {
	uint64_t address; /* of the region's first byte, as the transport counts */
	uint64_t bytes;
	uint64_t key;
};

enum write_flags {
	WRITE_IMMEDIATE = 1, /* report `immediate` at the target */
	WRITE_SIGNALLED = 2, /* report EVENT_WRITTEN here */
	WRITE_FENCE = 4,     /* this write, and all later ones to this peer, land after all earlier
				ones; refused without TRANSPORT_FENCE */
	WRITE_INLINE = 8     /* the source may change when write returns; at most inline_bytes */
};

struct transport_write {
	uint32_t peer;
	uint32_t flags;
	uint32_t immediate;
	const struct transport_region *region; /* that holds from; NULL with no bytes, or inline */
	const void *from;
	const struct transport_key *key;
	uint64_t offset; /* in the key's region */
	uint64_t bytes;  /* 0: only the immediate */
	uint64_t cookie; /* for EVENT_WRITTEN and EVENT_FAILED */
};

enum transport_event_kind {
	EVENT_WRITTEN = 1,   /* cookie: landed */
	EVENT_IMMEDIATE = 2, /* peer, immediate: its bytes are visible. peer is UINT32_MAX where the
				transport cannot tell */
	EVENT_MESSAGE = 3,   /* peer, data, bytes: valid until the next poll */
	EVENT_FAILED = 4,    /* peer, cookie, error, text */
	EVENT_PEER_DOWN = 5  /* peer, error, text */
};

struct transport_event {
	enum transport_event_kind kind;
	uint32_t peer;
	uint32_t immediate;
	int error; /* enum tern_error */
	uint64_t cookie;
	const void *data;
	uint32_t bytes;
	const char *text; /* the cause in words; valid until the next poll */
};

struct transport;

struct transport_ops {
	const char *name;
	int (*open)(const struct transport_options *options, struct transport **transport,
		struct transport_info *info);
	void (*close)(struct transport *transport); /* whatever is under way */
	int (*address)(struct transport *transport, void *address, uint32_t *bytes); /* bytes: in
											the room,
											out what was
											used */
	int (*connect)(struct transport *transport, uint32_t peer, const void *address,
		uint32_t bytes); /* starts; writes may answer AGAIN until it is done */
	int (*disconnect)(struct transport *transport, uint32_t peer); /* the peer is gone for good,
									  or will be connected anew
									*/
	int (*reg)(struct transport *transport, void *base, uint64_t bytes,
		struct transport_region **region, struct transport_key *key);
	void (*dereg)(struct transport *transport, struct transport_region *region);
	int (*write)(struct transport *transport, const struct transport_write *write);
	int (*send)(struct transport *transport, uint32_t peer, const void *data,
		uint32_t bytes); /* two-sided, in order for each peer; data may change when it
				    returns */
	int (*poll)(
		struct transport *transport, struct transport_event *events, int max); /* number
											  of
											  events,
											  or a
											  negative
											  code
											*/
};

/* Begins with its ops: transports put this first in their own struct. */
struct transport {
	const struct transport_ops *ops;
	bool moved; /* set by poll: it got on with what makes no event, such as unsignalled writes
		     */
};

extern const struct transport_ops transport_shm;
extern const struct transport_ops transport_ofi; /* refuses to open with TERN_ERR_UNSUPPORTED where
						    libfabric is missing */
extern const struct transport_ops transport_verbs; /* the same where libibverbs or a device is
						      missing */

#endif
