/* SPDX-License-Identifier: Apache-2.0 */
/* Where messages to and from ranks on other nodes lie, and what kernels are told of it. */
#include "gpu/host/internode_inside.h"

#include <string.h>

#include "engine/command.h"

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Of two hops: a row crosses the network once for each node, and kernels there pass it on. Else 0.
 * The same on all ranks. It pays where some node has several. With gates low latency's rows go
 * straight, and high throughput's in two hops, be it to the rank that they are for. */
static uint32_t way_bytes_of(const tern_moe *moe, int hops)
{
	const struct topology *t = &moe->topology;
	uint32_t most = 0;
	bool high = moe->config.mode == TERN_HIGH_THROUGHPUT, gated = moe->config.gate_rows;

	for (uint32_t n = 0; n < t->nr_nodes; n++)
		most = t->size[n] > most ? t->size[n] : most;
	if (most > INTERNODE_MOST_NEIGHBOURS || (gated ? !high : hops == 1 || (!hops && most == 1)))
		return 0;
	return internode_way_bytes(most, high);
}

/* Behind all else that a dispatch message has beside its rows. */
static void size_ways(struct internode_sizes *s, const struct tern_moe_config *c)
{
	if (!s->way_bytes)
		return;
	s->ways = internode_align(s->head[INTERNODE_DISPATCH]);
	s->head[INTERNODE_DISPATCH] = s->ways + (c->max_tokens + 1ull) * s->way_bytes;
}

static void size_low_latency(
	struct internode_sizes *s, const struct tern_moe_config *c, const struct device_layout *l)
{
	s->head[INTERNODE_DISPATCH] += l->window.plan_bytes;
	size_ways(s, c);
	s->run[INTERNODE_DISPATCH] = l->window.row_bytes;
	s->run[INTERNODE_COMBINE] = l->window.result_bytes;
}

static void size_high_throughput(struct internode_sizes *s, const struct tern_moe_config *c,
	const struct device_layout *l, const struct layout *layout)
{
	s->head[INTERNODE_COUNTS_EVEN] += l->ht.counts_bytes;
	s->head[INTERNODE_COUNTS_ODD] += l->ht.counts_bytes;
	s->heads = s->head[INTERNODE_DISPATCH];
	s->numbers = s->heads + internode_align((uint64_t)c->max_tokens * c->topk * 16);
	s->head[INTERNODE_DISPATCH] = s->numbers + internode_align((uint64_t)c->max_tokens * 8);
	size_ways(s, c);
	s->run[INTERNODE_DISPATCH] =
		align_up(layout->payload_bytes + (uint64_t)layout->scales_bytes, 16);
	s->run[INTERNODE_COMBINE] = l->result.row_bytes;
}

struct internode_sizes internode_sizes_of(
	const tern_moe *moe, const struct device_layout *l, int hops)
{
	const struct tern_moe_config *c = &moe->config;
	uint64_t results = c->reduce == TERN_REDUCE_HOME ? c->topk : 1;
	struct internode_sizes s = {.way_bytes = way_bytes_of(moe, hops)};

	for (int k = 0; k < NR_INTERNODE_KINDS; k++)
		s.head[k] = INTERNODE_HEAD_BYTES;
	if (c->mode == TERN_LOW_LATENCY)
		size_low_latency(&s, c, l);
	else
		size_high_throughput(&s, c, l, &moe->layout);
	for (int k = 0; k < NR_INTERNODE_KINDS; k++) {
		s.offset[k] = s.bytes;
		s.bytes += internode_align(s.head[k]);
		s.rows[k] = s.rows_bytes;
		s.rows_bytes += internode_align(
			s.run[k] * c->max_tokens * (k == INTERNODE_COMBINE ? results : 1));
	}
	return s;
}

/* Ranks below this one that are on other nodes than `rank`. */
static uint32_t number_at(const tern_moe *moe, uint32_t rank, uint32_t of, uint32_t *nr_internode)
{
	uint32_t number = 0;

	*nr_internode = 0;
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		bool internode = moe->topology.node_of[r] != moe->topology.node_of[rank];

		number += internode && r < of;
		*nr_internode += internode;
	}
	return number;
}

