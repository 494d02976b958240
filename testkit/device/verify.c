/* SPDX-License-Identifier: Apache-2.0 */
/* Verified rounds: fresh inputs, poisoned buffers, every element compared with the reference. */
#include <stdlib.h>
#include <string.h>

#include "testkit/device/inside.h"
#include "exchange/state.h"
#include "base/error.h"

#define POISON 0xa5

static uint8_t *staging(struct device_rounds *r, uint64_t bytes)
{
	uint8_t *here = r->host + r->host_used;

	r->host_used += (bytes + 63) / 64 * 64;
	if (r->host_used > r->host_bytes) {
		fail(TERN_ERR_NOMEM, "%llu bytes of staging memory are too few",
			(unsigned long long)r->host_bytes);
		return NULL;
	}
	return here;
}

static int upload(struct device_rounds *r, struct device_lane *lane, void *to, const void *from,
	uint64_t bytes)
{
	return device_passed_on(r, r->ops->copy(to, from, bytes, lane->stream));
}

/* What the library has read by now may be anything. */
static int poison_inputs(struct device_rounds *r, struct device_lane *lane)
{
	struct device_sizes s = device_lane_sizes(r);
	int rc = r->ops->fill(lane->x, POISON, s.x, lane->stream);

	rc = rc ? rc : r->ops->fill(lane->scales, POISON, s.scales, lane->stream);
	rc = rc ? rc : r->ops->fill(lane->ids, POISON, s.ids, lane->stream);
	rc = rc ? rc : r->ops->fill(lane->weights, POISON, s.weights, lane->stream);
	return device_passed_on(r, rc);
}

uint64_t device_routes_of(const struct device_lane *lane, uint64_t round)
{
	return lane->plan ? lane->routes : round;
}

/* What goes along with results: weights of this rank's tokens, floats of its rows. */
static int put_beside(struct device_rounds *r, struct device_lane *lane, uint64_t extent)
{
	uint32_t topk = r->job->config.topk, home = job_home(r->job, r->rank),
		 n = r->reference->nr_tokens[home];
	uint64_t nr = device_nr_floats(r, extent), routes = (uint64_t)n * topk;
	float *weights = (float *)(void *)staging(r, routes * 4 + 64),
	      *floats = (float *)(void *)staging(r, nr * 4 + 64);
	int rc;

	if (!weights || !floats || (nr && fill_floats(r->reference, r->rank, floats)))
		return TERN_ERR_NOMEM;
	for (uint32_t i = 0; i < routes; i++)
		weights[i] =
			job_combine_weight(r->job, r->reference->round, home, i / topk, i % topk);
	rc = upload(r, lane, lane->combine_weights, weights, routes * 4);
	rc = rc ? rc : upload(r, lane, lane->floats, floats, nr * 4);
	return rc ? rc
		  : device_passed_on(
			    r, r->ops->fill(lane->out_floats, POISON, routes * 4, lane->stream));
}

static void set_reference(struct device_rounds *r, const struct device_lane *lane, uint64_t round)
{
	reference_set_round(r->reference, device_routes_of(lane, round));
	r->reference->round = round;
}

/* As many rows as the routes have, of another round. */
static void fill_x(const struct job *job, uint64_t round, uint32_t rank, uint32_t nr, uint8_t *x,
	size_t x_stride, uint8_t *scales, size_t scales_stride)
{
	uint32_t home = job_home(job, rank);

	for (uint32_t t = 0; t < nr; t++) {
		memcpy(x + t * x_stride, job_x_row(job, round, home, t), job_x_bytes(job));
		if (scales)
			memcpy(scales + t * scales_stride, job_scales_row(job, round, home, t),
				job_x_scales_bytes(job));
	}
}

