/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/nccl_rounds.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static int from_device(const struct nccl_rounds *n, int rc)
{
	return rc ? fail(rc, "%s", n->link.ops->error_text()) : 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int check_job(const struct job *job)
{
	const struct tern_moe_config *c = &job->config;

	if (c->layout != TERN_CONTIGUOUS)
		return fail(TERN_ERR_UNSUPPORTED, "--against nccl: layout contiguous only");
	if (job->nr_redundant || c->replica_ranks != 1)
		return fail(
			TERN_ERR_UNSUPPORTED, "--against nccl: no replicas of experts or ranks");
	return 0;
}

static int open_way(struct nccl_rounds *n, enum nccl_way way)
{
	struct nccl_contender *c = &n->ways[way];

	c->job = *n->device->job; /* what it points to is the case's */
	if (way == NCCL_PER_ROUTE)
		c->job.config.reduce = TERN_REDUCE_HOME;
	c->reference = reference_create(&c->job);
	if (!c->reference)
		return fail(TERN_ERR_NOMEM, "no memory for the reference");
	return nccl_exchange_open(
		&c->exchange, &n->link, n->device, c->reference, way == NCCL_PER_RANK);
}

int nccl_rounds_open(struct nccl_rounds *n, struct device_rounds *device)
{
	int rc = check_job(device->job);

	memset(n, 0, sizeof(*n));
	if (rc)
		return rc;
	n->device = device;
	rc = nccl_link_open(&n->link, device);
	for (int way = 0; way < NR_NCCL_WAYS && !rc; way++)
		rc = open_way(n, way);
	rc = rc ? rc : from_device(n, device->ops->records->mark_create(&n->begin));
	rc = rc ? rc : from_device(n, device->ops->records->mark_create(&n->end));
	return device_rounds_agree(device, rc);
}

void nccl_rounds_close(struct nccl_rounds *n)
{
	if (!n->device)
		return;
	for (int way = 0; way < NR_NCCL_WAYS; way++) {
		nccl_exchange_close(&n->ways[way].exchange);
		reference_destroy(n->ways[way].reference);
	}
	n->device->ops->records->mark_destroy(n->begin);
	n->device->ops->records->mark_destroy(n->end);
	nccl_link_close(&n->link);
	memset(n, 0, sizeof(*n));
}

/* ---- verified rounds ------------------------------------------------------------------------- */

/* To memory of its own; NULL with tern_last_error. */
static void *fetch(struct nccl_rounds *n, const void *from, uint64_t bytes)
{
	void *to = malloc(bytes + 1);

	if (!to)
		fail(TERN_ERR_NOMEM, "no memory for %llu bytes of results",
			(unsigned long long)bytes);
	else if (from_device(n, n->link.ops->copy(to, from, bytes, n->link.stream)) ||
		 from_device(n, n->link.ops->stream_wait(n->link.stream))) {
		free(to);
		return NULL;
	}
	return to;
}

static void free_received(struct tern_received *host)
{
	free((void *)host->counts);
	free((void *)host->offsets);
	free((void *)host->x);
	free((void *)host->scales);
	free((void *)host->rows);
}

static int fetch_received(
	struct nccl_rounds *n, const struct nccl_exchange *e, struct tern_received *host)
{
	const struct records *r = &e->records;

	*host = (struct tern_received){.size = sizeof(*host)};
	host->counts = fetch(n, r->counts, r->nr_local * sizeof(*r->counts));
	host->offsets = fetch(n, r->offsets, r->nr_local * sizeof(*r->offsets));
	if (!host->counts || !host->offsets)
		return TERN_ERR_SYSTEM;
	for (uint32_t l = 0; l < r->nr_local; l++) {
		host->nr_rows += host->counts[l];
		host->extent = host->offsets[l] + host->counts[l];
	}
	if (host->extent > e->positions)
		return fail(TERN_ERR_PROTOCOL,
			"rows that came over NCCL span %llu positions of %llu",
			(unsigned long long)host->extent, (unsigned long long)e->positions);
	host->x = fetch(n, r->rows_x, host->extent * r->row_bytes);
	host->scales =
		r->scales_bytes ? fetch(n, r->rows_scales, host->extent * r->scales_bytes) : NULL;
	host->rows = fetch(n, r->rows, host->extent * sizeof(*r->rows));
	return host->x && host->rows && (!r->scales_bytes || host->scales) ? 0 : TERN_ERR_SYSTEM;
}

/* What is there from before may not be taken for results. */
static int poison(struct nccl_rounds *n, const struct nccl_exchange *e)
{
	const struct records *r = &e->records;
	const struct bench_device_ops *ops = n->link.ops;
	int rc = ops->fill(r->rows_x, 0xa5, e->positions * r->row_bytes, n->link.stream);

	rc = rc ? rc
		: ops->fill(r->rows_scales, 0xa5, e->positions * r->scales_bytes, n->link.stream);
	rc = rc ? rc : ops->fill(r->rows, 0xa5, e->positions * sizeof(*r->rows), n->link.stream);
	rc = rc ? rc
		: ops->fill(r->out, 0xa5, (uint64_t)e->job->config.max_tokens * r->y_bytes,
			  n->link.stream);
	return from_device(n, rc);
}

static int put_y(struct nccl_rounds *n, const struct nccl_contender *c, uint64_t extent)
{
	size_t bytes = extent * c->exchange.records.y_bytes;
	uint8_t *y = calloc(bytes + 1, 1);
	int rc = y && !fill_y(c->reference, n->device->rank, y, c->exchange.records.y_bytes)
			 ? 0
			 : fail(TERN_ERR_NOMEM, "no memory for the experts' results");

	rc = rc ? rc
		: from_device(n, n->link.ops->copy(
					 (void *)c->exchange.records.y, y, bytes, n->link.stream));
	rc = rc ? rc : from_device(n, n->link.ops->stream_wait(n->link.stream)); /* y goes */
	free(y);
	return rc;
}

/* All that is on the stream, but not for longer than a wait may last. */
static int settle(struct nccl_rounds *n)
{
	int rc = from_device(n, n->link.ops->records->mark_put(n->end, n->link.stream));

	return rc ? rc : nccl_wait(&n->link, n->end);
}

static int verify_dispatch(struct nccl_rounds *n, struct nccl_contender *c, uint32_t nr_tokens)
{
	struct tern_received host = {0};
	int rc = poison(n, &c->exchange);

	rc = rc ? rc : nccl_dispatch(&c->exchange, nr_tokens);
	rc = rc ? rc : settle(n);
	rc = rc ? rc : fetch_received(n, &c->exchange, &host);
	if (!rc && verify_received(c->reference, n->device->rank, &host, &n->difference))
		rc = fail(TERN_ERR_NOMEM, "no memory to compare what came");
	rc = rc ? rc : put_y(n, c, host.extent);
	free_received(&host);
	return rc;
}

static int verify_combine(struct nccl_rounds *n, struct nccl_contender *c, uint32_t nr_tokens)
{
	size_t row = c->exchange.records.y_bytes;
	int rc = nccl_combine(&c->exchange);
	void *out;

	rc = rc ? rc : settle(n);
	if (rc)
		return rc;
	out = fetch(n, c->exchange.records.out, nr_tokens * row);
	rc = out ? 0 : TERN_ERR_SYSTEM;
	if (!rc && verify_combined(c->reference, n->device->rank, out, row, &n->difference))
		rc = fail(TERN_ERR_NOMEM, "no memory to compare results");
	free(out);
	return rc;
}

int nccl_rounds_verify(struct nccl_rounds *n, uint64_t round)
{
	uint32_t nr_tokens = job_nr_tokens(n->device->job, round, n->device->rank);
	int rc = device_rounds_upload(n->device, 0, round);

	for (int way = 0; way < NR_NCCL_WAYS && !rc; way++) {
		reference_set_round(n->ways[way].reference, round);
		rc = verify_dispatch(n, &n->ways[way], nr_tokens);
		rc = rc ? rc : verify_combine(n, &n->ways[way], nr_tokens);
	}
	return rc;
}

/* ---- timed rounds ---------------------------------------------------------------------------- */

/* By the device's clock, from the first kernel to the end of the last, what it waits for the host
 * within. */
static int time_measure(struct nccl_rounds *n, struct nccl_exchange *e, enum measure measure,
	uint32_t nr_tokens, double *us)
{
	const struct records_ops *ops = n->link.ops->records;
	int rc = device_rounds_start(n->device);

	rc = rc ? rc : from_device(n, ops->mark_put(n->begin, n->link.stream));
	if (measure != MEASURE_COMBINE)
		rc = rc ? rc : nccl_dispatch(e, nr_tokens);
	if (measure != MEASURE_DISPATCH)
		rc = rc ? rc : nccl_combine(e);
	rc = rc ? rc : settle(n);
	rc = rc ? rc : tern_moe_status(n->device->barrier);
	return rc ? rc : from_device(n, ops->mark_us(n->begin, n->end, us));
}

int nccl_rounds_time(struct nccl_rounds *n, struct times *times, uint32_t i)
{
	uint32_t nr_tokens = job_nr_tokens(n->device->job, DEVICE_TIMED_ROUND, n->device->rank);
	double us;
	int rc = 0;

	for (uint32_t k = 0; k < NR_NCCL_WAYS; k++) {
		uint32_t way = (i + k) % NR_NCCL_WAYS; /* who goes first changes */

		for (int m = 0; m < NR_MEASURES && !rc; m++) {
			rc = time_measure(n, &n->ways[way].exchange, m, nr_tokens, &us);
			if (times && !rc)
				times[way].us[m][i] = us;
		}
	}
	return rc;
}
