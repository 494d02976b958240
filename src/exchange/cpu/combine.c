/* SPDX-License-Identifier: Apache-2.0 */
/* The combine halves: results from the experts' ranks home, and their sum there. */
#include <string.h>

#include "exchange/arguments.h"
#include "exchange/cpu/dispatch_send.h"
#include "base/error.h"
#include "base/trace.h"
#include "exchange/elastic.h"
#include "exchange/state.h"
#include "exchange/cpu/halves.h"
#include "exchange/cpu/kernels/kernels.h"
#include "exchange/row_work.h"
#include "path/path.h"
#include "exchange/plan.h"
#include "path/results.h"
#include "exchange/rows.h"
#include "exchange/cpu/liveness.h"

static const uint8_t *y_row(const tern_moe *moe, const struct tern_combine *args, uint32_t position)
{
	return (const uint8_t *)args->y +
	       (uint64_t)position *
		       (args->y_stride ? args->y_stride : moe->layout.combine_row_bytes);
}

/* Whether some home of the source's tokens is not mapped. */
static bool is_staged(const tern_moe *moe, uint32_t source)
{
	return path_has_engine(moe) && results_are_staged(moe, home_first(moe, source));
}

/* Routes [first, first + nr) of the header. */
struct routes_home {
	const struct row_header *header;
	uint32_t first, nr;
};

/* The sum of these routes' rows, or the row of one. */
static void read_rows(const tern_moe *moe, struct row_op *op, const struct tern_combine *args,
	const struct routes_home *r)
{
	bool summed =
		moe->config.reduce == TERN_REDUCE_EXPERT && moe->config.layout != TERN_BY_SOURCE;

	row_op_of_combine(moe, op, summed ? ROW_SUMMED : ROW_KEPT);
	op->weighted = moe->slots[args->slot].weighted;
	for (uint32_t i = 0; i < r->nr; i++) {
		const struct route *route = &r->header->routes[r->first + i];

		op->weights[i] = route->weight;
		row_op_from(op, y_row(moe, args, route->position), NULL);
	}
}

/* There may be more homes than an op has places: those that are left are another's. */
static struct row_op *with_room(tern_moe *moe, struct row_op *op, const struct tern_combine *args,
	const struct routes_home *r)
{
	if (op->nr_to < TERN_MAX_TOPK)
		return op;
	row_work_tell(moe->work);
	op = row_work_next(moe->work);
	read_rows(moe, op, args, r);
	return op;
}

/* Behind a result: summed here, the floats of all its routes, each in its k's place; at home, of
 * the one. */
static void write_floats(const tern_moe *moe, uint8_t *result, const struct tern_combine *args,
	const struct routes_home *r)
{
	bool each = moe->config.reduce == TERN_REDUCE_HOME;
	uint32_t first = each ? r->first : 0, nr = each ? 1 : r->header->nr_routes;
	float *to = (float *)(void *)(result + moe->layout.combine_row_bytes);

	for (uint32_t i = first; i < first + nr; i++) {
		const struct route *route = &r->header->routes[i];
		uint64_t at = moe->config.layout == TERN_BY_SOURCE
				      ? (uint64_t)route->position * moe->config.topk + route->k
				      : route->position;

		to[each ? 0 : route->k] = args->floats ? args->floats[at] : 0;
	}
}

static void send_floats(tern_moe *moe, uint64_t offset, uint32_t first, uint8_t *staged,
	const struct tern_combine *args, const struct routes_home *r)
{
	if (staged)
		write_floats(moe, staged, args, r);
	for (uint32_t i = 0; i < moe->config.replica_ranks; i++)
		if (path_is_mapped(moe, first + i))
			write_floats(moe, path_window(moe, first + i, offset), args, r);
}

