/* SPDX-License-Identifier: Apache-2.0 */
/* A warp's share of a row, in registers: 16 bytes a lane and vector, aligned as in the caller's
 * row; and its form on the wire (wire/ll.h). */
#ifndef TERN_GPU_CUDA_COMMON_SEGMENT_CUH
#define TERN_GPU_CUDA_COMMON_SEGMENT_CUH

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/wait.cuh"
#include "gpu/wire/ll.h"

/* ND: data vectors. SCALED: one scale for each line (a block of 128 FP8 elements) goes along.
 * ALONE: each vector is a segment of its own on the wire, so that both ends may take as many
 * together as they like (results). */
template <int FORMAT, bool SCALED, int ND, bool ALONE = false> struct segment {
	static_assert(!ALONE || (FORMAT == GPU_FLAG128 && !SCALED), "only lines have such");
	static constexpr int PER_EXTRA = SCALED ? 2 : 3;
	static constexpr int NV =
		FORMAT == GPU_FLAG128 ? ND : ND + (ND + PER_EXTRA - 1) / PER_EXTRA;
	static_assert(FORMAT != GPU_FLAG128 || ND <= (SCALED ? 4 : 8), "the line has 31 words");
	static_assert(FORMAT != GPU_FLAG16 || ND % PER_EXTRA == 0, "extra cells are full");

	uint4 v[NV];
	uint32_t scale[SCALED ? ND : 1]; /* of this lane's line: a float's bits, or UE8M0's byte */
};

/* Vector i of this lane belongs to line 4i + lane / 8 of the segment. */
__device__ __forceinline__ uint32_t line_of(int i)
{
	return 4 * i + lane_id() / 8;
}

/* Of the segment's pieces of 16 bytes. ALONE: a vector's last lane has none. */
template <bool ALONE = false> __device__ __forceinline__ uint32_t piece_of(int i)
{
	return (ALONE ? LANES - 1 : LANES) * i + lane_id();
}

/* Where a segment lies in its row, in pieces of 16 bytes. */
struct extent {
	uint32_t first, nr;
};

/* With scales, which are of whole lines. */
__device__ __forceinline__ uint32_t first_line(struct extent x)
{
	return x.first / 8;
}

__device__ __forceinline__ bool has_line(struct extent x, int i)
{
	return line_of(i) * 8 < x.nr;
}

__device__ __forceinline__ struct extent segment_extent(
	const struct row_geometry *cut, uint32_t segment)
{
	uint32_t nr_pieces = cut->row_bytes / 16;
	struct extent x;

	x.first = segment * cut->segment_pieces;
	x.nr = min(cut->segment_pieces, nr_pieces - min(nr_pieces, x.first));
	return x;
}

/* This lane's offset in the row, if vector i has something there. */
template <bool ALONE = false>
__device__ __forceinline__ bool in_row(struct extent x, int i, uint32_t *offset)
{
	*offset = (x.first + piece_of<ALONE>(i)) * 16;
	return piece_of<ALONE>(i) < x.nr && (!ALONE || lane_id() < LANES - 1);
}

/* Of the last segment, a bit each: vectors that have nothing of the row. */
template <bool ALONE, int ND> __device__ __forceinline__ uint32_t empty_vectors(struct extent x)
{
	uint32_t empty = 0;

#pragma unroll
	for (int i = 1; i < ND && ALONE; i++)
		empty |= (uint32_t)((LANES - 1) * i >= x.nr) << i;
	return empty;
}

