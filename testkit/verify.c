/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/verify.h"
#include "testkit/convert.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void __attribute__((format(printf, 2, 3)))
differ(struct difference *difference, const char *format, ...)
{
	va_list args;

	if (difference->nr++)
		return;
	va_start(args, format);
	vsnprintf(difference->first, sizeof(difference->first), format, args);
	va_end(args);
}

/* ---- received -------------------------------------------------------------------------------- */

struct check {
	struct reference *reference;
	const struct tern_received *received;
	struct difference *difference;
	uint32_t rank;
	const void *x; /* of the current token */
	const void *scales;
};

/* "rank 1, round 7: local expert 3, row 17 (from rank 0, token 5, k 2)" */
static void name_place(
	const struct check *check, const struct place *place, char *name, size_t size)
{
	bool by_source = check->reference->job->config.layout == TERN_BY_SOURCE;

	snprintf(name, size, "rank %u, round %llu: %s %u, row %llu (from rank %u, token %u, k %d)",
		check->rank, (unsigned long long)check->reference->round,
		by_source ? "source" : "local expert", place->group,
		(unsigned long long)place->position, place->source, place->token, place->k);
}

static void compare_bytes(const struct check *check, const struct place *place, const char *what,
	const void *want, const void *got, size_t bytes, uint32_t step)
{
	const unsigned char *w = want, *g = got;
	uint32_t want_bits, got_bits;
	char name[160];
	size_t i;

	if (!memcmp(want, got, bytes))
		return;
	name_place(check, place, name, sizeof(name));
	for (i = 0; i < bytes; i += step) {
		if (!memcmp(w + i, g + i, step))
			continue;
		want_bits = got_bits = 0;
		memcpy(&want_bits, w + i, step);
		memcpy(&got_bits, g + i, step);
		differ(check->difference, "%s: %s %zu is 0x%0*x, should be 0x%0*x", name, what,
			i / step, (int)step * 2, got_bits, (int)step * 2, want_bits);
	}
}

static void check_row(const struct check *check, const struct place *place)
{
	const struct tern_row *got = &check->received->rows[place->position];
	char name[160];

	if (got->rank == (int32_t)place->source && got->token == (int32_t)place->token &&
		got->k == place->k && !memcmp(&got->weight, &place->weight, sizeof(got->weight)))
		return;
	name_place(check, place, name, sizeof(name));
	differ(check->difference,
		"%s: described as from rank %d, token %d, k %d, weight %a instead of %a", name,
		got->rank, got->token, got->k, got->weight, place->weight);
}

static void check_local_ids(const struct check *check, const struct place *place)
{
	uint32_t k, topk = check->reference->job->config.topk;
	const int32_t *got = check->received->topk_ids + place->position * topk;
	const float *got_weights = check->received->topk_weights + place->position * topk;
	const float *weights = reference_weights(check->reference, place->home, place->token);
	int32_t want[TERN_MAX_TOPK];
	float weight;
	char name[160];

	name_place(check, place, name, sizeof(name));
	reference_local_ids(check->reference, check->rank, place->home, place->token, want);
	for (k = 0; k < topk; k++) {
		weight = want[k] >= 0 ? weights[k] : 0;
		if (got[k] != want[k])
			differ(check->difference, "%s: topk_ids[%u] is %d, should be %d", name, k,
				got[k], want[k]);
		if (memcmp(&got_weights[k], &weight, sizeof(weight)))
			differ(check->difference, "%s: topk_weights[%u] is %a, should be %a", name,
				k, got_weights[k], weight);
	}
}

static int check_place(void *ctx, const struct place *place, bool first_of_token)
{
	struct check *check = ctx;
	const struct job *job = check->reference->job;
	size_t bytes = job_received_bytes(job), scales_bytes = job_received_scales_bytes(job);
	uint32_t element = element_bytes(job->config.dispatch_dtype);

	if (first_of_token)
		reference_received_row(
			check->reference, place->home, place->token, &check->x, &check->scales);
	check_row(check, place);
	compare_bytes(check, place, "element", check->x,
		(char *)check->received->x + place->position * bytes, bytes, element ? element : 1);
	if (scales_bytes && check->received->scales)
		compare_bytes(check, place, "scale", check->scales,
			(char *)check->received->scales + place->position * scales_bytes,
			scales_bytes, one_scale_bytes(job->config.scale));
	if (job->config.layout == TERN_BY_SOURCE)
		check_local_ids(check, place);
	return 0;
}

