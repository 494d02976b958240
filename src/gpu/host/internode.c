/* SPDX-License-Identifier: Apache-2.0 */
/* Staging, landing, commands' ring and arrival words of a device's exchange with ranks on other
 * nodes. */
#include "gpu/host/internode_inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/wait.h"

/* How long leave words may take. What is sent to a rank that has died ends with an error, maybe
 * later. */
#define PART_NS 50000000u

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
				      c->topk, c->reduce == TERN_REDUCE_HOME, c->gate_rows != 0);
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
	struct engine_claim claim = {.immediate = internode_on_immediate,
		.peer_down = internode_on_peer_down,
		.ctx = internode};
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

/* High throughput sends a home's results either through windows or between nodes. */
static int check_homes(const tern_moe *moe)
{
	uint32_t n = moe->config.replica_ranks;

	for (uint32_t r = 0; r < moe->nr_ranks && moe->config.mode == TERN_HIGH_THROUGHPUT; r++)
		if (moe->topology.node_of[r] != moe->topology.node_of[r / n * n])
			return fail(TERN_ERR_UNSUPPORTED,
				"replica ranks %u and %u are on different nodes, or their devices "
				"do not reach each other's memory: in high throughput they have to",
				r / n * n, r);
	return 0;
}

/* High throughput's gates are where rows go in two hops. */
static int check_gates(const struct device_internode *internode)
{
	const struct tern_moe_config *c = &internode->moe->config;

	if (!c->gate_rows || c->mode == TERN_LOW_LATENCY || internode->sizes.way_bytes)
		return 0;
	return fail(TERN_ERR_UNSUPPORTED,
		"gate_rows is %u, and a node has more than %u ranks: in high throughput gates take "
		"that many between nodes",
		c->gate_rows, INTERNODE_MOST_NEIGHBOURS);
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
	rc = rc ? rc : check_gates(internode);
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
	int hops = 0,
	    rc = internode ? 0 : fail(TERN_ERR_NOMEM, "no memory for ranks on other nodes");

	rc = rc ? rc : environment_number("TERN_FORCE_HOPS", 1, 2, &hops);

	*out = internode;
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	if (rc)
		return rc;
	*internode = (struct device_internode){.ops = ops,
		.engine = device_engine(moe),
		.sizes = internode_sizes_of(moe, layout, hops),
		.awake = awake,
		.moe = moe};
	rc = engine_agree_prefix(moe->group, internode->engine, &internode->prefix);
	rc = rc ? rc : group_agree_status(moe->group, open_local(internode), "tern_moe_create");
	if (rc)
		return rc;
	engine_bear_silence(internode->engine, moe->wait_ms);
	rc = group_agree_status(moe->group, exchange_descriptors(internode), "tern_moe_create");
	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++)
		internode_set_table(internode, layout, windows, slot);
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
