/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for experts behind gates: a kernel that copies received rows as soon as their tile is said
 * to be whole, and one that makes y of rows that the test has prepared and marks its tiles. A warp
 * a block, which takes every so many tiles. */
#include "gpu/cuda/common/launch.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "tern_device.cuh"
#include "testkit/device/cuda/consumer.h"

#define BLOCKS 2

/* Row by row, as an emulated warp has only so many stores under way. */
static __device__ __forceinline__ void copy_rows(
	uint8_t *to, const uint8_t *from, uint64_t first, uint32_t rows, uint64_t row_bytes)
{
	for (uint64_t row = first; row < first + rows; row++) {
		for (uint64_t i = lane_id() * 16; i < row_bytes; i += LANES * 16)
			row_store(to + row * row_bytes + i, row_load(from + row * row_bytes + i));
		__syncwarp();
	}
}

/* Scales of a row need not be a multiple of 16 bytes. */
static __device__ __forceinline__ void copy_scales(
	uint8_t *to, const uint8_t *from, uint64_t first, uint32_t rows, uint64_t row_bytes)
{
	for (uint64_t i = lane_id(); i < rows * row_bytes; i += LANES)
		to[first * row_bytes + i] = from[first * row_bytes + i];
}

struct rows_of_tile {
	uint32_t expert, tile, rows;
	uint64_t first;
};

/* Calls take(tile) for this block's. False: the exchange has failed. */
template <class Take>
static __device__ __forceinline__ bool for_tiles(
	const struct tern_gate *gate, uint32_t round, const Take &take)
{
	for (uint32_t e = 0, nr = 0; e < gate->nr_local; e++) {
		uint32_t rows = 0;
		uint64_t first = 0;

		if (!__all_sync(ALL_LANES, tern_counts(gate, round, e, &first, &rows)))
			return false;
		for (uint32_t t = 0; t * gate->tile_rows < rows; t++, nr++) {
			struct rows_of_tile mine = {e, t,
				min(gate->tile_rows, rows - t * gate->tile_rows),
				first + t * gate->tile_rows};

			if (nr % gridDim.x == blockIdx.x)
				take(mine);
		}
	}
	return true;
}

static __global__ void __launch_bounds__(LANES)
	read_rows(const __grid_constant__ struct gate_consumer c)
{
	uint32_t round = tern_gate_round(&c.gate);

	for_tiles(&c.gate, round, [&](struct rows_of_tile t) {
		if (c.broken != GATE_BLIND && lane_id() == 0)
			tern_wait_rows(&c.gate, round, t.expert, t.tile);
		__syncwarp();
		copy_rows(c.seen_x, c.x, t.first, t.rows, c.x_bytes);
		copy_scales(c.seen_scales, c.scales, t.first, t.rows, c.scales_bytes);
	});
	wait_for_previous();
}

static __global__ void __launch_bounds__(LANES)
	make_y(const __grid_constant__ struct gate_consumer c)
{
	uint32_t round = tern_gate_round(&c.gate);

	wait_for_previous();
	let_next_start();
	for_tiles(&c.gate, round, [&](struct rows_of_tile t) {
		if (c.broken == GATE_HASTY && lane_id() == 0)
			tern_tile_done(&c.gate, t.expert, t.tile);
		copy_rows(c.y, c.prepared, t.first, t.rows, c.y_bytes);
		__syncwarp();
		if (c.broken != GATE_HASTY && c.broken != GATE_SILENT && lane_id() == 0)
			tern_tile_done(&c.gate, t.expert, t.tile);
	});
}

cudaError_t consumer_launch(const struct gate_consumer *c, cudaStream_t stream)
{
	cudaLaunchAttribute early = {};
	cudaLaunchConfig_t config = launch_config(BLOCKS, LANES, 0, stream);
	cudaError_t rc;

	launch_early(&config, &early, true);
	rc = cudaLaunchKernelEx(&config, read_rows, *c);
	return rc ? rc : cudaLaunchKernelEx(&config, make_y, *c);
}
