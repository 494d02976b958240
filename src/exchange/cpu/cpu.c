/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending an exchange whose halves run on the CPU: windows, paths and slots. */
#include "exchange/cpu/cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/private_memory.h"
#include "exchange/elastic.h"
#include "exchange/cpu/halves.h"
#include "exchange/cpu/layer.h"
#include "exchange/cpu/plans.h"
#include "exchange/plan.h"
#include "exchange/row_work.h"
#include "exchange/rows.h"
#include "path/path.h"

/* A death is noticed that soon by a rank that waits. */
#define ELASTIC_SLICE_NS 1000000

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

	s->epoch = elastic_epoch(moe->config.first_epoch, 0, moe->view);
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
		s->output = private_map(moe->layout.output.bytes, PRIVATE_DENSE);
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
static void choose_wait_policy(tern_moe *moe)
{
	cpu_set_t cpus;
	int here = 0, nr_cpus = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : CPU_COUNT(&cpus);

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		here += moe->group->peers[r].path != TERN_PATH_NONE;
	moe->wait_policy.spin_rounds = here <= nr_cpus ? 200 : 0;
	moe->wait_policy.yield_rounds = 200;
	moe->wait_policy.longest_slice_ns = moe->config.elastic ? ELASTIC_SLICE_NS : 0;
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
	const struct layout *l = &moe->layout;
	bool ok;

	moe->slots = take(moe, c->nr_slots, sizeof(*moe->slots));
	moe->seen = take(moe, c->nr_experts, sizeof(*moe->seen));
	moe->rank_load = take(moe, moe->nr_ranks, sizeof(*moe->rank_load));
	moe->cursor = take(moe, moe->layout.max_local, sizeof(*moe->cursor));
	moe->all_counts = take(
		moe, c->mode == TERN_HIGH_THROUGHPUT ? moe->nr_ranks : 0, moe->layout.counts_bytes);
	moe->home_next =
		take(moe, (uint64_t)moe->nr_ranks * c->replica_ranks, sizeof(*moe->home_next));
	moe->totals = take(
		moe, (uint64_t)moe->placement.nr_physical + moe->nr_ranks, sizeof(*moe->totals));
	moe->expert_load = take(moe, c->nr_experts, sizeof(*moe->expert_load));
	ok = outgoing_alloc(moe) && moe->slots && moe->seen && moe->rank_load && moe->cursor &&
	     moe->home_next && moe->all_counts && moe->totals && moe->expert_load;
	for (uint32_t i = 0; i < c->nr_slots && ok; i++)
		ok = slot_alloc(moe, i);
	if (!ok)
		return fail(TERN_ERR_NOMEM, "no memory for %u slots of %u tokens", c->nr_slots,
			c->max_tokens);
	return row_work_open(&moe->config,
		l->payload_bytes > l->combine_row_bytes ? l->payload_bytes : l->combine_row_bytes,
		l->scales_bytes, &moe->private_bytes, &moe->work);
}

/* A fresh window's zeros would be taken for arrivals in epoch 0, so the words start at the epoch
 * before the first. Peers write words only when all ranks have come out of tern_moe_create. */
static void words_init(tern_moe *moe)
{
	uint32_t first = elastic_epoch(moe->config.first_epoch, 0, moe->view);

	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		for (uint32_t kind = 0; kind < NR_WORD_KINDS; kind++)
			for (uint32_t r = 0; r < moe->nr_ranks; r++)
				arrival_publish((struct arrival *)own(
							moe, layout_word(&moe->layout, slot,
								     (enum word_kind)kind, r)),
					word_make(first - 1, 0));
}

static int cpu_open(tern_moe *moe)
{
	tern_group *group = moe->group;
	int rc;

	moe->windows = calloc(moe->nr_ranks, sizeof(*moe->windows));
	rc = moe->windows ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u windows", moe->nr_ranks);
	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc
		: windows_create(group, moe->layout.window_bytes, ++group->round, moe->windows);
	if (rc)
		return rc;
	choose_wait_policy(moe);
	words_init(moe);
	choose_streaming(moe);
	rc = paths_open(moe);
	if (rc)
		return rc;
	return group_agree_status(group, exchange_alloc(moe), "tern_moe_create");
}

static void cpu_close(tern_moe *moe)
{
	for (uint32_t i = 0; moe->slots && i < moe->config.nr_slots; i++)
		slot_free(moe, &moe->slots[i]);
	plans_close(moe);
	paths_close(moe);
	if (moe->windows)
		windows_destroy(moe->group, moe->windows);
	free(moe->windows);
	free(moe->outgoing.plans);
	free(moe->outgoing.sources);
	free(moe->outgoing.rows);
	row_work_close(moe->work);
	free(moe->seen);
	free(moe->rank_load);
	free(moe->cursor);
	free(moe->home_next);
	free(moe->all_counts);
	free(moe->totals);
	free(moe->expert_load);
}

/* Nothing goes on behind the caller's back. */
static int cpu_look(tern_moe *moe)
{
	(void)moe;
	return 0;
}

static int cpu_settle(tern_moe *moe)
{
	path_settle(moe);
	return 0;
}

static int cpu_check_wait(int wait_ms)
{
	(void)wait_ms;
	return 0;
}

static void cpu_memory(const tern_moe *moe, struct tern_memory *memory)
{
	const struct layout *l = &moe->layout;

	*memory = (struct tern_memory){.window_bytes = l->window_bytes,
		.output_bytes = l->output.bytes * l->nr_slots,
		.private_bytes = moe->private_bytes,
		.staging_bytes = path_staging_bytes(moe)};
	memory->window_bytes -= (uint64_t)l->nr_channels * l->nr_chunks * l->chunk_bytes;
	if (moe->config.mode == TERN_HIGH_THROUGHPUT)
		memory->window_bytes -= memory->output_bytes;
}

static int cpu_stats(const tern_moe *moe, struct tern_stats *stats)
{
	*stats = moe->stats;
	return 0;
}

static int cpu_expert_load(const tern_moe *moe, uint64_t *counts)
{
	memcpy(counts, moe->expert_load, moe->config.nr_experts * sizeof(*counts));
	return 0;
}

static int cpu_stats_reset(tern_moe *moe)
{
	memset(&moe->stats, 0, sizeof(moe->stats));
	memset(moe->expert_load, 0, moe->config.nr_experts * sizeof(*moe->expert_load));
	return 0;
}

const struct exchange_ops exchange_cpu_ops = {.open = cpu_open,
	.close = cpu_close,
	.dispatch_send = cpu_dispatch_send,
	.dispatch_recv = cpu_dispatch_recv,
	.dispatch = cpu_dispatch,
	.received_sizes = cpu_received_sizes,
	.combine_send = cpu_combine_send,
	.combine_recv = cpu_combine_recv,
	.combine = cpu_combine,
	.release = cpu_release,
	.plan_create = cpu_plan_create,
	.plan_destroy = cpu_plan_destroy,
	.layer_open = cpu_layer_open,
	.layer_close = cpu_layer_close,
	.layer_room_open = cpu_layer_room_open,
	.layer_room_close = cpu_layer_room_close,
	.layer_lend = cpu_layer_lend,
	.layer_experts = cpu_layer_experts,
	.look = cpu_look,
	.status = cpu_look,
	.settle = cpu_settle,
	.leave = path_leave,
	.check_wait = cpu_check_wait,
	.memory = cpu_memory,
	.stats = cpu_stats,
	.expert_load = cpu_expert_load,
	.stats_reset = cpu_stats_reset};
