/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench: one case on one rank's device. */
#include "bench/command/case.h"
#include "bench/command/start.h"
#include "testkit/device/rounds.h"

#include <stdio.h>
#include <string.h>

struct device_timing {
	struct device_rounds rounds;
	struct nccl_rounds nccl;
	struct device_overlap overlap;
};

/* Rounds of other inputs than those that are verified without work between the halves. */
#define OVERLAP_ROUND (UINT64_C(1) << 39)

/* Round i of the exchange, with work beside it if asked for, and of the same over NCCL; who goes
 * first changes. */
static int device_time_round(struct device_timing *d, struct timing *t, uint32_t i, bool counts)
{
	int rc = 0;

	for (uint32_t k = 0; k < 2 && !rc; k++) {
		bool nccl = (i + k) % 2;

		if (!nccl)
			rc = device_rounds_time(&d->rounds, counts ? &t->times : NULL, i);
		else if (d->nccl.device)
			rc = nccl_rounds_time(&d->nccl, counts ? t->nccl : NULL, i);
	}
	if (!rc && d->overlap.rounds)
		rc = device_overlap_time(&d->overlap, counts ? t->overlap : NULL, i);
	return rc;
}

static int device_time_rounds(struct bench *bench, struct device_timing *d, struct timing *t)
{
	uint32_t i, total = bench->args->iters;
	int rc;

	d->rounds.cold = !bench->args->warm;
	d->rounds.rest_ns = (uint64_t)bench->args->rest_us * 1000;
	d->rounds.graph_tokens = bench->args->graph_tokens;
	rc = trace_device_begin(bench->trace, &d->rounds);
	rc = rc ? rc : device_rounds_prepare(&d->rounds);
	if (!rc && d->overlap.rounds)
		rc = device_overlap_prepare(&d->overlap);
	for (i = 0; i < bench->args->warmup && !rc; i++)
		rc = device_time_round(d, t, i, false);
	rc = rc ? rc : tern_moe_stats_reset(d->rounds.moe);
	for (i = 0; i < total && !rc; i++) {
		tell_progress(bench, "timing", i, total);
		rc = device_time_round(d, t, i, true);
	}
	return rc ? rc : trace_device_rounds(bench->trace, &d->rounds, d->rounds.lanes[0].pair);
}

/* One round is always compared: what is wrong need not be timed. */
static int verify_nccl(struct bench *bench, struct device_timing *d)
{
	uint32_t i, total = bench->args->verify ? bench->args->iters : 1;
	int rc = nccl_rounds_open(&d->nccl, &d->rounds);

	for (i = 0; i < total && !rc; i++) {
		tell_progress(bench, "verifying NCCL", i, total);
		rc = nccl_rounds_verify(&d->nccl, i);
	}
	return rc;
}

static int verify_overlap(struct bench *bench, struct device_timing *d, struct bench_result *result)
{
	uint32_t done = 0, total = bench->args->verify ? bench->args->iters : 0;
	int nr, rc = device_overlap_open(&d->overlap, &d->rounds, bench->args);

	while (done < total && !rc) {
		tell_progress(bench, "verifying rounds with work beside them", done, total);
		nr = device_overlap_verify(&d->overlap, OVERLAP_ROUND + done);
		rc = nr < 0 ? nr : 0;
		done += nr > 0 ? (uint32_t)nr : 0;
	}
	result->nr_verified += done;
	return rc;
}

static int device_run_rounds(struct bench *bench, struct device_timing *d, struct timing *t,
	struct bench_result *result, struct outcome *outcome)
{
	uint32_t round, slots = result->bench_case.job.config.nr_slots;
	int rc = 0;

	for (round = 0; round < bench->args->iters && bench->args->verify && !rc; round += slots) {
		tell_progress(bench, "verifying", round, bench->args->iters);
		rc = device_rounds_verify(&d->rounds, round);
		result->nr_verified = round + slots;
	}
	if (!rc && result->nr_overlap)
		rc = verify_overlap(bench, d, result);
	if (!rc && is_against(bench->args, "nccl"))
		rc = verify_nccl(bench, d);
	if (!rc && !bench->args->only_verify)
		rc = device_time_rounds(bench, d, t);
	outcome->memory.size = sizeof(outcome->memory);
	outcome->stats.size = sizeof(outcome->stats);
	rc = rc ? rc : tern_moe_stats(d->rounds.moe, &outcome->stats);
	return rc ? rc : tern_moe_memory(d->rounds.moe, &outcome->memory);
}

static void describe_difference(struct outcome *outcome, const struct device_timing *d)
{
	outcome->nr_wrong = d->rounds.difference.nr;
	outcome->nr_nccl_wrong = d->nccl.difference.nr;
	if (outcome->nr_wrong)
		memcpy(outcome->wrong, d->rounds.difference.first, sizeof(outcome->wrong));
	else if (outcome->nr_nccl_wrong)
		snprintf(outcome->wrong, sizeof(outcome->wrong), "over NCCL: %.370s",
			d->nccl.difference.first);
}

void run_on_device(
	struct bench *bench, struct timing *t, struct bench_result *result, struct outcome *outcome)
{
	const struct bench_device_ops *ops = bench_device_ops_load();
	struct device_timing d = {0};

	outcome->rc = ops ? device_choose(ops, (uint32_t)bench->rank) : TERN_ERR_UNSUPPORTED;
	if (!outcome->rc)
		outcome->rc =
			device_rounds_open(&d.rounds, bench->group, &result->bench_case.job, ops);
	if (!outcome->rc) {
		job_take_mode(&result->bench_case.job, d.rounds.moe);
		outcome->rc = device_run_rounds(bench, &d, t, result, outcome);
	}
	describe_failure(bench, outcome);
	describe_difference(outcome, &d);
	nccl_rounds_close(&d.nccl);
	device_overlap_close(&d.overlap);
	if (d.rounds.ops)
		device_rounds_close(&d.rounds);
}
