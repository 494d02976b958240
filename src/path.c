/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"
#include "error.h"
#include "path_engine.h"

void path_deliver(struct arrival *arrival, struct doorbell *bell, uint64_t word)
{
	arrival_publish(arrival, word);
	if (doorbell_ring(bell))
		syscall(SYS_futex, &bell->rung, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int path_publish(tern_moe *moe, uint32_t rank, const struct publication *p)
{
	const struct layout *l = &moe->layout;

	if (!moe->windows[rank])
		return engine_path_publish(moe, rank, p);
	path_deliver((struct arrival *)path_place(moe, rank, layout_word(l, p->slot, p->kind, moe->rank)),
		(struct doorbell *)path_place(moe, rank, layout_doorbell(l, p->slot, p->phase)),
		word_make(moe->slots[p->slot].epoch, p->count));
	driver_wake(moe->group->driver, rank);
	return 0;
}

int path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind)
{
	return moe->engine ? engine_path_begin(moe, slot, kind) : 0;
}

int paths_open(tern_moe *moe)
{
	bool mapped = true;
	int rc = 0;

	moe->places = calloc(moe->nr_ranks, sizeof(*moe->places));
	if (!moe->places)
		rc = fail(TERN_ERR_NOMEM, "no memory for %u paths", moe->nr_ranks);
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		mapped &= moe->windows[r] != NULL;
		moe->places[r] = moe->windows[r] ? moe->windows[r]->base : NULL;
	}
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	/* An engine serves all ranks or none: where one rank has peers that are not mapped, all make their part. */
	return rc || !moe->group->engine ? rc : engine_path_open(moe, !mapped);
}

void paths_close(tern_moe *moe)
{
	if (moe->engine)
		engine_path_close(moe);
	free(moe->places);
}

void path_part(tern_moe *moe, uint64_t parting)
{
	parting_publish(&((struct window_head *)own(moe, 0))->parting, parting);
	if (moe->engine)
		engine_path_part(moe, parting);
}

uint64_t path_parting(const tern_moe *moe, uint32_t rank)
{
	if (!moe->windows[rank])
		return engine_path_parting(moe, rank);
	return parting_observe(&((const struct window_head *)moe->windows[rank]->base)->parting);
}

/* The engine watches processes too, and reports an end only after what was sent before it. */
bool path_is_lost(const tern_moe *moe, uint32_t rank, const char **text)
{
	*text = NULL;
	if (!moe->windows[rank])
		return engine_path_is_lost(moe, rank, text);
	return group_has_died(moe->group, rank);
}

void path_bear_silence(const tern_moe *moe)
{
	if (moe->engine)
		engine_path_bear_silence(moe);
}
