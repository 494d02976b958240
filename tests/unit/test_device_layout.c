/* SPDX-License-Identifier: Apache-2.0 */
/* Where an exchange on a GPU lies: arithmetic that needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "gpu/host/layer.h"
#include "gpu/host/layout.h"
#include "gpu/wire/sizes.h"
#include "gpu/wire/state.h"

static struct tern_moe_config deepseek(uint32_t max_tokens)
{
	struct tern_moe_config c;

	tern_moe_config_init(&c);
	c.mode = TERN_LOW_LATENCY;
	c.hidden = 7168;
	c.nr_experts = 256;
	c.topk = 8;
	c.max_tokens = max_tokens;
	c.dispatch_dtype = TERN_FP8_E4M3;
	c.scale = TERN_SCALE_FP32;
	c.device = TERN_DEVICE_CUDA;
	c.caller_output = 1;
	return c;
}

static uint32_t block_bytes = 227 * 1024;

static int lay_out(struct device_layout *d, const struct tern_moe_config *c, uint32_t nr_ranks,
	enum gpu_format format)
{
	struct layout l;

	layout_init(
		&l, c, nr_ranks, c->nr_experts, (c->nr_experts + nr_ranks - 1) / nr_ranks, NULL);
	return device_layout_init(d, c, &l, format, false, block_bytes);
}

/* The goal: everything that the library takes on each GPU, where the caller brings the memory for
 * received rows. */
static void sixty_four_ranks_fit(void **state)
{
	struct tern_moe_config c = deepseek(128);
	struct device_layout d;
	uint64_t all;

	(void)state;
	assert_int_equal(lay_out(&d, &c, 64, GPU_FLAG128), 0);
	all = d.window_bytes + d.private_bytes + d.output_bytes;
	print_message("# 64 ranks, 128 tokens of deepseek-v3: window %.1f MB, private %.1f, output "
		      "%.1f\n",
		(double)d.window_bytes * 1e-6, (double)d.private_bytes * 1e-6,
		(double)d.output_bytes * 1e-6);
	assert_true(all < 150000000);
	/* At least the rows that may come, and the results: nothing is forgotten. */
	assert_true(d.window_bytes > 64ull * 128 * (7168 + 56 * 4) + 128ull * 8 * 14336);
	c.caller_output = 0;
	assert_int_equal(lay_out(&d, &c, 64, GPU_FLAG128), 0);
	assert_true(d.output_bytes >= 64ull * 128 * 4 * (7168 + 56 * 4 + sizeof(struct tern_row)));
}

/* The goal: what an exchange of prefills takes beside received rows, which are as many as capacity
 * says. */
static void prefills_take_little(void **state)
{
	(void)state;
	for (int fp8 = 0; fp8 <= 1; fp8++) {
		struct tern_moe_config c = deepseek(4096);
		uint64_t row = fp8 ? 7168 + 56 * 4 : 2 * 7168, all;
		struct device_layout d;

		c.mode = TERN_HIGH_THROUGHPUT;
		c.caller_output = 0;
		c.dispatch_dtype = fp8 ? TERN_FP8_E4M3 : TERN_BF16;
		c.scale = fp8 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
		c.capacity = 40000;
		assert_int_equal(lay_out(&d, &c, 2, GPU_FLAG128), 0);
		all = d.window_bytes + d.private_bytes + d.output_bytes;
		/* output_bytes: rows lie in the window, and are told of beside it. */
		all -= c.capacity * row + c.capacity * (row + sizeof(struct tern_row));
		print_message("# 2 ranks, 4096 tokens of deepseek-v3 in %s: %.1f MB beside %.1f of "
			      "rows\n",
			fp8 ? "fp8" : "bf16", (double)all * 1e-6,
			(double)(c.capacity * row) * 1e-6);
		assert_true(all < 160000000);
		assert_true(all > 2ull * 4096 * 14336); /* results */
	}
}

