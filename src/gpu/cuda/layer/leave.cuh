/* SPDX-License-Identifier: Apache-2.0 */
/* How a tile's sums leave: activated, quantised, and stored by rows. */
#ifndef TERN_GPU_CUDA_LAYER_LEAVE_CUH
#define TERN_GPU_CUDA_LAYER_LEAVE_CUH

#include "gpu/cuda/common/ptx.cuh"
#include "gpu/cuda/layer/ring.cuh"

static __device__ float power_of_2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* acc[0] becomes what gate and up make. Chosen once: chosen for each, the quotients would wait for
 * each other. */
template <int N>
static __device__ void activate(enum layer_activation activation, float (*acc)[N / 2])
{
	if (activation == LAYER_SWIGLU) {
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			/* A divisor beyond 2^126 makes it 0, where the quotient is some 1e-36. */
			acc[0][i] = acc[0][i] *
				    reciprocal_near(
					    1.0f + power_of_2(-1.4426950408889634f * acc[0][i])) *
				    acc[1][i];
	} else {
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			acc[0][i] *= acc[1][i];
	}
}

/* The largest magnitude of each row's 128 outputs, of 8 warps. */
template <int N>
static __device__ void find_amax(
	const float *v, struct shared_memory *mine, const struct seat *seat)
{
#pragma unroll
	for (int j = 0; j < N / 8; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			float most = fmaxf(fabsf(v[4 * j + c]), fabsf(v[4 * j + 2 + c]));

			for (int d = 4; d < 32; d *= 2)
				most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
			if (seat->lane < 4)
				mine->amax[seat->warp][8 * j + seat->lane * 2 + c] = most;
		}
	sync_threads(1, CONSUMERS);
}

static __device__ float amax_of(const struct shared_memory *mine, int row)
{
	float most = 0;

#pragma unroll
	for (int w = 0; w < CONSUMERS / 32; w++)
		most = fmaxf(most, mine->amax[w][row]);
	return most;
}

/* As gpu/cuda/common/quantise.cuh: no scale is subnormal, and that of zeros is 1. */
static __device__ float scale_of(float amax)
{
	return !(amax > 0) ? 1.0f : fmaxf(__fdiv_rn(amax, 448.0f), 0x1p-126f);
}

static __device__ float factor_of(float amax)
{
	return !(amax > 0)                           ? 1.0f
	       : __fdiv_rn(amax, 448.0f) < 0x1p-126f ? 0x1p126f
						     : __fdiv_rn(448.0f, amax);
}

/* At most ROWS rows of PIECES x 16 bytes each, by so many threads: from shared memory to rows of
 * memory, of which so many pieces are there. */
template <int ROWS, int PIECES, int NR_THREADS>
static __device__ void store_rows(const uint8_t *from, uint8_t *to, uint64_t to_pitch_bytes,
	uint32_t rows, uint32_t pieces_there, uint32_t thread)
{
	const uint32_t at_once = NR_THREADS / PIECES;
	uint32_t row = thread / PIECES, piece = thread % PIECES;

	from += row * OUT_PITCH + piece * 16;
	to += row * to_pitch_bytes + piece * 16;
	if (piece >= pieces_there)
		return;
#pragma unroll
	for (uint32_t i = 0; i < ROWS; i += at_once, to += at_once * to_pitch_bytes)
		if (row + i < rows)
			*(uint4 *)to = *(const uint4 *)(from + i * OUT_PITCH);
}

/* Elements of U, outputs m .. m + 63 of a tile's rows, by a warpgroup. value(i) is the i-th of
 * wgmma's order. */
