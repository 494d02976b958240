/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-ht: high throughput on GPUs, 4096 tokens: floors; every launch compared with the first,
 * word for word, and timed side by side. That the first is right, tern bench --mode ht --tokens
 * 4096 --only-verify says.
 *
 *   tern-lab-ht [case [ranks [floors]]]     all cases without an argument; floors: all of them as
 *                                           well
 */
#include "bench/lab/lab_ht.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_NS 2000000000ull

static const struct ht_shape shapes[] = {
	{"dsv3 fp8", 7168, 256, 8, true, false},
	{"dsv3 bf16", 7168, 256, 8, false, false},
	{"qwen3-30b fp8", 2048, 128, 8, true, false},
	{"gpt-oss bf16", 2880, 128, 4, false, false},
	{"dsv3 fp8 source", 7168, 256, 8, true, true},
	{"dsv3 bf16 source", 7168, 256, 8, false, true},
};

/* The first is what all others are compared with. */
static const struct ht_way ways[] = {
	{false, 132, 132, 15, 4},
	{true, 132, 132, 15, 4},
	{true, 132, 132, 15, 3},
	{true, 132, 132, 15, 6},
	{true, 132, 132, 15, 8},
	{false, 24, 24, 15, 12},
	{true, 24, 24, 15, 12},
	{true, 24, 24, 15, 10},
	{true, 24, 24, 15, 6},
	{true, 64, 64, 15, 6},
	{true, 12, 12, 15, 12},
};

struct ht_rank more[LAB_MAX_GPUS];
const struct ht_shape *shape;
const struct ht_way *way_now;
uint64_t remote_rows[LAB_MAX_GPUS][LAB_MAX_GPUS];
static struct job job;

/* ---- one case's memory ----------------------------------------------------------------------- */

static void make_exchange(struct lab *lab, struct lab_rank *rank, struct gpu_exchange *e)
{
	struct ht_rank *m = &more[rank->rank];
	struct gpu_state first = {.epoch_dispatch = 1};
	uint32_t row = shape->fp8 ? shape->hidden : 2 * shape->hidden, scale = shape->fp8 ? 4 : 0;

	memset(e, 0, sizeof(*e));
	m->positions = TOKENS * shape->topk + 4096;
	e->rank = rank->rank;
	e->nr_ranks = lab->nr_ranks;
	e->topk = shape->topk;
	e->max_tokens = TOKENS;
	e->nr_local = shape->experts / lab->nr_ranks;
	e->placement.nr_experts = shape->experts;
	e->placement.per_rank = e->nr_local;
	e->placement.by_per_rank = gpu_divisor_of(e->nr_local);
	e->row = ht_row_geometry(row, shape->fp8 ? 2 : 4);
	e->result = ht_row_geometry(2 * shape->hidden, 4);
	e->by_topk = gpu_divisor_of(e->topk);
	e->by_ranks = gpu_divisor_of(e->nr_ranks);
	e->by_others = gpu_divisor_of(e->nr_ranks > 1 ? e->nr_ranks - 1 : 1);
	e->by_row_parts = gpu_divisor_of(e->row.nr_segments + 1);
	e->by_replicas = gpu_divisor_of(1);
	e->by_result_segments = gpu_divisor_of(e->result.nr_segments);
	m->x_bytes = m->positions * row;
	m->scales_bytes = m->positions * e->row.nr_lines * scale;
	m->ht = (struct ht_exchange){
		.window = ht_window_of(lab->nr_ranks, shape->experts, TOKENS, shape->topk, 0,
			m->positions, row, e->row.nr_lines * scale, 2 * shape->hidden,
			ht_early_slots(lab->nr_ranks, TOKENS, row)),
		.nr_physical = shape->experts,
		.nr_columns = shape->experts + lab->nr_ranks,
		.block_bytes = 227 * 1024};
	m->window = lab_take(rank, m->ht.window.bytes);
	CHECK(cudaMemset(m->window, 0, m->ht.window.bytes));
	rank->state = e->state = lab_take(rank, sizeof(first));
	CHECK(cudaMemcpy(e->state, &first, sizeof(first), cudaMemcpyHostToDevice));
	memset(rank->report, 0, sizeof(*rank->report));
	e->report = &rank->report->report;
	e->input_error = &rank->report->input_error;
	e->wait_ns = WAIT_NS;
	e->home_routes = lab_take(rank, TOKENS * shape->topk * sizeof(uint2));
}

