/* SPDX-License-Identifier: Apache-2.0 */
/* How many writes a round takes between GPUs' nodes, by the engine's statistics: rows for a rank
 * lie together, and so do results that are summed at the expert. Every element of every round is
 * compared with the reference, half of the rounds by replay. TERN_TEST_ROUNDS (4), TERN_TEST_NODES
 * (aabb), TERN_TEST_RANKS (4); TERN_TEST_TOKENS (40), TERN_TEST_HIDDEN (128), TERN_TEST_EXPERTS (4
 * a rank), TERN_TEST_TOPK (3). Skipped where there is no GPU. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "gpu/host/inside.h"
#include "gpu/host/internode.h"
#include "gpu/wire/internode.h"
#include "tests/device/devices.h"

static const struct bench_device_ops *ops;

struct scene {
	struct job job;
	uint32_t most;   /* writes of a round to each far rank */
	bool everywhere; /* all tokens go to all ranks, rows once to each node */
};

static void set_job(struct job *job, enum tern_mode mode, uint32_t replicas)
{
	struct tern_moe_config *c = &job->config;

	job_init(job);
	job->nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 4);
	job->nr_tokens = (uint32_t)devices_setting("TERN_TEST_TOKENS", 40);
	c->mode = mode;
	c->hidden = (uint32_t)devices_setting("TERN_TEST_HIDDEN", 128);
	c->nr_experts = (uint32_t)devices_setting("TERN_TEST_EXPERTS", 4 * job->nr_ranks);
	c->topk = (uint32_t)devices_setting("TERN_TEST_TOPK", 3);
	c->max_tokens = job->nr_tokens;
	c->nr_slots = 1;
	c->reduce = TERN_REDUCE_EXPERT;
	c->replica_ranks = replicas;
	c->device = TERN_DEVICE_CUDA;
	c->wait_ms = 20000;
}

/* Operations: one that is longer than a network's longest write takes several. */
static uint64_t writes_of(const tern_moe *moe)
{
	struct tern_engine_stats stats = {.size = sizeof(stats)};

	return tern_engine_stats(device_engine(moe), &stats) ? 0 : stats.operations;
}

/* More than were verified: a graph's replays before the last are not. */
static uint64_t rounds_of(const tern_moe *moe)
{
	struct tern_stats stats = {.size = sizeof(stats)};

	return tern_moe_stats(moe, &stats) ? 0 : stats.rounds;
}

/* Of one dispatch, where all tokens go to all ranks: rows once to each far node, with their ways;
 * and what goes to each far rank. */
static uint64_t dispatch_bytes(const tern_moe *moe, const struct internode_table *t)
{
	uint64_t rows = (moe->topology.nr_nodes - 1ull) * moe->config.max_tokens;

	return rows * (t->run_bytes[INTERNODE_DISPATCH] + t->way_bytes) +
	       t->nr_internode * (t->ways_offset + t->way_bytes +
					 (moe->config.mode == TERN_HIGH_THROUGHPUT
							 ? t->head_bytes[INTERNODE_COUNTS_ODD]
							 : 0));
}

/* Of all rounds that there were, of which some are released: to the byte. Results come from each
 * rank. */
static void check_bytes(struct rank *rank, const tern_moe *moe)
{
	const struct internode_table *t = device_internode_tables(moe->device->internode);
	struct tern_stats stats = {.size = sizeof(stats)};
	int rc = tern_moe_stats(moe, &stats);
	uint64_t tokens = moe->config.max_tokens,
		 combined = stats.combine_bytes /
			    (moe->nr_ranks * tokens * moe->device->layout.result_wire_bytes),
		 right = stats.rounds * dispatch_bytes(moe, t) +
			 combined * t->nr_internode *
				 (t->head_bytes[INTERNODE_COMBINE] +
					 tokens * t->run_bytes[INTERNODE_COMBINE]);

	/* Low latency tells a released round like any other. */
	if (moe->config.mode == TERN_LOW_LATENCY)
		right += (stats.rounds - combined) * t->nr_internode *
			 t->head_bytes[INTERNODE_COMBINE];
	if (rc || !combined || stats.engine_bytes != right)
		rank_fails(rank, "%llu bytes in %llu rounds, where %llu are right",
			(unsigned long long)stats.engine_bytes, (unsigned long long)stats.rounds,
			(unsigned long long)right);
}

