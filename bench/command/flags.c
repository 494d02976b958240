/* SPDX-License-Identifier: Apache-2.0 */
/* One table: what `tern bench` takes, what it sets, and what the help says of it. */
#include "bench/command/args_values.h"
#include "bench/command/flags.h"
#include "testkit/words.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORK_US 100000

/* ---- what sets them -------------------------------------------------------------------------- */

static int set_number(void *ctx, const struct option_row *row, const char *text)
{
	struct bench_args *args = ctx;
	uint32_t number;

	if (value_number(args, row->name, text, (uint32_t)row->least, (uint32_t)row->most, &number))
		return -1;
	option_store(args, row, number);
	return 0;
}

static int set_word(void *ctx, const struct option_row *row, const char *text)
{
	struct bench_args *args = ctx;
	int value;

	if (value_word(args, row->name, text, row->values, &value))
		return -1;
	option_store(args, row, (uint64_t)value);
	return 0;
}

static struct int_list *list_of(struct bench_args *args, const struct option_row *row)
{
	return (struct int_list *)(void *)((char *)args + row->at);
}

static int set_words(void *args, const struct option_row *row, const char *text)
{
	list_of(args, row)->given = true;
	return value_words(args, row->name, text, row->values, list_of(args, row));
}

static int set_numbers(void *args, const struct option_row *row, const char *text)
{
	list_of(args, row)->given = true;
	return value_numbers(args, row->name, text, (uint32_t)row->most, list_of(args, row));
}

static int set_presets(void *args, const struct option_row *row, const char *text)
{
	(void)row;
	return value_presets(args, text);
}

static int set_routing(void *ctx, const struct option_row *row, const char *text)
{
	struct bench_args *args = ctx;
	struct reason why;

	return routing_parse(&args->job.routing, text, &why)
		       ? args_wrong(args, "--%s: %s", row->name, why.text)
		       : 0;
}

static int set_drop(void *ctx, const struct option_row *row, const char *text)
{
	struct bench_args *args = ctx;

	return value_share(args, row->name, text, &args->job.routing.drop);
}

static int set_seed(void *args, const struct option_row *row, const char *text)
{
	(void)row;
	return value_seed(args, text);
}

static int set_against(void *ctx, const struct option_row *row, const char *text)
{
	struct bench_args *args = ctx;
	int value;

	args->against = text;
	return value_word(args, row->name, text, row->values, &value);
}

static int set_only_verify(void *ctx, const struct option_row *row, const char *text)
{
	struct bench_args *args = ctx;

	(void)row;
	(void)text;
	args->only_verify = true;
	args->verify = true;
	return 0;
}

/* ---- the flags ------------------------------------------------------------------------------- */

#define FIELD(field) OPTION_FIELD(struct bench_args, field)
#define FLAG(field) .set = option_flag, FIELD(field)
#define NUMBER(field, from, to) .set = set_number, FIELD(field), .least = from, .most = to
#define WORD(field, words) .set = set_word, FIELD(field), .values = words
#define WORDS(field, words) .set = set_words, FIELD(field), .values = words

