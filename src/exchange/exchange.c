/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending an exchange: settings checked, compared between the ranks, and turned into a
 * layout. */
#include "exchange/state.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "engine/engine.h"
#include "exchange/cpu/cpu.h"
#include "exchange/elastic.h"
#include "exchange/ops.h"
#include "exchange/row_work.h"
#include "gpu/host/device.h"

#define MAX_SLOTS 16
#define MAX_TOKENS (1u << 24)
#define MAX_HIDDEN (1u << 24)
#define MAX_ROW_BYTES (4 * MAX_HIDDEN) /* with all that goes with a row its bytes fit 32 bits */
#define MAX_CHUNK_BYTES (64u << 20)
#define MAX_CHUNKS 512
#define MAX_WINDOW_BYTES (1ull << 46)

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

/* What an exchange takes, in floating point, which no product of settings exceeds: window_bytes is
 * to be believed where this is not too much. */
static double space_needed(const struct layout *l)
{
	double row = (double)l->payload_bytes + l->scales_bytes + sizeof(struct tern_row) +
		     8.0 * l->topk;
	double regions = (double)l->nr_ranks * (double)l->region_bytes;
	double results = (double)l->combine_rows * l->result_bytes;
	double chunks = (double)l->nr_channels * l->nr_chunks * l->chunk_bytes;

	return l->nr_slots * ((double)l->positions * row + regions + results) + chunks;
}

