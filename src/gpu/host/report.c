/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels have reported, turned into errors: which wait expired and who is to blame, which
 * number of a peer was not followed, what was wrong with the caller's ids. */
#include <stdio.h>

#include "gpu/host/elastic.h"
#include "gpu/host/fresh.h"
#include "gpu/host/internode.h"
#include "gpu/host/inside.h"
#include "engine/engine.h"
#include "base/error.h"
#include "gpu/wire/internode.h"
#include "gpu/wire/plans.h"
#include "exchange/elastic.h"
#include "exchange/wire.h"

/* 0, or how that rank went without a word; *cause: the engine's, "" where there is none. */
static int is_gone(const tern_moe *moe, uint32_t rank, const char **cause)
{
	*cause = "";
	if (!moe->alive[rank] || device_leave_status(moe, rank))
		return 0;
	if (is_internode(moe, rank))
		return engine_peer_down(device_engine(moe), rank, cause);
	return device_has_died(moe, rank) ? TERN_ERR_PEER_DEAD : 0;
}

struct blame {
	int error, peer;   /* enum tern_error; who it is about */
	const char *cause; /* "" where there is none */
};

/* The one that was waited for, or whoever that one may have waited for: others end when they have
 * found somebody dead. */
static bool blame_death(const tern_moe *moe, uint32_t awaited, struct blame *blame)
{
	int first =
		moe->device->internode ? device_internode_first_lost(moe->device->internode) : -1;

	blame->peer = first >= 0 ? first : (int)awaited;
	blame->error = is_gone(moe, (uint32_t)blame->peer, &blame->cause);
	for (uint32_t r = 0; r < moe->nr_ranks && !blame->error; r++) {
		blame->peer = (int)r;
		blame->error = is_gone(moe, r, &blame->cause);
	}
	return blame->error != 0;
}

/* A death explains departures, so deaths are looked for first; then what the one that was waited
 * for said when it left. */
static struct blame find_blame(const tern_moe *moe, uint32_t awaited)
{
	struct blame blame = {.cause = ""};
	uint64_t leave_status = device_leave_status(moe, awaited);
	int named = leave_status_peer(leave_status);

	if (blame_death(moe, awaited, &blame))
		return blame;
	blame = (struct blame){
		leave_status ? TERN_ERR_PEER_LEFT : TERN_ERR_TIMEOUT, (int)awaited, ""};
	if (leave_status_error(leave_status) == TERN_ERR_PEER_DEAD && named >= 0 &&
		named < (int)moe->nr_ranks)
		blame = (struct blame){TERN_ERR_PEER_DEAD, named, "as the latter found"};
	else if (leave_status_error(leave_status))
		blame.cause = tern_strerror(leave_status_error(leave_status));
	return blame;
}

static enum tern_phase phase_of(const struct gpu_report *r)
{
	static const enum tern_phase of_kind[NR_INTERNODE_KINDS] = {
		TERN_PHASE_COUNTS, TERN_PHASE_COUNTS, TERN_PHASE_DISPATCH, TERN_PHASE_COMBINE};

	if (r->reason == GPU_WAIT_TILE || r->reason == GPU_WAIT_WEIGHTS)
		return TERN_PHASE_COMBINE;
	if (r->reason == GPU_WAIT_SENT)
		return of_kind[r->token % NR_INTERNODE_KINDS];
	return r->reason == GPU_WAIT_COUNTS ? TERN_PHASE_COUNTS
	       : r->reason <= GPU_WAIT_ROW  ? TERN_PHASE_DISPATCH
					    : TERN_PHASE_COMBINE;
}

/* Returns who is to blame, like the next. */
static int wait_has_failed(tern_moe *moe, uint32_t slot, const struct gpu_report *r)
{
	static const char *const what[] = {"nothing", "the plan", "a row", "a result", "the word",
		"the counts", "what the engine has not sent"};
	static const char *const names[] = {"counts", "dispatch", "combine"};
	enum tern_phase phase = phase_of(r);
	struct blame blame = find_blame(moe, r->peer);

	moe->failed = blame.error;
	moe->report = (struct tern_wait_report){.size = sizeof(moe->report),
		.rank = (int32_t)moe->rank,
		.peer = blame.peer,
		.nr_missing = 1,
		.slot = slot,
		.phase = phase,
		.epoch_expected = r->epoch_expected,
		.epoch_seen = r->epoch_seen,
		.arrived = moe->nr_ranks - 1,
		.expected = moe->nr_ranks,
		.waited_ns = r->waited_ns,
		.error = moe->failed};
	if (blame.error != TERN_ERR_TIMEOUT)
		snprintf(moe->failed_text, sizeof(moe->failed_text),
			"rank %d %s while rank %u's kernel waited for rank %u in %s (slot %u, "
			"epoch %u)%s%s",
			blame.peer,
			blame.error == TERN_ERR_PEER_LEFT ? "left the exchange" : "died", moe->rank,
			r->peer, names[phase], slot, r->epoch_expected, *blame.cause ? ": " : "",
			blame.cause);
	else
		snprintf(moe->failed_text, sizeof(moe->failed_text),
			"rank %u's kernel waited %.3f ms in %s for %s of rank %u, token %u (slot "
			"%u, epoch %u; saw epoch %u)",
			moe->rank, (double)r->waited_ns / 1e6, names[phase],
			r->reason == GPU_WAIT_TILE      ? "a tile of y"
			: r->reason == GPU_WAIT_WEIGHTS ? "weights"
							: what[r->reason % 7],
			r->peer, r->token, slot, r->epoch_expected, r->epoch_seen);
	return blame.peer;
}

