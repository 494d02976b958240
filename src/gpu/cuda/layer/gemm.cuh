/* SPDX-License-Identifier: Apache-2.0 */
/* A product of each expert's weights with its rows, as out^T = W x^T: the weights are the side of
 * 64 rows that a warpgroup's product has, the rows its narrow one, 8 to 128. So an expert of few
 * rows costs its weights and no padding. In fp8 more than 16 rows are the side of 64, and the
 * weights the narrow one: less is read from shared memory, which is what bounds these loops
 * (docs/notebook/gpu-layer-time.md).
 *
 *   tile         256 rows of weights (gate and up: 128 of each, of the same outputs) x `width` rows
 *   block of k   128 bytes of each row, one stage of the ring: [2][128][128] weights,
 *                [width][128] rows, and in fp8 [width] scales
 *   warps 0, 1   load weights, and rows: weights run ahead until the ring is full, whatever the
 *                rows wait for
 *   warp 2       in fp8, weights' scales
 *   warp 3       tells down's blocks which rows of h are there (deal.cuh)
 *   warps 4..11  two warpgroups: each has 64 weights' rows of both halves, or as first_row_of and
 *                first_output_of say
 *
 * Blocks stay, and take every gridDim.x-th tile, or draw them (deal.cuh); tiles lie by expert,
 * weights' rows, rows, so that those which share weights run side by side.
 */
#ifndef TERN_GPU_CUDA_LAYER_GEMM_CUH
#define TERN_GPU_CUDA_LAYER_GEMM_CUH

#include "gpu/cuda/layer/leave.cuh"
#include "gpu/cuda/layer/load.cuh"

static __device__ void wait_full(
	struct shared_memory *mine, const struct place *place, uint64_t *waited)
{
	uint64_t since = mark_clock();

	barrier_wait(&mine->full[place->stage], place->parity);
	*waited += mark_clock() - since;
}

template <class T, int N>
static __device__ void multiply_half(float *d, const struct shared_memory *mine, uint32_t stage,
	uint32_t group, int half, int add)
{
	uint32_t a = operand_at(mine->weights[stage] + half * HALF_BYTES + group * 64 * 128);
	uint32_t b = operand_at(mine->rows[stage]);

#pragma unroll
	for (int i = 0; i < 4; i++)
		wgmma<T, N>(d, a + 2 * i, b + 2 * i, add || i);
}

/* acc += d, times the scale of the weights and that of each row. */
template <int N>
static __device__ void promote(
	float *acc, const float *d, const float (*scales)[SCALES_AT_ONCE], float weights_scale)
{
#pragma unroll
	for (int j = 0; j < N / 8; j++) {
		float s0 = scales[8 * j][0] * weights_scale,
		      s1 = scales[8 * j + 1][0] * weights_scale;

		acc[4 * j] += d[4 * j] * s0;
		acc[4 * j + 1] += d[4 * j + 1] * s1;
		acc[4 * j + 2] += d[4 * j + 2] * s0;
		acc[4 * j + 3] += d[4 * j + 3] * s1;
	}
}

/* This lane has read its chunk. Each arrives for itself: racecheck does not follow one that does so
 * for its warp (docs/notebook/gpu-checks.md). */
static __device__ void leave_chunk(struct shared_memory *mine, struct place *chunk)
{
	barrier_arrive(&mine->taken[chunk->stage]);
	go_on<SCALE_CHUNKS>(chunk);
}

/* The scales of a tile's i-th two blocks of weights. */
static __device__ void take_scales(
	struct shared_memory *mine, struct place *chunk, uint32_t i, float *s)
{
	if (i % CHUNK_BLOCKS == 0) {
		if (i)
			leave_chunk(mine, chunk);
		barrier_wait(&mine->scaled[chunk->stage], chunk->parity);
	}
#pragma unroll
	for (int half = 0; half < 2; half++)
		s[half] = mine->of_weights[chunk->stage][half][i % CHUNK_BLOCKS];
}

/* fp8: products of a block of k are summed by the tensor cores, whose sums are short, and blocks in
 * fp32. */
