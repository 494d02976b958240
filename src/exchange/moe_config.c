/* SPDX-License-Identifier: Apache-2.0 */
/* What an exchange's configuration may be, and which of its settings the library chooses: pure
 * functions of it, of the numbers of ranks and nodes, and of the environment. */
#include "exchange/moe_config.h"

#include <limits.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "exchange/layout.h"
#include "exchange/row_work.h"

#define MAX_SLOTS 16
#define MAX_TOKENS (1u << 24)
#define MAX_HIDDEN (1u << 24)
#define MAX_ROW_BYTES (4 * MAX_HIDDEN) /* with all that goes with a row its bytes fit 32 bits */
#define MAX_CHUNK_BYTES (64u << 20)
#define MAX_CHUNKS 512

void tern_moe_config_init_sized(struct tern_moe_config *config, size_t size)
{
	static const struct tern_moe_config initial = {.mode = TERN_AUTO,
		.layout = TERN_CONTIGUOUS,
		.reduce = TERN_REDUCE_EXPERT,
		.weights = TERN_WEIGHTS_COMBINE,
		.x_dtype = TERN_BF16,
		.dispatch_dtype = TERN_BF16,
		.combine_dtype = TERN_BF16,
		.nr_slots = 1,
		.alignment = 1,
		.replica_ranks = 1,
		.wait_ms = 30000,
		.first_epoch = 1};

	struct_init(&kind_moe_config, config, size, &initial);
}

static bool is_float(enum tern_dtype dtype)
{
	return dtype == TERN_BF16 || dtype == TERN_FP16 || dtype == TERN_FP32;
}

/* An enum's, whose type may have no sign. */
static int check_choice(const char *name, int value, int least, int most)
{
	return check_range(name, value, least, most);
}

static int check_choices(const struct tern_moe_config *c)
{
	int rc = check_choice("mode", (int)c->mode, TERN_AUTO, TERN_HIGH_THROUGHPUT);

	rc = rc ? rc : check_choice("layout", (int)c->layout, TERN_PADDED, TERN_BY_SOURCE);
	rc = rc ? rc : check_choice("reduce", (int)c->reduce, TERN_REDUCE_HOME, TERN_REDUCE_EXPERT);
	rc = rc ? rc
		: check_choice("weights", (int)c->weights, TERN_WEIGHTS_COMBINE, TERN_WEIGHTS_PASS);
	rc = rc ? rc : check_choice("x_dtype", (int)c->x_dtype, TERN_BF16, TERN_BYTES);
	rc = rc ? rc
		: check_choice("dispatch_dtype", (int)c->dispatch_dtype, TERN_BF16, TERN_BYTES);
	rc = rc ? rc : check_choice("scale", (int)c->scale, TERN_SCALE_NONE, TERN_SCALE_UE8M0);
	rc = rc ? rc : check_choice("combine_dtype", (int)c->combine_dtype, TERN_BF16, TERN_FP32);
	rc = rc ? rc : check_range("device", c->device, TERN_DEVICE_CPU, TERN_DEVICE_CUDA);
	rc = rc ? rc
		: check_range(
			  "replicas", c->replicas, TERN_REPLICAS_AUTO, TERN_REPLICAS_LEAST_LOADED);
	if (rc)
		return rc;
	if (c->layout == TERN_BY_SOURCE &&
		(c->reduce != TERN_REDUCE_EXPERT || c->weights != TERN_WEIGHTS_PASS))
		return fail(TERN_ERR_INVALID, "layout TERN_BY_SOURCE has one y row for each token, "
					      "reduced by the caller: it needs "
					      "TERN_REDUCE_EXPERT and TERN_WEIGHTS_PASS");
	if (c->device && c->replicas == TERN_REPLICAS_LEAST_LOADED)
		return fail(TERN_ERR_UNSUPPORTED,
			"replicas is TERN_REPLICAS_LEAST_LOADED: kernels choose them in turn");
	if (c->gate_rows && c->gate_rows != 64 && c->gate_rows != 128)
		return fail(TERN_ERR_INVALID, "gate_rows is %u; 0, 64 and 128 are possible",
			c->gate_rows);
	if (c->gate_rows && (!c->device || c->layout == TERN_BY_SOURCE || c->elastic))
		return fail(TERN_ERR_INVALID,
			"gate_rows is %u with device %u, layout %d, elastic %u; gates are for "
			"devices, for rows by expert, and not elastic",
			c->gate_rows, c->device, (int)c->layout, c->elastic);
	if (c->caller_output && !c->device)
		return fail(TERN_ERR_INVALID, "caller_output is for devices");
	if (c->nr_sms && !c->device)
		return fail(TERN_ERR_INVALID, "nr_sms is %u; it is for devices", c->nr_sms);
	if (c->mode == TERN_LOW_LATENCY && c->capacity)
		return fail(TERN_ERR_INVALID,
			"capacity is %llu; low-latency mode takes only 0, the worst case",
			(unsigned long long)c->capacity);
	return 0;
}

