/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "testkit/random.h"
#include "testkit/device/inside.h"
#include "gpu/host/inside.h"
#include "base/error.h"
#include "exchange/state.h"

#define MOST_GAP 48
#define HOLD_NS 40000
#define FLUSHED_BYTES (256u << 20) /* more than any GPU's L2 holds */

int device_passed_on(const struct device_rounds *r, int rc)
{
	return rc ? fail(rc, "%s", r->ops->error_text()) : 0;
}

int device_choose(const struct bench_device_ops *ops, uint32_t rank)
{
	const struct device_ops *devices = device_ops_load();
	int nr = 0, rc = devices->nr_devices(&nr);

	rc = rc ? rc : nr ? devices->use((int)(rank % (uint32_t)nr)) : TERN_ERR_UNSUPPORTED;
	if (rc)
		return fail(rc, "no device: %s", devices->error_text());
	rc = ops->use((int)(rank % (uint32_t)nr));
	return rc ? fail(rc, "no device: %s", ops->error_text()) : 0;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint64_t add(uint64_t *all, uint64_t bytes)
{
	bytes = (bytes + 64 + 255) / 256 * 256;
	*all += bytes;
	return bytes;
}

uint64_t device_nr_floats(const struct device_rounds *r, uint64_t rows)
{
	const struct tern_moe_config *c = &r->job->config;

	return !c->combine_floats ? 0 : c->layout == TERN_BY_SOURCE ? rows * c->topk : rows;
}

/* As many as the library takes where the caller says nothing. */
uint64_t device_gemm_stride(const struct device_rounds *r)
{
	const struct layout *l = &r->moe->layout;

	return align_up(r->job->config.layout == TERN_PADDED ? l->capacity : l->positions, 4);
}

uint32_t device_nr_lists(const struct device_rounds *r)
{
	return r->job->config.layout == TERN_BY_SOURCE ? r->job->nr_ranks
						       : r->reference->nr_local[r->rank];
}

struct device_sizes device_lane_sizes(const struct device_rounds *r)
{
	const struct job *job = r->job;
	uint64_t tokens = job->config.max_tokens, routes = tokens * job->config.topk;
	struct device_sizes s = {0};

	s.x = add(&s.all, tokens * (job_x_bytes(job) + MOST_GAP));
	s.scales = add(&s.all, tokens * (job_x_scales_bytes(job) + MOST_GAP));
	s.ids = add(&s.all, routes * 8);
	s.weights = add(&s.all, routes * 4);
	s.nr_tokens = add(&s.all, 4);
	s.y = add(&s.all, r->positions * (job_y_bytes(job) + MOST_GAP));
	s.out = add(&s.all, tokens * (job_y_bytes(job) + MOST_GAP));
	s.into_x = add(&s.all, r->positions * job_received_bytes(job));
	s.into_scales = add(&s.all, r->positions * job_received_scales_bytes(job));
	s.combine_weights = add(&s.all, routes * 4);
	s.floats = add(&s.all, device_nr_floats(r, r->positions) * 4);
	s.out_floats = add(&s.all, routes * 4);
	if (!job->wants)
		return s;
	s.wide_received = add(&s.all, wide_ids_bytes(job, r->positions));
	s.expert_counts = add(&s.all, r->reference->nr_local[r->rank] * 4);
	s.expert_totals = add(&s.all, r->reference->nr_local[r->rank] * 8);
	s.waited = add(&s.all, job->nr_ranks * 8);
	s.gemm_scales = add(&s.all,
		gemm_scales_bytes(job, r->reference->nr_local[r->rank], device_gemm_stride(r)));
	s.into_counts = add(&s.all, device_nr_lists(r) * 4);
	s.into_offsets = add(&s.all, device_nr_lists(r) * 8);
	return s;
}

static uint8_t *next(uint8_t **at, uint64_t bytes)
{
	uint8_t *here = *at;

	*at += bytes;
	return here;
}

static int make_lanes(struct device_rounds *r)
{
	struct device_sizes s = device_lane_sizes(r);
	uint32_t nr = r->job->config.nr_slots;
	uint8_t *at;
	int rc = device_passed_on(r, r->ops->memory_create(nr * s.all, (void **)&r->memory));

	r->host_bytes =
		s.all + r->positions * 16 + r->positions * r->job->config.topk * 12 + (1u << 20);
	rc = rc ? rc : device_passed_on(r, r->ops->host_create(r->host_bytes, (void **)&r->host));
	at = r->memory;
	for (uint32_t i = 0; i < nr && !rc; i++) {
		struct device_lane *lane = &r->lanes[i];

		lane->x = next(&at, s.x);
		lane->scales = next(&at, s.scales);
		lane->ids = next(&at, s.ids);
		lane->weights = next(&at, s.weights);
		lane->nr_tokens = next(&at, s.nr_tokens);
		lane->y = next(&at, s.y);
		lane->out = next(&at, s.out);
		lane->into_x = next(&at, s.into_x);
		lane->into_scales = next(&at, s.into_scales);
		lane->combine_weights = next(&at, s.combine_weights);
		lane->floats = next(&at, s.floats);
		lane->out_floats = next(&at, s.out_floats);
		lane->wide_received = next(&at, s.wide_received);
		lane->expert_counts = next(&at, s.expert_counts);
		lane->expert_totals = next(&at, s.expert_totals);
		lane->gemm_scales = next(&at, s.gemm_scales);
		lane->into_counts = next(&at, s.into_counts);
		lane->into_offsets = next(&at, s.into_offsets);
		lane->waited = next(&at, s.waited);
		rc = device_passed_on(r, r->ops->stream_create(&lane->stream, false));
		rc = rc ? rc : tern_moe_set_stream(r->moe, i, lane->stream);
		if (!rc && r->job->wants)
			rc = device_passed_on(
				r, r->ops->fill(lane->waited, 0, s.waited, lane->stream));
		if (!rc && r->job->wants)
			rc = device_passed_on(r, r->ops->fill(lane->expert_totals, 0,
							 s.expert_totals, lane->stream));
	}
	return rc;
}

static uint64_t worst_positions(const struct device_rounds *r)
{
	const struct tern_moe_config *c = &r->job->config;
	uint64_t tokens = (uint64_t)r->job->nr_ranks *
			  ((c->max_tokens + c->replica_ranks - 1) / c->replica_ranks),
		 local = 0;

	for (uint32_t rank = 0; rank < r->job->nr_ranks; rank++)
		local = r->reference->nr_local[rank] > local ? r->reference->nr_local[rank] : local;
	if (c->layout == TERN_BY_SOURCE)
		return tokens;
	if (c->layout == TERN_PADDED)
		return (c->capacity ? c->capacity : tokens) * local;
	return tokens * (c->topk < local ? c->topk : local) + local * c->alignment;
}

static int create_barrier(struct device_rounds *r)
{
	struct tern_moe_config config;
	int rc;

	tern_moe_config_init(&config);
	config.hidden = 8;
	config.nr_experts = r->job->nr_ranks;
	config.topk = 1;
	config.max_tokens = 1;
	config.wait_ms = r->job->config.wait_ms;
	config.device = r->job->config.device;
	rc = tern_moe_create(r->group, &config, &r->barrier);
	return rc ? rc : tern_moe_set_stream(r->barrier, 0, r->lanes[0].stream);
}

void device_rounds_close(struct device_rounds *r)
{
	for (uint32_t i = 0; i < DEVICE_ROUNDS_SLOTS; i++) {
		struct device_lane *lane = &r->lanes[i];

		if (lane->stream)
			r->ops->stream_wait(lane->stream);
		r->ops->graph_destroy(lane->dispatch);
		r->ops->graph_destroy(lane->combine);
		r->ops->graph_destroy(lane->pair);
		if (lane->kept_memory)
			r->ops->memory_free(lane->kept_memory);
	}
	tern_moe_destroy(r->barrier);
	tern_moe_destroy(r->moe);
	for (uint32_t i = 0; i < DEVICE_ROUNDS_SLOTS; i++)
		if (r->lanes[i].stream)
			r->ops->stream_destroy(r->lanes[i].stream);
	if (r->memory)
		r->ops->memory_free(r->memory);
	if (r->flushed)
		r->ops->memory_free(r->flushed);
	if (r->host)
		r->ops->host_free(r->host);
	reference_destroy(r->reference);
	memset(r, 0, sizeof(*r));
}

/* ---- how a round is made --------------------------------------------------------------------- */

struct device_manner device_manner(const struct device_rounds *r, uint64_t round)
{
	uint64_t common = hash2(r->job->seed ^ 0x646576, round), state = hash2(common, r->rank);
	struct device_manner m = {.release = common % 8 == 0};

	m.graphs = !m.release && random_below(&state, 2);
	m.apart = random_below(&state, 2);
	if (m.graphs)
		return m;
	m.wide_ids = random_below(&state, 2);
	m.own_buffers = tern_moe_mode(r->moe) == TERN_LOW_LATENCY &&
			(r->job->config.caller_output || random_below(&state, 2));
	m.x_gap = 16 * random_below(&state, 4);
	m.scales_gap = random_below(&state, 4) * (r->job->config.scale == TERN_SCALE_FP32 ? 4 : 1);
	m.y_gap = 16 * random_below(&state, 4);
	m.out_gap = 16 * random_below(&state, 4);
	m.columns_alone = m.own_buffers && r->job->wants && random_below(&state, 2) &&
			  (r->job->config.scale == TERN_SCALE_FP32 ||
				  (r->job->config.scale == TERN_SCALE_UE8M0 &&
					  job_nr_blocks(r->job) % 4 == 0));
	return m;
}

enum weighting device_weighting(const struct device_rounds *r, const struct device_manner *m)
{
	return m->weighting == WEIGHTED_AS_MADE && r->job->config.late_weights ? WEIGHTED_AT_COMBINE
									       : m->weighting;
}

bool device_rounds_release(const struct device_rounds *r, uint64_t round)
{
	return device_manner(r, round).release;
}

bool device_rounds_replay(const struct device_rounds *r, uint64_t round)
{
	return device_manner(r, round).graphs;
}

/* Graphs are made before the first round: that may wait for all kernels on a device, and these for
 * this rank. */
static int capture_lanes(struct device_rounds *r)
{
	int rc = 0;

	for (uint32_t slot = 0; slot < r->job->config.nr_slots && !rc; slot++) {
		struct device_lane *lane = &r->lanes[slot];

		rc = tern_moe_set_nr_tokens_at(r->moe, slot, (const uint32_t *)lane->nr_tokens);
		rc = rc ? rc
			: device_capture(r, &(struct step){.piece = PIECE_DISPATCH, .slot = slot},
				  1, NULL, r->job->config.max_tokens, &lane->dispatch);
		lane->captured = lane->received;
		rc = rc ? rc
			: device_capture(r, &(struct step){.piece = PIECE_COMBINE, .slot = slot}, 1,
				  NULL, 0, &lane->combine);
		rc = rc ? rc : tern_moe_set_nr_tokens_at(r->moe, slot, NULL);
		rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(lane->stream));
	}
	return rc;
}