static void make_tables(struct lab *lab, struct lab_rank *rank)
{
	struct ht_rank *m = &more[rank->rank];
	uint32_t P = shape->experts, R = lab->nr_ranks, *order = calloc(P + R + 1, 4),
		 *at = lab_take(rank, (P + R + 1) * 4);

	for (uint32_t i = 0; i < P; i++)
		order[i] = i;
	for (uint32_t r = 0; r <= R; r++)
		order[P + r] = r * (P / R);
	CHECK(cudaMemcpy(at, order, (P + R + 1) * 4, cudaMemcpyHostToDevice));
	free(order);
	m->ht.order = at;
	m->ht.first = at + P;
	m->ht.chunks = lab_take(rank, (TOKENS / HT_CHUNK + 1) * m->ht.nr_columns * 4);
	m->ht.routes = lab_take(rank, TOKENS * shape->topk * sizeof(uint2));
}

static void make_dispatch(
	struct lab_rank *rank, const struct gpu_exchange *e, struct gpu_dispatch *d)
{
	struct ht_rank *m = &more[rank->rank];

	memset(d, 0, sizeof(*d));
	d->exchange = *e;
	d->roles = GPU_SEND | GPU_RECEIVE;
	d->kind = shape->fp8 ? GPU_X_BF16 : GPU_X_COPY;
	d->scale_bytes = shape->fp8 ? 4 : 0;
	d->by_source = shape->by_source;
	d->out_ids = lab_take(rank, m->positions * shape->topk * 4);
	d->out_weights = lab_take(rank, m->positions * shape->topk * 4);
	d->by_alignment = gpu_divisor_of(1);
	d->capacity = m->positions;
	d->nr_tokens = TOKENS;
	d->x_stride = 2 * shape->hidden;
	d->x = rank->x = lab_take(rank, TOKENS * d->x_stride);
	d->topk_ids = rank->ids = lab_take(rank, TOKENS * shape->topk * 4);
	d->topk_weights = rank->weights = lab_take(rank, TOKENS * shape->topk * 4);
	d->out_x = m->window + m->ht.window.x;
	d->out_scales = m->window + m->ht.window.scales;
	d->out_rows = rank->out_rows = lab_take(rank, m->positions * sizeof(int4));
	d->out_counts = rank->counts = lab_take(rank, e->nr_local * 4);
	d->out_offsets = rank->offsets = lab_take(rank, e->nr_local * 8);
	d->out_sums = rank->sums = lab_take(rank, 16);
}

static void make_combine(struct lab_rank *rank, const struct gpu_exchange *e, struct gpu_combine *c)
{
	struct ht_rank *m = &more[rank->rank];

	memset(c, 0, sizeof(*c));
	c->exchange = *e;
	c->roles = GPU_SEND | GPU_RECEIVE;
	c->weighted = !shape->by_source;
	c->y_stride = c->out_stride = e->result.row_bytes;
	c->y = rank->y = lab_take(rank, m->positions * c->y_stride);
	c->out = rank->out = lab_take(rank, TOKENS * c->out_stride);
	CHECK(lab_fill_launch(
		rank->x, (uint64_t)TOKENS * shape->hidden, 1 + rank->rank, rank->stream));
	CHECK(lab_fill_launch(
		rank->y, m->positions * shape->hidden, 11 + rank->rank, rank->stream));
}

static void make_expected(struct lab *lab, struct lab_rank *rank)
{
	struct ht_rank *m = &more[rank->rank];
	uint64_t most = 0;

	m->expected_x = lab_take(rank, m->x_bytes);
	m->expected_scales = lab_take(rank, m->scales_bytes + 16);
	m->expected_rows = lab_take(rank, m->positions * sizeof(int4));
	m->expected_out = lab_take(rank, (uint64_t)TOKENS * 2 * shape->hidden);
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		most += remote_rows[r][rank->rank] * 2 * shape->hidden;
	m->sink = lab_take(rank, most + (4u << 20));
	CHECK(cudaMallocHost((void **)&m->different, sizeof(*m->different)));
	CHECK(cudaMallocHost((void **)&m->sums, 16));
}