static int check_sizes(const struct tern_moe_config *c, uint32_t nr_ranks)
{
	int rc = check_range("hidden", c->hidden, 1, MAX_HIDDEN);

	rc = rc ? rc : check_range("nr_experts", c->nr_experts, 1, UINT16_MAX * 16u);
	rc = rc ? rc : check_range("topk", c->topk, 1, TERN_MAX_TOPK);
	rc = rc ? rc : check_range("max_tokens", c->max_tokens, 1, MAX_TOKENS);
	rc = rc ? rc : check_range("nr_slots", c->nr_slots, 1, MAX_SLOTS);
	rc = rc ? rc : check_range("payload_bytes", c->payload_bytes, 0, MAX_ROW_BYTES);
	rc = rc ? rc : check_range("alignment", c->alignment, 1, 1u << 16);
	rc = rc ? rc : check_range("replica_ranks", c->replica_ranks, 1, nr_ranks);
	rc = rc ? rc : check_range("wait_ms", c->wait_ms, 0, INT_MAX);
	if (rc)
		return rc;
	if (c->capacity > UINT32_MAX)
		return fail(TERN_ERR_INVALID,
			"capacity is %llu; 0 (the worst case) to %u are possible",
			(unsigned long long)c->capacity, UINT32_MAX);
	if (c->topk > c->nr_experts)
		return fail(TERN_ERR_INVALID, "topk is %u of %u experts", c->topk, c->nr_experts);
	if (nr_ranks % c->replica_ranks)
		return fail(TERN_ERR_INVALID, "replica_ranks is %u, which does not divide %u ranks",
			c->replica_ranks, nr_ranks);
	return 0;
}

static int check_row(const char *what, enum tern_dtype dtype, uint64_t bytes)
{
	if (bytes && bytes % 16 == 0)
		return 0;
	return fail(TERN_ERR_INVALID,
		"%s rows of %llu bytes (dtype %d); a row has to be a multiple of 16 bytes", what,
		(unsigned long long)bytes, (int)dtype);
}

static int check_dtypes(const struct tern_moe_config *c)
{
	bool quantise = c->x_dtype != c->dispatch_dtype;
	int rc;

	if (quantise && !(is_float(c->x_dtype) && c->dispatch_dtype == TERN_FP8_E4M3))
		return fail(TERN_ERR_INVALID,
			"dispatch_dtype %d from x_dtype %d: only BF16, FP16 and FP32 are "
			"converted, to FP8_E4M3",
			(int)c->dispatch_dtype, (int)c->x_dtype);
	if ((c->dispatch_dtype == TERN_FP8_E4M3) != (c->scale != TERN_SCALE_NONE))
		return fail(TERN_ERR_INVALID,
			"scale %d with dispatch_dtype %d: FP8_E4M3 has scales, other dtypes have "
			"none",
			(int)c->scale, (int)c->dispatch_dtype);
	if ((c->dispatch_dtype == TERN_BYTES) != (c->payload_bytes != 0))
		return fail(TERN_ERR_INVALID,
			"payload_bytes is %u with dispatch_dtype %d: it is for TERN_BYTES",
			c->payload_bytes, (int)c->dispatch_dtype);
	rc = check_row("x", c->x_dtype,
		c->payload_bytes ? c->payload_bytes
				 : (uint64_t)c->hidden * dtype_bytes(c->x_dtype));
	if (!rc && quantise)
		rc = check_row("dispatched", c->dispatch_dtype, c->hidden);
	return rc ? rc
		  : check_row("y", c->combine_dtype,
			    (uint64_t)c->hidden * dtype_bytes(c->combine_dtype));
}

/* The caller's setting, else the environment's, else the usual one. */
static int choose_number(uint32_t *setting, const char *name, int least, int most, uint32_t usual)
{
	int number = (int)usual, rc;

	if (*setting)
		return 0;
	rc = environment_number(name, least, most, &number);
	*setting = (uint32_t)number;
	return rc;
}

/* Enough under way to keep a link busy while this rank and the gateway are off their processors;
 * less where there are many nodes. docs/notebook/chunks.md. */
static uint32_t usual_chunks(uint32_t nr_nodes)
{
	uint32_t nr = nr_nodes > 1 ? 512 / (nr_nodes - 1) : 16;

	return nr < 8 ? 8 : nr > 16 ? 16 : nr;
}

static uint32_t usual_chunk_bytes(uint32_t nr_nodes)
{
	return nr_nodes <= 9 ? 512 << 10 : nr_nodes <= 33 ? 256 << 10 : 128 << 10;
}

static int choose_chunks(struct tern_moe_config *c, uint32_t nr_nodes)
{
	int rc = choose_number(&c->nr_chunks, "TERN_CHUNKS", 2, MAX_CHUNKS, usual_chunks(nr_nodes));

	if (!rc)
		rc = choose_number(&c->chunk_bytes, "TERN_CHUNK_BYTES", 1, MAX_CHUNK_BYTES,
			usual_chunk_bytes(nr_nodes));
	rc = rc ? rc : check_range("nr_chunks", c->nr_chunks, 2, MAX_CHUNKS);
	return rc ? rc : check_range("chunk_bytes", c->chunk_bytes, 1, MAX_CHUNK_BYTES);
}

