/* SPDX-License-Identifier: Apache-2.0 */
/* The second half: rows from all sources in the layout that experts want. */
#include <string.h>

#include "exchange/arguments.h"
#include "exchange/cpu/dispatch_send.h"
#include "base/error.h"
#include "base/trace.h"
#include "exchange/state.h"
#include "exchange/cpu/halves.h"
#include "exchange/cpu/received.h"
#include "exchange/cpu/kernels/kernels.h"
#include "exchange/row_work.h"
#include "exchange/rows.h"
#include "exchange/cpu/liveness.h"
#include "exchange/place.h"

/* Low latency; high throughput has looked at counts. */
static int check_heads(tern_moe *moe, uint32_t slot)
{
	const uint8_t *heads = own(moe, layout_region(&moe->layout, slot, 0)) +
			       offsetof(struct region_head, placed);

	if (moe->config.mode != TERN_LOW_LATENCY)
		return 0;
	return placed_check(moe, slot, heads, moe->layout.region_bytes);
}

/* How many rows each source announced; high throughput knows already. */
static int check_words(tern_moe *moe, uint32_t slot)
{
	const struct layout *l = &moe->layout;
	struct slot *s = &moe->slots[slot];
	bool known = moe->config.mode == TERN_HIGH_THROUGHPUT;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t rows = word_count(arrival_observe(
			(struct arrival *)own(moe, layout_word(l, slot, WORD_DISPATCH, r))));

		rows = moe->alive[r] ? rows : 0;
		if (rows == WORD_REPLAYED) {
			fail(TERN_ERR_PROTOCOL,
				"rank %u combines a plan again where rank %u dispatched (slot %u, "
				"epoch %u)",
				r, moe->rank, slot, s->epoch);
			return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
		}
		if (rows > l->share_tokens || (known && rows != s->rows_from[r])) {
			fail(TERN_ERR_PROTOCOL,
				"rank %u announced %u rows to rank %u; %u were %s (slot %u, epoch "
				"%u)",
				r, rows, moe->rank, known ? s->rows_from[r] : l->share_tokens,
				known ? "due" : "possible", slot, s->epoch);
			return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
		}
		s->rows_from[r] = rows;
	}
	return 0;
}

static void add_up_experts(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];

	memset(s->counts, 0, moe->nr_local * sizeof(*s->counts));
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		const struct region_head *head =
			(const struct region_head *)own(moe, layout_region(&moe->layout, slot, r));

		if (!moe->alive[r])
			continue;
		for (uint32_t e = 0; e < moe->nr_local; e++)
			s->counts[e] += head->rows_of[e];
	}
}

/* counts are known (BY_SOURCE: rows_from); from them offsets, rows and extent. False: more rows
 * than correct peers could send. */
static bool set_offsets(tern_moe *moe, struct slot *s)
{
	uint32_t nr = moe->nr_local;
	uint64_t end = 0;
	bool fits = true;

	if (moe->config.layout == TERN_BY_SOURCE) {
		nr = moe->nr_ranks;
		memcpy(s->counts, s->rows_from, nr * sizeof(*s->counts));
	}
	s->nr_rows = 0;
	for (uint32_t i = 0; i < nr; i++) {
		s->nr_rows += s->counts[i];
		fits &= s->counts[i] <= moe->layout.capacity;
		if (moe->config.layout == TERN_PADDED)
			s->offsets[i] = i * moe->layout.capacity;
		else
			s->offsets[i] = moe->config.layout == TERN_CONTIGUOUS
						? align_up(end, moe->config.alignment)
						: end;
		end = s->offsets[i] + s->counts[i];
	}
	s->extent = moe->config.layout == TERN_PADDED ? nr * moe->layout.capacity : end;
	return fits && s->extent <= moe->layout.positions;
}

static int bad_row(tern_moe *moe, uint32_t slot, uint32_t source, uint32_t row)
{
	fail(TERN_ERR_PROTOCOL, "row %u from rank %u contradicts its counts (slot %u, epoch %u)",
		row, source, slot, moe->slots[slot].epoch);
	return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)source);
}

/* Low latency: one row from its region to its positions, which combine finds in the header. */
static bool unpack_row(tern_moe *moe, struct slot *s, bool stream, uint32_t source,
	struct row_header *shared, uint64_t *next_row)
{
	const struct layout *l = &moe->layout;
	const uint8_t *payload = (const uint8_t *)shared + l->header_bytes;
	struct row_op *op = row_work_next(moe->work);
	union header_copy copy;

	if (!header_take(moe, shared, &copy))
		return false;
	row_op_of_dispatch(moe, op, ROW_KEPT);
	row_op_from(op, payload, payload + l->payload_bytes);
	for (uint32_t i = 0; i < copy.header.nr_routes; i++) {
		const struct route *route = &copy.header.routes[i];
		uint64_t position;

		if (route->expert >= moe->nr_local)
			return false;
		if (moe->config.layout == TERN_BY_SOURCE) {
			shared->routes[i].position = (uint32_t)*next_row;
			continue;
		}
		if (moe->cursor[route->expert] >= s->counts[route->expert])
			return false;
		position = s->offsets[route->expert] + moe->cursor[route->expert]++;
		shared->routes[i].position = (uint32_t)position;
		row_to_position(moe, op, stream, s->x, s->scales, position);
		row_describe(moe, s->output, position, source, &copy.header, route);
	}
	if (moe->config.layout == TERN_BY_SOURCE) {
		row_to_position(moe, op, stream, s->x, s->scales, *next_row);
		row_describe(moe, s->output, *next_row, source, &copy.header, NULL);
	}
	row_work_tell(moe->work);
	++*next_row;
	return true;
}

