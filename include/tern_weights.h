/* SPDX-License-Identifier: Apache-2.0 */
/* tern_weights.h: experts' weights, moved between ranks while they serve.
 *
 *      rank that lacks expert e                     a rank that holds it
 *   +---------------------------+     ask, page    +--------------------+
 *   | move ── poll, poll, ...   | ───────────────► | its engine's proxy |
 *   |           │ whole? sums?  | ◄─────────────── | writes the page    |
 *   |           ▼               |   page, its sum  +--------------------+
 *   | place p holds e           |
 *   +---------------------------+
 *
 * THE CONTRACT
 *
 * Objects.    A tern_weight_store is what one rank holds: for each layer its places, which are the
 *             physical experts of a placement (tern.h) that are on this rank, in the caller's
 *             memory; and backups, in memory of its own, of experts that other ranks serve.
 * Pull.       Who lacks an expert asks for it, page by page; who has it answers without its caller,
 *             on the engine's proxy. So moving is local: only the rank whose place is filled does
 *             something, in tern_weights_poll or tern_weights_wait. One call handles one page.
 * Sources.    In this order: this rank itself, the rank of tern_copy.from, every other rank that
 *             lives, `load`. One that dies, is silent, has not got it, or sends wrong bytes is
 *             passed over, and the next goes on where it ended. Each is asked once: so ranks
 *             meet after tern_weights_hold, before others ask for what they hold.
 * Whole.      Pages arrive in memory of the library's own, are copied into the place by this rank
 *             and summed there. A place holds an expert when all its pages are there and the sum of
 *             all is the one that was made where the expert was put by tern_weights_hold. Nobody
 *             else ever writes into a place, so one that is silent and wakes later can spoil none.
 * Places.     The caller says that a place is free by moving something into it. Refused are places
 *             that the placement of tern_weights_use names, that a move fills, and that others copy
 *             from. A move into a place ends what it held.
 * Weights.    Of an expert are the same as long as the store lives: another version of a model
 *             takes another store.
 * Collective. Creating is. All else is local.
 * Threads.    One thread at a time in calls on the same store, any thread, also beside rounds.
 * Waiting.    Only tern_weights_wait does, and destroying: TERN_ERR_TIMEOUT, and it goes on when
 *             called again.
 * Errors.     As in tern.h: a call that is refused has changed nothing.
 */
#ifndef TERN_WEIGHTS_H
#define TERN_WEIGHTS_H

#include "tern_balance.h"
#include "tern_engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_weight_store tern_weight_store;

#define TERN_WEIGHTS_MAX_PARTS 16

/* A tensor of all places of this rank in one layer: place i, in the order of their numbers, has
 * `bytes` at base + i * stride. */
struct tern_weights_part {
	void *base;
	uint64_t bytes;  /* the same in all layers and on all ranks */
	uint64_t stride; /* 0: bytes */
};

/* Bytes of an expert, all parts laid end to end: `bytes` of them from `offset` on. Not 0: they
 * cannot be had. Called by tern_weights_poll and tern_weights_wait, a page at a time. */
typedef int (*tern_load_fn)(
	void *ctx, uint32_t layer, int32_t expert, uint64_t offset, void *into, uint64_t bytes);

struct tern_weights_config {
	size_t size TERN_SIZE_OF(tern_weights_config);
	uint32_t nr_layers;
	uint32_t nr_experts;  /* E, in each layer */
	uint32_t nr_physical; /* P: places of all ranks in each layer */
	uint32_t nr_parts;    /* of an expert, to TERN_WEIGHTS_MAX_PARTS */
	const int32_t *rank;  /* [P]; NULL: contiguous blocks, as in tern_placement */
	const struct tern_weights_part *parts; /* [nr_layers][nr_parts]: registered with the
						  engine, each of them */
	uint32_t nr_backups; /* experts of others for which this rank has memory, of any layer; may
				differ between ranks */
	uint32_t page_bytes; /* default 256 KiB, a multiple of 64 */
	uint32_t window;     /* pages that may be asked for at once, to 64; default 4 */
	uint32_t silence_ms; /* a source that has not answered for so long is passed over; default
				1000 */
	uint64_t rate;       /* bytes per second that moves bring here at most, and as many that
				others take from here; 0: no bound */
	tern_load_fn load;   /* the last source; NULL: none */
	void *load_ctx;
};

/* Collective over the engine's group. The engine has to outlive the store, and its messages belong
 * to the store as long as it lives: no other store, no tern_engine_send on any rank. All settings
 * but nr_backups, parts' addresses, rate, load and silence_ms are the same on all ranks. */
