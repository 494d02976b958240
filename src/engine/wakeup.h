/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until somebody has done something, with any number of sleepers; the same argument as the
 * event count of ordering.h. */
#ifndef TERN_ENGINE_WAKEUP_H
#define TERN_ENGINE_WAKEUP_H

#include <linux/futex.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct wakeup {
	_Atomic uint32_t count;   /* the futex */
	_Atomic uint32_t waiters; /* asleep or about to be */
};

/* After the news was stored. The addition and the load are sequentially consistent, and so are the
 * sleeper's addition to waiters and the kernel's comparison of count: either this sees the sleeper,
 * or the sleeper's futex sees the addition. Pairs with wakeup_listen. */
static inline void wakeup_signal(struct wakeup *wakeup)
{
	atomic_fetch_add_explicit(&wakeup->count, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&wakeup->waiters, memory_order_seq_cst))
		syscall(SYS_futex, &wakeup->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Announces a sleeper and returns what to sleep on. Then look once more, then wakeup_sleep or not,
 * then wakeup_leave. */
static inline uint32_t wakeup_listen(struct wakeup *wakeup)
{
	atomic_fetch_add_explicit(&wakeup->waiters, 1, memory_order_seq_cst);
	return atomic_load_explicit(&wakeup->count, memory_order_seq_cst);
}

static inline void wakeup_sleep(struct wakeup *wakeup, uint32_t count, uint64_t ns)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	syscall(SYS_futex, &wakeup->count, FUTEX_WAIT_PRIVATE, count, &timeout, NULL, 0);
}

static inline void wakeup_leave(struct wakeup *wakeup)
{
	atomic_fetch_sub_explicit(&wakeup->waiters, 1, memory_order_relaxed);
}

#endif