static int upload_inputs(struct device_rounds *r, struct device_lane *lane, uint64_t round,
	const struct device_manner *m)
{
	const struct job *job = r->job;
	uint64_t made = device_routes_of(lane, round);
	uint32_t n = job_nr_tokens(job, made, r->rank), *nr;
	size_t routes = (size_t)n * job->config.topk, x_stride = job_x_bytes(job) + m->x_gap;
	size_t scales_stride =
		job_x_scales_bytes(job) ? job_x_scales_bytes(job) + m->scales_gap : 0;
	uint8_t *x, *scales;
	int64_t *wide;
	int32_t *ids;
	float *weights;
	int rc;

	r->host_used = 0;
	x = staging(r, n * x_stride + 64);
	scales = staging(r, n * scales_stride + 64);
	wide = (int64_t *)staging(r, routes * 8 + 64);
	ids = (int32_t *)staging(r, routes * 4 + 64);
	weights = (float *)staging(r, routes * 4 + 64);
	nr = (uint32_t *)staging(r, 64);
	if (!nr)
		return TERN_ERR_NOMEM;
	fill_x(job, round, r->rank, n, x, x_stride, scales_stride ? scales : NULL, scales_stride);
	job_routes(job, made, r->rank, ids, weights);
	for (size_t i = 0; i < routes; i++)
		wide[i] = ids[i];
	*nr = n;
	rc = upload(r, lane, lane->x, x, n * x_stride);
	rc = rc ? rc : upload(r, lane, lane->scales, scales, n * scales_stride);
	rc = rc ? rc
		: upload(r, lane, lane->ids, m->wide_ids ? (void *)wide : (void *)ids,
			  routes * (m->wide_ids ? 8 : 4));
	rc = rc ? rc : upload(r, lane, lane->weights, weights, routes * 4);
	rc = rc ? rc : upload(r, lane, lane->nr_tokens, nr, 4);
	return rc ? rc : device_passed_on(r, r->ops->stream_wait(lane->stream));
}

int device_rounds_upload(struct device_rounds *r, uint32_t slot, uint64_t round)
{
	const struct device_manner plain = {.graphs = true};

	return upload_inputs(r, &r->lanes[slot], round, &plain);
}

/* Wherever rows may go. */
static int poison_outputs(struct device_rounds *r, struct device_lane *lane, uint64_t round)
{
	const struct job *job = r->job;
	int with = round & 1 ? 0xa5 : 0xff, rc;
	const struct tern_received *d = &lane->captured; /* nr_rows: as many as there is room for */

	rc = r->ops->fill(d->x, with, d->nr_rows * job_received_bytes(job), lane->stream);
	rc = rc ? rc
		: r->ops->fill(
			  lane->into_x, with, r->positions * job_received_bytes(job), lane->stream);
	rc = rc || !d->scales ? rc
			      : r->ops->fill(d->scales, with,
					d->nr_rows * job_received_scales_bytes(job), lane->stream);
	rc = rc ? rc
		: r->ops->fill(lane->into_scales, with,
			  r->positions * job_received_scales_bytes(job), lane->stream);
	rc = rc ? rc
		: r->ops->fill((void *)d->rows, with, d->nr_rows * sizeof(*d->rows), lane->stream);
	rc = rc ? rc
		: r->ops->fill((void *)d->counts, with,
			  r->reference->nr_local[r->rank] * sizeof(*d->counts), lane->stream);
	if (r->job->wants) {
		struct device_sizes s = device_lane_sizes(r);

		rc = rc ? rc
			: r->ops->fill(lane->wide_received, with, s.wide_received, lane->stream);
		rc = rc ? rc : r->ops->fill(lane->gemm_scales, with, s.gemm_scales, lane->stream);
		rc = rc ? rc : r->ops->fill(lane->into_counts, with, s.into_counts, lane->stream);
		rc = rc ? rc : r->ops->fill(lane->into_offsets, with, s.into_offsets, lane->stream);
	}
	return device_passed_on(r, rc);
}

int device_put_rows(
	struct device_rounds *r, uint32_t slot, uint64_t round, const struct device_manner *m)
{
	struct device_lane *lane = &r->lanes[slot];
	uint32_t n = job_nr_tokens(r->job, device_routes_of(lane, round), r->rank);
	int rc = upload_inputs(r, lane, round, m);

	rc = rc ? rc : poison_outputs(r, lane, round);
	if (rc || !m->graphs)
		return rc ? rc : device_put_dispatch(r, slot, m, n);
	lane->received = lane->captured;
	return device_passed_on(r, r->ops->graph_launch(lane->dispatch, lane->stream));
}

/* Experts go where the round wants them; its rows may wait on other slots' streams meanwhile. */
int device_place_experts(struct device_rounds *r, uint64_t round)
{
	uint32_t version = job_version(r->job, round), nr = job_nr_physical(r->job);
	int32_t *logical;
	int rc;

	if (!r->job->place_in || r->moe->placement.placed.version == version)
		return 0;
	logical = calloc(nr, sizeof(*logical));
	if (!logical)
		return fail(TERN_ERR_NOMEM, "no memory for a placement of %u experts", nr);
	job_place(r->job, version, logical);
	rc = tern_moe_place(r->moe, version, logical, nr);
	free(logical);
	return rc;
}