static uint64_t setup_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	int32_t *ids = calloc(TOKENS * shape->topk, 4);
	float *weights = calloc(TOKENS * shape->topk, 4);
	struct gpu_exchange e;
	uint32_t nr_blocks;

	(void)ctx;
	rank->next = rank->arena;
	make_exchange(lab, rank, &e);
	pthread_barrier_wait(&lab->barrier);
	for (uint32_t r = 0; r < lab->nr_ranks; r++)
		e.windows[r] = more[r].window;
	make_tables(lab, rank);
	make_dispatch(rank, &e, &rank->dispatch);
	make_combine(rank, &e, &rank->combine);
	CHECK(ht_most_blocks(&rank->dispatch, &rank->combine, &more[rank->rank].ht, &nr_blocks));
	job_routes(&job, 1, rank->rank, ids, weights);
	CHECK(cudaMemcpy(rank->ids, ids, TOKENS * shape->topk * 4, cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(rank->weights, weights, TOKENS * shape->topk * 4, cudaMemcpyHostToDevice));
	for (uint32_t t = 0; t < TOKENS; t++)
		for (uint32_t q = 0; q < lab->nr_ranks; q++) {
			bool goes = false;

			for (uint32_t k = 0; k < shape->topk; k++)
				goes |= (uint32_t)ids[t * shape->topk + k] / e.nr_local == q;
			remote_rows[rank->rank][q] += goes;
		}
	pthread_barrier_wait(&lab->barrier);
	make_expected(lab, rank);
	free(ids);
	free(weights);
	CHECK(cudaDeviceSynchronize());
	return 0;
}

/* ---- launching ------------------------------------------------------------------------------- */

static struct gpu_launch dispatch_launch(const struct ht_way *w)
{
	return (struct gpu_launch){.nr_blocks = w->blocks,
		.nr_warps = w->dispatch_warps,
		.send_warps = w->dispatch_send,
		.early = w->early};
}

void put_plan(struct lab_rank *rank, const struct ht_way *w)
{
	struct gpu_launch launch = dispatch_launch(w);

	CHECK(ht_plan_launch(&rank->dispatch, &more[rank->rank].ht, &launch, rank->stream));
}

void put_dispatch(struct lab_rank *rank, const struct ht_way *w)
{
	struct gpu_launch launch = dispatch_launch(w);

	CHECK(ht_dispatch_launch(&rank->dispatch, &more[rank->rank].ht, &launch, rank->stream));
}

void put_combine(struct lab_rank *rank, const struct ht_way *w)
{
	struct gpu_launch launch = {.nr_blocks = w->combine_blocks, .early = w->early};

	CHECK(ht_combine_launch(&rank->combine, &more[rank->rank].ht, &launch, rank->stream));
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void poison(struct lab_rank *rank, int with)
{
	struct ht_rank *m = &more[rank->rank];

	CHECK(cudaMemsetAsync(m->window + m->ht.window.x, with, m->ht.window.bytes - m->ht.window.x,
		rank->stream));
	CHECK(cudaMemsetAsync(rank->out_rows, with, m->positions * sizeof(int4), rank->stream));
	CHECK(cudaMemsetAsync(rank->out, with, (size_t)TOKENS * 2 * shape->hidden, rank->stream));
	CHECK(cudaStreamSynchronize(rank->stream));
}

static void run_pair(struct lab *lab, struct lab_rank *rank, const struct ht_way *w)
{
	poison(rank, 0xa5);
	pthread_barrier_wait(&lab->barrier);
	put_plan(rank, w);
	put_dispatch(rank, w);
	put_combine(rank, w);
	CHECK(cudaStreamSynchronize(rank->stream));
	pthread_barrier_wait(&lab->barrier);
}

static uint64_t expect_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct ht_rank *m = &more[rank->rank];

	(void)ctx;
	run_pair(lab, rank, &ways[0]);
	CHECK(cudaMemcpy(m->sums, rank->sums, 16, cudaMemcpyDeviceToHost));
	m->extent = m->sums[1];
	CHECK(cudaMemcpy(
		m->expected_x, m->window + m->ht.window.x, m->x_bytes, cudaMemcpyDeviceToDevice));
	CHECK(cudaMemcpy(m->expected_scales, m->window + m->ht.window.scales, m->scales_bytes,
		cudaMemcpyDeviceToDevice));
	CHECK(cudaMemcpy(m->expected_rows, rank->out_rows, m->positions * sizeof(int4),
		cudaMemcpyDeviceToDevice));
	CHECK(cudaMemcpy(m->expected_out, rank->out, (size_t)TOKENS * 2 * shape->hidden,
		cudaMemcpyDeviceToDevice));
	CHECK(cudaDeviceSynchronize()); /* copies within a device return early, and the stream does
					   not wait for them */
	return lab_expired(rank);
}

