/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch in low-latency mode: a region of rows for each rank, which leaves as soon as it is
 * filled in, so that the first are on the wire while others are packed. */
#include <string.h>

#include "base/trace.h"
#include "exchange/cpu/dispatch_ll.h"
#include "exchange/cpu/outgoing.h"
#include "exchange/cpu/kernels/kernels.h"
#include "path/path.h"
#include "exchange/cpu/routes.h"
#include "exchange/row_work.h"

static void fill_region_head(tern_moe *moe, uint32_t slot, uint32_t rank)
{
	const struct slot *s = &moe->slots[slot];
	struct region_head *head = (struct region_head *)path_region(moe, slot, rank);

	head->nr_rows = s->rows_to[rank];
	head->placed = s->placed;
}

/* How many rows the destination and each of its experts get, in front of its region. */
static void fill_region_heads(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		fill_region_head(moe, slot, r);

	for (uint32_t p = 0; p < moe->placement.nr_physical; p++) {
		uint8_t *region = path_region(moe, slot, moe->placement.rank[p]);

		((struct region_head *)region)->rows_of[moe->placement.local[p]] = s->routes_to[p];
	}
}

/* Who is masked may still read what it was sent before. */
static void fill_heads_of_unmasked(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (moe->alive[r])
			fill_region_head(moe, slot, r);
	for (uint32_t p = 0; p < moe->placement.nr_physical; p++) {
		uint32_t rank = moe->placement.rank[p];

		if (moe->alive[rank])
			((struct region_head *)path_region(moe, slot, rank))
				->rows_of[moe->placement.local[p]] = s->routes_to[p];
	}
}

/* The plan of every token of this rank, and its rows by rank, tokens ascending: those for rank r
 * end at row_of[r]. */
static void order_rows(tern_moe *moe, struct slot *s)
{
	const struct tern_moe_config *c = &moe->config;
	uint32_t end = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		s->row_of[r] = end;
		end += s->rows_to[r];
	}
	for (uint32_t t = moe->rank - home_first(moe, moe->rank); t < s->nr_tokens;
		t += c->replica_ranks) {
		struct token_rows *rows = &moe->outgoing.plans[t];

		plan_token(&moe->placement, s->physical + (size_t)t * c->topk, c->topk, rows);
		for (uint32_t i = 0; i < rows->nr_rows; i++)
			moe->outgoing.rows[s->row_of[rows->rows[i].rank]++] =
				(struct outgoing_row){.token = t, .row = i};
	}
}

/* Converted once, straight into the first region that gets it, from where the others are copied: a
 * region's rows are finished before the next one's begin. */
static void store_row(tern_moe *moe, bool stream, const struct tern_dispatch *args, uint32_t token,
	struct row_header *header)
{
	const struct layout *l = &moe->layout;
	struct row_source *source = &moe->outgoing.sources[token];
	uint8_t *payload = (uint8_t *)header + l->header_bytes,
		*scales = payload + l->payload_bytes;
	struct row_op *op = row_work_next(moe->work);

	if (source->payload) {
		row_op_of_dispatch(moe, op, ROW_KEPT);
		row_op_from(op, source->payload, source->scales);
	} else {
		dispatch_token(moe, op, args, token);
		if (op->change != ROW_KEPT)
			*source = (struct row_source){payload, scales};
	}
	row_op_to(op, payload, scales, stream && op->change == ROW_KEPT);
	row_work_tell(moe->work);
}

static void fill_region(tern_moe *moe, bool stream, const struct tern_dispatch *args, uint32_t rank)
{
	TRACE(TRACE_PACK_FOR, rank);
	struct slot *s = &moe->slots[args->slot];
	const struct outgoing_row *rows = moe->outgoing.rows + s->row_of[rank] - s->rows_to[rank];
	uint8_t *region = path_region(moe, args->slot, rank);

	for (uint32_t i = 0; i < s->rows_to[rank]; i++) {
		struct row_header *shared = header_at(moe, region, i);
		union header_copy copy;

		dispatch_header(moe, s, rows[i].token, &moe->outgoing.plans[rows[i].token],
			rows[i].row, &copy.header);
		store_row(moe, stream, args, rows[i].token, shared);
		memcpy(shared, &copy,
			sizeof(copy.header) +
				copy.header.nr_routes * sizeof(copy.header.routes[0]));
	}
}

static int publish_region(tern_moe *moe, uint32_t slot, uint32_t rank)
{
	const struct layout *l = &moe->layout;
	struct publication p = {.slot = slot,
		.kind = WORD_DISPATCH,
		.phase = TERN_PHASE_DISPATCH,
		.count = moe->slots[slot].rows_to[rank],
		.from = path_region(moe, slot, rank),
		.offset = layout_region(l, slot, moe->rank)};

	p.bytes = l->counts_bytes + (uint64_t)p.count * l->region_stride;
	return path_publish(moe, rank, &p);
}

/* Starting after itself, so that the ranks do not all serve the same one first. */
int dispatch_send_ll(tern_moe *moe, const struct tern_dispatch *args)
{
	struct slot *s = &moe->slots[args->slot];
	bool stream = routes_bytes(moe, s) > moe->stream_bytes;
	int rc = 0;

	if (moe->config.masks)
		fill_heads_of_unmasked(moe, args->slot);
	else
		fill_region_heads(moe, args->slot);
	order_rows(moe, s);
	memset(moe->outgoing.sources, 0, s->nr_tokens * sizeof(*moe->outgoing.sources));
	for (uint32_t i = 0; i < moe->nr_ranks && !rc; i++) {
		uint32_t rank = (moe->rank + 1 + i) % moe->nr_ranks;

		if (!moe->alive[rank])
			continue;
		fill_region(moe, stream && path_is_mapped(moe, rank), args, rank);
		row_work_finish(moe->work);
		if (stream)
			stream_fence();
		rc = publish_region(moe, args->slot, rank);
	}
	return rc;
}
