/* SPDX-License-Identifier: Apache-2.0 */
/* A channel leads from this rank to its gateway on another node: some chunks of staging here, and
 * as many in the gateway's window. A chunk is taken, filled, written with one immediate, and free
 * again when the gateway has given it back and the write has been reported as landed. Which chunks
 * are taken in which order means nothing: each says what it is. Slots share channels. A chunk holds
 * rows of one slot, and none is left half full when a call returns. */
#include "path/internode_send.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/row_work.h"
#include "path/inside.h"
#include "path/view.h"

struct chunk_state {
	struct sent *sent;
	_Atomic uint32_t busy; /* ordering.h, chunk_take */
};

struct channel {
	uint32_t gateway, number; /* number: of this rank among the gateway's sources */
	uint8_t *staging;
	struct chunk_state *chunks;
	uint32_t next; /* where to look for a free one */
	bool open;     /* chunk `next` is being filled */
	struct chunk_writer writer;
};

struct channels {
	uint32_t nr_chunks;    /* of a channel */
	struct channel *of;    /* [nodes]; this rank's own node has none */
	struct sent_list sent; /* [nodes - 1][nr_chunks] */
};

static bool is_internode(const tern_moe *moe, uint32_t node)
{
	return node != moe->topology.node_of[moe->rank];
}

uint64_t channels_bytes(const tern_moe *moe)
{
	return (uint64_t)(moe->topology.nr_nodes - 1) * moe->layout.nr_chunks *
	       moe->layout.chunk_bytes;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int channel_open(tern_moe *moe, uint32_t node, struct channel *channel)
{
	const struct layout *l = &moe->layout;
	uint32_t number = node - (node > moe->topology.node_of[moe->rank]);

	channel->gateway = view_gateway(moe, moe->rank, node);
	channel->number = view_channel(moe, moe->rank, node);
	channel->staging = moe->engine->staging + moe->engine->channels_at +
			   (uint64_t)number * l->nr_chunks * l->chunk_bytes;
	channel->chunks = calloc(l->nr_chunks, sizeof(*channel->chunks));
	if (!channel->chunks)
		return fail(TERN_ERR_NOMEM, "no memory for %u chunks to rank %u", l->nr_chunks,
			channel->gateway);
	for (uint32_t i = 0; i < l->nr_chunks; i++)
		channel->chunks[i].sent =
			&moe->engine->channels->sent.each[number * l->nr_chunks + i];
	return 0;
}

int channels_open(tern_moe *moe)
{
	struct channels *channels = calloc(1, sizeof(*channels));
	uint32_t nr_internode = moe->topology.nr_nodes - 1;
	int rc;

	moe->engine->channels = channels;
	if (channels)
		channels->of = calloc(moe->topology.nr_nodes, sizeof(*channels->of));
	if (!channels || !channels->of)
		return fail(TERN_ERR_NOMEM, "no memory for channels to %u nodes",
			moe->topology.nr_nodes);
	channels->nr_chunks = moe->layout.nr_chunks;
	rc = nr_internode ? sent_open(moe->engine->engine, &channels->sent,
				    nr_internode * channels->nr_chunks)
			  : 0;
	for (uint32_t node = 0; node < moe->topology.nr_nodes && !rc; node++)
		if (is_internode(moe, node))
			rc = channel_open(moe, node, &channels->of[node]);
	return rc;
}

void channels_close(tern_moe *moe, uint64_t deadline_ns)
{
	struct channels *channels = moe->engine->channels;

	if (!channels)
		return;
	sent_close(moe, &channels->sent, deadline_ns);
	for (uint32_t node = 0; channels->of && node < moe->topology.nr_nodes; node++)
		free(channels->of[node].chunks);
	free(channels->of);
	free(channels);
}

/* ---- credits --------------------------------------------------------------------------------- */

void channels_credit(tern_moe *moe, uint32_t gateway, uint32_t bits)
{
	uint32_t chunk = bits & ((1u << CHUNK_BITS) - 1);
	struct channels *channels = moe->engine->channels;
	struct channel *channel = channels ? &channels->of[moe->topology.node_of[gateway]] : NULL;

	if (view_is_other(moe, bits))
		return;
	if (channel && channel->chunks && channel->gateway == gateway &&
		chunk < channels->nr_chunks)
		chunk_give_back(&channel->chunks[chunk].busy);
	else
		path_violation(moe, gateway, "a credit for a chunk that it was not sent");
}

bool channels_have_landed(const tern_moe *moe)
{
	return !moe->engine->channels || sent_have_ended(&moe->engine->channels->sent);
}

void channels_begin_again(tern_moe *moe)
{
	struct channels *channels = moe->engine->channels;

	for (uint32_t node = 0; channels && node < moe->topology.nr_nodes; node++) {
		struct channel *channel = &channels->of[node];

		for (uint32_t i = 0; channel->chunks && i < channels->nr_chunks; i++)
			chunk_give_back(&channel->chunks[i].busy);
		channel->open = false;
		if (channel->chunks)
			channel->gateway = view_gateway(moe, moe->rank, node);
	}
}

/* Given back by the gateway; and reported as landed, since the engine reads the staging until then.
 */
static bool is_free(const struct chunk_state *chunk)
{
	return chunk_is_free(&chunk->busy) && sent_has_ended(chunk->sent);
}

bool channel_has_room(tern_moe *moe, uint32_t node)
{
	struct channel *channel = &moe->engine->channels->of[node];
	uint32_t nr = moe->engine->channels->nr_chunks;

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t at = (channel->next + i) % nr;

		if (is_free(&channel->chunks[at])) {
			channel->next = at;
			return true;
		}
	}
	return false;
}

