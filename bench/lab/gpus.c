/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lab/gpus.h"
#include "gpu/wire/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_NS 2000000000ull

void lab_check(cudaError_t rc, const char *file, int line)
{
	if (rc == cudaSuccess)
		return;
	fprintf(stderr, "%s:%d: %s: %s\n", file, line, cudaGetErrorName(rc),
		cudaGetErrorString(rc));
	fflush(stdout);
	_Exit(1);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct thread {
	struct lab *lab;
	struct lab_rank *rank;
	lab_body body;
	void *ctx;
	uint64_t result;
	pthread_t id;
};

static void *thread_main(void *arg)
{
	struct thread *t = arg;

	CHECK(cudaSetDevice((int)t->rank->rank));
	t->result = t->body(t->lab, t->rank, t->ctx);
	return NULL;
}

uint64_t lab_run(struct lab *lab, lab_body body, void *ctx)
{
	struct thread threads[LAB_MAX_GPUS];
	uint64_t sum = 0;

	for (uint32_t r = 0; r < lab->nr_ranks; r++) {
		threads[r] = (struct thread){lab, &lab->ranks[r], body, ctx, 0, 0};
		pthread_create(&threads[r].id, NULL, thread_main, &threads[r]);
	}
	for (uint32_t r = 0; r < lab->nr_ranks; r++) {
		pthread_join(threads[r].id, NULL);
		sum += threads[r].result;
	}
	return sum;
}

static uint64_t open_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		if (r != rank->rank) {
			cudaError_t rc = cudaDeviceEnablePeerAccess((int)r, 0);

			if (rc == cudaErrorPeerAccessAlreadyEnabled)
				(void)cudaGetLastError();
			else
				CHECK(rc);
		}
	(void)ctx;
	CHECK(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
	CHECK(cudaMalloc((void **)&rank->arena, rank->arena_bytes));
	CHECK(cudaMalloc((void **)&rank->gate_flags, 4096));
	CHECK(cudaMemset(rank->gate_flags, 0, 4096));
	CHECK(cudaMallocHost((void **)&rank->host, rank->host_bytes));
	CHECK(cudaMallocHost((void **)&rank->report, sizeof(*rank->report)));
	CHECK(cudaDeviceSynchronize());
	return 0;
}

void lab_open(struct lab *lab, uint32_t nr_ranks, size_t arena_bytes, size_t host_bytes)
{
	memset(lab, 0, sizeof(*lab));
	lab->nr_ranks = nr_ranks;
	pthread_barrier_init(&lab->barrier, NULL, nr_ranks);
	for (uint32_t r = 0; r < nr_ranks; r++) {
		lab->ranks[r].rank = r;
		lab->ranks[r].arena_bytes = arena_bytes;
		lab->ranks[r].host_bytes = host_bytes;
	}
	lab_run(lab, open_rank, NULL);
}

static uint64_t close_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	(void)lab;
	(void)ctx;
	CHECK(cudaStreamDestroy(rank->stream));
	CHECK(cudaFree(rank->arena));
	CHECK(cudaFree(rank->gate_flags));
	CHECK(cudaFreeHost(rank->host));
	CHECK(cudaFreeHost(rank->report));
	return 0;
}

void lab_close(struct lab *lab)
{
	lab_run(lab, close_rank, NULL);
	pthread_barrier_destroy(&lab->barrier);
}

/* ---- an exchange ----------------------------------------------------------------------------- */

void *lab_take(struct lab_rank *rank, size_t bytes)
{
	uint8_t *at = rank->next;

	rank->next += (bytes + 4095) / 4096 * 4096;
	if (rank->next > rank->arena + rank->arena_bytes) {
		fprintf(stderr, "the lab's arena of %zu bytes is too small\n", rank->arena_bytes);
		_Exit(1);
	}
	return at;
}

