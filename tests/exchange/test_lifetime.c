/* SPDX-License-Identifier: Apache-2.0 */
/* Made and destroyed, over and over and in any order: nothing is left behind. */
#include "tests/exchange/ranks.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr;
}

/* Taken by rank 0 while the others wait: they share the process. */
struct holdings {
	int files;
	long space;
};

/* Bytes of address space, in MiB: what is lost a thousand times shows. */
static long address_space(void)
{
	FILE *statm = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (statm && fscanf(statm, "%ld", &pages) != 1)
		pages = 0;
	if (statm)
		fclose(statm);
	return pages / 256;
}

static struct holdings take_stock(struct rank *rank)
{
	struct holdings now = {0};

	ranks_meet(rank);
	if (rank->rank == 0)
		now = (struct holdings){open_files(), address_space()};
	ranks_meet(rank);
	return now;
}

static void expect_no_more(struct rank *rank, struct holdings before)
{
	struct holdings now = take_stock(rank);

	if (now.files > before.files)
		rank_fails(rank, "%d files are open; %d were before", now.files, before.files);
	if (!getenv("TERN_TEST_DIVISOR") && now.space > before.space + 256) /* sanitizers keep what
									       was freed */
		rank_fails(rank, "%ld MiB of address space; %ld before", now.space, before.space);
}

static int windows_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int nr = 0;

	while (maps && fgets(line, sizeof(line), maps))
		nr += strstr(line, "tern-window") != NULL;
	if (maps)
		fclose(maps);
	return nr;
}

static void small_job(struct job *job, uint32_t nr_ranks, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = nr_ranks;
	job->nr_tokens = job->config.max_tokens = 4;
	job->config.hidden = 1024;
	job->config.nr_experts = 4;
	job->config.topk = 2;
	job->config.mode = mode;
	job->config.nr_slots = 2;
	assert_int_equal(job_open(job, NULL), 0);
}

static void exchanges_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct holdings before;

	run_rounds(rank, job, 2); /* what is taken once is taken now */
	before = take_stock(rank);
	for (int i = 0; i < scaled(1000) && !*rank->failure; i++)
		run_rounds(rank, job, i % 50 == 0 ? 2 : 0);
	expect_no_more(rank, before);
}

static void a_thousand_exchanges(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++) {
		struct job job;
		const char *failure;

		small_job(&job, 2, mode);
		failure = run_ranks(2, exchanges_body, &job);
		job_close(&job);
		if (failure)
			fail_msg("mode %d: %s", (int)mode, failure);
		assert_int_equal(windows_mapped(), 0);
	}
}

static void one_round_body(struct rank *rank)
{
	run_rounds(rank, rank->ctx, 1);
}

static void a_thousand_groups(void **state)
{
	struct job job;
	int files = open_files();

	(void)state;
	small_job(&job, 2, TERN_LOW_LATENCY);
	for (int i = 0; i < scaled(1000); i++) {
		const char *failure = run_ranks(2, one_round_body, &job);

		if (failure)
			fail_msg("group %d: %s", i, failure);
	}
	job_close(&job);
	assert_int_equal(open_files(), files);
	assert_int_equal(windows_mapped(), 0);
}

/* More than a byte counts, made and destroyed beside one that lives. */
static void beside_a_living_one_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct round living;
	int rc = round_open(&living, rank, job, NULL);

	for (uint64_t i = 0; i < 300 && !rc; i++) {
		rc = run_rounds(rank, job, i % 100 == 0);
		rc = rc || i % 50 ? rc : run_round(&living, i / 50);
	}
	round_close(&living);
}

static void hundreds_beside_a_living_one(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++) {
		struct job job;
		const char *failure;

		small_job(&job, 2, mode);
		failure = run_ranks(2, beside_a_living_one_body, &job);
		job_close(&job);
		if (failure)
			fail_msg("mode %d: %s", (int)mode, failure);
	}
}

#define MOST_OVER_ENGINE 256

/* As many as can be alive at once: one more is refused where an engine has to tell them apart, and
 * taken again when ranks have each destroyed two, of which one is the same. */
