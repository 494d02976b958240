/* SPDX-License-Identifier: Apache-2.0 */
/* Staging, landing, commands' ring and arrival words of a device's exchange with ranks on other nodes; and, on the engine's proxy, what makes an arrival word of immediates. */
#include "gpu/host/far.h"
#include "gpu/host/inside.h"

#include <stdlib.h>
#include <string.h>

#include "engine/command.h"
#include "engine/engine.h"
#include "engine/ring.h"
#include "base/error.h"
#include "gpu/wire/far.h"
#include "path/partings.h"
#include "exchange/wait.h"
#include "exchange/wire.h"

/* How long parting words may take. What is sent to a rank that has died ends with an error, maybe later. */
#define PART_NS 50000000u

/* The same on all ranks. */
struct far_sizes {
	uint64_t offset[NR_FAR_KINDS]; /* of a kind's message among those of two ranks */
	uint64_t head[NR_FAR_KINDS];   /* what goes with the head */
	uint64_t first[NR_FAR_KINDS], run[NR_FAR_KINDS]; /* what is sparse: where, and each */
	uint64_t heads, scales;	       /* in a dispatch message of high throughput */
	uint64_t bytes;		       /* of all kinds */
};

/* What has come of a message. The proxy's own. */
struct coming {
	uint32_t nr_runs;
	bool head;
};

struct device_far {
	const struct device_ops *ops;
	tern_engine *engine;
	struct far_sizes sizes;
	uint8_t prefix;
	uint32_t nr_far, *ranks; /* [nr_far] */
	uint32_t *number_of;	 /* [R] of a far rank, among these; UINT32_MAX: it is none */
	uint8_t *staging;	 /* messages, and beside what is registered: counters, words, ring */
	uint8_t *landing;
	uint64_t messages_bytes, staging_bytes;
	uint8_t *words;		 /* [slot][kind][R] lines */
	struct engine_counters counters; /* [slot][kind], and one of parting words */
	struct ring ring;
	uint64_t nr_commands, nr_partings;
	tern_region *staging_region, *landing_region;
	tern_remote **remotes;	 /* [nr_far] their landings */
	struct far_table *tables;
	struct coming *coming;	 /* [slot][kind][R] */
	struct partings partings;
	uint32_t first_lost;	 /* the first rank that the engine lost, on any node, + 1; set by the proxy */
	bool counted, claimed, attached;
	tern_moe *moe;
};

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

static void size_low_latency(struct far_sizes *s, const struct tern_moe_config *c, const struct device_layout *l)
{
	s->head[FAR_DISPATCH] += l->window.plan_bytes;
	s->run[FAR_DISPATCH] = l->window.row_bytes;
	s->run[FAR_COMBINE] = l->window.result_bytes;
	(void)c;
}

static void size_high_throughput(struct far_sizes *s, const struct tern_moe_config *c, const struct device_layout *l, const struct layout *layout)
{
	s->head[FAR_COUNTS_EVEN] += l->ht.counts_bytes;
	s->head[FAR_COUNTS_ODD] += l->ht.counts_bytes;
	s->heads = s->head[FAR_DISPATCH];
	s->scales = s->heads + far_align((uint64_t)c->max_tokens * c->topk * 16);
	s->head[FAR_DISPATCH] = s->scales + far_align((uint64_t)c->max_tokens * layout->scales_bytes);
	s->run[FAR_DISPATCH] = layout->payload_bytes;
	s->run[FAR_COMBINE] = l->result.row_bytes;
}

static struct far_sizes sizes_of(const tern_moe *moe, const struct device_layout *l)
{
	const struct tern_moe_config *c = &moe->config;
	uint64_t results = c->reduce == TERN_REDUCE_HOME ? c->topk : 1;
	struct far_sizes s = {0};

	for (int k = 0; k < NR_FAR_KINDS; k++)
		s.head[k] = FAR_HEAD_BYTES;
	if (c->mode == TERN_LOW_LATENCY)
		size_low_latency(&s, c, l);
	else
		size_high_throughput(&s, c, l, &moe->layout);
	for (int k = 0; k < NR_FAR_KINDS; k++) {
		s.offset[k] = s.bytes;
		s.first[k] = far_align(s.head[k]);
		s.bytes += far_align(s.first[k] + s.run[k] * c->max_tokens * (k == FAR_COMBINE ? results : 1));
	}
	return s;
}

/* Ranks below this one that are on other nodes than `rank`. */
static uint32_t number_at(const tern_moe *moe, uint32_t rank, uint32_t of, uint32_t *nr_far)
{
	uint32_t number = 0;

	*nr_far = 0;
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		bool far = moe->nodes.node_of[r] != moe->nodes.node_of[rank];

		number += far && r < of;
		*nr_far += far;
	}
	return number;
}

