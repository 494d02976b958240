/* SPDX-License-Identifier: Apache-2.0 */
/* The first half: tokens to the ranks of their experts. */
#include <string.h>

#include "base/trace.h"
#include "exchange/arguments.h"
#include "exchange/cpu/dispatch_send.h"
#include "exchange/cpu/dispatch_ll.h"
#include "exchange/cpu/outgoing.h"
#include "base/error.h"
#include "exchange/elastic.h"
#include "exchange/state.h"
#include "exchange/cpu/halves.h"
#include "exchange/cpu/kernels/kernels.h"
#include "path/internode_send.h"
#include "path/path.h"
#include "exchange/plan.h"
#include "exchange/cpu/routes.h"
#include "exchange/row_work.h"
#include "exchange/rows.h"
#include "exchange/cpu/liveness.h"
#include "exchange/place.h"

/* Where the row goes, as the counts of all have settled it. */
static void take_places(struct tern_moe *moe, struct slot *s, uint32_t rank,
	const struct token_rows *rows, uint32_t row, struct row_header *header)
{
	bool by_source = moe->config.layout == TERN_BY_SOURCE;
	uint64_t position = by_source ? s->place[rank]++ : 0;

	for (uint32_t i = 0; i < header->nr_routes; i++) {
		size_t index = (size_t)header->token * moe->config.topk +
			       rows->k[rows->rows[row].first + i];

		header->routes[i].position =
			(uint32_t)(by_source ? position : s->place[s->physical[index]]++);
	}
}

/* Not mapped, and reached through its node's gateway. */
static bool goes_by_channel(const tern_moe *moe, uint32_t rank)
{
	return !path_is_mapped(moe, rank);
}

static void send_row(tern_moe *moe, uint32_t slot, bool stream, const struct token_rows *rows,
	uint32_t row, uint32_t token, struct row_op *op)
{
	struct slot *s = &moe->slots[slot];
	uint32_t rank = rows->rows[row].rank;
	struct row_header *shared = header_at(moe, path_region(moe, slot, rank), s->row_of[rank]++);
	union header_copy copy;

	dispatch_header(moe, s, token, rows, row, &copy.header);
	take_places(moe, s, rank, rows, row, &copy.header);
	rows_place(moe, op, stream, path_window(moe, rank, layout_output(&moe->layout, slot)),
		moe->rank, &copy.header);
	memcpy(shared, &copy,
		sizeof(copy.header) + copy.header.nr_routes * sizeof(copy.header.routes[0]));
}

/* The next of a token's rows, from `row` on, for a rank of that node; nr_rows: none. */
static uint32_t next_to_node(
	const tern_moe *moe, const struct token_rows *rows, uint32_t row, uint32_t node)
{
	while (row < rows->nr_rows && moe->topology.node_of[rows->rows[row].rank] != node)
		row++;
	return row;
}

/* Whether `row` goes by a channel and is the first of its token to that node. */
static bool leads_to_node(const tern_moe *moe, const struct token_rows *rows, uint32_t row)
{
	uint32_t rank = rows->rows[row].rank;

	return goes_by_channel(moe, rank) &&
	       next_to_node(moe, rows, 0, moe->topology.node_of[rank]) == row;
}

/* Once for all ranks of a node: `row` is the first of them. */
static void send_to_node(tern_moe *moe, uint32_t slot, const struct token_rows *rows, uint32_t row,
	uint32_t token, struct row_op *op)
{
	struct slot *s = &moe->slots[slot];
	uint32_t node = moe->topology.node_of[rows->rows[row].rank];
	struct chunk_writer *writer = channels_writer(moe, node);
	union header_copy copy;
	uint8_t *payload;

	chunk_row_begin(writer);
	for (; row < rows->nr_rows; row = next_to_node(moe, rows, row + 1, node)) {
		uint32_t rank = rows->rows[row].rank;

		dispatch_header(moe, s, token, rows, row, &copy.header);
		take_places(moe, s, rank, rows, row, &copy.header);
		chunk_row_place(writer, rank, s->row_of[rank]++, &copy.header);
	}
	payload = chunk_row_end(writer, &moe->layout);
	row_op_to(op, payload, payload + moe->layout.payload_bytes, false);
}