/* Rows that were counted and did not come would leave holes in what the caller gets. */
static int check_complete(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t e = 0; e < moe->nr_local && moe->config.layout != TERN_BY_SOURCE; e++) {
		if (moe->cursor[e] == s->counts[e])
			continue;
		fail(TERN_ERR_PROTOCOL,
			"%u rows came for local expert %u of rank %u; its peers had counted %u "
			"(slot %u, epoch %u)",
			moe->cursor[e], e, moe->rank, s->counts[e], slot, s->epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, -1);
	}
	return 0;
}

static int unpack_rows(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	uint64_t next_row = 0;
	bool stream = s->nr_rows * moe->layout.payload_bytes > moe->stream_bytes;

	memset(moe->cursor, 0, moe->layout.max_local * sizeof(*moe->cursor));
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		TRACE(TRACE_UNPACK_OF, r);
		uint8_t *region = own(moe, layout_region(&moe->layout, slot, r));

		for (uint32_t i = 0; i < s->rows_from[r]; i++)
			if (!unpack_row(moe, s, stream, r, header_at(moe, region, i), &next_row)) {
				row_work_finish(moe->work);
				return bad_row(moe, slot, r, i);
			}
	}
	row_work_finish(moe->work);
	if (stream)
		stream_fence();
	return check_complete(moe, slot);
}

static void choose_output(const tern_moe *moe, struct slot *s, const struct tern_received *received)
{
	s->x = received->into_x ? received->into_x : s->output + moe->layout.output.x;
	s->scales =
		received->into_x ? received->into_scales : s->output + moe->layout.output.scales;
}

/* Where the caller wants a list, or where it is. */
static const void *listed(void *into, const void *list, size_t bytes)
{
	return into ? memcpy(into, list, bytes) : list;
}

static void describe_received(
	const tern_moe *moe, const struct slot *s, struct tern_received *received)
{
	const struct output_layout *o = &moe->layout.output;
	bool by_source = moe->config.layout == TERN_BY_SOURCE;
	uint32_t lists = by_source ? moe->nr_ranks : moe->nr_local;

	received->x = s->x;
	received->scales = moe->layout.scales_bytes ? s->scales : NULL;
	received->counts = listed(received->into_counts, s->counts, sizeof(*s->counts) * lists);
	received->offsets = listed(received->into_offsets, s->offsets, sizeof(*s->offsets) * lists);
	received->rows = (const struct tern_row *)(s->output + o->rows);
	received->topk_ids = by_source ? (const int32_t *)(s->output + o->topk_ids) : NULL;
	received->topk_weights = by_source ? (const float *)(s->output + o->topk_weights) : NULL;
	received->nr_rows = s->nr_rows;
	received->extent = s->extent;
	received->version = s->placed.version;
}

/* Arguments have been checked. */
static int receive(tern_moe *moe, uint32_t slot, struct tern_received *received)
{
	TRACE(TRACE_DISPATCH_RECV, TRACE_NOBODY);
	struct slot *s = &moe->slots[slot];
	int rc = received->waited_ns ? wait_and_time(moe, slot, received->waited_ns)
				     : wait_for_all(moe, slot, WORD_DISPATCH, TERN_PHASE_DISPATCH);

	rc = rc ? rc : check_words(moe, slot);
	rc = rc ? rc : check_heads(moe, slot);
	if (rc)
		return rc;
	choose_output(moe, s, received);
	if (moe->config.mode == TERN_LOW_LATENCY && moe->config.layout != TERN_BY_SOURCE)
		add_up_experts(moe, slot);
	if (!set_offsets(moe, s)) {
		fail(TERN_ERR_PROTOCOL,
			"%llu rows came to rank %u, more than its peers may send (slot %u, epoch "
			"%u)",
			(unsigned long long)s->nr_rows, moe->rank, slot, s->epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, -1);
	}
	if (moe->config.mode == TERN_LOW_LATENCY)
		rc = unpack_rows(moe, slot);
	if (rc)
		return rc;
	moe->stats.rows_received += s->nr_rows;
	describe_received(moe, s, received);
	if (received_is_asked(received))
		received_beside(moe, received);
	s->state = SLOT_RECEIVED;
	return moe->config.elastic && s->plan ? plan_renew(moe, slot) : 0;
}

int cpu_received_sizes(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent)
{
	const struct slot *s = &moe->slots[slot];

	if (s->state != SLOT_RECEIVED)
		return slot_wrong_state(moe, slot, "tern_received_sizes");
	*nr_rows = s->nr_rows;
	*extent = s->extent;
	return 0;
}

int cpu_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received)
{
	int rc;

	if (moe->slots[slot].state != SLOT_DISPATCHED)
		return slot_wrong_state(moe, slot, "tern_dispatch_recv");
	rc = arguments_received(moe, received, "tern_dispatch_recv");
	return rc ? rc : receive(moe, slot, received);
}

/* Called again after a time-out in its second half, it goes on there. */
int cpu_dispatch(tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received)
{
	int rc = dispatch_check(moe, args, true);

	rc = rc ? rc : arguments_received(moe, received, "tern_dispatch");
	if (!rc && moe->slots[args->slot].state != SLOT_DISPATCHED)
		rc = dispatch_send(moe, args);
	return rc ? rc : receive(moe, args->slot, received);
}