/* One result to the same place on every rank that is home to the source's tokens. */
static int send_home(tern_moe *moe, uint32_t slot, bool stream, uint32_t source, uint32_t home_row,
	const struct tern_combine *args, const struct routes_home *r)
{
	uint64_t offset = layout_combine_row(&moe->layout, slot, home_row);
	uint32_t first = home_first(moe, source);
	uint8_t *staged = NULL;
	int rc = is_staged(moe, source) ? results_place(moe, slot, first, home_row, &staged) : 0;
	struct row_op *op;

	if (rc)
		return rc;
	if (moe->config.combine_floats)
		send_floats(moe, offset, first, staged, args, r);
	op = row_work_next(moe->work);
	read_rows(moe, op, args, r);
	if (staged)
		row_op_to(op, staged, NULL, false);
	for (uint32_t i = 0; i < moe->config.replica_ranks; i++)
		if (path_is_mapped(moe, first + i)) {
			op = with_room(moe, op, args, r);
			row_op_to(op, path_window(moe, first + i, offset), NULL, stream);
		}
	row_work_tell(moe->work);
	return 0;
}

/* Goes on at the result where it timed out. */
static int send_row_home(tern_moe *moe, uint32_t slot, bool stream, uint32_t source,
	const struct tern_combine *args, const struct row_header *header)
{
	struct combine_at *at = &moe->slots[slot].combine_at;
	bool each = moe->config.reduce == TERN_REDUCE_HOME;
	struct routes_home r = {.header = header,
		.nr = each || moe->config.layout == TERN_BY_SOURCE ? 1 : header->nr_routes};
	int rc = 0;

	while (at->result < results_of_row(moe, header->nr_routes) && !rc) {
		r.first = at->result;
		rc = send_home(moe, slot, stream, source, header->home_row + at->result, args, &r);
		at->result += !rc;
	}
	return rc;
}

/* What goes to one home lies together there: that of a correct peer's header follows the one
 * before. */
static bool follows(const struct slot *s, uint32_t first, const struct row_header *header)
{
	struct sent_results *sent = &s->sent[first];

	if (!sent->nr)
		sent->first = header->home_row;
	return header->home_row == sent->first + sent->nr;
}

static int send_next_row(
	tern_moe *moe, bool stream, uint32_t source, const struct tern_combine *args)
{
	struct slot *s = &moe->slots[args->slot];
	uint8_t *region = own(moe, layout_region(&moe->layout, args->slot, source));
	uint32_t row = s->combine_at.row, first = home_first(moe, source);
	const struct row_header *shared = s->replayed ? plan_header(moe, s->replayed, source, row)
						      : header_at(moe, region, row);
	union header_copy copy;
	int rc;

	if (!header_take(moe, shared, &copy) || !positions_fit(s, &copy.header) ||
		!follows(s, first, &copy.header)) {
		fail(TERN_ERR_PROTOCOL,
			"row %u from rank %u has a broken header (slot %u, epoch %u)", row, source,
			args->slot, s->epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)source);
	}
	rc = send_row_home(moe, args->slot, stream, source, args, &copy.header);
	if (rc)
		return rc;
	s->sent[first].nr += results_of_row(moe, copy.header.nr_routes);
	s->combine_at.row++;
	s->combine_at.result = 0;
	return 0;
}

/* To the homes of one group of replicas. */
static int publish_group(tern_moe *moe, uint32_t slot, uint32_t first, bool released)
{
	const struct slot *s = &moe->slots[slot];
	uint32_t rows = 0;
	int rc = 0;

	if (!moe->alive[first])
		return 0; /* an elastic exchange, whose homes are one rank each */
	for (uint32_t r = first; r < first + moe->config.replica_ranks; r++)
		rows += s->rows_from[r];
	for (uint32_t home = first; home < first + moe->config.replica_ranks && !rc; home++) {
		struct publication p = {
			.slot = slot, .kind = WORD_COMBINE, .phase = TERN_PHASE_COMBINE};

		p.count = released ? WORD_RELEASED : rows;
		if (!released)
			moe->stats.combine_bytes +=
				(uint64_t)s->sent[first].nr * moe->layout.result_bytes;
		if (!released && !path_is_mapped(moe, home))
			results_publication(moe, slot, home, &p);
		rc = path_publish(moe, home, &p);
	}
	return rc;
}

/* Starting after this rank's own, so that not all ranks serve the same home first, and the own one,
 * which needs no network, last. */
static uint32_t nth_source(const tern_moe *moe, uint32_t i)
{
	return (home_first(moe, moe->rank) + moe->config.replica_ranks + i) % moe->nr_ranks;
}

static int publish_results(tern_moe *moe, uint32_t slot, bool released)
{
	int rc = 0;

	for (uint32_t i = 0; i < moe->nr_ranks && !rc; i += moe->config.replica_ranks)
		rc = publish_group(moe, slot, nth_source(moe, i), released);
	return rc;
}