/* ---- what kernels are told ------------------------------------------------------------------- */

/* The messages of two ranks for a slot. */
struct set {
	uint8_t *heads, *rows;
};

static struct set set_at(const struct device_internode *internode, uint8_t *heads, uint8_t *rows,
	uint32_t slot, uint32_t rank)
{
	const struct internode_sizes *s = &internode->sizes;
	uint32_t number = internode->number_of[rank];

	return (struct set){heads + message_at(s, internode->nr_internode, slot, number, 0),
		rows + rows_at(s, internode->nr_internode, slot, number, 0)};
}

/* Bases from which kernels find a message's parts where they would be in a window. */
static void set_parts(const struct device_internode *internode, const struct device_layout *l,
	uint8_t *parts[NR_INTERNODE_PARTS][GPU_MAX_RANKS], uint32_t rank, uint32_t source,
	struct set set)
{
	const struct internode_sizes *s = &internode->sizes;
	const struct tern_moe_config *c = &internode->moe->config;
	uint8_t *dispatch = set.heads + s->offset[INTERNODE_DISPATCH],
		*rows = set.rows + s->rows[INTERNODE_DISPATCH],
		*results = set.rows + s->rows[INTERNODE_COMBINE];
	uint32_t nr_ranks = internode->moe->nr_ranks;

	if (c->mode == TERN_LOW_LATENCY) {
		parts[INTERNODE_PLAN][rank] = dispatch + INTERNODE_HEAD_BYTES - l->window.plans -
					      source * l->window.plan_bytes;
		parts[INTERNODE_ROWS][rank] =
			rows - l->window.rows -
			(uint64_t)source * c->max_tokens * l->window.row_bytes;
		parts[INTERNODE_RESULTS][rank] = results - l->window.results;
		parts[INTERNODE_WAYS][rank] = dispatch + s->ways;
		parts[INTERNODE_LANDED][rank] = parts[INTERNODE_ROWS][rank];
		return;
	}
	for (int odd = 0; odd < 2; odd++)
		parts[INTERNODE_EVEN_COUNTS + odd][rank] =
			set.heads + s->offset[INTERNODE_COUNTS_EVEN + odd] + INTERNODE_HEAD_BYTES -
			l->ht.counts - ((uint64_t)odd * nr_ranks + source) * l->ht.counts_bytes;
	parts[INTERNODE_HEADS][rank] =
		dispatch + s->heads - l->ht.heads - (uint64_t)source * c->max_tokens * c->topk * 16;
	parts[INTERNODE_NUMBERS][rank] = dispatch + s->numbers;
	parts[INTERNODE_WAYS][rank] = dispatch + s->ways;
	parts[INTERNODE_X][rank] = rows;
	parts[INTERNODE_RESULTS][rank] = results - l->ht.results;
}

static uint32_t ids_of(const tern_region *local, const tern_remote *remote)
{
	return (uint32_t)engine_region_id(local) | (uint32_t)engine_remote_id(remote) << 16;
}

static void set_internode_rank(const struct device_internode *internode, uint32_t slot,
	uint32_t number, struct internode_rank *to)
{
	const struct internode_sizes *s = &internode->sizes;
	uint32_t rank = internode->ranks[number], nr_there,
		 here = number_at(internode->moe, rank, internode->moe->rank, &nr_there);

	to->rank = rank;
	to->local_remote = ids_of(internode->staging_region, internode->remotes[number]);
	if (internode->rows.bytes)
		to->local_remote_rows =
			ids_of(internode->rows.staging_region, internode->row_remotes[number]);
	for (enum internode_kind k = 0; k < NR_INTERNODE_KINDS; k++) {
		struct internode_message *m = &to->messages[k];

		m->local_offset = message_at(s, internode->nr_internode, slot, number, k);
		m->remote_offset = message_at(s, nr_there, slot, here, k);
		m->local_rows = rows_at(s, internode->nr_internode, slot, number, k);
		m->remote_rows = rows_at(s, nr_there, slot, here, k);
		m->head = internode->staging + m->local_offset;
	}
}

