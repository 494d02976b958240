/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what a rank got with the reference, bit for bit. */
#ifndef TERN_TESTKIT_VERIFY_H
#define TERN_TESTKIT_VERIFY_H

#include "testkit/reference.h"

/* Adds up over calls; starts as all zeros. */
struct difference {
	uint64_t nr;     /* wrong elements, counts, offsets, row descriptions */
	char first[384]; /* what the first one was */
};

/* Both return 0, also when they find differences; -1: out of memory. The reference's round must be
 * that of the data. */
int verify_received(struct reference *reference, uint32_t rank,
	const struct tern_received *received, struct difference *difference);
/* What was wanted beside rows, where it is not NULL. positions: as many as there can be; stride: of
 * gemm_scales; totals: what expert_totals should be, which this round's are added to first. */
int verify_wanted(struct reference *reference, uint32_t rank, const struct tern_received *received,
	uint64_t positions, uint64_t stride, uint64_t *totals, struct difference *difference);
/* Bytes that it takes: of wide_ids and of gemm_scales. capacity: of an expert, in TERN_PADDED. */
uint64_t wide_ids_bytes(const struct job *job, uint64_t positions);
uint64_t gemm_scales_bytes(const struct job *job, uint32_t nr_local, uint64_t stride);
/* NaN equals NaN here, whatever its payload: which one survives a sum is left to the processor. */
int verify_combined(struct reference *reference, uint32_t rank, const void *out, size_t stride,
	struct difference *difference);

/* What the experts would do: writes the rows of y for the rows that rank has received. stride in
 * bytes. -1: out of memory. */
int fill_y(const struct reference *reference, uint32_t rank, void *y, size_t stride);

/* The floats of the rows that rank has received, at their places; what is no row's stays. And what
 * comes home of them. -1: out of memory. */
int fill_floats(const struct reference *reference, uint32_t rank, float *floats);
void verify_floats(const struct reference *reference, uint32_t rank, const float *out_floats,
	struct difference *difference);

#endif
