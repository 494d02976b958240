/* SPDX-License-Identifier: Apache-2.0 */
/* In place of src/gpu/cuda/layer/gemm.cu, whose products an emulated GPU does not have: the same
 * sums in plain loops, a row a lane, so that all around them runs. */
#include "gpu/cuda/common/quantise.cuh"
#include "gpu/cuda/layer/deal.cuh"

#define MOST_BLOCKS 4 /* of a warp */
#define BLOCK 128

/* What gemm.cu tells tensor maps. */
struct plain {
	const uint8_t *rows, *weights;
	const float *rows_scales;
};

static struct plain *plain_of(struct layer_args *args)
{
	return (struct plain *)args->weights.opaque;
}

static __device__ float e4m3_value(uint8_t code)
{
	uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
	float value = exponent ? __uint_as_float((exponent + 120) << 23 | mantissa << 20)
			       : (float)mantissa * 0x1p-9f;

	return code & 0x80 ? -value : value;
}

/* Most of what an emulated layer takes is its elements' values. */
static const struct e4m3_values {
	float of[256];

	e4m3_values()
	{
		for (int code = 0; code < 256; code++)
			of[code] = e4m3_value((uint8_t)code);
	}
} e4m3;

static __device__ float value(uint8_t code)
{
	return e4m3.of[code];
}

static __device__ float value(uint16_t bf16)
{
	return __uint_as_float((uint32_t)bf16 << 16);
}

/* In four sums: one would wait for each addition. */
template <typename T>
static __device__ float products(const uint8_t *rows, const uint8_t *weights, uint32_t nr)
{
	const T *x = (const T *)rows, *w = (const T *)weights;
	float sums[4] = {};

	for (uint32_t i = 0; i < nr; i += 4)
		for (uint32_t j = 0; j < 4; j++)
			sums[j] += value(x[i + j]) * value(w[i + j]);
	return sums[0] + sums[1] + (sums[2] + sums[3]);
}

