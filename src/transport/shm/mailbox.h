/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of one machine share to tell each other of writes: one mailbox a rank, in
 * it one connection for each sender.
 *
 *   mailbox of q:  head │ regions that q has registered │ connection of 0 │ connection of 1 │ ...
 *   connection of p:     two rings with one writer (p) and one reader (q): immediates, and messages
 *
 * A mailbox is a memfd of sealed size. Other processes of the same user open it through
 * /proc/<pid>/fd, so nothing has a name that outlives the process, and no handshake is needed;
 * ranks of the same process share the mapping, so that each byte has one address. A reader takes
 * counts out of the shared memory before it uses them: the other side may be broken. */
#ifndef TERN_TRANSPORT_SHM_MAILBOX_H
#define TERN_TRANSPORT_SHM_MAILBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ordering.h"

#define MAILBOX_REGIONS 1024 /* most that a rank has registered at once */
#define MAILBOX_MESSAGES 32  /* slots for messages in each connection; a power of two */

/* What lies where; written once by the owner. */
struct mailbox_shape {
	uint32_t nr_connections;
	uint32_t nr_immediates; /* slots in each connection; a power of two */
	uint32_t message_bytes; /* longest message */
	uint32_t reserved;
};

/* A registered region as writers see it; free while key is 0. */
struct mailbox_region {
	_Atomic uint64_t key;
	uint64_t base, bytes;
};

struct mailbox_head {
	uint64_t nonce[2]; /* tells this mailbox from any other */
	struct mailbox_shape shape;
	_Atomic uint32_t closed; /* 1: the owner has gone in order */
	struct mailbox_region regions[MAILBOX_REGIONS];
};

/* head counts what was put in, tail what was taken out, modulo 2^32. Each has one writer and a
 * cache line of its own. */
struct connection_ring {
	_Atomic uint32_t head __attribute__((aligned(CACHE_LINE)));
	_Atomic uint32_t tail __attribute__((aligned(CACHE_LINE)));
};

struct connection {
	struct connection_ring immediates, messages;
	_Atomic uint64_t probe; /* a sender tries here whether it may write into this process */
} __attribute__((aligned(CACHE_LINE)));

struct mailbox_message {
	uint32_t bytes;
	uint32_t reserved;
	uint8_t data[];
};

/* One for each mapping in this process. */
struct mailbox {
	struct mailbox_head *head;
	struct mailbox_shape shape; /* a copy that no other process can change */
	uint64_t bytes;
	uint64_t nonce[2];
	int fd;
	int32_t pid; /* the owner */
	uint32_t references;
	struct mailbox *next; /* of those that ranks of this process own */
};

int mailbox_make(const struct mailbox_shape *shape, struct mailbox **mailbox);

/* By what its owner told: from this process if it is here, else through /proc. */
int mailbox_find(int32_t pid, int fd, const uint64_t *nonce, struct mailbox **mailbox);
void mailbox_release(struct mailbox *mailbox);

static inline bool mailbox_here(const struct mailbox *mailbox)
{
	return mailbox->next != mailbox; /* see mailbox_find */
}

static inline uint64_t message_slot_bytes(const struct mailbox_shape *shape)
{
	return (sizeof(struct mailbox_message) + shape->message_bytes + CACHE_LINE - 1) /
	       CACHE_LINE * CACHE_LINE;
}

static inline uint64_t connection_bytes(const struct mailbox_shape *shape)
{
	uint64_t immediates = (shape->nr_immediates * sizeof(uint32_t) + CACHE_LINE - 1) /
			      CACHE_LINE * CACHE_LINE;

	return sizeof(struct connection) + immediates +
	       MAILBOX_MESSAGES * message_slot_bytes(shape);
}

static inline uint64_t mailbox_bytes(const struct mailbox_shape *shape)
{
	return (sizeof(struct mailbox_head) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE +
	       shape->nr_connections * connection_bytes(shape);
}

static inline struct connection *mailbox_connection(const struct mailbox *mailbox, uint32_t sender)
{
	uint64_t first = (sizeof(struct mailbox_head) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;

	return (struct connection *)((uint8_t *)mailbox->head + first +
				     sender * connection_bytes(&mailbox->shape));
}

static inline uint32_t *connection_immediate(
	const struct mailbox *mailbox, struct connection *connection, uint32_t at)
{
	return (uint32_t *)(connection + 1) + (at & (mailbox->shape.nr_immediates - 1));
}

static inline struct mailbox_message *connection_message(
	const struct mailbox *mailbox, struct connection *connection, uint32_t at)
{
	uint64_t slot = message_slot_bytes(&mailbox->shape);
	uint8_t *end = (uint8_t *)connection + connection_bytes(&mailbox->shape);

	return (struct mailbox_message *)(end - (MAILBOX_MESSAGES - (at & (MAILBOX_MESSAGES - 1))) *
							slot);
}

/* Release: the bytes of the write that an immediate stands for, or of the message, and its slot
 * come before the count. A copy by the kernel into another process is over when the call returns,
 * so it comes before as well. Pairs with connection_observe. */
static inline void connection_publish(struct connection_ring *ring, uint32_t head)
{
	atomic_store_explicit(&ring->head, head, memory_order_release);
}

/* Acquire: whoever sees the count sees the slots, and the bytes that they stand for. */
static inline uint32_t connection_observe(const struct connection_ring *ring)
{
	return atomic_load_explicit(&ring->head, memory_order_acquire);
}

/* Release: the slots up to here have been read, the writer may fill them again. Pairs with
 * connection_retired. */
static inline void connection_retire(struct connection_ring *ring, uint32_t tail)
{
	atomic_store_explicit(&ring->tail, tail, memory_order_release);
}

static inline uint32_t connection_retired(const struct connection_ring *ring)
{
	return atomic_load_explicit(&ring->tail, memory_order_acquire);
}

/* A region's extent is written before its key and read after it. */
static inline void region_announce(struct mailbox_region *region, uint64_t key)
{
	atomic_store_explicit(&region->key, key, memory_order_release);
}

static inline uint64_t region_observe(const struct mailbox_region *region)
{
	return atomic_load_explicit(&region->key, memory_order_acquire);
}

#endif
