/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a round on a device, and graphs of them. */
#include "testkit/device/inside.h"
#include "gpu/host/inside.h"

/* ---- calls ----------------------------------------------------------------------------------- */

static struct tern_dispatch dispatch_args(const struct device_rounds *r, uint32_t slot,
	const struct device_manner *m, uint32_t nr_tokens)
{
	const struct job *job = r->job;
	const struct device_lane *lane = &r->lanes[slot];
	bool scaled = job_x_scales_bytes(job) > 0;

	return (struct tern_dispatch){.size = sizeof(struct tern_dispatch),
		.slot = slot,
		.nr_tokens = nr_tokens,
		.x = lane->x,
		.x_stride = m->x_gap ? job_x_bytes(job) + m->x_gap : 0,
		.scales = scaled ? lane->scales : NULL,
		.scales_stride =
			scaled && m->scales_gap ? job_x_scales_bytes(job) + m->scales_gap : 0,
		.plan = lane->plan,
		.topk_ids = lane->plan ? NULL : lane->ids,
		.topk_ids_bits = m->wide_ids ? 64 : 0,
		.topk_weights =
			job->no_weights || lane->plan ? NULL : (const float *)lane->weights};
}

static int put_dispatch(struct device_rounds *r, enum piece piece, uint32_t slot,
	const struct device_manner *m, uint32_t nr_tokens)
{
	struct device_lane *lane = &r->lanes[slot];
	struct tern_dispatch args = dispatch_args(r, slot, m, nr_tokens);

	if (piece == PIECE_DISPATCH_SEND)
		return tern_dispatch_send(r->moe, &args);
	lane->received = (struct tern_received){.size = sizeof(lane->received)};
	if (m->own_buffers || r->job->config.caller_output) {
		lane->received.into_x = lane->into_x;
		lane->received.into_scales = m->columns_alone ? NULL : lane->into_scales;
	}
	if (r->job->wants) {
		bool ids = wide_ids_bytes(r->job, 1), scales = job_received_scales_bytes(r->job);

		lane->received.wide_ids = ids ? (int64_t *)(void *)lane->wide_received : NULL;
		lane->received.expert_counts = (uint32_t *)(void *)lane->expert_counts;
		lane->received.expert_totals = (uint64_t *)(void *)lane->expert_totals;
		lane->received.gemm_scales = scales ? lane->gemm_scales : NULL;
		lane->received.counts_alignment = 16;
		if (!m->graphs &&
			(piece == PIECE_DISPATCH || tern_moe_mode(r->moe) == TERN_LOW_LATENCY)) {
			lane->received.into_counts = (uint32_t *)(void *)lane->into_counts;
			lane->received.into_offsets = (uint64_t *)(void *)lane->into_offsets;
		}
		if (tern_moe_mode(r->moe) == TERN_LOW_LATENCY)
			lane->received.waited_ns = (uint64_t *)(void *)lane->waited;
	}
	return piece == PIECE_DISPATCH ? tern_dispatch(r->moe, &args, &lane->received)
				       : tern_dispatch_recv(r->moe, slot, &lane->received);
}

static int put_combine(
	struct device_rounds *r, enum piece piece, uint32_t slot, const struct device_manner *m)
{
	struct device_lane *lane = &r->lanes[slot];
	size_t row = job_y_bytes(r->job), out_stride = m->out_gap ? row + m->out_gap : 0;
	struct tern_combine args = {.size = sizeof(args),
		.slot = slot,
		.plan = lane->replays ? lane->plan : 0,
		.y = lane->y,
		.y_stride = m->y_gap ? row + m->y_gap : 0,
		.unweighted = device_weighting(r, m) == WEIGHTED_NOT,
		.no_floats = m->no_floats};

	if (device_weighting(r, m) == WEIGHTED_AT_COMBINE &&
		(m->graphs || args.plan || r->moe->slots[slot].nr_tokens))
		args.topk_weights = (const float *)lane->combine_weights;
	if (r->job->config.combine_floats && !m->no_floats) {
		args.floats = (const float *)lane->floats;
		args.out_floats = (float *)lane->out_floats;
	}

	if (piece == PIECE_COMBINE_SEND)
		return tern_combine_send(r->moe, &args);
	return piece == PIECE_COMBINE ? tern_combine(r->moe, &args, lane->out, out_stride)
				      : tern_combine_recv(r->moe, slot, lane->out, out_stride);
}

int device_put_dispatch(
	struct device_rounds *r, uint32_t slot, const struct device_manner *m, uint32_t nr_tokens)
{
	int rc = put_dispatch(
		r, m->apart ? PIECE_DISPATCH_SEND : PIECE_DISPATCH, slot, m, nr_tokens);

	return rc || !m->apart ? rc : put_dispatch(r, PIECE_DISPATCH_RECEIVE, slot, m, nr_tokens);
}

int device_put_combine(struct device_rounds *r, uint32_t slot, const struct device_manner *m)
{
	int rc;

	if (m->release)
		return tern_release(r->moe, slot);
	rc = put_combine(r, m->apart ? PIECE_COMBINE_SEND : PIECE_COMBINE, slot, m);
	return rc || !m->apart ? rc : put_combine(r, PIECE_COMBINE_RECEIVE, slot, m);
}