static uint64_t compare_rank(struct lab *lab, struct lab_rank *rank, void *ctx)
{
	struct ht_rank *m = &more[rank->rank];
	unsigned long long counts[4];

	(void)ctx;
	run_pair(lab, rank, way_now);
	const void *pairs[4][2] = {{m->expected_x, m->window + m->ht.window.x},
		{m->expected_scales, m->window + m->ht.window.scales},
		{m->expected_rows, rank->out_rows}, {m->expected_out, rank->out}};
	const uint64_t words[4] = {m->x_bytes / 4, m->scales_bytes / 4, m->positions * 4,
		(uint64_t)TOKENS * shape->hidden / 2};
	uint64_t bad = lab_expired(rank);

	for (int i = 0; i < 4; i++) {
		*m->different = 0;
		CHECK(lab_compare_launch(
			pairs[i][0], pairs[i][1], words[i], m->different, rank->stream));
		CHECK(cudaStreamSynchronize(rank->stream));
		counts[i] = *m->different;
		bad += counts[i] != 0;
	}
	if (bad)
		printf("  rank %u: words that differ: x %llu, scales %llu, rows %llu, out %llu "
		       "(extent %llu)\n",
			rank->rank, counts[0], counts[1], counts[2], counts[3],
			(unsigned long long)m->extent);
	return bad != 0;
}

/* ---- a case ---------------------------------------------------------------------------------- */

static void run_way(struct lab *lab, const struct ht_way *w, const double floors[2], uint64_t *bad)
{
	uint64_t wrong;
	double us[NR_TIMED];

	way_now = w;
	wrong = lab_run(lab, compare_rank, NULL) + lab_run(lab, compare_rank, NULL);
	*bad += wrong + time_way(lab, us);
	printf("  %s D %3u blocks %2u/%2u, C %3u blocks: plan %5.1f  D %6.1f (%.2f)  C %6.1f "
	       "(%.2f)  D+C %6.1f (%.2f of the floor)%s\n",
		w->early ? "early" : "     ", w->blocks, w->dispatch_send, w->dispatch_warps,
		w->combine_blocks, us[TIME_PLAN], us[TIME_DISPATCH], us[TIME_DISPATCH] / floors[0],
		us[TIME_COMBINE], us[TIME_COMBINE] / floors[1], us[TIME_PAIR],
		us[TIME_PAIR] / (floors[0] + floors[1]), wrong ? "  WRONG" : "");
}

static uint64_t run_shape(struct lab *lab, const struct ht_shape *s, bool all_floors)
{
	double floors[2][2];
	uint64_t bad = 0;

	shape = s;
	memset(remote_rows, 0, sizeof(remote_rows));
	job_init(&job);
	job.nr_ranks = lab->nr_ranks;
	job.nr_tokens = TOKENS;
	job.seed = 7;
	job.config.hidden = s->hidden;
	job.config.nr_experts = s->experts;
	job.config.topk = s->topk;
	job.config.max_tokens = TOKENS;
	if (job_open(&job, NULL))
		return 1;
	lab_run(lab, setup_rank, NULL);
	if (all_floors)
		print_floors(lab);
	time_bytes(lab, floors);
	printf("%s, %u tokens, %u ranks: copies of the same bytes: D %.1f C %.1f; with 24 SMs D "
	       "%.1f C %.1f us\n",
		s->name, TOKENS, lab->nr_ranks, floors[0][0], floors[0][1], floors[1][0],
		floors[1][1]);
	way_now = &ways[0];
	bad = lab_run(lab, expect_rank, NULL);
	for (uint32_t i = 0; i < NR(ways) && !bad; i++)
		run_way(lab, &ways[i], floors[ways[i].blocks < 64], &bad);
	job_close(&job);
	return bad;
}

int main(int argc, char **argv)
{
	struct lab lab;
	int nr_gpus = 0;
	uint64_t bad = 0;
	uint32_t only = argc > 1 ? (uint32_t)atoi(argv[1]) : NR(shapes);

	if (cudaGetDeviceCount(&nr_gpus) != cudaSuccess || !nr_gpus) {
		fprintf(stderr, "no GPU\n");
		return 77;
	}
	if (argc > 2 && atoi(argv[2]) < nr_gpus)
		nr_gpus = atoi(argv[2]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	lab_open(&lab, (uint32_t)nr_gpus, 6000u * (1ull << 20), 1u << 20);
	for (uint32_t i = 0; i < NR(shapes); i++)
		if (only == NR(shapes) || only == i)
			bad += run_shape(&lab, &shapes[i], argc > 3);
	lab_close(&lab);
	printf("%s\n", bad ? "WRONG" : "all ways are right");
	return bad != 0;
}
