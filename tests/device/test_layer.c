/* SPDX-License-Identifier: Apache-2.0 */
/* A layer whose first product runs beside the dispatch, behind gates, brings bit for bit what the
 * same layer brings kernel by kernel: fresh shapes, and in each fresh inputs, routing and numbers
 * of tokens. The one beside comes first, so that rows it reads too early are those of the round
 * before. Skipped where there is no GPU. TERN_TEST_MODE: ll, ht (both); TERN_TEST_RANKS (2);
 * TERN_TEST_TOTAL: rounds of each mode (60); TERN_TEST_ROUNDS: of each shape (10); TERN_TEST_SEED:
 * where to start (1); TERN_TEST_HIDDEN, TERN_TEST_TOKENS: at most (1024, 100). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/random.h"
#include "testkit/device/inside.h"
#include "testkit/device/layer_weights.h"
#include "tests/device/devices.h"
#include "tern_layer.h"

#define PIECE 512 /* of which hidden is a multiple in FP8 */

static const struct bench_device_ops *ops;
static int nr_devices;

struct shape {
	struct job job;
	uint32_t inner, beside_sms;
	uint64_t nr_rounds;
};

struct side {
	struct device_rounds rounds;
	struct layer_weights weights;
	tern_layer *beside, *plain;
	uint8_t *kept;
};

static int passed_on(struct side *side, int rc)
{
	return device_passed_on(&side->rounds, rc);
}

static int make_layers(struct side *side, const struct shape *shape)
{
	struct tern_layer_config config;
	int rc;

	tern_layer_config_init(&config);
	layer_weights_give(&side->weights, &config);
	rc = tern_layer_create(side->rounds.moe, &config, &side->plain);
	config.beside_sms = shape->beside_sms;
	return rc ? rc : tern_layer_create(side->rounds.moe, &config, &side->beside);
}

static int wait_all(struct side *side)
{
	int rc = passed_on(side, ops->stream_wait(side->rounds.lanes[0].stream));

	return rc ? rc : tern_moe_status(side->rounds.moe);
}

/* What comes home is in pinned memory, where nothing lay but ones. */
static int run(struct side *side, tern_layer *layer, uint32_t nr_tokens, uint64_t bytes)
{
	struct device_rounds *r = &side->rounds;
	struct device_lane *lane = &r->lanes[0];
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = nr_tokens,
		.x = lane->x,
		.topk_ids = lane->ids,
		.topk_weights = (const float *)(void *)lane->weights};
	int rc = passed_on(side, ops->fill(lane->out, 0xff, bytes, lane->stream));

	rc = rc ? rc : tern_layer_run(layer, &dispatch, lane->out, 0);
	rc = rc ? rc : passed_on(side, ops->copy(r->host, lane->out, bytes, lane->stream));
	return rc ? rc : wait_all(side);
}

static int compare_round(
	struct rank *rank, struct side *side, const struct shape *shape, uint64_t round)
{
	struct device_rounds *r = &side->rounds;
	uint32_t nr_tokens = job_nr_tokens(&shape->job, round, r->rank);
	uint64_t bytes = nr_tokens * job_y_bytes(&shape->job);
	int rc = device_rounds_upload(r, 0, round);

	rc = rc ? rc : wait_all(side);
	rc = rc ? rc : run(side, side->beside, nr_tokens, bytes);
	if (rc)
		return rc;
	memcpy(side->kept, r->host, bytes);
	rc = run(side, side->plain, nr_tokens, bytes);
	for (uint64_t i = 0; i < bytes && !rc; i++)
		if (side->kept[i] != r->host[i])
			return rank_fails(rank,
				"round %llu, token %llu of %u, byte %llu: %#x beside the dispatch, "
				"%#x behind it",
				(unsigned long long)round,
				(unsigned long long)(i / job_y_bytes(&shape->job)), nr_tokens,
				(unsigned long long)(i % job_y_bytes(&shape->job)), side->kept[i],
				r->host[i]);
	return rc;
}

