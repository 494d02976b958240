/* SPDX-License-Identifier: Apache-2.0 */
/* The combine halves: results from the experts' ranks home, and their sum there. */
#include <string.h>

#include "error.h"
#include "exchange.h"
#include "kernels/cpu/kernels.h"
#include "path.h"
#include "plan.h"
#include "rows.h"
#include "wait.h"

static const uint8_t *y_row(const tern_moe *moe, const struct tern_combine *args, uint32_t position)
{
	return (const uint8_t *)args->y +
	       (uint64_t)position * (args->y_stride ? args->y_stride : moe->layout.combine_row_bytes);
}

/* One result to the same place on every rank that is home to the source's tokens. */
static void send_home(
	const tern_moe *moe, uint32_t slot, bool stream, uint32_t source, uint32_t home_row, const void *row)
{
	uint64_t offset = layout_combine_row(&moe->layout, slot, home_row);
	uint32_t first = home_first(moe, source);

	for (uint32_t i = 0; i < moe->config.replica_ranks; i++)
		copy_row(path_place(moe, first + i, offset), row, moe->layout.combine_row_bytes, stream);
}

/* Summed straight into the home's window, or, if it has to be copied on, into scratch memory. */
static void send_sum_home(const tern_moe *moe, uint32_t slot, bool stream, uint32_t source,
	const struct tern_combine *args, const struct row_header *header)
{
	bool straight = !stream && moe->config.replica_ranks == 1;
	uint64_t offset = layout_combine_row(&moe->layout, slot, header->home_row);
	uint8_t *sum = straight ? path_place(moe, home_first(moe, source), offset) : moe->scratch;
	const void *rows[TERN_MAX_TOPK];
	float weights[TERN_MAX_TOPK];

	for (uint32_t i = 0; i < header->nr_routes; i++) {
		rows[i] = y_row(moe, args, header->routes[i].position);
		weights[i] = header->routes[i].weight;
	}
	reduce_rows(moe->config.combine_dtype, rows, moe->config.weights == TERN_WEIGHTS_COMBINE ? weights : NULL,
		header->nr_routes, moe->config.hidden, sum);
	if (!straight)
		send_home(moe, slot, stream, source, header->home_row, sum);
}

static void send_row_home(tern_moe *moe, uint32_t slot, bool stream, uint32_t source, const struct tern_combine *args,
	const struct row_header *header)
{
	if (moe->config.layout == TERN_BY_SOURCE) {
		send_home(moe, slot, stream, source, header->home_row, y_row(moe, args, header->routes[0].position));
	} else if (moe->config.reduce == TERN_REDUCE_EXPERT) {
		send_sum_home(moe, slot, stream, source, args, header);
	} else {
		for (uint32_t i = 0; i < header->nr_routes; i++)
			send_home(moe, slot, stream, source, header->home_row + i,
				y_row(moe, args, header->routes[i].position));
	}
}

/* All homes of a source get the same results at the same places. */
static void note_results(tern_moe *moe, uint32_t source, uint32_t first_result, uint32_t nr)
{
	uint32_t first = home_first(moe, source);

	for (uint32_t home = first; home < first + moe->config.replica_ranks; home++) {
		struct sent_results *sent = &moe->sent[home];

		sent->first = sent->nr && sent->first < first_result ? sent->first : first_result;
		sent->nr += nr;
	}
}

static int send_results(tern_moe *moe, const struct tern_combine *args)
{
	const struct slot *s = &moe->slots[args->slot];
	bool stream = s->nr_rows * moe->layout.combine_row_bytes > moe->stream_bytes;

	memset(moe->sent, 0, moe->nr_ranks * sizeof(*moe->sent));
	/* Each rank starts with another source, so that they do not all write to one home. */
	for (uint32_t i = 0; i < moe->nr_ranks; i++) {
		uint32_t source = (moe->rank + i) % moe->nr_ranks;
		uint8_t *region = own(moe, layout_region(&moe->layout, args->slot, source));

		for (uint32_t row = 0; row < s->rows_from[source]; row++) {
			union header_copy copy;

			if (!header_take(moe, header_at(moe, region, row), &copy) || !positions_fit(s, &copy.header)) {
				fail(TERN_ERR_PROTOCOL, "row %u from rank %u has a broken header (slot %u, epoch %u)",
					row, source, args->slot, s->epoch);
				return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)source);
			}
			send_row_home(moe, args->slot, stream, source, args, &copy.header);
			note_results(moe, source, copy.header.home_row, results_of_row(moe, copy.header.nr_routes));
		}
	}
	if (stream)
		stream_fence();
	return 0;
}

static int publish_results(tern_moe *moe, uint32_t slot, bool released)
{
	const struct slot *s = &moe->slots[slot];
	struct publication p = {.slot = slot, .kind = WORD_COMBINE, .phase = TERN_PHASE_COMBINE};
	int rc = 0;

	for (uint32_t i = 0; i < moe->nr_ranks && !rc; i++) {
		uint32_t home = (moe->rank + 1 + i) % moe->nr_ranks, first = home_first(moe, home), rows = 0;

		for (uint32_t r = first; r < first + moe->config.replica_ranks; r++)
			rows += s->rows_from[r];
		p.count = released ? WORD_RELEASED : rows;
		p.offset = layout_combine_row(&moe->layout, slot, moe->sent[home].first);
		p.bytes = released ? 0 : (uint64_t)moe->sent[home].nr * moe->layout.combine_row_bytes;
		moe->stats.combine_bytes += p.bytes;
		rc = path_publish(moe, home, &p);
	}
	return rc;
}

