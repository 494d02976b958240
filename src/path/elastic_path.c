/* SPDX-License-Identifier: Apache-2.0 */
#include "path/elastic_path.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/elastic.h"
#include "group/join.h"
#include "path/inside.h"
#include "path/internode_send.h"
#include "path/relay.h"
#include "path/results.h"
#include "path/view.h"

struct elastic_path {
	struct member_client client;
	bool listed;
	tern_region **keys; /* [R] of ranks that are not mapped */
};

/* ---- what the group asks --------------------------------------------------------------------- */

static int halt(tern_engine *engine, void *ctx)
{
	tern_moe *moe = ctx;

	(void)engine;
	moe->engine->view->least = moe->engine->view->halted;
	relay_forget(moe);
	return 0;
}

/* First the proxy relays nothing more: then it sends no credits either. */
static bool has_stopped(void *ctx)
{
	tern_moe *moe = ctx;
	struct engine_path *path = moe->engine;

	if (path->view->halted != moe->group->view + 1) {
		path->view->halted = moe->group->view + 1;
		engine_call(path->engine, halt, moe);
	}
	return sent_have_ended(&path->pieces) && sent_have_ended(&path->credits) &&
	       results_settled(moe) && channels_have_landed(moe);
}

static int begin_view(tern_engine *engine, void *ctx)
{
	tern_moe *moe = ctx;

	(void)engine;
	moe->engine->view->least = moe->engine->view->view = moe->group->view;
	moe->engine->view->is_new = !members_have(moe->group, moe->rank);
	channels_begin_again(moe);
	return 0;
}

static void changed(void *ctx)
{
	tern_moe *moe = ctx;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		moe->engine->view->alive[r] = members_have(moe->group, r);
	results_begin_again(moe);
	engine_call(moe->engine->engine, begin_view, moe);
}

static void forget_key(struct elastic_path *e, uint32_t rank, int wait_ms)
{
	if (e->keys[rank])
		tern_region_deregister(e->keys[rank], wait_ms);
	e->keys[rank] = NULL;
}

/* Words that lie in the network's queue here are ignored from now on: the proxy that reads them is
 * asked for the key's end after this. */
static int fence(void *ctx, uint32_t rank)
{
	tern_moe *moe = ctx;
	struct elastic_path *e = moe->engine->elastic;

	if (path_is_mapped(moe, rank))
		return 0;
	shut_out_publish(&moe->engine->view->out[rank]);
	forget_key(e, rank, moe->wait_ms);
	return 0;
}

static void look(void *ctx, uint32_t slot, struct member_round *round)
{
	elastic_look_at_rounds(ctx, slot, round);
}

static void hear(void *ctx, uint32_t rank, uint32_t slot, const struct member_round *round)
{
	const tern_moe *moe = ctx;

	if (rank < moe->nr_ranks && !path_is_mapped(moe, rank))
		elastic_hear_rounds(ctx, rank, slot, round);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int elastic_path_open(tern_moe *moe)
{
	struct elastic_path *e = calloc(1, sizeof(*e));
	uint64_t nr_slots = (uint64_t)moe->nr_ranks * moe->config.nr_slots;
	int rc = view_open(moe);

	moe->engine->elastic = e;
	moe->told = aligned_alloc(CACHE_LINE, nr_slots * sizeof(*moe->told));
	if (e && moe->told) {
		memset(moe->told, 0, nr_slots * sizeof(*moe->told));
		for (uint64_t i = 0; moe->group->newcomer && i < nr_slots; i++)
			atomic_init(&moe->told[i].done, ELASTIC_UNKNOWN);
		e->keys = calloc(moe->nr_ranks, sizeof(*e->keys));
	}
	if (rc)
		return rc;
	if (!e || !moe->told || !e->keys)
		return fail(TERN_ERR_NOMEM, "no memory for the keys of %u ranks", moe->nr_ranks);
	e->client = (struct member_client){.has_stopped = has_stopped,
		.changed = changed,
		.fence = fence,
		.look = look,
		.hear = hear,
		.ctx = moe,
		.nr_slots = moe->config.nr_slots};
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!path_is_mapped(moe, r) && members_have(moe->group, r))
			rc = tern_engine_register(moe->engine->engine, own(moe, 0),
				moe->layout.window_bytes, &e->keys[r]);
	return rc;
}

