/* SPDX-License-Identifier: Apache-2.0 */
/* Staging, landing, commands' ring and arrival words of a device's exchange with ranks on other
 * nodes; and, on the engine's proxy, what makes an arrival word of immediates. */
#include "gpu/host/internode.h"
#include "gpu/host/inside.h"
#include "gpu/host/internode_rows.h"

#include <stdlib.h>
#include <string.h>

#include "engine/command.h"
#include "engine/engine.h"
#include "engine/ring.h"
#include "base/error.h"
#include "gpu/wire/internode.h"
#include "path/leave_status.h"
#include "base/wait.h"
#include "exchange/wire.h"

/* How long leave words may take. What is sent to a rank that has died ends with an error, maybe
 * later. */
#define PART_NS 50000000u

/* The same on all ranks. */
struct internode_sizes {
	uint64_t offset[NR_INTERNODE_KINDS]; /* of a kind's head among those of two ranks */
	uint64_t head[NR_INTERNODE_KINDS];   /* with what goes with it */
	uint64_t rows[NR_INTERNODE_KINDS], run[NR_INTERNODE_KINDS]; /* what is sparse: where, in
								       memory of its own, and
								       each */
	uint64_t heads, scales;     /* in a dispatch message of high throughput */
	uint64_t bytes, rows_bytes; /* of all kinds */
};

/* What has come of a message. The proxy's own. */
struct coming {
	uint32_t nr_runs;
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

/* ---- sizes ----------------------------------------------------------------------------------- */

static void size_low_latency(
	struct internode_sizes *s, const struct tern_moe_config *c, const struct device_layout *l)
{
	s->head[INTERNODE_DISPATCH] += l->window.plan_bytes;
	s->run[INTERNODE_DISPATCH] = l->window.row_bytes;
	s->run[INTERNODE_COMBINE] = l->window.result_bytes;
	(void)c;
}

static void size_high_throughput(struct internode_sizes *s, const struct tern_moe_config *c,
	const struct device_layout *l, const struct layout *layout)
{
	s->head[INTERNODE_COUNTS_EVEN] += l->ht.counts_bytes;
	s->head[INTERNODE_COUNTS_ODD] += l->ht.counts_bytes;
	s->heads = s->head[INTERNODE_DISPATCH];
	s->scales = s->heads + internode_align((uint64_t)c->max_tokens * c->topk * 16);
	s->head[INTERNODE_DISPATCH] =
		s->scales + internode_align((uint64_t)c->max_tokens * layout->scales_bytes);
	s->run[INTERNODE_DISPATCH] = layout->payload_bytes;
	s->run[INTERNODE_COMBINE] = l->result.row_bytes;
}

static struct internode_sizes sizes_of(const tern_moe *moe, const struct device_layout *l)
{
	const struct tern_moe_config *c = &moe->config;
	uint64_t results = c->reduce == TERN_REDUCE_HOME ? c->topk : 1;
	struct internode_sizes s = {0};

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

static uint64_t message_at(const struct internode_sizes *s, uint32_t nr_internode, uint32_t slot,
	uint32_t number, enum internode_kind kind)
{
	return ((uint64_t)slot * nr_internode + number) * s->bytes + s->offset[kind];
}

static uint64_t rows_at(const struct internode_sizes *s, uint32_t nr_internode, uint32_t slot,
	uint32_t number, enum internode_kind kind)
{
	return ((uint64_t)slot * nr_internode + number) * s->rows_bytes + s->rows[kind];
}

/* ---- on the engine's thread ------------------------------------------------------------------ */

/* Release: the engine has promised that the message is visible to this thread, and
 * internode_rows_arrived that its rows are to the device. Pairs with internode_collect in kernels.
 */
static void internode_word_publish(uint8_t *word, uint32_t epoch)
{
	__atomic_store_n((uint32_t *)word, epoch, __ATOMIC_RELEASE);
}

/* Release: what came of the rank was published before. Pairs with internode_collect in kernels. */
static void internode_gone_publish(uint8_t *word, enum internode_gone how)
{
	__atomic_store_n((uint32_t *)(word + INTERNODE_GONE_OFFSET), how, __ATOMIC_RELEASE);
}

static void publish_gone(struct device_internode *internode, uint32_t rank, enum internode_gone how)
{
	uint32_t nr_kinds = internode->moe->config.nr_slots * NR_INTERNODE_KINDS;

	for (uint32_t i = 0; i < nr_kinds; i++)
		internode_gone_publish(
			internode->words +
				((uint64_t)i * internode->moe->nr_ranks + rank) * GPU_LINE_BYTES,
			how);
}

static void on_peer_down(void *ctx, uint32_t peer, int error)
{
	struct device_internode *internode = ctx;

	if (error == TERN_ERR_PEER_DEAD && !internode->first_lost &&
		!leave_statuses_told(&internode->leave_statuses, peer))
		__atomic_store_n(&internode->first_lost, peer + 1, __ATOMIC_RELEASE);
	publish_gone(internode, peer, INTERNODE_LOST);
}

static void part_arrived(struct device_internode *internode, uint32_t source, uint32_t bits)
{
	leave_statuses_note(&internode->leave_statuses, source, bits,
		scheduler_now(internode->moe->group->scheduler));
	if (leave_statuses_told(&internode->leave_statuses, source))
		publish_gone(internode, source,
			leave_status_error(leave_statuses_word(&internode->leave_statuses, source))
				? INTERNODE_LOST
				: INTERNODE_LEFT);
}

static void on_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	struct device_internode *internode = ctx;
	uint32_t kind = immediate >> 21 & 7, source = immediate >> 9 & 0xfff,
		 slot = immediate >> 5 & 0xf, nr_ranks = internode->moe->nr_ranks;
	const struct internode_head *head;
	struct coming *coming;
	uint64_t at;

