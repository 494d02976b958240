/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies the low-latency kernels bit for bit against testkit/reference, by replaying graphs with
 * other routing and inputs each time, in poisoned buffers. */
#include "bench/lab/lab_ll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/convert.h"
#include "testkit/random.h"
#include "testkit/verify.h"

static struct lab_graph capture(struct lab_rank *rank, bool dispatch, const struct lab_way *way)
{
	lab_capture(rank);
	if (dispatch)
		CHECK(ll_dispatch_launch(&rank->dispatch, &way->dispatch, rank->stream));
	else
		CHECK(ll_combine_launch(&rank->combine, &way->combine, rank->stream));
	return lab_captured(rank);
}

/* One half, or its two roles one after the other. */
static void run_half(struct lab_rank *rank, bool dispatch, const struct lab_way *way,
	const struct lab_graph *graph, bool apart)
{
	if (!apart) {
		CHECK(cudaGraphLaunch(graph->exec, rank->stream));
		return;
	}
	for (uint32_t role = GPU_SEND; role <= GPU_RECEIVE; role++) {
		rank->dispatch.roles = rank->combine.roles = role;
		if (dispatch)
			CHECK(ll_dispatch_launch(&rank->dispatch, &way->dispatch, rank->stream));
		else
			CHECK(ll_combine_launch(&rank->combine, &way->combine, rank->stream));
	}
}

static void *fetch(struct lab_rank *rank, size_t *used, const void *from, size_t bytes)
{
	uint8_t *at = rank->host + *used;

	*used += (bytes + 63) / 64 * 64;
	if (*used > rank->host_bytes) {
		fprintf(stderr, "the lab's staging memory is too small\n");
		_Exit(1);
	}
	CHECK(cudaMemcpyAsync(at, from, bytes, cudaMemcpyDeviceToHost, rank->stream));
	return at;
}

static void fetch_received(struct lab_rank *rank, struct tern_received *received)
{
	const struct gpu_exchange *e = &rank->dispatch.exchange;
	size_t used = 0;
	uint64_t *sums = fetch(rank, &used, rank->sums, 16);

	memset(received, 0, sizeof(*received));
	received->size = sizeof(*received);
	received->counts = fetch(rank, &used, rank->counts, e->nr_local * 4);
	received->offsets = fetch(rank, &used, rank->offsets, e->nr_local * 8);
	CHECK(cudaStreamSynchronize(rank->stream));
	received->nr_rows = sums[0];
	received->extent = sums[1];
	if (sums[1] > rank->positions)
		return;
	received->x = fetch(rank, &used, rank->out_x, sums[1] * e->row.row_bytes);
	if (rank->dispatch.scale_bytes)
		received->scales =
			fetch(rank, &used, rank->out_scales, sums[1] * e->row.nr_lines * 4);
	received->rows = fetch(rank, &used, rank->out_rows, sums[1] * sizeof(int4));
	CHECK(cudaStreamSynchronize(rank->stream));
}

static void poison(struct lab_rank *rank, uint64_t round)
{
	int with = round & 1 ? 0xa5 : 0xff;
	uint64_t rows = rank->positions < 8192 ? rank->positions : 8192;

	CHECK(cudaMemsetAsync(
		rank->out_x, with, rows * rank->dispatch.exchange.row.row_bytes, rank->stream));
	CHECK(cudaMemsetAsync(rank->out_scales, with,
		rows * rank->dispatch.exchange.row.nr_lines * 4, rank->stream));
	CHECK(cudaMemsetAsync(rank->out_rows, with, rows * sizeof(int4), rank->stream));
	CHECK(cudaMemsetAsync(
		rank->counts, with, rank->dispatch.exchange.nr_local * 4, rank->stream));
	CHECK(cudaMemsetAsync(
		rank->offsets, with, rank->dispatch.exchange.nr_local * 8, rank->stream));
	CHECK(cudaMemsetAsync(rank->sums, with, 16, rank->stream));
	CHECK(cudaMemsetAsync(rank->out, with,
		rank->combine.out_stride * rank->dispatch.exchange.max_tokens, rank->stream));
}

