/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/args_values.h"
#include "testkit/words.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS (1u << 20)
#define MOST_WORK_US 100000

/* ---- flags ----------------------------------------------------------------------------------- */

enum flag {
	FLAG_RANKS = 256,
	FLAG_NODES,
	FLAG_TRANSPORT,
	FLAG_PRESET,
	FLAG_TOKENS,
	FLAG_MAX_TOKENS,
	FLAG_HIDDEN,
	FLAG_EXPERTS,
	FLAG_TOPK,
	FLAG_MODE,
	FLAG_DTYPE,
	FLAG_X_DTYPE,
	FLAG_SCALE,
	FLAG_PAYLOAD,
	FLAG_COMBINE_DTYPE,
	FLAG_LAYOUT,
	FLAG_REDUCE,
	FLAG_WEIGHTS,
	FLAG_ALIGN,
	FLAG_CAPACITY,
	FLAG_SLOTS,
	FLAG_REPLICAS,
	FLAG_REPLICA_RANKS,
	FLAG_SPREAD,
	FLAG_NO_WEIGHTS,
	FLAG_ROUTING,
	FLAG_DROP,
	FLAG_UNEVEN,
	FLAG_SEED,
	FLAG_INPUT,
	FLAG_ITERS,
	FLAG_WARMUP,
	FLAG_WAIT,
	FLAG_JITTER,
	FLAG_FIRST_EPOCH,
	FLAG_VERIFY,
	FLAG_ONLY_VERIFY,
	FLAG_AGAINST,
	FLAG_DEVICE,
	FLAG_SMS,
	FLAG_OVERLAP,
	FLAG_JSON,
	FLAG_PROGRESS,
	FLAG_QUIET,
	FLAG_HELP
};

static const struct option flags[] = {
	{"ranks", required_argument, NULL, FLAG_RANKS},
	{"nodes", required_argument, NULL, FLAG_NODES},
	{"transport", required_argument, NULL, FLAG_TRANSPORT},
	{"preset", required_argument, NULL, FLAG_PRESET},
	{"tokens", required_argument, NULL, FLAG_TOKENS},
	{"max-tokens", required_argument, NULL, FLAG_MAX_TOKENS},
	{"hidden", required_argument, NULL, FLAG_HIDDEN},
	{"experts", required_argument, NULL, FLAG_EXPERTS},
	{"topk", required_argument, NULL, FLAG_TOPK},
	{"mode", required_argument, NULL, FLAG_MODE},
	{"dtype", required_argument, NULL, FLAG_DTYPE},
	{"x-dtype", required_argument, NULL, FLAG_X_DTYPE},
	{"scale", required_argument, NULL, FLAG_SCALE},
	{"payload", required_argument, NULL, FLAG_PAYLOAD},
	{"combine-dtype", required_argument, NULL, FLAG_COMBINE_DTYPE},
	{"layout", required_argument, NULL, FLAG_LAYOUT},
	{"reduce", required_argument, NULL, FLAG_REDUCE},
	{"weights", required_argument, NULL, FLAG_WEIGHTS},
	{"align", required_argument, NULL, FLAG_ALIGN},
	{"capacity", required_argument, NULL, FLAG_CAPACITY},
	{"slots", required_argument, NULL, FLAG_SLOTS},
	{"replicas", required_argument, NULL, FLAG_REPLICAS},
	{"replica-ranks", required_argument, NULL, FLAG_REPLICA_RANKS},
	{"spread", no_argument, NULL, FLAG_SPREAD},
	{"no-weights", no_argument, NULL, FLAG_NO_WEIGHTS},
	{"routing", required_argument, NULL, FLAG_ROUTING},
	{"drop", required_argument, NULL, FLAG_DROP},
	{"uneven", no_argument, NULL, FLAG_UNEVEN},
	{"seed", required_argument, NULL, FLAG_SEED},
	{"input", required_argument, NULL, FLAG_INPUT},
	{"iters", required_argument, NULL, FLAG_ITERS},
	{"warmup", required_argument, NULL, FLAG_WARMUP},
	{"wait", required_argument, NULL, FLAG_WAIT},
	{"first-epoch", required_argument, NULL, FLAG_FIRST_EPOCH},
	{"jitter", required_argument, NULL, FLAG_JITTER},
	{"verify", no_argument, NULL, FLAG_VERIFY},
	{"only-verify", no_argument, NULL, FLAG_ONLY_VERIFY},
	{"against", required_argument, NULL, FLAG_AGAINST},
	{"device", required_argument, NULL, FLAG_DEVICE},
	{"sms", required_argument, NULL, FLAG_SMS},
	{"overlap", required_argument, NULL, FLAG_OVERLAP},
	{"json", required_argument, NULL, FLAG_JSON},
	{"progress", no_argument, NULL, FLAG_PROGRESS},
	{"quiet", no_argument, NULL, FLAG_QUIET},
	{"help", no_argument, NULL, FLAG_HELP},
	{NULL, 0, NULL, 0},
};

