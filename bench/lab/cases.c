/* SPDX-License-Identifier: Apache-2.0 */
/* What the lab runs: jobs from shapes, the cases that have goals, and traces. */
#include "lab_ll.h"

#include <stdio.h>
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
	{"dsv3 fp8", 7168, 256, 8, 1, true},	{"dsv3 fp8", 7168, 256, 8, 8, true},	 {"dsv3 fp8", 7168, 256, 8, 32, true},
	{"dsv3 fp8", 7168, 256, 8, 64, true},	{"dsv3 fp8", 7168, 256, 8, 128, true},	 {"dsv3 bf16", 7168, 256, 8, 128, false},
	{"qwen3-30b fp8", 2048, 128, 8, 128, true}, {"gpt-oss bf16", 2880, 128, 4, 128, false},
};

struct shape target_shape(const struct target *t)
{
	return (struct shape){t->name, t->hidden, t->experts, t->topk, t->tokens, t->tokens, .fp8 = t->fp8, .input = INPUT_RANDOM};
}

static uint64_t set_trace(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	long long *trace = NULL;

	(void)lab;
	if (ctx) {
		CHECK(cudaMallocHost((void **)&trace, LL_TRACE * sizeof(*trace)));
		memset(trace, 0, LL_TRACE * sizeof(*trace));
	}
	rank->dispatch.exchange.trace = rank->combine.exchange.trace = trace;
	return 0;
}

static uint64_t trace_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	(void)ctx;
	lab_inputs(lab, rank, 1);
	for (int i = 0; i < 5; i++) {
		lab_gate(lab, rank, LAB_HOLD_NS);
		CHECK(ll_dispatch_launch(&rank->dispatch, &lab->way.dispatch, rank->stream));
		CHECK(ll_combine_launch(&rank->combine, &lab->way.combine, rank->stream));
	}
	CHECK(cudaStreamSynchronize(rank->stream));
	return 0;
}

static void print_event(const char *what, long long at, long long start)
{
	if (at)
		printf("      %s after %lld\n", what, at - start);
}

void print_trace(struct lab *lab, const struct lab_way *way)
{
	lab_setup(lab, lab->job, way);
	lab_run(lab, set_trace, lab);
	lab_run(lab, trace_rank, NULL);
	const long long *t = lab->ranks[0].dispatch.exchange.trace;
	printf("    block 0, clocks: dispatch sent %lld, plans %lld, positions %lld, rows %lld; combine sent %lld, received %lld\n", t[1] - t[0], t[4] - t[0],
		t[5] - t[0], t[6] - t[0], t[9] - t[8], t[10] - t[8]);
	print_event("the last rank's plan here", t[3], t[0]);
	print_event("first segment of results sent", t[11], t[8]);
	print_event("first segment summed at home", t[12], t[8]);
	lab_run(lab, set_trace, NULL);
}
