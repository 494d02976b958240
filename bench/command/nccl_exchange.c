/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/nccl_exchange.h"
#include "testkit/measure.h"
#include "gpu/cuda/dtypes.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static int from_device(const struct nccl_link *link, int rc)
{
	return rc ? fail(rc, "%s", link->ops->error_text()) : 0;
}

static int from_nccl(const struct nccl_link *link, int rc, const char *call)
{
	return rc ? fail(TERN_ERR_SYSTEM, "%s: %s", call, link->nccl->error_text(rc)) : 0;
}

/* ---- joining --------------------------------------------------------------------------------- */

int nccl_link_open(struct nccl_link *link, const struct device_rounds *device)
{
	struct nccl_id mine = {{0}}, ids[device->job->nr_ranks];
	int rc;

	*link = (struct nccl_link){.nccl = nccl_load(),
		.ops = device->ops,
		.stream = device->lanes[0].stream,
		.wait_ms = device->job->config.wait_ms};
	rc = link->nccl ? 0 : TERN_ERR_UNSUPPORTED;
	if (!rc && device->rank == 0)
		rc = from_nccl(link, link->nccl->unique_id(&mine), "ncclGetUniqueId");
	rc = device_rounds_agree(device, rc);
	rc = rc ? rc : tern_group_allgather(device->group, &mine, ids, sizeof(mine));
	if (!rc)
		rc = from_nccl(link,
			link->nccl->init_rank(
				&link->comm, (int)device->job->nr_ranks, ids[0], (int)device->rank),
			"ncclCommInitRank");
	return device_rounds_agree(device, rc);
}

void nccl_link_close(struct nccl_link *link)
{
	if (link->comm)
		(void)link->nccl->destroy(link->comm);
	link->comm = NULL;
}

