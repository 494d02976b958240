/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending an exchange: settings checked, compared between the ranks, and turned into
 * windows and slots. */
#include "exchange/state.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/host/device.h"
#include "exchange/cpu/dispatch_send.h"
#include "base/environment.h"
#include "base/error.h"
#include "path/path.h"
#include "base/struct_size.h"
#include "exchange/cpu/peers.h"

#define MAX_SLOTS 16
#define MAX_TOKENS (1u << 24)
#define MAX_HIDDEN (1u << 24)
#define MAX_ROW_BYTES (4 * MAX_HIDDEN) /* with all that goes with a row its bytes fit 32 bits */
#define MAX_CHUNK_BYTES (64u << 20)
#define MAX_CHUNKS 512
#define MAX_WINDOW_BYTES (1ull << 46)

void tern_moe_config_init_sized(struct tern_moe_config *config, size_t size)
{
	static const struct tern_moe_config initial = {.mode = TERN_LOW_LATENCY,
		.layout = TERN_CONTIGUOUS,
		.reduce = TERN_REDUCE_HOME,
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
	int rc = check_choice("mode", (int)c->mode, TERN_LOW_LATENCY, TERN_HIGH_THROUGHPUT);

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
	if (rc)
		return rc;
	if (c->layout == TERN_BY_SOURCE &&
		(c->reduce != TERN_REDUCE_EXPERT || c->weights != TERN_WEIGHTS_PASS))
		return fail(TERN_ERR_INVALID, "layout TERN_BY_SOURCE has one y row for each token, "
					      "reduced by the caller: it needs "
					      "TERN_REDUCE_EXPERT and TERN_WEIGHTS_PASS");
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
	double results = (double)l->combine_rows * l->combine_row_bytes;
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

/* Everything but wait_ms. */
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
		{"caller_output", c->caller_output}};

	return group_agree_settings(
		moe->group, settings, (int)(sizeof(settings) / sizeof(settings[0])));
}

static void *take(tern_moe *moe, uint64_t nr, size_t bytes)
{
	moe->private_bytes += nr * bytes;
	return calloc(nr ? nr : 1, bytes);
}

static bool slot_alloc(tern_moe *moe, uint32_t index)
{
	struct slot *s = &moe->slots[index];
	uint32_t nr_lists = moe->nr_ranks > moe->nr_local ? moe->nr_ranks : moe->nr_local;
	uint64_t routes = (uint64_t)moe->config.max_tokens * moe->config.topk;

	s->epoch = moe->config.first_epoch;
	s->physical = take(moe, routes, sizeof(*s->physical));
	s->weights = take(moe, routes, sizeof(*s->weights));
	s->rows_to = take(moe, moe->nr_ranks, sizeof(*s->rows_to));
	s->routes_to = take(moe, moe->placement.nr_physical, sizeof(*s->routes_to));
	s->rows_home = take(moe, moe->nr_ranks, sizeof(*s->rows_home));
	s->home_start = take(
		moe, (uint64_t)moe->nr_ranks * moe->config.replica_ranks, sizeof(*s->home_start));
	s->home_next = take(
		moe, (uint64_t)moe->nr_ranks * moe->config.replica_ranks, sizeof(*s->home_next));
	s->row_of = take(moe, moe->nr_ranks, sizeof(*s->row_of));
	s->chunks_to = take(moe, moe->topology.nr_nodes, sizeof(*s->chunks_to));
	s->sent = take(moe, moe->nr_ranks, sizeof(*s->sent));
	s->place = take(moe, moe->placement.nr_physical + moe->nr_ranks, sizeof(*s->place));
	s->rows_from = take(moe, moe->nr_ranks, sizeof(*s->rows_from));
	s->counts = take(moe, nr_lists, sizeof(*s->counts));
	s->offsets = take(moe, nr_lists, sizeof(*s->offsets));
	if (moe->config.mode == TERN_HIGH_THROUGHPUT)
		s->output = own(moe, layout_output(&moe->layout, index));
	else
		s->output = private_map(moe->layout.output.bytes);
	return s->physical && s->weights && s->rows_to && s->routes_to && s->rows_home &&
	       s->home_start && s->place && s->home_next && s->row_of && s->chunks_to && s->sent &&
	       s->rows_from && s->counts && s->offsets && s->output;
}

static void slot_free(tern_moe *moe, struct slot *s)
{
	free(s->physical);
	free(s->weights);
	free(s->rows_to);
	free(s->routes_to);
	free(s->rows_home);
	free(s->home_start);
	free(s->home_next);
	free(s->row_of);
	free(s->chunks_to);
	free(s->sent);
	free(s->place);
	free(s->rows_from);
	free(s->counts);
	free(s->offsets);
	if (moe->config.mode == TERN_LOW_LATENCY)
		private_unmap(s->output, moe->layout.output.bytes);
}

