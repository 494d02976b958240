/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until somebody has done something, with any number of sleepers; the same argument as the doorbell of ordering.h. */
#ifndef TERN_ENGINE_BELL_H
#define TERN_ENGINE_BELL_H

#include <linux/futex.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct bell {
	_Atomic uint32_t rung;	  /* the futex */
	_Atomic uint32_t waiters; /* asleep or about to be */
};

/* After the news was stored. The addition and the load are sequentially consistent, and so are the sleeper's addition to waiters and the
 * kernel's comparison of rung: either this sees the sleeper, or the sleeper's futex sees the addition. Pairs with bell_listen. */
static inline void bell_ring(struct bell *bell)
{
	atomic_fetch_add_explicit(&bell->rung, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&bell->waiters, memory_order_seq_cst))
		syscall(SYS_futex, &bell->rung, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Announces a sleeper and returns what to sleep on. Then look once more, then bell_sleep or not, then bell_leave. */
static inline uint32_t bell_listen(struct bell *bell)
{
	atomic_fetch_add_explicit(&bell->waiters, 1, memory_order_seq_cst);
	return atomic_load_explicit(&bell->rung, memory_order_seq_cst);
}

static inline void bell_sleep(struct bell *bell, uint32_t rung, uint64_t ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	syscall(SYS_futex, &bell->rung, FUTEX_WAIT_PRIVATE, rung, &timeout, NULL, 0);
}

static inline void bell_leave(struct bell *bell)
{
	atomic_fetch_sub_explicit(&bell->waiters, 1, memory_order_relaxed);
}

#endif