/* In low latency a home gets its word as soon as its own results are stored, so that they travel
 * while the next are summed: the word gives the home's region back and nothing else, and of that
 * all headers have been read. In high throughput the home's next rows land where the caller's y may
 * lie, so all of y has to be read first. */
static int source_done(tern_moe *moe, uint32_t slot, bool stream)
{
	struct combine_at *at = &moe->slots[slot].combine_at;
	uint32_t source = nth_source(moe, at->nr_sources);

	at->nr_sources++;
	at->row = 0;
	if (moe->config.mode != TERN_LOW_LATENCY || at->nr_sources % moe->config.replica_ranks)
		return 0;
	row_work_finish(moe->work);
	if (stream)
		stream_fence();
	return publish_group(moe, slot, home_first(moe, source), false);
}

/* A group of replicas is one home. */
static int send_results(tern_moe *moe, const struct tern_combine *args)
{
	struct slot *s = &moe->slots[args->slot];
	bool stream = s->nr_rows * moe->layout.combine_row_bytes > moe->stream_bytes;
	int rc = 0, flushed;

	while (s->combine_at.nr_sources < moe->nr_ranks && !rc) {
		uint32_t source = nth_source(moe, s->combine_at.nr_sources);
		TRACE(TRACE_SUM_FOR, source);

		while (s->combine_at.row < s->rows_from[source] && !rc)
			rc = send_next_row(moe, stream, source, args);
		rc = rc ? rc : source_done(moe, args->slot, stream);
	}
	row_work_finish(moe->work);
	if (stream)
		stream_fence();
	flushed = rc && rc != TERN_ERR_TIMEOUT ? 0 : results_flush(moe, args->slot);
	return flushed ? flushed : rc;
}

static bool is_under_way(const struct slot *s)
{
	return s->state != SLOT_IDLE && s->state != SLOT_RELEASED;
}

/* The plan that the slot's round combines again; 0: it was dispatched. */
static uint64_t again_of(const struct slot *s)
{
	return s->replays ? s->plan : 0;
}

/* A round of its own is to begin. */
static int check_plan(tern_moe *moe, const struct tern_combine *args)
{
	struct kept_plan *plan;
	int rc = plan_find(moe, args->plan, &plan);

	rc = rc ? rc : plan_check_placed(moe, plan->id, &plan->placed);
	rc = rc ? rc : plan_check_whole(moe, plan);
	return rc ? rc : arguments_y(moe, args, plan->nr_rows);
}

/* joined: the second half is called with the first, and goes on if that is done. */
static int check_combine(tern_moe *moe, const struct tern_combine *args, bool joined)
{
	const char *call = joined ? "tern_combine" : "tern_combine_send";
	enum slot_state state = moe->slots[args->slot].state;

	if (args->plan && !is_under_way(&moe->slots[args->slot]))
		return check_plan(moe, args);
	if (state != SLOT_RECEIVED && state != SLOT_COMBINING &&
		!(joined && state == SLOT_COMBINED) && !(args->plan && state == SLOT_REPLAYING))
		return slot_wrong_state(moe, args->slot, call);
	if (args->plan != again_of(&moe->slots[args->slot]))
		return fail(TERN_ERR_INVALID,
			"%s: plan is %llu; the slot's round is of %llu (0: it was dispatched)",
			call, (unsigned long long)args->plan,
			(unsigned long long)again_of(&moe->slots[args->slot]));
	return arguments_y(moe, args, moe->slots[args->slot].nr_rows);
}

static int begin_results(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	int rc = path_begin(moe, slot, WORD_COMBINE);

	if (rc)
		return rc;
	memset(s->sent, 0, moe->nr_ranks * sizeof(*s->sent));
	memset(&s->combine_at, 0, sizeof(s->combine_at));
	s->state = SLOT_COMBINING;
	return 0;
}

static int begin_again(tern_moe *moe, const struct tern_combine *args)
{
	struct kept_plan *plan;
	int rc = plan_find(moe, args->plan, &plan);

	return rc ? rc : dispatch_nothing(moe, args->slot, plan, args->tag);
}