int device_rounds_agree(const struct device_rounds *r, int rc)
{
	int all[r->job->nr_ranks], status;
	char cause[512];

	snprintf(cause, sizeof(cause), "%s", rc ? tern_last_error() : "");
	status = tern_group_allgather(r->group, &rc, all, sizeof(rc));
	if (rc)
		error_put_back(cause); /* gathering has begun a new one */
	for (uint32_t i = 0; i < r->job->nr_ranks && !status && !rc; i++)
		if (all[i])
			status = fail(all[i], "rank %u has failed", i);
	return rc ? rc : status;
}

int device_rounds_open(struct device_rounds *r, tern_group *group, const struct job *job,
	const struct bench_device_ops *ops)
{
	int rc;

	memset(r, 0, sizeof(*r));
	r->ops = ops;
	r->group = group;
	r->job = job;
	r->rank = (uint32_t)tern_group_rank(group);
	r->reference = reference_create(job);
	if (!r->reference)
		return fail(TERN_ERR_NOMEM, "no memory for the reference");
	r->positions = worst_positions(r);
	rc = tern_moe_create(group, &job->config, &r->moe);
	if (rc)
		return rc;
	rc = device_rounds_agree(r, make_lanes(r));
	rc = rc ? rc : create_barrier(r);
	return rc ? rc : device_rounds_agree(r, capture_lanes(r));
}

