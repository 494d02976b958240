/* SPDX-License-Identifier: Apache-2.0 */
/* What the lab runs: jobs from shapes, the cases that have goals, and traces. */
#include "bench/lab/lab_ll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void shape_job(const struct shape *s, uint32_t nr_ranks, struct job *job)
{
	job_init(job);
	job->nr_ranks = nr_ranks;
	job->nr_tokens = s->tokens;
	job->seed = 1000 + nr_ranks;
	job->input = s->input;
	job->routing.kind = s->routing;
	job->routing.exponent = 1.2;
	job->routing.drop = s->drop;
	job->routing.uneven = s->uneven;
	job->nr_redundant = s->redundant;
	job->spread = s->spread;
	job->config.hidden = s->hidden;
	job->config.nr_experts = s->experts;
	job->config.topk = s->topk;
	job->config.max_tokens = s->max_tokens;
	job->config.dispatch_dtype = s->fp8 ? TERN_FP8_E4M3 : TERN_BF16;
	job->config.scale = s->fp8 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	job->config.reduce = s->at_home ? TERN_REDUCE_HOME : TERN_REDUCE_EXPERT;
	job->config.weights = s->pass ? TERN_WEIGHTS_PASS : TERN_WEIGHTS_COMBINE;
	job->config.layout = s->padded ? TERN_PADDED : TERN_CONTIGUOUS;
	job->config.alignment = s->alignment ? s->alignment : 1;
}

const struct target targets[NR_TARGETS] = {
	{"dsv3 fp8", 7168, 256, 8, 1, true},
	{"dsv3 fp8", 7168, 256, 8, 8, true},
	{"dsv3 fp8", 7168, 256, 8, 32, true},
	{"dsv3 fp8", 7168, 256, 8, 64, true},
	{"dsv3 fp8", 7168, 256, 8, 128, true},
	{"dsv3 bf16", 7168, 256, 8, 128, false},
	{"qwen3-30b fp8", 2048, 128, 8, 128, true},
	{"gpt-oss bf16", 2880, 128, 4, 128, false},
	/* Between these, and other presets: does the launch rule hold there? */
	{"dsv3 fp8", 7168, 256, 8, 16, true},
	{"dsv3 fp8", 7168, 256, 8, 24, true},
	{"dsv3 fp8", 7168, 256, 8, 48, true},
	{"dsv3 fp8", 7168, 256, 8, 96, true},
	{"dsv3 bf16", 7168, 256, 8, 32, false},
	{"dsv3 bf16", 7168, 256, 8, 64, false},
	{"qwen3-30b fp8", 2048, 128, 8, 8, true},
	{"qwen3-30b fp8", 2048, 128, 8, 32, true},
	{"qwen3-30b fp8", 2048, 128, 8, 64, true},
	{"gpt-oss bf16", 2880, 128, 4, 32, false},
	{"kimi-k2 fp8", 7168, 384, 8, 32, true},
	{"kimi-k2 fp8", 7168, 384, 8, 128, true},
	{"qwen3-235b fp8", 4096, 128, 8, 32, true},
	{"qwen3-235b fp8", 4096, 128, 8, 128, true},
};

struct shape target_shape(const struct target *t)
{
	return (struct shape){t->name, t->hidden, t->experts, t->topk, t->tokens, t->tokens,
		.fp8 = t->fp8, .input = INPUT_RANDOM};
}

#ifdef TERN_TRACE
#define TRACE_BLOCKS 160
#define TRACE_BYTES (TRACE_BLOCKS * GPU_TRACE_MARKS * sizeof(uint64_t))
#define TRACE_ROUNDS 9

static uint64_t set_trace(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	uint64_t *trace = NULL;

	(void)lab;
	if (ctx)
		CHECK(cudaMalloc((void **)&trace, TRACE_BYTES));
	else
		CHECK(cudaFree(rank->dispatch.exchange.trace));
	rank->dispatch.exchange.trace = rank->combine.exchange.trace = trace;
	return 0;
}

