/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps marks, and how clocks of two hosts are compared; with marks, whatever the library has.
 */
#include "testkit/trace/clocks.h"
#include "testkit/trace/trace.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/random.h"

#define THREADS 4
#define MARKS 5000

static void work(uint32_t peer)
{
	TRACE(TRACE_ROUND, peer);
	{
		TRACE(TRACE_WAIT, TRACE_NOBODY);
		trace_moment(TRACE_CAME_FROM, peer);
	}
}

static void nothing_without_start(void **state)
{
	uint32_t nr;
	uint64_t nr_lost;

	(void)state;
	work(1); /* without memory */
	assert_int_equal(trace_open(10), 0);
	work(1);
	trace_events(&nr, &nr_lost);
	assert_int_equal(nr, 0);
	trace_close();
}

static void spans_nest(void **state)
{
	const struct trace_event *e;
	uint32_t nr;
	uint64_t nr_lost;

	(void)state;
	assert_int_equal(trace_open(10), 0);
	trace_start();
	work(7);
	trace_stop();
	work(8);
	e = trace_events(&nr, &nr_lost);
	assert_int_equal(nr, 3);
	assert_int_equal(nr_lost, 0);
	assert_true(
		e[0].kind == TRACE_CAME_FROM && e[0].shape == TRACE_IS_MOMENT && e[0].peer == 7);
	assert_true(e[1].kind == TRACE_WAIT && e[1].peer == TRACE_NOBODY);
	assert_true(e[2].kind == TRACE_ROUND && e[2].shape == TRACE_IS_SPAN);
	assert_true(e[2].began_ns <= e[1].began_ns && e[1].ended_ns <= e[2].ended_ns);
	assert_true(e[1].began_ns <= e[0].began_ns && e[0].ended_ns <= e[1].ended_ns);
	trace_clear();
	trace_events(&nr, &nr_lost);
	assert_int_equal(nr, 0);
	trace_close();
}

static void what_began_before_the_start_is_not_kept(void **state)
{
	uint32_t nr;
	uint64_t nr_lost;

	(void)state;
	assert_int_equal(trace_open(10), 0);
	{
		TRACE(TRACE_ROUND, TRACE_NOBODY);
		trace_start();
	}
	trace_stop();
	trace_events(&nr, &nr_lost);
	assert_int_equal(nr, 0);
	trace_close();
	trace_clear();
}

static void *mark_much(void *arg)
{
	for (int i = 0; i < MARKS; i++)
		work((uint32_t)(uintptr_t)arg);
	return NULL;
}

/* Each event is whole, and each thread's are its own; those without room are counted. */
static void threads_at_once(void **state)
{
	uint32_t nr, of[THREADS] = {0}, most = 3 * THREADS * MARKS - 100;
	const struct trace_event *e;
	pthread_t threads[THREADS];
	uint64_t nr_lost;

	(void)state;
	assert_int_equal(trace_open(most), 0);
	trace_start();
	for (uintptr_t t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&threads[t], NULL, mark_much, (void *)t), 0);
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	trace_stop();
	e = trace_events(&nr, &nr_lost);
	assert_int_equal(nr, most);
	assert_int_equal(nr_lost, 100);
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t thread = e[i].thread;

		assert_true(e[i].began_ns && e[i].began_ns <= e[i].ended_ns);
		assert_non_null(trace_thread_name(thread));
		if (e[i].kind == TRACE_ROUND) {
			assert_in_range(e[i].peer, 0, THREADS - 1);
			assert_true(!of[e[i].peer] || of[e[i].peer] == thread + 1);
			of[e[i].peer] = thread + 1;
		}
	}
	trace_close();
	trace_clear();
}

/* Whatever messages take, in whichever direction: the truth is within what is said. */
static void clocks(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 2000; seed++) {
		uint64_t random = seed, within_ns;
		int64_t truth = (int64_t)random_below(&random, 2000000) - 1000000, said;
		struct clock_bounds b = {INT64_MAX, INT64_MAX};

		for (int i = 0; i < 20; i++) {
			int64_t there = truth + (int64_t)random_below(&random, 100000),
				back = -truth + (int64_t)random_below(&random, 3000);

			b.there = there < b.there ? there : b.there;
			b.back = back < b.back ? back : b.back;
		}
		said = clock_offset(b, &within_ns);
		assert_true(
			said - truth <= (int64_t)within_ns && truth - said <= (int64_t)within_ns);
		assert_true(within_ns < 60000);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_without_start),
		cmocka_unit_test(spans_nest),
		cmocka_unit_test(what_began_before_the_start_is_not_kept),
		cmocka_unit_test(threads_at_once), cmocka_unit_test(clocks)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
