/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to a rank that is not mapped is staged and leaves in writes with immediates, which
 * the rank's engine turns into the arrival words that a mapped rank would have stored. So waits,
 * receive halves and layouts know nothing of the path.
 *
 * Immediate:  prefix of the exchange (8 bits) | kind (3) | source (12) | kind's own (9)
 *   words and pieces   slot (4) | released (1) | epoch (4 low bits)
 *   of an elastic exchange the source has 8 bits and the epoch as well
 *   chunk, credit      number of the chunk in its channel
 *   leave_status            which (2) | 6 bits of the error, or of the rank that caused it: three immediates in any order
 */
#include "path/path_engine.h"

#include <stdlib.h>

#include "base/private_memory.h"
#include "base/scheduler.h"
#include "engine/engine.h"
#include "base/error.h"
#include "path/elastic_path.h"
#include "path/internode_send.h"
#include "path/inside.h"
#include "path/relay.h"
#include "path/results.h"
#include "path/view.h"
#include "group/join.h"
#include "group/window.h"

#define MOST_RANKS 4096
/* How long a leave word may take. What was sent to a rank that has died, or is cut off, ends with
 * an error, maybe later than that. */
#define PART_NS 50000000u

static struct sent *pieces_of(const struct engine_path *path, uint32_t slot, enum word_kind kind)
{
	return &path->pieces.each[slot * NR_WORD_KINDS + kind];
}

/* ---- on the engine's thread ------------------------------------------------------------------ */

static uint32_t epoch_of(const tern_moe *moe, uint32_t slot, enum word_kind kind, uint32_t source)
{
	return word_epoch(arrival_observe(
		(const struct arrival *)own(moe, layout_word(&moe->layout, slot, kind, source))));
}

static uint32_t later(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) > 0 ? a : b;
}

/* An immediate has room for the low bits of an epoch alone. The whole is the one with these bits
 * that is nearest to an epoch of the source's that is known here: that of its last word of the
 * kind, or, in high throughput, of its last counts or combine: any number of rounds may have been
 * abandoned after their counts, or made with a plan, which needs none. What
 * comes is two ahead of those at most, and one behind: networks may deliver counts before the
 * counts of an abandoned round or the results of a full one that were sent earlier. Four bits tell
 * seven ahead from eight behind, and tests/models/staging.pml shows that three would do. */
static uint32_t epoch_near(
	const tern_moe *moe, uint32_t slot, enum word_kind kind, uint32_t source, uint32_t low_bits)
{
	uint32_t reached = epoch_of(moe, slot, kind, source), ahead,
		 epoch_bits = moe->engine->epoch_bits;

	if (moe->config.mode == TERN_HIGH_THROUGHPUT) {
		uint32_t even = epoch_of(moe, slot, WORD_COUNTS_EVEN, source),
			 odd = epoch_of(moe, slot, WORD_COUNTS_ODD, source);

		reached = later(later(even, odd), epoch_of(moe, slot, WORD_COMBINE, source));
	}
	ahead = (low_bits - reached) & ((1u << epoch_bits) - 1);
	return reached + ahead - (ahead >= 1u << (epoch_bits - 1) ? 1u << epoch_bits : 0);
}

static const enum word_kind announces[] = {[IMMEDIATE_DISPATCH] = WORD_DISPATCH,
	[IMMEDIATE_COMBINE] = WORD_COMBINE,
	[IMMEDIATE_COUNTS_EVEN] = WORD_COUNTS_EVEN,
	[IMMEDIATE_COUNTS_ODD] = WORD_COUNTS_ODD};

/* A word of a view that is over may be reported late, behind one of this view. */
static bool is_old(
	const tern_moe *moe, uint32_t slot, enum word_kind kind, uint32_t source, uint32_t epoch)
{
	return moe->engine->elastic && (int32_t)(epoch - epoch_of(moe, slot, kind, source)) <= 0;
}