struct full_channel {
	tern_moe *moe;
	uint32_t node;
};

static bool has_room(void *ctx)
{
	struct full_channel *full = ctx;

	return channel_has_room(full->moe, full->node);
}

static int wait_for_channel(tern_moe *moe, uint32_t slot, uint32_t node)
{
	struct full_channel full = {moe, node};

	return wait_for_room(moe, slot, channel_gateway(moe, node), has_room, &full);
}

static int make_room_to(tern_moe *moe, uint32_t slot, uint32_t node, uint32_t bytes)
{
	int rc = channels_room(moe, slot, node, bytes);

	while (rc == CHANNEL_FULL) {
		rc = wait_for_channel(moe, slot, node);
		rc = rc ? rc : channels_room(moe, slot, node, bytes);
	}
	return rc;
}

static int finish_channels(tern_moe *moe, uint32_t slot)
{
	uint32_t node;
	int rc = channels_finish(moe, slot, &node);

	while (rc == CHANNEL_FULL) {
		rc = wait_for_channel(moe, slot, node);
		rc = rc ? rc : channels_finish(moe, slot, &node);
	}
	return rc;
}

/* Room for a token's rows to all nodes, before any of them is stored: a time-out leaves no token
 * half sent. */
static int make_room(tern_moe *moe, uint32_t slot, const struct token_rows *rows)
{
	int rc = 0;

	for (uint32_t i = 0; i < rows->nr_rows && !rc; i++) {
		uint32_t node = moe->topology.node_of[rows->rows[i].rank], nr_places = 0,
			 nr_routes = 0;

		if (!leads_to_node(moe, rows, i))
			continue;
		for (uint32_t j = i; j < rows->nr_rows; j = next_to_node(moe, rows, j + 1, node)) {
			nr_places++;
			nr_routes += rows->rows[j].nr;
		}
		rc = make_room_to(
			moe, slot, node, chunk_row_bytes(&moe->layout, nr_places, nr_routes));
	}
	return rc;
}

static int send_token(
	tern_moe *moe, uint32_t slot, bool stream, const struct tern_dispatch *args, uint32_t token)
{
	struct token_rows rows;
	struct row_op *op;
	int rc = 0;

	plan_token(&moe->placement, moe->slots[slot].physical + (size_t)token * moe->config.topk,
		moe->config.topk, &rows);
	if (path_has_engine(moe))
		rc = make_room(moe, slot, &rows);
	if (rc || !rows.nr_rows)
		return rc;
	op = row_work_next(moe->work);
	dispatch_token(moe, op, args, token);
	for (uint32_t i = 0; i < rows.nr_rows; i++)
		if (!goes_by_channel(moe, rows.rows[i].rank))
			send_row(moe, slot, stream, &rows, i, token, op);
		else if (leads_to_node(moe, &rows, i))
			send_to_node(moe, slot, &rows, i, token, op);
	row_work_tell(moe->work);
	return 0;
}

static void begin_rows(tern_moe *moe, struct slot *s)
{
	memset(s->row_of, 0, moe->nr_ranks * sizeof(*s->row_of));
	memset(s->chunks_to, 0, moe->topology.nr_nodes * sizeof(*s->chunks_to));
	memcpy(s->home_next, s->home_start,
		(size_t)moe->nr_ranks * moe->config.replica_ranks * sizeof(*s->home_next));
	s->next_token = moe->rank - home_first(moe, moe->rank);
	s->next_node = 0;
	s->state = SLOT_SENDING;
}