/* What a half writes is read next by another rank, or by the experts: from a cache, if all ranks'
 * rows fit there beside what else is in use. docs/notebook/cpu-exchange.md#streaming. */
static void choose_streaming(tern_moe *moe)
{
	long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);

	moe->stream_bytes = (cache > 0 ? (uint64_t)cache : 32u << 20) / (4 * moe->nr_ranks);
}

/* With a processor for every rank of this machine, spinning is the fastest wait; without, it keeps
 * those from running that one waits for, and yielding to them is faster than a sleep and a wake-up.
 * docs/notebook/cpu-exchange.md#patience. */
static void choose_patience(tern_moe *moe)
{
	cpu_set_t cpus;
	int here = 0, nr_cpus = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : CPU_COUNT(&cpus);

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		here += moe->group->peers[r].path != TERN_PATH_NONE;
	moe->patience.spin_rounds = here <= nr_cpus ? 200 : 0;
	moe->patience.yield_rounds = 200;
}

static bool outgoing_alloc(tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;
	uint64_t tokens = c->mode == TERN_LOW_LATENCY ? c->max_tokens : 0;
	uint32_t most_rows = c->topk < moe->nr_ranks ? c->topk : moe->nr_ranks;
	struct outgoing *out = &moe->outgoing;

	out->plans = take(moe, tokens, sizeof(*out->plans));
	out->sources = take(moe, tokens, sizeof(*out->sources));
	out->rows = take(moe, tokens * most_rows, sizeof(*out->rows));
	return out->plans && out->sources && out->rows;
}

static int exchange_alloc(tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;
	bool ok;

	moe->slots = take(moe, c->nr_slots, sizeof(*moe->slots));
	moe->scratch = take(moe, 1,
		align_up(moe->layout.payload_bytes, 16) + align_up(moe->layout.scales_bytes, 16) +
			moe->layout.combine_row_bytes);
	moe->seen = take(moe, c->nr_experts, sizeof(*moe->seen));
	moe->cursor = take(moe, moe->layout.max_local, sizeof(*moe->cursor));
	moe->all_counts = take(
		moe, c->mode == TERN_HIGH_THROUGHPUT ? moe->nr_ranks : 0, moe->layout.counts_bytes);
	moe->home_next =
		take(moe, (uint64_t)moe->nr_ranks * c->replica_ranks, sizeof(*moe->home_next));
	moe->totals = take(
		moe, (uint64_t)moe->placement.nr_physical + moe->nr_ranks, sizeof(*moe->totals));
	moe->expert_load = take(moe, c->nr_experts, sizeof(*moe->expert_load));
	ok = outgoing_alloc(moe) && moe->slots && moe->scratch && moe->seen && moe->cursor &&
	     moe->home_next && moe->all_counts && moe->totals && moe->expert_load;
	for (uint32_t i = 0; i < c->nr_slots && ok; i++)
		ok = slot_alloc(moe, i);
	return ok ? 0
		  : fail(TERN_ERR_NOMEM, "no memory for %u slots of %u tokens", c->nr_slots,
			    c->max_tokens);
}

/* A fresh window's zeros would be taken for arrivals in epoch 0, so the words start at the epoch
 * before the first. Peers write words only when all ranks have come out of tern_moe_create. */
static void words_init(tern_moe *moe)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		for (uint32_t kind = 0; kind < NR_WORD_KINDS; kind++)
			for (uint32_t r = 0; r < moe->nr_ranks; r++)
				arrival_publish((struct arrival *)own(
							moe, layout_word(&moe->layout, slot,
								     (enum word_kind)kind, r)),
					word_make(moe->config.first_epoch - 1, 0));
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

static int plan_layout(tern_moe *moe)
{
	struct channel_shape channels;
	int rc = find_nodes(moe);

	rc = rc ? rc : choose_chunks(&moe->config, moe->topology.nr_nodes);
	if (rc)
		return rc;
	layout_init(&moe->layout, &moe->config, moe->nr_ranks, moe->placement.nr_physical,
		moe->placement.max_local, path_channel_shape(moe, &channels) ? &channels : NULL);
	return check_layout(&moe->layout);
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
	rc = rc ? rc
		: placement_init(
			  &moe->placement, &config->placement, config->nr_experts, moe->nr_ranks);
	if (rc)
		return rc;
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
	tern_group *group = moe->group;
	int rc = exchange_plan(moe, config);

	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc : agree_config(moe);
	if (rc || moe->config.device)
		return rc ? rc : device_open(moe);
	moe->windows = calloc(moe->nr_ranks, sizeof(*moe->windows));
	rc = moe->windows ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u windows", moe->nr_ranks);
	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc
		: windows_create(group, moe->layout.window_bytes, ++group->round, moe->windows);
	if (rc)
		return rc;
	choose_patience(moe);
	words_init(moe);
	choose_streaming(moe);
	rc = paths_open(moe);
	if (rc)
		return rc;
	return group_agree_status(group, exchange_alloc(moe), "tern_moe_create");
}

