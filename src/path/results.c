/* SPDX-License-Identifier: Apache-2.0 */
/* Results to homes that are not mapped go straight to their final place in the home's window. In
 * high-throughput mode they leave in pieces from a small pool, each with an immediate; a note ahead
 * of the combine word says how many there were, and the home's proxy stores the word when so many
 * have landed, in whatever order. In low-latency mode they are staged as a whole, since they leave
 * in one write.
 *
 * All homes of a group of replicas get the same results at the same places, so one copy is written
 * to each. */
#include "path/results.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/row_work.h"
#include "path/inside.h"

/* At the home: what has come of one slot's results from one rank. The proxy's own. */
struct coming {
	uint32_t nr_pieces; /* landed */
	bool announced;
	uint32_t epoch;
	struct results_note note;
};

struct results {
	struct sent_list pieces; /* [nr_chunks], the pool */
	uint32_t nr;
	uint32_t next; /* where to look for a free one */
	bool open;     /* piece `next` is being filled with: */
	uint32_t first_home, first_row, nr_rows;
	struct coming *coming; /* [slots][R] */
};

static uint64_t piece_bytes(const struct layout *l)
{
	return align_up((uint64_t)l->piece_rows * l->result_bytes, CACHE_LINE);
}

/* Low latency: that one rank sends to one home. */
static uint64_t most_results(const tern_moe *moe)
{
	const struct layout *l = &moe->layout;
	uint32_t routes = l->topk < l->max_local ? l->topk : l->max_local;

	return (uint64_t)moe->config.max_tokens * results_of_row(moe, routes);
}

static uint32_t nr_homes(const tern_moe *moe)
{
	return moe->nr_ranks / moe->config.replica_ranks;
}

uint64_t results_bytes(const tern_moe *moe)
{
	moe->engine->results_bytes =
		align_up(most_results(moe) * moe->layout.result_bytes, CACHE_LINE);
	if (moe->config.mode == TERN_HIGH_THROUGHPUT)
		return moe->layout.nr_chunks * piece_bytes(&moe->layout);
	return moe->engine->results_bytes * nr_homes(moe) * moe->config.nr_slots;
}

int results_open(tern_moe *moe)
{
	struct results *results = calloc(1, sizeof(*results));
	uint32_t nr = moe->layout.nr_chunks;

	moe->engine->results = results;
	if (!results)
		return fail(TERN_ERR_NOMEM, "no memory for results under way");
	results->nr = nr;
	results->coming =
		calloc((size_t)moe->config.nr_slots * moe->nr_ranks, sizeof(*results->coming));
	if (!results->coming)
		return fail(TERN_ERR_NOMEM, "no memory for results of %u ranks", moe->nr_ranks);
	return nr ? sent_open(moe->engine->engine, &results->pieces, nr) : 0;
}

void results_close(tern_moe *moe, uint64_t deadline_ns)
{
	struct results *results = moe->engine->results;

	if (!results)
		return;
	sent_close(moe, &results->pieces, deadline_ns);
	free(results->coming);
	free(results);
}

void results_begin_again(tern_moe *moe)
{
	moe->engine->results->open = false;
}

bool results_settled(const tern_moe *moe)
{
	return sent_have_ended(&moe->engine->results->pieces);
}

bool results_are_staged(const tern_moe *moe, uint32_t first)
{
	for (uint32_t i = 0; i < moe->config.replica_ranks; i++)
		if (!path_is_mapped(moe, first + i))
			return true;
	return false;
}

/* ---- at the expert's rank -------------------------------------------------------------------- */

static uint8_t *staging(const tern_moe *moe, uint64_t offset)
{
	return moe->engine->staging + moe->engine->results_at + offset;
}

/* Low latency: as a whole, from the first result on. */
static uint8_t *staged_results(const tern_moe *moe, uint32_t slot, uint32_t first)
{
	uint64_t number = (uint64_t)slot * nr_homes(moe) + first / moe->config.replica_ranks;

	return staging(moe, number * moe->engine->results_bytes);
}

static uint8_t *piece_place(const tern_moe *moe, uint32_t row)
{
	const struct results *results = moe->engine->results;

	return staging(moe, results->next * piece_bytes(&moe->layout) +
				    (uint64_t)row * moe->layout.result_bytes);
}

static int find_piece(void *ctx)
{
	struct results *results = ctx;

	for (uint32_t i = 0; i < results->nr; i++) {
		uint32_t at = (results->next + i) % results->nr;

		if (sent_has_ended(&results->pieces.each[at])) {
			results->next = at;
			return 1;
		}
	}
	return 0;
}

static int open_piece(tern_moe *moe, uint32_t slot)
{
	struct results *results = moe->engine->results;
	uint64_t start = scheduler_now(moe->group->scheduler);

	if (wait_until(&moe->wait_policy, (uint64_t)moe->wait_ms * 1000000, find_piece, results))
		return 0;
	return fail(TERN_ERR_TIMEOUT,
		"rank %u waited %.3f ms for its engine to send results (slot %u, epoch %u)",
		moe->rank, (double)(scheduler_now(moe->group->scheduler) - start) / 1e6, slot,
		moe->slots[slot].epoch);
}

