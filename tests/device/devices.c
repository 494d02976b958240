/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/host/inside.h"
#include "testkit/random.h"
#include "engine/engine.h"
#include "group/group.h"
#include "tests/device/copying.h"
#include "tests/exchange/expected_stats.h"
#include "tests/late.h"

const struct bench_device_ops *devices_open(int *nr_devices)
{
	const struct device_ops *devices;
	const struct bench_device_ops *ops;

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* loading later may wait for kernels that wait
						    */
	setvbuf(stdout, NULL, _IOLBF, 0);
	devices = device_ops_load();
	if (!devices || devices->nr_devices(nr_devices) || !*nr_devices) {
		printf("%.200s\n", devices ? devices->error_text() : tern_last_error());
		return NULL;
	}
	ops = bench_device_ops_load();
	if (!ops)
		printf("%.200s\n", tern_last_error());
	else
		copying_offer(*nr_devices);
	return ops;
}

int devices_run_modes(int (*run_mode)(enum tern_mode mode))
{
	const char *mode = getenv("TERN_TEST_MODE");
	int bad = 0;

	if (!mode || strcmp(mode, "ht"))
		bad |= run_mode(TERN_LOW_LATENCY);
	if (!mode || strcmp(mode, "ll"))
		bad |= run_mode(TERN_HIGH_THROUGHPUT);
	return bad;
}

uint64_t devices_setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

void devices_keep_homes_together(struct job *job)
{
	uint32_t n = job->config.replica_ranks;
	char first[16], other[16];

	for (uint32_t r = 0; r < job->nr_ranks && job->config.mode != TERN_LOW_LATENCY; r++)
		if (test_node((int)(r / n * n), (int)job->nr_ranks, first, sizeof(first)) &&
			strcmp(test_node((int)r, (int)job->nr_ranks, other, sizeof(other)), first))
			job->config.replica_ranks = 1;
}

int devices_count_apart(void)
{
	int status, nr = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(devices_open(&nr) ? nr : 0);
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
									       : 0;
}

void devices_draw_job(
	uint64_t *state, const struct draw_limits *limits, int nr_devices, struct job *job)
{
	struct tern_moe_config *c = &job->config;
	uint32_t here;

	draw_job(state, limits, job);
	devices_keep_homes_together(job);
	if (!devices_setting("TERN_TEST_REPLICAS", 1))
		c->replica_ranks = 1;
	c->capacity = 0;
	c->device = TERN_DEVICE_CUDA;
	c->caller_output = c->mode == TERN_LOW_LATENCY && random_below(state, 4) == 0;
	c->wait_ms = 5000;
	here = (job->nr_ranks + (uint32_t)nr_devices - 1) / (uint32_t)nr_devices;
	while (here * c->nr_slots > devices_setting("TERN_TEST_SHARING", 16)) /* a device has 32
										 queues, and kernels
										 of all wait for
										 each other */
		c->nr_slots--;
}

void devices_draw_late_weights(uint64_t drawn, struct job *job)
{
	struct tern_moe_config *c = &job->config;
	const char *link = getenv("TERN_FORCE_LINK");

	c->late_weights = drawn % 4 && c->mode == TERN_LOW_LATENCY &&
			  c->reduce == TERN_REDUCE_EXPERT && c->layout != TERN_BY_SOURCE &&
			  c->replica_ranks == 1 && !c->gate_rows && (!link || !*link) &&
			  !getenv("TERN_TEST_NODES") && devices_setting("TERN_EMULATED_LINES", 1) &&
			  !getenv("TERN_EMULATED_NVLINK_DOMAIN");
	if (c->late_weights)
		c->combine_dtype = TERN_BF16;
}

bool devices_without(const char *name)
{
	const char *word = getenv("TERN_TEST_WITHOUT");
	size_t length;

	for (; word && *word; word += length + (word[length] == ',')) {
		length = strcspn(word, ",");
		if (length && memmem(name, strlen(name), word, length))
			return true;
	}
	return false;
}

void devices_close(struct rank *rank, struct device_rounds *rounds)
{
	for (uint32_t i = 0; i < DEVICE_ROUNDS_SLOTS; i++)
		if (rounds->lanes[i].stream)
			rounds->ops->stream_wait(rounds->lanes[i].stream);
	ranks_meet(rank);
	device_rounds_close(rounds);
}

