/* SPDX-License-Identifier: Apache-2.0 */
/* Figures that the library gives of itself, against a count of every route and a look at the
 * process. */
#include "tests/exchange/expected_stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "exchange/wire.h"

#define ROUNDS 9

static void make_job(
	struct job *job, enum tern_mode mode, enum tern_layout layout, uint32_t replica_ranks)
{
	job_init(job);
	job->nr_ranks = 4;
	job->nr_tokens = job->config.max_tokens = 20;
	job->config.hidden = 128;
	job->config.nr_experts = 10;
	job->config.topk = 5;
	job->config.mode = mode;
	job->config.layout = layout;
	job->config.reduce = layout == TERN_CONTIGUOUS ? TERN_REDUCE_HOME : TERN_REDUCE_EXPERT;
	job->config.weights = layout == TERN_BY_SOURCE ? TERN_WEIGHTS_PASS : TERN_WEIGHTS_COMBINE;
	job->config.dispatch_dtype = layout == TERN_PADDED ? TERN_FP8_E4M3 : TERN_BF16;
	job->config.scale = layout == TERN_PADDED ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	job->config.combine_dtype = TERN_FP32;
	job->config.replica_ranks = replica_ranks;
	job->nr_redundant = 3;
	job->spread = true;
	job->routing.uneven = true;
	job->routing.drop = 0.2;
	job->input = INPUT_RANDOM;
	assert_int_equal(job_open(job, NULL), 0);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void weigh(struct expected_stats *expected, const struct job *job)
{
	const struct tern_moe_config *c = &job->config;
	uint64_t header =
		(sizeof(struct row_header) + c->topk * sizeof(struct route) + 63) / 64 * 64;
	uint64_t payload = job_received_bytes(job) + job_received_scales_bytes(job);
	bool copies = c->mode == TERN_HIGH_THROUGHPUT && c->layout != TERN_BY_SOURCE;

	expected_bytes(
		expected, header + (copies ? 0 : payload), copies ? payload : 0, job_y_bytes(job));
}

static void stats_body(struct rank *rank)
{
	struct expected_stats expected = {0};
	struct round r;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	for (uint64_t i = 0; i < ROUNDS && !rc; i++) {
		if (i == 5) {
			memset(&expected, 0, sizeof(expected));
			rc = tern_moe_stats_reset(r.moe);
		}
		rc = rc ? rc : run_round(&r, i);
		expected_round(&expected, r.reference, (uint32_t)rank->rank, false);
		weigh(&expected, rank->ctx);
		rc = rc ? rc : expected_compare(&expected, rank, r.moe, 10);
	}
	if (!rc && !expected.stats.rows_away)
		rank_fails(rank, "nothing was counted");
	round_close(&r);
}

static void statistics(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++)
			for (uint32_t n = 1; n <= 2; n++) {
				struct job job;
				const char *failure;

				make_job(&job, mode, layout, n);
				failure = run_ranks(4, stats_body, &job);
				job_close(&job);
				if (failure)
					fail_msg("mode %d, layout %d, replicas %u: %s", (int)mode,
						(int)layout, n, failure);
			}
}

/* ---- experts --------------------------------------------------------------------------------- */

static void experts_body(struct rank *rank)
{
	struct round r;
	uint32_t local = 0;
	int rc = round_open(&r, rank, rank->ctx, NULL);

	for (uint32_t p = 0; p < (rc ? 0 : r.reference->nr_physical); p++)
		if (r.reference->rank[p] == rank->rank &&
			tern_moe_local_expert(r.moe, local++) != r.reference->logical[p])
			rank_fails(rank, "local expert %u is %d, not %d", local - 1,
				tern_moe_local_expert(r.moe, local - 1), r.reference->logical[p]);
	if (!rc && tern_moe_nr_local(r.moe) != (int)local)
		rank_fails(rank, "%d local experts, not %u", tern_moe_nr_local(r.moe), local);
	round_close(&r);
}

static void local_experts(void **state)
{
	struct job job;
	const char *failure;

	(void)state;
	make_job(&job, TERN_LOW_LATENCY, TERN_PADDED, 1);
	failure = run_ranks(4, experts_body, &job);
	job_close(&job);
	if (failure)
		fail_msg("%s", failure);
}

/* ---- memory: what is mapped under the window's name ------------------------------------------ */

static uint64_t mapped_windows(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	uint64_t sum = 0;

	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long long from, to;

		if (strstr(line, "memfd:tern-window") && sscanf(line, "%llx-%llx", &from, &to) == 2)
			sum += to - from;
	}
	if (maps)
		fclose(maps);
	return sum;
}

static void memory_body(struct rank *rank)
{
	struct tern_memory m = {.size = sizeof(m)};
	const struct job *job = rank->ctx;
	uint64_t window, before = mapped_windows();
	uint64_t rows = job->config.max_tokens, least;
	struct round r;

	if (!round_open(&r, rank, job, NULL) && tern_moe_memory(r.moe, &m))
		rank_fails(rank, "%s", tern_last_error());
	window = m.window_bytes + (job->config.mode == TERN_HIGH_THROUGHPUT ? m.output_bytes : 0);
	least = rows * job_received_bytes(job) * job->config.nr_slots;
	if (mapped_windows() - before != (window + 4095) / 4096 * 4096)
		rank_fails(rank, "%llu bytes of window, %llu are mapped",
			(unsigned long long)window,
			(unsigned long long)(mapped_windows() - before));
	if (m.output_bytes < least || m.output_bytes > least * 64 ||
		m.private_bytes < rows * job->config.topk * 4)
		rank_fails(rank, "%llu bytes of output, %llu private",
			(unsigned long long)m.output_bytes, (unsigned long long)m.private_bytes);
	round_close(&r);
	if (mapped_windows() != before)
		rank_fails(rank, "%llu bytes of window are left",
			(unsigned long long)(mapped_windows() - before));
}

static void memory_figures(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (uint32_t slots = 1; slots <= 3; slots++) {
			struct job job;
			const char *failure;

			job_init(&job);
			job.nr_tokens = job.config.max_tokens = 100;
			job.config.hidden = 1024;
			job.config.nr_experts = 8;
			job.config.topk = 2;
			job.config.mode = mode;
			job.config.nr_slots = slots;
			assert_int_equal(job_open(&job, NULL), 0);
			failure = run_ranks(1, memory_body, &job);
			job_close(&job);
			if (failure)
				fail_msg("mode %d, %u slots: %s", (int)mode, slots, failure);
		}
}

/* ---- the words ------------------------------------------------------------------------------- */

static void error_names(void **state)
{
	(void)state;
	for (int code = TERN_ERR_LOST_EXPERTS; code <= 0; code++) {
		assert_int_equal(strncmp(tern_strerror(code), "TERN_", 5), 0);
		assert_non_null(strchr(tern_strerror(code), ':'));
		for (int other = TERN_ERR_LOST_EXPERTS; other < code; other++)
			assert_string_not_equal(tern_strerror(code), tern_strerror(other));
	}
	assert_non_null(tern_strerror(1));
	assert_non_null(tern_strerror(TERN_ERR_LOST_EXPERTS - 1));
	assert_int_equal(strncmp(tern_strerror(TERN_ERR_LOST_EXPERTS - 1), "unknown", 7), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(statistics),
		cmocka_unit_test(local_experts),
		cmocka_unit_test(memory_figures),
		cmocka_unit_test(error_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
