/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway. A chunk's rows go to the ranks of this node as their source would have stored them
 * there, and when all chunks of a source's round have come, its dispatch word goes to all of them.
 * All of it happens on the proxy thread, one chunk at a time: it needs nothing of this rank's own
 * round, so a rank whose caller is slow still passes on what others wait for.
 *
 * What is stored is free: the source has the counts of this round from all ranks before it sends a
 * row, and a rank sends these when it has done with its last round. Positions are in the headers,
 * and are checked against the layout.
 */
#include "path/relay.h"

#include <stdlib.h>
#include <string.h>

#include "path/chunk.h"
#include "base/error.h"
#include "path/inside.h"
#include "path/view.h"

/* What has come of one round of one source. */
struct relay_round {
	uint32_t epoch;
	uint32_t nr_came;
	uint32_t nr_chunks; /* 0: not announced yet */
	uint32_t *rows_for; /* [size of the node] */
};

struct relay {
	struct relay_round *rounds; /* [channels][slots] */
	uint32_t *rows_for;
	uint32_t nr_rounds;
	/* Credits that found no room in the engine's ring: [channels][chunks], the source + 1. */
	uint32_t *owed;
	uint32_t nr_owed, owed_view; /* all of one view: view_bits */
};

static uint32_t own_node(const tern_moe *moe)
{
	return moe->topology.node_of[moe->rank];
}

/* ---- opening and closing --------------------------------------------------------------------- */

int relay_open(tern_moe *moe)
{
	struct relay *relay = calloc(1, sizeof(*relay));
	uint32_t nr_here = moe->topology.size[own_node(moe)];

	moe->engine->relay = relay;
	if (!relay)
		return fail(TERN_ERR_NOMEM, "no memory for a relay");
	relay->nr_rounds = moe->layout.nr_channels * moe->layout.nr_slots;
	relay->rounds = calloc(relay->nr_rounds + 1, sizeof(*relay->rounds));
	relay->rows_for = calloc((size_t)relay->nr_rounds * nr_here + 1, sizeof(*relay->rows_for));
	relay->owed = calloc(
		(size_t)moe->layout.nr_channels * moe->layout.nr_chunks + 1, sizeof(*relay->owed));
	if (!relay->rounds || !relay->rows_for || !relay->owed)
		return fail(TERN_ERR_NOMEM, "no memory for a relay of %u channels",
			moe->layout.nr_channels);
	for (uint32_t i = 0; i < relay->nr_rounds; i++)
		relay->rounds[i].rows_for = relay->rows_for + (size_t)i * nr_here;
	return 0;
}

/* ---- credits --------------------------------------------------------------------------------- */

static int send_credit(tern_moe *moe, uint32_t source, uint32_t bits, uint32_t flags)
{
	struct sent *credits = moe->engine->credits.each;
	struct engine_write write = {.peer = source,
		.flags = TERN_IMMEDIATE | flags,
		.immediate = immediate_make(moe, IMMEDIATE_CREDIT, bits),
		.counter = credits->id};
	int rc = engine_write(moe->engine->engine, &write);

	credits->begun += !rc;
	return rc;
}

static void give_credit(tern_moe *moe, uint32_t source, uint32_t channel, uint32_t bits)
{
	struct relay *relay = moe->engine->relay;
	uint32_t chunk = bits & ((1u << CHUNK_BITS) - 1);

	if (!send_credit(moe, source, bits, TERN_TRY))
		return;
	relay->owed[channel * moe->layout.nr_chunks + chunk] = source + 1;
	relay->owed_view = bits - chunk;
	relay->nr_owed++;
	engine_ask_again(moe->engine->engine, moe->engine->prefix);
}

/* What is owed, for as long as the ring takes it. */
static void pay_credits(tern_moe *moe, uint32_t flags)
{
	struct relay *relay = moe->engine->relay;
	uint32_t nr = moe->layout.nr_channels * moe->layout.nr_chunks;

	for (uint32_t i = 0; i < nr && relay->nr_owed; i++) {
		if (!relay->owed[i])
			continue;
		if (send_credit(moe, relay->owed[i] - 1,
			    relay->owed_view | i % moe->layout.nr_chunks, flags))
			return;
		relay->owed[i] = 0;
		relay->nr_owed--;
	}
}

void relay_more(void *ctx)
{
	tern_moe *moe = ctx;

	if (!moe->engine->relay)
		return;
	pay_credits(moe, TERN_TRY);
	if (moe->engine->relay->nr_owed)
		engine_ask_again(moe->engine->engine, moe->engine->prefix);
}