static int check_combine(tern_moe *moe, const struct tern_combine *args)
{
	const struct slot *s;
	int rc = args && args->size == sizeof(*args)
			 ? slot_check(moe, args->slot, "tern_combine_send")
			 : fail(TERN_ERR_INVALID, "tern_combine_send: args is NULL or args.size is wrong");

	if (rc)
		return rc;
	s = &moe->slots[args->slot];
	if (s->state != SLOT_RECEIVED)
		return slot_wrong_state(moe, args->slot, "tern_combine_send");
	if (s->nr_rows && !args->y)
		return fail(TERN_ERR_INVALID, "combine: y is NULL for %llu rows", (unsigned long long)s->nr_rows);
	if ((uintptr_t)args->y % 16 || args->y_stride % 16)
		return fail(TERN_ERR_INVALID, "combine: y at %p, stride %zu, has to be aligned to 16 bytes", args->y,
			args->y_stride);
	if (args->y_stride && args->y_stride < moe->layout.combine_row_bytes)
		return fail(TERN_ERR_INVALID, "combine: y has a stride of %zu bytes for rows of %u", args->y_stride,
			moe->layout.combine_row_bytes);
	return 0;
}

int tern_combine_send(tern_moe *moe, const struct tern_combine *args)
{
	int rc = check_combine(moe, args);

	rc = rc ? rc : path_begin(moe, args->slot, WORD_COMBINE);
	rc = rc ? rc : send_results(moe, args);
	rc = rc ? rc : publish_results(moe, args->slot, false);
	if (rc)
		return rc;
	moe->slots[args->slot].state = SLOT_COMBINED;
	return 0;
}

int tern_release(tern_moe *moe, uint32_t slot)
{
	int rc = slot_check(moe, slot, "tern_release");

	if (rc)
		return rc;
	if (moe->slots[slot].state != SLOT_RECEIVED)
		return slot_wrong_state(moe, slot, "tern_release");
	rc = publish_results(moe, slot, true);
	if (rc)
		return rc;
	moe->slots[slot].state = SLOT_RELEASED;
	return 0;
}

static int check_results(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t rows = word_count(
			arrival_observe((struct arrival *)own(moe, layout_word(&moe->layout, slot, WORD_COMBINE, r))));

		if (rows == s->rows_home[r] || rows == WORD_UNCOUNTED)
			continue;
		if (rows == WORD_RELEASED)
			fail(TERN_ERR_PROTOCOL, "rank %u released what rank %u combines (slot %u, epoch %u)", r,
				moe->rank, slot, s->epoch);
		else
			fail(TERN_ERR_PROTOCOL, "rank %u sent %u rows home to rank %u; %u were due (slot %u, epoch %u)",
				r, rows, moe->rank, s->rows_home[r], slot, s->epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
	}
	return 0;
}

/* The results that came home for one token, in the order of their sum: of ranks, or of k. */
static uint32_t results_of_token(
	tern_moe *moe, const struct slot *s, uint32_t slot, uint32_t token, const void **results, float *weights)
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

static void sum_at_home(tern_moe *moe, uint32_t slot, uint8_t *out, size_t stride)
{
	const struct slot *s = &moe->slots[slot];
	bool weighted = moe->config.reduce == TERN_REDUCE_HOME && moe->config.weights == TERN_WEIGHTS_COMBINE;
	const void *rows[TERN_MAX_TOPK];
	float weights[TERN_MAX_TOPK];

	memcpy(moe->home_next, s->home_start,
		(size_t)moe->nr_ranks * moe->config.replica_ranks * sizeof(*moe->home_next));
	for (uint32_t t = 0; t < s->nr_tokens; t++) {
		uint32_t nr = results_of_token(moe, s, slot, t, rows, weights);

		reduce_rows(moe->config.combine_dtype, rows, weighted ? weights : NULL, nr, moe->config.hidden,
			out + t * stride);
	}
}

int tern_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride)
{
	struct slot *s;
	int rc = slot_check(moe, slot, "tern_combine_recv");

	if (rc)
		return rc;
	s = &moe->slots[slot];
	if (s->state != SLOT_COMBINED)
		return slot_wrong_state(moe, slot, "tern_combine_recv");
	if ((!out && s->nr_tokens) || (uintptr_t)out % 16 || out_stride % 16 ||
		(out_stride && out_stride < moe->layout.combine_row_bytes))
		return fail(TERN_ERR_INVALID,
			"combine: out at %p with a stride of %zu bytes for %u rows of %u; 16-byte alignment", out,
			out_stride, s->nr_tokens, moe->layout.combine_row_bytes);
	rc = wait_for_all(moe, slot, WORD_COMBINE, TERN_PHASE_COMBINE);
	rc = rc ? rc : check_results(moe, slot);
	if (rc)
		return rc;
	sum_at_home(moe, slot, out, out_stride ? out_stride : moe->layout.combine_row_bytes);
	s->epoch++;
	s->state = SLOT_IDLE;
	return 0;
}

int tern_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride)
{
	int rc = 0;

	if (!moe || !args || args->size != sizeof(*args))
		return fail(TERN_ERR_INVALID, "tern_combine: moe or args is NULL, or args.size is wrong");
	/* Called again after a time-out in its second half, it goes on there. */
	if (moe->failed || args->slot >= moe->config.nr_slots || moe->slots[args->slot].state != SLOT_COMBINED)
		rc = tern_combine_send(moe, args);
	return rc ? rc : tern_combine_recv(moe, args->slot, out, out_stride);
}
