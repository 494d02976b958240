/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/args.h"
#include "bench/presets.h"
#include "bench/words.h"

#include <ctype.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ------------------------------------------------------------------------------------------------ */

/* With several ranks, one of them speaks for all: each sees the same flags. */
static bool is_silent(void)
{
	const char *rank = getenv("TERN_RANK") ? getenv("TERN_RANK") : getenv("PMIX_RANK");

	return rank && strcmp(rank, "0");
}

static int __attribute__((format(printf, 2, 3))) wrong(const struct bench_args *args, const char *format, ...)
{
	va_list list;

	if (is_silent())
		return -1;
	fprintf(stderr, "%s: ", args->program);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, "\nTry '%s --help'.\n", args->program);
	return -1;
}

static int wrong_word(const struct bench_args *args, const char *flag, const char *text, const struct word *words, bool many)
{
	char allowed[160] = "";
	size_t at = 0;

	for (; words->name; words++)
		at += (size_t)snprintf(allowed + at, sizeof(allowed) - at, "%s%s", at ? ", " : "", words->name);
	return wrong(args, "--%s is \"%.100s\": allowed: %s%s", flag, text, allowed,
		many ? ", several with commas between them, or all" : "");
}

static int parse_word(const struct bench_args *args, const char *flag, const char *text, const struct word *words, int *value)
{
	const struct word *word;

	for (word = words; word->name; word++) {
		if (strcmp(word->name, text))
			continue;
		*value = word->value;
		return 0;
	}
	return wrong_word(args, flag, text, words, false);
}

static int list_add(struct int_list *list, int value)
{
	if (list->nr == ARGS_MAX_LIST)
		return -1;
	list->value[list->nr++] = value;
	return 0;
}

static int parse_words(const struct bench_args *args, const char *flag, const char *text, const struct word *words,
	struct int_list *list)
{
	const struct word *word;
	const char *at = text;

	list->nr = 0;
	for (word = words; word->name && !strcmp(text, "all"); word++)
		list_add(list, word->value);
	while (!list->nr || *at == ',') {
		at += list->nr != 0;
		for (word = words; word->name; word++) {
			size_t length = strlen(word->name);

			if (!strncmp(word->name, at, length) && (!at[length] || at[length] == ','))
				break;
		}
		if (!word->name || list_add(list, word->value))
			return wrong_word(args, flag, text, words, true);
		at += strlen(word->name);
	}
	return 0;
}

static int parse_number(const struct bench_args *args, const char *flag, const char *text, uint32_t min, uint32_t max,
	uint32_t *number)
{
	unsigned long long value;
	char *end;

	value = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || value < min || value > max)
		return wrong(args, "--%s is \"%.100s\": allowed are whole numbers from %u to %u", flag, text, min, max);
	*number = (uint32_t)value;
	return 0;
}

#define MOST_TOKENS (1u << 20)

/* "1,8,32", "1-4096" (doubling) or "1-4096*4"; also together. */
static int parse_tokens(struct bench_args *args, const char *text)
{
	const char *at = text;
	char *end = NULL;

	args->tokens.nr = 0;
	while (at == text || *at == ',') {
		unsigned long first, last, factor = 2;

		at += at != text;
		if (!isdigit((unsigned char)*at))
			break;
		first = last = strtoul(at, &end, 10);
		if (*end == '-' && isdigit((unsigned char)end[1]))
			last = strtoul(end + 1, &end, 10);
		if (*end == '*' && isdigit((unsigned char)end[1]))
			factor = strtoul(end + 1, &end, 10);
		if (first > last || last > MOST_TOKENS || factor < 2 || factor > MOST_TOKENS || (first < last && !first))
			break;
		for (at = end; first <= last; first *= factor) {
			if (list_add(&args->tokens, (int)first))
				return wrong(args, "--tokens has more than %d values", ARGS_MAX_LIST);
			if (!first)
				break;
		}
	}
	if (!end || at != end || *end)
		return wrong(args, "--tokens is \"%.100s\": allowed are numbers from 0 to %u such as 1,8,32, and ranges such as 1-128 "
				   "(doubling) or 1-4096*4",
			text, MOST_TOKENS);
	return 0;
}