static int take_word(struct bench_args *args, int flag, const char *name, const char *text)
{
	int value = 0, status = 0;

	switch (flag) {
	case FLAG_X_DTYPE:
		status = value_word(args, name, text, dtype_words, &value);
		args->x_dtype = (enum tern_dtype)value;
		return status;
	case FLAG_COMBINE_DTYPE:
		status = value_word(args, name, text, combine_dtype_words, &value);
		args->combine_dtype = (enum tern_dtype)value;
		return status;
	case FLAG_SCALE:
		status = value_word(args, name, text, scale_words, &value);
		args->scale = (enum tern_scale)value;
		return status;
	case FLAG_INPUT:
		status = value_word(args, name, text, input_words, &value);
		args->job.input = (enum job_input)value;
		return status;
	case FLAG_DEVICE:
		status = value_word(args, name, text, device_words, &value);
		args->job.config.device = (uint16_t)value;
		return status;
	case FLAG_AGAINST:
		args->against = text;
		return value_word(args, name, text, against_words, &value);
	}
	return -1;
}

static int take_list(struct bench_args *args, int flag, const char *name, const char *text)
{
	switch (flag) {
	case FLAG_PRESET:
		return value_presets(args, text);
	case FLAG_TOKENS:
		return value_numbers(args, name, text, MOST_TOKENS, &args->tokens);
	case FLAG_OVERLAP:
		return value_numbers(args, name, text, MOST_WORK_US, &args->overlap);
	case FLAG_MODE:
		return value_words(args, name, text, mode_words, &args->modes);
	case FLAG_DTYPE:
		return value_words(args, name, text, dtype_words, &args->dtypes);
	case FLAG_LAYOUT:
		return value_words(args, name, text, layout_words, &args->layouts);
	case FLAG_REDUCE:
		args->reduce_given = true;
		return value_words(args, name, text, reduce_words, &args->reduces);
	case FLAG_WEIGHTS:
		args->weights_given = true;
		return value_words(args, name, text, weight_words, &args->weights);
	}
	return take_word(args, flag, name, text);
}

static int take_number(struct bench_args *args, int flag, const char *name, const char *text)
{
	struct tern_moe_config *config = &args->job.config;
	uint32_t wait_ms = 0, rows = 0;
	int status;

	switch (flag) {
	case FLAG_RANKS:
		return value_number(args, name, text, 1, 4096, &args->nr_ranks);
	case FLAG_NODES:
		return value_number(args, name, text, 1, 16, &args->nr_nodes);
	case FLAG_MAX_TOKENS:
		return value_number(args, name, text, 1, MOST_TOKENS, &args->max_tokens);
	case FLAG_HIDDEN:
		return value_number(args, name, text, 1, 1u << 20, &config->hidden);
	case FLAG_EXPERTS:
		return value_number(args, name, text, 1, 1u << 16, &config->nr_experts);
	case FLAG_TOPK:
		return value_number(args, name, text, 1, TERN_MAX_TOPK, &config->topk);
	case FLAG_PAYLOAD:
		return value_number(args, name, text, 1, 1u << 24, &args->payload_bytes);
	case FLAG_ALIGN:
		return value_number(args, name, text, 1, 1u << 20, &config->alignment);
	case FLAG_CAPACITY:
		status = value_number(args, name, text, 0, UINT32_MAX, &rows);
		config->capacity = rows;
		return status;
	case FLAG_FIRST_EPOCH:
		return value_number(args, name, text, 0, UINT32_MAX, &config->first_epoch);
	case FLAG_JITTER:
		return value_number(args, name, text, 0, 1000000, &args->jitter_us);
	case FLAG_SLOTS:
		return value_number(args, name, text, 1, 16, &config->nr_slots);
	case FLAG_REPLICAS:
		return value_number(args, name, text, 0, 1u << 16, &args->job.nr_redundant);
	case FLAG_REPLICA_RANKS:
		return value_number(args, name, text, 1, 4096, &config->replica_ranks);
	case FLAG_SMS:
		return value_number(args, name, text, 0, 1024, &args->nr_sms);
	case FLAG_ITERS:
		return value_number(args, name, text, 1, 10000000, &args->iters);
	case FLAG_WARMUP:
		return value_number(args, name, text, 0, 10000000, &args->warmup);
	case FLAG_WAIT:
		status = value_number(args, name, text, 1, 86400000, &wait_ms);
		config->wait_ms = (int)wait_ms;
		return status;
	}
	return take_list(args, flag, name, text);
}

