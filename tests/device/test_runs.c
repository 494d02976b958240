/* SPDX-License-Identifier: Apache-2.0 */
/* Gates between nodes: tiles of the first experts are read by another kernel while runs of the
 * other node's rows are held back by a network of the tests (copying.h), and none is told that is
 * not there; data that lags the word of it; runs that never come, and ranks that are lost between
 * two. Prints what share of the other node's rows had come. TERN_TEST_ROUNDS (4), TERN_TEST_NODES
 * (ab), TERN_TEST_MODE (ll, ht; both), TERN_TEST_RANKS (2), TERN_TEST_TOKENS (40),
 * TERN_TEST_EXPERTS (8 a rank), TERN_TEST_TOPK (3). Emulated GPUs alone, as it looks at their
 * memory. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "gpu/host/inside.h"
#include "gpu/host/internode.h"
#include "gpu/wire/internode.h"
#include "testkit/device/inside.h"
#include "tests/device/copying.h"
#include "tests/device/devices.h"
#include "tests/late.h"

#define LIMIT_NS 600000000000u
#define NOT_SEEN 0xa5
#define UNORDERED 0
#define ORDERED_BY_OWNER 100

static const struct bench_device_ops *ops;
static enum tern_mode mode;
static void (*emulated_rdma)(int ordering, void (*flush)(void *ctx), void *ctx);

enum ending {
	LET_GO,   /* what was held comes when the first tiles have been read */
	NEVER,    /* it does not */
	LOST,     /* nor does its sender live on */
	NOT_HELD, /* nothing is; bits may be wrong */
};

struct scene {
	struct job job;
	enum ending ending;
	uint64_t nr_rounds; /* 0: as the environment says */
	uint64_t differences;
	uint32_t failed;
	uint64_t rows[INTERNODE_GROUPS];             /* of other nodes, of rank 0's last round */
	uint64_t writes, immediates, drains, rounds; /* of rank 0 */
};

struct rows {
	uint8_t *x, *scales, *y; /* as a kernel has seen them; y */
	struct tern_gate gate;
	uint32_t round;
	uint8_t *whole; /* [L][tiles] that were, while runs were held */
};

/* ---- a round --------------------------------------------------------------------------------- */

static int put_round(struct device_rounds *r, struct rows *rows, uint64_t round)
{
	const struct job *job = r->job;
	struct device_lane *lane = &r->lanes[0];
	const struct device_manner manner = {.graphs = false};
	struct tern_combine combine = {.size = sizeof(combine), .y = rows->y, .gated = 1};
	struct gate_consumer c = {.gate = {.size = sizeof(c.gate)},
		.x_bytes = job_received_bytes(job),
		.scales_bytes = job_received_scales_bytes(job),
		.y_bytes = job_y_bytes(job),
		.prepared = lane->y,
		.y = rows->y,
		.seen_x = rows->x,
		.seen_scales = rows->scales};
	int rc = device_put_inputs(r, 0, round);

	rc = rc ? rc
		: device_passed_on(r,
			  r->ops->fill(rows->x, NOT_SEEN, r->positions * c.x_bytes, lane->stream));
	rc = rc ? rc : tern_moe_gate(r->moe, 0, &c.gate);
	rows->gate = c.gate;
	rows->round++;
	rc = rc ? rc : device_put_dispatch(r, 0, &manner, job_nr_tokens(job, round, r->rank));
	c.x = lane->received.x;
	c.scales = lane->received.scales;
	rc = rc ? rc : device_passed_on(r, r->ops->consume(&c, lane->stream));
	return rc ? rc : tern_combine(r->moe, &combine, lane->out, 0);
}

static int verify_round(struct device_rounds *r, const struct rows *rows, uint64_t round)
{
	const struct device_manner manner = {.graphs = false};
	struct device_lane *lane = &r->lanes[0];
	uint64_t extent;
	int rc = device_passed_on(r, r->ops->stream_wait(lane->stream));

	rc = rc ? rc : tern_moe_status(r->moe);
	lane->received.x = rows->x;
	lane->received.scales = job_received_scales_bytes(r->job) ? rows->scales : NULL;
	rc = rc ? rc : device_verify_rows(r, 0, round, &extent);
	return rc ? rc : device_verify_results(r, 0, round, &manner);
}

/* ---- what has come --------------------------------------------------------------------------- */

static uint32_t group_of(const struct device_rounds *r, uint32_t local)
{
	return local / internode_group_experts(r->moe->layout.max_local);
}

static bool is_whole(const struct rows *rows, uint32_t local, uint32_t tile)
{
	const struct tern_gate *g = &rows->gate;

	return (int32_t)(__atomic_load_n(&g->ready[local * g->tiles + tile], __ATOMIC_ACQUIRE) -
			 rows->round * g->whole) >= 0;
}