/* What the call says of all its results; again, it says the same. */
static void take_manner(const tern_moe *moe, struct slot *s, const struct tern_combine *args)
{
	s->weighted = !args->unweighted &&
		      (args->topk_weights || moe->config.weights == TERN_WEIGHTS_COMBINE);
	s->out_floats = args->out_floats;
	if (args->topk_weights)
		memcpy(s->weights, args->topk_weights,
			(size_t)s->nr_tokens * moe->config.topk * sizeof(*s->weights));
}

/* Arguments have been checked. Called again after a time-out, it goes on where it was. */
static int send_all_home(tern_moe *moe, const struct tern_combine *args)
{
	TRACE(TRACE_COMBINE_SEND, TRACE_NOBODY);
	struct slot *s = &moe->slots[args->slot];
	int rc = args->plan && s->state != SLOT_RECEIVED && s->state != SLOT_COMBINING
			 ? begin_again(moe, args)
			 : 0;

	if (!rc && s->state == SLOT_RECEIVED)
		rc = begin_results(moe, args->slot);

	if (rc)
		return rc;
	take_manner(moe, s, args);
	rc = send_results(moe, args);
	if (!rc && moe->config.mode == TERN_HIGH_THROUGHPUT)
		rc = publish_results(moe, args->slot, false);
	if (rc)
		return rc;
	s->replayed = NULL;
	s->state = SLOT_COMBINED;
	return 0;
}

int cpu_combine_send(tern_moe *moe, const struct tern_combine *args)
{
	int rc = check_combine(moe, args, false);

	return rc ? rc : send_all_home(moe, args);
}

/* Of an elastic exchange the round has then ended, as one that is combined has: before that it may
 * have to be made again. */
int cpu_release(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	bool waits = moe->config.elastic && s->state == SLOT_RELEASED;
	int rc;

	if ((s->state != SLOT_RECEIVED || s->replays) && !waits)
		return slot_wrong_state(moe, slot, "tern_release");
	rc = waits ? 0 : publish_results(moe, slot, true);
	if (rc)
		return rc;
	s->state = SLOT_RELEASED;
	return moe->config.elastic ? wait_for_released(moe, slot) : 0;
}

static int check_results(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t rows = word_count(arrival_observe((struct arrival *)own(
			moe, layout_word(&moe->layout, slot, WORD_COMBINE, r))));

		if (rows == s->rows_home[r] || rows == WORD_UNCOUNTED || !moe->alive[r])
			continue;
		if (rows == WORD_RELEASED)
			fail(TERN_ERR_PROTOCOL,
				"rank %u released what rank %u combines (slot %u, epoch %u)", r,
				moe->rank, slot, s->epoch);
		else
			fail(TERN_ERR_PROTOCOL,
				"rank %u sent %u rows home to rank %u; %u were due (slot %u, epoch "
				"%u)",
				r, rows, moe->rank, s->rows_home[r], slot, s->epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
	}
	return 0;
}

/* The results that came home for one token, in the order of their sum: of ranks, or of k. */
static uint32_t results_of_token(tern_moe *moe, const struct slot *s, uint32_t slot, uint32_t token,
	const void **results, float *weights)
{
	uint32_t topk = moe->config.topk, nr = 0;
	const int32_t *physical = s->physical + (size_t)token * topk;
	const void *of_k[TERN_MAX_TOPK];
	struct token_rows rows;

	plan_token(&moe->placement, physical, topk, &rows);
	for (uint32_t i = 0; i < rows.nr_rows; i++) {
		uint32_t *next = home_counter(moe, moe->home_next, rows.rows[i].rank, token);

		if (moe->config.reduce == TERN_REDUCE_EXPERT) {
			results[nr++] = own(moe, layout_combine_row(&moe->layout, slot, (*next)++));
			continue;
		}
		for (uint32_t j = 0; j < rows.rows[i].nr; j++)
			of_k[rows.k[rows.rows[i].first + j]] =
				own(moe, layout_combine_row(&moe->layout, slot, (*next)++));
	}
	for (uint32_t k = 0; k < topk && moe->config.reduce == TERN_REDUCE_HOME; k++)
		if (physical[k] >= 0) {
			results[nr] = of_k[k];
			weights[nr++] = s->weights[(size_t)token * topk + k];
		}
	return nr;
}