__device__ __forceinline__ uint4 pick(bool first, uint4 a, uint4 b)
{
	return make_uint4(
		first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* With scales the extra line lies where lanes 24 to 31 of the last vector would be; of its lanes
 * only as many travel as hold something. In the last of those the last word belongs to a line that
 * is not there, the extra one itself: so it holds the epoch. Without scales the last lanes of the
 * last vector are enough (ALONE: the last one of each), and the last word of all is its line's
 * epoch, as everywhere: nothing is displaced by it. */
template <bool SCALED, int ND, bool ALONE = false>
__device__ __forceinline__ uint32_t first_of_extra()
{
	return SCALED ? 24 : LANES - gpu_extra_lanes(SCALED, ALONE ? 1 : ND);
}

template <bool SCALED, int ND, bool ALONE = false> __device__ __forceinline__ bool in_extra(int i)
{
	return (ALONE || i == ND - 1) && lane_id() >= first_of_extra<SCALED, ND, ALONE>();
}

template <bool SCALED, int ND> __device__ __forceinline__ uint32_t last_of_extra()
{
	return first_of_extra<SCALED, ND>() + gpu_extra_lanes(SCALED, ND) - 1;
}

/* Has this lane's piece of vector i an epoch? */
template <bool SCALED, int ND> __device__ __forceinline__ bool line_epoch(int i)
{
	return SCALED && in_extra<SCALED, ND>(i) ? lane_id() == last_of_extra<SCALED, ND>()
						 : lane_id() % 8 == 7;
}

/* Vector i: its displaced words to those that the last vector's extra lanes hold; its epochs.
 * Vectors in turn: each may leave at once. */
template <bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void lines_pack_vector(
	segment<GPU_FLAG128, SCALED, ND, ALONE> &s, int i, uint32_t epoch, uint4 *words)
{
	uint32_t lane = lane_id(), extra = lane - first_of_extra<SCALED, ND, ALONE>(), w = s.v[i].w;

	if constexpr (SCALED) {
		uint32_t from = 16 * (lane & 1) + 7, bits = s.scale[i];
		uint4 v = make_uint4(__shfl_sync(ALL_LANES, bits, from),
			__shfl_sync(ALL_LANES, w, from), __shfl_sync(ALL_LANES, bits, from + 8),
			__shfl_sync(ALL_LANES, w, from + 8));

		*words = pick(extra / 2 == i, v, *words);
	} else {
		uint4 v = make_uint4(__shfl_sync(ALL_LANES, w, 7), __shfl_sync(ALL_LANES, w, 15),
			__shfl_sync(ALL_LANES, w, 23), __shfl_sync(ALL_LANES, w, 31));

		*words = ALONE ? v : pick(extra == i, v, *words);
	}
	if (ALONE || i == ND - 1)
		s.v[i] = pick(in_extra<SCALED, ND, ALONE>(i), *words, s.v[i]);
	s.v[i].w = line_epoch<SCALED, ND>(i) ? epoch : s.v[i].w;
}

template <bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void lines_pack(
	segment<GPU_FLAG128, SCALED, ND, ALONE> &s, uint32_t epoch)
{
	uint4 words = make_uint4(0, 0, 0, 0);

#pragma unroll
	for (int i = 0; i < ND; i++)
		lines_pack_vector(s, i, epoch, &words);
}

template <bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void lines_unpack(segment<GPU_FLAG128, SCALED, ND, ALONE> &s)
{
	uint32_t lane = lane_id(), group = lane / 8;
	uint4 last = s.v[ND - 1];

#pragma unroll
	for (int i = 0; i < ND; i++) {
		uint4 extra = ALONE ? s.v[i] : last;
		uint32_t from = first_of_extra<SCALED, ND, ALONE>() + (SCALED ? 2 * i + group / 2
									      : ALONE ? 0
										      : i),
			 displaced;
		uint4 w = make_uint4(__shfl_sync(ALL_LANES, extra.x, from),
			__shfl_sync(ALL_LANES, extra.y, from),
			__shfl_sync(ALL_LANES, extra.z, from),
			__shfl_sync(ALL_LANES, extra.w, from));

		if constexpr (SCALED) {
			s.scale[i] = group & 1 ? w.z : w.x;
			displaced = group & 1 ? w.w : w.y;
		} else {
			displaced = group == 0 ? w.x : group == 1 ? w.y : group == 2 ? w.z : w.w;
		}
		s.v[i].w = lane % 8 == 7 ? displaced : s.v[i].w;
	}
}

/* ---- cells ----------------------------------------------------------------------------------- */

template <bool SCALED, int ND>
__device__ __forceinline__ void cells_pack(segment<GPU_FLAG16, SCALED, ND> &s, uint32_t epoch)
{
#pragma unroll
	for (int i = 0; i < ND; i += segment<GPU_FLAG16, SCALED, ND>::PER_EXTRA) {
		uint32_t third;

		if constexpr (SCALED)
			third = lane_id() % 8 == 0 ? s.scale[i] : s.scale[i + 1];
		else
			third = s.v[i + 2].w;
		s.v[ND + i / segment<GPU_FLAG16, SCALED, ND>::PER_EXTRA] =
			make_uint4(s.v[i].w, s.v[i + 1].w, third, epoch);
	}
#pragma unroll
	for (int i = 0; i < ND; i++)
		s.v[i].w = epoch;
}

template <bool SCALED, int ND>
__device__ __forceinline__ void cells_unpack(segment<GPU_FLAG16, SCALED, ND> &s)
{
#pragma unroll
	for (int i = 0; i < ND; i += segment<GPU_FLAG16, SCALED, ND>::PER_EXTRA) {
		uint4 extra = s.v[ND + i / segment<GPU_FLAG16, SCALED, ND>::PER_EXTRA];

		s.v[i].w = extra.x;
		s.v[i + 1].w = extra.y;
		if constexpr (SCALED) {
			s.scale[i] = __shfl_sync(ALL_LANES, extra.z, lane_id() & ~7u);
			s.scale[i + 1] = __shfl_sync(ALL_LANES, extra.z, (lane_id() & ~7u) + 1);
		} else {
			s.v[i + 2].w = extra.z;
		}
	}
}

/* ---- either ---------------------------------------------------------------------------------- */

template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void segment_pack(segment<FORMAT, SCALED, ND, ALONE> &s, uint32_t epoch)
{
	if constexpr (FORMAT == GPU_FLAG128)
		lines_pack(s, epoch);
	else
		cells_pack(s, epoch);
}

template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void segment_unpack(segment<FORMAT, SCALED, ND, ALONE> &s)
{
	if constexpr (FORMAT == GPU_FLAG128)
		lines_unpack(s);
	else
		cells_unpack(s);
}

/* Does this lane's piece of vector i travel? Whole lines do. */
template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ bool travels(
	const segment<FORMAT, SCALED, ND, ALONE> &, struct extent x, int i)
{
	if (ALONE)
		return (lane_id() / 8 * 8 + (LANES - 1) * i < x.nr) ||
		       (lane_id() >= 24 && (LANES - 1) * i < x.nr);
	if (FORMAT == GPU_FLAG128)
		return has_line(x, i) ||
		       (SCALED ? in_extra<SCALED, ND>(i) && lane_id() <= last_of_extra<SCALED, ND>()
			       : i == ND - 1 && lane_id() >= 24);
	return i >= ND || has_line(x, i);
}

template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void vector_send(
	const segment<FORMAT, SCALED, ND, ALONE> &s, struct extent x, int i, uint8_t *to)
{
	if (travels(s, x, i))
		piece_store(to + i * 512 + lane_id() * 16, s.v[i]);
}

template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void segment_send(
	const segment<FORMAT, SCALED, ND, ALONE> &s, struct extent x, uint8_t *to)
{
#pragma unroll
	for (int i = 0; i < s.NV; i++)
		vector_send(s, x, i, to);
}

template <int FORMAT> __device__ __forceinline__ bool has_epoch()
{
	return FORMAT == GPU_FLAG16 || lane_id() % 8 == 7;
}

template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ bool has_epoch(const segment<FORMAT, SCALED, ND, ALONE> &, int i)
{
	return FORMAT == GPU_FLAG16 || line_epoch<SCALED, ND>(i);
}

/* Loads the vectors that are not complete, a bit each. Does not wait for them: several segments may
 * be on their way. */
template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ void segment_look(
	segment<FORMAT, SCALED, ND, ALONE> &s, const uint8_t *from, uint32_t done)
{
#pragma unroll
	for (int i = 0; i < s.NV; i++)
		if (!(done >> i & 1))
			s.v[i] = piece_load(from + i * 512 + lane_id() * 16);
}

/* Which are complete now? A line counts only if one load has brought its epoch and the rest of it.
 */
template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ uint32_t segment_check(
	const segment<FORMAT, SCALED, ND, ALONE> &s, struct extent x, uint32_t epoch)
{
	uint32_t done = 0;

#pragma unroll
	for (int i = 0; i < s.NV; i++)
		if (__all_sync(
			    ALL_LANES, !has_epoch(s, i) || !travels(s, x, i) || s.v[i].w == epoch))
			done |= 1u << i;
	return done;
}

/* What a wait for a segment reports. */
struct awaited {
	uint32_t reason, peer, token;
};

/* After a look. */
template <int FORMAT, bool SCALED, int ND, bool ALONE>
__device__ __forceinline__ bool segment_await(const struct gpu_exchange *e,
	segment<FORMAT, SCALED, ND, ALONE> &s, struct extent x, const uint8_t *from, uint32_t epoch,
	struct awaited what)
{
	constexpr uint32_t all = (1u << segment<FORMAT, SCALED, ND, ALONE>::NV) - 1;
	struct patience patience = {0, 0};
	uint32_t done;

	while ((done = segment_check(s, x, epoch)) != all) {
		uint32_t seen = __shfl_sync(ALL_LANES, s.v[0].w, 7);

		if (!warp_may_wait(&patience, e, what.peer, e->wait_ns)) {
			if (lane_id() == 7)
				report_wait(e, what.reason, what.peer, what.token, epoch, seen,
					patience.start_ns);
			return false;
		}
		segment_look(s, from, done);
	}
	return true;
}

#endif
