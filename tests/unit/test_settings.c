/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that are refused: from the environment, or of an exchange. The text names what was set,
 * and its figures tell why it is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tern_engine.h"

static tern_group *group;

static int join_alone(void **state)
{
	struct tern_group_config config;

	(void)state;
	tern_group_config_init(&config);
	return tern_boot_self(&config.boot) || tern_group_create(&config, &group);
}

static int leave(void **state)
{
	(void)state;
	return tern_group_destroy(group);
}

static void small_config(struct tern_moe_config *config)
{
	tern_moe_config_init(config);
	config->hidden = 64;
	config->nr_experts = 4;
	config->topk = 2;
	config->max_tokens = 8;
	config->mode = TERN_HIGH_THROUGHPUT;
}

static void assert_says(const char *text)
{
	if (!strstr(tern_last_error(), text))
		fail_msg("\"%s\" does not say \"%s\"", tern_last_error(), text);
}

static void refused(const struct tern_moe_config *config, const char *text)
{
	tern_moe *moe = NULL;
	int rc = tern_moe_create(group, config, &moe);

	if (!rc)
		fail_msg("taken, for all that \"%s\"", text);
	assert_int_equal(rc, TERN_ERR_INVALID);
	assert_says(text);
}

static void taken(const struct tern_moe_config *config)
{
	tern_moe *moe = NULL;

	if (tern_moe_create(group, config, &moe))
		fail_msg("%s", tern_last_error());
	assert_int_equal(tern_moe_destroy(moe), 0);
}

/* ---- numbers in the environment -------------------------------------------------------------- */

static void refuses_number(const char *name, const char *value, const char *range)
{
	struct tern_moe_config config;
	char text[256];

	small_config(&config);
	snprintf(text, sizeof(text), "%s is \"%s\"; it has to be a whole number from %s", name,
		value, range);
	setenv(name, value, 1);
	refused(&config, text);
	unsetenv(name);
}

static void numbers_that_are_none(void **state)
{
	static const char *const odd[] = {"4294967312", "abc", "-1", "12x", "", " 16", "16 ", "+16",
		"1.5", "0x", "-", "99999999999999999999"};

	(void)state;
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		refuses_number("TERN_CHUNKS", odd[i], "2 to 512");
		refuses_number("TERN_CHUNK_BYTES", odd[i], "1 to 67108864");
	}
	refuses_number("TERN_CHUNKS", "1", "2 to 512");
	refuses_number("TERN_CHUNKS", "513", "2 to 512");
	refuses_number("TERN_CHUNK_BYTES", "0", "1 to 67108864");
	refuses_number("TERN_CHUNK_BYTES", "67108865", "1 to 67108864");
	refuses_number("TERN_THREADS", "0", "1 to 256");
	refuses_number("TERN_THREADS", "257", "1 to 256");
}

static void numbers_that_are_good(void **state)
{
	static const char *const good[] = {"2", "512", "16", "0x10", "0016"};
	struct tern_moe_config config;

	(void)state;
	small_config(&config);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		setenv("TERN_CHUNKS", good[i], 1);
		taken(&config);
	}
	setenv("TERN_CHUNKS", "nobody asks", 1); /* the caller has said how many */
	config.nr_chunks = 4;
	taken(&config);
	unsetenv("TERN_CHUNKS");
}

/* ---- figures of a refusal -------------------------------------------------------------------- */

static void figures_have_signs(void **state)
{
	struct tern_moe_config config;

	(void)state;
	small_config(&config);
	config.wait_ms = -1;
	refused(&config, "wait_ms is -1; 0 to 2147483647 are possible");
	small_config(&config);
	config.mode = (enum tern_mode) - 1;
	refused(&config, "mode is -1; 0 to 2 are possible");
	small_config(&config);
	config.max_tokens = UINT32_MAX;
	refused(&config, "max_tokens is 4294967295; 1 to 16777216 are possible");
	small_config(&config);
	config.nr_threads = 257;
	refused(&config, "nr_threads is 257; 1 to 256 are possible");
}

static void figures_of_an_engine(void **state)
{
	static const struct {
		int wait_ms, heartbeat_ms, timeout_ms;
		const char *text;
	} cases[] = {{-1, 0, 1, "wait_ms is -1; 0 to 2147483647 are possible"},
		{0, -2, 1, "heartbeat_ms is -2; -1 to 2147483647 are possible"},
		{0, 0, 0, "timeout_ms is 0; 1 to 2147483647 are possible"}};
	struct tern_engine_config config;
	tern_engine *engine = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tern_engine_config_init(&config);
		config.wait_ms = cases[i].wait_ms;
		config.heartbeat_ms = cases[i].heartbeat_ms;
		config.timeout_ms = cases[i].timeout_ms;
		assert_int_equal(tern_engine_create(group, &config, &engine), TERN_ERR_INVALID);
		assert_says(cases[i].text);
	}
}

/* Results alone are too much here: rows, which are few, do not explain it. */
static void sizes_explain_themselves(void **state)
{
	struct tern_moe_config config;
	double need = 0, most = 0;
	const char *figures;

	(void)state;
	small_config(&config);
	config.max_tokens = 1u << 24;
	config.hidden = 1u << 20;
	config.combine_dtype = TERN_FP32;
	config.capacity = 8;
	refused(&config, "these sizes need ");
	figures = strstr(tern_last_error(), "need ");
	assert_int_equal(
		sscanf(figures, "need %lf GB of address space; at most %lf", &need, &most), 2);
	if (need <= most)
		fail_msg("%s", tern_last_error());
}

/* What no 32 or 64 bits hold must not come out small. */
static void sizes_that_overflow(void **state)
{
	struct tern_moe_config config;

	(void)state;
	small_config(&config);
	config.layout = TERN_PADDED;
	config.capacity = 1ull << 62; /* of 4 experts */
	refused(&config, "capacity is 4611686018427387904; 0");
	small_config(&config);
	config.x_dtype = config.dispatch_dtype = TERN_BYTES;
	config.payload_bytes = UINT32_MAX - 15;
	refused(&config, "payload_bytes is 4294967280");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_that_are_none),
		cmocka_unit_test(numbers_that_are_good),
		cmocka_unit_test(figures_have_signs),
		cmocka_unit_test(figures_of_an_engine),
		cmocka_unit_test(sizes_explain_themselves),
		cmocka_unit_test(sizes_that_overflow),
	};

	return cmocka_run_group_tests(tests, join_alone, leave);
}