/* Each round's to the rank's staging. */
static uint64_t trace_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	(void)ctx;
	lab_inputs(lab, rank, 1);
	for (int i = 0; i < TRACE_ROUNDS; i++) {
		CHECK(cudaMemsetAsync(rank->dispatch.exchange.trace, 0, TRACE_BYTES, rank->stream));
		lab_gate(lab, rank, LAB_HOLD_NS);
		CHECK(ll_dispatch_launch(&rank->dispatch, &lab->way.dispatch, rank->stream));
		CHECK(ll_combine_launch(&rank->combine, &lab->way.combine, rank->stream));
		CHECK(cudaMemcpyAsync(rank->host + i * TRACE_BYTES, rank->dispatch.exchange.trace,
			TRACE_BYTES, cudaMemcpyDeviceToHost, rank->stream));
	}
	CHECK(cudaStreamSynchronize(rank->stream));
	return 0;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

struct event {
	const char *before, *what;
	uint32_t which, start; /* marks: the event's, and that of the kernel's start after which it
				  is told */
};

static const struct event events[] = {
	{"    us, first/median/last block: dispatch", "starts", 0, 0},
	{"", "first row sent", 2, 0},
	{"", "all sent", 1, 0},
	{"", "plans sent", 7, 0},
	{"", "last plan", 3, 0},
	{"", "plans", 4, 0},
	{"", "positions", 5, 0},
	{"", "rows", 6, 0},
	{"\n      combine", "starts", 8, 8},
	{"", "may", 13, 8},
	{"", "first sent", 11, 8},
	{"", "all sent", 9, 8},
	{"", "first home", 12, 8},
	{"", "home", 10, 8},
	{"", "(after the dispatch: ends", 10, 0},
};

/* When the first, the middle and the last of the blocks came there, after the first block's start:
 * medians of all rounds. */
static void print_event(const uint64_t *rounds, const struct event *event)
{
	uint64_t at[3][TRACE_ROUNDS];
	uint32_t nr = 0;

	for (uint32_t i = 0; i < TRACE_ROUNDS; i++) {
		const uint64_t *trace = rounds + (size_t)i * TRACE_BLOCKS * GPU_TRACE_MARKS;
		uint64_t of[TRACE_BLOCKS], first = UINT64_MAX;

		nr = 0;
		for (uint32_t b = 0; b < TRACE_BLOCKS; b++) {
			if (trace[b * GPU_TRACE_MARKS + event->start] &&
				trace[b * GPU_TRACE_MARKS + event->start] < first)
				first = trace[b * GPU_TRACE_MARKS + event->start];
			if (trace[b * GPU_TRACE_MARKS + event->which])
				of[nr++] = trace[b * GPU_TRACE_MARKS + event->which];
		}
		if (!nr)
			return;
		qsort(of, nr, sizeof(of[0]), by_size);
		at[0][i] = of[0] - first;
		at[1][i] = of[nr / 2] - first;
		at[2][i] = of[nr - 1] - first;
	}
	for (int j = 0; j < 3; j++)
		qsort(at[j], TRACE_ROUNDS, sizeof(at[j][0]), by_size);
	printf(" %s %.2f/%.2f/%.2f", event->what, at[0][TRACE_ROUNDS / 2] / 1e3,
		at[1][TRACE_ROUNDS / 2] / 1e3, at[2][TRACE_ROUNDS / 2] / 1e3);
}

void print_trace(struct lab *lab, const struct lab_way *way)
{
	lab_setup(lab, lab->job, way);
	lab_run(lab, set_trace, lab);
	lab_run(lab, trace_rank, NULL);
	const uint64_t *t = (const uint64_t *)lab->ranks[0].host;

	for (uint32_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		fputs(events[i].before, stdout);
		print_event(t, &events[i]);
	}
	printf(")\n");
	lab_run(lab, set_trace, NULL);
}
#else
void print_trace(struct lab *lab, const struct lab_way *way)
{
	(void)lab;
	(void)way;
}
#endif