/* ---- what graphs keep ------------------------------------------------------------------------ */

/* All that is received: where from, and how much at most. */
struct kept_part {
	const void *from;
	const void **to;
	uint64_t bytes;
};
#define NR_KEPT 7

static void kept_parts(
	const struct device_rounds *r, struct device_lane *lane, struct kept_part parts[NR_KEPT])
{
	const struct job *job = r->job;
	const struct tern_received *d = &lane->captured;
	struct tern_received *k = &lane->kept;
	uint64_t rows = d->nr_rows, routes = rows * job->config.topk;
	uint32_t lists = device_nr_lists(r);

	parts[0] = (struct kept_part){d->x, (const void **)&k->x, rows * job_received_bytes(job)};
	parts[1] = (struct kept_part){
		d->scales, (const void **)&k->scales, rows * job_received_scales_bytes(job)};
	parts[2] = (struct kept_part){d->rows, (const void **)&k->rows, rows * sizeof(*d->rows)};
	parts[3] = (struct kept_part){
		d->counts, (const void **)&k->counts, lists * sizeof(*d->counts)};
	parts[4] = (struct kept_part){
		d->offsets, (const void **)&k->offsets, (lists + 2) * sizeof(*d->offsets)};
	parts[5] = (struct kept_part){
		d->topk_ids, (const void **)&k->topk_ids, routes * sizeof(*d->topk_ids)};
	parts[6] = (struct kept_part){d->topk_weights, (const void **)&k->topk_weights,
		routes * sizeof(*d->topk_weights)};
}

int device_keep_open(struct device_rounds *r, uint32_t slot)
{
	struct device_lane *lane = &r->lanes[slot];
	struct kept_part parts[NR_KEPT];
	uint64_t all = 0;
	int rc;

	lane->kept = (struct tern_received){.size = sizeof(lane->kept)};
	kept_parts(r, lane, parts);
	for (int i = 0; i < NR_KEPT; i++)
		all += (parts[i].bytes + 255) / 256 * 256;
	rc = device_passed_on(r, r->ops->memory_create(all, (void **)&lane->kept_memory));
	all = 0;
	for (int i = 0; i < NR_KEPT && !rc; i++) {
		*parts[i].to = parts[i].from ? lane->kept_memory + all : NULL;
		all += (parts[i].bytes + 255) / 256 * 256;
	}
	return rc;
}

static int keep(struct device_rounds *r, uint32_t slot, void *stream)
{
	struct kept_part parts[NR_KEPT];
	int rc = 0;

	kept_parts(r, &r->lanes[slot], parts);
	for (int i = 0; i < NR_KEPT && !rc; i++)
		if (parts[i].from)
			rc = r->ops->copy(
				(void *)*parts[i].to, parts[i].from, parts[i].bytes, stream);
	return device_passed_on(r, rc);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void *stream_of(const struct device_rounds *r, uint32_t slot)
{
	return r->moe->device->streams[slot].stream;
}

static int put_piece(struct device_rounds *r, const struct step *s, uint32_t nr_tokens)
{
	const struct device_manner plain = {.graphs = true};

	switch (s->piece) {
	case PIECE_NONE:
		return 0;
	case PIECE_DISPATCH:
	case PIECE_DISPATCH_SEND:
	case PIECE_DISPATCH_RECEIVE:
		return put_dispatch(r, s->piece, s->slot, &plain, nr_tokens);
	default:
		return put_combine(r, s->piece, s->slot, &plain);
	}
}

static int put_step(struct device_rounds *r, const struct step *s, const struct device_works *works,
	uint32_t nr_tokens)
{
	void *stream = stream_of(r, s->slot), *at = s->work == WORK_BESIDE ? works->stream : stream;
	const struct bench_device_ops *ops = r->ops;
	int rc = at != stream ? device_passed_on(r, ops->stream_follow(at, stream)) : 0;

	rc = rc ? rc : put_piece(r, s, nr_tokens);
	if (!rc && works && works->keep &&
		(s->piece == PIECE_DISPATCH || s->piece == PIECE_DISPATCH_RECEIVE))
		rc = keep(r, s->slot, stream);
	if (!rc && s->work)
		rc = device_passed_on(
			r, ops->work(works->memory, works->bytes, works->nr_waves, at));
	return rc || at == stream ? rc : device_passed_on(r, ops->stream_follow(stream, at));
}

int device_capture(struct device_rounds *r, const struct step *steps, uint32_t nr_steps,
	const struct device_works *works, uint32_t nr_tokens, struct device_graph **graph)
{
	void *stream = stream_of(r, steps[0].slot);
	int rc = device_passed_on(r, r->ops->capture_begin(stream)), end;

	if (rc)
		return rc;
	for (uint32_t i = 0; i < nr_steps && !rc; i++)
		rc = put_step(r, &steps[i], works, nr_tokens);
	end = r->ops->capture_end(stream, graph);
	return rc ? rc : device_passed_on(r, end);
}