static void *take_copy(struct lab_rank *rank, const void *from, size_t bytes)
{
	void *at = lab_take(rank, bytes);

	CHECK(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
	return at;
}

static const uint2 *take_serving(struct lab_rank *rank, const struct tern_moe_config *c,
	const uint32_t *place, const uint32_t *start, const uint32_t *replicas)
{
	uint2 *serving = calloc(c->nr_experts, sizeof(*serving));
	const uint2 *there;

	for (uint32_t i = 0; i < c->nr_experts; i++) {
		uint32_t nr = start[i + 1] - start[i], only = nr == 1 ? start[i] : UINT32_MAX;

		for (uint32_t k = start[i]; k < start[i + 1] && c->replica_ranks == 1; k++)
			if (place[replicas[k]] >> 16 == rank->rank && only == UINT32_MAX)
				only = k;
		serving[i] =
			only == UINT32_MAX ? (uint2){start[i], nr} : (uint2){replicas[only], 1};
	}
	there = take_copy(rank, serving, c->nr_experts * sizeof(*serving));
	free(serving);
	return there;
}

/* The tables of tern.h's placement, as kernels want them. */
static struct gpu_placement make_placement(
	struct lab *lab, struct lab_rank *rank, uint32_t *nr_local)
{
	const struct tern_moe_config *c = &lab->job->config;
	uint32_t nr = c->placement.nr_physical ? c->placement.nr_physical : c->nr_experts,
		 R = lab->nr_ranks;
	struct gpu_placement p = {.nr_experts = c->nr_experts, .nr_physical = nr};
	uint32_t *place = calloc(nr, sizeof(*place)),
		 *start = calloc(c->nr_experts + 2, sizeof(*start)),
		 *replicas = calloc(nr, sizeof(*replicas));
	uint32_t locals[LAB_MAX_GPUS] = {0}, q = nr / R, more = nr % R;

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t r = c->placement.rank    ? (uint32_t)c->placement.rank[i]
			     : i < more * (q + 1) ? i / (q + 1)
						  : more + (i - more * (q + 1)) / q;

		place[i] = r << 16 | locals[r]++;
		start[(c->placement.logical ? (uint32_t)c->placement.logical[i] : i) + 1]++;
	}
	for (uint32_t i = 0; i < c->nr_experts; i++)
		start[i + 1] += start[i];
	uint32_t *at = calloc(c->nr_experts + 1, sizeof(*at));
	memcpy(at, start, c->nr_experts * sizeof(*at));
	for (uint32_t i = 0; i < nr; i++)
		replicas[at[c->placement.logical ? (uint32_t)c->placement.logical[i] : i]++] = i;
	*nr_local = locals[rank->rank];
	if (!c->placement.rank && !more) {
		p.per_rank = q;
		p.by_per_rank = gpu_divisor_of(q);
	}
	p.place = take_copy(rank, place, nr * sizeof(*place));
	if (c->placement.logical) {
		p.serving = take_serving(rank, c, place, start, replicas);
		p.replicas = take_copy(rank, replicas, nr * sizeof(*replicas));
	}
	free(place);
	free(start);
	free(replicas);
	free(at);
	return p;
}

static void make_exchange(struct lab *lab, struct lab_rank *rank, struct gpu_exchange *e)
{
	const struct tern_moe_config *c = &lab->job->config;
	const struct lab_way *way = &lab->way;
	bool scaled = c->dispatch_dtype == TERN_FP8_E4M3;
	size_t routes = (size_t)c->max_tokens * c->topk;
	struct gpu_state first = {.epoch_dispatch = c->first_epoch};

	memset(e, 0, sizeof(*e));
	e->rank = rank->rank;
	e->nr_ranks = lab->nr_ranks;
	e->topk = c->topk;
	e->max_tokens = c->max_tokens;
	e->at_home = c->reduce == TERN_REDUCE_HOME;
	e->format = way->format;
	e->placement = make_placement(lab, rank, &e->nr_local);
	e->row = row_geometry_of(
		way->format, scaled, (uint32_t)job_received_bytes(lab->job), way->row_vectors);
	e->result = row_geometry_of(
		way->format, 0, (uint32_t)job_y_bytes(lab->job), way->result_vectors);
	e->by_topk = gpu_divisor_of(c->topk);
	e->by_ranks = gpu_divisor_of(lab->nr_ranks);
	e->by_others = gpu_divisor_of(lab->nr_ranks > 1 ? lab->nr_ranks - 1 : 1);
	e->by_row_parts = gpu_divisor_of(e->row.nr_segments + 1);
	e->by_replicas = gpu_divisor_of(1);
	e->by_result_segments = gpu_divisor_of(e->result.nr_segments);
	e->window = ll_window_of(way->format, &e->row, &e->result, lab->nr_ranks, c->max_tokens,
		c->topk, e->at_home);
	rank->window = lab_take(rank, e->window.bytes);
	CHECK(cudaMemset(rank->window, 0, e->window.bytes));
	rank->state = e->state = take_copy(rank, &first, sizeof(first));
	memset(rank->report, 0, sizeof(*rank->report));
	e->report = &rank->report->report;
	e->input_error = &rank->report->input_error;
	e->counters = lab_take(rank, sizeof(*e->counters) + c->nr_experts * sizeof(uint64_t));
	e->wait_ns = WAIT_NS;
	e->row_tokens = lab_take(rank, (size_t)lab->nr_ranks * c->max_tokens * sizeof(uint32_t));
	e->row_routes = lab_take(rank, lab->nr_ranks * routes * sizeof(uint2));
	e->home_routes = lab_take(rank, routes * sizeof(uint2));
	e->own_positions = lab_take(rank, routes * sizeof(uint32_t));
	e->most_slices = most_slices_of(lab->nr_ranks, c->max_tokens);
	e->slice_counts = lab_take(rank, 16ull * slice_pieces(e->nr_local) * e->most_slices);
}

