/* SPDX-License-Identifier: Apache-2.0 */
/* A placement's tables as kernels want them. Which rank a physical expert is on never changes; whom
 * it serves may, behind the same addresses, so graphs follow. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"

/* In words, what may change: struct placed, serving [E], replicas [P], logical [P]. */
static uint32_t moving_words(const struct device_tables *t)
{
	return 2 + 2 * t->nr_experts + 2 * t->nr_physical;
}

/* Each in lines of its own. */
static size_t moving_bytes(const struct device_tables *t)
{
	return ((size_t)moving_words(t) * sizeof(uint32_t) + 255) / 256 * 256;
}

/* And what does not: place [P], order [P], first [R + 1]. */
static size_t fixed_bytes(const struct placement *p)
{
	return ((2 * (size_t)p->nr_physical + p->nr_ranks + 1) * sizeof(uint32_t) + 255) / 256 *
	       256;
}

/* Replicas by expert. One that no member holds any more keeps a replica here: no round begins then,
 * but kernels look for places before they know. */
static void fill_replicas(const struct device_tables *t, const struct placement *p,
	uint32_t *serving, uint32_t *replicas)
{
	uint32_t at = 0;

	for (uint32_t e = 0; e < p->nr_experts; e++, serving += 2) {
		uint32_t begin = at, only = UINT32_MAX;

		for (uint32_t i = p->first_replica[e]; i < p->first_replica[e + 1]; i++)
			replicas[at++] = p->replicas[i];
		for (uint32_t i = 0; i < p->nr_physical && at == begin; i++)
			if (p->logical[i] == e)
				replicas[at++] = i;
		for (uint32_t i = begin; i < at && t->sends_own && only == UINT32_MAX; i++)
			if (p->rank[replicas[i]] == t->rank)
				only = replicas[i];
		if (only == UINT32_MAX && at == begin + 1)
			only = replicas[begin];
		serving[0] = only == UINT32_MAX ? begin : only;
		serving[1] = only == UINT32_MAX ? at - begin : 1;
	}
}

static void fill_moving(const struct device_tables *t, const struct placement *p, uint32_t *to)
{
	uint32_t *replicas = to + 2 + 2 * t->nr_experts;

	to[0] = p->placed.version;
	to[1] = p->placed.hash;
	fill_replicas(t, p, to + 2, replicas);
	memcpy(replicas + t->nr_physical, p->logical, t->nr_physical * sizeof(*to));
}

static void fill_fixed(const struct placement *p, uint32_t *to)
{
	uint32_t nr = p->nr_physical, *order = to + nr, *first = order + nr;

	for (uint32_t i = 0; i < nr; i++)
		to[i] = p->rank[i] << 16 | p->local[i];
	first[0] = 0;
	for (uint32_t r = 0; r < p->nr_ranks; r++)
		first[r + 1] = first[r] + p->nr_local[r];
	for (uint32_t i = 0; i < nr; i++)
		order[first[p->rank[i]] + p->local[i]] = i;
}

/* Experts of each rank, where they are contiguous blocks of one size; else 0. */
static uint32_t block_of_each(const struct placement *p)
{
	uint32_t each = p->nr_physical / p->nr_ranks;

	if (p->nr_physical % p->nr_ranks)
		return 0;
	for (uint32_t i = 0; i < p->nr_physical; i++)
		if (p->rank[i] != i / each)
			return 0;
	return each;
}

int tables_open(struct device_exchange *x, uint32_t rank, const struct placement *p)
{
	struct device_tables *t = &x->tables;
	uint32_t nr_slots = x->config.nr_slots;
	size_t fixed = fixed_bytes(p), bytes;
	uint8_t *host;
	int rc;

	*t = (struct device_tables){.nr_experts = p->nr_experts,
		.nr_physical = p->nr_physical,
		.per_rank = block_of_each(p),
		.rank = rank,
		.sends_own = x->config.replica_ranks == 1,
		.looked_at = p->movable};
	bytes = fixed + nr_slots * moving_bytes(t);
	host = calloc(1, bytes);
	rc = host ? 0 : fail(TERN_ERR_NOMEM, "no memory for tables of %u experts", p->nr_physical);
	rc = rc ? rc : cuda_check(cudaMalloc((void **)&t->memory, bytes), "cudaMalloc of tables");
	if (!rc && t->looked_at)
		rc = cuda_check(
			cudaMallocHost((void **)&t->pinned, TABLES_UNDER_WAY * moving_bytes(t)),
			"cudaMallocHost of tables");
	if (!rc && t->looked_at)
		rc = cuda_check(tables_prepare(), "the kernel of tables");
	if (!rc)
		fill_fixed(p, (uint32_t *)host);
	for (uint32_t slot = 0; slot < nr_slots && !rc; slot++)
		fill_moving(t, p, (uint32_t *)(host + fixed + slot * moving_bytes(t)));
	rc = rc ? rc
		: cuda_check(cudaMemcpy(t->memory, host, bytes, cudaMemcpyHostToDevice),
			  "cudaMemcpy of tables");
	t->order = (const uint32_t *)t->memory + p->nr_physical;
	t->first = t->order + p->nr_physical;
	t->moving = t->memory + fixed;
	free(host);
	return rc;
}

