/* SPDX-License-Identifier: Apache-2.0 */
/* Rows for a rank that is not mapped are stored into a staging copy of its window, at the same offsets, and leave it in
 * one piece for each phase: its region, or its results. The piece carries an immediate, which the rank's engine turns
 * into the arrival word that a mapped rank would have stored. So waits, receive halves and layouts know nothing of the
 * path.
 *
 * Immediate:  prefix of the exchange (8 bits) | kind (3) | source (12) | kind's own (9)
 *   rows and results   slot (4) | released (1) | epoch (4 low bits)
 *   parting            6 bits of the error, or of the rank that caused it: three immediates in any order
 */
#include "path_engine.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "engine/engine.h"
#include "error.h"
#include "wait.h"
#include "window.h"

#define MOST_RANKS 4096
#define EPOCH_BITS 4
#define PART_BITS 6
#define PART_MASK ((1u << PART_BITS) - 1)

enum immediate_kind {
	IMMEDIATE_DISPATCH,
	IMMEDIATE_COMBINE,
	IMMEDIATE_COUNTS_EVEN,
	IMMEDIATE_COUNTS_ODD,
	IMMEDIATE_PART_ERROR,
	IMMEDIATE_PART_PEER_LOW,
	IMMEDIATE_PART_PEER_HIGH,
	NR_IMMEDIATE_KINDS
};

struct engine_path {
	tern_engine *engine;
	uint8_t prefix;
	bool claimed;
	uint8_t *staging; /* [R] copies of a window; only what is sent is ever touched */
	uint64_t staging_bytes;
	tern_region *staging_region, *window_region;
	tern_remote **windows; /* [R]; NULL: mapped */
	/* Of the pieces of one slot and phase: begun by this thread, ended by the engine. */
	struct sent_pieces {
		struct engine_counter counter;
		uint32_t id;
		bool open;
		uint64_t begun;
	} * pieces; /* [slots][NR_WORD_KINDS] */
	/* What ranks have told of their parting: error + 1 | low << 8 | high << 16, and a bit for each of the three. */
	_Atomic uint32_t *partings;  /* [R] */
	_Atomic uint64_t *parted_ns; /* [R] when the last of them came */
};

#define PARTED (7u << 24)

/* A parting in peace counts so much later. All that the rank has sent had landed before, but a network may report immediates in
 * any order, also long after the bytes; the engine's own goodbye waits one look (20 ms at most) for the same reason. */
#define PEACE_NS 100000000u

static struct sent_pieces *pieces_of(const struct engine_path *path, uint32_t slot, enum word_kind kind)
{
	return &path->pieces[slot * NR_WORD_KINDS + kind];
}

static uint32_t immediate_make(const tern_moe *moe, enum immediate_kind kind, uint32_t own_bits)
{
	return (uint32_t)moe->engine->prefix << 24 | (uint32_t)kind << 21 | moe->rank << 9 | own_bits;
}

/* ---- on the engine's thread -------------------------------------------------------------------------------- */

static void note_parting(const tern_moe *moe, enum immediate_kind kind, uint32_t source, uint32_t part)
{
	uint32_t which = (uint32_t)kind - IMMEDIATE_PART_ERROR;
	struct engine_path *path = moe->engine;

	atomic_store_explicit(&path->parted_ns[source], driver_now(moe->group->driver), memory_order_relaxed);
	atomic_fetch_or_explicit(
		&path->partings[source], 1u << (24 + which) | (part & PART_MASK) << (8 * which), memory_order_release);
}

static uint32_t epoch_of(const tern_moe *moe, uint32_t slot, enum word_kind kind, uint32_t source)
{
	return word_epoch(
		arrival_observe((const struct arrival *)own(moe, layout_word(&moe->layout, slot, kind, source))));
}

/* An immediate has room for the low bits of an epoch alone. The whole is the one with these bits that is nearest to an epoch
 * of the source's that is known here: that of its last word of the kind, or, where any number of rounds may have been
 * abandoned since, of its last counts. Those are one away at most, either way: networks may deliver the counts of a round
 * before the results of the last one, and after the rows that they announce. */