/* True when rows may be looked at: counts and offsets are as they should be, and the pointers are
 * there. */
static bool check_layout(const struct check *check, const struct received_layout *layout)
{
	const struct tern_received *got = check->received;
	struct difference *difference = check->difference;
	uint64_t before = difference->nr, round = check->reference->round;
	bool by_source = check->reference->job->config.layout == TERN_BY_SOURCE;
	bool fp8 = check->reference->job->config.dispatch_dtype == TERN_FP8_E4M3;
	uint32_t i;

	for (i = 0; i < layout->nr_groups; i++) {
		if (got->counts[i] != layout->counts[i])
			differ(difference, "rank %u, round %llu: counts[%u] is %u, should be %u",
				check->rank, (unsigned long long)round, i, got->counts[i],
				layout->counts[i]);
		else if (got->offsets[i] != layout->offsets[i])
			differ(difference,
				"rank %u, round %llu: offsets[%u] is %llu, should be %llu",
				check->rank, (unsigned long long)round, i,
				(unsigned long long)got->offsets[i],
				(unsigned long long)layout->offsets[i]);
	}
	if (got->nr_rows != layout->nr_rows)
		differ(difference, "rank %u, round %llu: nr_rows is %llu, should be %llu",
			check->rank, (unsigned long long)round, (unsigned long long)got->nr_rows,
			(unsigned long long)layout->nr_rows);
	if (got->extent < layout->end)
		differ(difference, "rank %u, round %llu: extent is %llu, but rows end at %llu",
			check->rank, (unsigned long long)round, (unsigned long long)got->extent,
			(unsigned long long)layout->end);
	if (layout->nr_rows &&
		(!got->x || !got->rows || (fp8 && !got->scales && !got->gemm_scales) ||
			(by_source && (!got->topk_ids || !got->topk_weights))))
		differ(difference, "rank %u, round %llu: a pointer to received rows is NULL",
			check->rank, (unsigned long long)round);
	if (!by_source && (got->topk_ids || got->topk_weights))
		differ(difference, "rank %u, round %llu: topk_ids or topk_weights is not NULL",
			check->rank, (unsigned long long)round);
	return difference->nr == before;
}

int verify_received(struct reference *reference, uint32_t rank,
	const struct tern_received *received, struct difference *difference)
{
	struct check check = {.reference = reference,
		.received = received,
		.difference = difference,
		.rank = rank};
	struct received_layout layout;

	if (received_layout_create(reference, rank, &layout))
		return -1;
	if (check_layout(&check, &layout))
		reference_walk(reference, rank, &layout, check_place, &check);
	received_layout_destroy(&layout);
	return 0;
}

/* ---- combined -------------------------------------------------------------------------------- */

static float decode_element(enum tern_dtype dtype, const void *row, uint32_t i)
{
	float value;

	decode_row(dtype, (const char *)row + (size_t)i * element_bytes(dtype), &value, 1);
	return value;
}

static void compare_combined(const struct reference *reference, uint32_t rank, uint32_t token,
	const void *want, const void *got, struct difference *difference)
{
	enum tern_dtype dtype = reference->job->config.combine_dtype;
	uint32_t i, bytes = element_bytes(dtype);

	for (i = 0; i < reference->job->config.hidden; i++) {
		float w = decode_element(dtype, want, i), g = decode_element(dtype, got, i);

		if (!memcmp((const char *)want + (size_t)i * bytes,
			    (const char *)got + (size_t)i * bytes, bytes))
			continue;
		if (w != w && g != g)
			continue;
		differ(difference,
			"rank %u, round %llu: out, token %u, element %u is %a, should be %a", rank,
			(unsigned long long)reference->round, token, i, g, w);
	}
}

int verify_combined(struct reference *reference, uint32_t rank, const void *out, size_t stride,
	struct difference *difference)
{
	const struct job *job = reference->job;
	uint32_t token, home = job_home(job, rank);
	size_t bytes = job_y_bytes(job);

