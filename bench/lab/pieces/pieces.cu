/* SPDX-License-Identifier: Apache-2.0 */
/* tern-lab-pieces: do the 16 bytes of a piece arrive together? Two ranks of one GPU, or of two
 * where there are two, store pieces of a value and an epoch into each other's memory and poll their
 * own, as kernels do: the value in the epoch's half of the piece or in the other one; some lanes of
 * a warp or all; pieces that nothing stood in the way of, and values that an earlier kernel has
 * stored. A piece whose epoch is this round's and whose value is not is loaded again: right then,
 * its halves came apart; wrong still, it was stored so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lab/check.h"
#include "bench/lab/pieces/lines.h"
#include "gpu/cuda/common/ptx.cuh"

#define CELLS 65536u
#define BLOCKS 48u
#define THREADS 512u
#define AGAIN 1000 /* loads of a piece that is wrong */
#define POLLS (1u << 24)

struct found {
	unsigned long long apart, wrong, late; /* late: never came */
	unsigned long long old; /* of wrong ones: the value of the round before last */
	uint32_t loads;         /* the most until halves were together */
};

struct side {
	uint8_t *cells;      /* [2][CELLS] pieces, in this side's memory */
	uint8_t *peer_cells; /* the other's */
	uint32_t *values;    /* [CELLS], which an earlier kernel stores */
	struct found *found;
};

enum place {
	VALUE_FAR,
	VALUE_NEAR
}; /* in the other half than the epoch, in the same */
enum origin {
	COMPUTED,
	FROM_KERNEL
};

static __host__ __device__ uint32_t value_of(uint32_t i, uint32_t round)
{
	return (i * 2654435761u) ^ (round * 40503u + 17u);
}

static __device__ uint32_t value_in(uint4 v)
{
	return v.x;
}

template <enum place PLACE> static __device__ uint4 make_piece(uint32_t value, uint32_t epoch)
{
	return PLACE == VALUE_FAR ? make_uint4(value, 0, 0, epoch) : make_uint4(value, epoch, 0, 0);
}

template <enum place PLACE> static __device__ uint32_t epoch_in(uint4 v)
{
	return PLACE == VALUE_FAR ? v.w : v.y;
}

static __global__ void fill(uint32_t *values, uint32_t round)
{
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < CELLS;
		i += gridDim.x * blockDim.x)
		values[i] = value_of(i, round);
}

template <enum place PLACE>
static __device__ void look_again(
	struct found *found, const uint8_t *cell, uint32_t i, uint32_t round, uint32_t seen)
{
	for (uint32_t n = 1; n <= AGAIN; n++)
		if (value_in(piece_load(cell)) == value_of(i, round)) {
			atomicAdd(&found->apart, 1ull);
			atomicMax(&found->loads, n);
			return;
		}
	atomicAdd(&found->wrong, 1ull);
	if (round > 2 && seen == value_of(i, round - 2))
		atomicAdd(&found->old, 1ull);
}

/* A round of a side. Its cells of two rounds before may be overwritten: who has sent the last round
 * had ended the one before it. */
template <enum place PLACE, enum origin ORIGIN>
static __global__ void __launch_bounds__(THREADS)
	exchange(const __grid_constant__ struct side s, uint32_t round, uint32_t nr_lanes)
{
	uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32,
		 nr_warps = gridDim.x * blockDim.x / 32;
	uint64_t half = (uint64_t)(round % 2) * CELLS * 16;

	for (uint32_t first = warp * nr_lanes; first < CELLS; first += nr_warps * nr_lanes)
		if (lane < nr_lanes) {
			uint32_t i = first + lane;

			piece_store(s.peer_cells + half + (uint64_t)i * 16,
				make_piece<PLACE>(
					ORIGIN == COMPUTED ? value_of(i, round) : s.values[i],
					round));
		}
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < CELLS;
		i += gridDim.x * blockDim.x) {
		const uint8_t *cell = s.cells + half + (uint64_t)i * 16;
		uint32_t polls = 0;
		uint4 v;

		while (epoch_in<PLACE>(v = piece_load(cell)) != round && ++polls < POLLS)
			;
		if (polls == POLLS)
			atomicAdd(&s.found->late, 1ull);
		else if (value_in(v) != value_of(i, round))
			look_again<PLACE>(s.found, cell, i, round, value_in(v));
	}
}

typedef void (*exchange_kernel)(const struct side, uint32_t, uint32_t);