static void print_bytes(const tern_moe *moe)
{
	struct tern_stats stats = {.size = sizeof(stats)};

	if (!tern_moe_stats(moe, &stats))
		printf("# %llu bytes in %llu rounds\n", (unsigned long long)stats.engine_bytes,
			(unsigned long long)stats.rounds);
}

static void exchange(struct rank *rank)
{
	struct scene *scene = rank->ctx;
	struct device_rounds rounds = {0};
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 4), i = 0, before = 0, writes, of;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&rounds, rank->group, &scene->job, ops);
	if (!rc && !rounds.moe->device->internode) {
		rank_fails(rank, "all ranks are on one node");
		devices_close(rank, &rounds);
		return;
	}
	if (!rc)
		before = writes_of(rounds.moe);
	for (; i < nr && !rc && !rounds.difference.nr; i++)
		rc = device_rounds_verify(&rounds, i);
	if (!rc) {
		writes = writes_of(rounds.moe) - before;
		of = rounds_of(rounds.moe) *
		     device_internode_tables(rounds.moe->device->internode)->nr_internode;
		if (!of || !writes || writes > of * scene->most)
			rank_fails(rank,
				"%llu writes in rounds times far ranks %llu, of at most %u",
				(unsigned long long)writes, (unsigned long long)of, scene->most);
		else if (!rank->rank)
			printf("# %llu writes in rounds times far ranks %llu\n",
				(unsigned long long)writes, (unsigned long long)of);
	}
	if (!rc && scene->everywhere)
		check_bytes(rank, rounds.moe);
	if (!rc && !rank->rank)
		print_bytes(rounds.moe);
	devices_judge(rank, &rounds, i, rc);
	devices_close(rank, &rounds);
}

/* Low latency: rows and head, results and head. High throughput: counts as well. */
static int is_bad(const char *name, enum tern_mode mode, uint32_t replicas, bool everywhere)
{
	struct scene scene = {.most = mode == TERN_LOW_LATENCY ? 4 : 5, .everywhere = everywhere};
	const char *failure = "no job";
	struct reason why;

	if (devices_without(name))
		return 0;
	set_job(&scene.job, mode, replicas);
	if (everywhere)
		scene.job.config.topk = scene.job.config.nr_experts = scene.job.nr_ranks;
	if (!job_open(&scene.job, &why)) {
		failure = run_ranks((int)scene.job.nr_ranks, exchange, &scene);
		job_close(&scene.job);
	}
	if (failure)
		printf("# %s\n", failure);
	printf("%s - %s\n", failure ? "not ok" : "ok", name);
	return failure != NULL;
}

int main(void)
{
	int nr_devices, bad = 0;

	setenv("TERN_TEST_NODES", "aabb", 0);
	setenv("TERN_TRANSPORT", "shm", 0);
	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	bad |= is_bad("low_latency", TERN_LOW_LATENCY, 1, false);
	bad |= is_bad("high_throughput", TERN_HIGH_THROUGHPUT, 1, false);
	bad |= is_bad("low_latency_replicas", TERN_LOW_LATENCY, 2, false);
	bad |= is_bad("high_throughput_replicas", TERN_HIGH_THROUGHPUT, 2, false);
	bad |= is_bad("low_latency_replicas_on_all_nodes", TERN_LOW_LATENCY, 4, false);
	bad |= is_bad("rows_once_to_each_node", TERN_LOW_LATENCY, 1, true);
	bad |= is_bad("high_throughput_rows_once_to_each_node", TERN_HIGH_THROUGHPUT, 1, true);
	return bad;
}
