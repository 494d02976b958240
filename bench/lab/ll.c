/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-ll: the low-latency GPU kernels, verified and measured.
 *
 *   tern-lab-ll verify [factor]   hundreds of rounds of many shapes, times factor
 *   tern-lab-ll sweep [cases]     looks for the best kernel and launch of each case (or of those
 *                                 that are bits of `cases`), then times them as pairs
 *
 * tern-lab-trace is the same with trace marks in the kernels, so it also says when blocks come
 * where:
 *
 *   tern-lab-trace trace [cases]  of what the library launches
 */
#include "bench/lab/lab_ll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- verification ---------------------------------------------------------------------------- */

static const struct shape shapes[] = {
	{"dsv3, 1 token", 7168, 256, 8, 1, 128, .fp8 = true, .input = INPUT_RANDOM, .blocks = 16,
		.warps = 8, .send = 4, .rounds = 200},
	{"dsv3, 8 tokens", 7168, 256, 8, 8, 8, .fp8 = true, .input = INPUT_RANDOM, .blocks = 32,
		.warps = 8, .send = 4, .rounds = 100, .early = true},
	{"dsv3, 128 tokens", 7168, 256, 8, 128, 128, .fp8 = true, .input = INPUT_RANDOM,
		.blocks = 132, .warps = 16, .send = 8, .rounds = 30},
	{"dsv3, 128 bf16, uneven", 7168, 256, 8, 128, 128, .input = INPUT_RANDOM, .uneven = true,
		.drop = 0.1, .blocks = 64, .warps = 16, .send = 4, .rounds = 20},
	{"dsv3, home, uneven, -1", 7168, 256, 8, 16, 40, .fp8 = true, .at_home = true,
		.input = INPUT_RANDOM, .uneven = true, .drop = 0.2, .blocks = 20, .warps = 8,
		.send = 3, .rounds = 100, .ids_64 = true},
	{"qwen, padded, uneven", 2048, 128, 8, 32, 32, .fp8 = true, .padded = true,
		.input = INPUT_RANDOM, .uneven = true, .drop = 0.05, .blocks = 24, .warps = 12,
		.send = 5, .rounds = 200},
	{"qwen, alignment 16, exact", 2048, 128, 8, 32, 33, .fp8 = true, .alignment = 16,
		.input = INPUT_EXACT, .uneven = true, .blocks = 7, .warps = 6, .send = 2,
		.rounds = 200},
	{"gpt-oss bf16, uneven", 2880, 128, 4, 48, 48, .input = INPUT_RANDOM, .uneven = true,
		.drop = 0.1, .blocks = 33, .warps = 8, .send = 4, .rounds = 200},
	{"gpt-oss fp8, short last block", 2880, 128, 4, 9, 70, .fp8 = true, .input = INPUT_RANDOM,
		.uneven = true, .blocks = 3, .warps = 8, .send = 4, .rounds = 200},
	{"special values, fp8", 2048, 64, 6, 12, 16, .fp8 = true, .input = INPUT_SPECIAL,
		.blocks = 9, .warps = 8, .send = 4, .rounds = 150},
	{"special values, bf16, home", 1024, 64, 6, 12, 16, .at_home = true, .input = INPUT_SPECIAL,
		.blocks = 9, .warps = 4, .send = 1, .rounds = 150},
	{"all to one rank", 2048, 128, 8, 24, 24, .fp8 = true, .input = INPUT_RANDOM,
		.routing = ROUTING_ONE, .blocks = 16, .warps = 8, .send = 4, .rounds = 100},
	{"zipf, uneven, pass", 2048, 128, 8, 64, 64, .pass = true, .input = INPUT_RANDOM,
		.routing = ROUTING_ZIPF, .uneven = true, .blocks = 40, .warps = 8, .send = 4,
		.rounds = 100, .early = true},
	{"replicas, spread, 1 block", 512, 60, 5, 7, 7, .fp8 = true, .input = INPUT_RANDOM,
		.redundant = 12, .spread = true, .uneven = true, .drop = 0.1, .blocks = 1,
		.warps = 2, .send = 1, .rounds = 200},
	{"top-32, 70 experts", 256, 70, 32, 5, 6, .input = INPUT_RANDOM, .uneven = true,
		.drop = 0.3, .blocks = 5, .warps = 4, .send = 2, .rounds = 200},
	{"hidden 16, top-1", 16, 8, 1, 40, 100, .fp8 = true, .input = INPUT_RANDOM, .uneven = true,
		.blocks = 4, .warps = 4, .send = 2, .rounds = 200},
	{"5 of 7, uneven, -1", 512, 64, 8, 5, 7, .fp8 = true, .input = INPUT_RANDOM, .uneven = true,
		.drop = 0.3, .blocks = 6, .warps = 8, .send = 3, .rounds = 200},
	{"28 tokens, a piece of a plan", 256, 32, 8, 28, 28, .input = INPUT_RANDOM, .uneven = true,
		.drop = 0.1, .blocks = 6, .warps = 8, .send = 3, .rounds = 200},
	{"29 tokens, one more", 256, 32, 8, 29, 29, .input = INPUT_RANDOM, .uneven = true,
		.drop = 0.1, .blocks = 6, .warps = 8, .send = 3, .rounds = 200},
	{"top-32, 7 tokens", 256, 64, 32, 7, 7, .input = INPUT_RANDOM, .uneven = true, .drop = 0.4,
		.blocks = 6, .warps = 8, .send = 3, .rounds = 200},
	{"top-2, 112 tokens", 128, 16, 2, 100, 112, .fp8 = true, .input = INPUT_RANDOM,
		.uneven = true, .blocks = 6, .warps = 8, .send = 3, .rounds = 200},
	{"70 of 128, zipf", 2048, 128, 8, 70, 128, .fp8 = true, .input = INPUT_RANDOM,
		.routing = ROUTING_ZIPF, .uneven = true, .blocks = 60, .warps = 8, .send = 3,
		.rounds = 60},
	{"no tokens at all", 2048, 128, 8, 0, 4, .fp8 = true, .input = INPUT_RANDOM, .blocks = 4,
		.warps = 4, .send = 2, .rounds = 20},
};

