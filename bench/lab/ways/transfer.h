/* SPDX-License-Identifier: Apache-2.0 */
/* Rows from each rank's memory to each other one's, and there to where they belong: the ways that
 * an exchange could choose from, without plans, ids or sums. */
#ifndef TERN_BENCH_LAB_WAYS_TRANSFER_H
#define TERN_BENCH_LAB_WAYS_TRANSFER_H

#include "bench/lab/floor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum transfer_way {
	PUSH_LINES, /* stored into the peer's window, an epoch in each line, which is polled; copied
		       from there */
	PUSH_STORES,    /* stored into its window, 16 bytes a lane; a flag behind `unit` rows */
	PUSH_BULK,      /* the same through shared memory, by the copy engine */
	PUSH_TO_PLACES, /* stored where they belong, as often as they belong there; a flag behind
			   `unit` rows */
	PUSH_BULK_TO_PLACES,
	PULL_LOADS, /* a word says that rows are ready; the receiver loads them over NVLink, and
		       stores them where they belong */
	PULL_BULK,  /* the same through shared memory */
	NR_TRANSFER_WAYS
};

#define TRANSFER_WARPS 16 /* of a block; half of them send where there is something to send */
#define TRANSFER_BUFFERS 3
#define TRANSFER_FLAG_BYTES 16
#define TRANSFER_WAIT_NS 1000000000ull /* then a wait ends, and rows are missing */

struct transfer {
	enum transfer_way way;
	uint32_t rank, nr_ranks, nr_rows, row_bytes; /* nr_rows from each rank to each other one;
							row_bytes: a multiple of 128 */
	uint32_t unit;                     /* rows behind which there is a flag; 0: one for all */
	uint32_t copies;                   /* places of a row at its destination */
	uint32_t epoch;                    /* another one in each round */
	const uint8_t *from[LAB_MAX_GPUS]; /* each rank's: [R][nr_rows] rows, by destination */
	uint8_t *window[LAB_MAX_GPUS];     /* likewise, by source */
	uint8_t *places[LAB_MAX_GPUS];     /* [copies][R][nr_rows], by source */
	uint8_t *flags[LAB_MAX_GPUS]; /* [R][nr_rows + 1], TRANSFER_FLAG_BYTES each, by source; the
					 last one is for all */
	uint32_t *blocks_done;        /* own; 0 between rounds */
};

cudaError_t transfer_launch(const struct transfer *t, uint32_t nr_blocks, cudaStream_t stream);

/* Adds to *different how many pieces of 16 bytes in this rank's places are not what their sources
 * have. The word that PUSH_LINES gives to the epoch does not count. */
cudaError_t transfer_compare(
	const struct transfer *t, unsigned long long *different, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
