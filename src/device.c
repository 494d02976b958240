/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on a device: windows shared between ranks, arguments checked, halves put on streams, and what kernels report turned into errors. */
#include "device_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_far.h"
#include "engine/engine.h"
#include "error.h"
#include "kernels/cuda/far.h"
#include "routes.h"

/* What a rank tells the others, in two steps. */
struct device_card {
	struct device_identity identity;
	uint8_t lines; /* second: whole lines arrive at all peers from here */
	uint8_t handle[DEVICE_HANDLE_BYTES];
	uint64_t address;
};

static int passed_on(const struct device *d, int rc)
{
	return rc ? fail(rc, "%s", d->ops->error_text()) : 0;
}

/* ---- making -------------------------------------------------------------------------------------------------- */

static int device_begin(tern_moe *moe, struct device_card *card)
{
	const struct tern_moe_config *c = &moe->config;
	struct device *d = moe->device;

	d->windows = calloc(moe->nr_ranks, sizeof(*d->windows));
	d->opened = calloc(moe->nr_ranks, sizeof(*d->opened));
	d->streams = calloc(c->nr_slots, sizeof(*d->streams));
	d->tally = device_tally_create(moe);
	d->since = device_tally_create(moe);
	moe->slots = calloc(c->nr_slots, sizeof(*moe->slots));
	if (!d->windows || !d->opened || !d->streams || !d->tally || !d->since || !moe->slots)
		return fail(TERN_ERR_NOMEM, "no memory for %u ranks and %u slots", moe->nr_ranks, c->nr_slots);
	if (c->wait_ms <= 0)
		return fail(TERN_ERR_INVALID, "wait_ms is %d; kernels cannot poll once and go on later: it has to be more than 0", c->wait_ms);
	d->ops = device_ops_load();
	return d->ops ? passed_on(d, d->ops->identify(&card->identity)) : TERN_ERR_UNSUPPORTED;
}

static int same_device(const struct device_card *a, const struct device_card *b)
{
	return !memcmp(a->identity.uuid, b->identity.uuid, sizeof(a->identity.uuid));
}

/* Ranks of one process on one device, be it as several nodes: their kernels wait for each other there. */
static uint32_t count_sharing(const tern_moe *moe, const struct device_card *cards)
{
	uint32_t nr = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		nr += same_device(&cards[r], &cards[moe->rank]) && (r == moe->rank || moe->group->peers[r].beside);
	return nr * moe->config.nr_slots;
}

static int reach_all(tern_moe *moe, const struct device_card *cards, struct device_card *mine)
{
	struct device *d = moe->device;
	int rc = 0;

	mine->lines = 1;
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		bool lines = true;

		if (is_far(moe, r))
			continue;
		rc = passed_on(d, d->ops->reach(cards[r].identity.uuid, &lines));
		if (!rc && moe->group->peers[r].same_process)
			rc = passed_on(d, d->ops->peer_enable(cards[r].identity.ordinal));
		mine->lines &= lines;
	}
	return rc;
}

static int make_window(tern_moe *moe, const struct device_card *cards, struct device_card *mine)
{
	struct device *d = moe->device;
	bool lines = true;
	int rc;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		lines &= cards[r].lines;
	rc = device_layout_init(&d->layout, &moe->config, &moe->layout, lines ? LL_LINES : LL_CELLS, moe->nodes.nr_nodes > 1);
	rc = rc ? rc : passed_on(d, d->ops->window_create(d->layout.window_bytes, &d->window, mine->handle));
	mine->address = (uintptr_t)d->window;
	return rc;
}

static int open_windows(tern_moe *moe, const struct device_card *cards)
{
	struct device *d = moe->device;
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		if (is_far(moe, r))
			continue;
		if (r == moe->rank || moe->group->peers[r].same_process) {
			d->windows[r] = (void *)(uintptr_t)cards[r].address;
			continue;
		}
		rc = passed_on(d, d->ops->window_open(cards[r].handle, &d->windows[r]));
		d->opened[r] = !rc;
	}
	return rc;
}

static int open_exchange(tern_moe *moe, const struct device_card *cards)
{
	struct device *d = moe->device;
	struct device_plan plan = {.config = &moe->config,
		.placement = &moe->placement,
		.layout = &moe->layout,
		.device_layout = &d->layout,
		.rank = moe->rank,
		.nr_ranks = moe->nr_ranks,
		.nr_sharing = count_sharing(moe, cards),
		.windows = d->windows,
		.far = d->far ? device_far_tables(d->far) : NULL};

	return passed_on(d, d->ops->exchange_open(&plan, &d->exchange));
}