	(void)peer; /* not every network can tell */
	if (source >= nr_ranks || internode->number_of[source] == UINT32_MAX)
		return;
	if (kind == INTERNODE_PART)
		part_arrived(internode, source, immediate & 0x1ff);
	if (kind >= NR_INTERNODE_KINDS || slot >= internode->moe->config.nr_slots)
		return;
	at = ((uint64_t)slot * NR_INTERNODE_KINDS + kind) * nr_ranks + source;
	coming = &internode->coming[at];
	coming->nr_runs += (immediate & INTERNODE_IMMEDIATE_RUN) != 0;
	coming->head = coming->head || !(immediate & INTERNODE_IMMEDIATE_RUN);
	head = (const struct internode_head *)(internode->landing +
					       message_at(&internode->sizes,
						       internode->nr_internode, slot,
						       internode->number_of[source],
						       (enum internode_kind)kind));
	if (!coming->head || coming->nr_runs != head->nr_runs)
		return;
	*coming = (struct coming){0};
	if (head->nr_runs && !internode_rows_arrived(&internode->rows))
		return; /* who waits for the word says so when its time is over */
	internode_word_publish(internode->words + at * GPU_LINE_BYTES, head->epoch);
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
		return;
	}
	for (int odd = 0; odd < 2; odd++)
		parts[INTERNODE_EVEN_COUNTS + odd][rank] =
			set.heads + s->offset[INTERNODE_COUNTS_EVEN + odd] + INTERNODE_HEAD_BYTES -
			l->ht.counts - ((uint64_t)odd * nr_ranks + source) * l->ht.counts_bytes;
	parts[INTERNODE_HEADS][rank] =
		dispatch + s->heads - l->ht.heads - (uint64_t)source * c->max_tokens * c->topk * 16;
	parts[INTERNODE_SCALES][rank] = dispatch + s->scales - l->ht.scales;
	parts[INTERNODE_X][rank] = rows - l->ht.x;
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

static void set_table(const struct device_internode *internode, const struct device_layout *l,
	void *const *windows, uint32_t slot)
{
	const struct command kind_flags = {
		.kind = COMMAND_WRITE, .flags = COMMAND_COUNTED | COMMAND_IMMEDIATE};
	struct internode_table *t = &internode->tables[slot];
	uint32_t self = internode->moe->rank;

	for (uint32_t r = 0; r < internode->moe->nr_ranks; r++) {
		t->is_internode[r] = internode->number_of[r] != UINT32_MAX;
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
}

const struct internode_table *device_internode_tables(const struct device_internode *internode)
{
	return internode->tables;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = *end;

	*end = align_up(offset + bytes, 128);
	return offset;
}

static int create_pinned(struct device_internode *internode, uint64_t bytes, uint8_t **memory)
{
	int rc = internode->ops->host_create(bytes, (void **)memory);

	if (rc)
		return fail(rc, "%llu bytes of pinned memory for %u ranks on other nodes: %s",
			(unsigned long long)bytes, internode->nr_internode,
			internode->ops->error_text());
	memset(*memory, 0, bytes);
	return 0;
}

/* Behind the messages, in memory that the device reaches and no network. */
static int open_memory(struct device_internode *internode)
{
	const struct tern_moe_config *c = &internode->moe->config;
	uint32_t nr_kinds = c->nr_slots * NR_INTERNODE_KINDS;
	uint64_t counters, words, ring,
		end = internode->messages_bytes =
			c->nr_slots * internode->nr_internode * internode->sizes.bytes,
		entries = 1;
	int rc;

	internode->nr_commands =
		c->nr_slots * internode_most_commands(internode->nr_internode, c->max_tokens,
				      c->topk, c->reduce == TERN_REDUCE_HOME);
	while (entries <= internode->nr_commands)
		entries *= 2;
	counters = take(&end, (nr_kinds + 1) * sizeof(struct engine_counter));
	words = take(&end, (uint64_t)nr_kinds * internode->moe->nr_ranks * GPU_LINE_BYTES);
	ring = take(&end, entries * sizeof(struct command));
	internode->staging_bytes = end;
	rc = create_pinned(internode, end, &internode->staging);
	rc = rc ? rc : create_pinned(internode, internode->messages_bytes, &internode->landing);
	if (rc)
		return rc;
	internode->counters = (struct engine_counters){
		.first = (struct engine_counter *)(internode->staging + counters),
		.nr = nr_kinds + 1};
	internode->words = internode->staging + words;
	ring_open_over(
		&internode->ring, (struct command *)(internode->staging + ring), (uint32_t)entries);
	return 0;
}

static int open_at_engine(struct device_internode *internode)
{
	struct engine_claim claim = {
		.immediate = on_immediate, .peer_down = on_peer_down, .ctx = internode};
	int rc = tern_engine_register(internode->engine, internode->staging,
		internode->messages_bytes, &internode->staging_region);

	rc = rc ? rc
		: tern_engine_register(internode->engine, internode->landing,
			  internode->messages_bytes, &internode->landing_region);
	rc = rc ? rc
		: internode_rows_open(&internode->rows, internode->ops, internode->engine,
			  (uint64_t)internode->moe->config.nr_slots * internode->nr_internode *
				  internode->sizes.rows_bytes);
	rc = rc ? rc : engine_counters_open(internode->engine, &internode->counters);
	internode->counted = !rc;
	rc = rc ? rc : engine_claim(internode->engine, internode->prefix, &claim);
	internode->claimed = !rc;
	rc = rc ? rc : engine_ring_attach(internode->engine, &internode->ring, internode->awake);
	internode->attached = !rc;
	return rc;
}

static int check_homes(const tern_moe *moe)
{
	uint32_t n = moe->config.replica_ranks;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (moe->topology.node_of[r] != moe->topology.node_of[r / n * n])
			return fail(TERN_ERR_UNSUPPORTED,
				"replica ranks %u and %u are on different nodes, or their devices "
				"do not reach each other's memory: they have to",
				r / n * n, r);
	return 0;
}

static int open_local(struct device_internode *internode)
{
	tern_moe *moe = internode->moe;
	uint64_t nr = (uint64_t)moe->config.nr_slots * NR_INTERNODE_KINDS * moe->nr_ranks;
	int rc;

	internode->ranks = calloc(moe->nr_ranks, sizeof(*internode->ranks));
	internode->number_of = calloc(moe->nr_ranks, sizeof(*internode->number_of));
	internode->remotes = calloc(moe->nr_ranks, sizeof(*internode->remotes));
	internode->row_remotes = calloc(moe->nr_ranks, sizeof(*internode->row_remotes));
	internode->tables = calloc(moe->config.nr_slots, sizeof(*internode->tables));
	internode->coming = calloc(nr, sizeof(*internode->coming));
	if (!internode->ranks || !internode->number_of || !internode->remotes ||
		!internode->row_remotes || !internode->tables || !internode->coming)
		return fail(TERN_ERR_NOMEM, "no memory for %u ranks, some of them on other nodes",
			moe->nr_ranks);
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		internode->number_of[r] =
			is_internode(moe, r) ? internode->nr_internode : UINT32_MAX;
		if (is_internode(moe, r))
			internode->ranks[internode->nr_internode++] = r;
	}
	rc = leave_statuses_open(&internode->leave_statuses, moe->nr_ranks);
	rc = rc ? rc : check_homes(moe);
	rc = rc ? rc : open_memory(internode);
	return rc ? rc : open_at_engine(internode);
}

struct landings {
	struct tern_descriptor heads, rows;
};

/* No rows: there are none anywhere. */
static int exchange_descriptors(struct device_internode *internode)
{
	tern_moe *moe = internode->moe;
	bool rows = internode->rows.bytes > 0;
	struct landings mine = {.heads = {0}}, *all = calloc(moe->nr_ranks, sizeof(*all));
	int rc = all ? tern_region_descriptor(internode->landing_region, &mine.heads)
		     : fail(TERN_ERR_NOMEM, "no memory for %u descriptors", moe->nr_ranks);

	if (!rc && rows)
		rc = tern_region_descriptor(internode->rows.landing_region, &mine.rows);
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(moe->group, &mine, all, sizeof(mine));
	for (uint32_t i = 0; i < internode->nr_internode && !rc; i++) {
		const struct landings *theirs = &all[internode->ranks[i]];

		rc = tern_engine_import(internode->engine, &theirs->heads, &internode->remotes[i]);
		if (!rc && rows)
			rc = tern_engine_import(
				internode->engine, &theirs->rows, &internode->row_remotes[i]);
	}
	free(all);
	return rc;
}

int device_internode_open(tern_moe *moe, const struct device_ops *ops,
	const struct device_layout *layout, void *const *windows, bool awake,
	struct device_internode **out)
{
	struct device_internode *internode = calloc(1, sizeof(*internode));
	int rc = internode ? 0 : fail(TERN_ERR_NOMEM, "no memory for ranks on other nodes");