/* One rank dispatches where another combines a plan again. True: that is it, and the text has been
 * written. */
static bool is_replay(tern_moe *moe, uint32_t slot, const struct gpu_report *r)
{
	bool peer = r->reason == GPU_BROKEN_TOKENS && r->value == GPU_REPLAYED;

	if (!peer && r->reason != GPU_BROKEN_REPLAY)
		return false;
	snprintf(moe->failed_text, sizeof(moe->failed_text),
		"rank %u combines a plan again where rank %u dispatched (slot %u, epoch %u)",
		peer ? r->peer : moe->rank, peer ? moe->rank : r->peer, slot, r->epoch_expected);
	return true;
}

/* Ranks route by different tables: nobody has broken the protocol. */
static int is_placed_otherwise(tern_moe *moe, uint32_t slot, const struct gpu_report *r)
{
	moe->failed = TERN_ERR_MISMATCH;
	snprintf(moe->failed_text, sizeof(moe->failed_text),
		"rank %u routes by version %u of the placement, and rank %u by %sversion %u (slot "
		"%u, epoch %u): tern_moe_place is the same on all ranks before a round",
		moe->rank, r->most, r->peer, r->value == r->most ? "another " : "", r->value, slot,
		r->epoch_expected);
	return (int)r->peer;
}

/* A number of a peer's that was not followed. */
static int peer_has_broken(tern_moe *moe, uint32_t slot, const struct gpu_report *r)
{
	static const char *const what[] = {"tokens", "an expert, for a token,",
		"a token that another rank sends", "rows, in a column of its counts,",
		"a row's position, of a token,", "a local expert, for a token,"};

	if (r->reason == GPU_BROKEN_PLACED)
		return is_placed_otherwise(moe, slot, r);
	moe->failed = TERN_ERR_PROTOCOL;
	if (is_replay(moe, slot, r))
		return (int)r->peer;
	snprintf(moe->failed_text, sizeof(moe->failed_text),
		"rank %u's kernel was told %s by rank %u that no correct peer has: %u, where %u is "
		"the most (token or column %u; slot %u, epoch %u)",
		moe->rank,
		r->reason == GPU_BROKEN_NUMBER ? "a row's number, of a token,"
		: r->reason == GPU_BROKEN_WAY  ? "a row's way"
					       : what[(r->reason - GPU_BROKEN_TOKENS) % 6],
		r->peer, r->value, r->most, r->token, slot, r->epoch_expected);
	return (int)r->peer;
}

/* A kernel of this slot has ended early. Peers are told. */
static int has_failed(tern_moe *moe, uint32_t slot, const struct gpu_report *r)
{
	bool waited = r->reason < GPU_BROKEN_TOKENS || r->reason == GPU_WAIT_TILE ||
		      r->reason == GPU_WAIT_WEIGHTS;
	int peer = waited ? wait_has_failed(moe, slot, r) : peer_has_broken(moe, slot, r);

	device_leave(moe, leave_status_make(moe->failed, peer));
	return fail(moe->failed, "%s", moe->failed_text);
}

/* In an elastic exchange: who ends waits has said why before. One that has merely expired ends
 * nothing, as the next view begins anew. */
static int has_ended_early(tern_moe *moe, uint32_t slot, const struct gpu_report *r)
{
	int rc = device_elastic_look(moe);

	if (rc || r->reason >= GPU_BROKEN_TOKENS)
		return rc ? rc : has_failed(moe, slot, r);
	wait_has_failed(moe, slot, r);
	rc = moe->failed;
	moe->failed = 0;
	return rc == TERN_ERR_PEER_DEAD ? elastic_lost(moe) : fail(rc, "%s", moe->failed_text);
}

int device_look(tern_moe *moe)
{
	const struct device *d = moe->device;
	struct gpu_report report = {0};
	int rc = moe->config.elastic ? device_elastic_look(moe) : 0;

	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++) {
		d->ops->read_report(d->exchange, slot, &report);
		if (report.reason)
			return moe->config.elastic ? has_ended_early(moe, slot, &report)
						   : has_failed(moe, slot, &report);
	}
	return rc;
}

static int look_at_input_errors(tern_moe *moe)
{
	struct device *d = moe->device;
	struct gpu_input_error input_error;
	int rc = 0;

	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++) {
		d->ops->take_input_error(d->exchange, slot, &input_error);
		if (input_error.reason == GPU_ID_RANGE)
			rc = fail(TERN_ERR_INVALID,
				"dispatch: topk_ids[%u][%u] was %lld; experts are 0 to %u, or -1 "
				"(slot %u, epoch %u)",
				input_error.token, input_error.k, (long long)input_error.id,
				moe->config.nr_experts - 1, slot, input_error.epoch);
		else if (input_error.reason == GPU_OVER_CAPACITY)
			rc = fail(TERN_ERR_CAPACITY,
				"rank %u would receive %lld rows; its capacity is %llu (slot %u, "
				"epoch %u)",
				input_error.token, (long long)input_error.id,
				(unsigned long long)moe->layout.capacity, slot, input_error.epoch);
		else if (input_error.reason)
			rc = fail(TERN_ERR_INVALID,
				"dispatch: topk_ids[%u] named expert %lld twice, again at column "
				"%u (slot %u, epoch %u)",
				input_error.token, (long long)input_error.id, input_error.k, slot,
				input_error.epoch);
	}
	return rc;
}

int device_status(tern_moe *moe)
{
	int rc = device_look(moe);

	if (!rc && moe->device->elastic)
		fresh_prepare(moe);
	return rc ? rc : look_at_input_errors(moe);
}