static uint32_t epoch_near(const tern_moe *moe, uint32_t slot, enum word_kind kind, uint32_t source, uint32_t low_bits)
{
	uint32_t reached = epoch_of(moe, slot, kind, source), ahead;

	if (moe->config.mode == TERN_HIGH_THROUGHPUT) {
		uint32_t even = epoch_of(moe, slot, WORD_COUNTS_EVEN, source),
			 odd = epoch_of(moe, slot, WORD_COUNTS_ODD, source);

		reached = (int32_t)(even - odd) > 0 ? even : odd;
	}
	ahead = (low_bits - reached) & ((1u << EPOCH_BITS) - 1);
	return reached + ahead - (ahead >= 1u << (EPOCH_BITS - 1) ? 1u << EPOCH_BITS : 0);
}

static const struct {
	enum word_kind word;
	enum tern_phase phase;
} announces[] = {[IMMEDIATE_DISPATCH] = {WORD_DISPATCH, TERN_PHASE_DISPATCH},
	[IMMEDIATE_COMBINE] = {WORD_COMBINE, TERN_PHASE_COMBINE},
	[IMMEDIATE_COUNTS_EVEN] = {WORD_COUNTS_EVEN, TERN_PHASE_COUNTS},
	[IMMEDIATE_COUNTS_ODD] = {WORD_COUNTS_ODD, TERN_PHASE_COUNTS}};

/* A piece is here: its bytes are visible to this thread, and the release in path_deliver hands them on to the one that
 * waits. */
static void deliver(tern_moe *moe, enum immediate_kind kind, uint32_t source, uint32_t bits)
{
	const struct layout *l = &moe->layout;
	uint32_t slot = bits >> 5, count = WORD_UNCOUNTED;
	struct arrival *arrival;

	if (slot >= l->nr_slots)
		return;
	arrival = (struct arrival *)own(moe, layout_word(l, slot, announces[kind].word, source));
	if (kind == IMMEDIATE_DISPATCH && moe->config.mode == TERN_LOW_LATENCY)
		count = ((const struct region_head *)own(moe, layout_region(l, slot, source)))->nr_rows;
	else if (bits & 1u << EPOCH_BITS)
		count = WORD_RELEASED;
	path_deliver(arrival, (struct doorbell *)own(moe, layout_doorbell(l, slot, announces[kind].phase)),
		word_make(epoch_near(moe, slot, announces[kind].word, source, bits), count));
}

static void on_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	tern_moe *moe = ctx;
	uint32_t kind = immediate >> 21 & 7, source = immediate >> 9 & (MOST_RANKS - 1), bits = immediate & 0x1ff;

	(void)peer; /* not every network can tell */
	if (kind >= NR_IMMEDIATE_KINDS || source >= moe->nr_ranks || moe->windows[source])
		return;
	if (kind >= IMMEDIATE_PART_ERROR)
		note_parting(moe, (enum immediate_kind)kind, source, bits);
	else
		deliver(moe, (enum immediate_kind)kind, source, bits);
}

/* ---- opening and closing ----------------------------------------------------------------------------------- */

static int open_pieces(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	int rc = 0;

	for (uint32_t i = 0; i < moe->config.nr_slots * NR_WORD_KINDS && !rc; i++) {
		rc = engine_counter_open(path->engine, &path->pieces[i].counter, &path->pieces[i].id);
		path->pieces[i].open = !rc;
	}
	return rc;
}

static int open_memory(tern_moe *moe)
{
	struct engine_path *path = moe->engine;
	uint64_t window = moe->layout.window_bytes;
	int rc;

	path->staging_bytes = moe->nr_ranks * window;
	path->staging = private_map(path->staging_bytes);
	if (!path->staging)
		return fail(TERN_ERR_NOMEM, "no address space for staging copies of %u windows of %llu bytes",
			moe->nr_ranks, (unsigned long long)window);
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (!moe->places[r])
			moe->places[r] = path->staging + r * window;
	rc = tern_engine_register(path->engine, own(moe, 0), window, &path->window_region);
	return rc ? rc : tern_engine_register(path->engine, path->staging, path->staging_bytes, &path->staging_region);
}

