/* SPDX-License-Identifier: Apache-2.0 */
/* Rows between nodes in devices' memory, moved by a network that copies it (copying.h): the same
 * bits; what lies where; data that lags the word of it; and all the ways back to pinned memory.
 * What a driver says is said by emulated GPUs alone: on others those tests are left out.
 * TERN_TEST_ROUNDS (4), TERN_TEST_NODES (ab), TERN_TEST_RANKS (2). Skipped where there is no GPU.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/host/inside.h"
#include "gpu/host/internode.h"
#include "gpu/wire/internode.h"
#include "tests/device/copying.h"
#include "tests/device/devices.h"

#define ORDERED_BY_OWNER 100 /* CUDA's */
#define UNORDERED 0
#define WITHOUT_FLUSH ((void (*)(void *))0)

static const struct bench_device_ops *ops;
static int nr_devices;

/* Of emulated GPUs; else NULL. */
static struct {
	void (*rdma)(int ordering, void (*flush)(void *ctx), void *ctx);
	uint64_t (*watch)(int on);
} emulated;

static void find_emulated(void)
{
	const char *path = getenv("TERN_CUDA_LIBRARY");
	void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL,
	     *rdma = library ? dlsym(library, "emulated_rdma") : NULL,
	     *watch = library ? dlsym(library, "emulated_watch") : NULL;

	memcpy(&emulated.rdma, &rdma, sizeof(rdma));
	memcpy(&emulated.watch, &watch, sizeof(watch));
}

/* ---- one exchange, verified ------------------------------------------------------------------ */

struct scene {
	struct job job;
	const char *described; /* what the group says of itself then */
	bool on_device, wrong; /* rows lie there; and the bits may be wrong */
	uint64_t staging_bytes, head_bytes, differences; /* found, on rank 0 */
	int failed;
};

static void set_job(struct job *job, enum tern_mode mode, uint32_t hidden)
{
	struct tern_moe_config *c = &job->config;

	job_init(job);
	job->nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 2);
	job->nr_tokens = 6;
	c->mode = mode;
	c->hidden = hidden;
	c->nr_experts = 4 * job->nr_ranks;
	c->topk = 3;
	c->max_tokens = 6;
	c->nr_slots = 1;
	c->device = TERN_DEVICE_CUDA;
	c->wait_ms = 5000;
}

/* Of this rank's first partner on another node. */
static void check_places(struct rank *rank, const struct scene *scene, const tern_moe *moe)
{
	const struct internode_table *t = device_internode_tables(moe->device->internode);
	static const enum internode_part parts[] = {INTERNODE_ROWS, INTERNODE_RESULTS, INTERNODE_X};
	const struct device_layout *l = &moe->device->layout;
	bool high = moe->config.mode == TERN_HIGH_THROUGHPUT;
	const uint64_t at[] = {
		l->window.rows + (uint64_t)moe->rank * moe->config.max_tokens * l->window.row_bytes,
		high ? l->ht.results : l->window.results, 0};

	for (uint32_t i = high; i < (high ? 3 : 2); i++) {
		uint8_t *to = t->to[parts[i]][t->ranks[0].rank];
		bool is = false;

		if (ops->on_device(to + at[i], &is) || is != scene->on_device)
			rank_fails(rank, "part %d lies %s a device's memory", (int)parts[i],
				is ? "in" : "outside");
	}
}

/* What goes with the heads of one dispatch to all ranks on other nodes, on both sides. */
static uint64_t head_bytes(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;
	const struct internode_table *t = device_internode_tables(moe->device->internode);
	uint64_t each = c->mode == TERN_LOW_LATENCY
				? internode_align(moe->device->layout.window.plan_bytes)
				: internode_align((uint64_t)c->max_tokens * c->topk * 16) +
					  internode_align((uint64_t)c->max_tokens * 8);

	each += internode_align((c->max_tokens + 1ull) * t->way_bytes);
	return 2 * t->nr_internode * each;
}

static void exchange(struct rank *rank)
{
	struct scene *scene = rank->ctx;
	struct device_rounds rounds = {0};
	struct tern_memory memory = {.size = sizeof(memory)};
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 4), i = 0;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&rounds, rank->group, &scene->job, ops);
	if (!rc && !strstr(tern_group_describe(rank->group), scene->described))
		rank_fails(rank, "no \"%s\" in: %s", scene->described,
			tern_group_describe(rank->group));
	if (!rc)
		check_places(rank, scene, rounds.moe);
	rc = rc ? rc : tern_moe_memory(rounds.moe, &memory);
	if (rc)
		rank_fails(rank, "%s", tern_last_error());
	for (; i < nr && !rc && !rounds.difference.nr; i++)
		rc = device_rounds_verify(&rounds, i);
	if (!rank->rank && !rc) {
		scene->staging_bytes = memory.staging_bytes;
		scene->head_bytes = head_bytes(rounds.moe);
	}
	if (scene->wrong) {
		__atomic_fetch_add(&scene->differences, rounds.difference.nr, __ATOMIC_RELAXED);
		__atomic_fetch_add(&scene->failed, rc != 0, __ATOMIC_RELAXED);
	} else {
		devices_judge(rank, &rounds, i, rc);
	}
	devices_close(rank, &rounds);
}