template <int N>
static __device__ void multiply(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, struct place *place, struct place *chunk,
	float (*acc)[N / 2], uint64_t *waited, __nv_fp8_e4m3)
{
	float d[2][N / 2];

	for (uint32_t k = 0; k < args->k_blocks; k++, go_on(place)) {
		const float(*scales)[SCALES_AT_ONCE] =
			(const float(*)[SCALES_AT_ONCE]) &
			mine->scales[place->stage][seat->lane % 4 * 2][k % SCALES_AT_ONCE];
		float of_weights[2];

		take_scales(mine, chunk, k, of_weights);
		wait_full(mine, place, waited);
		wgmma_begin();
#pragma unroll
		for (int half = 0; half < 2; half++) {
			multiply_half<__nv_fp8_e4m3, N>(
				d[half], mine, place->stage, seat->group, half, 0);
			wgmma_commit();
		}
		wgmma_wait<1>();
		hold_registers(d[0]);
		promote<N>(acc[0], d[0], scales, of_weights[0]);
		wgmma_wait<0>();
		hold_registers(d[1]);
		promote<N>(acc[1], d[1], scales, of_weights[1]);
		__syncwarp();
		if (seat->lane == 0)
			barrier_arrive(&mine->empty[place->stage]);
	}
	leave_chunk(mine, chunk);
}

/* A warpgroup's 64 rows of a block of k, as its products have them in registers. */
template <int OUTPUTS>
static __device__ void take_rows(
	const struct shared_memory *mine, uint32_t stage, const struct seat *seat, uint32_t (*a)[4])
{
	uint32_t row = seat->lane % 16, piece = seat->lane / 16;
	uint32_t at =
		shared_address(mine->rows[stage] +
			       (first_row_of<OUTPUTS>(seat) + seat->warp % 4 * 16 + row) * 128);

#pragma unroll
	for (int i = 0; i < 4; i++)
		load_matrices(a[i], at + ((2 * i + piece) ^ row % 8) * 16);
}

/* By 64 rows of a stage's 256 of weights. */
static __device__ void multiply_part(float *d, const uint32_t (*a)[4],
	const struct shared_memory *mine, uint32_t stage, uint32_t first_weights)
{
	uint32_t b = operand_at(mine->weights[stage] + first_weights * 128);

	wgmma_begin();
#pragma unroll
	for (int i = 0; i < 4; i++)
		wgmma_of_registers(d, a[i], b + 2 * i, i);
	wgmma_commit();
}

/* Of a part whose products have ended; the next ones may be put into d. */
static __device__ void promote_part(float *acc, float (&d)[32], const float (&scales)[2])
{
	hold_registers(d);
#pragma unroll
	for (int j = 0; j < 32; j++) {
		int i = j % 16 / 2 * 4 + j / 16 * 2 + j % 2;

		acc[i] += d[i] * scales[j / 16];
	}
	hold_registers(d);
}

/* The stage before this place, if it was this tile's, has been read. */
static __device__ void leave_stage_before(
	struct shared_memory *mine, const struct seat *seat, const struct place *place, bool ours)
{
	__syncwarp();
	if (ours && seat->lane == 0)
		barrier_arrive(&mine->empty[(place->stage - 1) % STAGES]);
}

/* 64 outputs are multiplied while the ones before are promoted. */
template <int OUTPUTS>
static __device__ void multiply_wide(const struct layer_args *args, struct shared_memory *mine,
	const struct seat *seat, struct place *place, struct place *chunk,
	float (*acc)[OUTPUTS / 2], uint64_t *waited)
{
	const int of_half = OUTPUTS / 64, parts = 2 * of_half;
	uint32_t row = first_row_of<OUTPUTS>(seat) + row_of_64(seat);
	uint32_t a[4][4];
	float d[2][32], last[2] = {0, 0};

#pragma unroll
	for (int i = 0; i < 32; i++)
		d[1][i] = 0;
	for (uint32_t k = 0; k < args->k_blocks; k++, go_on(place)) {
		float of_weights[2];

		take_scales(mine, chunk, k, of_weights);
		wait_full(mine, place, waited);

		float of_rows[2] = {mine->scales[place->stage][row][k % SCALES_AT_ONCE],
			mine->scales[place->stage][row + 8][k % SCALES_AT_ONCE]};

		wgmma_wait<0>();
		hold_registers(d[1]);
		leave_stage_before(mine, seat, place, k > 0);
		take_rows<OUTPUTS>(mine, place->stage, seat, a);
#pragma unroll
		for (int i = 0; i < parts; i++) {
			int before = (i + parts - 1) % parts;

			multiply_part(d[i % 2], a, mine, place->stage,
				i / of_half * 128 + first_output_of<OUTPUTS>(seat) +
					i % of_half * 64);
			if (i)
				wgmma_wait<1>();
			promote_part(
				acc[before / of_half] + before % of_half * 32, d[before % 2], last);
			for (int j = 0; j < 2; j++)
				last[j] = of_rows[j] * of_weights[i / of_half];
		}
	}
	wgmma_wait<0>();
	promote_part(acc[1] + (of_half - 1) * 32, d[1], last);
	leave_stage_before(mine, seat, place, true);
	leave_chunk(mine, chunk);
}