static void word_arrived(tern_moe *moe, enum immediate_kind kind, uint32_t source, uint32_t bits)
{
	uint32_t slot = bits >> (moe->engine->epoch_bits + 1), count = WORD_UNCOUNTED;
	uint32_t epoch = epoch_near(moe, slot, announces[kind], source, bits);
	bool low_latency = moe->config.mode == TERN_LOW_LATENCY;

	if (is_old(moe, slot, announces[kind], source, epoch))
		return;
	if (kind == IMMEDIATE_DISPATCH && !low_latency) {
		path_violation(moe, source, "rows that did not come through its gateway");
		return;
	}
	if (kind == IMMEDIATE_DISPATCH)
		count = ((const struct region_head *)own(
				 moe, layout_region(&moe->layout, slot, source)))
				->nr_rows;
	else if (bits & 1u << moe->engine->epoch_bits)
		count = WORD_RELEASED;
	if (kind == IMMEDIATE_COMBINE && !low_latency && count != WORD_RELEASED)
		results_announced(moe, slot, source, epoch);
	else
		path_arrived(
			moe, moe->rank, slot, announces[kind], source, word_make(epoch, count));
}

static void piece_arrived(tern_moe *moe, uint32_t source, uint32_t bits)
{
	uint32_t slot = bits >> (moe->engine->epoch_bits + 1);
	uint32_t epoch = epoch_near(moe, slot, WORD_COMBINE, source, bits);

	if (!is_old(moe, slot, WORD_COMBINE, source, epoch))
		results_piece(moe, slot, source, epoch);
}

static void on_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	tern_moe *moe = ctx;
	uint32_t own = own_bits(moe->engine), kind = immediate >> 21 & 7,
		 source = (immediate & ((1u << 21) - 1)) >> own,
		 bits = immediate & ((1u << own) - 1);

	(void)peer; /* not every network can tell */
	if (source >= moe->nr_ranks || path_is_mapped(moe, source) || view_ignores(moe, source))
		return;
	if (kind == IMMEDIATE_PART)
		leave_statuses_note(&moe->engine->leave_statuses, source, bits,
			scheduler_now(moe->group->scheduler));
	else if (kind == IMMEDIATE_CHUNK)
		relay_chunk(moe, source, bits);
	else if (kind == IMMEDIATE_CREDIT)
		channels_credit(moe, source, bits);
	else if (bits >> (own - SLOT_BITS) >= moe->layout.nr_slots)
		path_violation(moe, source, "an immediate of no slot");
	else if (kind == IMMEDIATE_PIECE)
		piece_arrived(moe, source, bits);
	else
		word_arrived(moe, (enum immediate_kind)kind, source, bits);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t offset = *end;

	*end = align_up(offset + bytes, CACHE_LINE);
	return offset;
}

/* In low-latency mode a region for each rank that is not mapped, and the results for each home; in
 * high-throughput mode nothing that depends on the number of tokens. */
static uint64_t plan_staging(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	const struct layout *l = &moe->layout;
	uint64_t end = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		path->number_of[r] = path_is_mapped(moe, r) ? 0 : path->nr_internode++;
	if (moe->config.mode == TERN_LOW_LATENCY)
		path->regions = take(&end,
			l->nr_slots * path->nr_internode * align_up(l->region_bytes, CACHE_LINE));
	else
		path->counts = take(&end, l->nr_slots * 2 * l->counts_bytes);
	if (moe->config.mode == TERN_HIGH_THROUGHPUT) {
		path->notes = take(
			&end, (uint64_t)l->nr_slots * l->nr_ranks * sizeof(struct results_note));
		path->channels_at = take(&end, channels_bytes(moe));
	}
	path->results_at = take(&end, results_bytes(moe));
	return align_up(end, 4096);
}

static int open_memory(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	int rc;

	path->staging_bytes = plan_staging(moe);
	if (path->nr_internode)
		path->staging = private_map(path->staging_bytes,
			engine_pins(path->engine) ? PRIVATE_DENSE : PRIVATE_SPARSE);
	if (!path->staging && path->nr_internode)
		return fail(TERN_ERR_NOMEM,
			"no address space for %llu bytes of staging for %u ranks",
			(unsigned long long)path->staging_bytes, path->nr_internode);
	rc = moe->config.elastic ? elastic_path_open(moe)
				 : tern_engine_register(path->engine, own(moe, 0),
					   moe->layout.window_bytes, &path->window_region);
	if (rc || !path->nr_internode)
		return rc;
	return tern_engine_register(
		path->engine, path->staging, path->staging_bytes, &path->staging_region);
}

static int open_parts(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	int rc = open_memory(moe);

	rc = rc ? rc : sent_open(path->engine, &path->pieces, moe->config.nr_slots * NR_WORD_KINDS);
	rc = rc ? rc : sent_open(path->engine, &path->credits, 1);
	rc = rc ? rc : results_open(moe);
	if (rc || moe->config.mode == TERN_LOW_LATENCY)
		return rc;
	rc = channels_open(moe);
	return rc ? rc : relay_open(moe);
}

