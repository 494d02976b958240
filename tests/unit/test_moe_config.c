/* SPDX-License-Identifier: Apache-2.0 */
/* What TERN_AUTO chooses: for which numbers of tokens low latency, on CPUs and on devices. That
 * rounds go through in it: tests/exchange/test_auto.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "exchange/moe_config.h"

/* Low latency up to `most` tokens of a rank, and high throughput from one more on. */
struct bound {
	uint32_t most;
	uint32_t nr_ranks; /* 0: 2 */
	uint32_t nr_nodes; /* 0: 1 */
	uint32_t nr_slots; /* 0: 1 */
	uint32_t gate_rows, nr_sms, slots_in_turn;
};

static enum tern_mode chosen(const struct bound *b, uint16_t device, uint32_t max_tokens)
{
	struct tern_moe_config config;

	tern_moe_config_init(&config);
	config.device = device;
	config.max_tokens = max_tokens;
	config.gate_rows = b->gate_rows;
	config.nr_sms = b->nr_sms;
	config.nr_slots = b->nr_slots ? b->nr_slots : 1;
	config.slots_in_turn = b->slots_in_turn;
	assert_int_equal(moe_config_choose(&config, b->nr_ranks ? b->nr_ranks : 2,
				 b->nr_nodes ? b->nr_nodes : 1),
		0);
	return config.mode;
}

static void bounds(const struct bound *all, size_t nr, uint16_t device)
{
	for (size_t i = 0; i < nr; i++) {
		assert_int_equal(chosen(&all[i], device, 1), TERN_LOW_LATENCY);
		assert_int_equal(chosen(&all[i], device, all[i].most), TERN_LOW_LATENCY);
		assert_int_equal(chosen(&all[i], device, all[i].most + 1), TERN_HIGH_THROUGHPUT);
	}
}

static void by_ranks_and_nodes(void **state)
{
	static const struct bound cpu[] = {{.most = 256, .nr_ranks = 2},
		{.most = 256, .nr_ranks = 64, .nr_nodes = 8}},
				  devices[] = {{.most = 4096, .nr_ranks = 1},
					  {.most = 4096, .nr_ranks = 2},
					  {.most = 2048, .nr_ranks = 3},
					  {.most = 2048, .nr_ranks = 4},
					  {.most = 1024, .nr_ranks = 5},
					  {.most = 1024, .nr_ranks = 72},
					  {.most = 2048, .nr_ranks = 2, .nr_nodes = 2},
					  {.most = 1024, .nr_ranks = 4, .nr_nodes = 2},
					  {.most = 2048, .gate_rows = 64},
					  {.most = 1024, .nr_ranks = 4, .gate_rows = 128}};

	(void)state;
	bounds(cpu, sizeof(cpu) / sizeof(cpu[0]), TERN_DEVICE_CPU);
	bounds(devices, sizeof(devices) / sizeof(devices[0]), TERN_DEVICE_CUDA);
}

/* Be it that slots share them. */
static void by_sms(void **state)
{
	static const struct bound all[] = {{.most = 4096, .nr_sms = 200},
		{.most = 4096, .nr_sms = 120}, {.most = 2048, .nr_sms = 119},
		{.most = 2048, .nr_sms = 96}, {.most = 1024, .nr_sms = 64},
		{.most = 512, .nr_sms = 40}, {.most = 256, .nr_sms = 39},
		{.most = 256, .nr_sms = 1}, {.most = 1024, .nr_ranks = 4, .nr_sms = 96},
		{.most = 512, .nr_ranks = 4, .nr_sms = 64},
		{.most = 128, .nr_ranks = 4, .nr_sms = 24},
		{.most = 1024, .nr_ranks = 8, .nr_sms = 100},
		{.most = 1024, .gate_rows = 64, .nr_sms = 66}, {.most = 1024, .nr_slots = 2},
		{.most = 4096, .nr_slots = 2, .slots_in_turn = 1},
		{.most = 256, .nr_sms = 24, .nr_slots = 2}, {.most = 256, .nr_slots = 16}};

	(void)state;
	bounds(all, sizeof(all) / sizeof(all[0]), TERN_DEVICE_CUDA);
}

static enum tern_mode chosen_on_device(struct tern_moe_config config)
{
	config.device = TERN_DEVICE_CUDA;
	assert_int_equal(moe_config_choose(&config, 2, 1), 0);
	return config.mode;
}

/* What only one of the modes can do decides, whatever the tokens. */
static void by_settings(void **state)
{
	struct tern_moe_config few, many;

	(void)state;
	tern_moe_config_init(&few);
	few.max_tokens = 1;
	many = few;
	many.max_tokens = 100000;
	few.capacity = 2;
	many.caller_output = 1;
	assert_int_equal(chosen_on_device(few), TERN_HIGH_THROUGHPUT);
	assert_int_equal(chosen_on_device(many), TERN_LOW_LATENCY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(by_ranks_and_nodes),
		cmocka_unit_test(by_sms), cmocka_unit_test(by_settings)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
