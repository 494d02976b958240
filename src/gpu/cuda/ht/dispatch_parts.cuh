/* SPDX-License-Identifier: Apache-2.0 */
/* High-throughput dispatch: rows pass through a warp's buffers in parts, with the parts' scales. */
#ifndef TERN_GPU_CUDA_HT_DISPATCH_PARTS_CUH
#define TERN_GPU_CUDA_HT_DISPATCH_PARTS_CUH

#include "gpu/cuda/ht/ht.cuh"
#include "gpu/cuda/common/rows.cuh"
#include "gpu/cuda/common/stream.cuh"

#define DISPATCH_BUFFERS 2 /* of a warp */

/* A warp's buffers: a part of a row each, behind it that part's scales. */
struct dispatch_warp {
	struct stream stream;
	uint32_t parts, part_bytes; /* of a row */
	bool whole_scales;          /* scales are whole vectors, and copied like rows */
};

/* A part of a row, and where it comes from or goes to. */
struct part {
	uint32_t bytes, scales_bytes;
	uint64_t at, scales_at; /* offsets from row 0 of a window, less the row's own */
};

static __device__ __forceinline__ struct part part_of(
	const struct gpu_dispatch *d, const struct dispatch_warp *w, uint32_t number)
{
	const struct gpu_exchange *e = &d->exchange;
	struct part p;

	p.at = number * w->part_bytes;
	p.bytes = min(w->part_bytes, e->row.row_bytes - number * w->part_bytes);
	p.scales_at = number * (w->part_bytes / GPU_LINE_BYTES) * d->scale_bytes;
	p.scales_bytes = gpu_ceil(p.bytes, GPU_LINE_BYTES) * d->scale_bytes;
	return p;
}

static __device__ __forceinline__ uint32_t first_segment(
	const struct gpu_exchange *e, const struct dispatch_warp *w, uint32_t number)
{
	return number * (w->part_bytes / e->row.segment_bytes);
}

/* The part as it travels, to a buffer, through registers. raw: its first segment. */
template <int X, int ND>
static __device__ __forceinline__ void make_part(const struct gpu_dispatch *d,
	const struct dispatch_warp *w, uint32_t token, uint32_t number, shared_at buffer,
	raw_segment<X, ND> &raw)
{
	const struct gpu_exchange *e = &d->exchange;
	uint32_t first = first_segment(e, w, number),
		 end = min(e->row.nr_segments, first_segment(e, w, number + 1));

#pragma unroll 1
	for (uint32_t which = first; which < end; which++) {
		struct extent x = segment_extent(&e->row, which);
		segment<GPU_FLAG128, x_kind<X>::SCALED, ND> s;
		raw_segment<X, ND> next;

		if (which + 1 < end)
			load_raw(d, token, which + 1, next);
		make_segment<X, ND>(d, raw, s);
#pragma unroll
		for (int i = 0; i < ND; i++) {
			shared_store(buffer + (which - first) * e->row.segment_bytes +
					     (i * LANES + lane_id()) * 16,
				s.v[i]);
			if (x_kind<X>::SCALED && has_line(x, i))
				store_scale(d, shared_pointer(buffer + w->part_bytes),
					(which - first) * e->row.segment_pieces / 8 + line_of(i),
					s.scale[x_kind<X>::SCALED ? i : 0]);
		}
		raw = next;
	}
	copy_out_ready();
	__syncwarp();
}

/* Scales that are no whole vectors. */
static __device__ __forceinline__ void store_scales(
	const struct gpu_dispatch *d, uint8_t *to, const uint8_t *scales, uint32_t bytes)
{
	for (uint32_t i = lane_id(); i * d->scale_bytes < bytes; i += LANES)
		if (d->scale_bytes == 4)
			((uint32_t *)to)[i] = ((const uint32_t *)scales)[i];
		else
			to[i] = scales[i];
}

/* From a buffer to a row of a window, this rank's or another's. */
static __device__ __forceinline__ void store_part(const struct gpu_dispatch *d,
	const struct dispatch_warp *w, const struct part *p, uint8_t *window, struct ht_rows rows,
	uint64_t position, shared_at buffer)
{
	const struct gpu_exchange *e = &d->exchange;
	uint8_t *scales =
		window + rows.scales + position * e->row.nr_lines * d->scale_bytes + p->scales_at;

	copy_out(window + rows.x + position * e->row.row_bytes + p->at, buffer, p->bytes, 0);
	if (!p->scales_bytes)
		return;
	if (w->whole_scales)
		copy_out(scales, buffer + w->part_bytes, p->scales_bytes, 0);
	else
		store_scales(d, scales, shared_pointer(buffer + w->part_bytes), p->scales_bytes);
}

#endif