/* The engine's thread has let go of it. Sources that still take part wait for what is owed. */
void relay_close(tern_moe *moe, uint64_t deadline_ns)
{
	struct relay *relay = moe->engine->relay;

	(void)deadline_ns; /* the engine's own wait bounds each */
	if (!relay)
		return;
	if (relay->nr_owed)
		pay_credits(moe, 0);
	free(relay->rounds);
	free(relay->rows_for);
	free(relay->owed);
	free(relay);
	moe->engine->relay = NULL;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool place_is_possible(
	const tern_moe *moe, const struct chunk_place *place, const struct row_header *header)
{
	if (place->rank >= moe->nr_ranks || moe->topology.node_of[place->rank] != own_node(moe) ||
		place->row >= moe->layout.share_tokens)
		return false;
	for (uint32_t i = 0; i < header->nr_routes; i++)
		if (header->routes[i].position >= moe->layout.positions ||
			header->routes[i].expert >= moe->placement.nr_local[place->rank])
			return false;
	return true;
}

/* As the source itself stores a row for a rank that it has mapped: dispatch_send.c. */
static void store_row(const tern_moe *moe, uint32_t slot, uint32_t source,
	const struct chunk_place *place, const struct row_header *header,
	const struct row_source *row)
{
	const struct layout *l = &moe->layout;
	uint8_t *region = path_window(moe, place->rank, layout_region(l, slot, source));
	struct row_op op;

	row_op_of_dispatch(moe, &op, ROW_KEPT);
	row_op_from(&op, row->payload, row->scales);
	rows_place(moe, &op, false, path_window(moe, place->rank, layout_output(l, slot)), source,
		header);
	row_op_run(&moe->config, &op, NULL);
	memcpy(header_at(moe, region, place->row), header,
		sizeof(*header) + header->nr_routes * sizeof(header->routes[0]));
}

/* False: broken. What was stored before that was in bounds. */
static bool store_rows(tern_moe *moe, uint32_t source, struct chunk_reader *r, uint32_t *rows_for)
{
	struct chunk_place place;
	union header_copy copy;

	while (r->rows_left) {
		if (!chunk_next_row(moe, r))
			return false;
		while (r->places_left) {
			if (!chunk_next_place(moe, r, &place, &copy) ||
				!place_is_possible(moe, &place, &copy.header))
				return false;
			store_row(moe, r->head.slot, source, &place, &copy.header, &r->source);
			rows_for[moe->topology.index_of[place.rank]]++;
		}
	}
	return r->at == r->head.bytes;
}

/* This rank's own word is the last: when its caller sees it, all others have theirs, so it may
 * leave. */
static void publish_round(tern_moe *moe, uint32_t slot, uint32_t source, struct relay_round *round)
{
	const struct topology *n = &moe->topology;
	uint32_t node = own_node(moe), nr = n->size[node];

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t index = (n->index_of[moe->rank] + 1 + i) % nr;

		path_arrived(moe, n->ranks[n->first[node] + index], slot, WORD_DISPATCH, source,
			word_make(round->epoch, round->rows_for[index]));
	}
	memset(round->rows_for, 0, nr * sizeof(*round->rows_for));
	round->nr_came = round->nr_chunks = 0;
}

/* A round is known by its first chunk. Its source does not begin the slot's next one before all
 * ranks have ended it. */
static bool join_round(struct relay_round *round, const struct chunk_head *head)
{
	if (!round->nr_came)
		round->epoch = head->epoch;
	round->nr_came++;
	if (head->epoch != round->epoch || (head->nr_chunks && round->nr_chunks))
		return false;
	if (head->nr_chunks)
		round->nr_chunks = head->nr_chunks;
	return !round->nr_chunks || round->nr_came <= round->nr_chunks;
}

bool relay_take(tern_moe *moe, uint32_t source, uint32_t channel, uint32_t chunk)
{
	struct relay_round *round;
	struct chunk_reader r;

	if (!chunk_read(&moe->layout, own(moe, layout_chunk(&moe->layout, channel, chunk)), &r))
		return false;
	round = &moe->engine->relay->rounds[channel * moe->layout.nr_slots + r.head.slot];
	if (!join_round(round, &r.head) || !store_rows(moe, source, &r, round->rows_for))
		return false;
	if (round->nr_came == round->nr_chunks)
		publish_round(moe, r.head.slot, source, round);
	return true;
}

void relay_forget(tern_moe *moe)
{
	struct relay *relay = moe->engine->relay;
	uint32_t nr_here = moe->topology.size[own_node(moe)];

	if (!relay)
		return;
	for (uint32_t i = 0; i < relay->nr_rounds; i++)
		relay->rounds[i].nr_came = relay->rounds[i].nr_chunks = 0;
	memset(relay->rows_for, 0, (size_t)relay->nr_rounds * nr_here * sizeof(*relay->rows_for));
	memset(relay->owed, 0,
		(size_t)moe->layout.nr_channels * moe->layout.nr_chunks * sizeof(*relay->owed));
	relay->nr_owed = 0;
}

/* Who is gateway of an elastic exchange its members know, and all that live may be. */
static bool is_gateway_of(const tern_moe *moe, uint32_t source)
{
	return moe->engine->elastic ||
	       topology_gateway(&moe->topology, source, own_node(moe)) == moe->rank;
}

void relay_chunk(tern_moe *moe, uint32_t source, uint32_t bits)
{
	uint32_t chunk = bits & ((1u << CHUNK_BITS) - 1), channel;

	if (view_is_past(moe, bits))
		return;
	if (!moe->engine->relay || chunk >= moe->layout.nr_chunks || !is_gateway_of(moe, source)) {
		path_violation(moe, source, "a chunk that is not for it");
		return;
	}
	channel = view_channel(moe, source, own_node(moe));
	if (relay_take(moe, source, channel, chunk))
		give_credit(moe, source, channel, bits);
	else
		path_violation(moe, source, "a broken chunk of rows");
}