static uint64_t message_at(const struct far_sizes *s, uint32_t nr_far, uint32_t slot, uint32_t number, enum far_kind kind)
{
	return ((uint64_t)slot * nr_far + number) * s->bytes + s->offset[kind];
}

/* ---- on the engine's thread ------------------------------------------------------------------------------------ */

/* Release: the engine has promised that the message is visible to this thread. Pairs with far_collect in kernels. */
static void far_word_publish(uint8_t *word, uint32_t epoch)
{
	__atomic_store_n((uint32_t *)word, epoch, __ATOMIC_RELEASE);
}

/* Release: what came of the rank was published before. Pairs with far_collect in kernels. */
static void far_gone_publish(uint8_t *word, enum far_gone how)
{
	__atomic_store_n((uint32_t *)(word + FAR_GONE_OFFSET), how, __ATOMIC_RELEASE);
}

static void publish_gone(struct device_far *far, uint32_t rank, enum far_gone how)
{
	uint32_t nr_kinds = far->moe->config.nr_slots * NR_FAR_KINDS;

	for (uint32_t i = 0; i < nr_kinds; i++)
		far_gone_publish(far->words + ((uint64_t)i * far->moe->nr_ranks + rank) * LL_LINE_BYTES, how);
}

static void on_peer_down(void *ctx, uint32_t peer, int error)
{
	struct device_far *far = ctx;

	if (error == TERN_ERR_PEER_DEAD && !far->first_lost && !partings_told(&far->partings, peer))
		__atomic_store_n(&far->first_lost, peer + 1, __ATOMIC_RELEASE);
	publish_gone(far, peer, FAR_LOST);
}

static void part_arrived(struct device_far *far, uint32_t source, uint32_t bits)
{
	partings_note(&far->partings, source, bits, driver_now(far->moe->group->driver));
	if (partings_told(&far->partings, source))
		publish_gone(far, source, parting_error(partings_word(&far->partings, source)) ? FAR_LOST : FAR_LEFT);
}

static void on_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	struct device_far *far = ctx;
	uint32_t kind = immediate >> 21 & 7, source = immediate >> 9 & 0xfff, slot = immediate >> 5 & 0xf, nr_ranks = far->moe->nr_ranks;
	const struct far_head *head;
	struct coming *coming;
	uint64_t at;

	(void)peer; /* not every network can tell */
	if (source >= nr_ranks || far->number_of[source] == UINT32_MAX)
		return;
	if (kind == FAR_PART)
		part_arrived(far, source, immediate & 0x1ff);
	if (kind >= NR_FAR_KINDS || slot >= far->moe->config.nr_slots)
		return;
	at = ((uint64_t)slot * NR_FAR_KINDS + kind) * nr_ranks + source;
	coming = &far->coming[at];
	coming->nr_runs += (immediate & FAR_IMMEDIATE_RUN) != 0;
	coming->head = coming->head || !(immediate & FAR_IMMEDIATE_RUN);
	head = (const struct far_head *)(far->landing + message_at(&far->sizes, far->nr_far, slot, far->number_of[source], (enum far_kind)kind));
	if (!coming->head || coming->nr_runs != head->nr_runs)
		return;
	*coming = (struct coming){0};
	far_word_publish(far->words + at * LL_LINE_BYTES, head->epoch);
}

/* ---- what kernels are told ------------------------------------------------------------------------------------- */

/* Bases from which kernels find a message's parts where they would be in a window. */
static void set_parts(const struct device_far *far, const struct device_layout *l, uint8_t *parts[NR_FAR_PARTS][LL_MAX_RANKS], uint32_t rank, uint32_t source,
	uint8_t *messages)
{
	const struct far_sizes *s = &far->sizes;
	const struct tern_moe_config *c = &far->moe->config;
	uint8_t *dispatch = messages + s->offset[FAR_DISPATCH];
	uint32_t nr_ranks = far->moe->nr_ranks;

	if (c->mode == TERN_LOW_LATENCY) {
		parts[FAR_PLAN][rank] = dispatch + FAR_HEAD_BYTES - l->window.plans - source * l->window.plan_bytes;
		parts[FAR_ROWS][rank] = dispatch + s->first[FAR_DISPATCH] - l->window.rows - (uint64_t)source * c->max_tokens * l->window.row_bytes;
		parts[FAR_RESULTS][rank] = messages + s->offset[FAR_COMBINE] + s->first[FAR_COMBINE] - l->window.results;
		return;
	}
	for (int odd = 0; odd < 2; odd++)
		parts[FAR_EVEN_COUNTS + odd][rank] = messages + s->offset[FAR_COUNTS_EVEN + odd] + FAR_HEAD_BYTES - l->ht.counts -
						     ((uint64_t)odd * nr_ranks + source) * l->ht.counts_bytes;
	parts[FAR_HEADS][rank] = dispatch + s->heads - l->ht.heads - (uint64_t)source * c->max_tokens * c->topk * 16;
	parts[FAR_SCALES][rank] = dispatch + s->scales - l->ht.scales;
	parts[FAR_X][rank] = dispatch + s->first[FAR_DISPATCH] - l->ht.x;
	parts[FAR_RESULTS][rank] = messages + s->offset[FAR_COMBINE] + s->first[FAR_COMBINE] - l->ht.results;
}