static int send_rows(tern_moe *moe, uint32_t slot, const struct tern_dispatch *args)
{
	TRACE(TRACE_PACK, TRACE_NOBODY);
	struct slot *s = &moe->slots[slot];
	bool stream = routes_bytes(moe, s) > moe->stream_bytes;
	int rc = 0, flushed;

	while (s->next_token < s->nr_tokens && !rc) {
		rc = send_token(moe, slot, stream, args, s->next_token);
		s->next_token += rc ? 0 : moe->config.replica_ranks;
	}
	row_work_finish(moe->work);
	if (stream)
		stream_fence();
	flushed = rc == TERN_ERR_TIMEOUT ? channels_flush(moe, slot) : 0;
	return flushed ? flushed : rc;
}

static enum word_kind counts_word(uint32_t epoch)
{
	return epoch & 1 ? WORD_COUNTS_ODD : WORD_COUNTS_EVEN;
}

/* All are filled in before one is sent: ranks that are not mapped share a place. */
static int send_all_counts(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];
	struct publication p = {.slot = slot,
		.kind = counts_word(s->epoch),
		.phase = TERN_PHASE_COUNTS,
		.offset = layout_counts(&moe->layout, slot, s->epoch, moe->rank),
		.bytes = moe->layout.counts_bytes};
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t *counts = (uint32_t *)path_counts(moe, slot, r);

		memcpy(counts, s->routes_to, moe->placement.nr_physical * sizeof(*counts));
		memcpy(counts + moe->placement.nr_physical, s->rows_to,
			moe->nr_ranks * sizeof(*counts));
		memcpy(counts + moe->placement.nr_physical + moe->nr_ranks, &s->placed,
			sizeof(s->placed));
	}
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		if (!moe->alive[r])
			continue;
		p.from = path_counts(moe, slot, r);
		p.count = s->rows_to[r];
		rc = path_publish(moe, r, &p);
	}
	return rc;
}

/* Copies all counts out of shared memory, where peers could still change them, and holds them
 * against what is possible: rows are placed in peers' windows by them. */
static int take_counts(tern_moe *moe, uint32_t slot)
{
	const struct layout *l = &moe->layout;
	struct slot *s = &moe->slots[slot];
	const uint32_t *mine = (const uint32_t *)(moe->all_counts + moe->rank * l->counts_bytes);

	memcpy(moe->all_counts, own(moe, layout_counts(l, slot, s->epoch, 0)),
		l->nr_ranks * l->counts_bytes);
	for (uint32_t r = 0; r < l->nr_ranks; r++)
		if (!moe->alive[r])
			memset(moe->all_counts + r * l->counts_bytes, 0, l->counts_bytes);
	for (uint32_t r = 0; r < l->nr_ranks; r++) {
		const uint32_t *counts = (const uint32_t *)(moe->all_counts + r * l->counts_bytes);
		uint32_t most = 0;

		for (uint32_t i = 0; i < l->nr_physical + l->nr_ranks; i++)
			most = counts[i] > most ? counts[i] : most;
		if (most > l->share_tokens) {
			fail(TERN_ERR_PROTOCOL,
				"rank %u counted %u rows for one expert or rank; %u are possible "
				"(slot %u, epoch %u)",
				r, most, l->share_tokens, slot, s->epoch);
			return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
		}
	}
	if (!memcmp(mine, s->routes_to, l->nr_physical * sizeof(*mine)) &&
		!memcmp(mine + l->nr_physical, s->rows_to, l->nr_ranks * sizeof(*mine)))
		return 0;
	fail(TERN_ERR_PROTOCOL, "rank %u's own counts were overwritten (slot %u, epoch %u)",
		moe->rank, slot, s->epoch);
	return exchange_fail(moe, TERN_ERR_PROTOCOL, -1);
}

/* All counts are here: where this rank's rows go, and what it will receive. Every rank adds up the
 * same numbers, so all come to the same verdict on capacity. */