static int add_shape(struct bench_args *args, const struct preset *preset)
{
	struct bench_shape *shape = &args->shapes[args->nr_shapes];

	if (args->nr_shapes == ARGS_MAX_LIST)
		return -1;
	*shape = (struct bench_shape){.name = "custom"};
	if (preset)
		*shape = (struct bench_shape){preset->name, preset->hidden, preset->nr_experts, preset->topk};
	args->nr_shapes++;
	return 0;
}

static int wrong_preset(const struct bench_args *args, const char *text)
{
	char allowed[256] = "";
	size_t at = 0;
	unsigned int i;

	for (i = 0; i < nr_presets; i++)
		at += (size_t)snprintf(allowed + at, sizeof(allowed) - at, "%s, ", presets[i].name);
	return wrong(args, "--preset is \"%.100s\": allowed are %scustom, several with commas between them, or all", text, allowed);
}

static int parse_presets(struct bench_args *args, const char *text)
{
	char copy[512], *name, *rest = copy;
	unsigned int i;

	args->nr_shapes = 0;
	for (i = 0; i < nr_presets && !strcmp(text, "all"); i++)
		add_shape(args, &presets[i]);
	if (args->nr_shapes)
		return 0;
	if (!*text || strlen(text) >= sizeof(copy))
		return wrong_preset(args, text);
	strcpy(copy, text);
	while ((name = strsep(&rest, ","))) {
		const struct preset *preset = preset_find(name);

		if (!preset && strcmp(name, "custom"))
			return wrong_preset(args, text);
		if (add_shape(args, preset))
			return wrong(args, "--preset has more than %d values", ARGS_MAX_LIST);
	}
	return 0;
}

static int parse_share(const struct bench_args *args, const char *flag, const char *text, double *share)
{
	char *end;

	*share = strtod(text, &end);
	if (end == text || *end || !(*share >= 0 && *share <= 1))
		return wrong(args, "--%s is \"%.100s\": allowed are numbers from 0 to 1", flag, text);
	return 0;
}

static int parse_seed(struct bench_args *args, const char *text)
{
	char *end;

	args->job.seed = strtoull(text, &end, 0);
	if (!isdigit((unsigned char)*text) || *end)
		return wrong(args, "--seed is \"%.100s\": allowed are whole numbers", text);
	return 0;
}

/* ---- flags ------------------------------------------------------------------------------------------------- */

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
		status = parse_word(args, name, text, dtype_words, &value);
		args->x_dtype = (enum tern_dtype)value;
		return status;
	case FLAG_COMBINE_DTYPE:
		status = parse_word(args, name, text, combine_dtype_words, &value);
		args->combine_dtype = (enum tern_dtype)value;
		return status;
	case FLAG_SCALE:
		status = parse_word(args, name, text, scale_words, &value);
		args->scale = (enum tern_scale)value;
		return status;
	case FLAG_INPUT:
		status = parse_word(args, name, text, input_words, &value);
		args->job.input = (enum job_input)value;
		return status;
	case FLAG_DEVICE:
		status = parse_word(args, name, text, device_words, &value);
		args->job.config.device = (uint16_t)value;
		return status;
	case FLAG_AGAINST:
		args->against = text;
		return parse_word(args, name, text, against_words, &value);
	}
	return -1;
}

