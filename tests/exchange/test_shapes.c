/* SPDX-License-Identifier: Apache-2.0 */
/* Every shape that a model or a router may come with, in both modes, against the reference, bit for
 * bit. */
#include "tests/exchange/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define ROUNDS 6

static void body(struct rank *rank)
{
	run_rounds(rank, rank->ctx, ROUNDS);
}

/* Small enough to be quick, with everything in it; the tests change what they are about. */
static void small_job(struct job *job, uint32_t nr_ranks, enum tern_mode mode)
{
	job_init(job);
	job->nr_ranks = nr_ranks;
	job->nr_tokens = job->config.max_tokens = 12;
	job->config.hidden = 64;
	job->config.nr_experts = 16;
	job->config.topk = 4;
	job->config.mode = mode;
	job->config.nr_slots = 2;
	job->input = INPUT_RANDOM;
	job->routing.uneven = true;
	job->routing.drop = 0.1;
}

static void expect_right(struct job *job)
{
	struct reason why = {""};
	const char *failure;

	if (job_open(job, &why))
		fail_msg("job: %s", why.text);
	failure = run_ranks((int)job->nr_ranks, body, job);
	if (failure)
		fail_msg("ranks %u, tokens %u, hidden %u, experts %u, topk %u, mode %d, layout %d, "
			 "reduce %d: %s",
			job->nr_ranks, job->nr_tokens, job->config.hidden, job->config.nr_experts,
			job->config.topk, (int)job->config.mode, (int)job->config.layout,
			(int)job->config.reduce, failure);
	job_close(job);
}

#define BOTH_MODES(mode)                                                                           \
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)

/* Nothing special about it: where there is no time for more. */
static void two_ranks(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	{
		small_job(&job, 2, mode);
		expect_right(&job);
	}
}

static void four_ranks(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	{
		small_job(&job, 4, mode);
		expect_right(&job);
	}
}

static void hidden_sizes(void **state)
{
	static const uint32_t hidden[] = {
		8, 16, 24, 120, 136, 1024, 2880, 3072, 3584, 6144, 7168, 16384};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
		small_job(&job, 2, mode);
		job.config.hidden = hidden[i];
		job.nr_tokens = job.config.max_tokens = 4;
		expect_right(&job);
	}
}

static void hidden_sizes_quantised(void **state)
{
	static const uint32_t hidden[] = {16, 112, 128, 144, 2880, 7168};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
		for (enum tern_scale scale = TERN_SCALE_FP32; scale <= TERN_SCALE_UE8M0; scale++) {
			small_job(&job, 3, mode);
			job.config.hidden = hidden[i];
			job.nr_tokens = job.config.max_tokens = 4;
			job.config.dispatch_dtype = TERN_FP8_E4M3;
			job.config.scale = scale;
			expect_right(&job);
		}
}

static void topk_sizes(void **state)
{
	static const uint32_t topk[] = {1, 2, 4, 6, 8, 16, 22, 32};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(topk) / sizeof(topk[0]); i++) {
		small_job(&job, 3, mode);
		job.config.nr_experts = 40;
		job.config.topk = topk[i];
		expect_right(&job);
	}
}

/* Also not a multiple of the ranks, and fewer than there are ranks. */
static void expert_counts(void **state)
{
	static const uint32_t experts[] = {1, 2, 3, 7, 8, 60, 128, 160, 256, 384, 512};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(experts) / sizeof(experts[0]); i++) {
		small_job(&job, i % 2 ? 4 : 3, mode);
		job.config.nr_experts = experts[i];
		job.config.topk = experts[i] < 4 ? experts[i] : 4;
		expect_right(&job);
	}
}

static void rank_counts(void **state)
{
	static const uint32_t ranks[] = {1, 2, 3, 4, 5, 8, 16};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
		for (enum tern_reduce reduce = TERN_REDUCE_HOME; reduce <= TERN_REDUCE_EXPERT;
			reduce++) {
			small_job(&job, ranks[i], mode);
			job.config.reduce = reduce;
			expect_right(&job);
		}
}

static void token_counts(void **state)
{
	static const uint32_t tokens[] = {0, 1, 2, 12};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) { /* on all ranks, exactly T
									     at last */
		small_job(&job, 3, mode);
		job.routing.uneven = false;
		job.nr_tokens = tokens[i];
		expect_right(&job);
	}
}

/* 0, 1 and T tokens are drawn often: routing_nr_tokens. */
static void uneven_token_counts(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint64_t seed = 1; seed <= 6; seed++) {
		small_job(&job, 4, mode);
		job.nr_tokens = job.config.max_tokens = 300;
		job.seed = seed;
		expect_right(&job);
	}
}

/* All to one expert, all to one rank, all local to rank 0: what rank 0 gets is T * R * K rows, the
 * others nothing. */
