/* SPDX-License-Identifier: Apache-2.0 */
/* The reference is what everything else is measured against, so its parts are tested against other
 * definitions: tables by search, sums by hand. */
#include "testkit/convert.h"
#include "testkit/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/exchange/scale_edges.h"

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

/* ---- number formats -------------------------------------------------------------------------- */

/* value = (-1)^s 2^(e - bias) 1.m, or (-1)^s 2^(1 - bias) 0.m, by the book. */
static double by_the_book(uint32_t code, int exponent_bits, int mantissa_bits)
{
	int bias = (1 << (exponent_bits - 1)) - 1;
	int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
	double mantissa = ldexp(code & ((1u << mantissa_bits) - 1), -mantissa_bits);
	double magnitude =
		exponent ? ldexp(1 + mantissa, exponent - bias) : ldexp(mantissa, 1 - bias);

	return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

static void test_bf16_all_codes(void **state)
{
	uint32_t code;

	(void)state;
	for (code = 0; code < 65536; code++) {
		float value = bf16_decode((uint16_t)code);

		assert_int_equal(bits_of(value), code << 16);
		if (value != value) /* quiet, same payload, same sign */
			assert_int_equal(bf16_encode(value), code | 0x40);
		else
			assert_int_equal(bf16_encode(value), code);
		if (value == value && !isinf(value))
			assert_true((double)value == by_the_book(code, 8, 7));
	}
}

static void test_fp16_all_codes(void **state)
{
	uint32_t code;

	(void)state;
	for (code = 0; code < 65536; code++) {
		float value = fp16_decode((uint16_t)code);

		if ((code & 0x7fff) > 0x7c00) {
			assert_true(value != value);
			assert_int_equal(fp16_encode(value), (code & 0x8000) | 0x7e00);
			continue;
		}
		assert_int_equal(fp16_encode(value), code);
		if ((code & 0x7fff) == 0x7c00)
			assert_true(isinf(value) && !signbit(value) == !(code & 0x8000));
		else
			assert_true((double)value == by_the_book(code, 5, 10));
	}
}

/* Between each two neighbours: the middle goes to the even one, an ulp to either side of it to the
 * nearer one. */
static void check_middle(
	float low, float high, uint32_t low_code, uint32_t high_code, uint32_t (*encode)(float))
{
	float middle = (float)(((double)low + (double)high) / 2);

	assert_int_equal(encode(middle), low_code & 1 ? high_code : low_code);
	assert_int_equal(encode(nextafterf(middle, low)), low_code);
	assert_int_equal(encode(nextafterf(middle, high)), high_code);
	assert_int_equal(encode(low), low_code);
}

static uint32_t encode_bf16(float value)
{
	return bf16_encode(value);
}

static uint32_t encode_fp16(float value)
{
	return fp16_encode(value);
}

static uint32_t encode_e4m3(float value)
{
	return e4m3_encode(value);
}

static void test_middles(void **state)
{
	uint32_t sign, code;

	(void)state;
	for (sign = 0; sign < 2; sign++) {
		for (code = 0; code < 0x7f7f; code++)
			check_middle(bf16_decode((uint16_t)(code | sign << 15)),
				bf16_decode((uint16_t)((code + 1) | sign << 15)), code | sign << 15,
				(code + 1) | sign << 15, encode_bf16);
		for (code = 0; code < 0x7bff; code++)
			check_middle(fp16_decode((uint16_t)(code | sign << 15)),
				fp16_decode((uint16_t)((code + 1) | sign << 15)), code | sign << 15,
				(code + 1) | sign << 15, encode_fp16);
		for (code = 0; code < 0x7e; code++)
			check_middle(e4m3_decode((uint8_t)(code | sign << 7)),
				e4m3_decode((uint8_t)((code + 1) | sign << 7)), code | sign << 7,
				(code + 1) | sign << 7, encode_e4m3);
	}
}

static void test_beyond_the_largest(void **state)
{
	(void)state;
	assert_int_equal(fp16_encode(65504), 0x7bff);
	assert_int_equal(fp16_encode(nextafterf(65520, 0)), 0x7bff);
	assert_int_equal(fp16_encode(65520), 0x7c00);
	assert_int_equal(fp16_encode(-INFINITY), 0xfc00);
	assert_int_equal(bf16_encode(INFINITY), 0x7f80);
	assert_int_equal(bf16_encode(3.4028235e38f), 0x7f80); /* FLT_MAX is nearer to 2^128 */
	assert_int_equal(e4m3_encode(448), 0x7e);
	assert_int_equal(e4m3_encode(464), 0x7e);
	assert_int_equal(e4m3_encode(1e30f), 0x7e);
	assert_int_equal(e4m3_encode(-INFINITY), 0xfe);
	assert_int_equal(e4m3_encode(NAN), 0x7f);
	assert_int_equal(e4m3_encode(-NAN), 0xff);
	assert_int_equal(e4m3_encode(0x1p-11f), 0x00);
	assert_int_equal(e4m3_encode(-0.0f), 0x80);
}

static void test_e4m3_all_codes(void **state)
{
	uint32_t code;

	(void)state;
	for (code = 0; code < 256; code++) {
		float value = e4m3_decode((uint8_t)code);

		assert_int_equal(e4m3_encode(value), code);
		if ((code & 0x7f) == 0x7f)
			assert_true(value != value);
		else
			assert_true((double)value == by_the_book(code, 4, 3));
	}
}

/* ---- quantising ------------------------------------------------------------------------------ */

static void test_quantise_fp32(void **state)
{
	float values[200] = {[3] = -896, [100] = 2, [150] = 7};
	uint8_t elements[200];
	float scales[2];

	(void)state;
	reference_quantise(TERN_SCALE_FP32, values, 200, elements, scales);
	assert_true(scales[0] == 2 && scales[1] == 7.0f / 448.0f);
	assert_int_equal(elements[3], 0xfe);
	assert_int_equal(elements[100], e4m3_encode(1));
	assert_int_equal(elements[150], 0x7e);
	assert_int_equal(elements[0], 0);
}

static void test_quantise_ue8m0(void **state)
{
	float values[256] = {[3] = -448, [200] = 449};
	uint8_t elements[256], scales[2];

	(void)state;
	reference_quantise(TERN_SCALE_UE8M0, values, 256, elements, scales);
	assert_int_equal(scales[0], 127);
	assert_int_equal(scales[1], 128);
	assert_int_equal(elements[3], 0xfe);
	assert_int_equal(elements[200], e4m3_encode(224.5f));
}

static void test_quantise_odd_blocks(void **state)
{
	float values[512] = {0}, scales[4];
	uint8_t elements[512], exponents[4];

	(void)state;
	values[128] = INFINITY;
	values[129] = 1;
	values[256] = NAN;
	values[257] = -448;
	values[384] = 1e-42f; /* 448 / amax is beyond fp32 */
	reference_quantise(TERN_SCALE_FP32, values, 512, elements, scales);
	assert_true(scales[0] == 1 && scales[2] == 1);
	assert_int_equal(elements[128], 0x7e);
	assert_int_equal(elements[129], 0);
	assert_int_equal(elements[256], 0x7f);
	assert_int_equal(elements[257], 0xfe);
	assert_true(scales[3] == 0x1p-126f);
	assert_int_equal(elements[384], 0);
	assert_int_equal(elements[385], 0); /* not NaN */
	reference_quantise(TERN_SCALE_UE8M0, values, 512, elements, exponents);
	assert_int_equal(exponents[0], 127);
	assert_int_equal(exponents[3], 1);
	assert_int_equal(elements[385], 0);
}

static void test_quantise_edges(void **state)
{
	float row[SCALE_EDGES * 128], values[SCALE_EDGES * 128], scales[SCALE_EDGES];
	uint8_t elements[SCALE_EDGES * 128];

	(void)state;
	for (enum tern_dtype dtype = TERN_BF16; dtype <= TERN_FP32; dtype++)
		for (enum tern_scale scale = TERN_SCALE_FP32; scale <= TERN_SCALE_UE8M0; scale++) {
			scale_edges_fill(dtype, row);
			decode_row(dtype, row, values, SCALE_EDGES * 128);
			reference_quantise(scale, values, SCALE_EDGES * 128, elements, scales);
			assert_null(scale_edges_wrong(dtype, scale, elements, scales));
		}
}

/* ---- placement, layout, sums ----------------------------------------------------------------- */

static void small_job(struct job *job)
{
	job_init(job);
	job->nr_ranks = 3;
	job->nr_tokens = 5;
	job->config.max_tokens = 5;
	job->config.hidden = 16;
	job->config.nr_experts = 8;
	job->config.topk = 2;
	job->config.alignment = 4;
}

static struct reference *open_small(struct job *job)
{
	struct reference *reference;

	assert_int_equal(job_open(job, NULL), 0);
	reference = reference_create(job);
	assert_non_null(reference);
	return reference;
}

static void close_small(struct job *job, struct reference *reference)
{
	reference_destroy(reference);
	job_close(job);
}

static void test_blocks(void **state)
{
	static const int32_t rank[] = {0, 0, 0, 1, 1, 1, 2, 2}, local[] = {0, 1, 2, 0, 1, 2, 0, 1};
	struct job job;
	struct reference *reference;

	(void)state;
	small_job(&job);
	reference = open_small(&job);
	assert_memory_equal(reference->rank, rank, sizeof(rank));
	assert_memory_equal(reference->local, local, sizeof(local));
	close_small(&job, reference);
}

static void test_replicas(void **state)
{
	struct job job;
	struct reference *reference;
	uint32_t token, k;

	(void)state;
	small_job(&job);
	job.nr_redundant = 2; /* physical 8 is expert 0, 9 is expert 5; blocks 0-3, 4-6, 7-9 */
	job.config.replicas = TERN_REPLICAS_IN_TURN;
	reference = open_small(&job);
	for (token = 0; token < 5; token++) {
		for (k = 0; k < 2; k++) {
			int32_t expert = reference->ids[token * 2 + k];       /* of rank 0 */
			int32_t want = expert == 5 && token % 2 ? 9 : expert; /* expert 0 has a
										 replica at home */

			assert_int_equal(reference_physical(reference, 0, token)[k], want);
		}
	}
	close_small(&job, reference);
}

/* Expert 0 is in 0, on rank 0, and in 8, on rank 2; expert 5 in 5 on rank 1, and in 9 on rank 2. */
static void test_least_loaded(void **state)
{
	static const int32_t ids[] = {0, 5, 1, 2, 0, 7, 5, 4, 0, -1};
	/* Single places first: ranks 0, 1, 2 have 2, 1, 1. Then 0 to rank 2, as that has least; 5,
	 * of token 0, in turn, to rank 1 of 1 and 2; now 2, 2, 2: 0, at home; 5 in turn, of token
	 * 3, to rank 2 of 2 and 2; and 0 at home again, where 3 are, as there. */
	static const int32_t want[] = {8, 5, 1, 2, 0, 7, 9, 4, 0, -1};
	struct job job;
	struct reference *reference;

	(void)state;
	small_job(&job);
	job.nr_redundant = 2;
	reference = open_small(&job);
	memcpy(reference->ids, ids, sizeof(ids));
	reference_route_home(reference, 0);
	for (uint32_t token = 0; token < 5; token++)
		assert_memory_equal(reference_physical(reference, 0, token), want + 2 * token,
			2 * sizeof(*want));
	close_small(&job, reference);
}

struct seen {
	uint64_t last[8]; /* source * 100 + token + 1 of each expert's last row */
	uint64_t nr;
	struct received_layout *layout;
};

static int see(void *ctx, const struct place *place, bool first_of_token)
{
	struct seen *seen = ctx;
	uint64_t order = place->source * 100 + place->token + 1;

	(void)first_of_token;
	assert_true(order > seen->last[place->group]);
	assert_true(place->position >= seen->layout->offsets[place->group]);
	assert_true(place->position <
		    seen->layout->offsets[place->group] + seen->layout->counts[place->group]);
	seen->last[place->group] = order;
	seen->nr++;
	return 0;
}

static void test_order_and_alignment(void **state)
{
	struct job job;
	struct received_layout layout;
	struct reference *reference;
	uint64_t total = 0, end;
	uint32_t rank, i;

	(void)state;
	small_job(&job);
	reference = open_small(&job);
	for (rank = 0; rank < 3; rank++) {
		struct seen seen = {.layout = &layout};

		assert_int_equal(received_layout_create(reference, rank, &layout), 0);
		reference_walk(reference, rank, &layout, see, &seen);
		assert_int_equal(seen.nr, layout.nr_rows);
		for (i = 0, end = 0; i < layout.nr_groups; i++) {
			assert_int_equal(layout.offsets[i], (end + 3) / 4 * 4);
			end = layout.offsets[i] + layout.counts[i];
		}
		total += layout.nr_rows;
		received_layout_destroy(&layout);
	}
	assert_int_equal(total, 3 * 5 * 2);
	close_small(&job, reference);
}

/* With exact inputs the order of sums does not matter, so a sum in double must give the same. */
static void test_exact_sums(void **state)
{
	static const enum tern_dtype dtypes[] = {TERN_BF16, TERN_FP16, TERN_FP32};
	struct job job;
	struct reference *reference;
	uint32_t i, element, k, topk, reduce;

	(void)state;
	for (i = 0; i < 6; i++) {
		small_job(&job);
		topk = job.config.topk = 8;
		reduce = job.config.reduce = i < 3 ? TERN_REDUCE_HOME : TERN_REDUCE_EXPERT;
		job.config.combine_dtype = dtypes[i % 3];
		reference = open_small(&job);
		for (element = 0; element < 16; element++) {
			double sum = 0;
			float got;

			for (k = 0; k < topk; k++) {
				float y[16];

				decode_row(dtypes[i % 3],
					job_y_row(&job, 0,
						(uint32_t)reference->ids[(1 * 5 + 3) * topk + k], 1,
						3),
					y, 16);
				sum += (double)reference->weights[(1 * 5 + 3) * topk + k] *
				       (double)y[element];
			}
			decode_row(dtypes[i % 3],
				(const char *)reference_combined_row(reference, 1, 3) +
					element * element_bytes(dtypes[i % 3]),
				&got, 1);
			assert_true((double)got == sum);
		}
		assert_true(reduce);
		close_small(&job, reference);
	}
}

/* The two ways to reduce round differently: if random input did not show it, it would prove nothing
 * about the order. */
static void test_random_sums_depend_on_the_way(void **state)
{
	struct job job;
	struct reference *home, *expert;
	unsigned char row[32];
	uint32_t token, nr_different = 0;

	(void)state;
	small_job(&job);
	job.input = INPUT_RANDOM;
	job.config.topk = 8;
	home = open_small(&job);
	expert = reference_create(&job);
	for (token = 0; token < 5; token++) {
		job.config.reduce = TERN_REDUCE_HOME;
		memcpy(row, reference_combined_row(home, 0, token), sizeof(row));
		job.config.reduce = TERN_REDUCE_EXPERT;
		nr_different +=
			memcmp(row, reference_combined_row(expert, 0, token), sizeof(row)) != 0;
	}
	assert_true(nr_different > 0);
	reference_destroy(expert);
	close_small(&job, home);
}

static void test_replica_ranks(void **state)
{
	struct job job;
	struct received_layout layout;
	struct reference *reference;
	uint64_t total = 0;
	uint32_t rank;

	(void)state;
	small_job(&job);
	job.nr_ranks = 4;
	job.config.replica_ranks = 2;
	job.config.layout = TERN_PADDED;
	reference = open_small(&job);
	for (rank = 0; rank < 4; rank++) {
		assert_int_equal(received_layout_create(reference, rank, &layout), 0);
		assert_int_equal(layout.offsets[1], 4 * 3); /* 4 ranks send at most 3 of their 5
							       tokens each */
		total += layout.nr_rows;
		received_layout_destroy(&layout);
	}
	assert_int_equal(total, 2 * 5 * 2); /* a token of two replicas travels once */
	close_small(&job, reference);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bf16_all_codes),
		cmocka_unit_test(test_fp16_all_codes),
		cmocka_unit_test(test_e4m3_all_codes),
		cmocka_unit_test(test_middles),
		cmocka_unit_test(test_beyond_the_largest),
		cmocka_unit_test(test_quantise_fp32),
		cmocka_unit_test(test_quantise_ue8m0),
		cmocka_unit_test(test_quantise_odd_blocks),
		cmocka_unit_test(test_quantise_edges),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_replicas),
		cmocka_unit_test(test_least_loaded),
		cmocka_unit_test(test_order_and_alignment),
		cmocka_unit_test(test_exact_sums),
		cmocka_unit_test(test_random_sums_depend_on_the_way),
		cmocka_unit_test(test_replica_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