static int put_round(struct device_rounds *r, uint32_t slot, uint64_t round)
{
	struct device_manner m = device_manner(r, round);
	int rc = device_place_experts(r, round);

	rc = rc ? rc : device_put_rows(r, slot, round, &m);
	if (!rc && !m.graphs && r->job->place_in &&
		r->lanes[slot].received.version != job_version(r->job, round))
		rc = fail(TERN_ERR_SYSTEM, "rows of version %u, and not %u",
			r->lanes[slot].received.version, job_version(r->job, round));
	return rc;
}

static void *fetch(
	struct device_rounds *r, struct device_lane *lane, const void *from, uint64_t bytes)
{
	uint8_t *at = staging(r, bytes + 64);

	if (at && bytes && device_passed_on(r, r->ops->copy(at, from, bytes, lane->stream)))
		return NULL;
	return at;
}

/* The received rows as the host sees them. */
static int fetch_received(
	struct device_rounds *r, struct device_lane *lane, struct tern_received *host)
{
	const struct job *job = r->job;
	const struct tern_received *d = &lane->received;
	uint32_t lists = device_nr_lists(r), topk = job->config.topk;
	bool into = d->into_offsets != NULL; /* then the sums are not behind it */
	int rc;

	r->host_used = 0;
	*host = (struct tern_received){.size = sizeof(*host)};
	host->counts = fetch(r, lane, d->counts, lists * sizeof(*d->counts));
	host->offsets = fetch(r, lane, d->offsets, (lists + (into ? 0 : 2)) * sizeof(*d->offsets));
	rc = host->counts && host->offsets ? device_passed_on(r, r->ops->stream_wait(lane->stream))
					   : TERN_ERR_SYSTEM;
	rc = rc ? rc : tern_moe_status(r->moe);
	if (rc)
		return rc;
	if (into)
		rc = tern_received_sizes(
			r->moe, (uint32_t)(lane - r->lanes), &host->nr_rows, &host->extent);
	else {
		host->nr_rows = host->offsets[lists];
		host->extent = host->offsets[lists + 1];
	}
	if (rc)
		return rc;
	if (into && (d->offsets != d->into_offsets || d->counts != d->into_counts))
		return fail(TERN_ERR_PROTOCOL, "lists are not where they were to go");
	if (host->extent > r->positions)
		return fail(TERN_ERR_PROTOCOL,
			"the device says that rows span %llu positions of %llu",
			(unsigned long long)host->extent, (unsigned long long)r->positions);
	host->x = fetch(r, lane, d->x, host->extent * job_received_bytes(job));
	host->scales =
		d->scales ? fetch(r, lane, d->scales, host->extent * job_received_scales_bytes(job))
			  : NULL;
	host->rows = fetch(r, lane, d->rows, host->extent * sizeof(*d->rows));
	host->topk_ids =
		d->topk_ids ? fetch(r, lane, d->topk_ids, host->extent * topk * sizeof(int32_t))
			    : NULL;
	host->topk_weights = d->topk_weights ? fetch(r, lane, d->topk_weights,
						       host->extent * topk * sizeof(float))
					     : NULL;
	return device_passed_on(r, r->ops->stream_wait(lane->stream));
}

/* No wait is longer than a test. */
static int check_waits(struct device_rounds *r, const uint64_t *waited_ns)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < r->job->nr_ranks; i++)
		sum += waited_ns[i];
	return sum && sum < UINT64_C(3600000000000)
		       ? 0
		       : fail(TERN_ERR_PROTOCOL, "sources were waited for %llu ns",
				 (unsigned long long)sum);
}

/* What was wanted beside rows, as the host sees it. */
static int verify_beside(
	struct device_rounds *r, struct device_lane *lane, struct tern_received *host)
{
	const struct tern_received *d = &lane->received;
	uint64_t stride = device_gemm_stride(r), positions = r->moe->layout.positions,
		 nr_local = r->reference->nr_local[r->rank];