static void rewind_home(tern_moe *moe, const struct slot *s)
{
	memcpy(moe->home_next, s->home_start,
		(size_t)moe->nr_ranks * moe->config.replica_ranks * sizeof(*moe->home_next));
}

/* Behind the results of one token, each route's in its k's place; where each route came by itself,
 * by itself. */
static void take_floats(tern_moe *moe, const struct slot *s, uint32_t slot, uint32_t token)
{
	uint32_t topk = moe->config.topk, row_bytes = moe->layout.combine_row_bytes;
	bool each = moe->config.reduce == TERN_REDUCE_HOME;
	float *out = s->out_floats + (size_t)token * topk;
	const uint8_t *result = NULL;
	struct token_rows rows;

	memset(out, 0, topk * sizeof(*out));
	plan_token(&moe->placement, s->physical + (size_t)token * topk, topk, &rows);
	for (uint32_t i = 0; i < rows.nr_rows; i++) {
		uint32_t *next = home_counter(moe, moe->home_next, rows.rows[i].rank, token);

		for (uint32_t j = 0; j < rows.rows[i].nr; j++) {
			uint32_t k = rows.k[rows.rows[i].first + j];

			if (each || j == 0)
				result =
					own(moe, layout_combine_row(&moe->layout, slot, (*next)++));
			memcpy(out + k, result + row_bytes + (each ? 0 : k) * sizeof(*out),
				sizeof(*out));
		}
	}
}

static void take_all_floats(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	rewind_home(moe, s);
	for (uint32_t t = 0; t < s->nr_tokens && s->out_floats; t++)
		take_floats(moe, s, slot, t);
}

static void sum_at_home(tern_moe *moe, uint32_t slot, uint8_t *out, size_t stride)
{
	TRACE(TRACE_SUM_HOME, TRACE_NOBODY);
	const struct slot *s = &moe->slots[slot];
	bool weighted = moe->config.reduce == TERN_REDUCE_HOME && s->weighted;

	rewind_home(moe, s);
	for (uint32_t t = 0; t < s->nr_tokens; t++) {
		struct row_op *op = row_work_next(moe->work);

		row_op_of_combine(moe, op, ROW_SUMMED);
		op->weighted = weighted;
		op->nr_from = results_of_token(moe, s, slot, t, op->from, op->weights);
		row_op_to(op, out + t * stride, NULL, false);
		row_work_tell(moe->work);
	}
	row_work_finish(moe->work);
}

/* Arguments have been checked. */
static int receive_results(tern_moe *moe, uint32_t slot, void *out, size_t stride)
{
	TRACE(TRACE_COMBINE_RECV, TRACE_NOBODY);
	int rc = wait_for_all(moe, slot, WORD_COMBINE, TERN_PHASE_COMBINE);

	rc = rc ? rc : check_results(moe, slot);
	if (rc)
		return rc;
	sum_at_home(moe, slot, out, stride ? stride : moe->layout.combine_row_bytes);
	if (moe->config.combine_floats)
		take_all_floats(moe, slot);
	slot_end_round(moe, slot);
	return 0;
}

int cpu_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride)
{
	int rc;

	if (moe->slots[slot].state != SLOT_COMBINED)
		return slot_wrong_state(moe, slot, "tern_combine_recv");
	rc = arguments_out(moe, moe->slots[slot].nr_tokens, out, out_stride);
	return rc ? rc : receive_results(moe, slot, out, out_stride);
}

/* Whose sums this call brings. */
static uint32_t nr_tokens_home(const tern_moe *moe, const struct tern_combine *args)
{
	const struct slot *s = &moe->slots[args->slot];
	struct kept_plan *plan;

	return args->plan && !is_under_way(s) && !plan_find(moe, args->plan, &plan)
		       ? plan->nr_tokens
		       : s->nr_tokens;
}

/* Called again after a time-out in its second half, it goes on there. */
int cpu_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride)
{
	int rc = check_combine(moe, args, true);

	rc = rc ? rc : arguments_out(moe, nr_tokens_home(moe, args), out, out_stride);
	if (!rc && moe->slots[args->slot].state != SLOT_COMBINED)
		rc = send_all_home(moe, args);
	return rc ? rc : receive_results(moe, args->slot, out, out_stride);
}