template <int N>
static __device__ void multiply(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, struct place *place, struct place *,
	float (*acc)[N / 2], uint64_t *waited, __nv_bfloat16)
{
	for (uint32_t k = 0; k < args->k_blocks; k++, go_on(place)) {
		wait_full(mine, place, waited);
		hold_registers(acc[0]);
		hold_registers(acc[1]);
		wgmma_begin();
		multiply_half<__nv_bfloat16, N>(acc[0], mine, place->stage, seat->group, 0, 1);
		multiply_half<__nv_bfloat16, N>(acc[1], mine, place->stage, seat->group, 1, 1);
		wgmma_commit();
		/* Meanwhile the other group's products run. */
		wgmma_wait<0>();
		hold_registers(acc[0]);
		hold_registers(acc[1]);
		if (seat->lane == 0)
			barrier_arrive(&mine->empty[place->stage]);
	}
}

template <class T, int WHICH, int N>
static __device__ void compute_tile(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, struct place *place, struct place *chunk,
	uint64_t *waited)
{
	float acc[2][N / 2];

#pragma unroll
	for (int i = 0; i < N / 2; i++)
		acc[0][i] = acc[1][i] = 0;
	if constexpr (sizeof(T) == 1 && N > NARROW_MAX) {
		multiply_wide<N>(args, mine, seat, place, chunk, acc, waited);
		leave_wide<WHICH, N>(args, mine, tile, seat, acc);
	} else {
		multiply<N>(args, mine, tile, seat, place, chunk, acc, waited, T());
		if (WHICH == LAYER_GATE_UP)
			leave_gate_up<N>(args, mine, tile, seat, acc, T());
		else
			leave_down<N>(args, mine, tile, seat, acc);
		/* Of a wide tile, which may come next, a warp stores its own rows. */
		if (sizeof(T) == 1)
			sync_threads(2 + seat->group, 128);
	}
}

template <class T, int WHICH, bool DRAWN>
static __device__ void compute(const struct layer_args *args, struct shared_memory *mine)
{
	const struct expert_tiles *at = mine->list.experts;
	struct place place = {0, 0}, chunk = {0, 0}, hearing = {0, 0};
	const uint32_t warp = warp_id(); /* else operands of products are reckoned by lane */
	struct seat seat = {warp / 4 - 1, warp - 4, threadIdx.x % 32};
	struct tile tile;
	uint64_t waited = 0, since = mark_clock();
	uint32_t tiles = 0;

	for (uint32_t nr = blockIdx.x; find_tile(args, &at, nr, &tile);
		nr = next_tile<DRAWN>(args, mine, &hearing, ~0u, nr), tiles++) {
		switch (tile.width_index) {
		case 0:
			compute_tile<T, WHICH, 8>(
				args, mine, &tile, &seat, &place, &chunk, &waited);
			break;
		case 1:
			compute_tile<T, WHICH, 16>(
				args, mine, &tile, &seat, &place, &chunk, &waited);
			break;
		case 2:
			if constexpr (sizeof(T) == 2) {
				compute_tile<T, WHICH, 32>(
					args, mine, &tile, &seat, &place, &chunk, &waited);
				break;
			} /* fp8: as 64, of which nobody stores those that are not loaded */
		case 3:
			compute_tile<T, WHICH, 64>(
				args, mine, &tile, &seat, &place, &chunk, &waited);
			break;
		case 4:
			if constexpr (sizeof(T) == 2) {
				compute_tile<T, WHICH, 96>(
					args, mine, &tile, &seat, &place, &chunk, &waited);
				break;
			} /* fp8: as 128 */
		default:
			compute_tile<T, WHICH, 128>(
				args, mine, &tile, &seat, &place, &chunk, &waited);
		}
		if (WHICH == LAYER_GATE_UP) {
			__syncwarp();
			if (seat.lane == 0)
				barrier_arrive(&mine->h_full[tiles % TILES_OF_H]);
		}
	}
	if (threadIdx.x == 128) {
		mark_leave(args, MARK_WAITED, waited);
		mark_leave(args, MARK_COMPUTED, mark_clock() - since);
		mark_leave(args, MARK_TILES, tiles);
		mark_leave(args, MARK_END, mark_now());
	}
}