static void set_far_rank(const struct device_far *far, uint32_t slot, uint32_t number, struct far_rank *to)
{
	uint32_t rank = far->ranks[number], nr_there, here = number_at(far->moe, rank, far->moe->rank, &nr_there);

	to->rank = rank;
	to->local_remote = (uint32_t)engine_region_id(far->staging_region) | (uint32_t)engine_remote_id(far->remotes[number]) << 16;
	for (enum far_kind k = 0; k < NR_FAR_KINDS; k++) {
		to->messages[k].local_offset = message_at(&far->sizes, far->nr_far, slot, number, k);
		to->messages[k].remote_offset = message_at(&far->sizes, nr_there, slot, here, k);
		to->messages[k].head = far->staging + to->messages[k].local_offset;
	}
}

static void set_kind(const struct device_far *far, uint32_t slot, enum far_kind kind, struct far_table *t)
{
	uint32_t number = slot * NR_FAR_KINDS + kind;
	const struct engine_counter *counter = &far->counters.first[number];

	t->run_bytes[kind] = far->sizes.run[kind];
	t->run_offset[kind] = far->sizes.first[kind];
	t->head_bytes[kind] = far->sizes.head[kind];
	t->immediate[kind] = far_immediate(far->prefix, kind, far->moe->rank, slot);
	t->counter[kind] = far->counters.id + number;
	t->sent[kind] = (struct far_sent){(const uint32_t *)&counter->done, (const uint32_t *)&counter->failed};
}

static void set_table(const struct device_far *far, const struct device_layout *l, void *const *windows, uint32_t slot)
{
	const struct command kind_flags = {.kind = COMMAND_WRITE, .flags = COMMAND_COUNTED | COMMAND_IMMEDIATE};
	struct far_table *t = &far->tables[slot];
	uint32_t self = far->moe->rank;

	for (uint32_t r = 0; r < far->moe->nr_ranks; r++) {
		uint64_t set = message_at(&far->sizes, far->nr_far, slot, far->number_of[r], FAR_COUNTS_EVEN);

		t->is_far[r] = far->number_of[r] != UINT32_MAX;
		for (int part = 0; part < NR_FAR_PARTS && !t->is_far[r]; part++) {
			t->to[part][r] = (uint8_t *)windows[r] + slot * l->slot_window_bytes;
			t->from[part][r] = (uint8_t *)windows[self] + slot * l->slot_window_bytes;
		}
		if (!t->is_far[r])
			continue;
		set_parts(far, l, t->to, r, self, far->staging + set);
		set_parts(far, l, t->from, r, r, far->landing + set);
	}
	t->nr_far = far->nr_far;
	for (uint32_t i = 0; i < far->nr_far; i++)
		set_far_rank(far, slot, i, &t->ranks[i]);
	for (enum far_kind k = 0; k < NR_FAR_KINDS; k++)
		set_kind(far, slot, k, t);
	memcpy(&t->kind_flags, (const char *)&kind_flags + sizeof(kind_flags.turn), sizeof(t->kind_flags));
	t->words = far->words + (uint64_t)slot * NR_FAR_KINDS * far->moe->nr_ranks * LL_LINE_BYTES;
	t->ring = (struct far_command *)far->ring.entries;
	t->ring_mask = (uint32_t)far->ring.mask;
	t->ring_shift = far->ring.shift;
}

const struct far_table *device_far_tables(const struct device_far *far)
{
	return far->tables;
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = *end;

	*end = align_up(offset + bytes, 128);
	return offset;
}

static int create_pinned(struct device_far *far, uint64_t bytes, uint8_t **memory)
{
	int rc = far->ops->host_create(bytes, (void **)memory);

	if (rc)
		return fail(rc, "%llu bytes of pinned memory for %u ranks on other nodes: %s", (unsigned long long)bytes, far->nr_far, far->ops->error_text());
	memset(*memory, 0, bytes);
	return 0;
}

