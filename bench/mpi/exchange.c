/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mpi/exchange.h"
#include "exchange/cpu/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

struct route {
	int32_t local; /* expert of the receiving rank */
	int32_t k;
	float weight;
};

struct header {
	int32_t token;
	int32_t nr_routes;
	struct route routes[];
};

static size_t round16(size_t bytes)
{
	return (bytes + 15) & ~(size_t)15;
}

static size_t header_bytes(const struct job *job, enum records records)
{
	return round16(sizeof(struct header) +
		       (records == RECORD_PER_RANK ? job->config.topk : 1) * sizeof(struct route));
}

size_t exchange_record_bytes(const struct job *job, enum records records)
{
	return header_bytes(job, records) + round16(job_received_scales_bytes(job)) +
	       round16(job_received_bytes(job));
}

/* ---- life ------------------------------------------------------------------------------------ */

static void *zeroed(size_t nr, size_t bytes)
{
	return calloc(nr + 1, bytes); /* never nothing, which might be NULL */
}

static bool allocate(struct exchange *e)
{
	size_t n = e->job->config.max_tokens, routes = n * e->topk * e->nr_ranks;
	int **per_rank[] = {&e->nr_sent, &e->sent_at, &e->nr_received, &e->received_at, &e->nr_home,
		&e->home_at, &e->nr_away, &e->away_at};
	bool ok = true;

	for (size_t i = 0; i < sizeof(per_rank) / sizeof(per_rank[0]); i++)
		ok = (*per_rank[i] = zeroed(e->nr_ranks, sizeof(int))) && ok;
	e->home_row = zeroed(n * e->topk, sizeof(*e->home_row));
	e->partial_row = zeroed(n * e->nr_ranks, sizeof(*e->partial_row));
	e->position = zeroed(routes, sizeof(*e->position));
	e->weight = zeroed(routes, sizeof(*e->weight));
	e->nr_routes = zeroed(routes, sizeof(*e->nr_routes));
	e->counts = zeroed(e->experts->nr_local, sizeof(*e->counts));
	e->offsets = zeroed(e->experts->nr_local, sizeof(*e->offsets));
	return ok && e->home_row && e->partial_row && e->position && e->weight && e->nr_routes &&
	       e->counts && e->offsets;
}

static MPI_Datatype bytes_type(size_t bytes)
{
	MPI_Datatype type;

	MPI_Type_contiguous((int)bytes, MPI_BYTE, &type);
	MPI_Type_commit(&type);
	return type;
}

int exchange_open(struct exchange *e, const struct job *job, enum records records,
	const struct experts *experts, const struct input *input, const struct buffers *buffers,
	MPI_Comm comm)
{
	*e = (struct exchange){
		.job = job,
		.input = input,
		.experts = experts,
		.buffers = buffers,
		.records = records,
		.reduce_home =
			records == RECORD_PER_ROUTE || job->config.reduce == TERN_REDUCE_HOME,
		.comm = comm,
		.nr_ranks = job->nr_ranks,
		.topk = job->config.topk,
		.scales_at = header_bytes(job, records),
		.record_bytes = exchange_record_bytes(job, records),
		.row_bytes = job_received_bytes(job),
		.scales_bytes = job_received_scales_bytes(job),
		.y_bytes = job_y_bytes(job),
	};
	e->row_at = e->scales_at + round16(e->scales_bytes);
	e->record_type = bytes_type(e->record_bytes);
	e->y_type = bytes_type(e->y_bytes);
	return allocate(e) ? 0 : -1;
}

void exchange_close(struct exchange *e)
{
	void *all[] = {e->nr_sent, e->sent_at, e->nr_received, e->received_at, e->nr_home,
		e->home_at, e->nr_away, e->away_at, e->home_row, e->partial_row, e->position,
		e->weight, e->nr_routes, e->counts, e->offsets};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		free(all[i]);
	MPI_Type_free(&e->record_type);
	MPI_Type_free(&e->y_type);
}

/* ---- dispatch: before the exchange ----------------------------------------------------------- */

static int sum_before(const int *counts, int *starts, uint32_t n)
{
	int at = 0;

	for (uint32_t r = 0; r < n; r++) {
		starts[r] = at;
		at += counts[r];
	}
	return at;
}

/* Whether route k opens a record: no earlier route of its token goes to the same rank. */
static bool opens_record(const struct exchange *e, const int32_t *ids, uint32_t k)
{
	for (uint32_t i = 0; i < k && e->records == RECORD_PER_RANK; i++)
		if (ids[i] >= 0 && e->experts->rank[ids[i]] == e->experts->rank[ids[k]])
			return false;
	return true;
}

