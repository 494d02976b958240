/* SPDX-License-Identifier: Apache-2.0 */
/* What `tern bench` is told: defaults, and which flags go with which. */
#include "bench/command/args_values.h"
#include "bench/command/flags.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_defaults(struct bench_args *args, const char *program)
{
	memset(args, 0, sizeof(*args));
	args->program = program;
	job_init(&args->job);
	args->job.config.hidden = args->job.config.nr_experts = args->job.config.topk =
		0; /* the
		      preset's
		    */
	args->job.input = INPUT_RANDOM;
	args->iters = 20;
	args->beside_sms = UINT32_MAX;
	args->warmup = 5;
	args->scale = TERN_SCALE_FP32;
	value_presets(args, "deepseek-v3");
	value_numbers(args, "tokens", "1,8,32,64,128", MOST_TOKENS, &args->tokens);
	list_add(&args->modes, TERN_LOW_LATENCY);
	list_add(&args->dtypes, TERN_FP8_E4M3);
	list_add(&args->layouts, TERN_CONTIGUOUS);
	list_add(&args->reduces, TERN_REDUCE_EXPERT);
	list_add(&args->weights, TERN_WEIGHTS_COMBINE);
}

static void choose_sweep(struct bench_args *args)
{
	if (!args->tokens.given)
		value_numbers(args, "tokens", "1-4096", MOST_TOKENS, &args->tokens);
	if (!args->modes.given)
		list_add(&args->modes, TERN_HIGH_THROUGHPUT);
	if (args->max_tokens)
		return;
	for (unsigned int i = 0; i < args->tokens.nr; i++)
		if ((uint32_t)args->tokens.value[i] > args->max_tokens)
			args->max_tokens = (uint32_t)args->tokens.value[i];
}

static int check_layer(struct bench_args *args)
{
	const struct tern_moe_config *config = &args->job.config;

	if (!args->layer && (args->inner || args->share || args->beside_sms != UINT32_MAX))
		return args_wrong(args, "--inner, --share and --beside go with --layer");
	if (args->beside_sms != UINT32_MAX && !config->gate_rows)
		return args_wrong(args, "--beside needs --gates");
	if (!args->layer)
		return 0;
	if (config->device != TERN_DEVICE_CUDA)
		return args_wrong(args, "--layer needs --device cuda");
	if (args->against || args->overlap.nr || args->sweep || args->job.nr_redundant ||
		args->job.spread || config->nr_slots > 1 || config->replica_ranks > 1 ||
		args->job.routing.uneven || (args->x_dtype && args->x_dtype != TERN_BF16))
		return args_wrong(args,
			"--layer goes with none of --against, --overlap, --sweep, --replicas, "
			"--spread, --slots, --replica-ranks, --uneven and --x-dtype");
	if (args->share && args->nr_ranks > 1)
		return args_wrong(args, "--share is one rank alone: --ranks 1");
	args->nr_ranks = args->share ? 1 : args->nr_ranks;
	return 0;
}

static int check_tokens(struct bench_args *args)
{
	uint32_t most = args->graph_tokens ? args->graph_tokens : args->max_tokens;

	if (args->graph_tokens && !args->max_tokens)
		args->max_tokens = args->graph_tokens;
	if (args->graph_tokens > args->max_tokens)
		return args_wrong(args, "--graph-tokens is %u, more than --max-tokens, %u",
			args->graph_tokens, args->max_tokens);
	for (unsigned int i = 0; i < args->tokens.nr; i++)
		if (most && (uint32_t)args->tokens.value[i] > most)
			return args_wrong(args, "--tokens has %d, more than --%s-tokens, %u",
				args->tokens.value[i], args->graph_tokens ? "graph" : "max", most);
	return 0;
}

static int check(struct bench_args *args)
{
	const struct tern_moe_config *config = &args->job.config;
	unsigned int i;

	if (args->against && !strcmp(args->against, "nccl") != (config->device == TERN_DEVICE_CUDA))
		return args_wrong(args, config->device == TERN_DEVICE_CUDA
						? "--device cuda is compared with nccl alone"
						: "--against nccl needs --device cuda");
	if (args->job.place_in && (args->against || config->device == TERN_DEVICE_CUDA))
		return args_wrong(args, "--moves goes with neither --against nor --device cuda");
	if (args->trace && args->only_verify)
		return args_wrong(args, "--trace does not go with --only-verify");
	if (args->overlap.nr && config->device != TERN_DEVICE_CUDA)
		return args_wrong(args, "--overlap needs --device cuda");
	if (args->overlap.nr > ARGS_MAX_OVERLAP)
		return args_wrong(args, "--overlap has more than %d values", ARGS_MAX_OVERLAP);
	if (args->graph_tokens &&
		(config->device != TERN_DEVICE_CUDA || args->layer || args->overlap.nr))
		return args_wrong(args,
			"--graph-tokens needs --device cuda, and goes with neither --layer nor "
			"--overlap");
	if (check_layer(args))
		return -1;
	for (i = 0; i < args->nr_shapes; i++) {
		struct bench_shape *shape = &args->shapes[i];

		if (!strcmp(shape->name, "custom") &&
			!(config->hidden && config->nr_experts && config->topk))
			return args_wrong(
				args, "--preset custom needs --hidden, --experts and --topk");
		if (config->hidden || config->nr_experts || config->topk)
			shape->name = "custom";
		shape->hidden = config->hidden ? config->hidden : shape->hidden;
		shape->nr_experts = config->nr_experts ? config->nr_experts : shape->nr_experts;
		shape->topk = config->topk ? config->topk : shape->topk;
		shape->inner = args->inner ? args->inner : shape->inner;
		if (args->layer && !shape->inner)
			return args_wrong(
				args, "--layer with --preset %s needs --inner", shape->name);
		if (args->share && shape->nr_experts % args->share)
			return args_wrong(args, "--share is %u, which does not divide %u experts",
				args->share, shape->nr_experts);
		if (shape->topk > shape->nr_experts)
			return args_wrong(args, "--topk is %u, more than the %u experts",
				shape->topk, shape->nr_experts);
	}
	return check_tokens(args);
}

void args_usage(const struct bench_args *args)
{
	struct bench_args defaults;

	set_defaults(&defaults, args->program);
	printf("Usage: %s [flags]\n"
	       "Measures dispatch and combine. Starts the ranks itself unless a launcher (tern "
	       "run, "
	       "mpirun) has\n"
	       "done so. Flags marked + take several values with commas between them, or all; "
	       "every "
	       "combination\n"
	       "is measured.\n",
		args->program);
	options_print(bench_flags, &defaults, stdout);
	fputs("\n"
	      "Times are those of the slowest rank of each round, in microseconds: dispatch and "
	      "combine each\n"
	      "after a barrier, pair both as one. GB/s is bytes (stored by one rank in a round, "
	      "both ways) over\n"
	      "the pair's p50. The exit code is 1 when anything is wrong, 2 when a flag is.\n",
		stdout);
}

int args_parse(struct bench_args *args, const char *program, int argc, char **argv)
{
	int rc;

	set_defaults(args, program);
	argv[0] = (char *)program; /* for getopt's messages */
	opterr = !args_silent();
	rc = options_parse(bench_flags, args, argc, argv, false);
	if (rc == OPTIONS_UNKNOWN && !args_silent())
		fprintf(stderr, "Try '%s --help'.\n", args->program);
	if (rc)
		return -1;
	if (optind < argc)
		return args_wrong(args, "\"%.100s\" is not a flag", argv[optind]);
	if (args->sweep)
		choose_sweep(args);
	return check(args);
}
