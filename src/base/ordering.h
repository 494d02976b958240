/* SPDX-License-Identifier: Apache-2.0 */
/* Memory ordering between ranks, one named function for each use. Rows are plain stores and loads;
 * only what stands here orders them. The argument as a whole, and the models that check it:
 * docs/protocol.md. */
#ifndef TERN_BASE_ORDERING_H
#define TERN_BASE_ORDERING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* An arrival word and an event count each have a cache line of their own: every one has a single
 * writer or a single sleeper. */
#define CACHE_LINE 64

struct arrival {
	_Atomic uint64_t word;
} __attribute__((aligned(CACHE_LINE)));

struct event_count {
	_Atomic uint32_t count; /* arrivals so far, of one (slot, phase), modulo 2^32; the futex */
	_Atomic uint32_t waiters; /* 1 while the owner sleeps or is about to */
	_Atomic uint32_t wake_at; /* the count of arrivals that completes what the owner waits for
				   */
} __attribute__((aligned(CACHE_LINE)));

/* Release: all rows stored for this peer in this phase, and all reads of the peer's earlier rows,
 * come before the word. Pairs with arrival_observe. */
static inline void arrival_publish(struct arrival *arrival, uint64_t word)
{
	atomic_store_explicit(&arrival->word, word, memory_order_release);
}

/* Acquire: whoever sees the word sees the rows that it announces, and may overwrite what the peer
 * has thereby finished reading. */
static inline uint64_t arrival_observe(const struct arrival *arrival)
{
	return atomic_load_explicit(&arrival->word, memory_order_acquire);
}

/* The sender's half of not losing a wake-up, after arrival_publish. The increment and the load of
 * waiters are sequentially consistent, and so are the sleeper's store of waiters and the kernel's
 * comparison of count: either the sender sees the waiter, or the sleeper's futex sees the increment
 * and does not sleep. True: the owner has to be woken. */
static inline bool event_count_advance(struct event_count *events)
{
	uint32_t count = atomic_fetch_add_explicit(&events->count, 1, memory_order_seq_cst) + 1;

	if (!atomic_load_explicit(&events->waiters, memory_order_seq_cst))
		return false;
	return (int32_t)(count - atomic_load_explicit(&events->wake_at, memory_order_relaxed)) >= 0;
}

/* The sleeper's half: take the count first, announce the wait, then look at the words once more,
 * then sleep on the count. The store of waiters orders wake_at before itself: a sender that sees
 * the waiter sees when to wake it. */
static inline uint32_t event_count_listen(struct event_count *events, uint32_t wake_at)
{
	uint32_t count = atomic_load_explicit(&events->count, memory_order_seq_cst);

	atomic_store_explicit(&events->wake_at, wake_at, memory_order_relaxed);
	atomic_store_explicit(&events->waiters, 1, memory_order_seq_cst);
	return count;
}

static inline void event_count_leave(struct event_count *events)
{
	atomic_store_explicit(&events->waiters, 0, memory_order_relaxed);
}

/* A chunk of a lane is taken by the source's thread and given back by its proxy when the gateway's
 * credit has come. Release and acquire: whoever sees the chunk free comes after all that the
 * gateway did with it, as the credit's arrival tells. */
static inline void chunk_take(_Atomic uint32_t *busy)
{
	atomic_store_explicit(busy, 1, memory_order_relaxed);
}

static inline void chunk_give_back(_Atomic uint32_t *busy)
{
	atomic_store_explicit(busy, 0, memory_order_release);
}

static inline bool chunk_is_free(const _Atomic uint32_t *busy)
{
	return !atomic_load_explicit(busy, memory_order_acquire);
}

/* A proxy that found a peer's bytes broken notes it for the thread that calls: release and acquire
 * of the text before it. 0: none. */
static inline void violation_publish(_Atomic uint32_t *violation, uint32_t value)
{
	atomic_store_explicit(violation, value, memory_order_release);
}

static inline uint32_t violation_observe(const _Atomic uint32_t *violation)
{
	return atomic_load_explicit(violation, memory_order_acquire);
}

/* A rank whose words are ignored from now on: the caller's thread says so, the proxy sees it. What
 * follows goes through the proxy's ring, which orders it; the word itself needs none. */
static inline void shut_out_publish(_Atomic uint8_t *out)
{
	atomic_store_explicit(out, 1, memory_order_release);
}