void elastic_path_close(tern_moe *moe)
{
	struct elastic_path *e = moe->engine->elastic;

	if (e && e->listed)
		members_remove_client(moe->group, &e->client);
	for (uint32_t r = 0; e && e->keys && r < moe->nr_ranks; r++)
		forget_key(e, r, moe->wait_ms);
	if (e)
		free(e->keys);
	free(e);
	view_close(moe);
	moe->engine->elastic = NULL;
}

/* [R][R]: those of rank r, for each rank. */
static int gather_descriptors(tern_moe *moe, struct tern_descriptor *mine)
{
	const struct elastic_path *e = moe->engine->elastic;
	struct tern_descriptor *all = mine + moe->nr_ranks;
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (e->keys[r])
			rc = tern_region_descriptor(e->keys[r], &mine[r]);
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(moe->group, mine, all, moe->nr_ranks * sizeof(*mine));
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!path_is_mapped(moe, r) && members_have(moe->group, r)) {
			rc = tern_engine_import(moe->engine->engine,
				&all[(size_t)r * moe->nr_ranks + moe->rank],
				&moe->engine->windows[r]);
			rc = rc && members_lost(moe->group, r) ? members_lack(moe->group) : rc;
		}
	return rc;
}

/* ---- who comes in another's place ------------------------------------------------------------ */

/* It writes here by this key, and this rank there. */
static void replace_far(void *ctx, uint32_t rank, tern_region *key, tern_remote *remote)
{
	tern_moe *moe = ctx;
	struct elastic_path *e = moe->engine->elastic;
	tern_remote **window = &moe->engine->windows[rank];

	forget_key(e, rank, moe->wait_ms);
	tern_remote_forget(*window, moe->wait_ms);
	e->keys[rank] = key;
	*window = remote;
	leave_statuses_forget(&moe->engine->leave_statuses, rank);
	elastic_forget_rounds(moe, rank);
	shut_out_take_back(&moe->engine->view->out[rank]);
}

/* An immediate has the low bits of its epoch alone, and the last word of that rank, or of who had
 * its place, may be any number of rounds old. The next is of the round that is to come. */
static void meet(void *ctx, uint32_t rank)
{
	tern_moe *moe = ctx;

	for (uint32_t slot = 0; !path_is_mapped(moe, rank) && slot < moe->config.nr_slots; slot++) {
		uint32_t epoch = elastic_epoch(moe->config.first_epoch,
			elastic_done_by_members(moe, slot), moe->group->view);

		for (uint32_t kind = 0; kind < NR_WORD_KINDS; kind++)
			arrival_publish(
				(struct arrival *)own(moe, layout_word(&moe->layout, slot,
								   (enum word_kind)kind, rank)),
				word_make(epoch - 1, 0));
	}
}

static void offer(tern_moe *moe)
{
	if (!moe->offer)
		return;
	moe->offer->prefix = moe->engine->prefix;
	moe->offer->replace_far = replace_far;
	moe->offer->meet = meet;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* From here on it is asked and told like the group's others; what they were told before, now. */
static int join_others(tern_moe *moe)
{
	struct elastic_path *e = moe->engine->elastic;
	int rc;

	e->client.number = moe->group->round;
	rc = members_add_client(moe->group, &e->client);
	e->listed = !rc;
	offer(moe);
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!path_is_mapped(moe, r) && !members_have(moe->group, r))
			fence(moe, r);
	if (!rc && moe->group->view)
		changed(moe);
	return rc;
}

int elastic_path_connect(tern_moe *moe)
{
	struct tern_descriptor *mine =
		calloc((size_t)moe->nr_ranks * (moe->nr_ranks + 1), sizeof(*mine));
	int rc = mine ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u descriptors", moe->nr_ranks);

	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	if (!rc && moe->group->newcomer)
		rc = newcomer_swap_keys(moe->group, moe->windows[moe->rank],
			moe->engine->elastic->keys, moe->engine->windows);
	else if (!rc)
		rc = gather_descriptors(moe, mine);
	rc = rc ? rc : join_others(moe);
	free(mine);
	return rc;
}
