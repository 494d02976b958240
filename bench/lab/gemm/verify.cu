/* SPDX-License-Identifier: Apache-2.0 */
/* Each product against a plain loop, every element, and what nobody may have written. */
#include "bench/lab/gemm/gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "bench/lab/check.h"

#define POISON 0xff /* a NaN in every type */

static uint64_t state;

static uint32_t below(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((state >> 32) * n >> 32);
}

static float normal(void)
{
	float sum = 0;

	for (int i = 0; i < 12; i++)
		sum += (float)below(1 << 20) / (1 << 20);
	return sum - 6;
}

/* What one product reads and has to write, as floats. */
struct product {
	enum layer_which which;
	enum layer_dtype dtype;
	bool exact;             /* small integers, powers of two; else normal numbers and SwiGLU */
	uint32_t experts, m, k; /* m: outputs */
	uint64_t rows;
	std::vector<uint32_t> counts;
	std::vector<uint64_t> offsets;
	std::vector<uint8_t> x, w;
	std::vector<float> x_values, w_values, x_scales, w_scales; /* scales by row, not by column
								    */
};

static uint32_t halves(const struct product *p)
{
	return p->which == LAYER_GATE_UP ? 2 : 1;
}

static float to_bytes(enum layer_dtype dtype, float v, uint8_t *at)
{
	if (dtype == LAYER_BF16) {
		__nv_bfloat16 b = __float2bfloat16_rn(v);

		memcpy(at, &b, 2);
		return __bfloat162float(b);
	}
	*at = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
	return __half2float(__half(__nv_cvt_fp8_to_halfraw(*at, __NV_E4M3)));
}

static float from_bf16(const uint8_t *at)
{
	__nv_bfloat16 b;

	memcpy(&b, at, 2);
	return __bfloat162float(b);
}

static void fill_random(struct product *p, std::vector<uint8_t> *bytes, std::vector<float> *values,
	size_t n, int most)
{
	size_t wide = p->dtype == LAYER_FP8 ? 1 : 2;

	bytes->resize(n * wide);
	values->resize(n);
	for (size_t i = 0; i < n; i++)
		(*values)[i] = to_bytes(p->dtype,
			p->exact ? (float)below(2 * most + 1) - most : normal() * most / 4,
			&(*bytes)[i * wide]);
}

static void fill_scales(struct product *p, std::vector<float> *scales, size_t n)
{
	scales->resize(n);
	for (float &s : *scales)
		s = p->exact ? ldexpf(1, (int)below(3) - 1) : ldexpf(1 + below(1000) / 1000.0f, -4);
}

/* Rows of each expert: none, one, a few, one hot expert; sometimes rows of nobody between. */
static void draw_rows(struct product *p, uint32_t most)
{
	bool gaps = below(2), hot = below(4) == 0;
	uint32_t the_hot = below(p->experts);

	p->rows = gaps ? below(5) : 0;
	p->counts.resize(p->experts);
	p->offsets.resize(p->experts);
	for (uint32_t e = 0; e < p->experts; e++) {
		uint32_t kind = below(4);

		if (kind == 2 && most > 300) /* two tiles and some rows */
			kind = 240 + below(64);
		p->counts[e] = hot        ? (e == the_hot ? most : below(3))
			       : kind > 3 ? kind
			       : kind > 1 ? below(most + 1)
					  : kind;
		p->offsets[e] = p->rows;
		p->rows += p->counts[e] + (gaps ? below(9) : 0);
	}
	p->rows += p->rows == 0;
}

static void draw_product(struct product *p, uint32_t most_rows)
{
	draw_rows(p, most_rows);
	fill_random(p, &p->x, &p->x_values, p->rows * p->k, 3);
	fill_random(p, &p->w, &p->w_values, (size_t)p->experts * halves(p) * p->m * p->k, 2);
	if (p->dtype == LAYER_FP8) {
		fill_scales(p, &p->x_scales, p->rows * (p->k / 128));
		fill_scales(p, &p->w_scales,
			(size_t)p->experts * halves(p) * (p->m / 128) * (p->k / 128));
	}
}