TERN_API int tern_weights_create(
	tern_engine *engine, const struct tern_weights_config *config, tern_weight_store **store);

/* Local; ranks may leave in any order. Moves under way end, and their places hold nothing. May wait
 * for pages on their way, at most the engine's wait_ms: TERN_ERR_TIMEOUT, to be called again. NULL
 * is fine. */
TERN_API int tern_weights_destroy(tern_weight_store *store);

/* ---- what a place holds ---------------------------------------------------------------------- */

/* The caller has put the expert's weights into this place of its own. Reads and sums them. -1: it
 * holds nothing any more. TERN_ERR_STATE for places that the placement in use names, with another
 * expert or none, that a move fills, or that others copy from. */
TERN_API int tern_weights_hold(
	tern_weight_store *store, uint32_t layer, uint32_t place, int32_t expert);

/* held[P]: the experts that this rank's places hold whole; -1: nothing, and other ranks' places.
 * So the greatest of all ranks' is where experts lie: `now` of tern_balance_plan. */
TERN_API int tern_weights_held(const tern_weight_store *store, uint32_t layer, int32_t *held);

/* logical[P]: rounds that begin from now on use this placement, and none of an older one reads this
 * rank's places any more. TERN_ERR_STATE if a place of this rank is named that does not hold its
 * expert whole; then the one before stays in use. -1 names nothing. NULL: none is in use. */
TERN_API int tern_weights_use(tern_weight_store *store, uint32_t layer, const int32_t *logical);

/* ---- moves ----------------------------------------------------------------------------------- */

/* Begins to fill those places of `copies` that are this rank's, in that order; others' are passed
 * over, so that all ranks may pass one list. *ticket is for tern_weights_poll. TERN_ERR_INVALID: a
 * place twice, also as source and target, or a number that is none. TERN_ERR_STATE: a place that is
 * not free; where others copied from it, word that they are through may still be on its way: call
 * again. TERN_ERR_NOMEM. */
TERN_API int tern_weights_move(tern_weight_store *store, uint32_t layer,
	const struct tern_copy *copies, uint32_t nr, uint64_t *ticket);

/* Begins to fill this rank's backups for a layer: each expert that `logical` places gets one backup
 * on a rank that does not serve it, spread over all ranks, and all ranks that pass the same find
 * the same. What is there already stays. alive[R]: 0: that rank has no backups, and what it serves
 * does not count; NULL: all live. TERN_ERR_CAPACITY if nr_backups is too small, with the number
 * that this layer takes. TERN_ERR_STATE: a backup that is to hold another expert is not free. */
TERN_API int tern_weights_backup(tern_weight_store *store, uint32_t layer, const int32_t *logical,
	const uint8_t *alive, uint64_t *ticket);

struct tern_weights_progress {
	size_t size TERN_SIZE_OF(tern_weights_progress);
	uint32_t nr_copies; /* of the move, on this rank */
	uint32_t nr_whole;
	uint32_t nr_failed;
	uint32_t reserved;
	uint64_t bytes_left;
};

/* Handles one page at most, of any move; never waits. 0: the move has ended well;
 * TERN_ERR_TIMEOUT: it is under way. Else what became of the first copy that failed, which names
 * the ranks that were tried; the others went on. TERN_ERR_LOST_EXPERTS: nobody has it. The ticket
 * is gone once its end was told. 0 as ticket: 0 when no move is under way. *progress is filled in
 * all of these cases; NULL: not wanted. */
TERN_API int tern_weights_poll(
	tern_weight_store *store, uint64_t ticket, struct tern_weights_progress *progress);
/* The same again and again, for wait_ms at most. */
TERN_API int tern_weights_wait(tern_weight_store *store, uint64_t ticket, int wait_ms,
	struct tern_weights_progress *progress);

struct tern_weights_stats {
	size_t size TERN_SIZE_OF(tern_weights_stats);
	uint64_t copies;       /* that ended well */
	uint64_t failed;       /* that did not */
	uint64_t pages, bytes; /* brought here, right */
	uint64_t pages_wrong;  /* whose sum was not that of their source */
	uint64_t pages_given;  /* to others */
	uint64_t sources_left; /* that were passed over: dead, silent, without it, or wrong */
	uint64_t pages_loaded; /* by `load`; in pages, too */
};
TERN_API int tern_weights_stats(tern_weight_store *store, struct tern_weights_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