static void very_many_body(struct rank *rank)
{
	static const int doomed[2][2] = {{7, 200}, {90, 7}};
	const struct job *job = rank->ctx;
	bool engine = tern_group_path(rank->group, 1 - rank->rank) == TERN_PATH_ENGINE;
	tern_moe *all[MOST_OVER_ENGINE + 2] = {NULL}, **last = &all[MOST_OVER_ENGINE];
	int rc = 0;

	for (int i = 0; i < MOST_OVER_ENGINE && !rc; i++)
		rc = tern_moe_create(rank->group, &job->config, &all[i]);
	if (rc)
		rank_fails(rank, "many: %s", tern_last_error());
	rc = tern_moe_create(rank->group, &job->config, last);
	if (rc != (engine ? TERN_ERR_NOMEM : 0) ||
		(rc && !strstr(tern_last_error(), "256 exchanges")))
		rank_fails(rank, "one more: got %d, %s", rc, tern_last_error());
	for (int i = 0; i < 2; i++) {
		tern_moe_destroy(all[doomed[rank->rank][i]]);
		all[doomed[rank->rank][i]] = NULL;
	}
	if (tern_moe_create(rank->group, &job->config, &last[1]))
		rank_fails(rank, "after two were destroyed: %s", tern_last_error());
	for (int i = 0; i < MOST_OVER_ENGINE + 2; i++)
		tern_moe_destroy(all[i]);
	run_rounds(rank, job, 1);
}

static void very_many_at_once(void **state)
{
	struct job job;
	const char *failure;

	(void)state;
	small_job(&job, 2, TERN_LOW_LATENCY);
	failure = run_ranks(2, very_many_body, &job);
	job_close(&job);
	if (failure)
		fail_msg("%s", failure);
	assert_int_equal(windows_mapped(), 0);
}

/* Refused creations give back everything, too. */
static void refused_body(struct rank *rank)
{
	struct tern_moe_config bad[3];
	const struct job *job = rank->ctx;
	struct holdings before;
	tern_moe *moe = NULL;

	for (int i = 0; i < 3; i++)
		bad[i] = job->config;
	bad[0].hidden = 3;
	bad[1].topk = rank->rank ? 1 : 2;
	bad[2].max_tokens = 1u << 24;
	bad[2].hidden = 1u << 24;
	before = take_stock(rank);
	for (int i = 0; i < scaled(600); i++)
		if (!tern_moe_create(rank->group, &bad[i % 3], &moe))
			rank_fails(rank, "bad settings %d were taken", i % 3);
	expect_no_more(rank, before);
	run_rounds(rank, job, 1);
}

static void refused_creations(void **state)
{
	struct job job;
	const char *failure;

	(void)state;
	small_job(&job, 2, TERN_LOW_LATENCY);
	failure = run_ranks(2, refused_body, &job);
	job_close(&job);
	if (failure)
		fail_msg("%s", failure);
	assert_int_equal(windows_mapped(), 0);
}

/* Three exchanges of a group, with rounds under way in two of them, torn down in an order of each
 * rank's own. */
static void any_order_body(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct round rounds[3] = {{0}};
	int rc = 0;

	for (int i = 0; i < 3 && !rc; i++)
		rc = round_open(&rounds[i], rank, job, NULL);
	rc = rc ? rc : run_round(&rounds[0], 0);
	rc = rc ? rc : round_dispatch_send(&rounds[1]);
	rc = rc ? rc : round_dispatch_send(&rounds[2]);
	rc = rc ? rc : round_dispatch_recv(&rounds[2]);
	for (int i = 0; i < 3; i++)
		round_close(&rounds[(rank->rank + i * (rank->rank & 1 ? 1 : 2)) % 3]);
}

static void torn_down_in_any_order(void **state)
{
	(void)state;
	for (int i = 0; i < scaled(40); i++) {
		struct job job;
		const char *failure;

		small_job(&job, 4, i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT);
		failure = run_ranks(4, any_order_body, &job);
		job_close(&job);
		if (failure)
			fail_msg("%s", failure);
		assert_int_equal(windows_mapped(), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_thousand_exchanges),
		cmocka_unit_test(a_thousand_groups),
		cmocka_unit_test(hundreds_beside_a_living_one),
		cmocka_unit_test(very_many_at_once),
		cmocka_unit_test(refused_creations),
		cmocka_unit_test(torn_down_in_any_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