static void body(struct rank *rank)
{
	const struct shape *shape = rank->ctx;
	struct side side = {0};
	int rc = device_choose(ops, (uint32_t)rank->rank);

	side.kept = malloc(shape->job.config.max_tokens * job_y_bytes(&shape->job));
	rc = rc || side.kept ? rc : TERN_ERR_NOMEM;
	rc = rc ? rc : device_rounds_open(&side.rounds, rank->group, &shape->job, ops);
	rc = rc ? rc : layer_weights_create(&side.weights, ops, side.rounds.moe, shape->inner);
	rc = rc ? rc
		: layer_weights_fill(
			  &side.weights, false, shape->job.seed, side.rounds.lanes[0].stream);
	rc = rc ? rc : make_layers(&side, shape);
	rc = rc ? rc : device_rounds_agree(&side.rounds, wait_all(&side));
	for (uint64_t i = 0; i < shape->nr_rounds && !rc; i++)
		rc = compare_round(rank, &side, shape, i);
	if (rc)
		rank_fails(rank, "%d: %s", rc, tern_last_error());
	if (side.rounds.ops && side.rounds.lanes[0].stream)
		ops->stream_wait(side.rounds.lanes[0].stream);
	tern_layer_destroy(side.beside);
	tern_layer_destroy(side.plain);
	devices_close(rank, &side.rounds);
	layer_weights_free(&side.weights);
	free(side.kept);
}

static void draw_shape(uint64_t seed, enum tern_mode mode, struct shape *shape)
{
	uint64_t state = hash2(hash2(seed, mode), 0x6c617965);
	uint64_t hidden = devices_setting("TERN_TEST_HIDDEN", 1024);
	struct job *job = &shape->job;
	struct tern_moe_config *c = &job->config;
	bool fp8 = random_below(&state, 2);

	job_init(job);
	job->seed = state;
	job->nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 2);
	c->nr_experts = job->nr_ranks * (1 + (uint32_t)random_below(&state, 16));
	c->topk = 1 + (uint32_t)random_below(&state, c->nr_experts < 8 ? c->nr_experts : 8);
	c->max_tokens =
		1 + (uint32_t)random_below(&state, devices_setting("TERN_TEST_TOKENS", 100));
	c->hidden = fp8 ? PIECE * (1 + (uint32_t)random_below(&state, hidden / PIECE))
			: 8 * (1 + (uint32_t)random_below(&state, hidden / 8));
	shape->inner = fp8 ? 128 * (1 + (uint32_t)random_below(&state, hidden / 128))
			   : 8 * (1 + (uint32_t)random_below(&state, hidden / 8));
	shape->beside_sms = 1 + (uint32_t)random_below(&state, 131);
	c->mode = mode;
	c->layout = random_below(&state, 2) ? TERN_PADDED : TERN_CONTIGUOUS;
	c->reduce = random_below(&state, 4) ? TERN_REDUCE_EXPERT : TERN_REDUCE_HOME;
	c->dispatch_dtype = fp8 ? TERN_FP8_E4M3 : TERN_BF16;
	c->scale = fp8 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	c->gate_rows = random_below(&state, 2) ? 128 : 64;
	c->device = TERN_DEVICE_CUDA;
	c->wait_ms = 10000;
	job->nr_tokens = c->max_tokens;
	job->input = INPUT_RANDOM;
	job->routing.uneven = true;
	job->routing.drop = random_below(&state, 3) ? 0 : 0.2;
}

static int run_shape(uint64_t seed, enum tern_mode mode, uint64_t nr_rounds)
{
	struct shape shape = {.nr_rounds = nr_rounds};
	const char *failure;
	struct reason why;

	draw_shape(seed, mode, &shape);
	if (job_open(&shape.job, &why)) {
		printf("seed %llu: no job: %s\n", (unsigned long long)seed, why.text);
		return 1;
	}
	failure = run_ranks((int)shape.job.nr_ranks, body, &shape);
	if (failure) {
		printf("seed %llu, inner %u, beside %u: %s\n", (unsigned long long)seed,
			shape.inner, shape.beside_sms, failure);
		devices_print_job(&shape.job);
	}
	job_close(&shape.job);
	return failure != NULL;
}

static int run_mode(enum tern_mode mode)
{
	const char *const name = mode == TERN_LOW_LATENCY ? "ll" : "ht";
	uint64_t first = devices_setting("TERN_TEST_SEED", 1), seed = first, done = 0;
	uint64_t total = devices_setting("TERN_TEST_TOTAL", 60),
		 each = devices_setting("TERN_TEST_ROUNDS", 10);
	int bad = 0;

	for (; !bad && done < total; done += each)
		bad = run_shape(seed++, mode, each);
	printf("# %s, %llu ranks on %d devices: %llu rounds of %llu shapes (seeds %llu to %llu)\n",
		name, (unsigned long long)devices_setting("TERN_TEST_RANKS", 2), nr_devices,
		(unsigned long long)done, (unsigned long long)(seed - first),
		(unsigned long long)first, (unsigned long long)seed - 1);
	printf("%s - layer_%s\n", bad ? "not ok" : "ok", name);
	return bad;
}

int main(void)
{
	ops = devices_open(&nr_devices);
	return ops ? devices_run_modes(run_mode) : 77;
}
