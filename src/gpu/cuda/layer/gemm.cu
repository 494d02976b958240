/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda/layer/gemm.cuh"

#include <cuda_runtime.h>
#include <cudaTypedefs.h>

static_assert(sizeof(struct layer_map) == sizeof(CUtensorMap), "a map fits");

static const uint32_t WIDTHS[LAYER_WIDTHS] = {8, 16, 32, 64, 96, 128};

/* The driver's, without linking to it. */
static const char *find_encode(PFN_cuTensorMapEncodeTiled_v12000 *encode)
{
	cudaDriverEntryPointQueryResult found;

	if (cudaGetDriverEntryPointByVersion(
		    "cuTensorMapEncodeTiled", (void **)encode, 12000, cudaEnableDefault, &found) ||
		found != cudaDriverEntryPointSuccess)
		return "the driver has no cuTensorMapEncodeTiled, which is CUDA 12's";
	return NULL;
}

struct tensor {
	CUtensorMapDataType type;
	uint32_t element_bytes, dims;
	const void *at;
	uint64_t size[4]; /* elements, the innermost first */
	uint32_t box[4];
};

static const char *encode_map(
	const struct tensor *tensor, CUtensorMapSwizzle swizzle, struct layer_map *map)
{
	static const uint32_t ONES[4] = {1, 1, 1, 1};
	PFN_cuTensorMapEncodeTiled_v12000 encode;
	const char *cause = find_encode(&encode);
	uint64_t pitch[4], bytes = tensor->element_bytes;

	if (cause)
		return cause;
	for (uint32_t i = 0; i < tensor->dims; i++)
		pitch[i] = bytes *= tensor->size[i];
	if (encode((CUtensorMap *)map, tensor->type, tensor->dims, (void *)tensor->at, tensor->size,
		    pitch, tensor->box, ONES, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
		    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
		return "cuTensorMapEncodeTiled refused a tensor: is it aligned to 16 bytes?";
	return NULL;
}

static struct tensor elements(enum layer_dtype dtype, uint32_t dims, const void *at)
{
	struct tensor tensor = {};

	tensor.type = dtype == LAYER_FP8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
					 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
	tensor.element_bytes = dtype == LAYER_FP8 ? 1 : 2;
	tensor.dims = dims;
	tensor.at = at;
	return tensor;
}

static const char *map_weights(enum layer_which which, const struct layer_shape *shape,
	const struct layer_product *product, struct layer_args *args)
{
	struct tensor t = elements(shape->dtype, 4, product->weights);
	uint64_t size[4] = {args->k, args->m, which == LAYER_GATE_UP ? 2u : 1u, shape->experts};
	uint32_t box[4] = {128 / t.element_bytes, 128, 1, 1};

	for (int i = 0; i < 4; i++)
		t.size[i] = size[i], t.box[i] = box[i];
	return encode_map(&t, CU_TENSOR_MAP_SWIZZLE_128B, &args->weights);
}

static const char *map_rows(const struct layer_shape *shape, const struct layer_product *product,
	struct layer_args *args)
{
	const char *cause = NULL;

	for (uint32_t i = 0; i < LAYER_WIDTHS && !cause; i++) {
		struct tensor rows = elements(shape->dtype, 2, product->rows), scales = {};

		rows.size[0] = args->k, rows.size[1] = shape->rows_max;
		rows.box[0] = 128 / rows.element_bytes, rows.box[1] = WIDTHS[i];
		cause = encode_map(&rows, CU_TENSOR_MAP_SWIZZLE_128B, &args->rows[i]);
		if (cause || shape->dtype != LAYER_FP8)
			continue;
		scales.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
		scales.element_bytes = 4, scales.dims = 2, scales.at = product->rows_scales;
		scales.size[0] = layer_scales_of(args->k), scales.size[1] = shape->rows_max;
		scales.box[0] = SCALES_AT_ONCE, scales.box[1] = WIDTHS[i];
		cause = encode_map(&scales, CU_TENSOR_MAP_SWIZZLE_NONE, &args->scales[i]);
	}
	return cause;
}

static const char *check_shape(const struct layer_shape *shape)
{
	uint32_t whole = shape->dtype == LAYER_FP8 ? 128 : 8;

	if (!shape->experts || shape->experts > LAYER_EXPERTS_MAX)
		return "experts: 1 to 256 local ones";
	if (!shape->hidden || !shape->inner || shape->hidden % whole || shape->inner % whole)
		return "hidden and inner: multiples of 128 in fp8, of 8 in bf16";
	if (!shape->rows_max || shape->rows_max > INT32_MAX)
		return "rows_max: 1 to 2^31 - 1";
	return NULL;
}

const char *layer_prepare(enum layer_which which, const struct layer_shape *shape,
	const struct layer_rows *by_expert, const struct layer_product *product,
	struct layer_args *args)
{
	const char *cause = check_shape(shape);
	uint32_t m = which == LAYER_GATE_UP ? shape->inner : shape->hidden;
	uint32_t k = which == LAYER_GATE_UP ? shape->hidden : shape->inner;
	uint32_t of_tile = which == LAYER_GATE_UP ? 128 : 256,
		 of_block = shape->dtype == LAYER_FP8 ? 128 : 64;

	if (cause)
		return cause;
	args->by_expert = *by_expert;
	args->weights_scales = product->weights_scales;
	args->out = product->out;
	args->out_scales = product->out_scales;
	args->out_stride = m;
	args->rows_max = shape->rows_max;
	args->out_scales_pitch = layer_scales_of(m);
	args->experts = shape->experts;
	args->m = m;
	args->k = k;
	args->m_tiles = (m + of_tile - 1) / of_tile;
	args->k_blocks = (k + of_block - 1) / of_block;
	args->activation = LAYER_SWIGLU;
	cause = map_weights(which, shape, product, args);
	return cause ? cause : map_rows(shape, product, args);
}

typedef void (*layer_kernel_type)(struct layer_args);

#define MOST_ATTRIBUTES 2

static cudaError_t configure(layer_kernel_type kernel, const struct layer_grid *grid,
	cudaLaunchAttribute *attributes, cudaLaunchConfig_t *config)
{
	const int bytes = sizeof(struct shared_memory) + 1023;

	*config = {};
	config->gridDim = grid->blocks;
	config->blockDim = THREADS;
	config->dynamicSmemBytes = bytes;
	config->attrs = attributes;
	if (grid->early) {
		attributes->id = cudaLaunchAttributeProgrammaticStreamSerialization;
		attributes->val.programmaticStreamSerializationAllowed = 1;
		attributes++;
	}
	if (grid->clusters) {
		attributes->id = cudaLaunchAttributeClusterDimension;
		attributes->val.clusterDim = {2, 1, 1};
		attributes++;
	}
	config->numAttrs = (unsigned)(attributes - config->attrs);
	return cudaFuncSetAttribute(
		(const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

int layer_clusters_fit(uint32_t blocks)
{
	const layer_kernel_type kernel = layer_kernel<__nv_bfloat16, LAYER_DOWN, false>;
	const struct layer_grid grid = {blocks, 0, 0, 1};
	cudaLaunchAttribute attributes[MOST_ATTRIBUTES] = {};
	cudaLaunchConfig_t config;
	int nr = 0;

	if (blocks % 2)
		return 0;
	if (configure(kernel, &grid, attributes, &config) ||
		cudaOccupancyMaxActiveClusters(&nr, kernel, &config)) {
		(void)cudaGetLastError();
		return 0;
	}
	return (uint32_t)nr * 2 >= blocks;
}

template <class T, int WHICH> static layer_kernel_type kernel_of(bool drawn)
{
	return drawn ? layer_kernel<T, WHICH, true> : layer_kernel<T, WHICH, false>;
}

static layer_kernel_type find_kernel(enum layer_which which, enum layer_dtype dtype, bool drawn)
{
	if (dtype == LAYER_FP8)
		return which == LAYER_DOWN ? kernel_of<__nv_fp8_e4m3, LAYER_DOWN>(drawn)
					   : kernel_of<__nv_fp8_e4m3, LAYER_GATE_UP>(drawn);
	return which == LAYER_DOWN ? kernel_of<__nv_bfloat16, LAYER_DOWN>(drawn)
				   : kernel_of<__nv_bfloat16, LAYER_GATE_UP>(drawn);
}

cudaError_t layer_launch(enum layer_which which, enum layer_dtype dtype,
	const struct layer_args *args, const struct layer_grid *grid, cudaStream_t stream)
{
	layer_kernel_type kernel = find_kernel(which, dtype, grid->drawn);
	cudaLaunchAttribute attributes[MOST_ATTRIBUTES] = {};
	cudaLaunchConfig_t config;
	cudaError_t rc = configure(kernel, grid, attributes, &config);

	config.stream = stream;
	return rc ? rc : cudaLaunchKernelEx(&config, kernel, *args);
}

/* All are of one file, for the same GPUs. */
cudaError_t layer_load(void)
{
	cudaFuncAttributes attributes;
	cudaError_t rc = cudaFuncGetAttributes(
		&attributes, (const void *)layer_kernel<__nv_bfloat16, LAYER_DOWN, false>);

	if (rc)
		(void)cudaGetLastError();
	return rc;
}
