/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstraps of ranks as threads, and what callers may do to a boot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/boot_ranks.h"

/* ---- threads --------------------------------------------------------------------------------- */

static void boot_threads(
	struct tern_threads **threads, struct rank *ranks, int n, int wait_ms, int nr_rounds)
{
	memset(ranks, 0, (size_t)n * sizeof(*ranks));
	assert_int_equal(tern_threads_create(n, wait_ms, threads), 0);
	for (int r = 0; r < n; r++) {
		assert_int_equal(tern_threads_boot(*threads, r, &ranks[r].boot), 0);
		assert_int_equal(ranks[r].boot.rank, r);
		assert_int_equal(ranks[r].boot.nr_ranks, n);
		ranks[r].nr_rounds = nr_rounds;
	}
}

static void threads_gather(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[MAX_RANKS];

	(void)state;
	for (int n = 1; n <= MAX_RANKS; n++) {
		boot_threads(&threads, ranks, n, 30000, 300);
		for (int r = 0; r < n; r++)
			start_rank(&ranks[r]);
		for (int r = 0; r < n; r++)
			join_rank(&ranks[r]);
		for (int r = 0; r < n; r++) {
			assert_text(&ranks[r], 0, "");
			assert_int_equal(ranks[r].bad_rounds, 0);
		}
		close_ranks(ranks, n);
		tern_threads_destroy(threads);
	}
}

static void threads_two_boots_each(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[3];

	(void)state;
	boot_threads(&threads, ranks, 3, 30000, 100);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(tern_threads_boot(threads, r, &ranks[r].second), 0);
		start_rank(&ranks[r]);
	}
	for (int r = 0; r < 3; r++) {
		join_rank(&ranks[r]);
		assert_text(&ranks[r], 0, "");
	}
	tern_threads_destroy(threads); /* first, though boots are open: the last close frees */
	close_ranks(ranks, 3);
}

static void threads_mismatch(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[4];

	(void)state;
	boot_threads(&threads, ranks, 4, 30000, 1);
	for (int r = 0; r < 4; r++)
		ranks[r].bytes = r == 2 ? 48 : 16;
	for (int r = 0; r < 4; r++)
		start_rank(&ranks[r]);
	for (int r = 0; r < 4; r++) {
		join_rank(&ranks[r]);
		assert_text(
			&ranks[r], TERN_ERR_BOOTSTRAP, "rank 0 passes 16 bytes, rank 2 passes 48");
	}
	rank_main(&ranks[0]); /* and so for ever */
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP, "rank 2 passes 48");
	close_ranks(ranks, 4);
	tern_threads_destroy(threads);
}

static void threads_missing_rank(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[3];

	(void)state;
	boot_threads(&threads, ranks, 3, 100, 1);
	start_rank(&ranks[0]);
	start_rank(&ranks[2]);
	join_rank(&ranks[0]);
	join_rank(&ranks[2]);
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP, "first of them rank 1");
	assert_text(&ranks[2], TERN_ERR_BOOTSTRAP, "first of them rank 1");
	rank_main(&ranks[1]); /* too late, and told so without another wait */
	assert_text(&ranks[1], TERN_ERR_BOOTSTRAP, "waited 100 ms");
	assert_true(ranks[1].took_ms - ranks[1].late_ms < 90);
	close_ranks(ranks, 3);
	tern_threads_destroy(threads);
}

static void threads_bad_arguments(void **state)
{
	struct tern_threads *threads;
	struct tern_boot boot;

	(void)state;
	assert_int_equal(tern_threads_create(0, 10, &threads), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_create(2, -1, &threads), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_create(2, 10, NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_create(2, 10, &threads), 0);
	assert_int_equal(tern_threads_boot(threads, 2, &boot), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_boot(threads, -1, &boot), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_boot(NULL, 0, &boot), TERN_ERR_INVALID);
	tern_threads_destroy(threads);
	tern_threads_destroy(NULL);
}

/* ---- a boot that a caller has changed, or given twice ---------------------------------------- */

static void expect_refused(const struct tern_boot *boot, int code, const char *part)
{
	struct tern_group_config config;
	tern_group *group = NULL;

	tern_group_config_init(&config);
	config.boot = *boot;
	assert_int_equal(tern_group_create(&config, &group), code);
	assert_null(group);
	assert_last_error(part);
}

/* Nothing is gathered into room for fewer ranks than there are. */
static void changed_boots(void **state)
{
	struct tern_threads *threads;
	struct tern_boot boot;
	int pair[2];

	(void)state;
	assert_int_equal(tern_threads_create(2, 100, &threads), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	for (int by_socket = 0; by_socket < 2; by_socket++)
		for (int change = 0; change < 3; change++) {
			static const char *const said[] = {
				"rank 0 of 1", "rank 0 of 3", "rank 1 of 2"};
			static const int changed[][2] = {{0, 1}, {0, 3}, {1, 2}};

			assert_int_equal(by_socket ? boot_socket(0, 2, pair[1], 100, &boot)
						   : tern_threads_boot(threads, 0, &boot),
				0);
			boot.rank = changed[change][0];
			boot.nr_ranks = changed[change][1];
			expect_refused(&boot, TERN_ERR_INVALID, said[change]);
			assert_last_error("made for rank 0 of 2");
		}
	assert_int_equal(tern_boot_self(&boot), 0);
	boot.nr_ranks = 2;
	expect_refused(&boot, TERN_ERR_INVALID, "made for rank 0 of 1");
	tern_threads_destroy(threads);
	close(pair[0]);
	close(pair[1]);
}

/* The first group lives on with it, and is the one that closes it. */
static void boot_given_twice(void **state)
{
	struct tern_group_config config;
	struct tern_threads *threads;
	tern_group *group;
	int mine = 5, all = 0;

	(void)state;
	tern_group_config_init(&config);
	assert_int_equal(tern_threads_create(1, 100, &threads), 0);
	assert_int_equal(tern_threads_boot(threads, 0, &config.boot), 0);
	tern_threads_destroy(threads);
	assert_int_equal(tern_group_create(&config, &group), 0);
	expect_refused(&config.boot, TERN_ERR_INVALID, "rank 0 of 1 belongs to another group");
	assert_int_equal(tern_group_allgather(group, &mine, &all, sizeof(mine)), 0);
	assert_int_equal(all, 5);
	assert_int_equal(tern_group_destroy(group), 0);
	assert_int_equal(tern_boot_self(&config.boot), 0); /* as many as one likes */
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tern_group_create(&config, &group), 0);
		assert_int_equal(tern_group_destroy(group), 0);
	}
}