	host->wide_ids = fetch(r, lane, d->wide_ids, wide_ids_bytes(r->job, positions));
	host->expert_counts = fetch(r, lane, d->expert_counts, nr_local * 4);
	host->expert_totals = fetch(r, lane, d->expert_totals, nr_local * 8);
	host->gemm_scales = fetch(
		r, lane, d->gemm_scales, gemm_scales_bytes(r->job, (uint32_t)nr_local, stride));
	host->waited_ns = fetch(r, lane, lane->waited, r->job->nr_ranks * 8);
	host->counts_alignment = d->counts_alignment;
	if (!host->gemm_scales || device_passed_on(r, r->ops->stream_wait(lane->stream)))
		return TERN_ERR_SYSTEM;
	if (d->waited_ns && check_waits(r, host->waited_ns))
		return TERN_ERR_PROTOCOL;
	host->gemm_scales = d->gemm_scales ? host->gemm_scales : NULL;
	host->wide_ids = d->wide_ids ? host->wide_ids : NULL;
	return verify_wanted(
		       r->reference, r->rank, host, positions, stride, lane->totals, &r->difference)
		       ? TERN_ERR_NOMEM
		       : 0;
}

/* Asks for them, as engines do that want no more rows than there are. */
static int check_sizes(
	struct device_rounds *r, const struct device_lane *lane, const struct tern_received *host)
{
	uint64_t nr_rows = 0, extent = 0;
	int rc = tern_received_sizes(r->moe, (uint32_t)(lane - r->lanes), &nr_rows, &extent);

	if (rc || (nr_rows == host->nr_rows && extent == host->extent))
		return rc;
	return fail(TERN_ERR_PROTOCOL, "sizes are %llu and %llu, where %llu and %llu are received",
		(unsigned long long)nr_rows, (unsigned long long)extent,
		(unsigned long long)host->nr_rows, (unsigned long long)host->extent);
}

/* extent: positions that its rows span. */
int device_verify_rows(struct device_rounds *r, uint32_t slot, uint64_t round, uint64_t *extent)
{
	struct device_lane *lane = &r->lanes[slot];
	struct tern_received host;
	int rc;

	set_reference(r, lane, round);
	rc = fetch_received(r, lane, &host);
	*extent = host.extent;
	if (r->job->wants) {
		rc = rc ? rc : check_sizes(r, lane, &host);
		rc = rc ? rc : verify_beside(r, lane, &host);
	}
	return rc || !verify_received(r->reference, r->rank, &host, &r->difference)
		       ? rc
		       : TERN_ERR_NOMEM;
}

/* What the experts make of the reference's round. */
static int put_y(struct device_rounds *r, struct device_lane *lane, uint64_t extent, uint32_t gap)
{
	uint64_t stride = job_y_bytes(r->job) + gap, bytes = extent * stride;
	int rc;

	r->host_used = 0;
	if (!staging(r, bytes + 64))
		return TERN_ERR_NOMEM;
	memset(r->host, POISON, bytes);
	if (fill_y(r->reference, r->rank, r->host, stride))
		return TERN_ERR_NOMEM;
	rc = upload(r, lane, lane->y, r->host, bytes);
	rc = rc ? rc : put_beside(r, lane, extent);
	rc = rc ? rc
		: device_passed_on(r,
			  r->ops->fill(lane->out, POISON, device_lane_sizes(r).out, lane->stream));
	return rc ? rc : device_passed_on(r, r->ops->stream_wait(lane->stream)); /* host memory is
										    used again */
}

int device_put_y(struct device_rounds *r, uint32_t slot, uint64_t round, uint64_t extent,
	const struct device_manner *m)
{
	struct device_lane *lane = &r->lanes[slot];
	int rc = poison_inputs(r, lane);

	set_reference(r, lane, round);
	rc = rc ? rc : put_y(r, lane, extent, m->y_gap);
	if (rc || m->graphs)
		return rc ? rc
			  : device_passed_on(r, r->ops->graph_launch(lane->combine, lane->stream));
	return device_put_combine(r, slot, m);
}

static int put_results(struct device_rounds *r, uint32_t slot, uint64_t round)
{
	struct device_manner m = device_manner(r, round);
	uint64_t extent;
	int rc = device_verify_rows(r, slot, round, &extent);

	return rc ? rc : device_put_y(r, slot, round, extent, &m);
}

