/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `tern bench`, which the programs that it is compared with take, too: a template of a
 * job, and lists of what varies. One case is one combination of the lists. */
#ifndef TERN_BENCH_COMMAND_ARGS_H
#define TERN_BENCH_COMMAND_ARGS_H

#include "testkit/job.h"
#include "testkit/words.h"

#define ARGS_MAX_LIST 64
#define ARGS_MAX_OVERLAP 8

struct bench_shape {
	const char *name; /* a preset's, or "custom" */
	uint32_t hidden, nr_experts, topk;
	uint32_t inner; /* of an expert; 0: not known */
};

struct int_list {
	bool given; /* and no default */
	unsigned int nr;
	int value[ARGS_MAX_LIST];
};

struct bench_args {
	const char *program;   /* who speaks on stderr */
	uint32_t nr_ranks;     /* 0: not given */
	uint32_t nr_nodes;     /* that they are spread over */
	const char *transport; /* between nodes; NULL: the library's choice */
	unsigned int nr_shapes;
	struct bench_shape shapes[ARGS_MAX_LIST];
	struct int_list tokens, modes, dtypes, layouts, reduces, weights;
	bool sweep;
	bool layer;          /* with the experts in it */
	uint32_t inner;      /* of these; 0: the preset's */
	uint32_t share;      /* of so many ranks one, alone; 0: all there are */
	uint32_t beside_sms; /* of a dispatch beside gate and up; 0: none is; UINT32_MAX: the
				library's choice */
	enum tern_dtype x_dtype, combine_dtype; /* 0: by the dispatch dtype */
	enum tern_scale scale;                  /* of fp8 */
	uint32_t payload_bytes;                 /* of bytes rows; 0: as bf16 */
	uint32_t max_tokens;                    /* 0: the tokens of the case */
	struct job job;                         /* the rest of the settings */
	struct int_list overlap; /* on a device: microseconds of work beside rounds */
	uint32_t iters;
	uint32_t warmup;
	uint32_t jitter_us;
	bool verify;
	bool only_verify;
	uint32_t rest_us;      /* of devices, before timed rounds */
	uint32_t graph_tokens; /* that these are captured for; 0: those of the case */
	bool warm;             /* caches are not flushed before timed rounds */
	bool quiet;
	bool progress;
	bool help;
	const char *against; /* NULL, "mpi", "libfabric" or "nccl" */
	const char *json;    /* a file, "-" for stdout; NULL: none */
	const char *trace;   /* a file; NULL: none */
};

/* 0; -1 when a flag is wrong, which has been said on stderr. */
int args_parse(struct bench_args *args, const char *program, int argc, char **argv);
void args_usage(const struct bench_args *args);

struct bench_case {
	const struct bench_shape *shape;
	uint32_t tokens; /* as the flags say; a share has more */
	struct job job;  /* complete but for job_open */
};

unsigned int args_nr_cases(const struct bench_args *args);

/* Case i for that many ranks: 0, or -1 for a combination that the contract excludes. */
int args_case(const struct bench_args *args, unsigned int i, uint32_t nr_ranks,
	struct bench_case *bench_case);

#endif
