/* SPDX-License-Identifier: Apache-2.0 */
/* What the flags mean: the help text, and the combinations that they ask for. */
#include "bench/command/args.h"

#include <stdio.h>

void args_usage(const struct bench_args *args)
{
	printf("Usage: %s [flags]\n", args->program);
	fputs("Measures dispatch and combine. Starts the ranks itself unless a launcher (tern run, "
	      "mpirun) has done so.\n"
	      "Flags marked + take several values with commas between them, or all; every "
	      "combination is measured.\n"
	      "\n"
	      "  --ranks N            ranks to start on this machine (default 4)\n"
	      "  --nodes N            spread them over N nodes: network namespaces on a bridge, "
	      "which takes root, else by name (default 1)\n"
	      "  --transport T        between nodes: verbs, ofi, ofi:PROVIDER, shm, or several as "
	      "verbs+ofi (default: TERN_TRANSPORT, else verbs+ofi)\n"
	      "  --preset NAME      + deepseek-v3 (default), kimi-k2, qwen3-30b-a3b, "
	      "qwen3-235b-a22b, gpt-oss-120b, glm-4.5, custom\n"
	      "  --hidden H --experts E --topk K   instead of the preset's\n"
	      "  --tokens LIST      + tokens a rank: 1,8,32 or 1-4096 (doubling) or 1-4096*4 "
	      "(default 1,8,32,64,128)\n"
	      "  --max-tokens T       most tokens the exchange is made for (default: the tokens)\n"
	      "  --mode M           + ll (low latency, default), ht (high throughput)\n"
	      "  --dtype D          + of dispatched rows: fp8 (default), bf16, fp16, fp32, bytes\n"
	      "  --x-dtype D          what the caller passes: the dtype, or for fp8 bf16 "
	      "(default), fp16, fp32 or fp8\n"
	      "  --scale S            of fp8: fp32 (default), ue8m0\n"
	      "  --payload BYTES      a row of dtype bytes (default: as many as bf16)\n"
	      "  --combine-dtype D    bf16, fp16, fp32 (default: the dtype if it is one of them, "
	      "else bf16)\n"
	      "  --layout L         + contiguous (default), padded, source\n"
	      "  --reduce R         + home (default), expert (default of layout source)\n"
	      "  --weights W        + combine (default), pass (default of layout source)\n"
	      "  --align N            rows, of layout contiguous (default 1)\n"
	      "  --capacity N         most rows received: of one expert (padded), else of all; ht "
	      "only (default 0: the worst case)\n"
	      "  --slots N            micro-batches in flight (default 1)\n"
	      "  --replicas N         redundant experts (default 0)\n"
	      "  --replica-ranks N    tensor-parallel ranks that share their tokens (default 1)\n"
	      "  --spread             experts round-robin over the ranks instead of in blocks\n"
	      "  --no-weights         pass no gate weights: all are 1\n"
	      "  --routing R          uniform (default), zipf:S, grouped, one, IDS.npy or "
	      "IDS.npy,WEIGHTS.npy\n"
	      "  --drop SHARE         of routes without an expert, 0 to 1 (default 0)\n"
	      "  --uneven             token counts from 0 to --tokens, different on each rank and "
	      "in each round\n"
	      "  --seed N             of all inputs (default 1)\n"
	      "  --input I            random (default), exact (small integers), special (with NaN "
	      "and infinity)\n"
	      "  --iters N            measured rounds (default 20)\n"
	      "  --warmup N           rounds before (default 5)\n"
	      "  --wait MS            longest wait of one call (default 30000)\n"
	      "  --first-epoch N      number of the first round, to try how the counter wraps at "
	      "2^32 (default 1)\n"
	      "  --verify             also --iters rounds with fresh inputs, every element "
	      "compared with a plain reference, bit for bit\n"
	      "  --only-verify        the same, and measure nothing\n"
	      "  --jitter US          in verified rounds each rank sleeps up to so long before "
	      "each half (default 0)\n"
	      "  --device D           cpu (default), cuda: rank r on GPU r modulo the GPUs there "
	      "are; times by the GPU's clock, of graphs\n"
	      "  --sms N              most SMs that a half may take on a GPU (default 0: the "
	      "library's choice)\n"
	      "  --overlap US         beside it on a GPU: both halves by themselves; and how much "
	      "time rounds add to work that keeps all SMs busy, works of US\n"
	      "                       microseconds, up to 8 values: two works with a round split "
	      "around them, and with --slots 2 four works with two rounds\n"
	      "                       on a stream beside them; 0: no work\n"
	      "  --against WHAT       mpi: then the same job over MPI_Alltoallv; libfabric: raw "
	      "writes of the same bytes, round by round;\n"
	      "                       nccl (--device cuda): counts exchange, permutations, "
	      "ncclSend and ncclRecv, round by round, compared with the reference\n"
	      "  --json FILE          all results, settings and the machine; - for stdout\n"
	      "  --progress           say on stderr what is running, also if it is no terminal\n"
	      "  --quiet              no table\n"
	      "  --help               this text\n"
	      "\n"
	      "Times are those of the slowest rank of each round, in microseconds: dispatch and "
	      "combine each after a barrier, pair both\n"
	      "as one. GB/s is bytes (stored by one rank in a round, both ways) over the pair's "
	      "p50. The exit code is 1 when anything is\n"
	      "wrong, 2 when a flag is.\n",
		stdout);
}

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
	config->hidden = bench_case->shape->hidden;
	config->nr_experts = bench_case->shape->nr_experts;
	config->topk = bench_case->shape->topk;
	config->max_tokens = args->max_tokens ? args->max_tokens
			     : job->nr_tokens ? job->nr_tokens
					      : 1;
	set_dtypes(args, dtype, config);
	if (config->layout != TERN_CONTIGUOUS)
		config->alignment = 1;
	if (config->layout != TERN_BY_SOURCE)
		return 0;
	if (!args->reduce_given)
		config->reduce = TERN_REDUCE_EXPERT;
	if (!args->weights_given)
		config->weights = TERN_WEIGHTS_PASS;
	return config->reduce == TERN_REDUCE_EXPERT && config->weights == TERN_WEIGHTS_PASS ? 0
											    : -1;
}
