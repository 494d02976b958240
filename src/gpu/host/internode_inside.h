/* SPDX-License-Identifier: Apache-2.0 */
/* A device's exchange with ranks on other nodes, as its own files share it: internode.c opens and
 * closes it, internode_tables.c lays it out, internode_proxy.c runs on the engine's thread. */
#ifndef TERN_GPU_HOST_INTERNODE_INSIDE_H
#define TERN_GPU_HOST_INTERNODE_INSIDE_H

#include "gpu/host/internode.h"
#include "gpu/host/inside.h"
#include "gpu/host/internode_rows.h"

#include "engine/engine.h"
#include "engine/ring.h"
#include "gpu/wire/internode.h"
#include "path/leave_status.h"

/* The same on all ranks. */
struct internode_sizes {
	uint64_t offset[NR_INTERNODE_KINDS]; /* of a kind's head among those of two ranks */
	uint64_t head[NR_INTERNODE_KINDS];   /* with what goes with it */
	uint64_t rows[NR_INTERNODE_KINDS], run[NR_INTERNODE_KINDS]; /* what is sparse: where, in
								       memory of its own, and
								       each */
	uint64_t heads, numbers;    /* in a dispatch message of high throughput */
	uint64_t ways;              /* in one of two hops; else 0 */
	uint32_t way_bytes;         /* of one; 0: a row is sent to each rank */
	uint64_t bytes, rows_bytes; /* of all kinds */
};

/* What has come of a message. The proxy's own. */
struct coming {
	uint32_t nr_runs;
	uint32_t groups; /* of runs of a dispatch with gates, a bit each */
	bool head;
};

struct device_internode {
	const struct device_ops *ops;
	tern_engine *engine;
	struct internode_sizes sizes;
	uint8_t prefix;
	uint32_t nr_internode, *ranks; /* [nr_internode] */
	uint32_t *number_of; /* [R] of an internode rank, among these; UINT32_MAX: it is none */
	uint8_t *staging;    /* heads, and beside what is registered: counters, words, ring */
	uint8_t *landing;
	uint64_t messages_bytes, staging_bytes;
	struct internode_rows rows;
	uint8_t *words;                  /* [slot][kind][R] lines */
	struct engine_counters counters; /* [slot][kind], and one of leave words */
	struct ring ring;
	uint64_t nr_commands, nr_leave_writes;
	tern_region *staging_region, *landing_region;
	tern_remote **remotes, **row_remotes; /* [nr_internode] their landings */
	struct internode_table *tables;
	struct coming *coming; /* [slot][kind][R] */
	struct leave_statuses leave_statuses;
	uint32_t first_lost; /* the first rank that the engine lost, on any node, + 1; set by the
				proxy */
	bool awake, counted, claimed, attached;
	tern_moe *moe;
};

static inline uint64_t message_at(const struct internode_sizes *s, uint32_t nr_internode,
	uint32_t slot, uint32_t number, enum internode_kind kind)
{
	return ((uint64_t)slot * nr_internode + number) * s->bytes + s->offset[kind];
}

static inline uint64_t rows_at(const struct internode_sizes *s, uint32_t nr_internode,
	uint32_t slot, uint32_t number, enum internode_kind kind)
{
	return ((uint64_t)slot * nr_internode + number) * s->rows_bytes + s->rows[kind];
}

/* hops: 1 or 2; 0: as it pays. */
struct internode_sizes internode_sizes_of(
	const tern_moe *moe, const struct device_layout *l, int hops);
/* When all is open but this. */
void internode_set_table(const struct device_internode *internode, const struct device_layout *l,
	void *const *windows, uint32_t slot);

/* On the engine's proxy; ctx is the struct device_internode. */
void internode_on_peer_down(void *ctx, uint32_t peer, int error);
void internode_on_immediate(void *ctx, uint32_t peer, uint32_t immediate);

#endif
