/* SPDX-License-Identifier: Apache-2.0 */
/* A lane leads from this rank to its gateway on another node: some chunks of staging here, and as many in the gateway's
 * window. A chunk is taken, filled, written with one immediate, and free again when the gateway has given it back and
 * the write has been reported as landed. Which chunks are taken in which order means nothing: each says what it is.
 * Slots share lanes. A chunk holds rows of one slot, and none is left half full when a call returns. */
#include "path/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "path/chunk.h"
#include "base/error.h"
#include "path/inside.h"
#include "exchange/wait.h"

struct chunk_state {
	struct sent *sent;
	_Atomic uint32_t busy; /* ordering.h, chunk_take */
};

struct lane {
	uint32_t gateway, number; /* number: of this rank among the gateway's sources */
	uint8_t *staging;
	struct chunk_state *chunks;
	uint32_t next; /* where to look for a free one */
	bool open;     /* chunk `next` is being filled */
	struct chunk_writer writer;
};

struct lanes {
	uint32_t nr_chunks;    /* of a lane */
	struct lane *of;       /* [nodes]; this rank's own node has none */
	struct sent_list sent; /* [nodes - 1][nr_chunks] */
};

static bool is_internode(const tern_moe *moe, uint32_t node)
{
	return node != moe->topology.node_of[moe->rank];
}

uint64_t lanes_bytes(const tern_moe *moe)
{
	return (uint64_t)(moe->topology.nr_nodes - 1) * moe->layout.nr_chunks * moe->layout.chunk_bytes;
}

/* ---- opening and closing ----------------------------------------------------------------------------------- */

static int lane_open(tern_moe *moe, uint32_t node, struct lane *lane)
{
	const struct layout *l = &moe->layout;
	uint32_t number = node - (node > moe->topology.node_of[moe->rank]);

	lane->gateway = topology_gateway(&moe->topology, moe->rank, node);
	lane->number = topology_lane(&moe->topology, moe->rank, node);
	lane->staging = moe->engine->staging + moe->engine->lanes_at + (uint64_t)number * l->nr_chunks * l->chunk_bytes;
	lane->chunks = calloc(l->nr_chunks, sizeof(*lane->chunks));
	if (!lane->chunks)
		return fail(TERN_ERR_NOMEM, "no memory for %u chunks to rank %u", l->nr_chunks, lane->gateway);
	for (uint32_t i = 0; i < l->nr_chunks; i++)
		lane->chunks[i].sent = &moe->engine->lanes->sent.each[number * l->nr_chunks + i];
	return 0;
}

int lanes_open(tern_moe *moe)
{
	struct lanes *lanes = calloc(1, sizeof(*lanes));
	uint32_t nr_internode = moe->topology.nr_nodes - 1;
	int rc;

	moe->engine->lanes = lanes;
	if (lanes)
		lanes->of = calloc(moe->topology.nr_nodes, sizeof(*lanes->of));
	if (!lanes || !lanes->of)
		return fail(TERN_ERR_NOMEM, "no memory for lanes to %u nodes", moe->topology.nr_nodes);
	lanes->nr_chunks = moe->layout.nr_chunks;
	rc = nr_internode ? sent_open(moe->engine->engine, &lanes->sent, nr_internode * lanes->nr_chunks) : 0;
	for (uint32_t node = 0; node < moe->topology.nr_nodes && !rc; node++)
		if (is_internode(moe, node))
			rc = lane_open(moe, node, &lanes->of[node]);
	return rc;
}

void lanes_close(tern_moe *moe, uint64_t deadline_ns)
{
	struct lanes *lanes = moe->engine->lanes;

	if (!lanes)
		return;
	sent_close(moe, &lanes->sent, deadline_ns);
	for (uint32_t node = 0; lanes->of && node < moe->topology.nr_nodes; node++)
		free(lanes->of[node].chunks);
	free(lanes->of);
	free(lanes);
}

/* ---- credits ------------------------------------------------------------------------------------------------- */

void lanes_credit(tern_moe *moe, uint32_t gateway, uint32_t chunk)
{
	struct lanes *lanes = moe->engine->lanes;
	struct lane *lane = lanes ? &lanes->of[moe->topology.node_of[gateway]] : NULL;

	if (lane && lane->chunks && lane->gateway == gateway && chunk < lanes->nr_chunks)
		chunk_give_back(&lane->chunks[chunk].busy);
	else
		path_breach(moe, gateway, "a credit for a chunk that it was not sent");
}