/* Sums in blocks of k, as scales are; Sum: double, or float for what a plain kernel would give. */
template <class Sum>
static Sum dot(const struct product *p, uint64_t row, uint32_t expert, uint32_t m, uint32_t k_begin,
	uint32_t k_end)
{
	const float *x = &p->x_values[row * p->k];
	const float *w = &p->w_values[((size_t)expert * halves(p) * p->m + m) * p->k];
	Sum sum = 0;

	for (uint32_t k = k_begin; k < k_end; k++)
		sum += (Sum)x[k] * (Sum)w[k];
	return sum;
}

template <class Sum>
static Sum output(const struct product *p, uint64_t row, uint32_t expert, uint32_t m)
{
	uint32_t blocks = p->k / 128, m_blocks = halves(p) * (p->m / 128);
	Sum sum = 0;

	if (p->dtype == LAYER_BF16)
		return dot<Sum>(p, row, expert, m, 0, p->k);
	for (uint32_t b = 0; b < blocks; b++)
		sum += dot<Sum>(p, row, expert, m, b * 128, b * 128 + 128) *
		       ((Sum)p->x_scales[row * blocks + b] *
			       (Sum)p->w_scales[((size_t)expert * m_blocks + m / 128) * blocks +
						b]);
	return sum;
}

template <class Sum>
static Sum result(const struct product *p, uint64_t row, uint32_t expert, uint32_t m)
{
	Sum gate = output<Sum>(p, row, expert, m);

	if (p->which == LAYER_DOWN)
		return gate;
	if (!p->exact)
		gate = gate / (1 + (Sum)exp((double)-gate));
	return gate * output<Sum>(p, row, expert, p->m + m);
}

/* One row as the kernel has to leave it. */
struct expected {
	std::vector<uint8_t> out;
	std::vector<float> scales, values; /* values: as `out` and `scales` say */
};

static void expect_block(const float *v, struct expected *to)
{
	float amax = 0, scale, factor;

	for (int i = 0; i < 128; i++)
		amax = fmaxf(amax, fabsf(v[i]));
	scale = amax > 0 ? fmaxf(amax / 448, 0x1p-126f) : 1;
	factor = !(amax > 0) ? 1 : amax / 448 < 0x1p-126f ? 0x1p126f : 448 / amax;
	to->scales.push_back(scale);
	for (int i = 0; i < 128; i++) {
		uint8_t byte;
		float q = to_bytes(LAYER_FP8, v[i] * factor, &byte);

		to->out.push_back(byte);
		to->values.push_back(q * scale);
	}
}

static void expect_row(const struct product *p, const std::vector<float> &v, struct expected *to)
{
	if (p->dtype == LAYER_FP8 && p->which == LAYER_GATE_UP) {
		for (uint32_t m = 0; m < p->m; m += 128)
			expect_block(&v[m], to);
		return;
	}
	to->out.resize(p->m * 2);
	for (uint32_t m = 0; m < p->m; m++)
		to->values.push_back(to_bytes(LAYER_BF16, v[m], &to->out[m * 2]));
}

/* What came back. */
struct actual {
	std::vector<uint8_t> out;
	std::vector<float> scales; /* [rows][layer_scales_of(m)] */
};

