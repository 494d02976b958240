/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance suite's tools: networks, and worlds of peers on them.
 *
 * A world has all its peers in one thread, polled in turn: so it also runs a network in virtual
 * time, whose `pump` moves the time on. Cases that need real concurrency or a death fork a second
 * process (pair.h). Every case runs in a process of its own, killed when it takes too long. */
#ifndef TERN_TESTS_TRANSPORT_WORLD_H
#define TERN_TESTS_TRANSPORT_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

/* What becomes of a write to a region that the target does not have (any more). */
enum bad_key {
	KEY_REFUSED,
	KEY_FAILED,
	KEY_SILENT /* nothing comes */
};

/* How the death of a peer shows. */
enum death {
	DEATH_SEEN,
	DEATH_ON_WRITE,
	DEATH_SILENT
};

struct network {
	const char *name;
	const struct transport_ops *ops;
	const char *provider, *device;
	const char *other; /* provider of peers with odd numbers; NULL: the same */
	uint32_t caps;     /* exactly */
	enum bad_key bad_key;
	bool key_breaks; /* and the connection with it, so that the peer has to be connected anew */
	enum death death;
	bool few; /* AGAIN comes before depth is reached: signalled writes one after the other, or
		     AGAIN at random */
	bool knows_source; /* immediates come with their peer */
	uint32_t paired;   /* operations between two processes that take a second or two */
	bool alone;        /* peers cannot be in different processes */
	bool slow;         /* a fifth of what goes back and forth */
	bool brief; /* another name for a network that is tested in full: the basic cases do */

	/* NULL, or what a network in virtual time needs. */
	void *(*make)(const struct network *network, uint32_t nr_peers);
	void (*pump)(void *made);
	void (*unmake)(void *made);
};

extern const struct network networks[];
extern const uint32_t nr_networks;

#define MAX_PEERS 6
#define MOST_BYTES ((uint64_t)64 << 20) /* of one write in these tests */
#define SOAK 100000                     /* operations */

/* Events of one kind that nobody has taken yet, oldest first; messages with a copy of their data.
 */
struct queue {
	struct transport_event *events;
	uint32_t first, nr, room;
};

struct peer {
	struct transport *transport;
	struct transport_info info;
	uint8_t *from, *to; /* registered; to is what others write into */
	struct transport_region *from_region, *to_region;
	struct transport_key from_key, to_key;
	struct queue queues[EVENT_PEER_DOWN + 1];
};

struct world {
	const struct network *network;
	void *made;
	uint32_t nr_peers;
	uint64_t bytes; /* of from and to */
	struct peer peers[MAX_PEERS];
	uint32_t nr_idle; /* turns without an event */
	void (*on_event)(struct world *world, uint32_t who,
		const struct transport_event *event); /* or NULL: into the queues */
	void *ctx;
};

#define WORLD_DEPTH 256
#define WORLD_MESSAGE 1024
#define CASE_WAIT_MS 60000

/* Ends the case as failed with this text, unless ok. */
void expect(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the case as skipped. */
void skip_case(const char *reason) __attribute__((noreturn));
/* Ends the case as failed with the code's text if rc is negative. */
void expect_ok(int rc, const char *what);

/* nr_peers, all connected with each other and themselves. */
void world_open(
	struct world *world, const struct network *network, uint32_t nr_peers, uint64_t bytes);
void world_close(struct world *world);
/* Part of that, for cases that go about it differently. */
void world_begin(
	struct world *world, const struct network *network, uint32_t nr_peers, uint64_t bytes);
int peer_open(struct world *world, uint32_t who);
void peer_close(struct world *world, uint32_t who);
void world_connect(struct world *world, uint32_t who, uint32_t to);

/* Every open peer polls once; a network in virtual time moves on. */
void world_turn(struct world *world);
void peer_poll(struct world *world, uint32_t who);

/* The next event of a kind at a peer; the case fails if none comes in time. */
struct transport_event take_event(
	struct world *world, uint32_t who, enum transport_event_kind kind);
bool try_take(struct world *world, uint32_t who, enum transport_event_kind kind,
	struct transport_event *event);
/* Turns the world for so long, and then fails the case if an event of the kind has come. */
void expect_silence(struct world *world, uint32_t who, enum transport_event_kind kind, int ms);

/* A write of from[from_at...] to the same peer number's region, turning the world while the answer
 * is AGAIN. */
struct transport_write a_write(struct world *world, uint32_t who, uint32_t to, uint64_t from_at,
	uint64_t to_at, uint64_t bytes);
void post(struct world *world, uint32_t who, const struct transport_write *write);
void post_message(struct world *world, uint32_t who, uint32_t to, const void *data, uint32_t bytes);

/* Bytes that depend on seed and place. */
void fill(void *to, uint64_t bytes, uint64_t seed);
void poison(void *to, uint64_t bytes);
/* The first byte that is not as fill made it, or `bytes`. */
uint64_t first_wrong(const void *at, uint64_t bytes, uint64_t seed);
uint64_t first_unpoisoned(const void *at, uint64_t bytes);
void expect_filled(const void *at, uint64_t bytes, uint64_t seed, const char *what);
/* In a region of `room` bytes, `bytes` at `offset` are filled, and everything else is poison. */
void expect_only(const uint8_t *base, uint64_t room, uint64_t offset, uint64_t bytes, uint64_t seed,
	const char *what);

/* libfabric's shm leaves files in /dev/shm when its process is killed. */
void remove_leftovers(int pid);
uint64_t now_ms(void);
uint32_t scaled(const struct network *network, uint32_t nr); /* by TERN_TEST_DIVISOR, and for slow
								networks (NULL: none is) */
uint32_t draw(uint64_t *state, uint32_t below);

#endif