static uint64_t verify_round(struct lab *lab, struct lab_rank *rank, struct reference *reference,
	uint64_t round, const struct lab_graph *graphs, struct difference *difference)
{
	uint64_t bytes;
	size_t used = 0;
	struct tern_received received;
	bool apart = round % 4 == 3;

	lab_inputs(lab, rank, round);
	poison(rank, round);
	run_half(rank, true, &lab->way, &graphs[0], apart);
	reference_set_round(reference, round);
	fetch_received(rank, &received);
	if (lab_expired(rank))
		return 1;
	verify_received(reference, rank->rank, &received, difference);
	if (difference->nr)
		return 1;
	bytes = received.extent * rank->combine.y_stride;
	memset(rank->host, 0xee, bytes);
	fill_y(reference, rank->rank, rank->host, rank->combine.y_stride);
	CHECK(cudaMemcpyAsync(rank->y, rank->host, bytes, cudaMemcpyHostToDevice, rank->stream));
	run_half(rank, false, &lab->way, &graphs[1], apart);
	const void *out = fetch(rank, &used, rank->out,
		rank->combine.out_stride * reference->nr_tokens[rank->rank] + 16);
	CHECK(cudaStreamSynchronize(rank->stream));
	if (lab_expired(rank))
		return 1;
	verify_combined(reference, rank->rank, out, rank->combine.out_stride, difference);
	return difference->nr;
}

static uint64_t verify_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	uint64_t rounds = *(uint64_t *)ctx, bad = 0;
	struct reference *reference = reference_create(lab->job);
	struct difference difference = {0};
	struct lab_graph graphs[2] = {
		capture(rank, true, &lab->way), capture(rank, false, &lab->way)};

	for (uint64_t round = 0; round < rounds && !bad; round++)
		bad = verify_round(lab, rank, reference, round, graphs, &difference);
	if (difference.nr)
		printf("  %llu differences; the first: %s\n", (unsigned long long)difference.nr,
			difference.first);
	lab_graph_close(&graphs[0]);
	lab_graph_close(&graphs[1]);
	reference_destroy(reference);
	return bad != 0;
}

static uint64_t run_case(
	struct lab *lab, struct job *job, const struct lab_way *way, lab_body body, void *ctx)
{
	struct reason why;
	uint64_t bad;

	if (job_open(job, &why)) {
		printf("refused: %s\n", why.text);
		return 1;
	}
	lab_setup(lab, job, way);
	bad = lab_run(lab, body, ctx);
	job_close(job);
	return bad;
}

uint64_t verify_case(struct lab *lab, struct job *job, const struct lab_way *way, uint64_t rounds)
{
	return run_case(lab, job, way, verify_rank, &rounds);
}

/* ---- rounds back to back --------------------------------------------------------------------- */

/* Without the host between rounds, ranks pushed apart at random. The experts are the identity: y is
 * the received x, and a rank's result of a token is the token times the sum of its weights there.
 */
#define STORM_INPUTS 16

struct storm {
	uint64_t rounds;
};

/* Contiguous blocks of experts, the first ranks one more. */
static uint32_t rank_of(const struct lab *lab, uint32_t expert)
{
	uint32_t q = lab->job->config.nr_experts / lab->nr_ranks,
		 more = lab->job->config.nr_experts % lab->nr_ranks;

	return expert < more * (q + 1) ? expert / (q + 1) : more + (expert - more * (q + 1)) / q;
}

static uint64_t storm_check(
	struct lab *lab, struct lab_rank *rank, uint64_t input, const uint16_t *out)
{
	const struct job *job = lab->job;
	uint32_t n = job_nr_tokens(job, input, rank->rank), K = job->config.topk,
		 H = job->config.hidden;
	int32_t *ids = calloc(n * K + 1, sizeof(*ids));
	float *weights = calloc(n * K + 1, sizeof(*weights));
	uint64_t bad = 0;