/* What kernels have put into the ring is what the engine has written; its proxy may come to the
 * last of it a moment later. */
static void check_engine_bytes(struct rank *rank, const struct device_rounds *rounds)
{
	struct tern_stats stats = {.size = sizeof(stats)};
	struct tern_engine *engine = device_engine(rounds->moe);
	struct engine_traffic all[GPU_MAX_RANKS];
	uint64_t from_ns = clock_ns(), bytes;

	if (!engine)
		return;
	do {
		bytes = 0;
		if (engine_traffic(engine, all) || tern_moe_stats(rounds->moe, &stats))
			rank_fails(rank, "%s", tern_last_error());
		for (int r = 0; r < rank->nr_ranks; r++)
			bytes += all[r].bytes;
	} while (
		bytes != stats.engine_bytes && passed_ns(from_ns) < 5000000000u && !*rank->failure);
	if (bytes != stats.engine_bytes)
		rank_fails(rank, "engine_bytes is %llu; the engine has written %llu",
			(unsigned long long)stats.engine_bytes, (unsigned long long)bytes);
}

/* Rounds by graph replay are counted like others, since kernels count. */
static void check_stats(struct rank *rank, struct device_rounds *rounds, uint64_t nr)
{
	const struct device_layout *layout = &rounds->moe->device->layout;
	struct expected_stats counters = {0};

	for (uint64_t i = 0; i < nr; i++) {
		reference_set_round(rounds->reference, i);
		expected_round(&counters, rounds->reference, (uint32_t)rank->rank,
			device_rounds_release(rounds, i));
	}
	expected_bytes(&counters, layout->row_wire_bytes, 0, layout->result_wire_bytes);
	expected_compare(&counters, rank, rounds->moe, rounds->job->config.nr_experts);
	memset(&counters, 0, sizeof(counters));
	if (!tern_moe_stats_reset(rounds->moe))
		expected_compare(&counters, rank, rounds->moe, rounds->job->config.nr_experts);
}

void devices_judge(struct rank *rank, struct device_rounds *rounds, uint64_t nr, int rc)
{
	if (rc)
		rank_fails(rank, "%s: %s", tern_strerror(rc), tern_last_error());
	else if (rounds->difference.nr)
		rank_fails(rank, "%llu differences; the first: %s",
			(unsigned long long)rounds->difference.nr, rounds->difference.first);
	else {
		check_engine_bytes(rank, rounds);
		check_stats(rank, rounds, nr);
	}
	if (*rank->failure)
		printf("# %s\n", rank->failure);
}

int devices_half(struct device_rounds *r, uint32_t half, uint32_t nr_tokens)
{
	struct device_lane *lane = &r->lanes[0];
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = nr_tokens, .x = lane->x, .topk_ids = lane->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
	int rc = half == 0   ? tern_dispatch_send(r->moe, &args)
		 : half == 1 ? tern_dispatch_recv(r->moe, 0, &received)
		 : half == 2 ? tern_combine_send(r->moe, &combine)
			     : tern_combine_recv(r->moe, 0, lane->out, 0);

	rc = rc ? rc : r->ops->stream_wait(lane->stream);
	return rc ? rc : tern_moe_status(r->moe);
}

int devices_combine(struct device_rounds *r)
{
	struct device_lane *lane = &r->lanes[0];
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
	int rc = tern_combine(r->moe, &combine, lane->out, 0);

	rc = rc ? rc : r->ops->stream_wait(lane->stream);
	return rc ? rc : tern_moe_status(r->moe);
}

void devices_print_job(const struct job *job)
{
	const struct tern_moe_config *c = &job->config;

	printf("  ranks %u, mode %d, layout %d, reduce %d, hidden %u, experts %u, topk %u, tokens "
	       "%u, dtypes %d %d %d, slots %u\n",
		job->nr_ranks, (int)c->mode, (int)c->layout, (int)c->reduce, c->hidden,
		c->nr_experts, c->topk, c->max_tokens, (int)c->x_dtype, (int)c->dispatch_dtype,
		(int)c->combine_dtype, c->nr_slots);
}