/* Chunks to a gateway that is gone are nobody's any more. */
static bool is_settled(const tern_moe *moe, const struct channel *channel)
{
	const char *text;

	for (uint32_t i = 0; i < moe->engine->channels->nr_chunks; i++)
		if (!is_free(&channel->chunks[i]))
			return engine_path_leave_status(moe, channel->gateway) ||
			       engine_path_is_lost(moe, channel->gateway, &text);
	return true;
}

bool channels_settled(const tern_moe *moe)
{
	const struct channels *channels = moe->engine->channels;

	for (uint32_t node = 0; channels && node < moe->topology.nr_nodes; node++)
		if (is_internode(moe, node) && !is_settled(moe, &channels->of[node]))
			return false;
	return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* nr_chunks: 0, or on the round's last chunk how many there were. */
static int send_chunk(tern_moe *moe, uint32_t slot, struct channel *channel, uint32_t nr_chunks)
{
	struct chunk_state *chunk = &channel->chunks[channel->next];
	uint32_t number = channel->next;

	row_work_finish(moe->work);
	chunk_end(&channel->writer, slot, moe->slots[slot].epoch, nr_chunks);
	channel->open = false;
	channel->next = (number + 1) % moe->layout.nr_chunks;
	chunk_take(&chunk->busy);
	return path_write(moe, chunk->sent, channel->gateway,
		immediate_make(moe, IMMEDIATE_CHUNK, number | view_bits(moe)), channel->writer.base,
		layout_chunk(&moe->layout, channel->number, number), channel->writer.at);
}

uint32_t channel_gateway(const tern_moe *moe, uint32_t node)
{
	return moe->engine->channels->of[node].gateway;
}

static int open_chunk(tern_moe *moe, uint32_t node)
{
	struct channel *channel = &moe->engine->channels->of[node];

	if (!channel_has_room(moe, node))
		return CHANNEL_FULL;
	chunk_begin(&channel->writer,
		channel->staging + (uint64_t)channel->next * moe->layout.chunk_bytes);
	channel->open = true;
	return 0;
}

int channels_room(tern_moe *moe, uint32_t slot, uint32_t node, uint32_t bytes)
{
	struct channel *channel = &moe->engine->channels->of[node];
	int rc = 0;

	if (channel->open && channel->writer.at + bytes > moe->layout.chunk_bytes) {
		moe->slots[slot].chunks_to[node]++;
		rc = send_chunk(moe, slot, channel, 0);
	}
	return rc || channel->open ? rc : open_chunk(moe, node);
}

struct chunk_writer *channels_writer(tern_moe *moe, uint32_t node)
{
	return &moe->engine->channels->of[node].writer;
}

/* A node that gets no rows gets an empty chunk: silence is not a count. */
int channels_finish(tern_moe *moe, uint32_t slot, uint32_t *node)
{
	struct slot *s = &moe->slots[slot];
	int rc = 0;

	while (s->next_node < moe->topology.nr_nodes && !rc) {
		*node = (moe->topology.node_of[moe->rank] + 1 + s->next_node) %
			moe->topology.nr_nodes;
		if (is_internode(moe, *node) && view_node_lives(moe, *node)) {
			rc = channels_room(moe, slot, *node, 0);
			rc = rc ? rc
				: send_chunk(moe, slot, &moe->engine->channels->of[*node],
					  ++s->chunks_to[*node]);
		}
		s->next_node += !rc;
	}
	return rc;
}

int channels_flush(tern_moe *moe, uint32_t slot)
{
	int rc = 0;

	for (uint32_t node = 0; node < moe->topology.nr_nodes && !rc; node++) {
		struct channel *channel = &moe->engine->channels->of[node];

		if (channel->open && channel->writer.nr_rows) {
			moe->slots[slot].chunks_to[node]++;
			rc = send_chunk(moe, slot, channel, 0);
		}
		channel->open = false;
	}
	return rc;
}
