/* SPDX-License-Identifier: Apache-2.0 */
/* The combinations that the flags ask for. */
#include "bench/command/args.h"

/* Takes the next digit of a mixed-radix number. */
static int take(unsigned int *number, const struct int_list *list)
{
	int value = list->value[*number % list->nr];

	*number /= list->nr;
	return value;
}

unsigned int args_nr_cases(const struct bench_args *args)
{
	return args->nr_shapes * args->tokens.nr * args->modes.nr * args->dtypes.nr *
	       args->layouts.nr * args->reduces.nr * args->weights.nr;
}

static void set_dtypes(
	const struct bench_args *args, enum tern_dtype dtype, struct tern_moe_config *config)
{
	config->dispatch_dtype = dtype;
	config->x_dtype = dtype;
	if (dtype == TERN_FP8_E4M3) {
		config->x_dtype = args->x_dtype ? args->x_dtype : TERN_BF16;
		config->scale = args->scale;
	}
	if (dtype == TERN_BYTES)
		config->payload_bytes =
			args->payload_bytes ? args->payload_bytes : config->hidden * 2;
	config->combine_dtype = args->combine_dtype ? args->combine_dtype
				: dtype == TERN_BF16 || dtype == TERN_FP16 || dtype == TERN_FP32
					? dtype
					: TERN_BF16;
}

/* One rank of so many: its experts, and the tokens that have a route to one of them. */
static void set_share(const struct bench_args *args, struct bench_case *bench_case)
{
	struct job *job = &bench_case->job;
	const struct bench_shape *shape = bench_case->shape;
	uint32_t local = shape->nr_experts / args->share;

	job->nr_tokens = routing_share_tokens((uint64_t)bench_case->tokens * args->share,
		args->share, shape->nr_experts, shape->topk);
	job->nr_tokens = job->nr_tokens ? job->nr_tokens : bench_case->tokens > 0;
	job->config.nr_experts = local;
	job->config.topk = shape->topk < local ? shape->topk : local;
	job->routing.kind = ROUTING_SHARE;
	job->routing.share = args->share;
	job->routing.share_topk = shape->topk;
}

int args_case(const struct bench_args *args, unsigned int i, uint32_t nr_ranks,
	struct bench_case *bench_case)
{
	struct job *job = &bench_case->job;
	struct tern_moe_config *config = &job->config;
	enum tern_dtype dtype;

	*job = args->job;
	job->nr_ranks = nr_ranks;
	job->nr_tokens = (uint32_t)take(&i, &args->tokens); /* sizes vary fastest, as a table is
							       read */
	config->weights = (enum tern_weights)take(&i, &args->weights);
	config->reduce = (enum tern_reduce)take(&i, &args->reduces);
	config->layout = (enum tern_layout)take(&i, &args->layouts);
	config->mode = (enum tern_mode)take(&i, &args->modes);
	dtype = (enum tern_dtype)take(&i, &args->dtypes);
	bench_case->shape = &args->shapes[i];
	bench_case->tokens = job->nr_tokens;
	config->hidden = bench_case->shape->hidden;
	config->nr_experts = bench_case->shape->nr_experts;
	config->topk = bench_case->shape->topk;
	if (args->share)
		set_share(args, bench_case);
	config->max_tokens = args->max_tokens ? args->max_tokens
			     : job->nr_tokens ? job->nr_tokens
					      : 1;
	/* As engines make one, for their largest batch. */
	if (config->device && !args->max_tokens && !args->only_verify && config->max_tokens < 128)
		config->max_tokens = 128;
	set_dtypes(args, dtype, config);
	if (config->layout != TERN_CONTIGUOUS)
		config->alignment = 1;
	if (config->layout != TERN_BY_SOURCE)
		return 0;
	if (!args->weights.given)
		config->weights = TERN_WEIGHTS_PASS;
	return config->reduce == TERN_REDUCE_EXPERT && config->weights == TERN_WEIGHTS_PASS ? 0
											    : -1;
}
