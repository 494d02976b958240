/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench --against nccl: what somebody writes around ncclSend and ncclRecv. These kernels count
 * a rank's records, pack them by destination, place what came by expert, and sum the results; the
 * host moves records between them (bench/command/nccl_exchange.c). In libtern_bench_cuda.so, as
 * part of the table that it exports.
 *
 *   a record     header, routes, scales, row: all of a token that goes to a rank, or (usual) that
 *                goes to one of its experts
 *   home row     a row of results on its way back: of each route, or the sum of a record's
 *
 * Records go by destination, token, k; so within an expert rows lie by source, token, k, as Tern's.
 */
#ifndef TERN_BENCH_NCCL_ROWS_H
#define TERN_BENCH_NCCL_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "tern.h"

struct record_route {
	int32_t local, k;
	float weight;
	uint32_t home; /* its home row, of those from this rank to the token's */
};

struct record_header {
	int32_t token;
	uint32_t nr_routes;
	uint32_t pad[2];
};

struct record_expert {
	uint32_t rank, local;
};

/* What came of a route. */
struct record_place {
	uint32_t position; /* of its row by expert; UINT32_MAX: of none */
	uint32_t home;     /* of all home rows that leave here */
	float weight;
};

/* Of records, and of home rows. */
struct record_counts {
	uint32_t nr_records, nr_home;
};

#define RECORDS_TILE 256       /* items */
#define RECORDS_MOST_KEYS 1024 /* ranks, or experts of one: what a tile counts in shared memory */

/* Pointers are the device's. */
struct records {
	uint32_t nr_ranks, nr_local, topk, alignment;
	uint32_t per_rank;    /* one record for each rank that is used; else for each route */
	uint32_t most_routes; /* of a record: topk, or 1 */
	uint32_t at_home; /* results are summed there; else those of a record before they leave */
	uint32_t weighted;
	uint32_t record_bytes, scales_at, row_at, row_bytes, scales_bytes, scale_bytes, x_bytes,
		y_bytes;
	uint32_t x_kind, y_kind;             /* enum gpu_x, gpu_y */
	const struct record_expert *experts; /* [E] */
	/* The caller's: */
	uint32_t nr_tokens;
	const uint8_t *x, *scales, *y;
	const int32_t *ids;
	const float *weights; /* NULL: all 1 */
	uint8_t *out;
	/* Going out: */
	uint8_t *send, *recv;
	struct record_counts *sent, *received; /* [R] */
	/* [n][K] of the record that the route opens, and of its home row: how many of the same rank
	 * come before, in its tile of items; and [R][tiles] before the tile. The same arrays where
	 * there is a home row for each record. */
	uint32_t *record_index, *home_index, *record_tiles, *home_tiles;
	/* What came: */
	uint32_t *received_index, *received_tiles; /* [records][most_routes], [L][tiles]: likewise,
						      of the same expert */
	uint32_t *counts;                          /* [L] */
	uint64_t *offsets;                         /* [L] */
	struct record_place *places;               /* [records][most_routes] */
	uint8_t *rows_x, *rows_scales;
	struct tern_row *rows;
};

struct device_mark; /* a moment on a stream, by the device's clock */

/* Put on the stream; 0, or an enum tern_error with the cause in bench_device_ops' error_text. */
struct records_ops {
	int (*count)(const struct records *r, void *stream);
	int (*pack)(const struct records *r, void *stream);
	int (*place)(const struct records *r, uint32_t nr_records, void *stream);
	int (*pack_results)(const struct records *r, uint32_t nr_records, void *stream);
	int (*sum)(const struct records *r, void *stream);

	int (*mark_create)(struct device_mark **mark);
	void (*mark_destroy)(struct device_mark *mark);
	int (*mark_put)(struct device_mark *mark, void *stream);
	int (*mark_reached)(struct device_mark *mark, bool *reached);
	int (*mark_us)(struct device_mark *begin, struct device_mark *end, double *us); /* both
											   reached
											 */
};

#endif