static void set_kind(const struct device_internode *internode, uint32_t slot,
	enum internode_kind kind, struct internode_table *t)
{
	uint32_t number = slot * NR_INTERNODE_KINDS + kind;
	const struct engine_counter *counter = &internode->counters.first[number];

	t->run_bytes[kind] = internode->sizes.run[kind];
	t->head_bytes[kind] = internode->sizes.head[kind];
	t->immediate[kind] =
		internode_immediate(internode->prefix, kind, internode->moe->rank, slot);
	t->counter[kind] = internode->counters.id + number;
	t->sent[kind] = (struct internode_sent){
		(const uint32_t *)&counter->done, (const uint32_t *)&counter->failed};
}

/* Ways of rows between this rank and others: straight, or by a gateway on the other's node. */
static void set_hops(const struct device_internode *internode, const struct device_layout *l,
	uint8_t *window, uint32_t slot, struct internode_table *t)
{
	const tern_moe *moe = internode->moe;
	const struct topology *nodes = &moe->topology;
	uint32_t here = nodes->node_of[moe->rank];

	t->two_hops = internode->sizes.way_bytes != 0;
	t->ways_offset = internode->sizes.ways;
	t->way_bytes = internode->sizes.way_bytes;
	t->nr_positions = (uint32_t)moe->layout.positions;
	t->nr_neighbours = t->two_hops ? nodes->size[here] : 0;
	for (uint32_t i = 0; i < t->nr_neighbours; i++)
		t->neighbours[i] = nodes->ranks[nodes->first[here] + i];
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		bool far = t->two_hops && t->is_internode[r];

		t->place_on_node[r] = nodes->index_of[r];
		t->via[r] = far ? topology_gateway(nodes, moe->rank, nodes->node_of[r]) : r;
		t->carrier[r] = far ? topology_gateway(nodes, r, here) : r;
		if (far)
			t->from[INTERNODE_ROWS][r] = window + slot * l->slot_window_bytes;
	}
}

void internode_set_table(const struct device_internode *internode, const struct device_layout *l,
	void *const *windows, uint32_t slot)
{
	const struct command kind_flags = {
		.kind = COMMAND_WRITE, .flags = COMMAND_COUNTED | COMMAND_IMMEDIATE};
	struct internode_table *t = &internode->tables[slot];
	uint32_t self = internode->moe->rank;

	for (uint32_t r = 0; r < internode->moe->nr_ranks; r++) {
		t->is_internode[r] = internode->number_of[r] + 1; /* of UINT32_MAX: 0 */
		for (int part = 0; part < NR_INTERNODE_PARTS && !t->is_internode[r]; part++) {
			t->to[part][r] = (uint8_t *)windows[r] + slot * l->slot_window_bytes;
			t->from[part][r] = (uint8_t *)windows[self] + slot * l->slot_window_bytes;
		}
		if (!t->is_internode[r])
			continue;
		set_parts(internode, l, t->to, r, self,
			set_at(internode, internode->staging, internode->rows.staging, slot, r));
		set_parts(internode, l, t->from, r, r,
			set_at(internode, internode->landing, internode->rows.landing, slot, r));
	}
	set_hops(internode, l, windows[self], slot, t);
	t->nr_internode = internode->nr_internode;
	for (uint32_t i = 0; i < internode->nr_internode; i++)
		set_internode_rank(internode, slot, i, &t->ranks[i]);
	for (enum internode_kind k = 0; k < NR_INTERNODE_KINDS; k++)
		set_kind(internode, slot, k, t);
	memcpy(&t->kind_flags, (const char *)&kind_flags + sizeof(kind_flags.turn),
		sizeof(t->kind_flags));
	t->words = internode->words +
		   (uint64_t)slot * NR_INTERNODE_KINDS * internode->moe->nr_ranks * GPU_LINE_BYTES;
	t->ring = (struct internode_command *)internode->ring.entries;
	t->ring_mask = (uint32_t)internode->ring.mask;
	t->ring_shift = internode->ring.shift;
	t->by_group = gpu_divisor_of(internode_group_experts(internode->moe->layout.max_local));
}

const struct internode_table *device_internode_tables(const struct device_internode *internode)
{
	return internode->tables;
}