	*out = internode;
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	if (rc)
		return rc;
	*internode = (struct device_internode){.ops = ops,
		.engine = device_engine(moe),
		.sizes = sizes_of(moe, layout),
		.awake = awake,
		.moe = moe};
	rc = engine_agree_prefix(moe->group, internode->engine, &internode->prefix);
	rc = rc ? rc : group_agree_status(moe->group, open_local(internode), "tern_moe_create");
	if (rc)
		return rc;
	engine_bear_silence(internode->engine, moe->wait_ms);
	rc = group_agree_status(moe->group, exchange_descriptors(internode), "tern_moe_create");
	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++)
		set_table(internode, layout, windows, slot);
	return rc;
}

/* ---- leave_status ---------------------------------------------------------------------------- */

/* Writes that have ended, of those that kernels had put into the ring. */
static uint64_t nr_ended(const struct device_internode *internode)
{
	uint64_t nr = 0;

	for (uint32_t i = 0; i + 1 < internode->counters.nr; i++)
		nr += engine_counter_ended(&internode->counters.first[i]);
	return nr;
}

static int look_settled(void *ctx)
{
	const struct device_internode *internode = ctx;

	return nr_ended(internode) == internode->ring.head;
}

void device_internode_settle(struct device_internode *internode)
{
	uint64_t wait_ms =
		(uint64_t)(internode->moe->wait_ms < 1000 ? 1000 : internode->moe->wait_ms);

	if (internode->attached)
		engine_ring_detach(internode->engine, &internode->ring);
	internode->attached = false;
	wait_until(&internode->moe->wait_policy, wait_ms * 1000000, look_settled, internode);
}