template <int N, class U, class Value>
static __device__ void store_outputs(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, uint32_t m, const Value &value)
{
	const int at_once = N < OUT_WIDTH ? N : OUT_WIDTH < N && N % OUT_WIDTH ? 32 : OUT_WIDTH;
	const int pieces = 64 * sizeof(U) / 16;
	uint8_t *out = mine->out[seat->group];
	uint32_t there =
		m < args->m ? min((uint32_t)pieces, (args->m - m) * (uint32_t)sizeof(U) / 16) : 0;

#pragma unroll
	for (int begin = 0; begin < N; begin += at_once) {
		sync_threads(2 + seat->group, 128);
#pragma unroll
		for (int j = 0; j < at_once / 8; j++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int row = 8 * j + seat->lane % 4 * 2 + i % 2;
				int output = row_of_64(seat) + i / 2 * 8;

				((U *)(out + row * OUT_PITCH))[output] =
					value(begin / 2 + 4 * j + i);
			}
		sync_threads(2 + seat->group, 128);
		if (begin < tile->rows)
			store_rows<at_once, pieces, 128>(out,
				(uint8_t *)args->out +
					((tile->first_row + begin) * args->out_stride + m) *
						sizeof(U),
				args->out_stride * sizeof(U), tile->rows - begin, there,
				seat->warp % 4 * 32 + seat->lane);
	}
}

template <int N>
static __device__ void leave_gate_up(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, float (*acc)[N / 2], __nv_bfloat16)
{
	activate<N>(args->activation, acc);
	store_outputs<N, __nv_bfloat16>(args, mine, tile, seat,
		tile->m_tile * 128 + seat->group * 64,
		[&](int i) { return __float2bfloat16_rn(acc[0][i]); });
}

/* By one thread for each row, behind find_amax. The next tile's amax are written before anybody
 * comes here again, and its factors behind its amax: neither while this tile's are still read. */
template <int N>
static __device__ void tell_factors(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, uint32_t row)
{
	if (row < N) {
		float amax = amax_of(mine, row);

		mine->factors[row] = factor_of(amax);
		if (row < tile->rows)
			args->out_scales[(uint64_t)(tile->first_row + row) *
						 args->out_scales_pitch +
					 tile->m_tile] = scale_of(amax);
	}
	sync_threads(1, CONSUMERS);
}

template <int N>
static __device__ void leave_gate_up(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, float (*acc)[N / 2], __nv_fp8_e4m3)
{
	activate<N>(args->activation, acc);
	find_amax<N>(acc[0], mine, seat);
	tell_factors<N>(args, mine, tile, seat->warp * 32 + seat->lane);
#pragma unroll
	for (int j = 0; j < N / 8; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			float factor = mine->factors[8 * j + seat->lane % 4 * 2 + c];

			acc[0][4 * j + c] *= factor;
			acc[0][4 * j + 2 + c] *= factor;
		}
	store_outputs<N, uint8_t>(args, mine, tile, seat, tile->m_tile * 128 + seat->group * 64,
		[&](int i) { return __nv_cvt_float_to_fp8(acc[0][i], __NV_SATFINITE, __NV_E4M3); });
}

template <int N>
static __device__ void leave_down(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, float (*acc)[N / 2])
{
#pragma unroll
	for (int half = 0; half < 2; half++)
		store_outputs<N, __nv_bfloat16>(args, mine, tile, seat,
			tile->m_tile * 256 + half * 128 + seat->group * 64,
			[&](int i) { return __float2bfloat16_rn(acc[half][i]); });
}

/* ---- tiles of more rows: a thread has whole rows' parts ---------------------------------------
 */