static void make_dispatch(struct lab *lab, struct lab_rank *rank, const struct gpu_exchange *e,
	struct gpu_dispatch *d)
{
	const struct tern_moe_config *c = &lab->job->config;
	uint32_t each = c->topk < e->nr_local ? c->topk : e->nr_local;

	memset(d, 0, sizeof(*d));
	d->exchange = *e;
	d->roles = GPU_SEND | GPU_RECEIVE;
	d->kind = c->dispatch_dtype == TERN_FP8_E4M3 ? GPU_X_BF16 : GPU_X_COPY;
	d->scale_bytes = d->kind == GPU_X_BF16 ? 4 : 0;
	d->scale_step = 4 * d->scale_bytes;
	d->by_share = gpu_divisor_of(lab->way.share ? lab->way.share : 1);
	d->padded = c->layout == TERN_PADDED;
	d->by_alignment = gpu_divisor_of(c->alignment);
	d->capacity = (uint64_t)lab->nr_ranks * c->max_tokens;
	rank->positions = d->padded
				  ? d->capacity * e->nr_local
				  : d->capacity * each + (uint64_t)e->nr_local * (c->alignment - 1);
	d->nr_tokens = lab->job->nr_tokens;
	d->x_stride = job_x_bytes(lab->job);
	d->x = rank->x = lab_take(rank, c->max_tokens * d->x_stride + 16);
	d->topk_ids = rank->ids = lab_take(rank, (size_t)c->max_tokens * c->topk * 8 + 16);
	d->topk_weights = rank->weights = lab_take(rank, (size_t)c->max_tokens * c->topk * 4 + 16);
	d->nr_tokens_at = rank->nr_tokens_at = lab_take(rank, 4);
	d->out_x = rank->out_x = lab_take(rank, rank->positions * e->row.row_bytes + 16);
	d->out_scales = rank->out_scales =
		lab_take(rank, rank->positions * e->row.nr_lines * 4 + 16);
	d->out_rows = rank->out_rows = lab_take(rank, rank->positions * sizeof(int4) + 16);
	d->out_counts = rank->counts = lab_take(rank, e->nr_local * 4 + 4);
	d->out_offsets = rank->offsets = lab_take(rank, e->nr_local * 8 + 8);
	d->out_sums = rank->sums = lab_take(rank, 16);
}

static void make_combine(
	struct lab *lab, struct lab_rank *rank, const struct gpu_exchange *e, struct gpu_combine *c)
{
	memset(c, 0, sizeof(*c));
	c->exchange = *e;
	c->roles = GPU_SEND | GPU_RECEIVE;
	c->weighted = lab->job->config.weights == TERN_WEIGHTS_COMBINE;
	c->y_stride = c->out_stride = e->result.row_bytes;
	c->y = rank->y = lab_take(rank, rank->positions * c->y_stride + 16);
	c->out = rank->out = lab_take(rank, lab->job->config.max_tokens * c->out_stride + 16);
}

/* Shared memory, of those kernels that there are. */
static void allow_launches(const struct lab_rank *rank)
{
	struct gpu_launch launch = {.nr_warps = GPU_MAX_WARPS, .send_warps = 1};
	uint32_t nr_blocks;

	(void)ll_dispatch_most_blocks(&rank->dispatch, &launch, &nr_blocks);
	(void)ll_combine_most_blocks(&rank->combine, &launch, &nr_blocks);
	(void)cudaGetLastError();
}

static uint64_t setup_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct gpu_exchange e;

	(void)ctx;
	CHECK(cudaStreamSynchronize(rank->stream));
	rank->next = rank->arena;
	make_exchange(lab, rank, &e);
	pthread_barrier_wait(&lab->barrier); /* all windows are known and cleared */
	CHECK(cudaDeviceSynchronize());
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		e.windows[r] = lab->ranks[r].window;
	make_dispatch(lab, rank, &e, &rank->dispatch);
	make_combine(lab, rank, &e, &rank->combine);
	allow_launches(rank);
	pthread_barrier_wait(&lab->barrier);
	return 0;
}

