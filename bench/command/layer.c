/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/layer.h"
#include "bench/command/start.h"
#include "bench/command/trace.h"
#include "cli/cmd.h"
#include "gpu/host/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define FLUSHED_BYTES (256u << 20)
#define VERIFIED_ROUND (UINT64_C(1) << 38)
/* Of RMS: h is rounded alike but where its last bits differ, and the results are. */
#define FAR_BF16 0.01
#define FAR_FP8 0.03

/* ---- what the experts have ------------------------------------------------------------------- */

static int fill_weights(const struct layer_bench *b, const struct layer_run *run, bool exact)
{
	return layer_weights_fill(
		&b->weights, exact, b->args->job.seed, run->rounds.lanes[0].stream);
}

static int make_layers(struct layer_bench *b, struct layer_run *run)
{
	struct tern_layer_config config;
	int rc;

	tern_layer_config_init(&config);
	layer_weights_give(&b->weights, &config);
	if (b->args->beside_sms != UINT32_MAX)
		config.beside_sms = b->args->beside_sms ? b->args->beside_sms : TERN_BESIDE_NEVER;
	rc = tern_layer_create(run->rounds.moe, &config, &run->swiglu);
	config.activation = TERN_LINEAR_GATED;
	return rc ? rc : tern_layer_create(run->rounds.moe, &config, &run->linear);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static struct tern_dispatch dispatch_of(const struct device_rounds *r, uint32_t nr_tokens)
{
	return (struct tern_dispatch){.size = sizeof(struct tern_dispatch),
		.nr_tokens = nr_tokens,
		.x = r->lanes[0].x,
		.topk_ids = r->lanes[0].ids,
		.topk_weights = (const float *)(void *)r->lanes[0].weights};
}

static int put_part(struct layer_run *run, enum layer_part part, tern_layer *layer,
	uint32_t nr_tokens, struct tern_received *received)
{
	struct device_rounds *r = &run->rounds;
	struct tern_dispatch dispatch = dispatch_of(r, nr_tokens);
	struct tern_combine combine = {.size = sizeof(combine), .y = r->lanes[0].y};

	switch (part) {
	case LAYER_PART_WHOLE:
		return tern_layer_run(layer, &dispatch, r->lanes[0].out, 0);
	case LAYER_PART_DISPATCH:
		return tern_dispatch(r->moe, &dispatch, received);
	case LAYER_PART_EXPERTS:
		return tern_layer_experts(layer, 0, received, r->lanes[0].y);
	default:
		return tern_combine(r->moe, &combine, r->lanes[0].out, 0);
	}
}

static int capture(struct layer_run *run, enum layer_part part, tern_layer *layer,
	uint32_t nr_tokens, struct tern_received *received, struct device_graph **graph)
{
	struct device_rounds *r = &run->rounds;
	int rc = device_passed_on(r, r->ops->capture_begin(r->lanes[0].stream)), end;

	if (rc)
		return rc;
	rc = put_part(run, part, layer, nr_tokens, received);
	end = r->ops->capture_end(r->lanes[0].stream, graph);
	return rc ? rc : device_passed_on(r, end);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static int wait_all(struct layer_run *run)
{
	struct device_rounds *r = &run->rounds;
	int rc = device_passed_on(r, r->ops->stream_wait(r->lanes[0].stream));

	return rc ? rc : tern_moe_status(r->moe);
}

/* Inputs whose sums are exact; what comes home is in r->host. */
static int run_exact(struct layer_bench *b, struct layer_run *run, uint64_t round)
{
	struct device_rounds *r = &run->rounds;
	struct device_lane *lane = &r->lanes[0];
	uint64_t bytes = (uint64_t)job_nr_tokens(r->job, round, r->rank) * b->weights.hidden * 2;
	int rc = device_rounds_upload(r, 0, round); /* ids and weights */

	rc = rc ? rc : wait_all(run);
	if (rc)
		return rc;
	layer_exact_x(r->job, round, r->rank, (uint16_t *)(void *)r->host);
	rc = r->ops->copy(lane->x, r->host, bytes, lane->stream);
	rc = rc ? rc : r->ops->fill(lane->out, 0xff, bytes, lane->stream);
	rc = rc ? rc : r->ops->graph_launch(run->verified, lane->stream);
	rc = rc ? rc : r->ops->copy(r->host, lane->out, bytes, lane->stream);
	rc = device_passed_on(r, rc);
	return rc ? rc : wait_all(run);
}

static int verify_round(
	struct layer_bench *b, struct layer_run *run, uint64_t round, struct layer_result *result)
{
	struct device_rounds *r = &run->rounds;
	int rc = run_exact(b, run, round);

	if (!rc)
		rc = layer_compare(r->job, b->weights.inner, round, r->rank,
			(const uint16_t *)(void *)r->host, &r->difference);
	if (rc > 0)
		result->nr_compared += (uint32_t)rc;
	return rc < 0 ? rc : 0;
}

/* SwiGLU is not exact, but gate is not up there: one round, RMS of differences over RMS. */
static int verify_swiglu(struct layer_bench *b, struct layer_run *run, uint64_t round)
{
	struct device_rounds *r = &run->rounds;
	struct difference *d = &r->difference;
	double far[2] = {0}, most = b->weights.scaled ? FAR_FP8 : FAR_BF16;
	int rc = run_exact(b, run, round);

	if (!rc)
		rc = layer_distance(r->job, b->weights.inner, round, r->rank,
			(const uint16_t *)(void *)r->host, far);
	if (rc >= 0 && !(far[0] <= most * most * far[1]) && !d->nr++)
		snprintf(d->first, sizeof(d->first),
			"layer with SwiGLU, rank %u: RMS of differences over RMS is %.3g, more "
			"than %g",
			r->rank, sqrt(far[0] / far[1]), most);
	return rc < 0 ? rc : 0;
}

static int capture_verified(struct layer_run *run, tern_layer *layer)
{
	struct device_rounds *r = &run->rounds;
	int rc;

	r->ops->graph_destroy(run->verified);
	run->verified = NULL;
	rc = capture(run, LAYER_PART_WHOLE, layer, r->job->nr_tokens, NULL, &run->verified);
	return device_rounds_agree(r, rc);
}

static int verify(struct layer_bench *b, struct layer_run *run, struct layer_result *result)
{
	int rc = fill_weights(b, run, true);

	rc = device_rounds_agree(&run->rounds, rc ? rc : wait_all(run));
	rc = rc ? rc : capture_verified(run, run->linear);
	for (uint32_t i = 0; i < b->args->iters && !rc; i++) {
		rc = verify_round(b, run, VERIFIED_ROUND + i, result);
		result->nr_verified = i + 1;
	}
	rc = device_rounds_agree(&run->rounds, rc);
	rc = rc ? rc : capture_verified(run, run->swiglu);
	rc = rc ? rc : verify_swiglu(b, run, VERIFIED_ROUND);
	return device_rounds_agree(&run->rounds, rc);
}

static int prepare_timed(struct layer_bench *b, struct layer_run *run)
{
	struct device_rounds *r = &run->rounds;
	struct tern_received received = {.size = sizeof(received)};
	int rc = fill_weights(b, run, false);

	rc = rc ? rc : trace_device_begin(b->trace, r);
	rc = rc ? rc : device_rounds_upload(r, 0, DEVICE_TIMED_ROUND);
	if (!rc && !b->args->warm) {
		rc = device_passed_on(r, r->ops->memory_create(FLUSHED_BYTES, &run->flushed));
		rc = rc ? rc
			: device_passed_on(r, r->ops->fill(run->flushed, 0x5a, FLUSHED_BYTES,
						      r->lanes[0].stream));
	}
	rc = rc ? rc : wait_all(run);
	for (enum layer_part part = 0; part < NR_LAYER_PARTS && !rc; part++)
		rc = capture(
			run, part, run->swiglu, r->job->nr_tokens, &received, &run->timed[part]);
	rc = rc ? rc : wait_all(run);
	return device_rounds_agree(r, rc);
}

static int time_round(struct layer_run *run, double us[NR_LAYER_PARTS])
{
	struct device_rounds *r = &run->rounds;
	void *stream = r->lanes[0].stream;
	int rc = 0;

	for (enum layer_part part = 0; part < NR_LAYER_PARTS && !rc; part++) {
		if (run->flushed)
			rc = device_passed_on(
				r, r->ops->flush(run->flushed, FLUSHED_BYTES, stream));
		rc = rc ? rc : device_rounds_start(r);
		rc = rc ? rc : device_passed_on(r, r->ops->graph_launch(run->timed[part], stream));
	}
	rc = rc ? rc : wait_all(run);
	for (enum layer_part part = 0; part < NR_LAYER_PARTS && !rc; part++)
		rc = device_passed_on(r, r->ops->graph_time(run->timed[part], &us[part]));
	return rc;
}

/* times[part * iters + i] */
static int time_rounds(struct layer_bench *b, struct layer_run *run, double *times)
{
	uint32_t iters = b->args->iters, warmup = b->args->warmup;
	double us[NR_LAYER_PARTS];
	int rc = prepare_timed(b, run);

	for (uint32_t i = 0; i < warmup + iters && !rc; i++) {
		rc = time_round(run, us);
		for (int part = 0; part < NR_LAYER_PARTS && i >= warmup && !rc; part++)
			times[(uint32_t)part * iters + i - warmup] = us[part];
	}
	return rc ? rc : trace_device_rounds(b->trace, &run->rounds, run->timed[LAYER_PART_WHOLE]);
}

/* ---- a case ---------------------------------------------------------------------------------- */

static int run_open(struct layer_bench *b, struct layer_run *run, struct layer_result *result)
{
	struct device_rounds *r = &run->rounds;
	int rc = device_rounds_open(r, b->group, &result->bench_case.job, b->ops);

	if (rc)
		return rc;
	job_take_mode(&result->bench_case.job, r->moe);
	rc = layer_weights_create(&b->weights, b->ops, r->moe, result->bench_case.shape->inner);
	rc = rc ? rc : make_layers(b, run);
	return device_rounds_agree(r, rc);
}

static void run_close(struct layer_bench *b, struct layer_run *run)
{
	if (!run->rounds.ops)
		return;
	if (run->rounds.lanes[0].stream)
		b->ops->stream_wait(run->rounds.lanes[0].stream);
	b->ops->graph_destroy(run->verified);
	for (int part = 0; part < NR_LAYER_PARTS; part++)
		b->ops->graph_destroy(run->timed[part]);
	tern_layer_destroy(run->linear);
	tern_layer_destroy(run->swiglu);
	if (run->flushed)
		b->ops->memory_free(run->flushed);
	device_rounds_close(&run->rounds);
}

static int run_alone(struct layer_bench *b, struct layer_result *result, double *times)
{
	struct job *job = &result->bench_case.job;
	struct layer_run run = {0};
	struct reason why;
	int rc;

	job->input = INPUT_EXACT; /* weights; x is this bench's own where it is compared */
	if (job_open(job, &why)) {
		job_close(job);
		return fail(TERN_ERR_INVALID, "%s", why.text);
	}
	rc = run_open(b, &run, result);
	result->rows = layer_rows_of(job, DEVICE_TIMED_ROUND, (uint32_t)b->rank);
	result->floor = layer_floor_of(b, job, &result->rows);
	if (!rc && b->args->verify)
		rc = verify(b, &run, result);
	if (!rc && !b->args->only_verify)
		rc = time_rounds(b, &run, times);
	if (rc)
		snprintf(result->error, sizeof(result->error), "rank %d: %s: %.450s", b->rank,
			tern_strerror(rc), tern_last_error());
	result->code = rc;
	result->nr_wrong = run.rounds.difference.nr;
	snprintf(result->wrong, sizeof(result->wrong), "%.199s", run.rounds.difference.first);
	run_close(b, &run);
	job_close(job);
	return rc;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* The slowest rank's floor, and whatever any has found. */
static void merge(struct layer_result *result, const struct layer_result *other)
{
	if (other->floor.whole > result->floor.whole) {
		result->floor = other->floor;
		result->rows = other->rows;
	}
	if (other->code && !result->error[0])
		memcpy(result->error, other->error, sizeof(result->error));
	if (other->nr_wrong && !result->wrong[0])
		memcpy(result->wrong, other->wrong, sizeof(result->wrong));
	result->code = result->code ? result->code : other->code;
	result->nr_wrong += other->nr_wrong;
	result->nr_compared += other->nr_compared;
}

static int gather(struct layer_bench *b, struct layer_result *result, const double *times)
{
	uint32_t nr = (uint32_t)b->nr_ranks, iters = b->args->iters,
		 values = NR_LAYER_PARTS * iters;
	struct layer_result *results = calloc(nr, sizeof(*results));
	double *all = calloc((size_t)nr * values, sizeof(*all)),
	       *part_of = calloc((size_t)(nr + 1) * iters, sizeof(*part_of));
	int rc = results && all && part_of ? 0 : TERN_ERR_NOMEM;

	rc = rc ? rc : tern_group_allgather(b->group, result, results, sizeof(*result));
	rc = rc ? rc : tern_group_allgather(b->group, times, all, values * sizeof(*times));
	for (uint32_t r = 0; r < nr && !rc; r++)
		if (r != (uint32_t)b->rank)
			merge(result, &results[r]);
	for (uint32_t part = 0; part < NR_LAYER_PARTS && !rc; part++) {
		for (uint32_t r = 0; r < nr; r++)
			memcpy(part_of + (size_t)r * iters, all + r * values + part * iters,
				iters * sizeof(*times));
		spread_of_slowest(
			part_of, nr, iters, part_of + (size_t)nr * iters, &result->spreads[part]);
	}
	free(results);
	free(all);
	free(part_of);
	return rc;
}

static int run_case(struct layer_bench *b, struct layer_result *result)
{
	double *times = calloc((size_t)NR_LAYER_PARTS * b->args->iters, sizeof(*times));
	int rc = times ? 0 : TERN_ERR_NOMEM;

	if (!rc)
		run_alone(b, result, times);
	rc = rc ? rc : gather(b, result, times);
	rc = rc ? rc : trace_file_add(b->trace, &result->bench_case);
	free(times);
	return rc;
}

/* What such devices read at best: of an H200 as measured, of others as their data sheets say. */
static void find_device(struct layer_bench *b)
{
	static const struct {
		const char *name;
		double bytes_us;
	} known[] = {{"H200", 4.3e6}, {"H100 PCIe", 2.0e6}, {"H100 NVL", 3.9e6}, {"H100", 3.35e6}};
	struct device_identity identity = {.ordinal = 0};

	b->memory_bytes_us = 4.3e6;
	if (device_ops_load()->identify(&identity))
		return;
	memcpy(b->device, identity.name, sizeof(b->device));
	for (unsigned int i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strstr(b->device, known[i].name)) {
			b->memory_bytes_us = known[i].bytes_us;
			return;
		}
}

static int run_all(struct layer_bench *b, struct layer_result *results, uint32_t *nr)
{
	int rc = 0, code = 0;

	for (unsigned int i = 0; i < args_nr_cases(b->args) && !rc; i++) {
		struct layer_result *result = &results[*nr];

		if (args_case(b->args, i, (uint32_t)b->nr_ranks, &result->bench_case))
			continue;
		rc = run_case(b, result);
		if (rc)
			break;
		(*nr)++;
		code = code || result->code || result->nr_wrong;
		if (!b->rank && !b->args->quiet)
			layer_report_row(b, result);
	}
	return rc ? fail_with(b->args, "the ranks lost each other", rc) : code;
}

int run_layers(const struct bench_args *args, tern_group *group, struct trace_file *trace)
{
	struct layer_bench b = {.args = args,
		.group = group,
		.trace = trace,
		.rank = tern_group_rank(group),
		.nr_ranks = tern_group_nr_ranks(group),
		.ops = bench_device_ops_load()};
	struct layer_result *results = calloc(args_nr_cases(args), sizeof(*results));
	uint32_t nr = 0;
	int rc = b.ops ? device_choose(b.ops, (uint32_t)b.rank) : TERN_ERR_UNSUPPORTED;

	if (!rc && !results)
		rc = TERN_ERR_NOMEM;
	if (rc) {
		free(results);
		return fail_with(args, "layers", rc);
	}
	find_device(&b);
	if (!b.rank && !args->quiet)
		layer_report_head(&b);
	rc = run_all(&b, results, &nr);
	layer_weights_free(&b.weights);
	if (!b.rank && args->json && layer_report_json(&b, results, nr))
		rc = 1;
	free(results);
	return rc;
}
