/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of commands, the pools and the wakeup: many writers, one reader, and nothing lost,
 * doubled or torn. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/wakeup.h"
#include "engine/pool.h"
#include "engine/ring.h"
#include "tests/exchange/ranks.h"

#define WRITERS 4

struct stress {
	struct ring ring;
	struct wakeup wakeup;
	uint32_t writer, nr;
};

static void full_and_empty(void **state)
{
	struct command command = {.kind = COMMAND_WRITE};
	struct ring ring;

	(void)state;
	assert_int_equal(ring_open(&ring, 4), 0);
	for (int lap = 0; lap < 5; lap++) {
		assert_false(ring_peek(&ring));
		for (uint64_t i = 0; i < 4; i++) {
			command.value = (uint64_t)lap * 10 + i;
			assert_true(ring_put(&ring, &command));
		}
		assert_false(ring_put(&ring, &command));
		assert_false(ring_put(&ring, &command));
		for (uint64_t i = 0; i < 4; i++) {
			struct command taken;

			assert_true(ring_take(&ring, &taken));
			assert_int_equal(taken.value, (uint64_t)lap * 10 + i);
		}
	}
	ring_close(&ring);
}

/* The lap is 32 bits and starts again at 0: an entry of the lap before is never taken for one of
 * this. */
static void laps_wrap(void **state)
{
	struct command command = {.kind = COMMAND_WRITE}, taken;
	struct ring ring;

	(void)state;
	assert_int_equal(ring_open(&ring, 2), 0);
	ring.head = (1ull << 33) - 6;
	atomic_store(&ring.tail, ring.head);
	atomic_store(&ring.entries[0].turn, ring_lap(&ring, ring.head) - 1);
	atomic_store(&ring.entries[1].turn, ring_lap(&ring, ring.head) - 1);
	for (uint64_t i = 0; i < 20; i++) {
		command.value = i;
		assert_false(ring_peek(&ring));
		assert_true(ring_put(&ring, &command));
		assert_true(ring_take(&ring, &taken));
		assert_int_equal(taken.value, i);
	}
	ring_close(&ring);
}

static void *write_many(void *arg)
{
	struct stress *stress = arg;
	struct command command = {.kind = COMMAND_WRITE};
	uint32_t writer = __atomic_fetch_add(&stress->writer, 1, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < stress->nr; i++) {
		command.peer = writer;
		command.value = i;
		command.bytes = command.local_offset = command.remote_offset =
			command.signal_offset = i * 3 + writer;
		while (!ring_put(&stress->ring, &command))
			sched_yield();
		wakeup_signal(&stress->wakeup);
	}
	return NULL;
}

/* The reader sleeps without a time-out worth the name: a wake-up that is lost would show. */
static void many_writers(void **state)
{
	struct stress stress = {.nr = (uint32_t)scaled(100000)};
	uint32_t next[WRITERS] = {0}, left = WRITERS * stress.nr;
	pthread_t threads[WRITERS];

	(void)state;
	assert_int_equal(ring_open(&stress.ring, 64), 0);
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_many, &stress), 0);
	while (left) {
		struct command c;

		if (ring_take(&stress.ring, &c)) {
			assert_true(c.peer < WRITERS);
			assert_int_equal(c.value, next[c.peer]++);
			assert_true(c.bytes == c.value * 3 + c.peer && c.signal_offset == c.bytes &&
				    c.local_offset == c.bytes && c.remote_offset == c.bytes);
			left--;
		} else {
			uint32_t count = wakeup_listen(&stress.wakeup);

			if (!ring_peek(&stress.ring))
				wakeup_sleep(&stress.wakeup, count, 100000000000u);
			wakeup_leave(&stress.wakeup);
		}
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	assert_false(ring_peek(&stress.ring));
	ring_close(&stress.ring);
}

struct pool_stress {
	struct pool pool;
	uint32_t owner[16]; /* plain: whoever took the slot writes it */
	uint32_t nr;
};

static void *take_and_give(void *arg)
{
	struct pool_stress *stress = arg;
	uintptr_t broken = 0;

	for (uint32_t i = 0; i < stress->nr; i++) {
		uint32_t number = pool_take(&stress->pool);

		if (number == POOL_EMPTY) {
			sched_yield();
			continue;
		}
		stress->owner[number] = i;
		broken += stress->owner[number] != i;
		pool_give(&stress->pool, number);
	}
	return (void *)broken;
}

static void pools(void **state)
{
	struct pool_stress stress = {.nr = (uint32_t)scaled(200000)};
	bool seen[16] = {false};
	pthread_t threads[WRITERS];
	void *broken;

	(void)state;
	assert_int_equal(pool_open(&stress.pool, 3), 0);
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &stress), 0);
	for (int i = 0; i < WRITERS; i++) {
		pthread_join(threads[i], &broken);
		assert_null(broken);
	}
	for (int i = 0; i < 3; i++) {
		uint32_t number = pool_take(&stress.pool);

		assert_true(number < 3 && !seen[number]);
		seen[number] = true;
	}
	assert_int_equal(pool_take(&stress.pool), POOL_EMPTY);
	pool_close(&stress.pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_and_empty),
		cmocka_unit_test(laps_wrap),
		cmocka_unit_test(many_writers),
		cmocka_unit_test(pools),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
