/* SPDX-License-Identifier: Apache-2.0 */
/* What layers took, as a table and as JSON. */
#include "bench/command/layer.h"
#include "bench/command/report.h"

#include <stdio.h>

static const char *const part_names[NR_LAYER_PARTS] = {[LAYER_PART_WHOLE] = "layer",
	[LAYER_PART_DISPATCH] = "dispatch",
	[LAYER_PART_EXPERTS] = "experts",
	[LAYER_PART_COMBINE] = "combine"};

static double over(double us, double floor)
{
	return floor > 0 ? us / floor : 0;
}

static const char *floor_name(const struct layer_floor *f)
{
	return f->whole > f->experts ? "network" : f->weights >= f->flops ? "weights" : "flops";
}

void layer_report_head(const struct layer_bench *b)
{
	const struct bench_args *args = b->args;

	printf("# tern bench --layer %s: %d rank%s, %s, L2 flushed, us by the GPU's clock, one "
	       "graph\n",
		tern_version(), b->nr_ranks, b->nr_ranks == 1 ? "" : "s", b->device);
	if (args->share)
		printf("# one rank's share of %u: rows of all ranks' tokens, no network\n",
			args->share);
	printf("# floor: memory %.2f TB/s, bf16 790 and fp8 1500 TFLOP/s, NVLink 350 GB/s each "
	       "way; the most of these\n",
		b->memory_bytes_us * 1e-6);
	printf("# %-13s %-4s %-2s %6s %7s %4s | %8s %8s %8s %-7s %6s | %8s %8s %8s %6s\n", "preset",
		"type", "md", "tokens", "rows", "exp.", "layer", "p99", "floor", "of", "over",
		"dispatch", "experts", "combine", "over");
}

void layer_report_row(const struct layer_bench *b, const struct layer_result *r)
{
	const struct job *job = &r->bench_case.job;
	const struct spread *s = r->spreads;

	printf("  %-13s %-4s %-2s %6u %7llu %4u |", r->bench_case.shape->name,
		dtype_name(job->config.dispatch_dtype), mode_name(job->config.mode),
		r->bench_case.tokens, (unsigned long long)r->rows.rows, r->rows.hit);
	if (r->error[0] || r->nr_wrong) {
		printf(" %s\n", r->error[0] ? r->error : r->wrong);
		return;
	}
	if (!b->args->only_verify)
		printf(" %8.1f %8.1f %8.1f %-7s %6.3f | %8.1f %8.1f %8.1f %6.3f",
			s[LAYER_PART_WHOLE].p50, s[LAYER_PART_WHOLE].p99, r->floor.whole,
			floor_name(&r->floor), over(s[LAYER_PART_WHOLE].p50, r->floor.whole),
			s[LAYER_PART_DISPATCH].p50, s[LAYER_PART_EXPERTS].p50,
			s[LAYER_PART_COMBINE].p50,
			over(s[LAYER_PART_EXPERTS].p50, r->floor.experts));
	if (r->nr_verified)
		printf(" | %u rounds, %u tokens right", r->nr_verified, r->nr_compared);
	printf("\n");
	fflush(stdout);
}

static void put_result(struct json *json, const struct layer_bench *b, const struct layer_result *r)
{
	const struct job *job = &r->bench_case.job;

	json_text(json, "preset", r->bench_case.shape->name);
	json_number(json, "hidden", job->config.hidden);
	json_number(json, "inner", r->bench_case.shape->inner);
	json_number(json, "experts", r->bench_case.shape->nr_experts);
	json_number(json, "topk", r->bench_case.shape->topk);
	json_text(json, "dtype", dtype_name(job->config.dispatch_dtype));
	json_text(json, "mode", mode_name(job->config.mode));
	json_text(json, "reduce", reduce_name(job->config.reduce));
	json_number(json, "tokens", r->bench_case.tokens);
	json_number(json, "rows", (double)r->rows.rows);
	json_number(json, "rows_away", (double)r->rows.away);
	json_number(json, "experts_hit", r->rows.hit);
	json_number(json, "most_rows", r->rows.most);
	json_number(json, "floor_weights_us", r->floor.weights);
	json_number(json, "floor_flops_us", r->floor.flops);
	json_number(json, "floor_network_us", r->floor.network);
	json_number(json, "floor_us", r->floor.whole);
	json_number(json, "rounds_verified", r->nr_verified);
	json_number(json, "tokens_compared", r->nr_compared);
	json_number(json, "wrong", (double)r->nr_wrong);
	if (r->error[0])
		json_text(json, "error", r->error);
	if (r->error[0] || b->args->only_verify)
		return;
	for (int part = 0; part < NR_LAYER_PARTS; part++)
		json_spread(json, part_names[part], &r->spreads[part]);
	json_number(json, "over_floor", over(r->spreads[LAYER_PART_WHOLE].p50, r->floor.whole));
	json_number(json, "experts_over_floor",
		over(r->spreads[LAYER_PART_EXPERTS].p50, r->floor.experts));
}

int layer_report_json(const struct layer_bench *b, const struct layer_result *results, uint32_t nr)
{
	struct json json;

	if (report_json_open(b->args, &json))
		return -1;
	json_text(&json, "device", b->device);
	json_number(&json, "ranks", b->nr_ranks);
	json_number(&json, "share", b->args->share);
	json_number(&json, "memory_tb_s", b->memory_bytes_us * 1e-6);
	json_number(&json, "iters", b->args->iters);
	json_number(&json, "seed", (double)b->args->job.seed);
	json_begin(&json, "results", '[');
	for (uint32_t i = 0; i < nr; i++) {
		report_json_next(&json, !i);
		put_result(&json, b, &results[i]);
		fputc('}', json.file);
	}
	return report_json_close(b->args, &json);
}