static int open_local(tern_moe *moe)
{
	struct engine_path *path = calloc(1, sizeof(*path));
	struct engine_claim claim = {.immediate = on_immediate, .ctx = moe};
	int rc;

	if (!path)
		return fail(TERN_ERR_NOMEM, "no memory for an engine path");
	moe->engine = path;
	path->engine = moe->group->engine;
	path->prefix = (uint8_t)moe->group->round; /* the same on all ranks */
	path->windows = calloc(moe->nr_ranks, sizeof(*path->windows));
	path->partings = calloc(moe->nr_ranks, sizeof(*path->partings));
	path->parted_ns = calloc(moe->nr_ranks, sizeof(*path->parted_ns));
	path->pieces = aligned_alloc(CACHE_LINE, moe->config.nr_slots * NR_WORD_KINDS * sizeof(*path->pieces));
	if (!path->windows || !path->partings || !path->parted_ns || !path->pieces)
		return fail(TERN_ERR_NOMEM, "no memory for an engine path to %u ranks", moe->nr_ranks);
	memset(path->pieces, 0, moe->config.nr_slots * NR_WORD_KINDS * sizeof(*path->pieces));
	if (moe->nr_ranks > MOST_RANKS)
		return fail(TERN_ERR_UNSUPPORTED, "%u ranks; an exchange over an engine has at most %u", moe->nr_ranks,
			MOST_RANKS);
	rc = open_memory(moe);
	rc = rc ? rc : open_pieces(moe);
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
		if (!moe->windows[r])
			rc = tern_engine_import(path->engine, &all[r], &path->windows[r]);
	free(all);
	return rc;
}

/* A rank that is stopped and goes on within the wait is not dead. */
void engine_path_bear_silence(const tern_moe *moe)
{
	engine_bear_silence(moe->group->engine, moe->wait_ms);
}

int engine_path_open(tern_moe *moe, bool needed)
{
	int rc = group_agree_status(moe->group, open_local(moe), "tern_moe_create");

	engine_path_bear_silence(moe);
	(void)needed; /* a rank that has all its peers mapped still takes part in the agreements */
	return rc ? rc : group_agree_status(moe->group, exchange_descriptors(moe), "tern_moe_create");
}

/* Until what was sent is there; a peer that died ends its pieces too. */
static void drain(const tern_moe *moe)
{
	const struct driver *driver = moe->group->driver;
	uint64_t deadline = driver_now(driver) + (uint64_t)(moe->wait_ms < 1000 ? 1000 : moe->wait_ms) * 1000000;

	for (uint32_t i = 0; i < moe->config.nr_slots * NR_WORD_KINDS; i++) {
		struct sent_pieces *pieces = &moe->engine->pieces[i];

		while (pieces->open && engine_counter_ended(&pieces->counter) != pieces->begun &&
			driver_now(driver) < deadline)
			driver_yield(driver, deadline);
	}
}

/* Before the windows go. */
static void close_pieces(const tern_moe *moe)
{
	drain(moe);
	for (uint32_t i = 0; i < moe->config.nr_slots * NR_WORD_KINDS; i++)
		if (moe->engine->pieces[i].open)
			engine_counter_close(moe->engine->engine, moe->engine->pieces[i].id);
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
	engine_region_give_up(path->window_region, moe->wait_ms, release_window, moe->windows[moe->rank]);
}

void engine_path_close(tern_moe *moe)
{
	struct engine_path *path = moe->engine;

	if (path->pieces)
		close_pieces(moe);
	if (path->claimed)
		engine_unclaim(path->engine, path->prefix);
	for (uint32_t r = 0; path->windows && r < moe->nr_ranks; r++)
		if (path->windows[r])
			tern_remote_forget(path->windows[r], moe->wait_ms);
	give_up_memory(moe);
	free(path->windows);
	free(path->partings);
	free(path->parted_ns);
	free(path->pieces);
	free(path);
	moe->engine = NULL;
}

/* ---- the halves -------------------------------------------------------------------------------------------- */

/* The pieces of the slot's last round have been answered, or this round would not begin, so this waits for completions
 * that are on their way. */