static __device__ uint16_t bf16_rounded(float value)
{
	uint32_t bits = __float_as_uint(value);

	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Outputs of rows m, of K elements; the matrix is the nr-th of M rows each. */
static __device__ float dot(
	const struct layer_args *a, uint64_t matrix, uint32_t m, uint64_t row, bool fp8)
{
	const struct plain *p = (const struct plain *)a->weights.opaque;
	uint32_t blocks = a->k / BLOCK;
	uint64_t x = row * a->k, w = (matrix * a->m + m) * a->k;
	float sum = 0;

	if (!fp8)
		return products<uint16_t>(p->rows + 2 * x, p->weights + 2 * w, a->k);
	for (uint32_t b = 0; b < blocks; b++, x += BLOCK, w += BLOCK)
		sum += products<uint8_t>(p->rows + x, p->weights + w, BLOCK) *
		       p->rows_scales[row * layer_scales_of(a->k) + b] *
		       a->weights_scales[(matrix * (a->m / BLOCK) + m / BLOCK) * blocks + b];
	return sum;
}

static __device__ float activated(const struct layer_args *a, float gate, float up)
{
	return (a->activation == LAYER_SWIGLU ? gate / (1 + expf(-gate)) : gate) * up;
}

static __device__ void quantise_block(
	const struct layer_args *a, uint64_t row, uint32_t block, const float *v, uint8_t *out)
{
	float amax = 0, factor, scale;

	for (uint32_t i = 0; i < BLOCK; i++)
		amax = fabsf(v[i]) > amax ? fabsf(v[i]) : amax;
	scale = amax > 0 ? fmaxf(amax / 448, 0x1p-126f) : 1;
	factor = !(amax > 0) ? 1 : amax / 448 < 0x1p-126f ? 0x1p126f : 448 / amax;
	a->out_scales[row * a->out_scales_pitch + block] = scale;
	for (uint32_t i = 0; i < BLOCK; i++)
		out[i] = (uint8_t)float_to_e4m3(v[i] * factor);
}

/* Outputs m to m + nr - 1 of a row, at most a block. They are stored as a GPU stores, later. */
static __device__ void gate_up_block(const struct layer_args *a, uint32_t expert, uint64_t row,
	uint32_t m, uint32_t nr, bool fp8)
{
	float v[BLOCK];
	alignas(16) uint8_t out[BLOCK * 2];
	uint32_t bytes = fp8 ? 1 : 2;
	uint8_t *to = (uint8_t *)a->out + (row * a->out_stride + m) * bytes;

	for (uint32_t i = 0; i < nr; i++) {
		v[i] = activated(a, dot(a, 2 * (uint64_t)expert, m + i, row, fp8),
			dot(a, 2 * (uint64_t)expert + 1, m + i, row, fp8));
		if (!fp8)
			((uint16_t *)out)[i] = bf16_rounded(v[i]);
	}
	if (fp8)
		quantise_block(a, row, m / BLOCK, v, out);
	for (uint32_t i = 0; i < nr * bytes; i += 16)
		row_store(to + i, *(const uint4 *)(out + i));
}

static __device__ void gate_up_row(
	const struct layer_args *a, uint32_t expert, uint64_t row, bool fp8)
{
	for (uint32_t m = 0; m < a->m; m += BLOCK) {
		gate_up_block(a, expert, row, m, a->m - m < BLOCK ? a->m - m : BLOCK, fp8);
		count_rows_of_h(a, expert, 1);
	}
}

static __device__ void mark(const struct layer_args *a, enum layer_mark which)
{
#ifdef TERN_TRACE
	if (a->marks && threadIdx.x == 0)
		a->marks[blockIdx.x * LAYER_MARKS + which] = now_ns();
#endif
}

/* The nr-th row of all experts; false: there are not so many. */
static __device__ bool find_row(
	const struct layer_args *a, uint32_t nr, uint32_t *expert, uint32_t *within)
{
	*within = nr;
	for (*expert = 0; *expert < a->experts; ++*expert) {
		uint32_t count = a->by_expert.counts[*expert];

		if (*within < count)
			return a->by_expert.offsets[*expert] + *within < a->rows_max;
		*within -= count;
	}
	return false;
}

static __device__ void compute_row(
	const struct layer_args *a, enum layer_which which, uint32_t expert, uint64_t row, bool fp8)
{
	if (which == LAYER_GATE_UP)
		gate_up_row(a, expert, row, fp8);
	for (uint32_t m = 0; m < a->m && which == LAYER_DOWN; m++)
		((uint16_t *)a->out)[row * a->out_stride + m] =
			bf16_rounded(dot(a, expert, m, row, fp8));
}

/* By one lane for all: whether rows of this round are waited for one by one. */
static __device__ bool begin(const struct layer_args *a, enum layer_which which, uint32_t *round)
{
	bool beside = which == LAYER_GATE_UP && is_beside(a);

	*round = beside ? tern_gate_round(&a->gate) : 0;
	beside = beside && counts_came(a, *round);
	if (which == LAYER_GATE_UP && !beside)
		wait_for_previous();
	return beside;
}

/* Before a row is computed: it is there. */
static __device__ void await_row(const struct layer_args *a, enum layer_which which, bool beside,
	uint32_t round, uint32_t expert, uint32_t within)
{
	if (which == LAYER_DOWN ? !rows_of_h_came(a, expert, a->by_expert.counts[expert])
				: beside && !rows_came(a, round, expert, within, 1))
		wait_for_previous();
}

/* A tile is as many rows as a warp has lanes, of whatever experts. */
static __global__ void plain_layer(const __grid_constant__ struct layer_args args,
	enum layer_which which, bool fp8, bool drawn)
{
	const struct layer_args *a = &args;
	uint32_t round = 0, next;
	bool beside = lane_id() == 0 && begin(a, which, &round);

	beside = __shfl_sync(ALL_LANES, beside, 0);
	round = __shfl_sync(ALL_LANES, round, 0);
	mark(a, MARK_BEGIN);
	let_next_start();
	for (uint32_t tile = blockIdx.x;; tile = next) {
		uint32_t expert, within;
		bool there = find_row(a, tile * LANES + lane_id(), &expert, &within);

		if (!__any_sync(ALL_LANES, there))
			break;
		next = tile_after<false>(a, which, tile);
		if (drawn) {
			next = lane_id() == 0 ? tile_after<true>(a, which, tile) : 0;
			next = __shfl_sync(ALL_LANES, next, 0);
		}
		if (there) {
			await_row(a, which, beside, round, expert, within);
			compute_row(a, which, expert, a->by_expert.offsets[expert] + within, fp8);
		}
		__syncwarp();
	}
	wait_for_previous();
	if (which == LAYER_DOWN)
		put_words_back(a);
	mark(a, MARK_END);
}

cudaError_t layer_load(void)
{
	return cudaSuccess;
}

const char *layer_prepare(enum layer_which which, const struct layer_shape *shape,
	const struct layer_rows *by_expert, const struct layer_product *product,
	struct layer_args *args)
{
	struct plain *p = plain_of(args);

	p->rows = (const uint8_t *)product->rows;
	p->weights = (const uint8_t *)product->weights;
	p->rows_scales = product->rows_scales;
	args->by_expert = *by_expert;
	args->weights_scales = product->weights_scales;
	args->out = product->out;
	args->out_scales = product->out_scales;
	args->m = which == LAYER_GATE_UP ? shape->inner : shape->hidden;
	args->k = which == LAYER_GATE_UP ? shape->hidden : shape->inner;
	args->out_stride = args->m;
	args->rows_max = shape->rows_max;
	args->out_scales_pitch = layer_scales_of(args->m);
	args->experts = shape->experts;
	return NULL;
}

int layer_clusters_fit(uint32_t blocks)
{
	return blocks % 2 == 0;
}

cudaError_t layer_launch(enum layer_which which, enum layer_dtype dtype,
	const struct layer_args *args, const struct layer_grid *grid, cudaStream_t stream)
{
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute attribute = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = grid->blocks < MOST_BLOCKS ? grid->blocks : MOST_BLOCKS;
	config.blockDim = LANES;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = grid->early ? 1 : 0;
	return cudaLaunchKernelEx(
		&config, plain_layer, *args, which, dtype == LAYER_FP8, grid->drawn != 0);
}