static int place_all_rows(tern_moe *moe, uint32_t slot)
{
	const struct layout *l = &moe->layout;
	struct slot *s = &moe->slots[slot];
	uint64_t *spans = moe->totals + l->nr_physical;
	struct plan_counts counts = {moe->all_counts, l->counts_bytes, l->nr_ranks, l->nr_physical};
	struct plan_limits limits = {moe->config.layout, moe->config.alignment, l->capacity};
	int over, rc = take_counts(moe, slot);

	if (rc)
		return rc;
	rc = placed_check(moe, slot,
		moe->all_counts + (l->nr_physical + l->nr_ranks) * sizeof(uint32_t),
		l->counts_bytes);
	if (rc)
		return rc;
	over = plan_places(&moe->placement, &counts, &limits, moe->rank, s->place, moe->totals);
	if (over >= 0) {
		slot_end_round(moe, slot);
		return fail(TERN_ERR_CAPACITY,
			"rank %d would receive more than its capacity of %llu rows%s (slot %u, "
			"epoch %u); no row was "
			"sent",
			over, (unsigned long long)l->capacity,
			moe->config.layout == TERN_PADDED ? " for one expert" : "", slot,
			s->epoch - 1);
	}
	s->extent = spans[moe->rank];
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		s->rows_from[r] =
			((const uint32_t *)(counts.counts +
					    r * counts.stride))[l->nr_physical + moe->rank];
	for (uint32_t p = 0; p < l->nr_physical && moe->config.layout != TERN_BY_SOURCE; p++)
		if (moe->placement.rank[p] == moe->rank)
			s->counts[moe->placement.local[p]] = (uint32_t)moe->totals[p];
	return 0;
}

int wait_for_released(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	int rc = wait_for_all(moe, slot, WORD_COMBINE, TERN_PHASE_COMBINE);

	if (rc)
		return rc;
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint64_t word = arrival_observe((struct arrival *)own(
			moe, layout_word(&moe->layout, slot, WORD_COMBINE, r)));

		if (word_count(word) != WORD_RELEASED && moe->alive[r]) {
			fail(TERN_ERR_PROTOCOL,
				"rank %u combined what rank %u released (slot %u, epoch %u)", r,
				moe->rank, slot, s->epoch);
			return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
		}
	}
	slot_end_round(moe, slot);
	return 0;
}

static int send_counts_first(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	int rc = 0;

	if (s->state == SLOT_IDLE) {
		rc = path_begin(moe, slot, counts_word(s->epoch));
		rc = rc ? rc : send_all_counts(moe, slot);
		if (rc)
			return rc;
		s->state = SLOT_COUNTED;
	}
	rc = wait_for_all(moe, slot, counts_word(s->epoch), TERN_PHASE_COUNTS);
	return rc ? rc : place_all_rows(moe, slot);
}

/* Timed out before, and called again. */
static bool goes_on(const struct slot *s, bool joined)
{
	return s->state == SLOT_COUNTED || s->state == SLOT_SENDING || s->state == SLOT_FINISHING ||
	       (joined && s->state == SLOT_DISPATCHED);
}

/* An elastic exchange has waited there. */
static bool may_follow_release(const tern_moe *moe, const struct slot *s)
{
	return s->state == SLOT_RELEASED && !moe->config.elastic;
}

static int check_plan(const tern_moe *moe, const struct tern_dispatch *args)
{
	struct kept_plan *plan;
	int rc = plan_find(moe, args->plan, &plan);

	rc = rc || moe->config.elastic ? rc : plan_check_placed(moe, plan->id, &plan->placed);
	return rc ? rc : arguments_plan(args, plan->nr_tokens);
}

int dispatch_check(tern_moe *moe, const struct tern_dispatch *args, bool joined)
{
	const char *call = joined ? "tern_dispatch" : "tern_dispatch_send";
	const struct slot *s = &moe->slots[args->slot];

	if (goes_on(s, joined) && s->nr_tokens != args->nr_tokens)
		return fail(TERN_ERR_INVALID,
			"dispatch: called again with %u tokens; it was begun with %u",
			args->nr_tokens, s->nr_tokens);
	if (goes_on(s, joined) && s->plan != args->plan)
		return fail(TERN_ERR_INVALID,
			"dispatch: called again with plan %llu; it was begun with %llu",
			(unsigned long long)args->plan, (unsigned long long)s->plan);
	if (s->state != SLOT_IDLE && !may_follow_release(moe, s) && !goes_on(s, joined))
		return slot_wrong_state(moe, args->slot, call);
	if (args->plan && !goes_on(s, joined)) {
		int rc = check_plan(moe, args);

		if (rc)
			return rc;
	}
	return arguments_dispatch(moe, args);
}