	job_routes(job, input, rank->rank, ids, weights);
	for (uint32_t t = 0; t < n; t++) {
		const uint16_t *x = job_x_row(job, input, rank->rank, t);
		float weight_at[LAB_MAX_GPUS] = {0};

		for (uint32_t k = 0; k < K; k++)
			if (ids[t * K + k] >= 0)
				weight_at[rank_of(lab, (uint32_t)ids[t * K + k])] +=
					weights[t * K + k];
		for (uint32_t i = 0; i < H; i++) {
			float sum = 0;

			for (uint32_t r = 0; r < lab->nr_ranks; r++) /* inputs are such that a
									rank's sum is exact before
									it is rounded */
				sum += bf16_decode(bf16_encode(weight_at[r] * bf16_decode(x[i])));
			bad += bf16_decode(out[(size_t)t * H + i]) != bf16_decode(bf16_encode(sum));
		}
	}
	free(ids);
	free(weights);
	return bad;
}

static uint64_t storm_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	const struct storm *storm = ctx;
	size_t out_bytes = rank->combine.out_stride * lab->job->config.max_tokens;
	uint8_t *outs = NULL, *x[STORM_INPUTS], *ids[STORM_INPUTS], *weights[STORM_INPUTS],
		*nr[STORM_INPUTS];
	size_t x_bytes = job_x_bytes(lab->job) * lab->job->config.max_tokens,
	       routes = (size_t)lab->job->config.max_tokens * lab->job->config.topk;
	uint64_t bad = 0;

	CHECK(cudaMalloc((void **)&outs, out_bytes * storm->rounds));
	CHECK(cudaMemset(outs, 0xff, out_bytes * storm->rounds));
	for (uint32_t i = 0; i < STORM_INPUTS; i++) {
		lab_inputs(lab, rank, i);
		CHECK(cudaMalloc((void **)&x[i], x_bytes + routes * 8 + 256));
		ids[i] = x[i] + x_bytes;
		weights[i] = ids[i] + routes * 4;
		nr[i] = weights[i] + routes * 4;
		CHECK(cudaMemcpyAsync(
			x[i], rank->x, x_bytes, cudaMemcpyDeviceToDevice, rank->stream));
		CHECK(cudaMemcpyAsync(
			ids[i], rank->ids, routes * 4, cudaMemcpyDeviceToDevice, rank->stream));
		CHECK(cudaMemcpyAsync(weights[i], rank->weights, routes * 4,
			cudaMemcpyDeviceToDevice, rank->stream));
		CHECK(cudaMemcpyAsync(
			nr[i], rank->nr_tokens_at, 4, cudaMemcpyDeviceToDevice, rank->stream));
		CHECK(cudaStreamSynchronize(rank->stream));
	}
	CHECK(cudaDeviceSynchronize());
	pthread_barrier_wait(&lab->barrier);
	for (uint64_t round = 0; round < storm->rounds; round++) {
		uint64_t draw = hash4(lab->job->seed, 77, round, rank->rank);
		uint32_t i = round % STORM_INPUTS;
		struct gpu_dispatch d = rank->dispatch;
		struct gpu_combine c = rank->combine;

		d.x = x[i];
		d.topk_ids = ids[i];
		d.topk_weights = (float *)weights[i];
		d.nr_tokens_at = (uint32_t *)nr[i];
		c.y = d.out_x;
		c.out = outs + round * out_bytes;
		if (draw % 4 == 0)
			CHECK(lab_spin_launch(draw / 4 % 30000, rank->stream));
		CHECK(ll_dispatch_launch(&d, &lab->way.dispatch, rank->stream));
		if (draw / 16 % 4 == 0)
			CHECK(lab_spin_launch(draw / 64 % 30000, rank->stream));
		CHECK(ll_combine_launch(&c, &lab->way.combine, rank->stream));
	}
	CHECK(cudaStreamSynchronize(rank->stream));
	bad += lab_expired(rank);
	for (uint64_t round = 0; round < storm->rounds; round++) {
		CHECK(cudaMemcpy(
			rank->host, outs + round * out_bytes, out_bytes, cudaMemcpyDeviceToHost));
		bad += storm_check(lab, rank, round % STORM_INPUTS, (const uint16_t *)rank->host);
	}
	CHECK(cudaFree(outs));
	for (uint32_t i = 0; i < STORM_INPUTS; i++)
		CHECK(cudaFree(x[i]));
	return bad;
}

uint64_t storm_case(struct lab *lab, struct job *job, const struct lab_way *way, uint64_t rounds)
{
	struct storm storm = {rounds};

	return run_case(lab, job, way, storm_rank, &storm);
}
