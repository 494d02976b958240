/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks of an exchange on devices learn that one has left or given up: a leave word of each
 * rank.
 *
 * On a node the words lie together in memory of the host that all its ranks map, each for itself,
 * and its devices read: the board, which has a row of words for each rank that looks. A window
 * could not hold them, since a peer's is gone when it has left before, and a store there would end
 * the process. Kernels that wait look at the word of whom they wait for wherever they look at the
 * clock (gpu/cuda/common/wait.cuh). A rank that is killed leaves none: each that lives puts a mark
 * in its place, in its own row, as soon as the process has ended, so that kernels do not wait out
 * wait_ms. To other nodes the word goes over the engine, as between CPUs.
 */
#include "gpu/host/inside.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "gpu/host/elastic.h"
#include "gpu/host/internode.h"
#include "base/error.h"
#include "base/ordering.h"
#include "group/window.h"
#include "exchange/elastic.h"
#include "exchange/wire.h"

static uint64_t progress_at(const tern_moe *moe)
{
	return align_up((uint64_t)moe->nr_ranks * moe->nr_ranks * sizeof(uint64_t), CACHE_LINE);
}

static uint64_t ready_at(const tern_moe *moe)
{
	return progress_at(moe) +
	       (uint64_t)moe->nr_ranks * moe->config.nr_slots * sizeof(struct slot_progress);
}

static uint64_t board_bytes(const tern_moe *moe)
{
	return align_up(ready_at(moe) + moe->nr_ranks * sizeof(uint64_t), 4096);
}

_Atomic uint64_t *device_leave_word(const tern_moe *moe, uint32_t looks, uint32_t of)
{
	return &moe->device->board[looks * moe->nr_ranks + of];
}

struct slot_progress *device_progress(const tern_moe *moe)
{
	return (struct slot_progress *)((uint8_t *)moe->device->board + progress_at(moe));
}

_Atomic uint64_t *device_ready_word(const tern_moe *moe, uint32_t rank)
{
	return (_Atomic uint64_t *)((uint8_t *)moe->device->board + ready_at(moe)) + rank;
}

/* Of the lowest rank of this node; a mapping of this rank's own, as devices want to know each once.
 */
static int map_board(tern_moe *moe, struct window **windows)
{
	struct device *d = moe->device;
	const struct topology *nodes = &moe->topology;
	const struct window *window =
		windows[nodes->ranks[nodes->first[nodes->node_of[moe->rank]]]];
	uint64_t bytes = board_bytes(moe);
	void *board = window ? mremap(window->base, 0, bytes, MREMAP_MAYMOVE) : MAP_FAILED,
	     *there = NULL;
	int rc;

	if (board == MAP_FAILED)
		return fail_errno("mapping the leave words of a node");
	d->board = board;
	rc = device_outcome(d, d->ops->host_register(board, bytes, &there));
	if (!rc)
		d->board_there =
			(uint8_t *)there + (uint64_t)moe->rank * moe->nr_ranks * sizeof(uint64_t);
	return rc;
}

static void mark_dead(void *ctx, uint32_t rank)
{
	tern_moe *moe = ctx;

	if (moe->device->elastic)
		device_elastic_died(moe, rank);
	else if (!is_internode(moe, rank))
		leave_status_publish_death(device_leave_word(moe, moe->rank, rank), LEAVE_DIED);
}

int device_board_open(tern_moe *moe)
{
	tern_group *group = moe->group;
	struct window **windows = calloc(moe->nr_ranks, sizeof(*windows));
	int rc = windows ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u ranks", moe->nr_ranks);

	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc : windows_create(group, board_bytes(moe), ++group->round, windows);
	if (!rc) {
		rc = group_agree_status(group, map_board(moe, windows), "tern_moe_create");
		windows_destroy(group, windows);
	}
	free(windows);
	rc = rc ? rc : death_watch_open(group);
	if (rc)
		return rc;
	moe->device->watcher = (struct death_watcher){.died = mark_dead, .ctx = moe};
	death_watch_add(group, &moe->device->watcher);
	return 0;
}

void device_board_close(tern_moe *moe)
{
	struct device *d = moe->device;

	if (d->watcher.died)
		death_watch_remove(moe->group, &d->watcher);
	if (d->board_there)
		d->ops->host_unregister(d->board);
	if (d->board)
		munmap(d->board, board_bytes(moe));
}

/* Nothing is sent before the board is there, and it is there until the exchange is closed. */
void device_leave(tern_moe *moe, uint64_t leave_status)
{
	struct device *d = moe->device;

	for (uint32_t r = 0; d->board && r < moe->nr_ranks; r++)
		leave_status_publish(device_leave_word(moe, r, moe->rank), leave_status);
	if (d->internode)
		device_internode_leave(d->internode, leave_status);
}

uint64_t device_leave_status(const tern_moe *moe, uint32_t rank)
{
	const struct device *d = moe->device;

	uint64_t status;

	if (is_internode(moe, rank))
		return device_internode_leave_status(d->internode, rank);
	status = leave_status_observe(device_leave_word(moe, moe->rank, rank));
	return status == LEAVE_DIED || status == LEAVE_VIEW ? 0 : status;
}

bool device_has_died(const tern_moe *moe, uint32_t rank)
{
	return leave_status_observe(device_leave_word(moe, moe->rank, rank)) == LEAVE_DIED ||
	       group_has_died(moe->group, rank);
}