/* To ranks that are mapped: rows for the others left by channels. */
static int publish_rows(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];
	struct publication p = {.slot = slot, .kind = WORD_DISPATCH, .phase = TERN_PHASE_DISPATCH};
	int rc = 0;

	/* Starting after itself, so that the ranks do not all ring the same one. */
	for (uint32_t i = 0; i < moe->nr_ranks && !rc; i++) {
		uint32_t r = (moe->rank + 1 + i) % moe->nr_ranks;

		if (goes_by_channel(moe, r) || !moe->alive[r])
			continue;
		p.count = s->rows_to[r];
		rc = path_publish(moe, r, &p);
	}
	return rc;
}

/* What an elastic exchange dispatches with a plan it routes anew: replicas may be gone. */
static const struct tern_dispatch *routed_anew(
	const tern_moe *moe, const struct tern_dispatch *args, struct tern_dispatch *room)
{
	struct kept_plan *plan;

	if (!args->plan || !moe->config.elastic || plan_find(moe, args->plan, &plan))
		return args;
	*room = *args;
	room->topk_ids = plan->ids;
	room->topk_ids_bits = 32;
	room->topk_weights = plan_weights(moe, plan);
	room->plan = 0;
	return room;
}

/* That there is one has been checked. */
static void take_plan(const tern_moe *moe, struct slot *s, uint64_t id)
{
	struct kept_plan *plan;

	if (!plan_find(moe, id, &plan))
		plan_restore(moe, s, plan);
}

/* What has to be waited for before anything is stored for other ranks. */
static int prepare_round(tern_moe *moe, struct slot *s, const struct tern_dispatch *theirs)
{
	struct tern_dispatch room;
	const struct tern_dispatch *args = routed_anew(moe, theirs, &room);
	int rc = 0;

	if (s->state != SLOT_COUNTED) {
		if (moe->config.elastic)
			rc = elastic_begin_round(moe, args->slot, args->nr_tokens, args->tag);
		rc = rc || args->plan ? rc : routes_read(moe, s, args);
		if (!rc && s->state == SLOT_RELEASED)
			rc = wait_for_released(moe, args->slot);
		rc = rc ? rc : path_begin(moe, args->slot, WORD_DISPATCH);
		if (rc)
			return rc;
		if (args->plan)
			take_plan(moe, s, args->plan);
		else
			routes_count(moe, s, args);
		s->placed = s->owed ? (struct placed){0, 0} : moe->placement.placed;
		s->plan = theirs->plan;
		s->replays = false;
	}
	if (moe->config.mode == TERN_HIGH_THROUGHPUT && !args->plan)
		rc = send_counts_first(moe, args->slot);
	if (!rc)
		begin_rows(moe, s);
	return rc;
}

/* High throughput: every row to its final place, or on its way there. */
static int send_placed_rows(tern_moe *moe, const struct tern_dispatch *args)
{
	struct slot *s = &moe->slots[args->slot];
	int rc = 0;

	if (s->state == SLOT_SENDING) {
		rc = send_rows(moe, args->slot, args);
		rc = rc ? rc : publish_rows(moe, args->slot);
		s->state = rc ? s->state : SLOT_FINISHING;
	}
	return rc || !path_has_engine(moe) ? rc : finish_channels(moe, args->slot);
}