/* ---- timed rounds ---------------------------------------------------------------------------- */

static int capture_timed(struct device_rounds *r, struct device_lane *lane)
{
	static const struct step pair[] = {{.piece = PIECE_DISPATCH}, {.piece = PIECE_COMBINE}};
	uint32_t n = r->graph_tokens ? r->graph_tokens
				     : job_nr_tokens(r->job, DEVICE_TIMED_ROUND, r->rank);
	int rc = tern_moe_set_nr_tokens_at(
		r->moe, 0, r->graph_tokens ? (const uint32_t *)lane->nr_tokens : NULL);

	rc = rc ? rc : device_capture(r, &pair[0], 1, NULL, n, &lane->dispatch);
	rc = rc ? rc : device_capture(r, &pair[1], 1, NULL, n, &lane->combine);
	rc = rc ? rc : device_capture(r, pair, 2, NULL, n, &lane->pair);
	rc = rc ? rc : tern_moe_set_nr_tokens_at(r->moe, 0, NULL);
	return rc ? rc : device_passed_on(r, r->ops->stream_wait(lane->stream));
}

int device_rounds_prepare(struct device_rounds *r)
{
	struct device_lane *lane = &r->lanes[0];
	int rc = device_rounds_upload(r, 0, DEVICE_TIMED_ROUND);

	r->ops->graph_destroy(lane->dispatch);
	r->ops->graph_destroy(lane->combine);
	lane->dispatch = lane->combine = NULL;
	/* Rows of y are only moved and summed here: what they hold costs nothing, but for power. */
	rc = rc ? rc
		: device_passed_on(
			  r, r->ops->fill(lane->y, 0x3c, device_lane_sizes(r).y, lane->stream));
	if (!rc && r->cold)
		rc = device_passed_on(r, r->ops->memory_create(FLUSHED_BYTES, &r->flushed));
	return device_rounds_agree(r, rc ? rc : capture_timed(r, lane));
}

