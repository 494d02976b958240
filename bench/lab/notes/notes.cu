/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-notes: how long blocks take to note the plans of four sources in low latency's dispatch:
 * each for itself, as the library's do, or clusters of 2 and of 4 of which each block notes some
 * sources and copies what it has made into the others' shared memory. One GPU, on which all plans
 * lie already; all blocks at once. Clocks from the first look at a plan until all tables are there,
 * p50 and the slowest of all blocks of all launches. Every launch's tables of one block are
 * compared with the ids.
 */
#include <cooperative_groups.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "bench/lab/check.h"
#include "bench/lab/notes/notes.h"
#include "gpu/cuda/ll/take_plans.cuh"

#define SOURCES 4
#define TOKENS 128
#define EPOCH 7
#define RANK 1
#define LAUNCHES 40

/* Tables are bits and present, one behind the other. */
static __device__ void tell(const struct positions *p, uint32_t clocks, uint32_t *out,
	uint32_t *tables, uint32_t thread, uint32_t nr_threads)
{
	if (thread == 0)
		out[blockIdx.x] = clocks;
	for (uint32_t *at = p->bits + thread; blockIdx.x == gridDim.x - 1 && at < p->base;
		at += nr_threads)
		tables[at - p->bits] = *at;
}

static __global__ void __launch_bounds__(512, 1)
	alone(const __grid_constant__ struct gpu_exchange e, uint32_t nr_warps, uint32_t *out,
		uint32_t *tables)
{
	BLOCK_MEMORY(shared);
	struct positions p = positions_in<GPU_FLAG128>(shared, &e, e.max_tokens);
	uint32_t warp = threadIdx.x / LANES, start, clocks;

	if (warp >= nr_warps)
		return;
	positions_clear(&p, e.nr_ranks, threadIdx.x, nr_warps * LANES);
	warps_sync(nr_warps * LANES);
	start = clock();
	take_plans<GPU_FLAG128, GPU_PLAIN, false>(&e, &p, EPOCH, false, TOKENS, warp, nr_warps);
	clocks = clock() - start;
	tell(&p, clocks, out, tables, threadIdx.x, nr_warps * LANES);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Bits, present and ids of a source, to all other blocks of the cluster. */
template <uint32_t SIZE>
static __device__ void hand_out(cooperative_groups::cluster_group cluster,
	const struct gpu_exchange *e, const struct positions *p, uint32_t source,
	uint32_t nr_threads)
{
	uint32_t nr_bits = e->nr_local * p->stride, nr_ids = p->ids_stride / 2,
		 me = cluster.block_rank();

	for (uint32_t i = 1; i < SIZE; i++) {
		uint4 *bits = (uint4 *)cluster.map_shared_rank(
			p->bits + source * nr_bits, (me + i) % SIZE);
		uint32_t *present =
			cluster.map_shared_rank(p->present + source * p->stride, (me + i) % SIZE);
		uint32_t *ids = (uint32_t *)cluster.map_shared_rank(
			p->ids + source * p->ids_stride, (me + i) % SIZE);

		for (uint32_t w = threadIdx.x; w < nr_bits / 4; w += nr_threads)
			bits[w] = ((const uint4 *)(p->bits + source * nr_bits))[w];
		for (uint32_t w = threadIdx.x; w < nr_ids; w += nr_threads)
			ids[w] = ((const uint32_t *)(p->ids + source * p->ids_stride))[w];
		if (threadIdx.x < p->stride)
			present[threadIdx.x] = p->present[source * p->stride + threadIdx.x];
	}
}

/* Number i of the pieces of those sources that this block notes. */
template <uint32_t SIZE>
static __device__ bool take_own(
	const struct gpu_exchange *e, const struct positions *p, uint32_t me, uint32_t i)
{
	constexpr uint32_t OWN = SOURCES / SIZE;
	struct plan_piece piece = {i % OWN * SIZE + me, i / OWN, {}};

	look_at_plan<GPU_PLAIN, false>(e, &piece);
	return take_piece<GPU_FLAG128, GPU_PLAIN, false>(e, p, EPOCH, &piece);
}
#endif

template <uint32_t SIZE>
static __global__ void __launch_bounds__(512, 1)
	clustered(const __grid_constant__ struct gpu_exchange e, uint32_t nr_warps, uint32_t *out,
		uint32_t *tables)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
	BLOCK_MEMORY(shared);
	cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
	struct positions p = positions_in<GPU_FLAG128>(shared, &e, e.max_tokens);
	uint32_t warp = threadIdx.x / LANES,
		 nr = SOURCES / SIZE * gpu_ceil(ll_plan_lines(GPU_FLAG128, TOKENS * e.topk), 4),
		 start, clocks;
	bool works = warp < nr_warps;

	if (works) {
		positions_clear(&p, e.nr_ranks, threadIdx.x, nr_warps * LANES);
		clear_words(&p, p.stride, threadIdx.x, nr_warps * LANES);
	}
	cluster.sync();
	start = clock();
	if (works) {
		for (uint32_t i = warp; i < nr; i += nr_warps)
			if (!take_own<SIZE>(&e, &p, cluster.block_rank(), i))
				break;
		warps_sync(nr_warps * LANES);
		for (uint32_t s = cluster.block_rank(); s < SOURCES; s += SIZE)
			hand_out<SIZE>(cluster, &e, &p, s, nr_warps * LANES);
	}
	cluster.sync();
	clocks = clock() - start;
	if (works)
		tell(&p, clocks, out, tables, threadIdx.x, nr_warps * LANES);
#endif
}