static void parts_do_not_overlap(void **state)
{
	struct tern_moe_config c = deepseek(33);
	struct device_layout d;

	(void)state;
	c.caller_output = 0;
	for (uint32_t ranks = 1; ranks <= GPU_MAX_RANKS; ranks += 7)
		for (int format = GPU_FLAG128; format <= GPU_FLAG16; format++) {
			uint64_t routes = 33ull * 8;

			assert_int_equal(lay_out(&d, &c, ranks, (enum gpu_format)format), 0);
			assert_true(d.state + sizeof(struct gpu_state) <= d.row_tokens);
			assert_true(d.row_tokens + ranks * 33ull * 4 <= d.row_routes);
			assert_true(d.row_routes + ranks * routes * 8 <= d.home_routes);
			assert_true(d.home_routes + routes * 8 <= d.own_positions);
			assert_true(d.own_positions + routes * 4 <= d.counts);
			assert_true(d.counts < d.offsets && d.offsets < d.rows && d.rows < d.x &&
				    d.x < d.scales && d.scales < d.slot_bytes);
			assert_true(d.window.plans >= ranks * (uint64_t)GPU_LINE_BYTES);
			assert_true(d.window.rows >= d.window.plans + ranks * d.window.plan_bytes);
			assert_true(d.window.results >=
				    d.window.rows + ranks * 33ull * d.window.row_bytes);
			assert_true(
				d.window.bytes >= d.window.results + 33ull * d.window.nr_columns *
									     d.window.result_bytes);
			assert_true((uint64_t)d.row.nr_segments * d.row.segment_pieces * 16 >=
				    d.row.row_bytes);
			assert_true((uint64_t)(d.row.nr_segments - 1) * d.row.segment_pieces * 16 <
				    d.row.row_bytes);
			assert_int_equal(
				d.window.bytes % 128 + d.window.rows % 128 + d.window.results % 128,
				0);
		}
}

/* Room for early rows is bounded, whatever the shape. */
static void early_rows_are_few(void **state)
{
	struct tern_moe_config c = deepseek(4096);
	struct device_layout d;

	(void)state;
	c.caller_output = 0;
	c.mode = TERN_HIGH_THROUGHPUT;
	for (uint32_t ranks = 1; ranks <= GPU_MAX_RANKS; ranks += 7)
		for (c.max_tokens = 1; c.max_tokens <= 4096; c.max_tokens *= 8) {
			uint64_t early;

			assert_int_equal(lay_out(&d, &c, ranks, GPU_FLAG128), 0);
			early = (uint64_t)ranks * d.ht.nr_early;
			assert_true(
				d.ht.nr_early <= c.max_tokens && early * 7168 <= HT_EARLY_BYTES);
			assert_true(d.ht.nr_early == c.max_tokens ||
				    (early + ranks) * 7168 > HT_EARLY_BYTES);
			assert_true(d.ht.early_x >= d.ht.results &&
				    d.ht.early_scales >= d.ht.early_x + early * 7168);
			assert_true(d.ht.bytes >= d.ht.early_scales + early * 56 * 4);
		}
}

/* Lane by lane and vector by vector, as kernels store a segment. */
static uint64_t stored(enum gpu_format format, bool scaled, const struct row_geometry *cut)
{
	uint64_t bytes = 0;

	for (uint32_t segment = 0; segment < cut->nr_segments; segment++) {
		uint32_t first = segment * cut->segment_pieces, left = cut->row_bytes / 16 - first;
		uint32_t lines =
			((left < cut->segment_pieces ? left : cut->segment_pieces) + 7) / 8;

		for (uint32_t i = 0; i < gpu_all_vectors(format, scaled, cut->nr_vectors); i++)
			for (uint32_t lane = 0; lane < 32; lane++) {
				uint32_t line = 4 * i + lane / 8;
				bool held = !scaled || lane % 8 < 2 * cut->nr_vectors; /* of the
											  extra line
											*/
				bool extra = format == GPU_FLAG128
						     ? line == 4 * cut->nr_vectors - 1 && held
						     : i >= cut->nr_vectors;

				bytes += line < lines || extra ? 16 : 0;
			}
	}
	return bytes;
}

static void bytes_on_the_wire(void **state)
{
	(void)state;
	for (uint32_t topk = 1; topk <= TERN_MAX_TOPK; topk += 3)
		for (uint32_t hidden = 16; hidden <= 7168; hidden += 304)
			for (int format = GPU_FLAG128; format <= GPU_FLAG16; format++) {
				struct tern_moe_config c = deepseek(33);
				struct device_layout d;
				uint64_t head =
					topk > (format == GPU_FLAG128 ? 28 : 24) ? 256 : 128;

				c.hidden = hidden;
				c.topk = topk;
				assert_int_equal(lay_out(&d, &c, 4, (enum gpu_format)format), 0);
				assert_int_equal(d.row_wire_bytes,
					head + stored((enum gpu_format)format, true, &d.row));
				assert_int_equal(d.result_wire_bytes,
					stored((enum gpu_format)format, false, &d.result));
				assert_true(d.row_wire_bytes > hidden &&
					    d.result_wire_bytes > 2 * hidden);
			}
}