/* Each step is local, and its outcome is compared before anybody relies on it. */
static int share(tern_moe *moe, struct device_card *cards, struct device_card *mine)
{
	tern_group *group = moe->group;
	int rc = device_begin(moe, mine);

	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(group, mine, cards, sizeof(*mine));
	if (!rc)
		rc = group_agree_status(group, reach_all(moe, cards, mine), "tern_moe_create");
	rc = rc ? rc : group_allgather(group, mine, cards, sizeof(*mine));
	if (!rc)
		rc = group_agree_status(group, make_window(moe, cards, mine), "tern_moe_create");
	rc = rc ? rc : group_allgather(group, mine, cards, sizeof(*mine));
	if (!rc)
		rc = group_agree_status(group, open_windows(moe, cards), "tern_moe_create");
	if (!rc && moe->nodes.nr_nodes > 1)
		rc = device_far_open(moe, moe->device->ops, &moe->device->layout, moe->device->windows, &moe->device->far);
	if (!rc)
		rc = group_agree_status(group, open_exchange(moe, cards), "tern_moe_create");
	return rc;
}

int device_open(tern_moe *moe)
{
	struct device_card mine = {.lines = 0}, *cards = calloc(moe->nr_ranks, sizeof(*cards));
	int rc;

	moe->device = calloc(1, sizeof(*moe->device));
	rc = cards && moe->device ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u ranks", moe->nr_ranks);
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : share(moe, cards, &mine);
	free(cards);
	return rc;
}

/* All rounds are over on this rank: what peers store here for them has come, since this rank's last kernels waited for it. */
static bool is_at_rest(const tern_moe *moe)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		if (moe->slots[slot].state != SLOT_IDLE)
			return false;
	return !moe->failed;
}

void device_leave(tern_moe *moe)
{
	if (moe->device)
		moe->device->busy = !is_at_rest(moe);
}

void device_close(tern_moe *moe)
{
	struct device *d = moe->device;

	if (!d)
		return;
	for (uint32_t r = 0; d->opened && r < moe->nr_ranks; r++)
		if (d->opened[r])
			d->ops->window_close(d->windows[r]);
	if (d->exchange)
		d->ops->exchange_close(d->exchange);
	device_far_close(moe, d->far);
	if (d->window && !d->busy) /* else a peer's late store would end that peer's process */
		d->ops->memory_free(d->window);
	free(d->windows);
	free(d->opened);
	free(d->streams);
	free(d->tally);
	free(d->since);
	free(d);
	moe->device = NULL;
}

void device_memory(const tern_moe *moe, struct tern_memory *memory)
{
	const struct device_layout *l = &moe->device->layout;

	uint64_t inside = moe->config.mode == TERN_HIGH_THROUGHPUT ? moe->config.nr_slots * (l->ht.results - l->ht.x) : 0; /* rows, as far as they lie in the window */

	*memory = (struct tern_memory){.window_bytes = l->window_bytes - inside, .output_bytes = l->output_bytes, .private_bytes = l->private_bytes,
		.staging_bytes = device_far_bytes(moe->device->far)};
}

/* ---- what kernels have reported ------------------------------------------------------------------------------ */

/* 0, or how that rank went; *cause: the engine's, "" where there is none. */
static int is_gone(const tern_moe *moe, uint32_t rank, const char **cause)
{
	*cause = "";
	if (is_far(moe, rank))
		return engine_peer_down(moe->group->engine, rank, cause);
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

static int kernel_has_failed(tern_moe *moe, uint32_t slot, const struct ll_report *r)
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
			return kernel_has_failed(moe, slot, &report);
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

/* ---- settings ------------------------------------------------------------------------------------------------ */

static int check_device(tern_moe *moe, const char *call)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "%s: moe is NULL", call);
	return moe->device ? 0 : fail(TERN_ERR_INVALID, "%s: this exchange is not on a device", call);
}

int tern_moe_set_stream(tern_moe *moe, uint32_t slot, void *stream)
{
	int rc = check_device(moe, "tern_moe_set_stream");

	rc = rc ? rc : slot_check(moe, slot, "tern_moe_set_stream");
	if (!rc)
		moe->device->streams[slot].stream = stream;
	return rc;
}

int tern_moe_set_nr_tokens_at(tern_moe *moe, uint32_t slot, const uint32_t *nr_tokens)
{
	int rc = check_device(moe, "tern_moe_set_nr_tokens_at");

	rc = rc ? rc : slot_check(moe, slot, "tern_moe_set_nr_tokens_at");
	if (!rc && (uintptr_t)nr_tokens % sizeof(*nr_tokens))
		rc = fail(TERN_ERR_INVALID, "tern_moe_set_nr_tokens_at: %p is not aligned to 4 bytes", (const void *)nr_tokens);
	rc = rc || !nr_tokens ? rc : passed_on(moe->device, moe->device->ops->pointer_check(nr_tokens));
	if (!rc)
		moe->device->streams[slot].nr_tokens_at = nr_tokens;
	return rc;
}

