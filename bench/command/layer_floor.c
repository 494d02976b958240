/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer's round has to read, multiply and send at least. */
#include "bench/command/layer.h"

#include <stdlib.h>
#include <string.h>

#define BF16_FLOP_US 790e6
#define FP8_FLOP_US 1500e6
#define NVLINK_BYTES_US 350e3 /* each way */

struct counted {
	const struct job *job;
	uint32_t rank, per_rank;
	uint32_t *counts; /* [experts of a rank] */
	struct layer_rows *rows;
};

static void count_token(struct counted *c, const int32_t *ids, bool mine)
{
	uint64_t seen[16] = {0}; /* ranks, of at most 1024 */

	for (uint32_t k = 0; k < c->job->config.topk; k++) {
		uint32_t expert = (uint32_t)ids[k], rank = expert / c->per_rank;

		if (ids[k] < 0)
			continue;
		if (rank == c->rank)
			c->counts[expert - rank * c->per_rank]++;
		if (mine && rank != c->rank && !(seen[rank / 64 % 16] >> rank % 64 & 1))
			c->rows->away++;
		seen[rank / 64 % 16] |= (uint64_t)1 << rank % 64;
	}
}

struct layer_rows layer_rows_of(const struct job *job, uint64_t round, uint32_t rank)
{
	uint32_t topk = job->config.topk,
		 per_rank = (job->config.nr_experts + job->nr_ranks - 1) / job->nr_ranks;
	struct layer_rows rows = {0};
	struct counted c = {job, rank, per_rank, calloc(per_rank, sizeof(uint32_t)), &rows};
	int32_t *ids = calloc((size_t)job->config.max_tokens * topk, sizeof(*ids));
	float *weights = calloc((size_t)job->config.max_tokens * topk, sizeof(*weights));

	for (uint32_t r = 0; r < job->nr_ranks && c.counts && ids && weights; r++) {
		uint32_t n = job_nr_tokens(job, round, r);

		job_routes(job, round, r, ids, weights);
		for (uint32_t t = 0; t < n; t++)
			count_token(&c, ids + (size_t)t * topk, r == rank);
	}
	for (uint32_t e = 0; e < per_rank && c.counts; e++) {
		rows.rows += c.counts[e];
		rows.hit += c.counts[e] > 0;
		rows.most = c.counts[e] > rows.most ? c.counts[e] : rows.most;
	}
	free(c.counts);
	free(ids);
	free(weights);
	return rows;
}

struct layer_floor layer_floor_of(
	const struct layer_bench *b, const struct job *job, const struct layer_rows *rows)
{
	bool fp8 = job->config.dispatch_dtype == TERN_FP8_E4M3;
	double elements = 3.0 * b->weights.hidden * b->weights.inner, hidden = b->weights.hidden;
	double row_bytes = fp8 ? hidden + (hidden + 127) / 128 * 4 : hidden * 2;
	double result_bytes = hidden * 2;
	struct layer_floor f = {
		.weights = rows->hit * elements * (fp8 ? 1 : 2) / b->memory_bytes_us,
		.flops = 2 * (double)rows->rows * elements / (fp8 ? FP8_FLOP_US : BF16_FLOP_US),
		.network = (double)rows->away * (row_bytes + result_bytes) / NVLINK_BYTES_US};

	f.experts = f.weights > f.flops ? f.weights : f.flops;
	f.whole = f.experts > f.network ? f.experts : f.network;
	return f;
}