static __global__ void fill(const __grid_constant__ struct gpu_dispatch d)
{
	for (uint32_t four = 0; line_needed<GPU_FLAG128>(4 * four, TOKENS * d.exchange.topk);
		four++)
		send_plan<GPU_FLAG128, GPU_PLAIN, false>(&d, EPOCH, 0, TOKENS, four);
}

struct shape {
	const char *name;
	uint32_t experts, topk;
};

typedef void (*kernel)(const struct gpu_exchange, uint32_t, uint32_t *, uint32_t *);

struct scene {
	struct gpu_exchange e;
	std::vector<uint32_t> want; /* bits, and present */
	uint32_t *out, *tables, bytes, nr_sms;
};

/* Random ids of a source, different ones for each token, as its plan and as the tables that follow
 * from it. */
static void fill_source(struct scene *s, uint32_t source, int32_t *ids)
{
	uint32_t topk = s->e.topk, nr_local = s->e.nr_local, words = TOKENS / 32;
	std::vector<int32_t> here(TOKENS * topk);
	struct gpu_dispatch d = {};

	for (uint32_t i = 0; i < TOKENS * topk; i++) {
		uint32_t token = i / topk, local;

		do
			here[i] = rand() % (int)s->e.placement.nr_experts;
		while (std::find(here.begin() + token * topk, here.begin() + i, here[i]) !=
			here.begin() + i);
		local = (uint32_t)here[i] - RANK * nr_local;
		if (local >= nr_local)
			continue;
		s->want[(source * nr_local + local) * words + token / 32] |= 1u << token % 32;
		s->want[(SOURCES * nr_local + source) * words + token / 32] |= 1u << token % 32;
	}
	CHECK(cudaMemcpy(ids, here.data(), here.size() * 4, cudaMemcpyHostToDevice));
	d.exchange = s->e;
	d.exchange.rank = source;
	d.nr_tokens = TOKENS;
	d.topk_ids = ids;
	fill<<<1, LANES>>>(d);
	CHECK(cudaDeviceSynchronize());
}