const struct option_row bench_flags[] = {
	{.help = "Ranks"},
	{.name = "ranks",
		.argument = "N",
		NUMBER(nr_ranks, 1, 4096),
		.help = "ranks to start on this machine (default 4)"},
	{.name = "nodes",
		.argument = "N",
		NUMBER(nr_nodes, 1, 16),
		.help = "spread them over N nodes: network namespaces on a bridge, which takes "
			"root, else by name (default 1)"},
	{.name = "transport",
		.argument = "T",
		.set = option_text,
		FIELD(transport),
		.help = "between nodes: verbs, ofi, ofi:PROVIDER, shm, or several as verbs+ofi "
			"(default: TERN_TRANSPORT, else verbs+ofi)"},
	{.help = "The exchange"},
	{.name = "preset",
		.argument = "NAME",
		.set = set_presets,
		.mark = "+",
		.help = "deepseek-v3 (default), kimi-k2, qwen3-30b-a3b, qwen3-235b-a22b, "
			"gpt-oss-120b, glm-4.5, custom"},
	{.name = "hidden",
		.argument = "H",
		NUMBER(job.config.hidden, 1, 1u << 20),
		.help = "elements of a row, instead of the preset's"},
	{.name = "experts",
		.argument = "E",
		NUMBER(job.config.nr_experts, 1, 1u << 16),
		.help = "instead of the preset's"},
	{.name = "topk",
		.argument = "K",
		NUMBER(job.config.topk, 1, TERN_MAX_TOPK),
		.help = "experts of a token, instead of the preset's"},
	{.name = "tokens",
		.argument = "LIST",
		.set = set_numbers,
		FIELD(tokens),
		.most = MOST_TOKENS,
		.mark = "+",
		.help = "tokens a rank: 1,8,32 or 1-4096 (doubling) or 1-4096*4 (default "
			"1,8,32,64,128)"},
	{.name = "max-tokens",
		.argument = "T",
		NUMBER(max_tokens, 1, MOST_TOKENS),
		.help = "most tokens the exchange is made for (default: the tokens; where times "
			"are "
			"taken on a GPU at least 128)"},
	{.name = "sweep",
		FLAG(sweep),
		.help = "what one exchange does at every size: tokens 1-4096 in both modes, in "
			"exchanges for the most of them, unless these flags say otherwise; then "
			"which mode is faster where"},
	{.name = "mode",
		.argument = "M",
		WORDS(modes, mode_words),
		.mark = "+",
		.help = "ll (low latency, default), ht (high throughput), auto (the one that an "
			"exchange takes that is not told; all are the first two)"},
	{.name = "dtype",
		.argument = "D",
		WORDS(dtypes, dtype_words),
		.mark = "+",
		.help = "of dispatched rows: fp8 (default), bf16, fp16, fp32, bytes"},
	{.name = "x-dtype",
		.argument = "D",
		WORD(x_dtype, dtype_words),
		.help = "what the caller passes: the dtype, or for fp8 bf16 (default), fp16, fp32 "
			"or fp8"},
	{.name = "scale",
		.argument = "S",
		WORD(scale, scale_words),
		.help = "of fp8: fp32 (default), ue8m0"},
	{.name = "payload",
		.argument = "BYTES",
		NUMBER(payload_bytes, 1, 1u << 24),
		.help = "a row of dtype bytes (default: as many as bf16)"},
	{.name = "combine-dtype",
		.argument = "D",
		WORD(combine_dtype, combine_dtype_words),
		.help = "bf16, fp16, fp32 (default: the dtype if it is one of them, else bf16)"},
	{.name = "layout",
		.argument = "L",
		WORDS(layouts, layout_words),
		.mark = "+",
		.help = "contiguous (default), padded, source"},
	{.name = "reduce",
		.argument = "R",
		WORDS(reduces, reduce_words),
		.mark = "+",
		.help = "expert (default), home"},
	{.name = "weights",
		.argument = "W",
		WORDS(weights, weight_words),
		.mark = "+",
		.help = "combine (default), pass (default of layout source)"},
	{.name = "align",
		.argument = "N",
		NUMBER(job.config.alignment, 1, 1u << 20),
		.help = "rows, of layout contiguous (default #)"},
	{.name = "capacity",
		.argument = "N",
		NUMBER(job.config.capacity, 0, UINT32_MAX),
		.help = "most rows received: of one expert (padded), else of all; ht only (default "
			"0: the worst case)"},
	{.name = "slots",
		.argument = "N",
		NUMBER(job.config.nr_slots, 1, 16),
		.help = "micro-batches in flight (default #)"},
	{.name = "threads",
		.argument = "N",
		NUMBER(job.config.nr_threads, 1, 256),
		.help = "of each rank, which pack, copy and sum its rows; on CPUs (default: "
			"TERN_THREADS, else 1)"},
	{.name = "replicas",
		.argument = "N",
		NUMBER(job.nr_redundant, 0, 1u << 16),
		.help = "redundant experts (default #)"},
	{.name = "replica-choice",
		.argument = "C",
		WORD(job.config.replicas, replicas_words),
		.help = "auto (default), in-turn, least-loaded"},
	{.name = "moves",
		.argument = "N",
		NUMBER(job.place_in, 0, 1u << 20),
		.help = "experts move every N rounds, in the dispatch's time; on CPUs (default 0: "
			"never)"},
	{.name = "replica-ranks",
		.argument = "N",
		NUMBER(job.config.replica_ranks, 1, 4096),
		.help = "tensor-parallel ranks that share their tokens (default #)"},
	{.name = "spread",
		FLAG(job.spread),
		.help = "experts round-robin over the ranks instead of in blocks"},
	{.help = "Inputs"},
	{.name = "no-weights", FLAG(job.no_weights), .help = "pass no gate weights: all are 1"},
	{.name = "routing",
		.argument = "R",
		.set = set_routing,
		.help = "uniform (default), zipf:S, grouped, one, IDS.npy or IDS.npy,WEIGHTS.npy"},
	{.name = "drop",
		.argument = "SHARE",
		.set = set_drop,
		.help = "of routes without an expert, 0 to 1 (default 0)"},
	{.name = "uneven",
		FLAG(job.routing.uneven),
		.help = "token counts from 0 to --tokens, different on each rank and in each "
			"round"},
	{.name = "seed",
		.argument = "N",
		.set = set_seed,
		FIELD(job.seed),
		.help = "of all inputs (default #)"},
	{.name = "input",
		.argument = "I",
		WORD(job.input, input_words),
		.help = "random (default), exact (small integers), special (with NaN and "
			"infinity)"},
	{.help = "What is done"},
	{.name = "iters",
		.argument = "N",
		NUMBER(iters, 1, 10000000),
		.help = "measured rounds (default #)"},
	{.name = "warmup",
		.argument = "N",
		NUMBER(warmup, 0, 10000000),
		.help = "rounds before (default #)"},
	{.name = "wait",
		.argument = "MS",
		NUMBER(job.config.wait_ms, 1, 86400000),
		.help = "longest wait of one call (default #)"},
	{.name = "first-epoch",
		.argument = "N",
		NUMBER(job.config.first_epoch, 0, UINT32_MAX),
		.help = "number of the first round, to try how the counter wraps at 2^32 (default "
			"#)"},
	{.name = "verify",
		FLAG(verify),
		.help = "also --iters rounds with fresh inputs, every element compared with a "
			"plain reference, bit for bit"},
	{.name = "only-verify", .set = set_only_verify, .help = "the same, and measure nothing"},
	{.name = "jitter",
		.argument = "US",
		NUMBER(jitter_us, 0, 1000000),
		.help = "in verified rounds each rank sleeps up to so long before each half "
			"(default #)"},
	{.name = "against",
		.argument = "WHAT",
		.set = set_against,
		.values = against_words,
		.help = "mpi: then the same job over MPI_Alltoallv; libfabric: raw writes of the "
			"same bytes, round by round; nccl (--device cuda): counts exchange, "
			"permutations, ncclSend and ncclRecv, round by round, compared with the "
			"reference"},
	{.help = "GPUs"},
	{.name = "device",
		.argument = "D",
		WORD(job.config.device, device_words),
		.help = "cpu (default), cuda: rank r on GPU r modulo the GPUs there are; times by "
			"the GPU's clock, of graphs"},
	{.name = "sms",
		.argument = "N",
		NUMBER(job.config.nr_sms, 0, 1024),
		.help = "most SMs that a half may take on a GPU, for which exchanges are made then "
			"(default 0: the library's choice)"},
	{.name = "warm",
		.set = option_flag,
		FIELD(warm),
		.help = "leave a GPU's caches as they are before a timed round; else L2 is "
			"flushed, "
			"as by what runs between two layers"},
	{.name = "rest",
		.argument = "US",
		NUMBER(rest_us, 0, 1000000),
		.help = "on GPUs all ranks have met, and then do nothing for so long, before a "
			"timed round "
			"(default #)"},
	{.name = "graph-tokens",
		.argument = "N",
		NUMBER(graph_tokens, 0, MOST_TOKENS),
		.help = "on GPUs timed graphs are captured for N tokens, of which those of "
			"--tokens "
			"are sent, as their number in the GPU's memory says (default #: for as "
			"many "
			"as are sent)"},
	{.name = "gates",
		.argument = "N",
		NUMBER(job.config.gate_rows, 0, 128),
		.help = "make an exchange whose rows kernels may read while others still come, in "
			"tiles of 64 or 128; on GPUs of one node (default #: none)"},
	{.name = "overlap",
		.argument = "US",
		.set = set_numbers,
		FIELD(overlap),
		.most = MOST_WORK_US,
		.help = "beside it on a GPU: both halves by themselves; and how much time rounds "
			"add to work that keeps all SMs busy, works of US microseconds, up to 8 "
			"values: two works with a round split around them, and with --slots 2 four "
			"works with two rounds on a stream beside them; 0: no work"},
	{.name = "layer",
		FLAG(layer),
		.help = "with the experts in it, on GPUs: dispatch, gate and up with SwiGLU, down, "
			"combine in one graph, beside the least time that memory, arithmetic and "
			"links allow"},
	{.name = "inner",
		.argument = "I",
		NUMBER(inner, 1, 1u << 20),
		.help = "of --layer: width inside an expert, instead of the preset's"},
	{.name = "share",
		.argument = "N",
		NUMBER(share, 1, 1024),
		.help = "of --layer: what one rank of N has to do, alone on one GPU (--ranks 1): "
			"its part of the experts, and the rows that all ranks' tokens bring them"},
	{.name = "beside",
		.argument = "N",
		NUMBER(beside_sms, 0, 1024),
		.help = "of --layer with --gates: the dispatch takes at most N SMs of each GPU, "
			"and gate and up begin beside it; 0: when it has ended (default: the "
			"library's choice)"},
	{.help = "Output"},
	{.name = "json",
		.argument = "FILE",
		.set = option_text,
		FIELD(json),
		.help = "all results, settings and the machine; - for stdout"},
	{.name = "trace",
		.argument = "FILE",
		.set = option_text,
		FIELD(trace),
		.help = "what ranks' threads, or GPUs' blocks, do in four more rounds of each "
			"case, for "
			"ui.perfetto.dev (needs tern-traced beside tern: make traced)"},
	{.name = "progress",
		FLAG(progress),
		.help = "say on stderr what is running, also if it is no terminal"},
	{.name = "quiet", FLAG(quiet), .help = "no table"},
	{.name = "help", FLAG(help), .help = "this text"},
	{0},
};