static __device__ void put_pair(uint8_t *to, float a, float b, uint8_t)
{
	*(__nv_fp8x2_storage_t *)to =
		__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

static __device__ void put_pair(uint8_t *to, float a, float b, __nv_bfloat16)
{
	*(__nv_bfloat162 *)to = __floats2bfloat162_rn(a, b);
}

/* OUTPUTS outputs from m on of 64 rows from `first` on, at most 128 bytes of each at a time: of a
 * warp's 16 rows, by itself. */
template <int OUTPUTS, class U>
static __device__ void store_wide(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, uint32_t first, uint32_t m,
	const float *v)
{
	const int at_once = OUTPUTS * sizeof(U) > 128 ? 128 / sizeof(U) : OUTPUTS;
	const uint32_t pieces = at_once * sizeof(U) / 16;
	uint32_t of_warp = seat->warp % 4 * 16, begin_row = first + of_warp;
	uint32_t rows = tile->rows > begin_row ? tile->rows - begin_row : 0;
	uint8_t *out = mine->out[seat->group];

#pragma unroll
	for (int begin = 0; begin < OUTPUTS; begin += at_once) {
		uint32_t here = m + begin;
		uint32_t there = here < args->m
					 ? min(pieces, (args->m - here) * (uint32_t)sizeof(U) / 16)
					 : 0;

		__syncwarp();
#pragma unroll
		for (int j = 0; j < at_once / 8; j++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				int row = row_of_64(seat) + i * 8;
				int at = begin / 2 + 4 * j + 2 * i;

				put_pair(out + row * OUT_PITCH +
						 (8 * j + seat->lane % 4 * 2) * sizeof(U),
					v[at], v[at + 1], U());
			}
		__syncwarp();
		store_rows<16, pieces, 32>(out + of_warp * OUT_PITCH,
			(uint8_t *)args->out +
				((tile->first_row + begin_row) * args->out_stride + here) *
					sizeof(U),
			args->out_stride * sizeof(U), rows, there, seat->lane);
	}
}

/* Of v, OUTPUTS of two rows of a quad: its largest magnitudes. */
template <int OUTPUTS> static __device__ void amax_of_rows(const float *v, float *amax)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		amax[i] = 0;
#pragma unroll
		for (int j = 0; j < OUTPUTS / 8; j++)
			amax[i] = fmaxf(amax[i],
				fmaxf(fabsf(v[4 * j + 2 * i]), fabsf(v[4 * j + 2 * i + 1])));
		amax[i] = fmaxf(amax[i], __shfl_xor_sync(~0u, amax[i], 1));
		amax[i] = fmaxf(amax[i], __shfl_xor_sync(~0u, amax[i], 2));
	}
}

/* Of rows of which each group has half the outputs. Two barriers: the last tile's may still be
 * read. */
static __device__ void share_amax(struct shared_memory *mine, const struct seat *seat, float *amax)
{
	uint32_t row = row_of_64(seat);

	sync_threads(1, CONSUMERS);
	if (seat->lane % 4 == 0) {
		mine->amax_of_group[seat->group][row] = amax[0];
		mine->amax_of_group[seat->group][row + 8] = amax[1];
	}
	sync_threads(1, CONSUMERS);
	amax[0] = fmaxf(amax[0], mine->amax_of_group[!seat->group][row]);
	amax[1] = fmaxf(amax[1], mine->amax_of_group[!seat->group][row + 8]);
}

template <int OUTPUTS>
static __device__ void quantise_wide(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, float *v)
{
	float amax[2];

	amax_of_rows<OUTPUTS>(v, amax);
	if (OUTPUTS < 128)
		share_amax(mine, seat, amax);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t row = first_row_of<OUTPUTS>(seat) + row_of_64(seat) + i * 8;
		float factor = factor_of(amax[i]);

#pragma unroll
		for (int j = 0; j < OUTPUTS / 8; j++) {
			v[4 * j + 2 * i] *= factor;
			v[4 * j + 2 * i + 1] *= factor;
		}
		if (seat->lane % 4 == 0 && row < tile->rows && first_output_of<OUTPUTS>(seat) == 0)
			args->out_scales[(uint64_t)(tile->first_row + row) *
						 args->out_scales_pitch +
					 tile->m_tile] = scale_of(amax[i]);
	}
}

template <int WHICH, int OUTPUTS>
static __device__ void leave_wide(const struct layer_args *args, struct shared_memory *mine,
	const struct tile *tile, const struct seat *seat, float (*acc)[OUTPUTS / 2])
{
	uint32_t first = first_row_of<OUTPUTS>(seat), m = first_output_of<OUTPUTS>(seat);

	if constexpr (WHICH == LAYER_GATE_UP) {
		activate<OUTPUTS>(args->activation, acc);
		quantise_wide<OUTPUTS>(args, mine, tile, seat, acc[0]);
		store_wide<OUTPUTS, uint8_t>(
			args, mine, tile, seat, first, tile->m_tile * 128 + m, acc[0]);
	} else {
#pragma unroll
		for (int half = 0; half < 2; half++)
			store_wide<OUTPUTS, __nv_bfloat16>(args, mine, tile, seat, first,
				tile->m_tile * 256 + half * 128 + m, acc[half]);
	}
}

#endif
