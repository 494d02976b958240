/* SPDX-License-Identifier: Apache-2.0 */
/* How tiles of a layer's products are divided over k: what a kernel's warp chooses, made here in a
 * loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu/cuda/layer/split.h"

static uint32_t choose(uint32_t rest, uint32_t blocks, uint32_t k_blocks, uint32_t most)
{
	uint32_t best = 1;

	for (uint32_t splits = 2; splits <= 32; splits++)
		if (layer_split_cost(rest, blocks, k_blocks, splits, most) <
			layer_split_cost(rest, blocks, k_blocks, best, most))
			best = splits;
	return best;
}

/* Every split has a block of k, all of them have each once, and all run at once. */
static void divides(void **state)
{
	(void)state;
	for (uint32_t rest = 1; rest < 132; rest++)
		for (uint32_t k_blocks = 1; k_blocks < 120; k_blocks++) {
			uint32_t splits = choose(rest, 132, k_blocks, 132);

			assert_true(rest * splits <= 132);
			assert_int_equal(layer_split_begin(k_blocks, splits, 0), 0);
			assert_int_equal(layer_split_begin(k_blocks, splits, splits), k_blocks);
			for (uint32_t i = 0; i < splits; i++)
				assert_true(layer_split_begin(k_blocks, splits, i) <
					    layer_split_begin(k_blocks, splits, i + 1));
		}
}

/* What is chosen at one token of gpt-oss-120b, whose products have 45 blocks of k: 69 tiles keep
 * memory busy, 36 do not. */
static void few_tiles_are_split(void **state)
{
	(void)state;
	assert_int_equal(choose(69, 132, 45, 132), 1);
	assert_true(choose(36, 132, 45, 132) > 1);
	assert_true(choose(12, 132, 45, 132) >= 4);
	assert_int_equal(choose(12, 132, 4, 132), 1);
}

static void without_room(void **state)
{
	(void)state;
	assert_int_equal(choose(12, 132, 45, 0), 1);
	assert_true(choose(12, 132, 45, 30) <= 2);
	assert_int_equal(choose(1, 132, 45, 1), 1);
}

/* The cost of one split is never out of reach, nor does any wrap around in the 27 bits that the
 * warp has for it. */
static void costs_fit(void **state)
{
	(void)state;
	for (uint32_t rest = 0; rest < 1024; rest++)
		for (uint32_t splits = 1; splits <= 32; splits++) {
			uint32_t cost = layer_split_cost(rest, 1024, 1 << 14, splits, 1024);

			assert_true(splits > 1 || cost < SPLIT_NEVER);
			assert_true(cost <= SPLIT_NEVER);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(divides),
		cmocka_unit_test(few_tiles_are_split),
		cmocka_unit_test(without_room),
		cmocka_unit_test(costs_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