/* By the block: which rows there are. */
static __device__ void await_counts(const struct layer_args *args, struct shared_memory *mine)
{
	if (threadIdx.x == 0) {
		mine->round = is_beside(args) ? tern_gate_round(&args->gate) : 0;
		mine->beside = is_beside(args) && counts_came(args, mine->round);
	}
	__syncthreads();
	if (!mine->beside)
		wait_for_kernel_before();
}

/* DRAWN: tiles are, and gate and up may run beside the dispatch. */
template <class T, int WHICH, bool DRAWN>
static __global__ void __launch_bounds__(THREADS, 1)
	layer_kernel(const __grid_constant__ struct layer_args args)
{
	extern __shared__ uint8_t unaligned[];
	/* By an offset, so that the compiler sees that it is shared memory. */
	struct shared_memory *mine =
		(struct shared_memory *)(unaligned + (-shared_address(unaligned) & 1023));
	uint32_t warp = threadIdx.x / 32;

	if (threadIdx.x == 0)
		mark_leave(&args, MARK_BEGIN, mark_now());
	if (threadIdx.x == 32) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(&mine->full[i], 2);
			barrier_init(&mine->empty[i], CONSUMERS / 32);
			if (DRAWN) {
				barrier_init(&mine->told[i], 1);
				barrier_init(
					&mine->heard[i], 2 + (sizeof(T) == 1) + CONSUMERS / 32);
			}
		}
		for (int i = 0; i < SCALE_CHUNKS; i++) {
			barrier_init(&mine->scaled[i], 32);
			barrier_init(&mine->taken[i], CONSUMERS);
		}
		for (int i = 0; i < TILES_OF_H; i++) {
			barrier_init(&mine->h_full[i], WHICH == LAYER_GATE_UP ? CONSUMERS / 32 : 1);
			barrier_init(&mine->h_empty[i], 1);
		}
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
		prefetch_map(&args.weights);
	}
	/* Counts come with gate and up's rows, and stand long since for down. */
	if (WHICH == LAYER_GATE_UP && DRAWN)
		await_counts(&args, mine);
	else if (WHICH == LAYER_GATE_UP)
		wait_for_kernel_before();
	list_experts(&args, &mine->list, DRAWN);
	__syncthreads();
	let_next_kernel_start(); /* which reads counts as well */
	if (threadIdx.x == 0)
		mark_leave(&args, MARK_LISTED, mark_now());
	if (warp >= 4) {
		take_registers<240>();
		compute<T, WHICH, DRAWN>(&args, mine);
	} else {
		leave_registers<24>();
		if (threadIdx.x == 0)
			load_weights<T, WHICH, DRAWN>(&args, mine);
		else if (threadIdx.x == 32)
			load_rows<T, WHICH, DRAWN>(&args, mine);
		else if (sizeof(T) == 1 && warp == 2)
			load_scales<T, WHICH, DRAWN>(&args, mine);
		else if (warp == 3 && WHICH == LAYER_GATE_UP)
			tell_of_h<DRAWN>(&args, mine);
		else if (warp == 3)
			look_for_h<DRAWN>(&args, mine);
	}
}

#endif