static int open_local(tern_moe *moe, uint8_t prefix)
{
	struct engine_path *path = calloc(1, sizeof(*path));
	struct engine_claim claim = {.immediate = on_immediate, .more = relay_more, .ctx = moe};
	int rc;

	if (!path)
		return fail(TERN_ERR_NOMEM, "no memory for an engine path");
	moe->engine = path;
	path->engine = moe->group->engine;
	path->prefix = prefix;
	path->epoch_bits = moe->config.elastic ? ELASTIC_EPOCH_BITS : EPOCH_BITS;
	path->windows = calloc(moe->nr_ranks, sizeof(*path->windows));
	path->number_of = calloc(moe->nr_ranks, sizeof(*path->number_of));
	rc = leave_statuses_open(&path->leave_statuses, moe->nr_ranks);
	if (rc || !path->windows || !path->number_of)
		return fail(
			TERN_ERR_NOMEM, "no memory for an engine path to %u ranks", moe->nr_ranks);
	if (moe->nr_ranks > MOST_RANKS)
		return fail(TERN_ERR_UNSUPPORTED,
			"%u ranks; an exchange over an engine has at most %u", moe->nr_ranks,
			MOST_RANKS);
	rc = open_parts(moe);
	rc = rc ? rc : engine_claim(path->engine, path->prefix, &claim);
	path->claimed = !rc;
	return rc;
}

static int exchange_descriptors(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	struct tern_descriptor mine, *all = calloc(moe->nr_ranks, sizeof(*all));
	int rc = all ? tern_region_descriptor(path->window_region, &mine)
		     : fail(TERN_ERR_NOMEM, "no memory for %u descriptors", moe->nr_ranks);

	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(moe->group, &mine, all, sizeof(mine));
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!path_is_mapped(moe, r))
			rc = tern_engine_import(path->engine, &all[r], &path->windows[r]);
	free(all);
	return rc;
}

int engine_path_open(tern_moe *moe)
{
	bool joins = moe->group->newcomer;
	uint8_t prefix = joins ? newcomer_prefix(moe->group) : 0;
	int rc = joins ? 0 : engine_agree_prefix(moe->group, moe->group->engine, &prefix);

	rc = rc ? rc : group_agree_status(moe->group, open_local(moe, prefix), "tern_moe_create");
	/* A rank that is stopped and goes on within the wait is not dead. */
	engine_bear_silence(moe->group->engine, moe->wait_ms);
	if (rc)
		return rc;
	rc = moe->config.elastic ? elastic_path_connect(moe) : exchange_descriptors(moe);
	return group_agree_status(moe->group, rc, "tern_moe_create");
}

/* What was sent has to be there before the windows go; a peer that died ends its writes too. */
static uint64_t farewell_ns(const tern_moe *moe)
{
	return (uint64_t)(moe->wait_ms < 1000 ? 1000 : moe->wait_ms) * 1000000;
}

static void close_parts(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	uint64_t deadline_ns = scheduler_now(moe->group->scheduler) + farewell_ns(moe);

	if (path->claimed)
		engine_unclaim(path->engine, path->prefix);
	relay_close(moe, deadline_ns);
	channels_close(moe, deadline_ns);
	results_close(moe, deadline_ns);
	sent_close(moe, &path->pieces, deadline_ns);
	sent_close(moe, &path->credits, deadline_ns);
}

static void release_staging(void *ctx, void *base, uint64_t bytes)
{
	(void)ctx;
	private_unmap(base, bytes);
}

static void release_window(void *ctx, void *base, uint64_t bytes)
{
	(void)base;
	(void)bytes;
	window_drop(ctx);
}

/* What the network has not finished with stays until the engine has ended. */
static void give_up_memory(tern_moe *moe)
{
	struct engine_path *path = moe->engine;

	if (path->staging_region)
		engine_region_give_up(path->staging_region, moe->wait_ms, release_staging, NULL);
	else
		private_unmap(path->staging, path->staging_bytes);
	if (!path->window_region)
		return;
	window_keep(moe->windows[moe->rank]);
	engine_region_give_up(
		path->window_region, moe->wait_ms, release_window, moe->windows[moe->rank]);
}

