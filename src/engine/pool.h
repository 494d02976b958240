/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of free slots, taken and given back by any thread without locks: a stack whose head
 * carries a tag, so that a head which went and came back is not taken for the same one. */
#ifndef TERN_ENGINE_POOL_H
#define TERN_ENGINE_POOL_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define POOL_EMPTY UINT32_MAX

struct pool {
	_Atomic uint64_t head; /* tag above, number + 1 below; 0 below: empty */
	_Atomic uint32_t *next;
};

/* Release: what was done with the slot comes before somebody takes it. Pairs with pool_take. */
static inline void pool_give(struct pool *pool, uint32_t number)
{
	uint64_t head = atomic_load_explicit(&pool->head, memory_order_relaxed), mine;

	do {
		atomic_store_explicit(&pool->next[number], (uint32_t)head, memory_order_relaxed);
		mine = ((head >> 32) + 1) << 32 | (number + 1);
	} while (!atomic_compare_exchange_weak_explicit(
		&pool->head, &head, mine, memory_order_acq_rel, memory_order_acquire));
}

/* Acquire: pairs with pool_give. `next` may be that of a slot which somebody else takes meanwhile:
 * then the tag differs, and it is tried again. */
static inline uint32_t pool_take(struct pool *pool)
{
	uint64_t head = atomic_load_explicit(&pool->head, memory_order_acquire), mine;

	do {
		if (!(uint32_t)head)
			return POOL_EMPTY;
		mine = ((head >> 32) + 1) << 32 |
		       atomic_load_explicit(&pool->next[(uint32_t)head - 1], memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(
		&pool->head, &head, mine, memory_order_acq_rel, memory_order_acquire));
	return (uint32_t)head - 1;
}

static inline int pool_open(struct pool *pool, uint32_t nr)
{
	pool->next = calloc(nr, sizeof(*pool->next));
	atomic_store_explicit(&pool->head, 0, memory_order_relaxed);
	for (uint32_t i = nr; pool->next && i-- > 0;)
		pool_give(pool, i);
	return pool->next ? 0 : -1;
}

static inline void pool_close(struct pool *pool)
{
	free(pool->next);
	pool->next = NULL;
}

#endif