static const char *play(struct scene *scene)
{
	const char *failure;
	struct reason why;

	if (job_open(&scene->job, &why)) {
		printf("# no job: %s\n", why.text);
		return "no job";
	}
	failure = run_ranks((int)scene->job.nr_ranks, exchange, scene);
	job_close(&scene->job);
	if (failure)
		printf("# %s\n", failure);
	return failure;
}

/* ---- where rows lie -------------------------------------------------------------------------- */

static const enum tern_mode modes[] = {TERN_LOW_LATENCY, TERN_HIGH_THROUGHPUT};
static const char on_device[] = "other nodes: in device memory", pinned[] = "in pinned memory, as ";

static int in_device_memory(void)
{
	struct copying_stats stats;
	int bad = 0;

	for (int m = 0; m < 2; m++) {
		struct scene scene = {.described = on_device, .on_device = true};

		copying_set(&(struct copying_settings){.lag = 0});
		set_job(&scene.job, modes[m], 512);
		bad |= play(&scene) != NULL;
		copying_stats(&stats);
		bad |= !stats.copies || stats.early;
	}
	return bad;
}

/* With rows four times as long, pinned memory is as large as before, and kernels load from it and
 * store to it as much as before: nothing of a row. */
static uint64_t staging(enum tern_mode mode, uint32_t hidden, bool direct, uint64_t *touched)
{
	struct scene scene = {.described = direct ? on_device : pinned, .on_device = direct};

	copying_set(&(struct copying_settings){.refuses = direct ? 0 : 1});
	set_job(&scene.job, mode, hidden);
	if (emulated.watch)
		emulated.watch(1);
	if (play(&scene))
		return 0;
	*touched = emulated.watch ? emulated.watch(0) : 0;
	return scene.staging_bytes;
}

static int nothing_through_the_host(void)
{
	int bad = 0;

	for (int m = 0; m < 2; m++) {
		uint64_t seen[4], bytes[4];

		for (int i = 0; i < 4; i++)
			bytes[i] = staging(modes[m], i & 1 ? 2048 : 512, i < 2, &seen[i]);
		printf("# mode %d: pinned %llu and %llu bytes, of which kernels moved %llu and "
		       "%llu; "
		       "without, %llu and %llu, %llu and %llu\n",
			(int)modes[m], (unsigned long long)bytes[0], (unsigned long long)bytes[1],
			(unsigned long long)seen[0], (unsigned long long)seen[1],
			(unsigned long long)bytes[2], (unsigned long long)bytes[3],
			(unsigned long long)seen[2], (unsigned long long)seen[3]);
		bad |= !bytes[0] || bytes[0] != bytes[1] || bytes[2] >= bytes[3] ||
		       bytes[1] >= bytes[2];
		bad |= seen[0] != seen[1] || (emulated.watch && seen[2] >= seen[3]);
	}
	return bad;
}

/* With room for more tokens pinned memory grows by their heads alone, where results are summed at
 * the expert: there commands are as many however many tokens there are. */
static int heads_alone_by_tokens(void)
{
	int bad = 0;

	for (int m = 0; m < 2; m++) {
		uint64_t rest[2] = {0};

		for (int i = 0; i < 2; i++) {
			struct scene scene = {.described = on_device, .on_device = true};

			copying_set(&(struct copying_settings){.lag = 0});
			set_job(&scene.job, modes[m], 512);
			scene.job.config.reduce = TERN_REDUCE_EXPERT;
			scene.job.config.max_tokens = i ? 300 : 6;
			bad |= play(&scene) != NULL;
			rest[i] = scene.staging_bytes - scene.head_bytes;
			printf("# mode %d, %u tokens: pinned %llu bytes, of which %llu with "
			       "heads\n",
				(int)modes[m], scene.job.config.max_tokens,
				(unsigned long long)scene.staging_bytes,
				(unsigned long long)scene.head_bytes);
		}
		bad |= !rest[0] || rest[0] != rest[1];
	}
	return bad;
}

/* ---- what can be seen, and when -------------------------------------------------------------- */

#define LAG 400        /* polls: kernels look before that */
#define LONG_LAG 20000 /* surely */

/* Where the driver orders nothing, rows are flushed before their word. */
static int lags_and_is_flushed(void)
{
	struct copying_stats stats;
	int bad = 0;

	for (int m = 0; m < 2; m++) {
		struct scene scene = {.described = "in device memory, flushed", .on_device = true};

		emulated.rdma(UNORDERED, copying_flush, NULL);
		copying_set(&(struct copying_settings){.lag = LAG, .torn = 2});
		set_job(&scene.job, modes[m], 512);
		bad |= play(&scene) != NULL;
		copying_stats(&stats);
		bad |= !stats.early || !stats.flushed;
	}
	return bad;
}