/* Behind the messages, in memory that the device reaches and no network. */
static int open_memory(struct device_far *far)
{
	const struct tern_moe_config *c = &far->moe->config;
	uint32_t nr_kinds = c->nr_slots * NR_FAR_KINDS;
	uint64_t counters, words, ring, end = far->messages_bytes = c->nr_slots * far->nr_far * far->sizes.bytes, entries = 1;
	int rc;

	far->nr_commands = c->nr_slots * far_most_commands(far->nr_far, c->max_tokens, c->topk, c->reduce == TERN_REDUCE_HOME);
	while (entries <= far->nr_commands)
		entries *= 2;
	counters = take(&end, (nr_kinds + 1) * sizeof(struct engine_counter));
	words = take(&end, (uint64_t)nr_kinds * far->moe->nr_ranks * LL_LINE_BYTES);
	ring = take(&end, entries * sizeof(struct command));
	far->staging_bytes = end;
	rc = create_pinned(far, end, &far->staging);
	rc = rc ? rc : create_pinned(far, far->messages_bytes, &far->landing);
	if (rc)
		return rc;
	far->counters = (struct engine_counters){.first = (struct engine_counter *)(far->staging + counters), .nr = nr_kinds + 1};
	far->words = far->staging + words;
	ring_open_over(&far->ring, (struct command *)(far->staging + ring), (uint32_t)entries);
	return 0;
}

static int open_at_engine(struct device_far *far)
{
	struct engine_claim claim = {.immediate = on_immediate, .peer_down = on_peer_down, .ctx = far};
	int rc = tern_engine_register(far->engine, far->staging, far->messages_bytes, &far->staging_region);

	rc = rc ? rc : tern_engine_register(far->engine, far->landing, far->messages_bytes, &far->landing_region);
	rc = rc ? rc : engine_counters_open(far->engine, &far->counters);
	far->counted = !rc;
	rc = rc ? rc : engine_claim(far->engine, far->prefix, &claim);
	far->claimed = !rc;
	rc = rc ? rc : engine_ring_attach(far->engine, &far->ring);
	far->attached = !rc;
	return rc;
}

static int check_homes(const tern_moe *moe)
{
	uint32_t n = moe->config.replica_ranks;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (moe->nodes.node_of[r] != moe->nodes.node_of[r / n * n])
			return fail(TERN_ERR_UNSUPPORTED, "replica ranks %u and %u are on different nodes, or their devices do not reach each other's memory: they have to", r / n * n, r);
	return 0;
}

static int open_local(struct device_far *far)
{
	tern_moe *moe = far->moe;
	uint64_t nr = (uint64_t)moe->config.nr_slots * NR_FAR_KINDS * moe->nr_ranks;
	int rc;

	far->ranks = calloc(moe->nr_ranks, sizeof(*far->ranks));
	far->number_of = calloc(moe->nr_ranks, sizeof(*far->number_of));
	far->remotes = calloc(moe->nr_ranks, sizeof(*far->remotes));
	far->tables = calloc(moe->config.nr_slots, sizeof(*far->tables));
	far->coming = calloc(nr, sizeof(*far->coming));
	if (!far->ranks || !far->number_of || !far->remotes || !far->tables || !far->coming)
		return fail(TERN_ERR_NOMEM, "no memory for %u ranks, some of them on other nodes", moe->nr_ranks);
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		far->number_of[r] = is_far(moe, r) ? far->nr_far : UINT32_MAX;
		if (is_far(moe, r))
			far->ranks[far->nr_far++] = r;
	}
	rc = partings_open(&far->partings, moe->nr_ranks);
	rc = rc ? rc : check_homes(moe);
	rc = rc ? rc : open_memory(far);
	return rc ? rc : open_at_engine(far);
}

static int exchange_descriptors(struct device_far *far)
{
	tern_moe *moe = far->moe;
	struct tern_descriptor mine, *all = calloc(moe->nr_ranks, sizeof(*all));
	int rc = all ? tern_region_descriptor(far->landing_region, &mine) : fail(TERN_ERR_NOMEM, "no memory for %u descriptors", moe->nr_ranks);

	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(moe->group, &mine, all, sizeof(mine));
	for (uint32_t i = 0; i < far->nr_far && !rc; i++)
		rc = tern_engine_import(far->engine, &all[far->ranks[i]], &far->remotes[i]);
	free(all);
	return rc;
}