static int take_list(struct bench_args *args, int flag, const char *name, const char *text)
{
	switch (flag) {
	case FLAG_PRESET:
		return parse_presets(args, text);
	case FLAG_TOKENS:
		return parse_tokens(args, text);
	case FLAG_MODE:
		return parse_words(args, name, text, mode_words, &args->modes);
	case FLAG_DTYPE:
		return parse_words(args, name, text, dtype_words, &args->dtypes);
	case FLAG_LAYOUT:
		return parse_words(args, name, text, layout_words, &args->layouts);
	case FLAG_REDUCE:
		args->reduce_given = true;
		return parse_words(args, name, text, reduce_words, &args->reduces);
	case FLAG_WEIGHTS:
		args->weights_given = true;
		return parse_words(args, name, text, weight_words, &args->weights);
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
		return parse_number(args, name, text, 1, 4096, &args->nr_ranks);
	case FLAG_NODES:
		return parse_number(args, name, text, 1, 16, &args->nr_nodes);
	case FLAG_MAX_TOKENS:
		return parse_number(args, name, text, 1, MOST_TOKENS, &args->max_tokens);
	case FLAG_HIDDEN:
		return parse_number(args, name, text, 1, 1u << 20, &config->hidden);
	case FLAG_EXPERTS:
		return parse_number(args, name, text, 1, 1u << 16, &config->nr_experts);
	case FLAG_TOPK:
		return parse_number(args, name, text, 1, TERN_MAX_TOPK, &config->topk);
	case FLAG_PAYLOAD:
		return parse_number(args, name, text, 1, 1u << 24, &args->payload_bytes);
	case FLAG_ALIGN:
		return parse_number(args, name, text, 1, 1u << 20, &config->alignment);
	case FLAG_CAPACITY:
		status = parse_number(args, name, text, 0, UINT32_MAX, &rows);
		config->capacity = rows;
		return status;
	case FLAG_FIRST_EPOCH:
		return parse_number(args, name, text, 0, UINT32_MAX, &config->first_epoch);
	case FLAG_JITTER:
		return parse_number(args, name, text, 0, 1000000, &args->jitter_us);
	case FLAG_SLOTS:
		return parse_number(args, name, text, 1, 16, &config->nr_slots);
	case FLAG_REPLICAS:
		return parse_number(args, name, text, 0, 1u << 16, &args->job.nr_redundant);
	case FLAG_REPLICA_RANKS:
		return parse_number(args, name, text, 1, 4096, &config->replica_ranks);
	case FLAG_SMS:
		return parse_number(args, name, text, 0, 1024, &args->nr_sms);
	case FLAG_ITERS:
		return parse_number(args, name, text, 1, 10000000, &args->iters);
	case FLAG_WARMUP:
		return parse_number(args, name, text, 0, 10000000, &args->warmup);
	case FLAG_WAIT:
		status = parse_number(args, name, text, 1, 86400000, &wait_ms);
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
		if (!is_silent())
			fprintf(stderr, "Try '%s --help'.\n", args->program);
		return -1;
	case FLAG_ROUTING:
		return routing_parse(&args->job.routing, text, &why) ? wrong(args, "--%s: %s", name, why.text) : 0;
	case FLAG_DROP:
		return parse_share(args, name, text, &args->job.routing.drop);
	case FLAG_SEED:
		return parse_seed(args, text);
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
	args->job.config.hidden = args->job.config.nr_experts = args->job.config.topk = 0; /* the preset's */
	args->job.input = INPUT_RANDOM;
	args->iters = 20;
	args->warmup = 5;
	args->scale = TERN_SCALE_FP32;
	add_shape(args, preset_find("deepseek-v3"));
	parse_tokens(args, "1,8,32,64,128");
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
		return wrong(args, config->device == TERN_DEVICE_CUDA ? "--device cuda is compared with nccl alone" : "--against nccl needs --device cuda");
	for (i = 0; i < args->nr_shapes; i++) {
		struct bench_shape *shape = &args->shapes[i];

		if (!strcmp(shape->name, "custom") && !(config->hidden && config->nr_experts && config->topk))
			return wrong(args, "--preset custom needs --hidden, --experts and --topk");
		if (config->hidden || config->nr_experts || config->topk)
			shape->name = "custom";
		shape->hidden = config->hidden ? config->hidden : shape->hidden;
		shape->nr_experts = config->nr_experts ? config->nr_experts : shape->nr_experts;
		shape->topk = config->topk ? config->topk : shape->topk;
		if (shape->topk > shape->nr_experts)
			return wrong(args, "--topk is %u, more than the %u experts", shape->topk, shape->nr_experts);
	}
	for (i = 0; i < args->tokens.nr; i++)
		if (args->max_tokens && (uint32_t)args->tokens.value[i] > args->max_tokens)
			return wrong(args, "--tokens has %d, more than --max-tokens, %u", args->tokens.value[i], args->max_tokens);
	return 0;
}

int args_parse(struct bench_args *args, const char *program, int argc, char **argv)
{
	int flag, index = 0;

	set_defaults(args, program);
	argv[0] = (char *)program; /* for getopt's messages */
	optind = 1;
	opterr = !is_silent();
	while ((flag = getopt_long(argc, argv, "", flags, &index)) != -1)
		if (take_flag(args, flag, flags[index].name, optarg))
			return -1;
	if (optind < argc)
		return wrong(args, "\"%.100s\" is not a flag", argv[optind]);
	return check(args);
}