static void copy_in(void *to, const void *from, size_t bytes)
{
	if (bytes)
		CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

static void copy_x_scales(const struct product *p, float *to, size_t bytes)
{
	std::vector<float> scales(bytes / sizeof(float), NAN);
	uint32_t blocks = p->k / 128, pitch = layer_scales_of(p->k);

	for (uint64_t r = 0; r < p->rows; r++)
		for (uint32_t b = 0; b < blocks && bytes; b++)
			scales[r * pitch + b] = p->x_scales[r * blocks + b];
	copy_in(to, scales.data(), bytes);
}

/* Rows of nobody are NaN. */
static void poison_gaps(const struct product *p, uint8_t *x)
{
	size_t pitch = p->x.size() / p->rows;
	std::vector<uint8_t> of_somebody(p->rows, 0);

	for (uint32_t e = 0; e < p->experts; e++)
		for (uint32_t i = 0; i < p->counts[e]; i++)
			of_somebody[p->offsets[e] + i] = 1;
	for (uint64_t r = 0; r < p->rows; r++)
		if (!of_somebody[r])
			CHECK(cudaMemset(x + r * pitch, POISON, pitch));
}

/* Of a gate and up with as many rows, of as many outputs as this product's k. */
static struct layer_words counted_words(const struct product *p, uint32_t outputs)
{
	struct layer_words words = {};

	for (uint32_t e = 0; e < p->experts; e++)
		words.h_rows[e] = p->counts[e] * ((outputs + 127) / 128);
	return words;
}

/* Gate and up has counted its tiles, if blocks have more than one, down has put back what it was
 * given. */
static uint64_t check_words(const struct product *p, const struct lab_experts *e, uint32_t blocks)
{
	struct layer_words words, right = {};
	uint64_t parts = 0;

	for (uint32_t count : p->counts)
		parts += p->dtype == LAYER_FP8 && count > 128 && count <= 192 ? 3
									      : (count + 127) / 128;
	if (p->which == LAYER_GATE_UP && parts * ((p->m + 127) / 128) > blocks)
		right = counted_words(p, p->m);
	CHECK(cudaMemcpy(&words, e->words, sizeof(words), cudaMemcpyDeviceToHost));
	words.drawn[LAYER_GATE_UP] = 0; /* which down puts back */
	return memcmp(&words, &right, sizeof(words)) != 0;
}

static uint64_t run_product(const struct product *p, bool drawn, struct actual *actual)
{
	bool gate_up = p->which == LAYER_GATE_UP;
	struct layer_shape shape = {
		p->dtype, p->experts, gate_up ? p->k : p->m, gate_up ? p->m : p->k, p->rows};
	struct lab_tensor_sizes sizes;
	struct lab_experts e;
	struct layer_grid grid = {};
	int sms;

	lab_experts_create(&shape, &e);
	sizes = lab_sizes(&e);
	size_t out_bytes = gate_up ? sizes.h : sizes.y, scales = gate_up ? sizes.h_scales : 0;
	void *out = gate_up ? e.h : e.y;
	uint8_t *x = gate_up ? e.x : e.h;

	copy_in(e.counts, p->counts.data(), p->experts * sizeof(uint32_t));
	copy_in(e.offsets, p->offsets.data(), p->experts * sizeof(uint64_t));
	copy_in(x, p->x.data(), p->x.size());
	poison_gaps(p, x);
	copy_in(gate_up ? e.gate_up : e.down, p->w.data(), p->w.size());
	copy_in(gate_up ? e.gate_up_scales : e.down_scales, p->w_scales.data(),
		p->w_scales.size() * sizeof(float));
	copy_x_scales(
		p, gate_up ? e.x_scales : e.h_scales, gate_up ? sizes.x_scales : sizes.h_scales);
	CHECK(cudaMemset(out, POISON, out_bytes));
	if (scales)
		CHECK(cudaMemset(e.h_scales, POISON, scales));
	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	e.args[p->which].activation = p->exact ? LAYER_LINEAR : LAYER_SWIGLU;
	grid.blocks = below(4) ? sms : 1 + below(sms);
	grid.early = (int)below(2);
	grid.drawn = drawn;
	grid.clusters = grid.blocks % 2 == 0 && below(2);
	struct layer_words words = counted_words(p, p->k);
	if (!gate_up)
		copy_in(e.words, &words, sizeof(words));
	CHECK(layer_launch(p->which, p->dtype, &e.args[p->which], &grid, NULL));
	CHECK(cudaDeviceSynchronize());
	actual->out.resize(out_bytes);
	actual->scales.resize(scales / sizeof(float));
	CHECK(cudaMemcpy(actual->out.data(), out, out_bytes, cudaMemcpyDeviceToHost));
	if (scales)
		CHECK(cudaMemcpy(
			actual->scales.data(), e.h_scales, scales, cudaMemcpyDeviceToHost));
	uint64_t wrong = check_words(p, &e, grid.blocks);
	if (wrong)
		printf("# %s: its words are wrong\n", gate_up ? "gate and up" : "down");
	lab_experts_destroy(&e);
	return wrong;
}

struct errors {
	uint64_t elements, wrong;
	double kernel, plain; /* sums of squares against fp64 */
};

static void complain(const struct product *p, struct errors *errors, uint64_t row, uint32_t expert,
	uint32_t at, uint32_t found, uint32_t right)
{
	if (errors->wrong++ < 8)
		printf("# %s %s: row %lu of expert %u (of %u rows), element %u: %#x, not %#x\n",
			p->dtype == LAYER_FP8 ? "fp8" : "bf16",
			p->which == LAYER_DOWN ? "down" : "gate and up", (unsigned long)row, expert,
			p->counts[expert], at, found, right);
}

static void compare_exact(const struct product *p, const struct actual *actual, uint64_t row,
	uint32_t expert, const struct expected *right, struct errors *errors)
{
	size_t pitch = right->out.size();
	const uint8_t *out = &actual->out[row * pitch];

	for (uint32_t i = 0; i < pitch; i++, errors->elements++)
		if (out[i] != right->out[i])
			complain(p, errors, row, expert, i, out[i], right->out[i]);
	for (uint32_t b = 0; b < right->scales.size(); b++, errors->elements++) {
		uint32_t bits[2];

		memcpy(&bits[0], &actual->scales[row * layer_scales_of(p->m) + b], 4);
		memcpy(&bits[1], &right->scales[b], 4);
		if (bits[0] != bits[1])
			complain(p, errors, row, expert, b, bits[0], bits[1]);
	}
}

static float value_of(
	const struct product *p, const struct actual *actual, uint64_t row, uint32_t m)
{
	if (p->dtype == LAYER_BF16 || p->which == LAYER_DOWN)
		return from_bf16(&actual->out[(row * p->m + m) * 2]);
	__nv_fp8_e4m3 q;

	q.__x = actual->out[row * p->m + m];
	return (float)q * actual->scales[row * layer_scales_of(p->m) + m / 128];
}

static void check_row(const struct product *p, const struct actual *actual, uint64_t row,
	uint32_t expert, struct errors *errors)
{
	std::vector<float> v(p->m);
	std::vector<double> truth(p->m);
	struct expected right;

	for (uint32_t m = 0; m < p->m; m++) {
		/* Where sums are exact a product of two is rounded once. */
		truth[m] = result<double>(p, row, expert, m);
		v[m] = p->exact ? (float)truth[m] : result<float>(p, row, expert, m);
	}
	expect_row(p, v, &right);
	if (p->exact) {
		compare_exact(p, actual, row, expert, &right, errors);
		return;
	}
	for (uint32_t m = 0; m < p->m; m++, errors->elements++) {
		errors->kernel += pow(value_of(p, actual, row, m) - truth[m], 2);
		errors->plain += pow(right.values[m] - truth[m], 2);
	}
}

/* Rows of nobody are as they were. */
static void check_untouched(const struct product *p, const struct actual *actual, uint64_t begin,
	uint64_t end, struct errors *errors)
{
	size_t pitch = actual->out.size() / p->rows;

	for (uint64_t r = begin; r < end; r++)
		for (size_t i = 0; i < pitch; i++)
			if (actual->out[r * pitch + i] != POISON && errors->wrong++ < 8)
				printf("# row %lu is nobody's and was written\n", (unsigned long)r);
}

/* Drawn and dealt tiles may be others, of other widths: a row's bits are the same. */
static bool differ(const struct actual *a, const struct actual *b)
{
	bool differ = a->out != b->out ||
		      memcmp(a->scales.data(), b->scales.data(), a->scales.size() * sizeof(float));

	if (differ)
		printf("# drawn and dealt tiles differ in their results\n");
	return differ;
}

static void check_product(const struct product *p, struct errors *errors)
{
	struct actual actual, other;
	bool drawn = below(2);
	uint64_t end = 0;

	errors->wrong += run_product(p, drawn, &actual);
	errors->wrong += run_product(p, !drawn, &other);
	errors->wrong += differ(&actual, &other);
	for (uint32_t e = 0; e < p->experts; e++) {
		check_untouched(p, &actual, end, p->offsets[e], errors);
		for (uint32_t i = 0; i < p->counts[e]; i++)
			check_row(p, &actual, p->offsets[e] + i, e, errors);
		end = p->offsets[e] + p->counts[e];
	}
	check_untouched(p, &actual, end, p->rows, errors);
}

/* Case 0 to 3: one tile, so that a mistake shows at once. */
static void draw_case(struct product *p, uint32_t i, bool exact)
{
	bool many = i % 5 == 4; /* rows: several tiles of them */
	uint32_t whole;

	p->dtype = i % 2 ? LAYER_FP8 : LAYER_BF16;
	p->which = i / 2 % 2 ? LAYER_DOWN : LAYER_GATE_UP;
	p->exact = exact;
	whole = p->dtype == LAYER_FP8 ? 128 : 8;
	p->experts = i < 4 ? 1 : i % 16 < 4 ? 64 + below(192) : 1 + below(9);
	if (many)
		p->experts = 1 + below(3);
	p->m = i < 4 ? 128 : whole * (1 + below((p->experts > 9 || many ? 384 : 640) / whole));
	p->k = i < 4 ? 128 : whole * (1 + below((p->experts > 9 || many ? 384 : 1280) / whole));
	draw_product(p, i < 4 ? 8 : many ? 1000 : p->experts > 9 ? 12 : i % 3 ? 40 : 300);
}

static int verify_cases(uint32_t cases, bool exact)
{
	struct errors errors = {};

	for (uint32_t i = 0; i < cases && errors.wrong < 8; i++) {
		struct product p;

		draw_case(&p, i, exact);
		check_product(&p, &errors);
		if (errors.wrong)
			printf("# case %u: %u experts, %u outputs, k %u, %lu rows\n", i, p.experts,
				p.m, p.k, (unsigned long)p.rows);
		if (!exact && errors.kernel > errors.plain * 1.05 * 1.05) {
			printf("# case %u: error %g, plain fp32's %g\n", i, sqrt(errors.kernel),
				sqrt(errors.plain));
			errors.wrong++;
		}
	}
	printf("{\"verify\": \"%s\", \"cases\": %u, \"elements\": %lu, \"wrong\": %lu",
		exact ? "exact" : "normal", cases, (unsigned long)errors.elements,
		(unsigned long)errors.wrong);
	if (!exact)
		printf(", \"error_over_plain\": %.4f", sqrt(errors.kernel / errors.plain));
	printf("}\n");
	return errors.wrong || !errors.elements;
}

int gemm_verify(int argc, char **argv)
{
	uint32_t cases = 64;

	state = 1;
	for (int i = 0; i + 1 < argc; i += 2)
		if (!strcmp(argv[i], "--cases"))
			cases = strtoul(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			state = strtoull(argv[i + 1], NULL, 0);
	return verify_cases(cases, true) || verify_cases((cases + 3) / 4, false);
}