static const uint32_t row_vectors[] = {2, 4, 2}, result_vectors[] = {2, 4, 1},
		      cell_vectors[2] = {3, 2}; /* FP8: 2 */

/* All blocks of a half have to be there at once. */
static uint32_t fitting_blocks(uint32_t nr_blocks)
{
	int nr_sms;

	CHECK(cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, 0));
	return nr_blocks < (uint32_t)nr_sms ? nr_blocks : (uint32_t)nr_sms;
}

static struct lab_way shape_way(
	const struct shape *s, enum gpu_format format, uint32_t turn, uint32_t nr_ranks)
{
	struct lab_way way = {.format = format};

	if (format == GPU_FLAG128) {
		way.row_vectors = row_vectors[turn % 3];
		way.result_vectors = result_vectors[turn % 3];
	} else {
		way.row_vectors = cell_vectors[s->fp8];
		way.result_vectors = cell_vectors[0];
	}
	way.share = turn % 2 ? nr_ranks : 1;
	way.dispatch = ll_blocks(fitting_blocks(s->blocks), s->warps, s->send);
	way.dispatch.early = s->early;
	way.combine = way.dispatch;
	if (format == GPU_FLAG128 && way.result_vectors <= 2 && !s->at_home && turn % 2)
		way.combine.send_warps = s->warps; /* all send, and then receive */
	return way;
}

static int verify(uint32_t most_ranks, double factor)
{
	uint64_t bad = 0, total = 0;
	double start = seconds();

	for (uint32_t ranks = most_ranks; ranks >= 1 && !bad; ranks--) {
		struct lab lab;

		lab_open(&lab, ranks, 1200u << 20, 160u << 20);
		for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && !bad; i++)
			for (uint32_t turn = 0; turn < 4 && !bad; turn++) {
				enum gpu_format format = turn == 3 ? GPU_FLAG16 : GPU_FLAG128;
				uint64_t rounds = 1 + (uint64_t)(shapes[i].rounds * factor /
								 (ranks == most_ranks ? 4 : 16));
				struct lab_way way = shape_way(&shapes[i], format, turn + i, ranks);
				struct job job;
				double begin = seconds();

				shape_job(&shapes[i], ranks, &job);
				bad = verify_case(&lab, &job, &way, rounds);
				total += rounds;
				printf("verify %u ranks, %-30s %s, vectors %u and %u, share %u: "
				       "%llu rounds %s, %.1f s\n",
					ranks, shapes[i].name,
					format == GPU_FLAG128 ? "lines" : "cells", way.row_vectors,
					way.result_vectors, way.share, (unsigned long long)rounds,
					bad ? "WRONG" : "right", seconds() - begin);
				fflush(stdout);
			}
		for (uint32_t turn = 0; turn < 4 && !bad; turn++) {
			struct shape s = {"storm", 2048, 128, 8, 24, 24, .input = INPUT_EXACT,
				.uneven = true, .drop = 0.1, .blocks = 16, .warps = 8, .send = 4,
				.early = turn & 1};
			uint64_t rounds = 4 + (uint64_t)(400 * factor);
			struct lab_way way =
				shape_way(&s, turn == 3 ? GPU_FLAG16 : GPU_FLAG128, turn, ranks);
			struct job job;

			shape_job(&s, ranks, &job);
			bad = storm_case(&lab, &job, &way, rounds);
			total += rounds;
			printf("storm %u ranks, way %u: %llu rounds %s\n", ranks, turn,
				(unsigned long long)rounds, bad ? "WRONG" : "right");
			fflush(stdout);
		}
		lab_close(&lab);
	}
	printf("verify: %llu rounds, %s, %.1f s\n", (unsigned long long)total,
		bad ? "WRONG" : "all right", seconds() - start);
	return bad ? 1 : 0;
}

int main(int argc, char **argv)
{
	int nr_gpus = 0;

	if (cudaGetDeviceCount(&nr_gpus) != cudaSuccess || !nr_gpus) {
		fprintf(stderr, "no GPU\n");
		return 77;
	}
	if (nr_gpus > 4)
		nr_gpus = 4;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && !strcmp(argv[1], "verify"))
		return verify((uint32_t)nr_gpus, argc > 2 ? atof(argv[2]) : 1);
	if (argc > 1 && (!strcmp(argv[1], "sweep") || !strcmp(argv[1], "trace")))
		return sweep((uint32_t)nr_gpus,
			argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : ~0u,
			!strcmp(argv[1], "sweep"));
	fprintf(stderr, "usage: %s verify [factor] | sweep [cases] | trace [cases]\n", argv[0]);
	return 2;
}