/* Has the kernel behind the gate read the tile's last row? Inputs may be of that byte alone, so
 * that tiles are whole is looked at, too. */
static bool was_read(
	const struct device_rounds *r, const struct rows *rows, uint32_t local, uint32_t tile)
{
	const struct tern_gate *g = &rows->gate;
	uint64_t bytes = job_received_bytes(r->job),
		 end = tile * g->tile_rows + (uint64_t)g->tile_rows;
	const volatile uint8_t *row;

	end = g->offsets[local] + (end < g->counts[local] ? end : g->counts[local]);
	row = rows->x + (end - 1) * bytes;
	for (uint64_t i = 0; i < bytes; i++)
		if (row[i] != NOT_SEEN)
			return is_whole(rows, local, tile);
	return false;
}

/* All tiles of the groups before `held`. */
static bool first_tiles_read(const struct device_rounds *r, const struct rows *rows, uint32_t held)
{
	const struct tern_gate *g = &rows->gate;

	if (__atomic_load_n(&g->words[1], __ATOMIC_ACQUIRE) != rows->round)
		return false;
	for (uint32_t e = 0; e < g->nr_local && group_of(r, e) < held; e++)
		for (uint32_t t = 0; t * g->tile_rows < g->counts[e]; t++)
			if (!was_read(r, rows, e, t))
				return false;
	return true;
}

/* In high throughput a row may come with a lower group, of another rank of this node. */
static bool comes_with_own_group(const tern_moe *moe)
{
	const struct topology *t = &moe->topology;

	return mode == TERN_LOW_LATENCY || t->size[t->node_of[moe->rank]] == 1;
}

/* Rows of other nodes by the run that brings them. A tile that was whole although a row of it was
 * held is a mistake. */
static int count_rows(struct rank *rank, const struct device_rounds *r, const struct rows *rows,
	uint32_t held, uint64_t by_group[INTERNODE_GROUPS])
{
	const struct tern_gate *g = &rows->gate;
	const struct tern_row *described = r->lanes[0].received.rows;
	uint32_t most = r->moe->config.max_tokens;
	uint8_t *seen = calloc((size_t)rank->nr_ranks * most, sizeof(*seen)); /* group, + 1 */
	int bad = seen ? 0 : rank_fails(rank, "no memory");

	memset(by_group, 0, INTERNODE_GROUPS * sizeof(*by_group));
	for (uint32_t e = 0; e < g->nr_local && !bad; e++)
		for (uint32_t i = 0; i < g->counts[e] && !bad; i++) {
			const struct tern_row *row = &described[g->offsets[e] + i];
			uint8_t *group = &seen[(uint64_t)row->rank * most + (uint32_t)row->token];

			if (!is_internode(r->moe, (uint32_t)row->rank))
				continue;
			by_group[group_of(r, e)] += !*group;
			*group = *group ? *group : (uint8_t)(group_of(r, e) + 1);
			if (*group > held && comes_with_own_group(r->moe) &&
				rows->whole[e * g->tiles + i / g->tile_rows])
				bad = rank_fails(rank,
					"a tile of expert %u was whole, and a row of it held", e);
		}
	free(seen);
	return bad;
}

static void watch_held(struct rank *rank, struct device_rounds *r, struct rows *rows, uint32_t held)
{
	const struct tern_gate *g = &rows->gate;
	uint64_t from_ns = clock_ns();
	bool idle = false;

	while (!first_tiles_read(r, rows, held) && clock_ns() - from_ns < LIMIT_NS)
		r->ops->stream_idle(r->lanes[0].stream, &idle);
	if (clock_ns() - from_ns >= LIMIT_NS)
		rank_fails(rank, "the first %u groups' tiles were not read while others are held",
			held);
	for (uint32_t i = 0; i < 200; i++) /* what would be told too early has time for it */
		r->ops->stream_idle(r->lanes[0].stream, &idle);
	for (uint32_t i = 0; i < g->nr_local * g->tiles; i++)
		rows->whole[i] = is_whole(rows, i / g->tiles, i % g->tiles);
}

/* ---- an exchange ----------------------------------------------------------------------------- */

static int open_rows(struct device_rounds *r, struct rows *rows)
{
	int rc = r->ops->memory_create(
		r->positions * job_received_bytes(r->job) + 64, (void **)&rows->x);

	rc = rc ? rc
		: r->ops->memory_create(r->positions * job_received_scales_bytes(r->job) + 64,
			  (void **)&rows->scales);
	rc = rc ? rc
		: r->ops->memory_create(r->positions * job_y_bytes(r->job) + 64, (void **)&rows->y);
	rc = device_passed_on(r, rc);
	rc = rc ? rc : tern_moe_gate(r->moe, 0, &rows->gate);
	rows->whole = rc ? NULL : calloc(rows->gate.nr_local, rows->gate.tiles);
	return rc || rows->whole ? rc : TERN_ERR_NOMEM;
}

