/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch: each token once to every rank that has one of its experts; there to all its positions in expert-major order.
 *
 *   sending warps     ids, x -> (quantise) -> pieces in the destinations' windows          no counting: rows lie by token
 *   receiving warps   plans of all sources -> positions;  pieces -> rows at their positions
 *
 * On the way of a single row: one load of ids and x, one store over NVLink, the poll that sees it, one store. The plan travels beside the
 * row, and positions are ready when it is there. Floor: that store and poll (targets: 3.1 us above an empty kernel); for many rows, bytes over NVLink's rate.
 *
 * Why rows of the next round may overwrite these: a peer's dispatch of round e+1 follows its combine of e, which has seen my arrival word e, which my
 * combine of e stored, behind this kernel. So this kernel's reads are over.
 */
#include "plan.cuh"
#include "quantise.cuh"

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void load_row(const struct ll_dispatch *d, uint32_t token, struct extent x, segment<FORMAT, SCALED, ND> &s)
{
	const uint8_t *row = d->x + token * d->x_stride;
	constexpr int HALVES = SCALED ? 2 : 1;
	uint4 in[ND][HALVES];

#pragma unroll
	for (int i = 0; i < ND; i++)
#pragma unroll
		for (int h = 0; h < HALVES; h++) {
			uint32_t offset;

			in[i][h] = in_row(&d->exchange.row, x, i, &offset) ? row_load(row + offset * HALVES + h * 16) : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
	for (int i = 0; i < ND; i++) {
		if constexpr (SCALED)
			s.v[i] = quantise_block(in[i][0], in[i][1], &s.scale[i]);
		else
			s.v[i] = in[i][0];
	}
}

/* What combine has to know of a token at its home. */
static __device__ __forceinline__ void note_home(const struct ll_dispatch *d, uint32_t token, uint32_t rank)
{
	const struct ll_exchange *e = &d->exchange;

	if (lane_id() < e->topk)
		e->home_routes[token * e->topk + lane_id()] = make_uint2(rank, __float_as_uint(gate_weight(d, token, lane_id())));
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void send_segment(const struct ll_dispatch *d, uint32_t epoch, uint32_t token, uint32_t which, uint32_t share)
{
	const struct ll_exchange *e = &d->exchange;
	struct extent x = segment_extent(&e->row, which);
	uint64_t offset = e->window.rows + ((uint64_t)e->rank * e->max_tokens + token) * e->window.row_bytes + (uint64_t)which * e->row.segment_bytes;
	uint32_t rank = UINT32_MAX, first;
	segment<FORMAT, SCALED, ND> s;

	if (lane_id() < e->topk) {
		uint32_t physical = physical_expert(d, token, lane_id());

		rank = physical == LL_NO_EXPERT ? UINT32_MAX : expert_rank(&e->placement, physical);
	}
	load_row(d, token, x, s);
	segment_pack(s, epoch);
	first = __match_any_sync(ALL_LANES, rank);
	first = __ballot_sync(ALL_LANES, rank != UINT32_MAX && (first & ((1u << lane_id()) - 1)) == 0);
	for (; first; first &= first - 1) {
		uint32_t to = __shfl_sync(ALL_LANES, rank, __ffs(first) - 1);

		if (to % d->share == share)
			segment_send(s, x, e->windows[to] + offset);
	}
	if (which == 0 && share == 0)
		note_home(d, token, rank);
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void send_all(const struct ll_dispatch *d, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t nr_tokens = min(d->nr_tokens_at ? *d->nr_tokens_at : d->nr_tokens, e->max_tokens);
	uint32_t fours = ll_ceil(ll_plan_lines(&e->plan, nr_tokens), 4), per_token = e->row.nr_segments * d->share;

	for (uint32_t i = warp; i < fours + nr_tokens * per_token; i += nr_warps) {
		uint32_t at = i - fours;

		if (i < fours)
			send_plan<FORMAT>(d, epoch, nr_tokens, i);
		else
			send_segment<FORMAT, SCALED, ND>(d, epoch, at / per_token, at / d->share % e->row.nr_segments, at % d->share);
	}
	if (warp == 0 && lane_id() == 0)
		e->state->nr_tokens = nr_tokens;
}

/* ---- receiving ----------------------------------------------------------------------------------------------- */

template <int FORMAT>
static __device__ __forceinline__ void take_plans(const struct ll_exchange *e, const struct positions *p, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	bool good = true;
	uint32_t most = 0;

	for (uint32_t s = warp; s < e->nr_ranks && good; s += nr_warps)
		good = take_plan<FORMAT>(e, p, epoch, s, 0);
	if (!good && lane_id() == 0)
		p->sums[1] = 1;
	warps_sync(nr_warps * LANES);
	for (uint32_t s = 0; s < e->nr_ranks; s++)
		most = max(most, ll_ceil(ll_plan_lines(&e->plan, p->nr_tokens[s]), 4));
	if (most == 1)
		return;
	for (uint32_t i = warp; i < (most - 1) * e->nr_ranks && good; i += nr_warps)
		if ((1 + i / e->nr_ranks) * 4 < ll_plan_lines(&e->plan, p->nr_tokens[i % e->nr_ranks]))
			good = take_plan<FORMAT>(e, p, epoch, i % e->nr_ranks, 1 + i / e->nr_ranks);
	if (!good && lane_id() == 0)
		p->sums[1] = 1;
	warps_sync(nr_warps * LANES);
}

/* This lane's route of a received token: its id and weight, from the source's plan. */
template <int FORMAT>
static __device__ __forceinline__ uint32_t route_of(const struct ll_exchange *e, uint32_t source, uint32_t token, uint32_t *weight)
{
	const uint8_t *plan = e->windows[e->rank] + e->window.plans + source * e->window.plan_bytes;
	uint32_t k = lane_id(), pair;

	if (k >= e->topk)
		return LL_NO_EXPERT;
	pair = word_load(plan + record_offset<FORMAT>(&e->plan, token, k / 2));
	*weight = word_load(plan + record_offset<FORMAT>(&e->plan, token, e->plan.id_words + k));
	return k & 1 ? pair >> 16 : pair & 0xffff;
}

static __device__ __forceinline__ void describe_row(const struct ll_dispatch *d, uint32_t row, uint32_t source, uint32_t token, uint32_t position, uint32_t weight)
{
	const struct ll_exchange *e = &d->exchange;

	if (lane_id() == 0)
		e->row_names[row] = make_uint2(source, token);
	if (lane_id() < e->topk)
		e->row_routes[row * e->topk + lane_id()] = make_uint2(position, weight);
	if (position != UINT32_MAX)
		d->out_rows[position] = make_int4(source, token, lane_id(), weight);
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void store_rows(const struct ll_dispatch *d, const segment<FORMAT, SCALED, ND> &s, struct extent x, uint32_t position)
{
	const struct ll_exchange *e = &d->exchange;

	for (uint32_t here = __ballot_sync(ALL_LANES, position != UINT32_MAX); here; here &= here - 1) {
		uint64_t to = __shfl_sync(ALL_LANES, position, __ffs(here) - 1);
#pragma unroll
		for (int i = 0; i < ND; i++) {
			uint32_t offset;

			if (!in_row(&e->row, x, i, &offset))
				continue;
			row_store(d->out_x + to * e->row.row_bytes + offset, s.v[i]);
			if (SCALED && lane_id() % 8 == 0)
				d->out_scales[to * e->row.nr_lines + x.first_line + line_of(i)] = s.scale[i];
		}
	}
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ bool receive_segment(const struct ll_dispatch *d, const struct positions *p, uint32_t epoch, uint32_t row, uint32_t which)
{
	const struct ll_exchange *e = &d->exchange;
	struct extent x = segment_extent(&e->row, which);
	uint32_t source, token, weight = 0, physical, place, position = UINT32_MAX, done = 0;
	segment<FORMAT, SCALED, ND> s;

	find_row(e, p, row, &source, &token);
	const uint8_t *from = e->windows[e->rank] + e->window.rows + ((uint64_t)source * e->max_tokens + token) * e->window.row_bytes +
		(uint64_t)which * e->row.segment_bytes;
	physical = route_of<FORMAT>(e, source, token, &weight);
	segment_look(s, x, from, epoch, &done);
	place = physical == LL_NO_EXPERT ? UINT32_MAX : expert_place(&e->placement, physical);
	if (place >> 16 == e->rank)
		position = position_of(e, p, source, place & 0xffff, token);
	if (which == 0)
		describe_row(d, row, source, token, position, weight);
	if (!segment_await(e, s, x, from, epoch, &done, (struct awaited){LL_WAIT_ROW, source, token}))
		return false;
	segment_unpack(s);
	store_rows(d, s, x, position);
	return true;
}

template <int FORMAT, bool SCALED, int ND>
static __device__ __forceinline__ void receive_all(const struct ll_dispatch *d, const struct positions *p, uint32_t epoch, uint32_t warp, uint32_t nr_warps)
{
	const struct ll_exchange *e = &d->exchange;
	uint32_t thread = warp * LANES + lane_id(), nr_threads = nr_warps * LANES, nr;

	for (uint32_t i = thread; i < e->nr_ranks * (e->nr_local + 1) * p->token_words; i += nr_threads)
		p->bits[i] = 0; /* and present, which follows it */
	if (thread < 2)
		p->sums[thread] = 0;
	warps_sync(nr_threads);
	take_plans<FORMAT>(e, p, epoch, warp, nr_warps);
	if (warp == 0)
		stamp(e, 4);
	if (p->sums[1])
		return;
	if (warp == 0)
		place_experts(d, p, blockIdx.x == 0);
	if (warp == (nr_warps > 1))
		count_rows(e, p);
	warps_sync(nr_threads);
	nr = p->sums[0] * e->row.nr_segments;
	if (warp == 0)
		stamp(e, 5);
	for (uint32_t i = warp * gridDim.x + blockIdx.x; i < nr; i += nr_warps * gridDim.x)
		if (!receive_segment<FORMAT, SCALED, ND>(d, p, epoch, i / e->row.nr_segments, i % e->row.nr_segments))
			return;
	if (warp == 0)
		stamp(e, 6);
	if (blockIdx.x == 0 && thread == 0) {
		e->state->nr_rows = p->sums[0];
		e->state->epoch_combine = epoch;
	}
}

template <int FORMAT, bool SCALED, int ND>
static __global__ void __launch_bounds__(512) dispatch_ll(const __grid_constant__ struct ll_dispatch d, uint32_t send_warps)
{
	extern __shared__ uint32_t shared[];
	const struct ll_exchange *e = &d.exchange;
	uint32_t warp = threadIdx.x / LANES, nr_warps = blockDim.x / LANES;

	if (warp == 0)
		stamp(e, 0);
	wait_for_previous();
	let_next_start();
	uint32_t epoch = e->state->epoch_dispatch;

	if (e->state->failed)
		return;
	if (warp < send_warps) {
		send_all<FORMAT, SCALED, ND>(&d, epoch, warp * gridDim.x + blockIdx.x, send_warps * gridDim.x);
		if (warp == 0)
			stamp(e, 1);
	} else {
		struct positions p = positions_in(shared, e);

		receive_all<FORMAT, SCALED, ND>(&d, &p, epoch, warp - send_warps, nr_warps - send_warps);
	}
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

typedef void (*dispatch_kernel)(const struct ll_dispatch, uint32_t);

static dispatch_kernel choose(const struct ll_dispatch *d)
{
	bool lines = d->exchange.format == LL_LINES;

	switch (d->exchange.row.nr_vectors) {
	case 8:
		return lines && !d->scaled ? dispatch_ll<LL_LINES, false, 8> : NULL;
	case 6:
		return !lines && !d->scaled ? dispatch_ll<LL_CELLS, false, 6> : NULL;
	case 4:
		if (lines)
			return d->scaled ? dispatch_ll<LL_LINES, true, 4> : dispatch_ll<LL_LINES, false, 4>;
		return d->scaled ? dispatch_ll<LL_CELLS, true, 4> : NULL;
	case 3:
		return !lines && !d->scaled ? dispatch_ll<LL_CELLS, false, 3> : NULL;
	case 2:
		if (lines)
			return d->scaled ? dispatch_ll<LL_LINES, true, 2> : dispatch_ll<LL_LINES, false, 2>;
		return d->scaled ? dispatch_ll<LL_CELLS, true, 2> : NULL;
	}
	return NULL;
}

static uint32_t shared_bytes(const struct ll_dispatch *d)
{
	const struct ll_exchange *e = &d->exchange;

	return d->roles & LL_RECEIVE ? 4 * positions_words(e->nr_ranks, e->nr_local, e->max_tokens) : 0;
}

static uint32_t send_warps(uint32_t roles, const struct ll_launch *launch)
{
	return roles == LL_SEND ? launch->nr_warps : roles == LL_RECEIVE ? 0 : launch->send_warps;
}

cudaError_t ll_dispatch_launch(const struct ll_dispatch *args, const struct ll_launch *launch, cudaStream_t stream)
{
	dispatch_kernel kernel = choose(args);
	cudaLaunchAttribute early = {};
	cudaLaunchConfig_t config = {};

	if (!kernel || launch->nr_warps < 1 || launch->nr_warps > LL_MAX_WARPS || (args->roles == (LL_SEND | LL_RECEIVE) && launch->send_warps >= launch->nr_warps))
		return cudaErrorInvalidValue;
	early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	early.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = dim3(launch->nr_blocks);
	config.blockDim = dim3(launch->nr_warps * LANES);
	config.dynamicSmemBytes = shared_bytes(args);
	config.stream = stream;
	config.attrs = &early;
	config.numAttrs = launch->early ? 1 : 0;
	if (config.dynamicSmemBytes > 48 * 1024) {
		cudaError_t rc = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)config.dynamicSmemBytes);

		if (rc != cudaSuccess)
			return rc;
	}
	return cudaLaunchKernelEx(&config, kernel, *args, send_warps(args->roles, launch));
}

cudaError_t ll_dispatch_most_blocks(const struct ll_dispatch *args, const struct ll_launch *launch, uint32_t *nr_blocks)
{
	int device, nr_sms, per_sm;
	dispatch_kernel kernel = choose(args);
	cudaError_t rc = kernel ? cudaGetDevice(&device) : cudaErrorInvalidValue;

	rc = rc ? rc : cudaDeviceGetAttribute(&nr_sms, cudaDevAttrMultiProcessorCount, device);
	rc = rc ? rc : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, (int)launch->nr_warps * LANES, shared_bytes(args));
	if (!rc)
		*nr_blocks = (uint32_t)(nr_sms * per_sm);
	return rc;
}