static void exchange_free(tern_moe *moe)
{
	for (uint32_t i = 0; moe->slots && i < moe->config.nr_slots; i++)
		slot_free(moe, &moe->slots[i]);
	paths_close(moe);
	device_close(moe);
	if (moe->windows)
		windows_destroy(moe->group, moe->windows);
	placement_free(&moe->placement);
	topology_free(&moe->topology);
	free(moe->windows);
	free(moe->slots);
	free(moe->outgoing.plans);
	free(moe->outgoing.sources);
	free(moe->outgoing.rows);
	free(moe->scratch);
	free(moe->seen);
	free(moe->cursor);
	free(moe->home_next);
	free(moe->all_counts);
	free(moe->totals);
	free(moe->expert_load);
	free(moe);
}

int tern_moe_create(tern_group *group, const struct tern_moe_config *config, tern_moe **out)
{
	tern_moe *moe;
	int rc;

	if (!group || !out)
		return fail(TERN_ERR_INVALID, "group or moe is NULL");
	moe = calloc(1, sizeof(*moe));
	if (!moe)
		return fail(TERN_ERR_NOMEM, "no memory for an exchange");
	moe->group = group;
	moe->patience.scheduler = group->scheduler;
	moe->rank = (uint32_t)group->rank;
	moe->nr_ranks = (uint32_t)group->nr_ranks;
	moe->report.peer = -1;
	rc = exchange_open(moe, config);
	if (rc) {
		exchange_free(moe);
		return rc;
	}
	group->nr_exchanges++;
	*out = moe;
	return 0;
}

int tern_moe_destroy(tern_moe *moe)
{
	if (!moe)
		return 0;
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
	if (moe->device && device_leave(moe))
		return 0;
	if (!moe->device)
		path_settle(moe);
	moe->failed = TERN_ERR_STATE;
	snprintf(moe->failed_text, sizeof(moe->failed_text),
		"rank %u left this exchange: it called tern_moe_leave", moe->rank);
	if (moe->device)
		device_publish_leave(moe, leave_status_make(0, -1));
	else
		path_leave(moe, leave_status_make(0, -1)); /* peers that still wait for this rank
							      learn of it */
	return 0;
}

int tern_moe_set_wait(tern_moe *moe, int wait_ms)
{
	int rc;

	if (!moe || wait_ms < 0)
		return fail(TERN_ERR_INVALID, "moe is NULL or wait_ms is negative (%d)", wait_ms);
	if (moe->device && !wait_ms)
		return fail(
			TERN_ERR_INVALID, "wait_ms is 0; kernels cannot poll once and go on later");
	rc = exchange_look(moe);
	if (rc)
		return rc;
	moe->wait_ms = wait_ms;
	path_bear_silence(moe);
	return 0;
}

/* Whoever holds a const exchange may be told, too: none is made const. */
int exchange_look(const tern_moe *moe)
{
	return moe->device && !moe->failed ? device_look((tern_moe *)(uintptr_t)moe) : 0;
}

int slot_check(tern_moe *moe, uint32_t slot, const char *call)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "%s: moe is NULL", call);
	if (moe->failed)
		return fail(moe->failed, "%s", moe->failed_text);
	if (slot >= moe->config.nr_slots)
		return fail(
			TERN_ERR_INVALID, "%s: slot is %u of %u", call, slot, moe->config.nr_slots);
	return 0;
}

int slot_wrong_state(const tern_moe *moe, uint32_t slot, const char *call)
{
	static const char *const next[] = {"dispatch_send",
		"dispatch_send again (it waits for counts)",
		"dispatch_send again (it waits for room)",
		"dispatch_send again (it waits for room)", "dispatch_recv",
		"combine_send or release", "combine_send again (it waits for room)", "combine_recv",
		"dispatch_send"};

	return fail(TERN_ERR_STATE, "%s on slot %u, whose next call is %s", call, slot,
		next[moe->slots[slot].state]);
}
