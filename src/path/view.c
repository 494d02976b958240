/* SPDX-License-Identifier: Apache-2.0 */
#include "path/view.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "path/inside.h"

#define VIEW_BITS 4

/* ---- gateways -------------------------------------------------------------------------------- */

static bool lives(const tern_moe *moe, uint32_t rank)
{
	return !moe->engine->view || moe->engine->view->alive[rank];
}

uint32_t view_gateway(const tern_moe *moe, uint32_t source, uint32_t node)
{
	const struct topology *t = &moe->topology;
	uint32_t gateway = topology_gateway(t, source, node);

	for (uint32_t i = 0; i < t->size[node]; i++) {
		uint32_t next =
			t->ranks[t->first[node] + (t->index_of[gateway] + i) % t->size[node]];

		if (lives(moe, next))
			return next;
	}
	return gateway;
}

uint32_t view_channel(const tern_moe *moe, uint32_t source, uint32_t node)
{
	return moe->engine->view ? source : topology_channel(&moe->topology, source, node);
}

bool view_node_lives(const tern_moe *moe, uint32_t node)
{
	const struct topology *t = &moe->topology;

	for (uint32_t i = 0; i < t->size[node]; i++)
		if (lives(moe, t->ranks[t->first[node] + i]))
			return true;
	return false;
}

/* ---- chunks of other views ------------------------------------------------------------------- */

static uint32_t low_bits(uint64_t view)
{
	return (uint32_t)view & ((1u << VIEW_BITS) - 1);
}

uint32_t view_bits(const tern_moe *moe)
{
	return moe->engine->view ? low_bits(moe->view) << CHUNK_BITS : 0;
}

/* A member that acts on the next view already may be ahead of this rank. */
bool view_is_past(const tern_moe *moe, uint32_t bits)
{
	const struct path_view *v = moe->engine->view;

	return v && !v->is_new &&
	       low_bits((bits >> CHUNK_BITS) - v->least) >= 1u << (VIEW_BITS - 1);
}

bool view_is_other(const tern_moe *moe, uint32_t bits)
{
	const struct path_view *v = moe->engine->view;

	return v && low_bits(bits >> CHUNK_BITS) != low_bits(v->view);
}

bool view_ignores(const tern_moe *moe, uint32_t source)
{
	return moe->engine->view && shut_out_observe(&moe->engine->view->out[source]);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int view_open(tern_moe *moe)
{
	struct path_view *v = calloc(1, sizeof(*v));

	moe->engine->view = v;
	if (v) {
		v->out = calloc(moe->nr_ranks, sizeof(*v->out));
		v->alive = malloc(moe->nr_ranks);
	}
	if (!v || !v->out || !v->alive)
		return fail(TERN_ERR_NOMEM, "no memory for a view of %u ranks", moe->nr_ranks);
	memset(v->alive, 1, moe->nr_ranks);
	v->is_new = moe->group->newcomer;
	return 0;
}

void view_close(tern_moe *moe)
{
	struct path_view *v = moe->engine->view;

	if (!v)
		return;
	free(v->out);
	free(v->alive);
	free(v);
	moe->engine->view = NULL;
}