/* Two threads that are both rank 1: both are told, and nobody waits for rank 0. */
static void threads_rank_twice(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[2];

	(void)state;
	boot_threads(&threads, ranks, 2, 30000, 1);
	ranks[0].boot.close(ranks[0].boot.ctx);
	assert_int_equal(tern_threads_boot(threads, 1, &ranks[0].boot), 0);
	start_rank(&ranks[0]);
	start_rank(&ranks[1]);
	for (int r = 0; r < 2; r++) {
		join_rank(&ranks[r]);
		assert_text(&ranks[r], TERN_ERR_BOOTSTRAP, "rank 1 has come twice");
	}
	close_ranks(ranks, 2);
	tern_threads_destroy(threads);
}

/* A caller's own gathering, which says who is who in its own way. */
struct claim {
	struct tern_boot boot; /* who it is */
	int rank, nr_ranks;    /* and who it says it is */
	int rc;
	char text[256];
};

static int claim_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct claim *claim = ctx;

	return claim->boot.allgather(claim->boot.ctx, mine, all, bytes);
}

static void *claim_main(void *arg)
{
	struct claim *claim = arg;
	struct tern_group_config config;
	tern_group *group = NULL;

	tern_group_config_init(&config);
	config.wait_ms = 1000;
	config.boot = (struct tern_boot){.rank = claim->rank,
		.nr_ranks = claim->nr_ranks,
		.allgather = claim_allgather,
		.ctx = claim};
	claim->rc = tern_group_create(&config, &group);
	snprintf(claim->text, sizeof(claim->text), "%s", claim->rc ? tern_last_error() : "");
	tern_group_destroy(group);
	return NULL;
}

static void false_claims(void **state)
{
	static const struct {
		int rank, nr_ranks;
		const char *text;
	} claims[] = {
		{0, 2, "in the place of rank 1 is one that says it is rank 0 of 2"},
		{1, 3, "in the place of rank 1 is one that says it is rank 1 of 3"},
	};
	struct tern_threads *threads;
	pthread_t thread;

	(void)state;
	for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
		struct claim one = {.rank = 0, .nr_ranks = 2},
			     other = {.rank = claims[i].rank, .nr_ranks = claims[i].nr_ranks};

		assert_int_equal(tern_threads_create(2, 30000, &threads), 0);
		assert_int_equal(tern_threads_boot(threads, 0, &one.boot), 0);
		assert_int_equal(tern_threads_boot(threads, 1, &other.boot), 0);
		assert_int_equal(pthread_create(&thread, NULL, claim_main, &one), 0);
		claim_main(&other);
		pthread_join(thread, NULL);
		assert_int_equal(one.rc, TERN_ERR_MISMATCH);
		assert_int_equal(other.rc, TERN_ERR_MISMATCH);
		if (!strstr(one.text, claims[i].text))
			fail_msg("\"%s\" is not in \"%s\"", claims[i].text, one.text);
		one.boot.close(one.boot.ctx);
		other.boot.close(other.boot.ctx);
		tern_threads_destroy(threads);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_gather),
		cmocka_unit_test(threads_two_boots_each),
		cmocka_unit_test(threads_mismatch),
		cmocka_unit_test(threads_missing_rank),
		cmocka_unit_test(threads_bad_arguments),
		cmocka_unit_test(changed_boots),
		cmocka_unit_test(boot_given_twice),
		cmocka_unit_test(threads_rank_twice),
		cmocka_unit_test(false_claims),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