/* Bytes between rows, and after the last one, are the caller's. */
static void check_gaps(struct device_rounds *r, const uint8_t *out, uint32_t nr_tokens,
	size_t row_bytes, size_t stride)
{
	for (uint32_t token = 0; token <= nr_tokens; token++)
		for (size_t i = token < nr_tokens ? row_bytes : 0;
			i < (token < nr_tokens ? stride : 48); i++)
			if (out[token * stride + i] != POISON && !r->difference.nr++)
				strcpy(r->difference.first, "combine wrote beyond a row of out");
}

static int check_floats(struct device_rounds *r, struct device_lane *lane, uint32_t nr_tokens)
{
	const void *floats =
		fetch(r, lane, lane->out_floats, (uint64_t)nr_tokens * r->job->config.topk * 4);

	if (!floats || device_passed_on(r, r->ops->stream_wait(lane->stream)))
		return -1;
	verify_floats(r->reference, r->rank, floats, &r->difference);
	return 0;
}

int device_verify_results(
	struct device_rounds *r, uint32_t slot, uint64_t round, const struct device_manner *m)
{
	struct device_lane *lane = &r->lanes[slot];
	uint32_t n = job_nr_tokens(r->job, device_routes_of(lane, round), r->rank);
	size_t row = job_y_bytes(r->job), stride = row + m->out_gap;
	const uint8_t *out;
	int rc;

	r->host_used = 0;
	out = fetch(r, lane, lane->out, n * stride + 48);
	rc = out ? device_passed_on(r, r->ops->stream_wait(lane->stream)) : TERN_ERR_SYSTEM;
	rc = rc ? rc : tern_moe_status(r->moe);
	if (rc || m->release)
		return rc;
	set_reference(r, lane, round);
	r->reference->weighting = device_weighting(r, m);
	if (r->job->config.combine_floats && !m->no_floats && check_floats(r, lane, n))
		return TERN_ERR_SYSTEM;
	check_gaps(r, out, n, row, stride);
	return verify_combined(r->reference, r->rank, out, stride, &r->difference) ? TERN_ERR_NOMEM
										   : 0;
}

static int take_results(struct device_rounds *r, uint32_t slot, uint64_t round)
{
	struct device_manner m = device_manner(r, round);

	return device_verify_results(r, slot, round, &m);
}

int device_rounds_step(struct device_rounds *r, uint32_t step, uint64_t round)
{
	static int (*const steps[DEVICE_ROUNDS_STEPS])(struct device_rounds *, uint32_t,
		uint64_t) = {put_round, put_results, take_results};
	int rc = 0;

	for (uint32_t slot = 0; slot < r->job->config.nr_slots && !rc; slot++)
		rc = steps[step](r, slot, round + slot);
	return rc;
}

int device_rounds_verify(struct device_rounds *r, uint64_t round)
{
	int rc = 0;

	for (uint32_t step = 0; step < DEVICE_ROUNDS_STEPS && !rc; step++)
		rc = device_rounds_step(r, step, round);
	return rc;
}

/* ---- rounds that are one graph, with what a model does between its halves -------------------- */

/* Before the graph runs, so that it need not stop for the host: where rows will be is the
 * reference's. */
int device_put_inputs(struct device_rounds *r, uint32_t slot, uint64_t round)
{
	struct device_lane *lane = &r->lanes[slot];
	struct received_layout layout;
	uint64_t extent;
	int rc = device_rounds_upload(r, slot, round);

	rc = rc ? rc : poison_outputs(r, lane, round);
	if (rc)
		return rc;
	reference_set_round(r->reference, round);
	if (received_layout_create(r->reference, r->rank, &layout))
		return TERN_ERR_NOMEM;
	extent = layout.end;
	received_layout_destroy(&layout);
	return put_y(r, lane, extent, 0);
}

int device_verify_graph(
	struct device_rounds *r, struct device_graph *graph, uint32_t nr_slots, uint64_t round)
{
	const struct device_manner plain = {.graphs = true};
	uint64_t extent;
	int rc = 0;

	for (uint32_t slot = 0; slot < nr_slots && !rc; slot++)
		rc = device_put_inputs(r, slot, round + slot);
	rc = rc ? rc : device_passed_on(r, r->ops->graph_launch(graph, r->lanes[0].stream));
	rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(r->lanes[0].stream));
	for (uint32_t slot = 0; slot < nr_slots && !rc; slot++) {
		r->lanes[slot].received = r->lanes[slot].kept;
		rc = device_verify_rows(r, slot, round + slot, &extent);
		rc = rc ? rc : device_verify_results(r, slot, round + slot, &plain);
	}
	return rc;
}