int tern_moe_set_sms(tern_moe *moe, uint32_t nr_sms)
{
	int rc = check_device(moe, "tern_moe_set_sms");

	if (!rc)
		moe->device->nr_sms = nr_sms;
	return rc;
}

/* ---- the halves ---------------------------------------------------------------------------------------------- */

static struct device_call call_of(const tern_moe *moe, uint32_t slot, uint32_t roles)
{
	const struct device *d = moe->device;

	return (struct device_call){.slot = slot,
		.roles = roles,
		.stream = d->streams[slot].stream,
		.nr_tokens_at = d->streams[slot].nr_tokens_at,
		.nr_sms = d->nr_sms,
		.wait_ns = (uint64_t)moe->wait_ms * 1000000};
}

/* What was found wrong with earlier ids is tern_moe_status's to tell. */
static int check_slot(tern_moe *moe, uint32_t slot, enum slot_state state, const char *call)
{
	struct ll_report report = {0};
	int rc = slot_check(moe, slot, call);

	for (uint32_t i = 0; i < (rc ? 0 : moe->config.nr_slots) && !rc; i++) {
		moe->device->ops->read_report(moe->device->exchange, i, &report);
		rc = report.reason ? kernel_has_failed(moe, i, &report) : 0;
	}
	if (!rc && moe->slots[slot].state != state)
		rc = slot_wrong_state(moe, slot, call);
	return rc;
}

static int check_reachable(const tern_moe *moe, const char *name, const void *pointer)
{
	int rc = pointer ? moe->device->ops->pointer_check(pointer) : 0;

	return rc ? fail(rc, "%s: %s", name, moe->device->ops->error_text()) : 0;
}

static int check_rows(const tern_moe *moe, const char *name, const void *rows, size_t stride)
{
	if ((uintptr_t)rows % 16 || stride % 16 || (stride && stride < moe->layout.combine_row_bytes))
		return fail(TERN_ERR_INVALID, "combine: %s at %p with a stride of %zu bytes for rows of %u; 16-byte alignment", name, rows, stride,
			moe->layout.combine_row_bytes);
	return check_reachable(moe, name, rows);
}

static int check_dispatch(tern_moe *moe, const struct tern_dispatch *args, const char *call)
{
	int rc = args && args->size == sizeof(*args) ? 0 : fail(TERN_ERR_INVALID, "%s: args is NULL or args.size is wrong", call);

	rc = rc ? rc : check_slot(moe, args->slot, SLOT_IDLE, call);
	rc = rc ? rc : routes_check(moe, args);
	if (rc || !args->nr_tokens)
		return rc;
	rc = check_reachable(moe, "x", args->x);
	rc = rc ? rc : check_reachable(moe, "scales", args->scales);
	rc = rc ? rc : check_reachable(moe, "topk_ids", args->topk_ids);
	return rc ? rc : check_reachable(moe, "topk_weights", args->topk_weights);
}

static int check_received(tern_moe *moe, const struct tern_received *received, const char *call)
{
	bool fp8 = moe->layout.scales_bytes != 0;
	int rc;

	if (!received || received->size != sizeof(*received))
		return fail(TERN_ERR_INVALID, "%s: received is NULL or received.size is wrong", call);
	if (!received->into_x && moe->config.caller_output)
		return fail(TERN_ERR_INVALID, "%s: into_x is NULL, and caller_output was set", call);
	if (received->into_x && moe->config.mode == TERN_HIGH_THROUGHPUT)
		return fail(TERN_ERR_INVALID, "%s: into_x is given, but in high-throughput mode rows arrive in library memory", call);
	if (received->into_x && ((uintptr_t)received->into_x % 16 || (fp8 && !received->into_scales)))
		return fail(TERN_ERR_INVALID, "%s: into_x is not aligned to 16 bytes, or into_scales is NULL with FP8", call);
	if (received->into_x && fp8 && (uintptr_t)received->into_scales % scale_bytes(moe->config.scale))
		return fail(TERN_ERR_INVALID, "%s: into_scales at %p has to be aligned to %u bytes", call, received->into_scales, scale_bytes(moe->config.scale));
	rc = check_reachable(moe, "into_x", received->into_x);
	return rc || !fp8 ? rc : check_reachable(moe, "into_scales", received->into_scales);
}

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
	return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* One kernel reads x and writes into_x, in no order. */