static int take_flag(struct bench_args *args, int flag, const char *name, const char *text)
{
	struct reason why;

	switch (flag) {
	case '?':
		if (!args_silent())
			fprintf(stderr, "Try '%s --help'.\n", args->program);
		return -1;
	case FLAG_ROUTING:
		return routing_parse(&args->job.routing, text, &why)
			       ? args_wrong(args, "--%s: %s", name, why.text)
			       : 0;
	case FLAG_DROP:
		return value_share(args, name, text, &args->job.routing.drop);
	case FLAG_SEED:
		return value_seed(args, text);
	case FLAG_JSON:
		args->json = text;
		return 0;
	case FLAG_TRANSPORT:
		args->transport = text;
		return 0;
	case FLAG_SPREAD:
		args->job.spread = true;
		return 0;
	case FLAG_NO_WEIGHTS:
		args->job.no_weights = true;
		return 0;
	case FLAG_UNEVEN:
		args->job.routing.uneven = true;
		return 0;
	case FLAG_ONLY_VERIFY:
		args->only_verify = true;
		args->verify = true;
		return 0;
	case FLAG_VERIFY:
		args->verify = true;
		return 0;
	case FLAG_PROGRESS:
		args->progress = true;
		return 0;
	case FLAG_QUIET:
		args->quiet = true;
		return 0;
	case FLAG_HELP:
		args->help = true;
		return 0;
	}
	return take_number(args, flag, name, text);
}

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
	args->warmup = 5;
	args->scale = TERN_SCALE_FP32;
	value_presets(args, "deepseek-v3");
	value_numbers(args, "tokens", "1,8,32,64,128", MOST_TOKENS, &args->tokens);
	list_add(&args->modes, TERN_LOW_LATENCY);
	list_add(&args->dtypes, TERN_FP8_E4M3);
	list_add(&args->layouts, TERN_CONTIGUOUS);
	list_add(&args->reduces, TERN_REDUCE_HOME);
	list_add(&args->weights, TERN_WEIGHTS_COMBINE);
}

static int check(struct bench_args *args)
{
	const struct tern_moe_config *config = &args->job.config;
	unsigned int i;

	if (args->against && !strcmp(args->against, "nccl") != (config->device == TERN_DEVICE_CUDA))
		return args_wrong(args, config->device == TERN_DEVICE_CUDA
						? "--device cuda is compared with nccl alone"
						: "--against nccl needs --device cuda");
	if (args->overlap.nr && config->device != TERN_DEVICE_CUDA)
		return args_wrong(args, "--overlap needs --device cuda");
	if (args->overlap.nr > ARGS_MAX_OVERLAP)
		return args_wrong(args, "--overlap has more than %d values", ARGS_MAX_OVERLAP);
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
		if (shape->topk > shape->nr_experts)
			return args_wrong(args, "--topk is %u, more than the %u experts",
				shape->topk, shape->nr_experts);
	}
	for (i = 0; i < args->tokens.nr; i++)
		if (args->max_tokens && (uint32_t)args->tokens.value[i] > args->max_tokens)
			return args_wrong(args, "--tokens has %d, more than --max-tokens, %u",
				args->tokens.value[i], args->max_tokens);
	return 0;
}

int args_parse(struct bench_args *args, const char *program, int argc, char **argv)
{
	int flag, index = 0;

	set_defaults(args, program);
	argv[0] = (char *)program; /* for getopt's messages */
	optind = 1;
	opterr = !args_silent();
	while ((flag = getopt_long(argc, argv, "", flags, &index)) != -1)
		if (take_flag(args, flag, flags[index].name, optarg))
			return -1;
	if (optind < argc)
		return args_wrong(args, "\"%.100s\" is not a flag", argv[optind]);
	return check(args);
}