void tables_close(struct device_exchange *x)
{
	struct device_tables *t = &x->tables;

	for (int i = 0; i < TABLES_UNDER_WAY; i++)
		for (int slot = 0; slot < MAX_SLOTS; slot++)
			if (t->copied[i][slot])
				(void)cudaEventDestroy(t->copied[i][slot]);
	(void)cudaFree(t->memory);
	if (t->pinned)
		(void)cudaFreeHost(t->pinned);
}

struct slot_tables tables_of(const struct device_exchange *x, uint32_t slot)
{
	const struct device_tables *t = &x->tables;
	const uint32_t *moving = (const uint32_t *)(t->moving + slot * moving_bytes(t));
	struct slot_tables tables = {.placement = {.nr_experts = t->nr_experts,
					     .nr_physical = t->nr_physical,
					     .place = (const uint32_t *)t->memory},
		.logical = moving + 2 + 2 * t->nr_experts + t->nr_physical};

	if (t->per_rank) {
		tables.placement.per_rank = t->per_rank;
		tables.placement.by_per_rank = gpu_divisor_of(t->per_rank);
	}
	if (t->looked_at) {
		/* Who is ahead of others may owe them a round of older tables. */
		tables.placement.placed = x->config.elastic ? NULL : moving;
		tables.placement.serving = (const uint2 *)(moving + 2);
		tables.placement.replicas = moving + 2 + 2 * t->nr_experts;
	}
	return tables;
}

int tables_write(struct device_exchange *x, const struct placement *p)
{
	struct device_tables *t = &x->tables;
	uint32_t *host = malloc(moving_bytes(t));
	int rc = host ? 0
		      : fail(TERN_ERR_NOMEM, "no memory for tables of %u experts", p->nr_physical);

	if (!rc)
		fill_moving(t, p, host);
	for (uint32_t slot = 0; slot < x->config.nr_slots && !rc; slot++)
		rc = cuda_check(cudaMemcpy(t->moving + slot * moving_bytes(t), host,
					moving_words(t) * sizeof(*host), cudaMemcpyHostToDevice),
			"cudaMemcpy of tables");
	free(host);
	return rc;
}

/* ---- other tables ---------------------------------------------------------------------------- */

static int check_stream(void *stream)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	int rc = cuda_check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");

	if (!rc && status != cudaStreamCaptureStatusNone)
		rc = fail(TERN_ERR_STATE,
			"a stream is being captured: a graph's rounds follow the tables, and "
			"experts are placed between its launches");
	return rc;
}

/* Of the copies before, one may still be read. */
int device_exchange_place_check(struct device_exchange *x, void *const *streams)
{
	struct device_tables *t = &x->tables;
	int rc = device_check_current(x);

	if (!rc && !t->looked_at)
		rc = fail(TERN_ERR_STATE,
			"the exchange was made without placement.logical, so its kernels take "
			"experts to be where they were");
	for (uint32_t slot = 0; slot < x->config.nr_slots && !rc; slot++) {
		cudaEvent_t copied = t->copied[t->next][slot];

		rc = check_stream(streams[slot]);
		if (!rc && copied && cudaEventQuery(copied) == cudaErrorNotReady)
			rc = TERN_ERR_TIMEOUT;
	}
	return rc;
}

static int copied_event(struct device_tables *t, uint32_t slot, void *stream)
{
	cudaEvent_t *event = &t->copied[t->next][slot];
	int rc = *event ? 0
			: cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
				  "cudaEventCreate of tables");

	return rc ? rc : cuda_check(cudaEventRecord(*event, stream), "cudaEventRecord of tables");
}

int device_exchange_place(
	struct device_exchange *x, const struct placement *p, void *const *streams)
{
	struct device_tables *t = &x->tables;
	size_t bytes = moving_bytes(t);
	uint8_t *from = t->pinned + t->next * bytes;
	int rc = 0;

	fill_moving(t, p, (uint32_t *)from);
	for (uint32_t slot = 0; slot < x->config.nr_slots && !rc; slot++) {
		rc = cuda_check(tables_launch(t->moving + slot * bytes, from, (uint32_t)bytes,
					streams[slot]),
			"the kernel of tables");
		rc = rc ? rc : copied_event(t, slot, streams[slot]);
	}
	t->next = (t->next + 1) % TABLES_UNDER_WAY;
	return rc;
}