int results_flush(tern_moe *moe, uint32_t slot)
{
	struct results *results = moe->engine ? moe->engine->results : NULL;
	const struct layout *l = &moe->layout;
	uint32_t immediate;
	int rc = 0;

	if (!results || !results->open)
		return 0;
	row_work_finish(moe->work);
	results->open = false;
	immediate = immediate_make(moe, IMMEDIATE_PIECE, immediate_round(moe, slot));
	for (uint32_t i = 0; i < moe->config.replica_ranks && !rc; i++)
		if (!path_is_mapped(moe, results->first_home + i))
			rc = path_write(moe, &results->pieces.each[results->next],
				results->first_home + i, immediate, piece_place(moe, 0),
				layout_combine_row(l, slot, results->first_row),
				(uint64_t)results->nr_rows * l->result_bytes);
	results->next = (results->next + 1) % results->nr;
	moe->slots[slot].sent[results->first_home].nr_pieces++;
	return rc;
}

static int place_in_piece(
	tern_moe *moe, uint32_t slot, uint32_t first, uint32_t home_row, uint8_t **place)
{
	struct results *results = moe->engine->results;
	int rc = 0;

	if (results->open &&
		(results->first_home != first || results->nr_rows == moe->layout.piece_rows ||
			results->first_row + results->nr_rows != home_row))
		rc = results_flush(moe, slot);
	if (!rc && !results->open) {
		rc = open_piece(moe, slot);
		if (rc)
			return rc;
		results->open = true;
		results->first_home = first;
		results->first_row = home_row;
		results->nr_rows = 0;
	}
	if (!rc)
		*place = piece_place(moe, results->nr_rows++);
	return rc;
}

int results_place(tern_moe *moe, uint32_t slot, uint32_t first, uint32_t home_row, uint8_t **place)
{
	uint64_t row = home_row - moe->slots[slot].sent[first].first;

	if (moe->config.mode == TERN_HIGH_THROUGHPUT)
		return place_in_piece(moe, slot, first, home_row, place);
	if (row >= most_results(moe)) {
		fail(TERN_ERR_PROTOCOL,
			"rank %u asks for more than the %llu results that can be due (slot %u, "
			"epoch %u)",
			first, (unsigned long long)most_results(moe), slot, moe->slots[slot].epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)first);
	}
	*place = staged_results(moe, slot, first) + row * moe->layout.result_bytes;
	return 0;
}

void results_publication(tern_moe *moe, uint32_t slot, uint32_t home, struct publication *p)
{
	const struct layout *l = &moe->layout;
	uint32_t first = home_first(moe, home);
	const struct sent_results *sent = &moe->slots[slot].sent[first];
	struct results_note *note;

	if (moe->config.mode == TERN_LOW_LATENCY) {
		p->from = staged_results(moe, slot, first);
		p->offset = layout_combine_row(l, slot, sent->first);
		p->bytes = (uint64_t)sent->nr * l->result_bytes;
		return;
	}
	note = (struct results_note *)(moe->engine->staging + moe->engine->notes) +
	       (uint64_t)slot * l->nr_ranks + home;
	*note = (struct results_note){.nr_pieces = sent->nr_pieces, .nr_rows = p->count};
	p->from = (const uint8_t *)note;
	p->offset = layout_note(l, slot, moe->rank);
	p->bytes = sizeof(*note);
}

/* ---- at home, on the proxy ------------------------------------------------------------------- */

static void deliver_complete(tern_moe *moe, uint32_t slot, uint32_t source, struct coming *coming)
{
	if (!coming->announced)
		return;
	if (coming->nr_pieces > coming->note.nr_pieces)
		path_violation(moe, source, "more pieces of results than it announced");
	if (coming->nr_pieces != coming->note.nr_pieces)
		return;
	coming->nr_pieces = 0;
	coming->announced = false;
	path_arrived(moe, moe->rank, slot, WORD_COMBINE, source,
		word_make(coming->epoch, coming->note.nr_rows));
}

/* A round that was given up may have left pieces, or a note. */
static void come_to(const tern_moe *moe, struct coming *coming, uint32_t epoch)
{
	if (moe->engine->elastic && coming->epoch != epoch) {
		coming->nr_pieces = 0;
		coming->announced = false;
	}
	coming->epoch = epoch;
}

void results_piece(tern_moe *moe, uint32_t slot, uint32_t source, uint32_t epoch)
{
	struct coming *coming = &moe->engine->results->coming[slot * moe->nr_ranks + source];

	come_to(moe, coming, epoch);
	coming->nr_pieces++;
	deliver_complete(moe, slot, source, coming);
}

void results_announced(tern_moe *moe, uint32_t slot, uint32_t source, uint32_t epoch)
{
	struct coming *coming = &moe->engine->results->coming[slot * moe->nr_ranks + source];

	come_to(moe, coming, epoch);
	coming->note =
		*(const struct results_note *)own(moe, layout_note(&moe->layout, slot, source));
	coming->announced = true;
	deliver_complete(moe, slot, source, coming);
}