/* Given back by the gateway; and reported as landed, since the engine reads the staging until then. */
static bool is_free(const struct chunk_state *chunk)
{
	return chunk_is_free(&chunk->busy) && sent_has_ended(chunk->sent);
}

struct search {
	const struct lanes *lanes;
	struct lane *lane;
};

static bool find_free(void *ctx)
{
	struct search *search = ctx;
	struct lane *lane = search->lane;
	uint32_t nr = search->lanes->nr_chunks;

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t at = (lane->next + i) % nr;

		if (is_free(&lane->chunks[at])) {
			lane->next = at;
			return true;
		}
	}
	return false;
}

/* Chunks to a gateway that is gone are nobody's any more. */
static bool is_settled(const tern_moe *moe, const struct lane *lane)
{
	const char *text;

	for (uint32_t i = 0; i < moe->engine->lanes->nr_chunks; i++)
		if (!is_free(&lane->chunks[i]))
			return path_parting(moe, lane->gateway) || path_is_lost(moe, lane->gateway, &text);
	return true;
}

bool lanes_settled(const tern_moe *moe)
{
	const struct lanes *lanes = moe->engine->lanes;

	for (uint32_t node = 0; lanes && node < moe->topology.nr_nodes; node++)
		if (is_internode(moe, node) && !is_settled(moe, &lanes->of[node]))
			return false;
	return true;
}

/* ---- sending ------------------------------------------------------------------------------------------------- */

/* nr_chunks: 0, or on the round's last chunk how many there were. */
static int send_chunk(tern_moe *moe, uint32_t slot, struct lane *lane, uint32_t nr_chunks)
{
	struct chunk_state *chunk = &lane->chunks[lane->next];
	uint32_t number = lane->next;

	chunk_end(&lane->writer, slot, moe->slots[slot].epoch, nr_chunks);
	lane->open = false;
	lane->next = (number + 1) % moe->layout.nr_chunks;
	chunk_take(&chunk->busy);
	return path_write(moe, chunk->sent, lane->gateway, immediate_make(moe, IMMEDIATE_CHUNK, number),
		lane->writer.base, layout_chunk(&moe->layout, lane->number, number), lane->writer.at);
}

static int open_chunk(tern_moe *moe, uint32_t slot, struct lane *lane)
{
	struct search search = {moe->engine->lanes, lane};
	int rc = find_free(&search) ? 0 : wait_for_room(moe, slot, lane->gateway, find_free, &search);

	if (rc)
		return rc;
	chunk_begin(&lane->writer, lane->staging + (uint64_t)lane->next * moe->layout.chunk_bytes);
	lane->open = true;
	return 0;
}

int lanes_room(tern_moe *moe, uint32_t slot, uint32_t node, uint32_t bytes)
{
	struct lane *lane = &moe->engine->lanes->of[node];
	int rc = 0;

	if (lane->open && lane->writer.at + bytes > moe->layout.chunk_bytes) {
		moe->slots[slot].chunks_to[node]++;
		rc = send_chunk(moe, slot, lane, 0);
	}
	return rc || lane->open ? rc : open_chunk(moe, slot, lane);
}

struct chunk_writer *lanes_writer(tern_moe *moe, uint32_t node)
{
	return &moe->engine->lanes->of[node].writer;
}

/* A node that gets no rows gets an empty chunk: silence is not a count. */
int lanes_finish(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	int rc = 0;

	while (s->next_node < moe->topology.nr_nodes && !rc) {
		uint32_t node = (moe->topology.node_of[moe->rank] + 1 + s->next_node) % moe->topology.nr_nodes;

		if (is_internode(moe, node)) {
			rc = lanes_room(moe, slot, node, 0);
			rc = rc ? rc : send_chunk(moe, slot, &moe->engine->lanes->of[node], ++s->chunks_to[node]);
		}
		s->next_node += !rc;
	}
	return rc;
}

int lanes_flush(tern_moe *moe, uint32_t slot)
{
	int rc = 0;

	for (uint32_t node = 0; node < moe->topology.nr_nodes && !rc; node++) {
		struct lane *lane = &moe->engine->lanes->of[node];

		if (lane->open && lane->writer.nr_rows) {
			moe->slots[slot].chunks_to[node]++;
			rc = send_chunk(moe, slot, lane, 0);
		}
		lane->open = false;
	}
	return rc;
}