static int check_layout(const struct layout *l)
{
	double bytes = space_needed(l), most = (double)MAX_WINDOW_BYTES;

	if (l->positions > UINT32_MAX)
		return fail(TERN_ERR_INVALID,
			"%llu row positions in the received x; at most %u. Set a capacity",
			(unsigned long long)l->positions, UINT32_MAX);
	if (bytes <= most && l->window_bytes > MAX_WINDOW_BYTES)
		bytes = (double)l->window_bytes;
	if (bytes > most)
		return fail(TERN_ERR_INVALID,
			"these sizes need %.0f GB of address space; at most %.0f", bytes / 1e9,
			most / 1e9);
	return 0;
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

/* Everything but wait_ms and threads. */
static int agree_config(tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;
	const struct setting settings[] = {{"mode", c->mode}, {"layout", c->layout},
		{"reduce", c->reduce}, {"weights", c->weights}, {"hidden", c->hidden},
		{"nr_experts", c->nr_experts}, {"topk", c->topk}, {"max_tokens", c->max_tokens},
		{"x_dtype", c->x_dtype}, {"dispatch_dtype", c->dispatch_dtype}, {"scale", c->scale},
		{"payload_bytes", c->payload_bytes}, {"combine_dtype", c->combine_dtype},
		{"nr_slots", c->nr_slots}, {"alignment", c->alignment}, {"capacity", c->capacity},
		{"nr_physical", moe->placement.nr_physical},
		{"the placement tables (hashes)", placement_hash(&moe->placement)},
		{"replica_ranks", c->replica_ranks}, {"first_epoch", c->first_epoch},
		{"nr_chunks", c->nr_chunks}, {"chunk_bytes", c->chunk_bytes}, {"device", c->device},
		{"caller_output", c->caller_output}, {"elastic", c->elastic != 0},
		{"combine_floats", c->combine_floats != 0}, {"masks", c->masks != 0},
		{"replicas", c->replicas}, {"gate_rows", c->gate_rows},
		{"late_weights", c->late_weights != 0}, {"slots_in_turn", c->slots_in_turn != 0}};

	const int nr = (int)(sizeof(settings) / sizeof(settings[0]));
	int rc = group_agree_settings(moe->group, settings, nr);

	if (!rc)
		elastic_offer_keep(moe, settings, nr);
	return rc;
}

/* A forced engine maps nothing: each rank is alone on its node then. */
static int find_nodes(tern_moe *moe)
{
	const struct tern_group *group = moe->group;
	int *node_of = calloc(moe->nr_ranks, sizeof(*node_of));
	int rc;

	for (uint32_t r = 0; node_of && r < moe->nr_ranks; r++)
		node_of[r] = group->engine_forced ? (int)r : group->peers[r].node;
	rc = node_of ? topology_init(&moe->topology, node_of, moe->nr_ranks)
		     : fail(TERN_ERR_NOMEM, "no memory for nodes");
	free(node_of);
	return rc;
}

/* Where rows travel between nodes, all ranks have room for them. */
static int plan_layout(tern_moe *moe)
{
	struct channel_shape channels;
	int rc = choose_chunks(&moe->config, moe->topology.nr_nodes);

	rc = rc ? rc : choose_threads(&moe->config);
	if (rc)
		return rc;
	channels = (struct channel_shape){
		.nr_channels = moe->config.elastic ? moe->nr_ranks
						   : topology_most_channels(&moe->topology),
		.nr_chunks = moe->config.nr_chunks,
		.chunk_bytes = moe->config.chunk_bytes};
	layout_init(&moe->layout, &moe->config, moe->nr_ranks, moe->placement.nr_physical,
		moe->placement.max_local, moe->group->engine ? &channels : NULL);
	return check_layout(&moe->layout);
}

/* What a replay takes: results that do not depend on which replica computes them. */
static int check_elastic(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;

	if (!c->elastic && moe->group->view)
		return fail(TERN_ERR_UNSUPPORTED,
			"an exchange that is not elastic, and members have gone (view %llu)",
			(unsigned long long)moe->group->view);
	if (!c->elastic)
		return 0;
	if (!moe->group->members)
		return fail(
			TERN_ERR_INVALID, "elastic: the group is not (tern_group_config.elastic)");
	if (c->device && (moe->group->view || moe->group->rendezvous.get))
		return fail(TERN_ERR_UNSUPPORTED,
			"elastic: on devices an exchange is made before any member has gone (view "
			"%llu), and nobody joins later%s",
			(unsigned long long)moe->group->view,
			moe->group->rendezvous.get ? "; this group has a rendezvous" : "");
	if (c->replica_ranks != 1)
		return fail(TERN_ERR_UNSUPPORTED,
			"elastic: replica_ranks is %u; ranks that compute one token together "
			"cannot "
			"go on when one of them has gone, so they are not told apart: it takes 1",
			c->replica_ranks);
	if (c->reduce != TERN_REDUCE_HOME)
		return fail(TERN_ERR_INVALID,
			"elastic: reduce is %d, whose sums depend on where replicas are; it needs "
			"TERN_REDUCE_HOME",
			(int)c->reduce);
	return 0;
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

/* Up to so many tokens low latency's pair takes less, or hardly more where a few tokens take a
 * quarter of the time: measured on 2 x H200 and 4 x H100 (docs/benchmarks.md). Gates are where all
 * plans have room; between nodes nothing was measured. */
static uint32_t most_low_tokens(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;

	if (!c->device)
		return 256;
	if (c->gate_rows || moe->topology.nr_nodes > 1)
		return moe->nr_ranks <= 2 ? 2048 : 1024;
	return moe->nr_ranks <= 2 ? 4096 : moe->nr_ranks <= 4 ? 2048 : 1024;
}

/* From what is the same on all ranks. */
static enum tern_mode choose_mode(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;

	if (c->mode != TERN_AUTO)
		return c->mode;
	if (c->capacity)
		return TERN_HIGH_THROUGHPUT;
	return c->caller_output || c->masks || c->max_tokens <= most_low_tokens(moe)
		       ? TERN_LOW_LATENCY
		       : TERN_HIGH_THROUGHPUT;
}

/* Local part: nothing here depends on other ranks. */
static int exchange_plan(tern_moe *moe, const struct tern_moe_config *theirs)
{
	const struct tern_moe_config *config = &moe->config;
	int rc;

	tern_moe_config_init(&moe->config);
	rc = struct_read(&kind_moe_config, theirs, &moe->config);
	rc = rc ? rc : check_choices(config);
	rc = rc ? rc : check_sizes(config, moe->nr_ranks);
	rc = rc ? rc : check_dtypes(config);
	rc = rc ? rc : find_nodes(moe);
	if (rc)
		return rc;
	moe->config.mode = choose_mode(moe);
	rc = check_elastic(moe);
	rc = rc ? rc : check_masks(config);
	rc = rc ? rc : check_late_weights(config);
	rc = rc ? rc : elastic_offer_open(moe);
	rc = rc ? rc
		: placement_init(
			  &moe->placement, &config->placement, config->nr_experts, moe->nr_ranks);
	if (rc)
		return rc;
	if (config->elastic)
		elastic_begin(moe);
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (moe->group->peers[r].path == TERN_PATH_NONE)
			return fail(TERN_ERR_UNSUPPORTED,
				"no path from rank %u to rank %u, on nodes %d and %d: %s",
				moe->rank, r, moe->group->peers[moe->rank].node,
				moe->group->peers[r].node, moe->group->no_engine);
	moe->config.placement = (struct tern_placement){0}; /* the caller's tables are not kept */
	moe->wait_ms = config->wait_ms;
	moe->nr_local = moe->placement.nr_local[moe->rank];
	return plan_layout(moe);
}

static int exchange_open(tern_moe *moe, const struct tern_moe_config *config)
{
	int rc = exchange_plan(moe, config);

	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : agree_config(moe);
	if (rc)
		return rc;
	moe->ops = moe->config.device ? &exchange_gpu_ops : &exchange_cpu_ops;
	return moe->ops->open(moe);
}

static void exchange_free(tern_moe *moe)
{
	elastic_offer_drop(moe);
	if (moe->ops)
		moe->ops->close(moe);
	placement_free(&moe->placement);
	topology_free(&moe->topology);
	free(moe->slots);
	free(moe->alive);
	free(moe->told);
	free(moe);
}

static tern_moe *exchange_alloc(tern_group *group)
{
	tern_moe *moe = calloc(1, sizeof(*moe));

	if (moe)
		moe->alive = malloc((size_t)group->nr_ranks);
	if (!moe || !moe->alive) {
		free(moe);
		fail(TERN_ERR_NOMEM, "no memory for an exchange");
		return NULL;
	}
	memset(moe->alive, 1, (size_t)group->nr_ranks);
	moe->group = group;
	moe->wait_policy.scheduler = group->scheduler;
	moe->rank = (uint32_t)group->rank;
	moe->nr_ranks = (uint32_t)group->nr_ranks;
	moe->report.peer = -1;
	return moe;
}

static int exchange_make(tern_group *group, const struct tern_moe_config *config, tern_moe **out)
{
	tern_moe *moe = exchange_alloc(group);
	int rc = moe ? exchange_open(moe, config) : TERN_ERR_NOMEM;

	if (!rc) {
		elastic_offer_make(moe);
		*out = moe;
	} else if (moe) {
		exchange_free(moe);
	}
	return rc;
}

/* TERN_ERR_MEMBERS comes to all ranks alike, where some have waited for one that died. */
int tern_moe_create(tern_group *group, const struct tern_moe_config *config, tern_moe **out)
{
	int rc;

	if (!group || !out)
		return fail(TERN_ERR_INVALID, "group or moe is NULL");
	rc = members_gather_here(group) ? members_meet(group) : 0;
	if (rc)
		return rc;
	do
		rc = exchange_make(group, config, out);
	while (rc == TERN_ERR_MEMBERS);
	members_made(group);
	group->nr_exchanges += !rc;
	return rc;
}

int tern_moe_destroy(tern_moe *moe)
{
	if (!moe)
		return 0;
	if (moe->nr_layers)
		return fail(TERN_ERR_STATE,
			"tern_moe_destroy: %u layers of the exchange live: tern_layer_destroy "
			"comes first",
			moe->nr_layers);
	tern_moe_leave(moe);
	moe->group->nr_exchanges--;
	exchange_free(moe);
	return 0;
}

int tern_moe_leave(tern_moe *moe)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "moe is NULL");
	if (moe->failed)
		return 0;
	if (moe->ops->settle(moe))
		return 0;
	moe->failed = TERN_ERR_STATE;
	snprintf(moe->failed_text, sizeof(moe->failed_text),
		"rank %u left this exchange: it called tern_moe_leave", moe->rank);
	moe->ops->leave(moe, leave_status_make(0, -1));
	return 0;
}

int tern_moe_set_wait(tern_moe *moe, int wait_ms)
{
	int rc;

	if (!moe || wait_ms < 0)
		return fail(TERN_ERR_INVALID, "moe is NULL or wait_ms is negative (%d)", wait_ms);
	rc = moe->ops->check_wait(wait_ms);
	rc = rc ? rc : exchange_look(moe);
	if (rc)
		return rc;
	moe->wait_ms = wait_ms;
	if (moe->group->engine) /* who is silent for that long is not yet dead */
		engine_bear_silence(moe->group->engine, wait_ms);
	return 0;
}

int tern_moe_status(tern_moe *moe)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "moe is NULL");
	if (moe->failed)
		return fail(moe->failed, "%s", moe->failed_text);
	return moe->ops->status(moe);
}