	for (token = 0; token < reference->nr_tokens[home]; token++) {
		const void *want = reference_combined_row(reference, home, token);
		const char *got = (const char *)out + token * (stride ? stride : bytes);

		if (memcmp(want, got, bytes))
			compare_combined(reference, rank, token, want, got, difference);
	}
	return 0;
}

/* ---- the experts' part ----------------------------------------------------------------------- */

struct fill {
	const struct reference *reference;
	char *y;
	size_t stride;
};

static int fill_place(void *ctx, const struct place *place, bool first_of_token)
{
	const struct fill *fill = ctx;
	const struct job *job = fill->reference->job;

	(void)first_of_token;
	memcpy(fill->y + place->position * fill->stride,
		job_y_row(job, fill->reference->round, place->expert, place->home, place->token),
		job_y_bytes(job));
	return 0;
}

int fill_y(const struct reference *reference, uint32_t rank, void *y, size_t stride)
{
	struct fill fill = {reference, y, stride ? stride : job_y_bytes(reference->job)};
	struct received_layout layout;

	if (received_layout_create(reference, rank, &layout))
		return -1;
	reference_walk(reference, rank, &layout, fill_place, &fill);
	received_layout_destroy(&layout);
	return 0;
}

/* ---- floats beside results ------------------------------------------------------------------- */

struct fill_floats {
	const struct reference *reference;
	uint32_t rank;
	float *floats;
};

static int fill_floats_of_place(void *ctx, const struct place *place, bool first_of_token)
{
	const struct fill_floats *fill = ctx;
	const struct job *job = fill->reference->job;
	uint32_t topk = job->config.topk;
	int32_t local[TERN_MAX_TOPK];

	(void)first_of_token;
	if (place->k >= 0) {
		fill->floats[place->position] = job_float(
			job, fill->reference->round, place->home, place->token, (uint32_t)place->k);
		return 0;
	}
	reference_local_ids(fill->reference, fill->rank, place->home, place->token, local);
	for (uint32_t k = 0; k < topk; k++)
		if (local[k] >= 0)
			fill->floats[place->position * topk + k] = job_float(
				job, fill->reference->round, place->home, place->token, k);
	return 0;
}

int fill_floats(const struct reference *reference, uint32_t rank, float *floats)
{
	struct fill_floats fill = {reference, rank, floats};
	struct received_layout layout;

	if (received_layout_create(reference, rank, &layout))
		return -1;
	reference_walk(reference, rank, &layout, fill_floats_of_place, &fill);
	received_layout_destroy(&layout);
	return 0;
}

void verify_floats(const struct reference *reference, uint32_t rank, const float *out_floats,
	struct difference *difference)
{
	const struct job *job = reference->job;
	uint32_t home = job_home(job, rank), topk = job->config.topk;

	for (uint32_t token = 0; token < reference->nr_tokens[home]; token++)
		for (uint32_t k = 0; k < topk; k++) {
			bool routed = reference_physical(reference, home, token)[k] >= 0;
			float got = out_floats[(size_t)token * topk + k];
			float want = routed ? job_float(job, reference->round, home, token, k) : 0;

			if (memcmp(&got, &want, sizeof(got)))
				differ(difference,
					"rank %u, round %llu: the float of token %u, k %u is %a, "
					"should be %a",
					rank, (unsigned long long)reference->round, token, k, got,
					want);
		}
}

/* ---- what is wanted beside rows -------------------------------------------------------------- */

static uint64_t scale_columns(const struct job *job)
{
	uint64_t blocks = job_nr_blocks(job);

	return job->config.scale == TERN_SCALE_FP32 ? blocks : (blocks + 3) / 4;
}

uint64_t wide_ids_bytes(const struct job *job, uint64_t positions)
{
	return job->config.layout == TERN_BY_SOURCE ? positions * job->config.topk * 8 : 0;
}

uint64_t gemm_scales_bytes(const struct job *job, uint32_t nr_local, uint64_t stride)
{
	if (!job_received_scales_bytes(job))
		return 0;
	return scale_columns(job) * stride * 4 * (job->config.layout == TERN_PADDED ? nr_local : 1);
}