int device_far_open(tern_moe *moe, const struct device_ops *ops, const struct device_layout *layout, void *const *windows, struct device_far **out)
{
	struct device_far *far = calloc(1, sizeof(*far));
	int rc = far ? 0 : fail(TERN_ERR_NOMEM, "no memory for ranks on other nodes");

	*out = far;
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	if (rc)
		return rc;
	*far = (struct device_far){.ops = ops, .engine = device_engine(moe), .sizes = sizes_of(moe, layout), .moe = moe};
	rc = engine_agree_prefix(moe->group, far->engine, &far->prefix);
	rc = rc ? rc : group_agree_status(moe->group, open_local(far), "tern_moe_create");
	if (rc)
		return rc;
	engine_bear_silence(far->engine, moe->wait_ms);
	rc = group_agree_status(moe->group, exchange_descriptors(far), "tern_moe_create");
	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++)
		set_table(far, layout, windows, slot);
	return rc;
}

/* ---- parting --------------------------------------------------------------------------------------------------- */

/* Writes that have ended, of those that kernels had put into the ring. */
static uint64_t nr_ended(const struct device_far *far)
{
	uint64_t nr = 0;

	for (uint32_t i = 0; i + 1 < far->counters.nr; i++)
		nr += engine_counter_ended(&far->counters.first[i]);
	return nr;
}

static int look_settled(void *ctx)
{
	const struct device_far *far = ctx;

	return nr_ended(far) == far->ring.head;
}

void device_far_settle(struct device_far *far)
{
	uint64_t wait_ms = (uint64_t)(far->moe->wait_ms < 1000 ? 1000 : far->moe->wait_ms);

	if (far->attached)
		engine_ring_detach(far->engine, &far->ring);
	far->attached = false;
	wait_until(far->moe, wait_ms * 1000000, look_settled, far);
}

void device_far_part(struct device_far *far, uint64_t parting)
{
	uint32_t bits[PARTING_IMMEDIATES], counter = far->counters.id + far->counters.nr - 1;

	if (!far->claimed)
		return;
	partings_bits(parting, bits);
	for (uint32_t r = 0; r < far->nr_far; r++)
		for (uint32_t i = 0; i < PARTING_IMMEDIATES; i++) {
			struct engine_write write = {.peer = far->ranks[r],
				.flags = TERN_IMMEDIATE,
				.immediate = far_immediate(far->prefix, FAR_PART, far->moe->rank, 0) | bits[i],
				.counter = counter};

			far->nr_partings += !engine_write(far->engine, &write);
		}
}

uint64_t device_far_parting(const struct device_far *far, uint32_t rank)
{
	return partings_word(&far->partings, rank);
}

static int look_parted(void *ctx)
{
	const struct device_far *far = ctx;

	return engine_counter_ended(&far->counters.first[far->counters.nr - 1]) == far->nr_partings;
}

/* ---- closing --------------------------------------------------------------------------------------------------- */

static void release_pinned(void *ctx, void *base, uint64_t bytes)
{
	(void)bytes;
	((const struct device_ops *)ctx)->host_free(base);
}

/* What the network has not finished with stays until the engine has ended. */
static void give_up(struct device_far *far, tern_region *region, uint8_t *memory, int wait_ms)
{
	if (region)
		engine_region_give_up(region, wait_ms, release_pinned, (void *)(uintptr_t)far->ops);
	else if (memory)
		far->ops->host_free(memory);
}

void device_far_close(tern_moe *moe, struct device_far *far)
{
	int wait_ms = moe->wait_ms < 1000 ? 1000 : moe->wait_ms;

	if (!far)
		return;
	if (far->attached)
		engine_ring_detach(far->engine, &far->ring);
	if (far->claimed)
		wait_until(moe, PART_NS, look_parted, far);
	if (far->claimed)
		engine_unclaim(far->engine, far->prefix);
	for (uint32_t i = 0; far->remotes && i < far->nr_far; i++)
		tern_remote_forget(far->remotes[i], wait_ms);
	if (far->counted) /* writes that have not ended yet are counted no more */
		engine_counters_close(far->engine, &far->counters);
	give_up(far, far->staging_region, far->staging, wait_ms);
	give_up(far, far->landing_region, far->landing, wait_ms);
	free(far->ranks);
	free(far->number_of);
	free(far->remotes);
	free(far->tables);
	free(far->coming);
	partings_close(&far->partings);
	free(far);
}

uint64_t device_far_bytes(const struct device_far *far)
{
	return far ? far->staging_bytes + far->messages_bytes : 0;
}

int device_far_first_lost(const struct device_far *far)
{
	return (int)__atomic_load_n(&far->first_lost, __ATOMIC_ACQUIRE) - 1;
}