void engine_path_close(tern_moe *moe)
{
	struct engine_path *path = moe->engine;

	close_parts(moe);
	elastic_path_close(moe);
	for (uint32_t r = 0; path->windows && r < moe->nr_ranks; r++)
		if (path->windows[r])
			tern_remote_forget(path->windows[r], moe->wait_ms);
	give_up_memory(moe);
	free(path->windows);
	leave_statuses_close(&path->leave_statuses);
	free(path->number_of);
	free(path);
	moe->engine = NULL;
}

uint64_t engine_path_bytes(const tern_moe *moe)
{
	return moe->engine->nr_internode ? moe->engine->staging_bytes : 0;
}

/* ---- the halves ------------------------------------------------------------------------------ */

uint8_t *engine_path_region(const tern_moe *moe, uint32_t slot, uint32_t rank)
{
	const struct engine_path *path = moe->engine;
	uint64_t number = (uint64_t)slot * path->nr_internode + path->number_of[rank];

	return path->staging + path->regions +
	       number * align_up(moe->layout.region_bytes, CACHE_LINE);
}

uint8_t *engine_path_counts(const tern_moe *moe, uint32_t slot, uint32_t epoch)
{
	const struct engine_path *path = moe->engine;

	return path->staging + path->counts +
	       ((uint64_t)slot * 2 + (epoch & 1)) * moe->layout.counts_bytes;
}

static int look_at_sent(void *ctx)
{
	return sent_has_ended(ctx);
}

/* The pieces of the slot's last round have been answered, or this round would not begin, so this
 * waits for completions that are on their way. */
int engine_path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind)
{
	struct sent *sent = pieces_of(moe->engine, slot, kind);
	uint64_t start = scheduler_now(moe->group->scheduler);

	if (wait_until(&moe->wait_policy, (uint64_t)moe->wait_ms * 1000000, look_at_sent, sent))
		return 0;
	return fail(TERN_ERR_TIMEOUT,
		"rank %u waited %.3f ms for its engine to finish sending (slot %u, epoch %u)",
		moe->rank, (double)(scheduler_now(moe->group->scheduler) - start) / 1e6, slot,
		moe->slots[slot].epoch);
}

static enum immediate_kind immediate_of(enum word_kind word)
{
	uint32_t kind = IMMEDIATE_DISPATCH;

	while (announces[kind] != word)
		kind++;
	return (enum immediate_kind)kind;
}

int engine_path_publish(tern_moe *moe, uint32_t rank, const struct publication *p)
{
	uint32_t bits = immediate_round(moe, p->slot) | (uint32_t)(p->count == WORD_RELEASED)
								<< moe->engine->epoch_bits;

	return path_write(moe, pieces_of(moe->engine, p->slot, p->kind), rank,
		immediate_make(moe, immediate_of(p->kind), bits), p->from, p->offset, p->bytes);
}

static int look_settled(void *ctx)
{
	const tern_moe *moe = ctx;

	return sent_have_ended(&moe->engine->pieces) && channels_settled(moe) &&
	       results_settled(moe);
}

/* Networks may deliver in any order, and a rank that leaves in peace owes the others all that it
 * has sent: they would take a leave_status that comes first for a rank that left them alone. Who
 * gives up owes nothing. */
void engine_path_settle(tern_moe *moe)
{
	wait_until(&moe->wait_policy, farewell_ns(moe), look_settled, moe);
}

static int look_parted(void *ctx)
{
	return sent_has_ended(ctx);
}

/* Who gives up waits until the word is there, as its process may end now: without it, others would
 * take this rank for the one that died. */
void engine_path_leave(tern_moe *moe, uint64_t leave_status)
{
	uint32_t bits[LEAVE_IMMEDIATES];
	struct sent *pieces = &moe->engine->pieces.each[0];

	leave_statuses_bits(leave_status, bits);
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		for (uint32_t i = 0; i < LEAVE_IMMEDIATES && moe->engine->windows[r]; i++) {
			struct engine_write write = {.peer = r,
				.flags = TERN_IMMEDIATE,
				.immediate = immediate_make(moe, IMMEDIATE_PART, bits[i]),
				.counter = pieces->id};

			pieces->begun += !engine_write(moe->engine->engine, &write);
		}
	if (leave_status_error(leave_status))
		wait_until(&moe->wait_policy, PART_NS, look_parted, pieces);
}
