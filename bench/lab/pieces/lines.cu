/* SPDX-License-Identifier: Apache-2.0 */
/* The same of lines of 128 bytes, whose last word is the epoch: stored by eight lanes of a warp in
 * one instruction, as rows are; or by the copy engine out of shared memory, a segment of eight
 * lines at a time. A line whose epoch is this round's has to have all of this round's words in the
 * same load. */
#include <stdio.h>
#include <string.h>

#include "bench/lab/check.h"
#include "bench/lab/pieces/lines.h"
#include "gpu/cuda/common/ptx.cuh"
#include "gpu/cuda/common/warp.cuh"

#define SEGMENTS 8192u
#define SEGMENT_BYTES 1024u
#define BLOCKS 48u
#define WARPS 16u
#define BUFFERS 2u
#define POLLS (1u << 24)

struct torn {
	unsigned long long apart, late;
};

struct half {
	uint8_t *lines;      /* [2][SEGMENTS] in this side's memory */
	uint8_t *peer_lines; /* the other's */
	struct torn *torn;
};

static __device__ uint32_t word_of(uint32_t segment, uint32_t word, uint32_t round)
{
	return (segment * 256 + word) * 2654435761u ^ (round * 40503u + 17u);
}

/* A lane's 16 bytes of vector v (of two) of a segment. */
static __device__ uint4 vector_of(uint32_t segment, uint32_t v, uint32_t round)
{
	uint32_t word = v * 128 + lane_id() * 4;

	return make_uint4(word_of(segment, word, round), word_of(segment, word + 1, round),
		word_of(segment, word + 2, round),
		lane_id() % 8 == 7 ? round : word_of(segment, word + 3, round));
}

static __device__ void check_segment(
	const struct half *h, uint64_t at, uint32_t segment, uint32_t round)
{
	for (uint32_t v = 0; v < 2; v++) {
		const uint8_t *from = h->lines + at + v * 512 + lane_id() * 16;
		uint4 want = vector_of(segment, v, round), got;
		uint32_t polls = 0, epochs, same;

		do {
			got = piece_load(from);
			epochs = __ballot_sync(ALL_LANES, lane_id() % 8 != 7 || got.w == round);
			same = __ballot_sync(ALL_LANES, got.x == want.x && got.y == want.y &&
								got.z == want.z && got.w == want.w);
			/* Whatever line has its epoch has to be whole. */
			for (uint32_t line = 0; line < 4; line++)
				if (epochs >> (line * 8 + 7) & 1 &&
					(same >> line * 8 & 0xff) != 0xff && lane_id() == 0)
					atomicAdd(&h->torn->apart, 1ull);
		} while (epochs != ALL_LANES && ++polls < POLLS);
		if (epochs != ALL_LANES && lane_id() == 0)
			atomicAdd(&h->torn->late, 1ull);
	}
}

/* As pieces.cu's exchange. Half of the warps send, so that lines are polled while they come. */
template <bool BULK>
static __global__ void __launch_bounds__(WARPS *LANES)
	exchange_lines(const __grid_constant__ struct half h, uint32_t round)
{
	__shared__ __align__(128) uint8_t memory[WARPS / 2 * BUFFERS * SEGMENT_BYTES];
	uint32_t warp = threadIdx.x / LANES, first = warp / 2 * gridDim.x + blockIdx.x,
		 step = WARPS / 2 * gridDim.x, buffer = 0;
	uint64_t half = (uint64_t)(round % 2) * SEGMENTS * SEGMENT_BYTES;

	for (uint32_t s = first; s < SEGMENTS; s += step) {
		uint64_t at = half + (uint64_t)s * SEGMENT_BYTES;
		shared_at out = in_shared(memory + (warp / 2 * BUFFERS + buffer) * SEGMENT_BYTES);

		if (warp % 2) {
			check_segment(&h, at, s, round);
			continue;
		}
		if (BULK) {
			copies_read<BUFFERS - 1>();
			__syncwarp();
		}
		for (uint32_t v = 0; v < 2; v++) {
			if (BULK)
				shared_store(
					out + v * 512 + lane_id() * 16, vector_of(s, v, round));
			else
				piece_store(h.peer_lines + at + v * 512 + lane_id() * 16,
					vector_of(s, v, round));
		}
		if (BULK) {
			copy_out_ready();
			__syncwarp();
			copy_out(h.peer_lines + at, out, SEGMENT_BYTES, 0);
			copies_close();
			buffer = buffer + 1 == BUFFERS ? 0 : buffer + 1;
		}
	}
	if (BULK)
		copies_done<0>();
}

static bool run_lines(const char *what, void (*run)(const struct half, uint32_t),
	uint32_t nr_rounds, int nr_devices)
{
	struct half halves[2];
	cudaStream_t streams[2];
	struct torn all = {};

	for (int r = 0; r < 2; r++) {
		CHECK(cudaSetDevice(r % nr_devices));
		CHECK(cudaMalloc(&halves[r].lines, 2ull * SEGMENTS * SEGMENT_BYTES));
		CHECK(cudaMemset(halves[r].lines, 0, 2ull * SEGMENTS * SEGMENT_BYTES));
		CHECK(cudaMallocHost(&halves[r].torn, sizeof(struct torn)));
		memset(halves[r].torn, 0, sizeof(struct torn));
		CHECK(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
		CHECK(cudaDeviceSynchronize());
	}
	halves[0].peer_lines = halves[1].lines;
	halves[1].peer_lines = halves[0].lines;
	for (uint32_t round = 1; round <= nr_rounds; round++)
		for (int r = 0; r < 2; r++) {
			CHECK(cudaSetDevice(r % nr_devices));
			run<<<BLOCKS, WARPS * LANES, 0, streams[r]>>>(halves[r], round);
		}
	for (int r = 0; r < 2; r++) {
		CHECK(cudaSetDevice(r % nr_devices));
		CHECK(cudaDeviceSynchronize());
		all.apart += halves[r].torn->apart;
		all.late += halves[r].torn->late;
		CHECK(cudaFree(halves[r].lines));
		CHECK(cudaFreeHost(halves[r].torn));
		CHECK(cudaStreamDestroy(streams[r]));
	}
	printf("  lines of 128 bytes, %-32s %.0f million: apart %llu, never came %llu\n", what,
		2e-6 * nr_rounds * SEGMENTS * 8, all.apart, all.late);
	return !all.apart && !all.late;
}

bool try_lines(uint32_t nr_rounds, int nr_devices)
{
	int major = 0;
	bool good = run_lines("stored by lanes", exchange_lines<false>, nr_rounds, nr_devices);

	CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
	if (major >= 9)
		good &= run_lines(
			"stored by the copy engine", exchange_lines<true>, nr_rounds, nr_devices);
	return good;
}