/* On a device there is nothing for them to do. */
static int choose_threads(struct tern_moe_config *c)
{
	int rc;

	if (c->device && (c->nr_threads > 1 || c->parallel_for))
		return fail(TERN_ERR_INVALID,
			"nr_threads is %u%s: threads are for exchanges on "
			"CPUs",
			c->nr_threads, c->parallel_for ? ", with a parallel_for" : "");
	if (c->device)
		return 0;
	rc = choose_number(&c->nr_threads, "TERN_THREADS", 1, MAX_THREADS, 1);
	return rc ? rc : check_range("nr_threads", c->nr_threads, 1, MAX_THREADS);
}

/* In high throughput all compute places from the counts of all. */
static int check_masks(const struct tern_moe_config *c)
{
	if (!c->masks ||
		(c->mode == TERN_LOW_LATENCY && !c->device && !c->elastic && c->replica_ranks == 1))
		return 0;
	return fail(TERN_ERR_UNSUPPORTED,
		"masks: mode is %d, device %u, elastic %u and replica_ranks %u; they take low "
		"latency on the CPU, not elastic, and 1",
		(int)c->mode, c->device, c->elastic, c->replica_ranks);
}

/* Where kernels take them along to who sums. */
static int check_late_weights(const struct tern_moe_config *c)
{
	if (!c->late_weights ||
		(c->device && c->mode == TERN_LOW_LATENCY && c->reduce == TERN_REDUCE_EXPERT &&
			c->layout != TERN_BY_SOURCE && c->combine_dtype == TERN_BF16 &&
			!c->elastic && !c->gate_rows && c->replica_ranks == 1))
		return 0;
	return fail(TERN_ERR_UNSUPPORTED,
		"late_weights: device is %u, mode %d, reduce %d, layout %d, combine_dtype %d, "
		"elastic %u, gate_rows %u and replica_ranks %u; they take a device, low latency, "
		"TERN_REDUCE_EXPERT, rows by expert, TERN_BF16, 0, 0 and 1",
		c->device, (int)c->mode, (int)c->reduce, (int)c->layout, (int)c->combine_dtype,
		c->elastic, c->gate_rows, c->replica_ranks);
}

/* What keeps rows under way is warps that wait for them, so low latency lives by its SMs; high
 * throughput's copy engines do with half of them. Measured on 2 and 4 x H100 with 8 to 100 of 132
 * SMs: docs/notebook/gpu-low-latency.md. */
static uint32_t most_low_tokens_by_sms(const struct tern_moe_config *c, uint32_t nr_ranks)
{
	uint32_t sms = c->slots_in_turn ? 132 : 132 / c->nr_slots, most;

	if (c->nr_sms && c->nr_sms < sms)
		sms = c->nr_sms;
	if (sms >= 120)
		return MAX_TOKENS;
	most = sms >= 96 ? 2048 : sms >= 64 ? 1024 : sms >= 40 ? 512 : 256;
	return nr_ranks <= 2 ? most : most / 2;
}

/* Up to so many tokens low latency's pair takes less, or hardly more where a few tokens take a
 * quarter of the time: measured on 2 x H200 and 4 x H100 (docs/benchmarks.md). Gates are where all
 * plans have room; between nodes nothing was measured. */
static uint32_t most_low_tokens(
	const struct tern_moe_config *c, uint32_t nr_ranks, uint32_t nr_nodes)
{
	uint32_t most, by_sms;

	if (!c->device)
		return 256;
	if (c->gate_rows || nr_nodes > 1)
		most = nr_ranks <= 2 ? 2048 : 1024;
	else
		most = nr_ranks <= 2 ? 4096 : nr_ranks <= 4 ? 2048 : 1024;
	by_sms = most_low_tokens_by_sms(c, nr_ranks);
	return by_sms < most ? by_sms : most;
}

/* From what is the same on all ranks. */
static enum tern_mode choose_mode(
	const struct tern_moe_config *c, uint32_t nr_ranks, uint32_t nr_nodes)
{
	if (c->mode != TERN_AUTO)
		return c->mode;
	if (c->capacity)
		return TERN_HIGH_THROUGHPUT;
	return c->caller_output || c->masks ||
			       c->max_tokens <= most_low_tokens(c, nr_ranks, nr_nodes)
		       ? TERN_LOW_LATENCY
		       : TERN_HIGH_THROUGHPUT;
}

int moe_config_read(
	struct tern_moe_config *config, const struct tern_moe_config *theirs, uint32_t nr_ranks)
{
	int rc;

	tern_moe_config_init(config);
	rc = struct_read(&kind_moe_config, theirs, config);
	rc = rc ? rc : check_choices(config);
	rc = rc ? rc : check_sizes(config, nr_ranks);
	return rc ? rc : check_dtypes(config);
}

int moe_config_choose(struct tern_moe_config *config, uint32_t nr_ranks, uint32_t nr_nodes)
{
	int rc;

	config->mode = choose_mode(config, nr_ranks, nr_nodes);
	rc = choose_chunks(config, nr_nodes);
	rc = rc ? rc : choose_threads(config);
	rc = rc ? rc : check_masks(config);
	return rc ? rc : check_late_weights(config);
}