int engine_path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind)
{
	struct sent_pieces *pieces = pieces_of(moe->engine, slot, kind);
	const struct driver *driver = moe->group->driver;
	uint64_t start = driver_now(driver), limit = (uint64_t)moe->wait_ms * 1000000;

	while (engine_counter_ended(&pieces->counter) != pieces->begun) {
		uint64_t waited = driver_now(driver) - start;

		if (waited >= limit)
			return fail(TERN_ERR_TIMEOUT,
				"rank %u waited %.3f ms for its engine to finish sending (slot %u, epoch %u)",
				moe->rank, (double)waited / 1e6, slot, moe->slots[slot].epoch);
		driver_yield(driver, start + limit);
	}
	return 0;
}

static enum immediate_kind immediate_of(enum word_kind word)
{
	uint32_t kind = IMMEDIATE_DISPATCH;

	while (announces[kind].word != word)
		kind++;
	return (enum immediate_kind)kind;
}

int engine_path_publish(tern_moe *moe, uint32_t rank, const struct publication *p)
{
	struct engine_path *path = moe->engine;
	struct sent_pieces *pieces = pieces_of(path, p->slot, p->kind);
	uint32_t bits = p->slot << 5 | (p->count == WORD_RELEASED) << EPOCH_BITS |
			(moe->slots[p->slot].epoch & ((1u << EPOCH_BITS) - 1));
	struct engine_write write = {.peer = rank,
		.flags = TERN_IMMEDIATE,
		.immediate = immediate_make(moe, immediate_of(p->kind), bits),
		.counter = pieces->id,
		.local = path->staging_region,
		.remote = path->windows[rank],
		.local_offset = rank * moe->layout.window_bytes + p->offset,
		.remote_offset = p->offset,
		.bytes = p->bytes};
	int rc = engine_write(path->engine, &write);

	if (rc)
		return exchange_fail(moe, rc, (int)rank);
	pieces->begun++;
	return 0;
}

/* Networks may deliver in any order, and a rank that leaves in peace owes the others all that it has sent: they would take
 * a parting that comes first for a rank that left them alone. Who gives up owes nothing. */
void engine_path_part(tern_moe *moe, uint64_t parting)
{
	uint32_t part[] = {(uint32_t)-parting_error(parting), (uint32_t)parting_peer(parting),
		(uint32_t)parting_peer(parting) >> PART_BITS};
	struct sent_pieces *pieces = &moe->engine->pieces[0];

	if (!parting_error(parting))
		drain(moe);
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		for (uint32_t i = 0; i < 3 && moe->engine->windows[r]; i++) {
			struct engine_write write = {.peer = r,
				.flags = TERN_IMMEDIATE,
				.immediate = immediate_make(
					moe, (enum immediate_kind)(IMMEDIATE_PART_ERROR + i), part[i] & PART_MASK),
				.counter = pieces->id};

			pieces->begun += !engine_write(moe->engine->engine, &write);
		}
}

static bool in_peace(const tern_moe *moe, uint32_t rank)
{
	uint64_t since = atomic_load_explicit(&moe->engine->parted_ns[rank], memory_order_relaxed);

	return driver_now(moe->group->driver) - since < PEACE_NS;
}

uint64_t engine_path_parting(const tern_moe *moe, uint32_t rank)
{
	uint32_t told = atomic_load_explicit(&moe->engine->partings[rank], memory_order_acquire);
	uint32_t peer = (told >> 8 & PART_MASK) | (told >> 16 & PART_MASK) << PART_BITS;

	if ((told & PARTED) != PARTED || (!(told & PART_MASK) && in_peace(moe, rank)))
		return 0;
	return parting_make(-(int)(told & PART_MASK), peer == MOST_RANKS - 1 ? -1 : (int)peer);
}

bool engine_path_is_lost(const tern_moe *moe, uint32_t rank, const char **text)
{
	uint32_t told = atomic_load_explicit(&moe->engine->partings[rank], memory_order_acquire);

	return (told & PARTED) != PARTED && engine_peer_down(moe->engine->engine, rank, text) != 0;
}