/* Are all ranks' windows mapped? The barrier's exchange has no rounds then. */
static bool all_mapped(const struct device_rounds *r)
{
	for (uint32_t i = 0; i < r->job->nr_ranks; i++)
		if (!r->barrier->device->windows[i])
			return false;
	return true;
}

int device_rounds_start(struct device_rounds *r)
{
	struct tern_dispatch args = {.size = sizeof(args)};
	struct tern_received received = {.size = sizeof(received)};
	int rc = device_passed_on(r, r->ops->spin(HOLD_NS, r->lanes[0].stream));

	if (!rc && r->flushed)
		rc = device_passed_on(
			r, r->ops->fill(r->flushed, 0x5a, FLUSHED_BYTES, r->lanes[0].stream));
	if (!rc && all_mapped(r))
		return device_passed_on(
			r, r->ops->barrier(r->barrier->device->windows, r->rank, r->job->nr_ranks,
				   ++r->nr_barriers, (uint64_t)r->job->config.wait_ms * 1000000,
				   r->lanes[0].stream));
	rc = rc ? rc : tern_dispatch(r->barrier, &args, &received);
	return rc ? rc : tern_release(r->barrier, 0);
}

int device_rounds_time(struct device_rounds *r, struct times *times, uint32_t i)
{
	struct device_lane *lane = &r->lanes[0];
	struct device_graph *const graphs[NR_MEASURES] = {[MEASURE_DISPATCH] = lane->dispatch,
		[MEASURE_COMBINE] = lane->combine,
		[MEASURE_PAIR] = lane->pair};
	double us;
	int rc = 0;

	for (int g = 0; g < NR_MEASURES && !rc; g++) {
		rc = device_rounds_start(r);
		if (!rc && r->rest_ns)
			rc = device_passed_on(r, r->ops->spin(r->rest_ns, lane->stream));
		rc = rc ? rc : device_passed_on(r, r->ops->graph_launch(graphs[g], lane->stream));
	}
	rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(lane->stream));
	rc = rc ? rc : tern_moe_status(r->moe);
	for (int g = 0; g < NR_MEASURES && !rc; g++) {
		rc = device_passed_on(r, r->ops->graph_time(graphs[g], &us));
		if (times)
			times->us[g][i] = us;
	}
	return rc;
}