static void all_to_one(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint32_t topk = 1; topk <= 4; topk += 3)
		for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++) {
			small_job(&job, 4, mode);
			job.routing.kind = ROUTING_ONE;
			job.routing.uneven = false;
			job.routing.drop = 0;
			job.config.topk = topk;
			job.config.layout = layout;
			if (layout == TERN_BY_SOURCE) {
				job.config.reduce = TERN_REDUCE_EXPERT;
				job.config.weights = TERN_WEIGHTS_PASS;
			}
			expect_right(&job);
		}
}

static void dropped_routes(void **state)
{
	static const double drop[] = {0, 0.5, 0.95, 1};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(drop) / sizeof(drop[0]); i++) {
		small_job(&job, 3, mode);
		job.routing.drop = drop[i];
		expect_right(&job);
	}
}

static void replicas(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint32_t n = 1; n <= 4; n *= 2)
		for (uint32_t redundant = 0; redundant <= 20; redundant += 10) {
			small_job(&job, 4, mode);
			job.config.replica_ranks = n;
			job.nr_redundant = redundant;
			job.spread = redundant == 10;
			expect_right(&job);
		}
}

static void alignments(void **state)
{
	static const uint32_t alignment[] = {2, 3, 16, 128, 4096};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(alignment) / sizeof(alignment[0]); i++) {
		small_job(&job, 3, mode);
		job.config.alignment = alignment[i];
		expect_right(&job);
	}
}

/* NaN and infinity, in rows and in weights: bits pass, and no other token changes. */
static void special_values(void **state)
{
	static const enum tern_dtype dtypes[] = {TERN_BF16, TERN_FP16, TERN_FP32};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < 3; i++)
		for (int quantise = 0; quantise < 2; quantise++) {
			small_job(&job, 2, mode);
			job.input = INPUT_SPECIAL;
			job.config.x_dtype = job.config.combine_dtype = dtypes[i];
			job.config.dispatch_dtype = quantise ? TERN_FP8_E4M3 : dtypes[i];
			job.config.scale = quantise ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
			job.config.hidden = 256;
			job.config.reduce = quantise ? TERN_REDUCE_EXPERT : TERN_REDUCE_HOME;
			expect_right(&job);
		}
}

static void opaque_payloads(void **state)
{
	static const uint32_t bytes[] = {16, 48, 656, 7168 + 224};
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
		small_job(&job, 3, mode);
		job.config.x_dtype = job.config.dispatch_dtype = TERN_BYTES;
		job.config.payload_bytes = bytes[i];
		expect_right(&job);
	}
}

struct manners {
	struct job *job;
	struct manner manner;
};

static void body_with_manner(struct rank *rank)
{
	const struct manners *m = rank->ctx;

	run_rounds_with(rank, m->job, ROUNDS, &m->manner);
}

/* Strides, wide ids, the caller's own buffers, halves joined: the same rows. */
static void manners(void **state)
{
	struct job job;

	(void)state;
	BOTH_MODES(mode)
	for (uint32_t bits = 0; bits < 128; bits++) {
		struct manners m = {&job, {.rows_apart = bits & 1 ? 48 : 0,
						  .wide_ids = bits & 2,
						  .into = bits & 4,
						  .joined = bits & 8,
						  .stream = bits & 64}};
		const char *failure;

		if (mode == TERN_HIGH_THROUGHPUT && m.manner.into)
			continue;
		small_job(&job, 2, mode);
		job.config.x_dtype = bits & 32 ? TERN_FP8_E4M3 : TERN_BF16;
		job.config.dispatch_dtype = bits & 48 ? TERN_FP8_E4M3 : TERN_BF16;
		job.config.scale = bits & 48 ? bits & 16 ? TERN_SCALE_UE8M0 : TERN_SCALE_FP32
					     : TERN_SCALE_NONE;
		job.config.hidden = 272;
		job.config.layout = bits & 1 ? TERN_CONTIGUOUS : TERN_PADDED;
		job.no_weights = bits & 2;
		assert_int_equal(job_open(&job, NULL), 0);
		failure = run_ranks(2, body_with_manner, &m);
		if (failure)
			fail_msg("mode %d, manner %u: %s", (int)mode, bits, failure);
		job_close(&job);
	}
}

/* test_shapes [PATTERN]: those of that name. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_ranks),
		cmocka_unit_test(four_ranks),
		cmocka_unit_test(hidden_sizes),
		cmocka_unit_test(hidden_sizes_quantised),
		cmocka_unit_test(topk_sizes),
		cmocka_unit_test(expert_counts),
		cmocka_unit_test(rank_counts),
		cmocka_unit_test(token_counts),
		cmocka_unit_test(uneven_token_counts),
		cmocka_unit_test(all_to_one),
		cmocka_unit_test(dropped_routes),
		cmocka_unit_test(replicas),
		cmocka_unit_test(alignments),
		cmocka_unit_test(special_values),
		cmocka_unit_test(opaque_payloads),
		cmocka_unit_test(manners),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