static void count_records(struct exchange *e)
{
	const int32_t *ids = e->input->ids;

	memset(e->nr_sent, 0, e->nr_ranks * sizeof(int));
	memset(e->nr_home, 0, e->nr_ranks * sizeof(int));
	for (uint32_t t = 0; t < e->input->nr_tokens; t++, ids += e->topk)
		for (uint32_t k = 0; k < e->topk; k++) {
			bool opens = ids[k] >= 0 && opens_record(e, ids, k);

			if (ids[k] < 0)
				continue;
			e->nr_sent[e->experts->rank[ids[k]]] += opens;
			e->nr_home[e->experts->rank[ids[k]]] += opens || e->reduce_home;
		}
	sum_before(e->nr_sent, e->sent_at, e->nr_ranks);
	sum_before(e->nr_home, e->home_at, e->nr_ranks);
}

static void write_row(const struct exchange *e, uint32_t token, char *record)
{
	const struct tern_moe_config *c = &e->job->config;
	const char *x = e->input->x + (size_t)token * job_x_bytes(e->job);

	if (c->dispatch_dtype != c->x_dtype) {
		quantise_row(x, c->x_dtype, c->hidden, c->scale, (uint8_t *)record + e->row_at,
			record + e->scales_at);
		return;
	}
	memcpy(record + e->row_at, x, e->row_bytes);
	if (e->scales_bytes)
		memcpy(record + e->scales_at, e->input->scales + (size_t)token * e->scales_bytes,
			e->scales_bytes);
}

struct packing { /* the places of the next record and of the next row of y, of each rank; and this
		    token's records */
	int next[AGAINST_MAX_RANKS];
	int next_home[AGAINST_MAX_RANKS];
	char *record[AGAINST_MAX_RANKS];
};

static char *open_record(
	struct exchange *e, struct packing *p, uint32_t token, int32_t rank, const char *first)
{
	int index = p->next[rank]++;
	char *record = e->buffers->send + (size_t)index * e->record_bytes;

	*(struct header *)record = (struct header){.token = (int32_t)token};
	if (first)
		memcpy(record + e->scales_at, first + e->scales_at, e->record_bytes - e->scales_at);
	else
		write_row(e, token, record);
	if (!e->reduce_home)
		e->partial_row[(size_t)token * e->nr_ranks + (uint32_t)rank] = p->next_home[rank]++;
	return record;
}

static void pack_token(struct exchange *e, struct packing *p, uint32_t token)
{
	const int32_t *ids = e->input->ids + (size_t)token * e->topk;
	const float *weights = e->input->weights + (size_t)token * e->topk;
	char *first = NULL;

	for (uint32_t k = 0; k < e->topk; k++) {
		int32_t rank = ids[k] < 0 ? -1 : e->experts->rank[ids[k]];
		struct header *h;

		if (rank < 0)
			continue;
		if (opens_record(e, ids, k))
			p->record[rank] = open_record(e, p, token, rank, first);
		first = first ? first : p->record[rank];
		h = (struct header *)p->record[rank];
		h->routes[h->nr_routes++] =
			(struct route){e->experts->local[ids[k]], (int32_t)k, weights[k]};
		if (e->reduce_home)
			e->home_row[(size_t)token * e->topk + k] = (uint32_t)p->next_home[rank]++;
	}
}

static void pack(struct exchange *e)
{
	struct packing p;

	memcpy(p.next, e->sent_at, e->nr_ranks * sizeof(int));
	memcpy(p.next_home, e->home_at, e->nr_ranks * sizeof(int));
	if (!e->reduce_home)
		memset(e->partial_row, 0xff,
			(size_t)e->input->nr_tokens * e->nr_ranks * sizeof(*e->partial_row));
	for (uint32_t t = 0; t < e->input->nr_tokens; t++)
		pack_token(e, &p, t);
}

/* ---- dispatch: after it ---------------------------------------------------------------------- */

static const struct header *received_header(const struct exchange *e, int i)
{
	return (const struct header *)(e->buffers->recv + (size_t)i * e->record_bytes);
}

static void count_experts(struct exchange *e, int nr_records)
{
	uint64_t at = 0;
	uint32_t alignment = e->job->config.alignment;

	memset(e->counts, 0, e->experts->nr_local * sizeof(*e->counts));
	for (int i = 0; i < nr_records; i++)
		for (int j = 0; j < received_header(e, i)->nr_routes; j++)
			e->counts[received_header(e, i)->routes[j].local]++;
	for (uint32_t l = 0; l < e->experts->nr_local; l++) {
		e->offsets[l] = at;
		at = (at + e->counts[l] + alignment - 1) / alignment * alignment;
		e->counts[l] = 0; /* counted again while rows are placed */
	}
}

/* One record of that source to all its experts here; returns how many. */
static int place_record(struct exchange *e, int source, int i, uint64_t route)
{
	const char *record = e->buffers->recv + (size_t)i * e->record_bytes;
	const struct header *h = (const struct header *)record;

	for (int j = 0; j < h->nr_routes; j++) {
		const struct route *r = &h->routes[j];
		uint64_t position = e->offsets[r->local] + e->counts[r->local]++;

		memcpy(e->buffers->x + position * e->row_bytes, record + e->row_at, e->row_bytes);
		if (e->scales_bytes)
			memcpy(e->buffers->scales + position * e->scales_bytes,
				record + e->scales_at, e->scales_bytes);
		e->buffers->rows[position] = (struct tern_row){source, h->token, r->k, r->weight};
		e->position[route + (uint64_t)j] = position;
		e->weight[route + (uint64_t)j] = r->weight;
	}
	e->nr_routes[i] = (uint32_t)h->nr_routes;
	return h->nr_routes;
}

