/* SPDX-License-Identifier: Apache-2.0 */
#include "path/path.h"

#include "base/scheduler.h"
#include "group/members.h"
#include "path/inside.h"
#include "path/path_engine.h"
#include "path/view.h"

uint8_t *path_region(const tern_moe *moe, uint32_t slot, uint32_t rank)
{
	if (!path_is_mapped(moe, rank))
		return engine_path_region(moe, slot, rank);
	return path_window(moe, rank, layout_region(&moe->layout, slot, moe->rank));
}

uint8_t *path_counts(const tern_moe *moe, uint32_t slot, uint32_t rank)
{
	uint32_t epoch = moe->slots[slot].epoch;

	if (!path_is_mapped(moe, rank))
		return engine_path_counts(moe, slot, epoch);
	return path_window(moe, rank, layout_counts(&moe->layout, slot, epoch, moe->rank));
}

int path_publish(tern_moe *moe, uint32_t rank, const struct publication *p)
{
	const struct layout *l = &moe->layout;

	if (!path_is_mapped(moe, rank))
		return engine_path_publish(moe, rank, p);
	arrival_deliver((struct arrival *)path_window(
				moe, rank, layout_word(l, p->slot, p->kind, moe->rank)),
		(struct event_count *)path_window(
			moe, rank, layout_event_count(l, p->slot, p->phase)),
		word_make(moe->slots[p->slot].epoch, p->count));
	scheduler_wake(moe->group->scheduler, rank);
	return 0;
}

int path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind)
{
	return moe->engine ? engine_path_begin(moe, slot, kind) : 0;
}

/* An engine serves all ranks or none: where one rank has peers that are not mapped, all make their
 * part. */
int paths_open(tern_moe *moe)
{
	return moe->group->engine ? engine_path_open(moe) : 0;
}

void paths_close(tern_moe *moe)
{
	if (moe->engine)
		engine_path_close(moe);
}

void path_settle(tern_moe *moe)
{
	if (moe->engine)
		engine_path_settle(moe);
}

void path_leave(tern_moe *moe, uint64_t leave_status)
{
	leave_status_publish(&((struct window_head *)own(moe, 0))->leave_status, leave_status);
	if (moe->engine)
		engine_path_leave(moe, leave_status);
}

uint64_t path_leave_status(const tern_moe *moe, uint32_t rank)
{
	if (!path_is_mapped(moe, rank))
		return engine_path_leave_status(moe, rank);
	return leave_status_observe(
		&((const struct window_head *)moe->windows[rank]->base)->leave_status);
}

/* The engine watches processes too, and reports an end only after what was sent before it. An
 * exchange that is not elastic is over when a member goes, whoever has come in its place. */
bool path_is_lost(const tern_moe *moe, uint32_t rank, const char **text)
{
	*text = NULL;
	if (!moe->config.elastic && group_has_lost(moe->group, rank))
		return true;
	if (!path_is_mapped(moe, rank) && moe->config.elastic)
		return members_lost(moe->group, rank);
	if (!path_is_mapped(moe, rank))
		return engine_path_is_lost(moe, rank, text);
	return group_has_died(moe->group, rank);
}

uint32_t path_relay_of(const tern_moe *moe, uint32_t source)
{
	if (path_is_mapped(moe, source) || moe->config.mode == TERN_LOW_LATENCY)
		return source;
	return view_gateway(moe, source, moe->topology.node_of[moe->rank]);
}

int path_broken(const tern_moe *moe, const char **text)
{
	return moe->engine ? engine_path_broken(moe, text) : -1;
}

uint64_t path_staging_bytes(const tern_moe *moe)
{
	const struct layout *l = &moe->layout;

	return (uint64_t)l->nr_channels * l->nr_chunks * l->chunk_bytes +
	       (moe->engine ? engine_path_bytes(moe) : 0);
}
