/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending an exchange: settings compared between the ranks, and turned into a layout. */
#include "exchange/moe_config.h"
#include "exchange/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"
#include "exchange/cpu/cpu.h"
#include "exchange/elastic.h"
#include "exchange/ops.h"
#include "gpu/host/device.h"

#define MAX_WINDOW_BYTES (1ull << 46)

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
		{"late_weights", c->late_weights != 0}, {"slots_in_turn", c->slots_in_turn != 0},
		{"nr_sms", c->nr_sms}};

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
	const struct channel_shape channels = {
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

/* Local part: nothing here depends on other ranks. */
static int exchange_plan(tern_moe *moe, const struct tern_moe_config *theirs)
{
	const struct tern_moe_config *config = &moe->config;
	int rc;

	rc = moe_config_read(&moe->config, theirs, moe->nr_ranks);
	rc = rc ? rc : find_nodes(moe);
	rc = rc ? rc : moe_config_choose(&moe->config, moe->nr_ranks, moe->topology.nr_nodes);
	rc = rc ? rc : check_elastic(moe);
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