static void close_rows(struct device_rounds *r, struct rows *rows)
{
	void *all[] = {rows->x, rows->scales, rows->y};

	if (r->lanes[0].stream) /* whose kernels a failed round may have left */
		r->ops->stream_wait(r->lanes[0].stream);
	for (int i = 0; i < 3; i++)
		if (all[i])
			r->ops->memory_free(all[i]);
	free(rows->whole);
}

static int exchange_round(
	struct rank *rank, struct device_rounds *r, struct rows *rows, uint64_t round)
{
	struct scene *scene = rank->ctx;
	uint32_t held = 1 + (uint32_t)round % (INTERNODE_GROUPS - 1);
	uint64_t by_group[INTERNODE_GROUPS];
	int rc;

	if (scene->ending != NOT_HELD && !rank->rank)
		copying_hold(held);
	ranks_meet(rank);
	rc = put_round(r, rows, round);
	if (scene->ending != NOT_HELD && !rc)
		watch_held(rank, r, rows, held);
	ranks_meet(rank);
	if (scene->ending == LET_GO)
		copying_hold(INTERNODE_GROUPS);
	if (scene->ending == LOST)
		copying_cut();
	rc = rc ? rc : verify_round(r, rows, round);
	if (!rc && scene->ending == LET_GO)
		count_rows(rank, r, rows, held, rank->rank ? by_group : scene->rows);
	return rc;
}

static void exchange(struct rank *rank)
{
	struct scene *scene = rank->ctx;
	struct device_rounds rounds = {0};
	struct rows rows = {.gate = {.size = sizeof(rows.gate)}};
	struct tern_engine_stats before = {.size = sizeof(before)}, after = before;
	uint64_t nr = scene->nr_rounds ? scene->nr_rounds : devices_setting("TERN_TEST_ROUNDS", 4),
		 from_ns;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&rounds, rank->group, &scene->job, ops);
	rc = rc ? rc : tern_moe_set_sms(rounds.moe, 3);
	rc = rc ? rc : open_rows(&rounds, &rows);
	ranks_meet(rank);
	rc = rc ? rc : tern_engine_stats(device_engine(rounds.moe), &before);
	if (rc)
		rank_fails(rank, "%s", tern_last_error());
	from_ns = clock_ns();
	for (uint64_t i = 0; i < nr && !rc && !rounds.difference.nr && !*rank->failure; i++)
		rc = exchange_round(rank, &rounds, &rows, i);
	if (scene->ending == NEVER && !strstr(tern_last_error(), "for a row of rank") &&
		!strstr(tern_last_error(), "TERN_ERR_TIMEOUT")) /* the other's was first */
		rank_fails(rank, "a run that does not come ended in %d: %s", rc, tern_last_error());
	if (scene->ending == LOST &&
		(rc != TERN_ERR_PEER_DEAD ||
			passed_ns(from_ns) > scene->job.config.wait_ms * 500000ull))
		rank_fails(rank, "ranks that are lost ended in %d: %s", rc, tern_last_error());
	if (scene->ending != LET_GO)
		printf("# rank %d: %s\n", rank->rank, rc ? tern_last_error() : "rounds have ended");
	if (scene->ending == LET_GO && rc)
		rank_fails(rank, "%s", tern_last_error());
	if (scene->ending == LET_GO && rounds.difference.nr)
		rank_fails(rank, "%llu differences; the first: %s",
			(unsigned long long)rounds.difference.nr, rounds.difference.first);
	__atomic_fetch_add(&scene->differences, rounds.difference.nr, __ATOMIC_RELAXED);
	__atomic_fetch_add(&scene->failed, rc != 0, __ATOMIC_RELAXED);
	if (!rank->rank && !rc && !tern_engine_stats(device_engine(rounds.moe), &after)) {
		scene->writes = after.writes - before.writes;
		scene->immediates = after.immediates - before.immediates;
		scene->drains = after.drains - before.drains;
		scene->rounds = nr;
	}
	ranks_meet(rank);
	copying_hold(INTERNODE_GROUPS);
	if (rounds.moe && rounds.moe->device->internode) /* a NIC would find the other's memory gone
							  */
		device_internode_settle(rounds.moe->device->internode);
	ranks_meet(rank);
	close_rows(&rounds, &rows);
	devices_close(rank, &rounds);
}

static const char *play(struct scene *scene)
{
	const char *failure = "no job";
	struct reason why;

	if (!job_open(&scene->job, &why)) {
		failure = run_ranks((int)scene->job.nr_ranks, exchange, scene);
		job_close(&scene->job);
	}
	if (failure)
		printf("# %s\n", failure);
	return failure;
}