static void open_scene(struct scene *s, const struct shape *shape)
{
	struct gpu_exchange *e = &s->e;
	struct row_geometry row = row_geometry_of(GPU_FLAG128, 1, 2048, 2),
			    result = row_geometry_of(GPU_FLAG128, 0, 4096, 1);
	uint8_t *window;
	int32_t *ids;
	int nr_sms;

	*e = {};
	e->rank = RANK;
	e->nr_ranks = SOURCES;
	e->topk = shape->topk;
	e->max_tokens = TOKENS;
	e->nr_local = shape->experts / SOURCES;
	e->format = GPU_FLAG128;
	e->placement.nr_experts = e->placement.nr_physical = shape->experts;
	e->placement.per_rank = e->nr_local;
	e->placement.by_per_rank = gpu_divisor_of(e->nr_local);
	e->by_topk = gpu_divisor_of(shape->topk);
	e->by_ranks = gpu_divisor_of(SOURCES);
	e->by_replicas = gpu_divisor_of(1);
	e->window = ll_window_of(GPU_FLAG128, &row, &result, SOURCES, TOKENS, shape->topk, 0);
	e->wait_ns = 1000000000;
	CHECK(cudaMalloc(&window, e->window.bytes));
	CHECK(cudaMemset(window, 0, e->window.bytes));
	for (uint32_t r = 0; r < SOURCES; r++)
		e->windows[r] = window;
	CHECK(cudaMalloc(&e->state, sizeof(*e->state)));
	CHECK(cudaMemset(e->state, 0, sizeof(*e->state)));
	CHECK(cudaMalloc(&e->report, sizeof(*e->report)));
	CHECK(cudaMalloc(&ids, TOKENS * shape->topk * 4));
	CHECK(cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, 0));
	s->nr_sms = (uint32_t)nr_sms;
	s->bytes =
		(uint32_t)positions_bytes(GPU_FLAG128, SOURCES, e->nr_local, TOKENS, shape->topk);
	s->want.assign(SOURCES * (e->nr_local + 1) * (TOKENS / 32), 0);
	CHECK(cudaMalloc(&s->out, s->nr_sms * 4));
	CHECK(cudaMalloc(&s->tables, s->want.size() * 4));
	for (uint32_t source = 0; source < SOURCES; source++)
		fill_source(s, source, ids);
}

/* Are all tables right? */
static bool time_notes(
	const struct scene *s, const char *what, kernel run, uint32_t cluster, uint32_t nr_warps)
{
	uint32_t blocks = cluster > 1 ? s->nr_sms - s->nr_sms % 16 : s->nr_sms; /* some of a GPU's
										   processors have
										   no neighbours
										   left */
	std::vector<uint32_t> clocks, one(blocks), tables(s->want.size());
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};
	bool right = true;

	attribute.id = cudaLaunchAttributeClusterDimension;
	attribute.val.clusterDim = {cluster, 1, 1};
	config.gridDim = blocks;
	config.blockDim = 512;
	config.dynamicSmemBytes = s->bytes;
	config.attrs = &attribute;
	config.numAttrs = cluster > 1;
	CHECK(cudaFuncSetAttribute(
		(const void *)run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)s->bytes));
	for (int i = 0; i < LAUNCHES; i++) {
		CHECK(cudaMemset(s->tables, 0xff, tables.size() * 4));
		CHECK(cudaLaunchKernelEx(&config, run, s->e, nr_warps, s->out, s->tables));
		CHECK(cudaDeviceSynchronize());
		CHECK(cudaMemcpy(one.data(), s->out, blocks * 4, cudaMemcpyDeviceToHost));
		CHECK(cudaMemcpy(
			tables.data(), s->tables, tables.size() * 4, cudaMemcpyDeviceToHost));
		right = right && tables == s->want;
		if (i >= LAUNCHES / 4)
			clocks.insert(clocks.end(), one.begin(), one.begin() + blocks);
	}
	std::sort(clocks.begin(), clocks.end());
	printf("  %2u warps, %-24s p50 %5u  slowest %5u clocks  %s\n", nr_warps, what,
		clocks[clocks.size() / 2], clocks.back(), right ? "right" : "WRONG");
	return right;
}

int main()
{
	static const struct shape shapes[] = {
		{"deepseek-v3", 256, 8}, {"qwen3-30b-a3b", 128, 8}, {"gpt-oss-120b", 128, 4}};
	int nr = 0, major = 0;
	bool right = true;

	if (cudaGetDeviceCount(&nr) != cudaSuccess || !nr) {
		fprintf(stderr, "no GPU\n");
		return 77;
	}
	CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
	for (const struct shape &shape : shapes) {
		struct scene s;

		open_scene(&s, &shape);
		printf("%s, %u tokens of each of %u ranks, %u bytes of shared memory\n", shape.name,
			TOKENS, SOURCES, s.bytes);
		for (uint32_t nr_warps : {14u, 10u, 4u}) {
			right &= time_notes(&s, "a block by itself", alone, 1, nr_warps);
			if (major < 9)
				continue;
			right &= time_notes(&s, "clusters of 2", clustered<2>, 2, nr_warps);
			right &= time_notes(&s, "clusters of 4", clustered<4>, 4, nr_warps);
		}
	}
	right &= time_slices();
	printf("%s\n", right ? "all tables right" : "WRONG");
	return right ? 0 : 1;
}