int nccl_wait(struct nccl_link *link, struct device_mark *mark)
{
	double end = now_us() + link->wait_ms * 1e3;
	bool reached = false;
	int rc;

	do
		rc = from_device(link, link->ops->records->mark_reached(mark, &reached));
	while (!rc && !reached && now_us() < end);
	if (rc || reached)
		return rc;
	(void)link->nccl->abort(link->comm); /* else closing would wait for it */
	link->comm = NULL;
	return fail(
		TERN_ERR_TIMEOUT, "NCCL's part of a round did not end within %d ms", link->wait_ms);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint32_t round16(size_t bytes)
{
	return (uint32_t)((bytes + 15) / 16 * 16);
}

static void set_shape(struct nccl_exchange *e, const struct device_rounds *device,
	const struct reference *reference, bool per_rank)
{
	const struct job *job = e->job;
	const struct tern_moe_config *c = &job->config;
	uint32_t most_routes = per_rank ? c->topk : 1, local = reference->nr_local[e->rank];
	uint32_t scales_at = (uint32_t)(sizeof(struct record_header) +
					most_routes * sizeof(struct record_route));
	uint32_t row_at = scales_at + round16(job_received_scales_bytes(job));
	const struct device_lane *lane = &device->lanes[0];

	e->records = (struct records){.nr_ranks = job->nr_ranks,
		.nr_local = local,
		.topk = c->topk,
		.alignment = c->alignment,
		.per_rank = per_rank,
		.most_routes = most_routes,
		.at_home = c->reduce == TERN_REDUCE_HOME,
		.weighted = c->weights == TERN_WEIGHTS_COMBINE,
		.record_bytes = row_at + round16(job_received_bytes(job)),
		.scales_at = scales_at,
		.row_at = row_at,
		.row_bytes = (uint32_t)job_received_bytes(job),
		.scales_bytes = (uint32_t)job_received_scales_bytes(job),
		.scale_bytes = c->scale == TERN_SCALE_FP32 ? 4 : 1,
		.x_bytes = (uint32_t)job_x_bytes(job),
		.y_bytes = (uint32_t)job_y_bytes(job),
		.x_kind = gpu_x_kind(c),
		.y_kind = gpu_y_kind(c),
		.x = lane->x,
		.scales = lane->scales,
		.y = lane->y,
		.ids = (const int32_t *)lane->ids,
		.weights = job->no_weights ? NULL : (const float *)lane->weights};
	e->positions = device->positions;
	e->most_received = (uint64_t)job->nr_ranks * c->max_tokens *
			   (per_rank                 ? 1
				   : c->topk < local ? c->topk
						     : local);
}

/* A buffer's place in e->memory; NULL as base: how much there is. */
static void *take(uint8_t *base, uint64_t *used, uint64_t bytes)
{
	uint64_t at = *used;

	*used += (bytes + 64 + 255) / 256 * 256;
	return base ? base + at : NULL;
}

static uint64_t tiles_bytes(uint64_t nr_items, uint64_t nr_keys)
{
	return (nr_items + RECORDS_TILE - 1) / RECORDS_TILE * nr_keys * 4;
}

static uint64_t place_buffers(struct nccl_exchange *e, uint8_t *base)
{
	struct records *r = &e->records;
	const struct tern_moe_config *c = &e->job->config;
	uint64_t used = 0, routes = (uint64_t)c->max_tokens * c->topk,
		 places = e->most_received * r->most_routes;

	r->experts = take(base, &used, (uint64_t)c->nr_experts * sizeof(*r->experts));
	r->sent = take(base, &used, 2 * (uint64_t)r->nr_ranks * sizeof(*r->sent));
	r->received = r->sent ? r->sent + r->nr_ranks : NULL; /* behind it: both are copied to the
								 host at once */
	r->record_index = take(base, &used, routes * 4);
	r->record_tiles = take(base, &used, tiles_bytes(routes, r->nr_ranks));
	r->home_index = r->per_rank && r->at_home ? take(base, &used, routes * 4) : r->record_index;
	r->home_tiles = r->per_rank && r->at_home
				? take(base, &used, tiles_bytes(routes, r->nr_ranks))
				: r->record_tiles;
	r->received_index = take(base, &used, places * 4);
	r->received_tiles = take(base, &used, tiles_bytes(places, r->nr_local));
	r->places = take(base, &used, places * sizeof(*r->places));
	r->counts = take(base, &used, (uint64_t)r->nr_local * 4);
	r->offsets = take(base, &used, (uint64_t)r->nr_local * 8);
	r->rows = take(base, &used, e->positions * sizeof(*r->rows));
	r->rows_x = take(base, &used, e->positions * r->row_bytes);
	r->rows_scales = take(base, &used, e->positions * r->scales_bytes);
	r->out = take(base, &used, (uint64_t)c->max_tokens * r->y_bytes);
	r->send = take(base, &used,
		larger(routes * r->record_bytes,
			(r->at_home ? e->positions : e->most_received) * r->y_bytes));
	r->recv =
		take(base, &used, larger(e->most_received * r->record_bytes, routes * r->y_bytes));
	return used;
}

/* Where each expert lives; from the reference, as there are no replicas. */
static int put_experts(struct nccl_exchange *e, const struct reference *reference)
{
	uint32_t nr = e->job->config.nr_experts;
	struct record_expert *experts = calloc(nr, sizeof(*experts));
	int rc = experts ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u experts", nr);

	for (uint32_t p = 0; p < nr && !rc; p++)
		experts[reference->logical[p]] = (struct record_expert){
			(uint32_t)reference->rank[p], (uint32_t)reference->local[p]};
	rc = rc ? rc
		: from_device(e->link, e->link->ops->copy((void *)e->records.experts, experts,
					       nr * sizeof(*experts), e->link->stream));
	rc = rc ? rc : from_device(e->link, e->link->ops->stream_wait(e->link->stream));
	free(experts);
	return rc;
}

int nccl_exchange_open(struct nccl_exchange *e, struct nccl_link *link,
	const struct device_rounds *device, const struct reference *reference, bool per_rank)
{
	const struct bench_device_ops *ops = link->ops;
	int rc;

	*e = (struct nccl_exchange){.link = link, .job = reference->job, .rank = device->rank};
	set_shape(e, device, reference, per_rank);
	if (e->records.nr_local > RECORDS_MOST_KEYS || e->records.nr_ranks > RECORDS_MOST_KEYS)
		return fail(TERN_ERR_UNSUPPORTED,
			"--against nccl: %u experts on rank %u, and %u ranks: %d at most",
			e->records.nr_local, e->rank, e->records.nr_ranks, RECORDS_MOST_KEYS);
	rc = from_device(link, ops->memory_create(place_buffers(e, NULL), (void **)&e->memory));
	if (rc)
		return rc;
	place_buffers(e, e->memory);
	rc = from_device(link, ops->host_create(2 * e->records.nr_ranks * sizeof(*e->counts),
				       (void **)&e->counts));
	rc = rc ? rc : from_device(link, ops->records->mark_create(&e->counted));
	return rc ? rc : put_experts(e, reference);
}

void nccl_exchange_close(struct nccl_exchange *e)
{
	if (!e->link)
		return;
	e->link->ops->records->mark_destroy(e->counted);
	if (e->counts)
		e->link->ops->host_free(e->counts);
	if (e->memory)
		e->link->ops->memory_free(e->memory);
	memset(e, 0, sizeof(*e));
}

/* ---- all to all ------------------------------------------------------------------------------ */

/* What goes to each rank and comes from it. */
struct share {
	uint64_t to, from;
};

/* One group of sends and receives, this rank's own among them. Pieces lie rank by rank. */
static int all_to_all(
	struct nccl_exchange *e, const uint8_t *send, uint8_t *recv, const struct share *bytes)
{
	const struct nccl *nccl = e->link->nccl;
	struct nccl_comm *comm = e->link->comm;
	void *stream = e->link->stream;
	int rc = from_nccl(e->link, nccl->group_start(), "ncclGroupStart"), end;

	if (rc)
		return rc;
	for (uint32_t r = 0; r < e->records.nr_ranks && !rc; r++) {
		if (bytes[r].to)
			rc = from_nccl(e->link,
				nccl->send(send, bytes[r].to, NCCL_BYTES, (int)r, comm, stream),
				"ncclSend");
		if (!rc && bytes[r].from)
			rc = from_nccl(e->link,
				nccl->recv(recv, bytes[r].from, NCCL_BYTES, (int)r, comm, stream),
				"ncclRecv");
		send += bytes[r].to;
		recv += bytes[r].from;
	}
	end = nccl->group_end();
	return rc ? rc : from_nccl(e->link, end, "ncclGroupEnd");
}

/* Also to the host, which needs them. */
static int exchange_counts(struct nccl_exchange *e)
{
	struct records *r = &e->records;
	struct share bytes[r->nr_ranks];
	int rc;

	for (uint32_t i = 0; i < r->nr_ranks; i++)
		bytes[i] = (struct share){sizeof(*r->sent), sizeof(*r->received)};
	rc = all_to_all(e, (const uint8_t *)r->sent, (uint8_t *)r->received, bytes);
	rc = rc ? rc
		: from_device(
			  e->link, e->link->ops->copy(e->counts, r->sent,
					   2 * r->nr_ranks * sizeof(*r->sent), e->link->stream));
	return rc ? rc
		  : from_device(
			    e->link, e->link->ops->records->mark_put(e->counted, e->link->stream));
}

static int exchange_records(struct nccl_exchange *e)
{
	struct records *r = &e->records;
	const struct record_counts *sent = e->counts, *received = e->counts + r->nr_ranks;
	struct share bytes[r->nr_ranks];
	uint64_t nr = 0;

	for (uint32_t i = 0; i < r->nr_ranks; i++) {
		bytes[i] = (struct share){(uint64_t)sent[i].nr_records * r->record_bytes,
			(uint64_t)received[i].nr_records * r->record_bytes};
		nr += received[i].nr_records;
	}
	if (nr > e->most_received)
		return fail(TERN_ERR_PROTOCOL,
			"%llu records would come over NCCL, where there can be %llu",
			(unsigned long long)nr, (unsigned long long)e->most_received);
	e->nr_received = (uint32_t)nr;
	return all_to_all(e, r->send, r->recv, bytes);
}

int nccl_dispatch(struct nccl_exchange *e, uint32_t nr_tokens)
{
	const struct records_ops *ops = e->link->ops->records;
	int rc;

	e->records.nr_tokens = nr_tokens;
	rc = from_device(e->link, ops->count(&e->records, e->link->stream));
	rc = rc ? rc : exchange_counts(e);
	rc = rc ? rc : from_device(e->link, ops->pack(&e->records, e->link->stream)); /* while the
											 host waits
											 for counts
										       */
	rc = rc ? rc : nccl_wait(e->link, e->counted);
	rc = rc ? rc : exchange_records(e);
	return rc ? rc
		  : from_device(e->link, ops->place(&e->records, e->nr_received, e->link->stream));
}

int nccl_combine(struct nccl_exchange *e)
{
	struct records *r = &e->records;
	const struct records_ops *ops = e->link->ops->records;
	struct share bytes[r->nr_ranks];
	int rc = from_device(e->link, ops->pack_results(r, e->nr_received, e->link->stream));

	for (uint32_t i = 0; i < r->nr_ranks; i++)
		bytes[i] = (struct share){(uint64_t)e->counts[r->nr_ranks + i].nr_home * r->y_bytes,
			(uint64_t)e->counts[i].nr_home * r->y_bytes};
	rc = rc ? rc : all_to_all(e, r->send, r->recv, bytes);
	return rc ? rc : from_device(e->link, ops->sum(r, e->link->stream));
}