struct way {
	const char *what;
	exchange_kernel run;
	bool from_kernel;
	uint32_t nr_lanes;
};

static void open_sides(struct side sides[2], cudaStream_t streams[2], int nr_devices)
{
	for (int r = 0; r < 2; r++) {
		CHECK(cudaSetDevice(r % nr_devices));
		CHECK(cudaMalloc((void **)&sides[r].cells, 2ull * CELLS * 16));
		CHECK(cudaMalloc((void **)&sides[r].values, CELLS * 4));
		CHECK(cudaMallocHost((void **)&sides[r].found, sizeof(struct found)));
		CHECK(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
		if (nr_devices > 1)
			CHECK(cudaDeviceEnablePeerAccess(!r, 0));
	}
	for (int r = 0; r < 2; r++)
		sides[r].peer_cells = sides[!r].cells;
}

static void begin_way(struct side sides[2], int nr_devices)
{
	for (int r = 0; r < 2; r++) {
		CHECK(cudaSetDevice(r % nr_devices));
		CHECK(cudaMemset(sides[r].cells, 0, 2ull * CELLS * 16));
		CHECK(cudaMemset(sides[r].values, 0, CELLS * 4));
		CHECK(cudaDeviceSynchronize());
		memset(sides[r].found, 0, sizeof(*sides[r].found));
	}
}

static bool run_way(const struct way *w, struct side sides[2], cudaStream_t streams[2],
	int nr_devices, uint32_t nr_rounds)
{
	struct found f = {};

	begin_way(sides, nr_devices);
	for (uint32_t round = 1; round <= nr_rounds; round++)
		for (int r = 0; r < 2; r++) {
			CHECK(cudaSetDevice(r % nr_devices));
			if (w->from_kernel)
				fill<<<BLOCKS, THREADS, 0, streams[r]>>>(sides[r].values, round);
			w->run<<<BLOCKS, THREADS, 0, streams[r]>>>(sides[r], round, w->nr_lanes);
		}
	for (int r = 0; r < 2; r++) {
		CHECK(cudaSetDevice(r % nr_devices));
		CHECK(cudaDeviceSynchronize());
		f.apart += sides[r].found->apart;
		f.wrong += sides[r].found->wrong;
		f.old += sides[r].found->old;
		f.late += sides[r].found->late;
		f.loads = sides[r].found->loads > f.loads ? sides[r].found->loads : f.loads;
	}
	printf("  %-44s %2u lanes: apart %llu (together after at most %u loads), stored wrong %llu "
	       "(%llu of two rounds before), never came %llu\n",
		w->what, w->nr_lanes, f.apart, f.loads, f.wrong, f.old, f.late);
	return !f.apart && !f.wrong && !f.late;
}

int main(int argc, char **argv)
{
	static const struct way ways[] = {
		{"the other half, computed", exchange<VALUE_FAR, COMPUTED>, false, 32},
		{"the other half, computed", exchange<VALUE_FAR, COMPUTED>, false, 8},
		{"the other half, computed", exchange<VALUE_FAR, COMPUTED>, false, 2},
		{"the other half, stored by a kernel", exchange<VALUE_FAR, FROM_KERNEL>, true, 32},
		{"the other half, stored by a kernel", exchange<VALUE_FAR, FROM_KERNEL>, true, 8},
		{"the epoch's half, computed", exchange<VALUE_NEAR, COMPUTED>, false, 8},
		{"the epoch's half, stored by a kernel", exchange<VALUE_NEAR, FROM_KERNEL>, true,
			8}};
	uint32_t nr_rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000;
	struct side sides[2];
	cudaStream_t streams[2];
	int nr_devices = 0;
	bool good = true;

	if (cudaGetDeviceCount(&nr_devices) != cudaSuccess || !nr_devices) {
		fprintf(stderr, "no GPU\n");
		return 77;
	}
	nr_devices = nr_devices > 2 ? 2 : nr_devices;
	open_sides(sides, streams, nr_devices);
	printf("%u rounds of %u pieces each way, on %d GPU%s\n", nr_rounds, CELLS, nr_devices,
		nr_devices > 1 ? "s" : "");
	for (const struct way &way : ways)
		good &= run_way(&way, sides, streams, nr_devices, nr_rounds);
	good &= try_lines(nr_rounds, nr_devices);
	printf("%s\n", good ? "pieces arrive whole" : "pieces do not arrive whole");
	return good ? 0 : 1;
}