/* Another process has its place: its words come over a connection of its own. */
static inline void shut_out_take_back(_Atomic uint8_t *out)
{
	atomic_store_explicit(out, 0, memory_order_release);
}

static inline bool shut_out_observe(const _Atomic uint8_t *out)
{
	return atomic_load_explicit(out, memory_order_acquire);
}

/* Release and acquire of a rank's leave word in its window's head: what it sent before it left is
 * visible to those who see it gone. */
static inline void leave_status_publish(_Atomic uint64_t *leave_status, uint64_t value)
{
	atomic_store_explicit(leave_status, value, memory_order_release);
}

/* For a rank that has died, in the place of its leave word: only if it left none. */
static inline void leave_status_publish_death(_Atomic uint64_t *leave_status, uint64_t value)
{
	uint64_t none = 0;

	atomic_compare_exchange_strong_explicit(
		leave_status, &none, value, memory_order_release, memory_order_relaxed);
}

/* The word is none any more, if it is still that one. */
static inline void leave_status_take_back(_Atomic uint64_t *leave_status, uint64_t value)
{
	atomic_compare_exchange_strong(leave_status, &value, 0);
}

static inline uint64_t leave_status_observe(const _Atomic uint64_t *leave_status)
{
	return atomic_load_explicit(leave_status, memory_order_acquire);
}

/* A record of one writer in two places in turn (group/board.c), read whole or not at all. The
 * number is stored behind the record's words. Each word is a release and an acquire: a reader that
 * sees one of the record after the next, in the same place, sees that the number has moved on. */
static inline void record_store(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static inline uint64_t record_load(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static inline void record_publish(_Atomic uint64_t *number, uint64_t value)
{
	atomic_store_explicit(number, value, memory_order_release);
}

static inline uint64_t record_observe(const _Atomic uint64_t *number)
{
	return atomic_load_explicit(number, memory_order_acquire);
}

/* The highest view that somebody wants. Whom it stops sees what that one had seen: parts of a
 * gathering that was complete there. */
static inline void want_publish(_Atomic uint64_t *wanted, uint64_t view)
{
	uint64_t before = atomic_load_explicit(wanted, memory_order_relaxed);

	while (before < view && !atomic_compare_exchange_weak_explicit(wanted, &before, view,
					memory_order_release, memory_order_relaxed))
		;
}

static inline uint64_t want_observe(const _Atomic uint64_t *wanted)
{
	return atomic_load_explicit(wanted, memory_order_acquire);
}

static inline bool record_is_whole(const _Atomic uint64_t *number, uint64_t observed)
{
	return atomic_load_explicit(number, memory_order_relaxed) == observed;
}

/* Numbered entries of a ring, from the one thread that fills them in to those that take each once.
 * An entry's place is used again only when all have been done. */
struct op_ring {
	_Atomic uint64_t offered __attribute__((aligned(CACHE_LINE)));
	_Atomic uint64_t taken __attribute__((aligned(CACHE_LINE)));
	_Atomic uint64_t done __attribute__((aligned(CACHE_LINE)));
};

/* Release: entries below `offered` are filled in. Pairs with ops_take. */
static inline void ops_offer(struct op_ring *ring, uint64_t offered)
{
	atomic_store_explicit(&ring->offered, offered, memory_order_release);
}

/* Acquire: who takes an entry sees it as it was filled in. That nobody else has it is the
 * exchange's doing, which orders nothing. */
static inline bool ops_take(struct op_ring *ring, uint64_t *entry)
{
	*entry = atomic_load_explicit(&ring->taken, memory_order_relaxed);
	do
		if (*entry >= atomic_load_explicit(&ring->offered, memory_order_acquire))
			return false;
	while (!atomic_compare_exchange_weak_explicit(
		&ring->taken, entry, *entry + 1, memory_order_relaxed, memory_order_relaxed));
	return true;
}

/* Release: what was done for an entry, and its reading, come before; each adds to the release
 * sequence of those before it. Pairs with ops_are_done. */
static inline void ops_done(struct op_ring *ring)
{
	atomic_fetch_add_explicit(&ring->done, 1, memory_order_release);
}

/* Acquire: who sees all of them done sees what was made, and may fill in entries anew. */
static inline bool ops_are_done(struct op_ring *ring, uint64_t told)
{
	return atomic_load_explicit(&ring->done, memory_order_acquire) == told;
}

static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#endif
}

#endif