/* The same data, and nobody flushes: as if the word were published before its rows can be seen. The
 * reference has to see that. In low latency lines that are not there yet are waited for, as they
 * bear an epoch; so there half a line comes first, which of a line's halves bears it or not. An
 * exchange that never begins, or no word too early, has not shown it. */
static int too_early_a_word_is_found(void)
{
	struct copying_stats stats;
	int bad = 0;

	for (int m = 0; m < 2; m++) {
		struct scene scene = {.described = on_device, .on_device = true, .wrong = true};
		uint64_t early = 0;

		for (uint32_t torn = 1; torn <= 2; torn++) {
			if (emulated.rdma)
				emulated.rdma(ORDERED_BY_OWNER, WITHOUT_FLUSH, NULL);
			copying_set(&(struct copying_settings){.lag = LONG_LAG, .torn = torn});
			set_job(&scene.job, modes[m], 512);
			scene.job.config.wait_ms = 1000;
			bad |= play(&scene) != NULL;
			copying_stats(&stats);
			early += stats.early;
		}
		printf("# mode %d: %llu words too early, %llu wrong elements, %d ranks failed\n",
			(int)modes[m], (unsigned long long)early,
			(unsigned long long)scene.differences, scene.failed);
		bad |= !early || !scene.differences;
	}
	return bad;
}

/* ---- back to pinned memory ------------------------------------------------------------------- */

struct retreat {
	int ordering;
	uint32_t refuses;
	const char *transport, *force, *why;
};

static int retreats(const struct retreat *r)
{
	int bad = 0;

	for (int m = 0; m < 2; m++) {
		char described[160];
		struct scene scene = {.described = described};

		snprintf(described, sizeof(described), "%s%s", pinned, r->why);
		emulated.rdma(r->ordering, WITHOUT_FLUSH, NULL);
		copying_set(&(struct copying_settings){.refuses = r->refuses});
		setenv("TERN_TRANSPORT", r->transport ? r->transport : "copying", 1);
		setenv("TERN_FORCE_PINNED", r->force ? r->force : "0", 1);
		set_job(&scene.job, modes[m], 512);
		bad |= play(&scene) != NULL;
	}
	setenv("TERN_TRANSPORT", "copying", 1);
	unsetenv("TERN_FORCE_PINNED");
	emulated.rdma(ORDERED_BY_OWNER, WITHOUT_FLUSH, NULL);
	return bad;
}

static int unknown_ordering(void)
{
	return retreats(&(struct retreat){
		.ordering = 7, .why = "the driver does not say when what a network has written"});
}

static int no_ordering_known(void)
{
	return retreats(&(struct retreat){
		.ordering = -1, .why = "the driver does not say when what a network has written"});
}

static int no_flush(void)
{
	return retreats(&(struct retreat){
		.ordering = UNORDERED, .why = "the driver neither orders what a network writes"});
}

static int refused_registration(void)
{
	return retreats(&(struct retreat){.ordering = ORDERED_BY_OWNER,
		.refuses = 1,
		.why = "copying: it was told to refuse"});
}

/* Staging has been registered, and goes back. */
static int refused_landing(void)
{
	return retreats(&(struct retreat){.ordering = ORDERED_BY_OWNER,
		.refuses = 2,
		.why = "copying: it was told to refuse"});
}

static int network_of_the_host(void)
{
	return retreats(&(struct retreat){.ordering = ORDERED_BY_OWNER,
		.transport = "shm",
		.why = "shm (process_vm_writev), 1 NIC does not move it"});
}

static int forced(void)
{
	return retreats(&(struct retreat){
		.ordering = ORDERED_BY_OWNER, .force = "1", .why = "TERN_FORCE_PINNED says so"});
}

/* ---- all ------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int (*is_bad)(void);
	bool emulated;
} tests[] = {{"in_device_memory", in_device_memory, false},
	{"nothing_through_the_host", nothing_through_the_host, false},
	{"heads_alone_by_tokens", heads_alone_by_tokens, false},
	{"lags_and_is_flushed", lags_and_is_flushed, true},
	{"too_early_a_word_is_found", too_early_a_word_is_found, false},
	{"unknown_ordering", unknown_ordering, true},
	{"no_ordering_known", no_ordering_known, true}, {"no_flush", no_flush, true},
	{"refused_registration", refused_registration, true},
	{"refused_landing", refused_landing, true},
	{"network_of_the_host", network_of_the_host, true}, {"forced", forced, true}};

int main(void)
{
	int bad = 0;

	setenv("TERN_TEST_NODES", "ab", 0);
	setenv("TERN_TRANSPORT", "copying", 1);
	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	find_emulated();
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		int is;

		if (devices_without(tests[i].name) || (tests[i].emulated && !emulated.rdma))
			continue;
		is = tests[i].is_bad();
		printf("%s - %s\n", is ? "not ok" : "ok", tests[i].name);
		bad |= is;
	}
	return bad;
}
