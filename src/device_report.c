/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels have reported, turned into errors: which wait expired and who is to blame, which number of a peer was not followed, what was wrong with the caller's ids. */
#include <stdio.h>

#include "device_far.h"
#include "device_inside.h"
#include "engine/engine.h"
#include "base/error.h"
#include "kernels/cuda/far.h"

/* 0, or how that rank went; *cause: the engine's, "" where there is none. */
static int is_gone(const tern_moe *moe, uint32_t rank, const char **cause)
{
	*cause = "";
	if (is_far(moe, rank))
		return engine_peer_down(device_engine(moe), rank, cause);
	return group_has_died(moe->group, rank) ? TERN_ERR_PEER_DEAD : 0;
}

/* The one that was waited for, or whoever that one may have waited for: others end when they have found somebody dead. */
static int gone_peer(const tern_moe *moe, uint32_t awaited, int *peer, const char **cause)
{
	int first = moe->device->far ? device_far_first_lost(moe->device->far) : -1, error = 0;

	*peer = first >= 0 ? first : (int)awaited;
	error = is_gone(moe, (uint32_t)*peer, cause);
	for (uint32_t r = 0; r < moe->nr_ranks && !error; r++) {
		*peer = (int)r;
		error = is_gone(moe, r, cause);
	}
	return error;
}

static enum tern_phase phase_of(const struct ll_report *r)
{
	static const enum tern_phase of_kind[NR_FAR_KINDS] = {TERN_PHASE_COUNTS, TERN_PHASE_COUNTS, TERN_PHASE_DISPATCH, TERN_PHASE_COMBINE};

	if (r->reason == LL_WAIT_SENT)
		return of_kind[r->token % NR_FAR_KINDS];
	return r->reason == LL_WAIT_COUNTS ? TERN_PHASE_COUNTS : r->reason <= LL_WAIT_ROW ? TERN_PHASE_DISPATCH : TERN_PHASE_COMBINE;
}

static int wait_has_failed(tern_moe *moe, uint32_t slot, const struct ll_report *r)
{
	static const char *const what[] = {"nothing", "the plan", "a row", "a result", "the word", "the counts", "what the engine has not sent"};
	static const char *const names[] = {"counts", "dispatch", "combine"};
	enum tern_phase phase = phase_of(r);
	const char *cause;
	int peer, gone = gone_peer(moe, r->peer, &peer, &cause);

	moe->failed = gone ? gone : TERN_ERR_TIMEOUT;
	moe->report = (struct tern_wait_report){.size = sizeof(moe->report),
		.rank = (int32_t)moe->rank,
		.peer = gone ? peer : (int32_t)r->peer,
		.nr_missing = 1,
		.slot = slot,
		.phase = phase,
		.epoch_expected = r->epoch_expected,
		.epoch_seen = r->epoch_seen,
		.arrived = moe->nr_ranks - 1,
		.expected = moe->nr_ranks,
		.waited_ns = r->waited_ns,
		.error = moe->failed};
	if (gone)
		snprintf(moe->failed_text, sizeof(moe->failed_text), "rank %d %s while rank %u's kernel waited for rank %u in %s (slot %u, epoch %u)%s%s",
			peer, gone == TERN_ERR_PEER_LEFT ? "left" : "died", moe->rank, r->peer, names[phase], slot, r->epoch_expected, *cause ? ": " : "", cause);
	else
		snprintf(moe->failed_text, sizeof(moe->failed_text),
			"rank %u's kernel waited %.3f ms in %s for %s of rank %u, token %u (slot %u, epoch %u; saw epoch %u)", moe->rank,
			(double)r->waited_ns / 1e6, names[phase], what[r->reason % 7], r->peer, r->token, slot,
			r->epoch_expected, r->epoch_seen);
	return fail(moe->failed, "%s", moe->failed_text);
}

/* A number of a peer's that was not followed. */
static int peer_has_broken(tern_moe *moe, uint32_t slot, const struct ll_report *r)
{
	static const char *const what[] = {"tokens", "an expert, for a token,", "a token that another rank sends", "rows, in a column of its counts,",
		"a row's position, of a token,", "a local expert, for a token,"};

	moe->failed = TERN_ERR_PROTOCOL;
	snprintf(moe->failed_text, sizeof(moe->failed_text),
		"rank %u's kernel was told %s by rank %u that no correct peer has: %u, where %u is the most (token or column %u; slot %u, epoch %u)", moe->rank,
		what[(r->reason - LL_BROKEN_TOKENS) % 6], r->peer, r->value, r->most, r->token, slot, r->epoch_expected);
	return fail(moe->failed, "%s", moe->failed_text);
}

int device_has_failed(tern_moe *moe, uint32_t slot, const struct ll_report *r)
{
	return r->reason >= LL_BROKEN_TOKENS ? peer_has_broken(moe, slot, r) : wait_has_failed(moe, slot, r);
}

static int look_at_reports(tern_moe *moe)
{
	struct device *d = moe->device;
	struct ll_report report;
	struct ll_complaint complaint;
	int rc = 0;

	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++) {
		d->ops->read_report(d->exchange, slot, &report);
		d->ops->take_complaint(d->exchange, slot, &complaint);
		if (report.reason)
			return device_has_failed(moe, slot, &report);
		if (complaint.reason == LL_ID_RANGE)
			rc = fail(TERN_ERR_INVALID, "dispatch: topk_ids[%u][%u] was %lld; experts are 0 to %u, or -1 (slot %u, epoch %u)", complaint.token,
				complaint.k, (long long)complaint.id, moe->config.nr_experts - 1, slot, complaint.epoch);
		else if (complaint.reason == LL_OVER_CAPACITY)
			rc = fail(TERN_ERR_CAPACITY, "rank %u would receive %lld rows; its capacity is %llu (slot %u, epoch %u)", complaint.token,
				(long long)complaint.id, (unsigned long long)moe->layout.capacity, slot, complaint.epoch);
		else if (complaint.reason)
			rc = fail(TERN_ERR_INVALID, "dispatch: topk_ids[%u] named expert %lld twice, again at column %u (slot %u, epoch %u)", complaint.token,
				(long long)complaint.id, complaint.k, slot, complaint.epoch);
	}
	return rc;
}

int tern_moe_status(tern_moe *moe)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "moe is NULL");
	if (moe->failed)
		return fail(moe->failed, "%s", moe->failed_text);
	return moe->device ? look_at_reports(moe) : 0;
}
