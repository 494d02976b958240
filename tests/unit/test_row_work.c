/* SPDX-License-Identifier: Apache-2.0 */
/* Work on rows by several threads: every op is done once, and done when the work is finished. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "exchange/row_work.h"
#include "testkit/random.h"
#include "tests/exchange/ranks.h"

#define MOST_OPS 1500 /* more than the ring has */
#define HIDDEN 16

typedef float row[HIDDEN];

static void small(struct tern_moe_config *c, uint32_t nr_threads)
{
	tern_moe_config_init(c);
	c->hidden = HIDDEN;
	c->combine_dtype = TERN_FP32;
	c->nr_threads = nr_threads;
}

/* sum += x: an op that is done twice, or not at all, shows. */
static void tell_sum(struct row_work *work, row *sum, row *x)
{
	struct row_op *op = row_work_next(work);

	row_op_begin(op, ROW_SUMMED, sizeof(row), 0);
	row_op_from(op, sum, NULL);
	row_op_from(op, x, NULL);
	row_op_to(op, (uint8_t *)sum, NULL, false);
	row_work_tell(work);
}

static void add_up(const struct tern_moe_config *config, uint32_t batches)
{
	row *sums = calloc(MOST_OPS, sizeof(*sums)), *x = calloc(MOST_OPS, sizeof(*x));
	float *wanted = calloc(MOST_OPS, sizeof(*wanted));
	uint64_t state = config->nr_threads, bytes = 0;
	struct row_work *work;

	assert_int_equal(row_work_open(config, sizeof(row), 0, &bytes, &work), 0);
	assert_true(bytes > 0);
	for (uint32_t batch = 1; batch <= batches; batch++) {
		uint32_t nr = 1 + random_below(&state, batch % 4 ? 60 : MOST_OPS);

		for (uint32_t i = 0; i < nr; i++) {
			for (uint32_t j = 0; j < HIDDEN; j++)
				x[i][j] = (float)((batch + i) % 7);
			wanted[i] += x[i][0];
			tell_sum(work, &sums[i], &x[i]);
		}
		row_work_finish(work);
		for (uint32_t i = 0; i < nr; i++)
			for (uint32_t j = 0; j < HIDDEN; j++)
				assert_true(sums[i][j] == wanted[i]);
	}
	row_work_close(work);
	free(wanted);
	free(x);
	free(sums);
}

static void by_threads(void **state)
{
	static const uint32_t nr[] = {1, 2, 3, 8};
	struct tern_moe_config config;

	(void)state;
	for (size_t i = 0; i < sizeof(nr) / sizeof(nr[0]); i++) {
		small(&config, nr[i]);
		add_up(&config, (uint32_t)scaled(2000));
	}
}

/* ---- the caller's pools ---------------------------------------------------------------------- */

static void backwards(void *ctx, uint32_t nr, void (*body)(void *arg, uint32_t i), void *arg)
{
	++*(int *)ctx;
	while (nr--)
		body(arg, nr);
}

/* A pool that does nothing breaks its promise, and nothing else. */
static void lazy(void *ctx, uint32_t nr, void (*body)(void *arg, uint32_t i), void *arg)
{
	(void)nr;
	(void)body;
	(void)arg;
	++*(int *)ctx;
}

struct piece {
	void (*body)(void *arg, uint32_t i);
	void *arg;
	uint32_t i;
	pthread_t thread;
};

static void *piece_main(void *arg)
{
	struct piece *piece = arg;

	piece->body(piece->arg, piece->i);
	return NULL;
}

static void at_once(void *ctx, uint32_t nr, void (*body)(void *arg, uint32_t i), void *arg)
{
	struct piece pieces[8];

	++*(int *)ctx;
	assert_true(nr <= 8);
	for (uint32_t i = 0; i < nr; i++) {
		pieces[i] = (struct piece){.body = body, .arg = arg, .i = i};
		assert_int_equal(
			pthread_create(&pieces[i].thread, NULL, piece_main, &pieces[i]), 0);
	}
	for (uint32_t i = 0; i < nr; i++)
		pthread_join(pieces[i].thread, NULL);
}

static void by_callers_pool(void **state)
{
	static const tern_parallel_for pools[] = {backwards, lazy, at_once};
	struct tern_moe_config config;

	(void)state;
	for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		int nr_calls = 0;

		small(&config, 3);
		config.parallel_for = pools[i];
		config.parallel_ctx = &nr_calls;
		add_up(&config, (uint32_t)scaled(100));
		assert_true(nr_calls > 0);
	}
}

/* ---- one op ---------------------------------------------------------------------------------- */

/* To one place or to several, past the caches or not: the same bytes and scales. */
static void places_get_the_same(void **state)
{
	enum {
		H = 256
	};
	float x[H];
	uint8_t rows[4][H] __attribute__((aligned(16))), scratch[H] __attribute__((aligned(16)));
	float scales[4][H / 128], of_scratch[H / 128];
	struct row_place own = {scratch, (uint8_t *)of_scratch, false};
	struct tern_moe_config config;
	struct row_op op;

	(void)state;
	tern_moe_config_init(&config);
	config.hidden = H;
	config.x_dtype = TERN_FP32;
	config.dispatch_dtype = TERN_FP8_E4M3;
	config.scale = TERN_SCALE_FP32;
	for (int i = 0; i < H; i++)
		x[i] = (float)(i * i % 37) - 11;
	row_op_begin(&op, ROW_QUANTISED, H, sizeof(scales[0]));
	row_op_from(&op, x, NULL);
	row_op_to(&op, rows[0], (uint8_t *)scales[0], false);
	row_op_run(&config, &op, NULL);
	op.nr_to = 0;
	for (int i = 1; i < 4; i++)
		row_op_to(&op, rows[i], (uint8_t *)scales[i], i & 1);
	row_op_run(&config, &op, &own);
	for (int i = 1; i < 4; i++) {
		assert_memory_equal(rows[i], rows[0], H);
		assert_memory_equal(scales[i], scales[0], sizeof(scales[0]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_threads),
		cmocka_unit_test(by_callers_pool),
		cmocka_unit_test(places_get_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
