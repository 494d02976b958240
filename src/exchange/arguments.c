/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/arguments.h"

#include "base/error.h"

static int check_pointer(const char *name, const void *pointer, size_t stride, uint64_t row_bytes,
	uint32_t alignment)
{
	if (!pointer)
		return fail(TERN_ERR_INVALID, "dispatch: %s is NULL", name);
	if ((uintptr_t)pointer % alignment || stride % alignment)
		return fail(TERN_ERR_INVALID,
			"dispatch: %s at %p, stride %zu, has to be aligned to %u bytes", name,
			pointer, stride, alignment);
	if (stride && stride < row_bytes)
		return fail(TERN_ERR_INVALID,
			"dispatch: %s has a stride of %zu bytes for rows of %llu", name, stride,
			(unsigned long long)row_bytes);
	return 0;
}

uint64_t x_row_bytes(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;

	return c->x_dtype == TERN_BYTES ? c->payload_bytes
					: (uint64_t)c->hidden * dtype_bytes(c->x_dtype);
}

int arguments_dispatch(const tern_moe *moe, const struct tern_dispatch *args)
{
	bool fp8 = moe->config.x_dtype == TERN_FP8_E4M3;
	int rc;

	if (args->nr_tokens > moe->config.max_tokens)
		return fail(TERN_ERR_INVALID,
			"dispatch: %u tokens; this exchange was made for at most %u",
			args->nr_tokens, moe->config.max_tokens);
	if (args->topk_ids_bits != 0 && args->topk_ids_bits != 32 && args->topk_ids_bits != 64)
		return fail(TERN_ERR_INVALID,
			"dispatch: topk_ids_bits is %u; 32 or 64 are possible",
			args->topk_ids_bits);
	if (!fp8 && args->scales)
		return fail(TERN_ERR_INVALID, "dispatch: scales are given, but x is not FP8");
	if (args->nr_tokens == 0)
		return 0;
	rc = check_pointer("x", args->x, args->x_stride, x_row_bytes(moe), 16);
	if (!rc && fp8)
		rc = check_pointer("scales", args->scales, args->scales_stride,
			moe->layout.scales_bytes, scale_bytes(moe->config.scale));
	if (args->plan)
		return rc;
	rc = rc ? rc
		: check_pointer(
			  "topk_ids", args->topk_ids, 0, 0, args->topk_ids_bits == 64 ? 8 : 4);
	return rc || !args->topk_weights
		       ? rc
		       : check_pointer("topk_weights", args->topk_weights, 0, 0, 4);
}

int arguments_plan(const struct tern_dispatch *args, uint32_t nr_tokens)
{
	if (args->topk_ids || args->topk_weights)
		return fail(TERN_ERR_INVALID,
			"dispatch: topk_ids or topk_weights are given beside plan %llu, which has "
			"its own",
			(unsigned long long)args->plan);
	if (args->nr_tokens != nr_tokens)
		return fail(TERN_ERR_INVALID, "dispatch: %u tokens; plan %llu has %u",
			args->nr_tokens, (unsigned long long)args->plan, nr_tokens);
	return 0;
}

uint64_t gemm_scales_stride(const tern_moe *moe, const struct tern_received *received)
{
	uint64_t rows =
		moe->config.layout == TERN_PADDED ? moe->layout.capacity : moe->layout.positions;

	return received->gemm_scales_stride ? received->gemm_scales_stride : align_up(rows, 4);
}

static int check_gemm_scales(
	const tern_moe *moe, const struct tern_received *received, const char *call)
{
	uint64_t rows =
		moe->config.layout == TERN_PADDED ? moe->layout.capacity : moe->layout.positions;

	if (!moe->layout.scales_bytes)
		return fail(TERN_ERR_INVALID, "%s: gemm_scales are wanted, but rows have no scales",
			call);
	if ((uintptr_t)received->gemm_scales % 16 || received->gemm_scales_stride % 4)
		return fail(TERN_ERR_INVALID,
			"%s: gemm_scales at %p, stride %u elements; they have to be aligned to 16 "
			"bytes, and it to be a multiple of 4",
			call, received->gemm_scales, received->gemm_scales_stride);
	if (gemm_scales_stride(moe, received) >= rows)
		return 0;
	return fail(TERN_ERR_INVALID,
		"%s: gemm_scales_stride is %u, where %llu row positions are possible", call,
		received->gemm_scales_stride, (unsigned long long)rows);
}

/* Scales column by column, and not by rows: kernels store them so, packed ones if none is partly
 * filled. */
static bool columns_alone(const tern_moe *moe, const struct tern_received *received)
{
	uint64_t blocks = moe->layout.scales_bytes / scale_bytes(moe->config.scale),
		 columns = moe->config.scale == TERN_SCALE_UE8M0 ? blocks / 4 : blocks,
		 lists = moe->config.layout == TERN_PADDED ? moe->layout.max_local : 1;

	return received->gemm_scales && moe->config.device != TERN_DEVICE_CPU &&
	       (moe->config.scale != TERN_SCALE_UE8M0 || blocks % 4 == 0) &&
	       lists * columns * gemm_scales_stride(moe, received) <= UINT32_MAX;
}