struct wanted {
	struct check check;
	uint64_t stride;
	uint32_t *counts; /* [L] */
};

static void check_columns(const struct wanted *w, const struct place *place)
{
	const struct job *job = w->check.reference->job;
	uint64_t columns = scale_columns(job), first = 0;
	const uint32_t *got = w->check.received->gemm_scales;
	size_t bytes = job_received_scales_bytes(job);
	uint8_t row[bytes + 4];

	if (job->config.layout == TERN_PADDED)
		first = w->check.received->offsets[place->group];
	got += (job->config.layout == TERN_PADDED ? place->group * columns * w->stride : 0) +
	       place->position - first;
	memset(row, 0, sizeof(row)); /* exponents behind the last are 0 */
	memcpy(row, w->check.scales, bytes);
	for (uint64_t c = 0; c < columns; c++)
		compare_bytes(&w->check, place, "scale of a column", row + c * 4,
			got + c * w->stride, 4, 4);
}

static int check_wanted_place(void *ctx, const struct place *place, bool first_of_token)
{
	struct wanted *w = ctx;
	struct reference *reference = w->check.reference;
	uint32_t topk = reference->job->config.topk;
	int32_t local[TERN_MAX_TOPK];
	char name[160];

	if (first_of_token)
		reference_received_row(
			reference, place->home, place->token, &w->check.x, &w->check.scales);
	if (w->check.received->gemm_scales)
		check_columns(w, place);
	if (place->k >= 0) {
		w->counts[place->group]++;
		return 0;
	}
	reference_local_ids(reference, w->check.rank, place->home, place->token, local);
	for (uint32_t k = 0; k < topk; k++) {
		int64_t got = w->check.received->wide_ids[place->position * topk + k];

		if (local[k] >= 0)
			w->counts[local[k]]++;
		if (got == local[k])
			continue;
		name_place(&w->check, place, name, sizeof(name));
		differ(w->check.difference, "%s: wide_ids[%u] is %lld, should be %d", name, k,
			(long long)got, local[k]);
	}
	return 0;
}

static void check_behind(const struct wanted *w, uint64_t positions)
{
	const struct tern_received *r = w->check.received;
	uint32_t topk = w->check.reference->job->config.topk;

	for (uint64_t i = r->nr_rows * topk; i < positions * topk && r->wide_ids; i++)
		if (r->wide_ids[i] != -1) {
			differ(w->check.difference, "rank %u: wide_ids of position %llu is %lld",
				w->check.rank, (unsigned long long)(i / topk),
				(long long)r->wide_ids[i]);
			return;
		}
}

static void check_counts(const struct wanted *w, uint64_t *totals)
{
	const struct tern_received *r = w->check.received;
	uint32_t alignment = r->counts_alignment ? r->counts_alignment : 1;

	for (uint32_t l = 0; l < w->check.reference->nr_local[w->check.rank]; l++) {
		uint32_t rounded = (w->counts[l] + alignment - 1) / alignment * alignment;

		totals[l] += w->counts[l];
		if (r->expert_counts[l] != rounded || r->expert_totals[l] != totals[l])
			differ(w->check.difference,
				"rank %u, round %llu: local expert %u: count %u, total %llu; "
				"should be %u, %llu",
				w->check.rank, (unsigned long long)w->check.reference->round, l,
				r->expert_counts[l], (unsigned long long)r->expert_totals[l],
				rounded, (unsigned long long)totals[l]);
	}
}

int verify_wanted(struct reference *reference, uint32_t rank, const struct tern_received *received,
	uint64_t positions, uint64_t stride, uint64_t *totals, struct difference *difference)
{
	uint32_t counts[TERN_MAX_TOPK * 64] = {0};
	struct wanted w = {.check = {.reference = reference,
				   .received = received,
				   .difference = difference,
				   .rank = rank},
		.stride = stride,
		.counts = counts};
	struct received_layout layout;

	if (reference->nr_local[rank] > sizeof(counts) / sizeof(*counts) ||
		received_layout_create(reference, rank, &layout))
		return -1;
	reference_walk(reference, rank, &layout, check_wanted_place, &w);
	received_layout_destroy(&layout);
	check_behind(&w, positions);
	check_counts(&w, totals);
	return 0;
}