static void too_much_is_refused(void **state)
{
	struct tern_moe_config c = deepseek(128);
	struct device_layout d;

	(void)state;
	assert_int_equal(lay_out(&d, &c, GPU_MAX_RANKS + 1, GPU_FLAG128), TERN_ERR_UNSUPPORTED);
	c.max_tokens = 1u << 20;
	assert_int_equal(lay_out(&d, &c, 4, GPU_FLAG128), TERN_ERR_UNSUPPORTED);
	/* More than the plan counts to, where it would fit for its size. */
	c = deepseek(65537);
	c.topk = 1;
	assert_int_equal(lay_out(&d, &c, 1, GPU_FLAG128), TERN_ERR_UNSUPPORTED);
	assert_non_null(
		strstr(tern_last_error(), "65537 tokens; a GPU takes 65536 in low-latency mode"));
	c = deepseek(1u << 24);
	c.caller_output = 0;
	c.mode = TERN_HIGH_THROUGHPUT;
	assert_int_equal(lay_out(&d, &c, 64, GPU_FLAG128), TERN_ERR_UNSUPPORTED);
	assert_non_null(strstr(tern_last_error(), "of a GPU; its plan counts to 2147483647"));
	c = deepseek(128);
	c.topk = 32;
	block_bytes = 8 * 1024;
	assert_int_equal(lay_out(&d, &c, 64, GPU_FLAG128), TERN_ERR_UNSUPPORTED);
	assert_non_null(strstr(tern_last_error(), "where it may have 8192"));
	block_bytes = 227 * 1024;
	c = deepseek(128);
	c.late_weights = 1;
	assert_int_equal(lay_out(&d, &c, 4, GPU_FLAG16), TERN_ERR_UNSUPPORTED);
	assert_non_null(strstr(tern_last_error(), "late_weights is 1"));
	assert_int_equal(lay_out(&d, &c, 4, GPU_FLAG128), 0);
	assert_int_equal(d.slot_window_bytes - d.weight_cells, 4 * 128 * c.topk * 16);
}

/* As many ranks and tokens as anybody has, in either mode, on small GPUs too. Where a block has no
 * room for all plans, it notes slices of them. */
static void wide_groups_fit(void **state)
{
	static const uint32_t ranks[] = {1, 8, 64, 255, 256}, tokens[] = {1, 128, 256, 4096, 8192};
	struct device_layout d;

	(void)state;
	for (uint32_t i = 0; i < 5 * 5 * 2 * 2; i++) {
		struct tern_moe_config c = deepseek(tokens[i / 5 % 5]);
		uint32_t nr = ranks[i % 5];

		c.topk = i / 25 % 2 ? 32 : 8;
		c.mode = i / 50 % 2 ? TERN_HIGH_THROUGHPUT : TERN_LOW_LATENCY;
		c.caller_output = c.mode == TERN_LOW_LATENCY;
		block_bytes = (i % 2 ? 227 : 99) * 1024;
		if (nr == 255 && c.max_tokens > 256)
			continue; /* more than kernels can number */
		if (lay_out(&d, &c, nr, GPU_FLAG128))
			fail_msg("%u ranks: %s", nr, tern_last_error());
		assert_true(d.shared_bytes <= block_bytes);
	}
	block_bytes = 227 * 1024;
	for (int sliced = 0; sliced <= 1; sliced++) {
		struct tern_moe_config c = deepseek(sliced ? 256 : 128);

		assert_int_equal(lay_out(&d, &c, sliced ? 256 : 64, GPU_FLAG128), 0);
		assert_int_equal(d.sliced, sliced);
		assert_true(d.slices + 16ull * most_slices_of(sliced ? 256 : 64, c.max_tokens) <=
			    d.rows);
	}
}

/* As many results as a token can have; and where a block has no room for all plans, for those of
 * few tokens there is some. */
static void large_exchanges_have_room_for_few(void **state)
{
	struct tern_moe_config c = deepseek(4096);
	struct device_layout d;

	(void)state;
	assert_int_equal(lay_out(&d, &c, 2, GPU_FLAG128), 0);
	assert_true(d.sliced && d.noted_tokens == 384);
	assert_true(d.shared_bytes >= positions_bytes(GPU_FLAG128, 2, 128, 384, 8));
	assert_int_equal(d.window.nr_columns, 2);
	assert_true(d.window.rank_columns);
	for (uint32_t topk = 1; topk <= 32; topk++)
		for (uint32_t few = 1; few <= 400; few += 57) {
			uint32_t room = positions_room(GPU_FLAG128, few, topk, 4096);

			/* whole pieces of so many tokens' plans name no other tokens */
			assert_true(room >= few &&
				    room * topk >= positions_ids(GPU_FLAG128, few * topk));
		}
	assert_int_equal(positions_room(GPU_FLAG128, 100, 8, 100), 100);
	assert_int_equal(lay_out(&d, &c, 9, GPU_FLAG128), 0);
	assert_int_equal(d.window.nr_columns, 8);
	c.reduce = TERN_REDUCE_HOME;
	assert_int_equal(lay_out(&d, &c, 2, GPU_FLAG128), 0);
	assert_int_equal(d.window.nr_columns, 8);
	assert_false(d.window.rank_columns);
	c.max_tokens = 128;
	assert_int_equal(lay_out(&d, &c, 2, GPU_FLAG128), 0);
	assert_true(!d.sliced && !d.noted_tokens);
}