static void set_job(struct job *job, uint32_t wait_ms)
{
	struct tern_moe_config *c = &job->config;

	job_init(job);
	job->nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 2);
	job->nr_tokens = (uint32_t)devices_setting("TERN_TEST_TOKENS", 40);
	c->mode = mode;
	c->hidden = 128;
	c->nr_experts = (uint32_t)devices_setting("TERN_TEST_EXPERTS", 8 * job->nr_ranks);
	c->topk = (uint32_t)devices_setting("TERN_TEST_TOPK", 3);
	c->max_tokens = job->nr_tokens;
	c->nr_slots = 1;
	c->gate_rows = 64;
	c->x_dtype = c->dispatch_dtype = c->combine_dtype = TERN_BF16;
	c->weights = TERN_WEIGHTS_COMBINE;
	c->reduce = TERN_REDUCE_EXPERT;
	c->device = TERN_DEVICE_CUDA;
	c->wait_ms = wait_ms;
}

/* ---- scenes ---------------------------------------------------------------------------------- */

static int first_tiles_while_runs_are_held(void)
{
	struct scene scene = {.ending = LET_GO};
	struct copying_stats stats;
	uint64_t all = 0;
	int bad;

	copying_set(&(struct copying_settings){.lag = 0});
	set_job(&scene.job, 8000);
	bad = play(&scene) != NULL;
	copying_stats(&stats);
	for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
		all += scene.rows[g];
	printf("# rank 0: %llu writes, %llu immediates, %llu drains in %llu rounds; of %llu rows "
	       "of the other node, by group:",
		(unsigned long long)scene.writes, (unsigned long long)scene.immediates,
		(unsigned long long)scene.drains, (unsigned long long)scene.rounds,
		(unsigned long long)all);
	for (uint32_t g = 0; g < INTERNODE_GROUPS; g++)
		printf(" %llu", (unsigned long long)scene.rows[g]);
	printf("; %llu runs were held\n", (unsigned long long)stats.held);
	return bad || !stats.held || !all || scene.rows[0] == all;
}

static int lags_and_is_flushed(void)
{
	struct scene scene = {.ending = LET_GO};
	struct copying_stats stats;
	int bad;

	emulated_rdma(UNORDERED, copying_flush, NULL);
	copying_set(&(struct copying_settings){.lag = 400, .torn = 2});
	set_job(&scene.job, 8000);
	scene.ending = NOT_HELD;
	bad = play(&scene) != NULL;
	copying_stats(&stats);
	emulated_rdma(ORDERED_BY_OWNER, NULL, NULL);
	return bad || scene.differences || scene.failed || !stats.flushed;
}

/* The same, and nobody flushes: as if a run were told before it can be seen. One round, which waits
 * for longer than the lag lasts, or nothing is compared. */
static int too_early_a_run_is_found(void)
{
	struct scene scene = {.ending = NOT_HELD, .nr_rounds = 1};

	for (uint32_t torn = 1; torn <= 2; torn++) {
		copying_set(&(struct copying_settings){.lag = 10000, .torn = torn});
		set_job(&scene.job, 20000);
		play(&scene);
	}
	printf("# %llu wrong elements, %u ranks failed\n", (unsigned long long)scene.differences,
		scene.failed);
	return !scene.differences;
}

static int ends_while_held(enum ending ending, uint32_t wait_ms)
{
	struct scene scene = {.ending = ending};

	copying_set(&(struct copying_settings){.lag = 0});
	set_job(&scene.job, wait_ms);
	return play(&scene) != NULL || scene.failed != scene.job.nr_ranks;
}

static int judge(const char *name, int bad)
{
	printf("%s - %s%s\n", bad ? "not ok" : "ok", name,
		mode == TERN_HIGH_THROUGHPUT ? "_ht" : "");
	return bad;
}

static int run_mode(enum tern_mode of)
{
	int bad;

	mode = of;
	bad = judge("first_tiles_while_runs_are_held", first_tiles_while_runs_are_held());
	if (devices_without("rest"))
		return bad;
	bad |= judge("lags_and_is_flushed", lags_and_is_flushed());
	bad |= judge("too_early_a_run_is_found", too_early_a_run_is_found());
	bad |= judge("runs_that_never_come", ends_while_held(NEVER, 1500));
	bad |= judge("ranks_lost_between_runs", ends_while_held(LOST, 20000));
	return bad;
}

int main(void)
{
	const char *path = getenv("TERN_CUDA_LIBRARY");
	void *library, *rdma;
	int nr_devices;

	setenv("TERN_TEST_NODES", "ab", 0);
	setenv("TERN_TRANSPORT", "copying", 1);
	ops = devices_open(&nr_devices);
	library = ops && path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	rdma = library ? dlsym(library, "emulated_rdma") : NULL;
	if (!rdma)
		return 77;
	memcpy(&emulated_rdma, &rdma, sizeof(rdma));
	return devices_run_modes(run_mode);
}