static int check_apart(const tern_moe *moe, const struct tern_dispatch *args, const struct tern_received *received)
{
	uint64_t x_bytes = x_row_bytes(moe), into_bytes = moe->layout.positions * moe->layout.payload_bytes;

	if (!received->into_x || !args->nr_tokens)
		return 0;
	x_bytes += (args->nr_tokens - 1) * (uint64_t)(args->x_stride ? args->x_stride : x_bytes);
	if (!overlap(args->x, x_bytes, received->into_x, into_bytes))
		return 0;
	return fail(TERN_ERR_INVALID, "tern_dispatch: x, %llu bytes at %p, overlaps into_x, %llu bytes at %p", (unsigned long long)x_bytes, args->x,
		(unsigned long long)into_bytes, received->into_x);
}

static int put_dispatch(
	tern_moe *moe, uint32_t slot, uint32_t roles, const struct tern_dispatch *args, struct tern_received *received, enum slot_state next)
{
	struct device_call call = call_of(moe, slot, roles);
	int rc;

	moe->device->busy = true;
	rc = passed_on(moe->device, moe->device->ops->dispatch(moe->device->exchange, &call, args, received));
	if (rc)
		return rc;
	moe->slots[slot].state = next;
	if (args)
		moe->slots[slot].nr_tokens = args->nr_tokens;
	return 0;
}

int device_dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	int rc = check_dispatch(moe, args, "tern_dispatch_send");

	return rc ? rc : put_dispatch(moe, args->slot, DEVICE_SEND, args, NULL, SLOT_DISPATCHED);
}

int device_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received)
{
	int rc = check_slot(moe, slot, SLOT_DISPATCHED, "tern_dispatch_recv");

	rc = rc ? rc : check_received(moe, received, "tern_dispatch_recv");
	return rc ? rc : put_dispatch(moe, slot, DEVICE_RECEIVE, NULL, received, SLOT_RECEIVED);
}

int device_dispatch(tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received)
{
	int rc = check_dispatch(moe, args, "tern_dispatch");

	rc = rc ? rc : check_received(moe, received, "tern_dispatch");
	rc = rc ? rc : check_apart(moe, args, received);
	return rc ? rc : put_dispatch(moe, args->slot, DEVICE_SEND | DEVICE_RECEIVE, args, received, SLOT_RECEIVED);
}

static int check_combine(tern_moe *moe, const struct tern_combine *args, const char *call)
{
	int rc = args && args->size == sizeof(*args) ? 0 : fail(TERN_ERR_INVALID, "%s: args is NULL or args.size is wrong", call);

	rc = rc ? rc : check_slot(moe, args->slot, SLOT_RECEIVED, call);
	return rc ? rc : check_rows(moe, "y", args->y, args->y_stride);
}

static int check_out(const tern_moe *moe, uint32_t slot, const void *out, size_t stride)
{
	if (!out && moe->slots[slot].nr_tokens)
		return fail(TERN_ERR_INVALID, "combine: out is NULL for %u tokens", moe->slots[slot].nr_tokens);
	return check_rows(moe, "out", out, stride);
}

static int put_combine(
	tern_moe *moe, uint32_t slot, uint32_t roles, const struct tern_combine *args, void *out, size_t stride, enum slot_state next)
{
	struct device_call call = call_of(moe, slot, roles);
	int rc = passed_on(moe->device, moe->device->ops->combine(moe->device->exchange, &call, args, out, stride));

	if (!rc)
		moe->slots[slot].state = next;
	return rc;
}

int device_combine_send(tern_moe *moe, const struct tern_combine *args)
{
	int rc = check_combine(moe, args, "tern_combine_send");

	return rc ? rc : put_combine(moe, args->slot, DEVICE_SEND, args, NULL, 0, SLOT_COMBINED);
}

int device_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride)
{
	int rc = check_slot(moe, slot, SLOT_COMBINED, "tern_combine_recv");

	rc = rc ? rc : check_out(moe, slot, out, out_stride);
	return rc ? rc : put_combine(moe, slot, DEVICE_RECEIVE, NULL, out, out_stride, SLOT_IDLE);
}

int device_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride)
{
	int rc = check_combine(moe, args, "tern_combine");

	rc = rc ? rc : check_out(moe, args->slot, out, out_stride);
	return rc ? rc : put_combine(moe, args->slot, DEVICE_SEND | DEVICE_RECEIVE, args, out, out_stride, SLOT_IDLE);
}

/* The kernel waits for everybody's word itself, so the slot is free behind it. */
int device_release(tern_moe *moe, uint32_t slot)
{
	struct device_call call;
	int rc = check_slot(moe, slot, SLOT_RECEIVED, "tern_release");

	if (rc)
		return rc;
	call = call_of(moe, slot, DEVICE_SEND | DEVICE_RECEIVE);
	rc = passed_on(moe->device, moe->device->ops->release(moe->device->exchange, &call));
	if (!rc)
		moe->slots[slot].state = SLOT_IDLE;
	return rc;
}