static void layers_begin_beside_long_reads(void **state)
{
	const uint64_t deepseek = 3ull * 128 * 7168 * 2048, qwen3 = 3ull * 64 * 2048 * 768;

	(void)state;
	assert_int_equal(layer_rule_beside(TERN_LOW_LATENCY, 255, deepseek, 132), 0);
	assert_int_equal(layer_rule_beside(TERN_LOW_LATENCY, 256, deepseek, 132), 110);
	assert_int_equal(layer_rule_beside(TERN_LOW_LATENCY, 1024, deepseek, 132), 110);
	assert_int_equal(layer_rule_beside(TERN_LOW_LATENCY, 1025, deepseek, 132), 0);
	assert_int_equal(layer_rule_beside(TERN_HIGH_THROUGHPUT, 1024, deepseek, 132), 66);
	assert_int_equal(layer_rule_beside(TERN_HIGH_THROUGHPUT, 1025, deepseek, 132), 0);
	assert_int_equal(layer_rule_beside(TERN_LOW_LATENCY, 256, qwen3, 132), 0);
}

static void divides(uint32_t n, uint32_t d)
{
	struct gpu_divisor by = gpu_divisor_of(d);

	/* Just below and at the last multiples, where a reciprocal fails first. */
	for (uint32_t i = 0, at = n - n % d; i < 1000 && at >= d; i++, at -= d) {
		assert_int_equal(gpu_div(at - 1, by), at / d - 1);
		assert_int_equal(gpu_div(at, by), at / d);
	}
}

/* What kernels number goes up to all tokens' rows of all ranks in all their parts. */
static bool is_taken(uint32_t ranks, uint32_t tokens, uint32_t hidden)
{
	struct tern_moe_config c = deepseek(tokens);
	struct device_layout d;
	uint32_t parts, results;

	c.hidden = hidden;
	c.topk = 1;
	if (lay_out(&d, &c, ranks, GPU_FLAG128))
		return false;
	assert_true((uint64_t)ranks * tokens * (d.row.nr_segments + 1) <= UINT32_MAX);
	parts = ranks * tokens * (d.row.nr_segments + 1);
	results = ranks * tokens * d.result.nr_segments;
	divides(parts, d.row.nr_segments + 1);
	divides(parts, ranks);
	divides(results, d.result.nr_segments);
	divides(results, ranks);
	return true;
}

static void divisions_are_exact(void **state)
{
	int nr_taken = 0, nr = 0;

	(void)state;
	for (uint32_t ranks = 2; ranks <= GPU_MAX_RANKS; ranks += 5)
		for (uint32_t tokens = 1; tokens <= 1024; tokens *= 4)
			for (uint32_t hidden = 1024; hidden < 1 << 24; hidden *= 3) {
				nr_taken += is_taken(ranks, tokens, hidden);
				nr++;
			}
	assert_true(nr_taken > nr / 2 && nr_taken < nr);
	assert_true(is_taken(8, 1024, 16384));
}

static void aligned_lists_are_exact(void **state)
{
	struct tern_moe_config c = deepseek(40000);
	struct device_layout d;

	(void)state;
	c.nr_experts = 2;
	c.topk = 1;
	c.hidden = 128;
	for (c.alignment = 65536; c.alignment > 60000; c.alignment -= 7)
		if (!lay_out(&d, &c, 2, GPU_FLAG128))
			divides(2 * c.max_tokens + c.alignment, c.alignment);
		else
			assert_true(c.alignment % 65536);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sixty_four_ranks_fit),
		cmocka_unit_test(prefills_take_little),
		cmocka_unit_test(parts_do_not_overlap),
		cmocka_unit_test(early_rows_are_few),
		cmocka_unit_test(bytes_on_the_wire),
		cmocka_unit_test(too_much_is_refused),
		cmocka_unit_test(wide_groups_fit),
		cmocka_unit_test(large_exchanges_have_room_for_few),
		cmocka_unit_test(layers_begin_beside_long_reads),
		cmocka_unit_test(divisions_are_exact),
		cmocka_unit_test(aligned_lists_are_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