void device_internode_leave(struct device_internode *internode, uint64_t leave_status)
{
	uint32_t bits[LEAVE_IMMEDIATES],
		counter = internode->counters.id + internode->counters.nr - 1;

	if (!internode->claimed)
		return;
	leave_statuses_bits(leave_status, bits);
	for (uint32_t r = 0; r < internode->nr_internode; r++)
		for (uint32_t i = 0; i < LEAVE_IMMEDIATES; i++) {
			struct engine_write write = {.peer = internode->ranks[r],
				.flags = TERN_IMMEDIATE,
				.immediate = internode_immediate(internode->prefix, INTERNODE_PART,
						     internode->moe->rank, 0) |
					     bits[i],
				.counter = counter};

			internode->nr_leave_writes += !engine_write(internode->engine, &write);
		}
}

uint64_t device_internode_leave_status(const struct device_internode *internode, uint32_t rank)
{
	return leave_statuses_word(&internode->leave_statuses, rank);
}

static int look_parted(void *ctx)
{
	const struct device_internode *internode = ctx;

	return engine_counter_ended(&internode->counters.first[internode->counters.nr - 1]) ==
	       internode->nr_leave_writes;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void release_pinned(void *ctx, void *base, uint64_t bytes)
{
	(void)bytes;
	((const struct device_ops *)ctx)->host_free(base);
}

/* What the network has not finished with stays until the engine has ended. */
static void give_up(
	struct device_internode *internode, tern_region *region, uint8_t *memory, int wait_ms)
{
	if (region)
		engine_region_give_up(
			region, wait_ms, release_pinned, (void *)(uintptr_t)internode->ops);
	else if (memory)
		internode->ops->host_free(memory);
}

void device_internode_close(tern_moe *moe, struct device_internode *internode)
{
	int wait_ms = moe->wait_ms < 1000 ? 1000 : moe->wait_ms;

	if (!internode)
		return;
	if (internode->attached)
		engine_ring_detach(internode->engine, &internode->ring);
	if (internode->claimed)
		wait_until(&moe->wait_policy, PART_NS, look_parted, internode);
	if (internode->claimed)
		engine_unclaim(internode->engine, internode->prefix);
	for (uint32_t i = 0; internode->remotes && i < internode->nr_internode; i++)
		tern_remote_forget(internode->remotes[i], wait_ms);
	for (uint32_t i = 0; internode->row_remotes && i < internode->nr_internode; i++)
		tern_remote_forget(internode->row_remotes[i], wait_ms);
	if (internode->counted) /* writes that have not ended yet are counted no more */
		engine_counters_close(internode->engine, &internode->counters);
	give_up(internode, internode->staging_region, internode->staging, wait_ms);
	give_up(internode, internode->landing_region, internode->landing, wait_ms);
	internode_rows_close(&internode->rows, wait_ms);
	free(internode->ranks);
	free(internode->number_of);
	free(internode->remotes);
	free(internode->row_remotes);
	free(internode->tables);
	free(internode->coming);
	leave_statuses_close(&internode->leave_statuses);
	free(internode);
}

uint64_t device_internode_bytes(const struct device_internode *internode, bool on_device)
{
	const struct internode_rows *rows = internode ? &internode->rows : NULL;

	if (!internode)
		return 0;
	return (on_device ? 0 : internode->staging_bytes + internode->messages_bytes) +
	       (rows->on_device == on_device ? 2 * rows->bytes : 0);
}

const char *device_internode_describe(const struct device_internode *internode)
{
	return internode->rows.why;
}

int device_internode_first_lost(const struct device_internode *internode)
{
	return (int)__atomic_load_n(&internode->first_lost, __ATOMIC_ACQUIRE) - 1;
}