void lab_setup(struct lab *lab, const struct job *job, const struct lab_way *way)
{
	lab->job = job;
	lab->way = *way;
	lab_run(lab, setup_rank, NULL);
}

void lab_inputs(struct lab *lab, struct lab_rank *rank, uint64_t round)
{
	const struct job *job = lab->job;
	uint32_t n = job_nr_tokens(job, round, rank->rank), nr = n * job->config.topk;
	uint8_t *host = rank->host;
	int32_t *ids = calloc(nr + 1, sizeof(*ids));
	float *weights = calloc(nr + 1, sizeof(*weights));

	job_routes(job, round, rank->rank, ids, weights);
	job_x(job, round, rank->rank, host, job_x_bytes(job), NULL, 0);
	CHECK(cudaMemcpyAsync(
		rank->x, host, n * job_x_bytes(job), cudaMemcpyHostToDevice, rank->stream));
	CHECK(cudaMemcpyAsync(rank->weights, weights, nr * sizeof(*weights), cudaMemcpyHostToDevice,
		rank->stream));
	CHECK(cudaMemcpyAsync(
		rank->nr_tokens_at, &n, sizeof(n), cudaMemcpyHostToDevice, rank->stream));
	if (rank->dispatch.ids_64) {
		int64_t *wide = calloc(nr + 1, sizeof(*wide));

		for (uint32_t i = 0; i < nr; i++)
			wide[i] = ids[i];
		CHECK(cudaMemcpyAsync(
			rank->ids, wide, nr * sizeof(*wide), cudaMemcpyHostToDevice, rank->stream));
		CHECK(cudaStreamSynchronize(rank->stream));
		free(wide);
	} else {
		CHECK(cudaMemcpyAsync(
			rank->ids, ids, nr * sizeof(*ids), cudaMemcpyHostToDevice, rank->stream));
	}
	CHECK(cudaStreamSynchronize(rank->stream));
	free(ids);
	free(weights);
}

void lab_gate(struct lab *lab, struct lab_rank *rank, uint64_t hold_ns)
{
	struct lab_gate gate = {.rank = rank->rank,
		.nr_ranks = lab->nr_ranks,
		.number = ++rank->gate_number,
		.hold_ns = hold_ns};

	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		gate.flags[r] = lab->ranks[r].gate_flags;
	CHECK(lab_gate_launch(&gate, rank->stream));
}

void lab_capture(struct lab_rank *rank)
{
	CHECK(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
}

struct lab_graph lab_captured(struct lab_rank *rank)
{
	struct lab_graph g;
	cudaGraph_t graph;

	CHECK(cudaStreamEndCapture(rank->stream, &graph));
	CHECK(cudaGraphInstantiate(&g.exec, graph, 0));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaGraphUpload(g.exec, rank->stream));
	CHECK(cudaEventCreate(&g.begin));
	CHECK(cudaEventCreate(&g.end));
	return g;
}

void lab_graph_close(struct lab_graph *graph)
{
	CHECK(cudaGraphExecDestroy(graph->exec));
	CHECK(cudaEventDestroy(graph->begin));
	CHECK(cudaEventDestroy(graph->end));
}

void lab_replay(struct lab *lab, struct lab_rank *rank, const struct lab_graph *graph)
{
	lab_gate(lab, rank, LAB_HOLD_NS);
	CHECK(cudaEventRecord(graph->begin, rank->stream));
	CHECK(cudaGraphLaunch(graph->exec, rank->stream));
	CHECK(cudaEventRecord(graph->end, rank->stream));
}

bool lab_expired(const struct lab_rank *rank)
{
	static const char *const reasons[] = {
		"nothing", "the plan", "a row", "a result", "the arrival word"};
	const struct gpu_report *r = &rank->report->report;

	if (rank->report->input_error.reason)
		printf("rank %u complains of id %lld\n", rank->rank,
			(long long)rank->report->input_error.id);
	if (!r->reason)
		return false;
	printf("rank %u waited %.1f ms for %s of rank %u, token %u: epoch %u, saw %u\n", r->rank,
		(double)r->waited_ns / 1e6, reasons[r->reason % 5], r->peer, r->token,
		r->epoch_expected, r->epoch_seen);
	return true;
}