static void unpack(struct exchange *e, int nr_records)
{
	uint64_t route = 0;
	int i = 0;

	count_experts(e, nr_records);
	for (uint32_t source = 0; source < e->nr_ranks; source++) {
		uint64_t before = route;

		for (int end = e->received_at[source] + e->nr_received[source]; i < end; i++)
			route += (uint64_t)place_record(e, (int)source, i, route);
		e->nr_away[source] =
			e->reduce_home ? (int)(route - before) : e->nr_received[source];
	}
	sum_before(e->nr_away, e->away_at, e->nr_ranks);
}

void exchange_dispatch(struct exchange *e)
{
	int nr_records;

	count_records(e);
	MPI_Alltoall(e->nr_sent, 1, MPI_INT, e->nr_received, 1, MPI_INT, e->comm);
	nr_records = sum_before(e->nr_received, e->received_at, e->nr_ranks);
	pack(e);
	MPI_Alltoallv(e->buffers->send, e->nr_sent, e->sent_at, e->record_type, e->buffers->recv,
		e->nr_received, e->received_at, e->record_type, e->comm);
	unpack(e, nr_records);
}

/* ---- combine --------------------------------------------------------------------------------- */

static const void *y_at(const struct exchange *e, uint64_t route)
{
	return e->buffers->y + e->position[route] * e->y_bytes;
}

static const float *if_used(const struct exchange *e, const float *weights)
{
	return e->job->config.weights == TERN_WEIGHTS_COMBINE ? weights : NULL;
}

static int nr_records_here(const struct exchange *e)
{
	return e->received_at[e->nr_ranks - 1] + e->nr_received[e->nr_ranks - 1];
}

/* Rows of y in the order in which their routes came. */
static void pack_routes(struct exchange *e)
{
	uint64_t nr = (uint64_t)(e->away_at[e->nr_ranks - 1] + e->nr_away[e->nr_ranks - 1]);

	for (uint64_t route = 0; route < nr; route++)
		memcpy(e->buffers->send + route * e->y_bytes, y_at(e, route), e->y_bytes);
}

/* One sum for each record. */
static void pack_sums(struct exchange *e)
{
	const struct tern_moe_config *c = &e->job->config;
	const void *rows[TERN_MAX_TOPK];
	uint64_t route = 0;

	for (int i = 0; i < nr_records_here(e); i++) {
		for (uint32_t j = 0; j < e->nr_routes[i]; j++)
			rows[j] = y_at(e, route + j);
		reduce_rows(c->combine_dtype, rows, if_used(e, e->weight + route), e->nr_routes[i],
			c->hidden, e->buffers->send + (size_t)i * e->y_bytes);
		route += e->nr_routes[i];
	}
}

static void sum_routes(struct exchange *e, uint32_t token)
{
	const struct tern_moe_config *c = &e->job->config;
	size_t first = (size_t)token * e->topk;
	const void *rows[TERN_MAX_TOPK];
	float weights[TERN_MAX_TOPK];
	uint32_t nr = 0;

	for (uint32_t k = 0; k < e->topk; k++)
		if (e->input->ids[first + k] >= 0) {
			rows[nr] = e->buffers->recv + (size_t)e->home_row[first + k] * e->y_bytes;
			weights[nr++] = e->input->weights[first + k];
		}
	reduce_rows(c->combine_dtype, rows, if_used(e, weights), nr, c->hidden,
		e->buffers->out + (size_t)token * e->y_bytes);
}

static void sum_partials(struct exchange *e, uint32_t token)
{
	const struct tern_moe_config *c = &e->job->config;
	const int32_t *partial = e->partial_row + (size_t)token * e->nr_ranks;
	const void *rows[AGAINST_MAX_RANKS];
	uint32_t nr = 0;

	for (uint32_t r = 0; r < e->nr_ranks; r++)
		if (partial[r] >= 0)
			rows[nr++] = e->buffers->recv + (size_t)partial[r] * e->y_bytes;
	reduce_rows(c->combine_dtype, rows, NULL, nr, c->hidden,
		e->buffers->out + (size_t)token * e->y_bytes);
}

void exchange_combine(struct exchange *e)
{
	if (e->reduce_home)
		pack_routes(e);
	else
		pack_sums(e);
	MPI_Alltoallv(e->buffers->send, e->nr_away, e->away_at, e->y_type, e->buffers->recv,
		e->nr_home, e->home_at, e->y_type, e->comm);
	for (uint32_t t = 0; t < e->input->nr_tokens; t++)
		if (e->reduce_home)
			sum_routes(e, t);
		else
			sum_partials(e, t);
}