/* What is wanted beside rows. */
static int check_wanted(const tern_moe *moe, const struct tern_received *received, const char *call)
{
	if (received->wide_ids && moe->config.layout != TERN_BY_SOURCE)
		return fail(TERN_ERR_INVALID,
			"%s: wide_ids are wanted, but rows are by expert: it takes TERN_BY_SOURCE",
			call);
	if ((uintptr_t)received->wide_ids % 8 || (uintptr_t)received->expert_counts % 4 ||
		(uintptr_t)received->expert_totals % 8 || (uintptr_t)received->waited_ns % 8)
		return fail(TERN_ERR_INVALID,
			"%s: wide_ids at %p, expert_counts at %p, expert_totals at %p and "
			"waited_ns at %p have to be aligned to 8, 4, 8 and 8 bytes",
			call, (void *)received->wide_ids, (void *)received->expert_counts,
			(void *)received->expert_totals, (void *)received->waited_ns);
	if ((uintptr_t)received->into_counts % 4 || (uintptr_t)received->into_offsets % 8)
		return fail(TERN_ERR_INVALID,
			"%s: into_counts at %p and into_offsets at %p have to be aligned to 4 and "
			"8 bytes",
			call, (void *)received->into_counts, (void *)received->into_offsets);
	return received->gemm_scales ? check_gemm_scales(moe, received, call) : 0;
}

int arguments_received(const tern_moe *moe, const struct tern_received *received, const char *call)
{
	uint32_t scale = scale_bytes(moe->config.scale);
	int rc = check_wanted(moe, received, call);

	if (rc || !received->into_x)
		return rc;
	if (moe->config.mode == TERN_HIGH_THROUGHPUT)
		return fail(TERN_ERR_INVALID,
			"%s: into_x is given, but in high-throughput mode rows arrive in library "
			"memory",
			call);
	if ((uintptr_t)received->into_x % 16 ||
		(scale && !received->into_scales && !columns_alone(moe, received)))
		return fail(TERN_ERR_INVALID,
			"%s: into_x is not aligned to 16 bytes, or into_scales is NULL with FP8",
			call);
	if (scale && (uintptr_t)received->into_scales % scale)
		return fail(TERN_ERR_INVALID, "%s: into_scales at %p has to be aligned to %u bytes",
			call, received->into_scales, scale);
	return 0;
}

int arguments_beside(const tern_moe *moe, const struct tern_plan_beside *beside)
{
	if (beside->wide_ids && moe->config.layout != TERN_BY_SOURCE)
		return fail(TERN_ERR_INVALID,
			"tern_plan_create: wide_ids are wanted, but rows are by expert: it takes "
			"TERN_BY_SOURCE");
	if ((uintptr_t)beside->wide_ids % 8 == 0 && (uintptr_t)beside->tokens % 4 == 0 &&
		(uintptr_t)beside->topk_ids % 4 == 0)
		return 0;
	return fail(TERN_ERR_INVALID,
		"tern_plan_create: wide_ids at %p, tokens at %p and topk_ids at %p have to be "
		"aligned to 8, 4 and 4 bytes",
		(void *)beside->wide_ids, (void *)beside->tokens, (void *)beside->topk_ids);
}

static int check_rows(const tern_moe *moe, const char *name, const void *rows, size_t stride)
{
	uint32_t bytes = moe->layout.combine_row_bytes;

	if ((uintptr_t)rows % 16 == 0 && stride % 16 == 0 && (!stride || stride >= bytes))
		return 0;
	return fail(TERN_ERR_INVALID,
		"combine: %s at %p with a stride of %zu bytes for rows of %u; both have to be "
		"aligned to 16 bytes",
		name, rows, stride, bytes);
}

static int check_floats(const char *name, const void *floats)
{
	if ((uintptr_t)floats % sizeof(float) == 0)
		return 0;
	return fail(
		TERN_ERR_INVALID, "combine: %s at %p has to be aligned to 4 bytes", name, floats);
}

/* How rows are weighted, and what comes beside them. */
static int check_manner(const tern_moe *moe, const struct tern_combine *args)
{
	int rc;

	if (args->topk_weights && args->unweighted)
		return fail(TERN_ERR_INVALID, "combine: topk_weights are given, and unweighted");
	if (args->topk_weights && moe->config.reduce != TERN_REDUCE_HOME &&
		!moe->config.late_weights)
		return fail(TERN_ERR_INVALID,
			"combine: topk_weights are given where rows are summed by their experts' "
			"ranks, which have those of the dispatch; it takes TERN_REDUCE_HOME or "
			"late_weights");
	if ((args->floats || args->out_floats) && !moe->config.combine_floats)
		return fail(TERN_ERR_INVALID,
			"combine: floats are given, and the exchange was made without "
			"combine_floats");
	if (args->no_floats && (args->floats || args->out_floats))
		return fail(TERN_ERR_INVALID,
			"combine: no_floats is %u, and floats at %p or out_floats at %p are given",
			args->no_floats, (const void *)args->floats, (void *)args->out_floats);
	rc = check_floats("topk_weights", args->topk_weights);
	rc = rc ? rc : check_floats("floats", args->floats);
	return rc ? rc : check_floats("out_floats", args->out_floats);
}

int arguments_y(const tern_moe *moe, const struct tern_combine *args, uint64_t nr_rows)
{
	int rc;

	if (nr_rows && !args->y)
		return fail(TERN_ERR_INVALID, "combine: y is NULL for %llu rows",
			(unsigned long long)nr_rows);
	rc = check_rows(moe, "y", args->y, args->y_stride);
	return rc ? rc : check_manner(moe, args);
}

int arguments_out(const tern_moe *moe, uint32_t nr_tokens, const void *out, size_t stride)
{
	if (nr_tokens && !out)
		return fail(TERN_ERR_INVALID, "combine: out is NULL for %u tokens", nr_tokens);
	return check_rows(moe, "out", out, stride);
}