/* Called again after a time-out, it goes on where it was. */
int dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	TRACE(TRACE_DISPATCH_SEND, TRACE_NOBODY);
	struct slot *s = &moe->slots[args->slot];
	int rc = 0;

	if (s->state != SLOT_SENDING && s->state != SLOT_FINISHING)
		rc = prepare_round(moe, s, args);
	if (!rc && moe->config.mode == TERN_LOW_LATENCY)
		rc = dispatch_send_ll(moe, args);
	else if (!rc)
		rc = send_placed_rows(moe, args);
	if (rc)
		return rc;
	routes_account(moe, s);
	s->state = SLOT_DISPATCHED;
	return 0;
}

/* ---- nothing --------------------------------------------------------------------------------- */

/* A word to all that are mapped, and in low latency the head of a region without rows to others. */
static int publish_nothing(tern_moe *moe, uint32_t slot)
{
	struct publication p = {.slot = slot,
		.kind = WORD_DISPATCH,
		.phase = TERN_PHASE_DISPATCH,
		.count = WORD_REPLAYED};
	int rc = 0;

	for (uint32_t i = 0; i < moe->nr_ranks && !rc; i++) {
		uint32_t r = (moe->rank + 1 + i) % moe->nr_ranks;

		if (!moe->alive[r])
			continue;
		if (moe->config.mode == TERN_LOW_LATENCY && !path_is_mapped(moe, r)) {
			p.from = path_region(moe, slot, r);
			p.offset = layout_region(&moe->layout, slot, moe->rank);
			p.bytes = moe->layout.counts_bytes;
			((struct region_head *)(uintptr_t)p.from)->nr_rows = WORD_REPLAYED;
		} else if (goes_by_channel(moe, r))
			continue; /* whose end finish_channels tells */
		rc = path_publish(moe, r, &p);
	}
	return rc;
}

static int check_nothing(tern_moe *moe, uint32_t slot)
{
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t rows = word_count(arrival_observe((struct arrival *)own(
			moe, layout_word(&moe->layout, slot, WORD_DISPATCH, r))));
		bool by_channel =
			moe->config.mode == TERN_HIGH_THROUGHPUT && goes_by_channel(moe, r);

		if (rows == (by_channel ? 0 : WORD_REPLAYED) || !moe->alive[r])
			continue;
		fail(TERN_ERR_PROTOCOL,
			"rank %u dispatched where rank %u combines a plan again (slot %u, epoch "
			"%u)",
			r, moe->rank, slot, moe->slots[slot].epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
	}
	return 0;
}

static int begin_nothing(tern_moe *moe, uint32_t slot, const struct kept_plan *plan, uint64_t tag)
{
	struct slot *s = &moe->slots[slot];
	int rc = moe->config.elastic ? elastic_begin_round(moe, slot, true, tag) : 0;

	if (!rc && s->state == SLOT_RELEASED)
		rc = wait_for_released(moe, slot);
	rc = rc ? rc : path_begin(moe, slot, WORD_DISPATCH);
	if (rc)
		return rc;
	plan_restore(moe, s, plan);
	begin_rows(moe, s);
	s->placed = plan->placed;
	s->plan = plan->id;
	s->replays = true;
	s->replayed = plan;
	s->state = SLOT_REPLAYING;
	return publish_nothing(moe, slot);
}

int dispatch_nothing(tern_moe *moe, uint32_t slot, const struct kept_plan *plan, uint64_t tag)
{
	struct slot *s = &moe->slots[slot];
	bool channels = moe->config.mode == TERN_HIGH_THROUGHPUT && path_has_engine(moe);
	int rc = s->state == SLOT_REPLAYING ? 0 : begin_nothing(moe, slot, plan, tag);

	if (!rc && channels)
		rc = finish_channels(moe, slot);
	rc = rc ? rc : wait_for_all(moe, slot, WORD_DISPATCH, TERN_PHASE_DISPATCH);
	rc = rc ? rc : check_nothing(moe, slot);
	if (!rc)
		s->state = SLOT_RECEIVED;
	return rc;
}

int cpu_dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	int rc = dispatch_check(moe, args, false);

	return rc ? rc : dispatch_send(moe, args);
}
