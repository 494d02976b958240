/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lab/gemm/gemm.h"

#include <stdio.h>
#include <string.h>

#include "bench/lab/check.h"

struct lab_tensor_sizes lab_sizes(const struct lab_experts *experts)
{
	const struct layer_shape *shape = &experts->shape;
	size_t hidden = shape->hidden, inner = shape->inner, bytes = experts->element_bytes;
	bool scaled = shape->dtype == LAYER_FP8;
	struct lab_tensor_sizes sizes = {};

	sizes.x = shape->rows_max * hidden * bytes;
	sizes.h = shape->rows_max * inner * bytes;
	sizes.y = shape->rows_max * hidden * 2;
	sizes.gate_up = shape->experts * 2 * inner * hidden * bytes;
	sizes.down = shape->experts * hidden * inner * bytes;
	if (!scaled)
		return sizes;
	sizes.x_scales = shape->rows_max * layer_scales_of(shape->hidden) * sizeof(float);
	sizes.h_scales = shape->rows_max * layer_scales_of(shape->inner) * sizeof(float);
	sizes.gate_up_scales = sizes.gate_up / (128 * 128) * sizeof(float);
	sizes.down_scales = sizes.down / (128 * 128) * sizeof(float);
	return sizes;
}

static void prepare(struct lab_experts *e, enum layer_which which)
{
	struct layer_rows by_expert = {e->counts, e->offsets};
	struct layer_product product = {};
	const char *cause;

	product.rows = which == LAYER_GATE_UP ? e->x : e->h;
	product.rows_scales = which == LAYER_GATE_UP ? e->x_scales : e->h_scales;
	product.weights = which == LAYER_GATE_UP ? e->gate_up : e->down;
	product.weights_scales = which == LAYER_GATE_UP ? e->gate_up_scales : e->down_scales;
	product.out = which == LAYER_GATE_UP ? e->h : e->y;
	product.out_scales = which == LAYER_GATE_UP ? e->h_scales : NULL;
	cause = layer_prepare(which, &e->shape, &by_expert, &product, &e->args[which]);
	if (cause) {
		fprintf(stderr, "tern-lab-gemm: %s\n", cause);
		exit(1);
	}
}

void lab_experts_create(const struct layer_shape *shape, struct lab_experts *e)
{
	struct lab_tensor_sizes sizes;

	memset(e, 0, sizeof(*e));
	e->shape = *shape;
	e->element_bytes = shape->dtype == LAYER_FP8 ? 1 : 2;
	sizes = lab_sizes(e);
	CHECK(cudaMalloc(&e->counts, shape->experts * sizeof(*e->counts)));
	CHECK(cudaMalloc(&e->offsets, shape->experts * sizeof(*e->offsets)));
	CHECK(cudaMalloc(&e->words, sizeof(*e->words)));
	CHECK(cudaMemset(e->words, 0, sizeof(*e->words)));
	CHECK(cudaMalloc(&e->x, sizes.x));
	CHECK(cudaMalloc(&e->h, sizes.h));
	CHECK(cudaMalloc(&e->y, sizes.y));
	CHECK(cudaMalloc(&e->gate_up, sizes.gate_up));
	CHECK(cudaMalloc(&e->down, sizes.down));
	if (sizes.x_scales) {
		CHECK(cudaMalloc(&e->x_scales, sizes.x_scales));
		CHECK(cudaMalloc(&e->h_scales, sizes.h_scales));
		CHECK(cudaMalloc(&e->gate_up_scales, sizes.gate_up_scales));
		CHECK(cudaMalloc(&e->down_scales, sizes.down_scales));
	}
	prepare(e, LAYER_GATE_UP);
	prepare(e, LAYER_DOWN);
	for (struct layer_args &args : e->args)
		args.words = e->words;
}

void lab_experts_destroy(struct lab_experts *e)
{
	void *all[] = {e->counts, e->offsets, e->words, e->x, e->h, e->y, e->gate_up, e->down,
		e->x_scales, e->h_scales, e->gate_up_scales, e->down_scales};

	for (void *p : all)
		CHECK(cudaFree(p));
}

static int usage(FILE *to)
{
	fprintf(to,
		"usage: tern-lab-gemm verify [--cases N] [--seed N]\n"
		"       tern-lab-gemm time [--preset NAME] [--ranks 2,32] [--tokens N,...]\n"
		"                          [--rounds N] [--seed N] [--json]\n"
		"                          [--early PRODUCTS] [--drawn PRODUCTS] [--clusters "
		"PRODUCTS]\n"
		"\n"
		"The two products of an MoE layer's experts by themselves, on one GPU (sm_90a).\n"
		"  verify   every element against a reference, bit for bit where sums are exact,\n"
		"           and within 1.05 of plain fp32's error on normal data\n"
		"  time     graph replay with a flushed L2, a line for each case: the share of one "
		"of\n"
		"           so many ranks of deepseek-v3, qwen3-30b-a3b, gpt-oss-120b;\n"
		"           PRODUCTS: none, gate-up, down, both. --early: launched so, down "
		"unless\n"
		"           said; --drawn: blocks draw tiles, where they take every so many;\n"
		"           --clusters: of two\n");
	return to == stderr ? 2 : 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "verify"))
		return gemm_verify(argc - 2, argv + 2);
	if (argc > 1 && !strcmp(argv[1], "time"))
		return gemm_time(argc - 2, argv + 2);
	return usage(argc > 1 && !strcmp(argv[1], "--help") ? stdout : stderr);
}
