/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host/elastic.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/ordering.h"
#include "exchange/elastic.h"
#include "exchange/wire.h"
#include "gpu/host/fresh.h"

struct device_elastic {
	struct member_client client;
	pthread_mutex_t lock; /* of this rank's row of leave words and alive, whose death marks it
			       */
	uint8_t *alive;       /* [R] members whose death ends waits */
	uint64_t stopped_in;  /* the view in which it did so last, and one more */
	uint64_t *base;       /* [slots] the round with which kernels began in their view */
	uint32_t *epochs;     /* [slots] and its epoch */
	bool listed;
};

/* ---- epochs ---------------------------------------------------------------------------------- */

/* As elastic_epoch, but that kernels pass over 0, which fresh windows hold; and over 1 in high
 * throughput, where the last one is odd, and the next one even. */
static uint32_t first_after_last(const tern_moe *moe)
{
	return moe->config.mode == TERN_HIGH_THROUGHPUT ? 2 : 1;
}

static uint32_t epoch_of(const tern_moe *moe, uint64_t round)
{
	uint32_t first = moe->config.first_epoch ? moe->config.first_epoch : 1;
	uint64_t epoch = first + round + 2 * moe->view,
		 over = UINT32_MAX - first_after_last(moe) + 1;

	while (epoch > UINT32_MAX)
		epoch -= over;
	return (uint32_t)epoch;
}

static uint64_t rounds_between(const tern_moe *moe, uint32_t from, uint32_t to)
{
	uint64_t over = UINT32_MAX - first_after_last(moe) + 1;

	return to >= from ? to - from : to + over - from;
}

static struct slot_progress *progress_of(const tern_moe *moe, uint32_t slot)
{
	return &moe->told[moe->rank * moe->config.nr_slots + slot];
}

/* When no kernel runs: the first round that this one's kernels have not completed. */
static int find_next(tern_moe *moe, uint32_t slot, uint64_t *round)
{
	struct device *d = moe->device;
	uint32_t epoch = 0;
	int rc = device_outcome(d, d->ops->read_epoch(d->exchange, slot, &epoch));

	*round = d->elastic->base[slot] + rounds_between(moe, d->elastic->epochs[slot], epoch);
	return rc;
}

int device_still_owed(tern_moe *moe, uint32_t slot)
{
	uint64_t next,
		done = atomic_load_explicit(&progress_of(moe, slot)->done, memory_order_relaxed);
	int rc = device_elastic_look(moe);

	rc = rc ? rc : find_next(moe, slot, &next);
	if (!rc)
		moe->slots[slot].owed = next < done;
	return rc ? rc : moe->slots[slot].owed;
}

/* ---- ending waits ---------------------------------------------------------------------------- */

static void end_waits(tern_moe *moe, uint32_t rank)
{
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		leave_status_publish_death(device_leave_word(moe, rank, r), LEAVE_VIEW);
}

void device_elastic_died(tern_moe *moe, uint32_t rank)
{
	struct device_elastic *e = moe->device->elastic;

	pthread_mutex_lock(&e->lock);
	if (e->alive[rank]) {
		leave_status_publish_death(device_leave_word(moe, moe->rank, rank), LEAVE_DIED);
		end_waits(moe, moe->rank);
	}
	pthread_mutex_unlock(&e->lock);
}

/* By a member's call: before it says that it has stopped, so before any of them goes on. */
static void wanted(void *ctx)
{
	tern_moe *moe = ctx;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (moe->alive[r])
			end_waits(moe, r);
}

/* Kernels wait again, for who has gone too: this rank stores that one's words itself, and they may
 * take as long as any. Whoever has died since, or wants the next change, is not overlooked: they
 * have said so before they end waits. */
static void allow_waits(tern_moe *moe)
{
	struct device_elastic *e = moe->device->elastic;
	bool ends = false;

	pthread_mutex_lock(&e->lock);
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		e->alive[r] = moe->alive[r];
		leave_status_take_back(device_leave_word(moe, moe->rank, r), LEAVE_VIEW);
		if (!e->alive[r])
			leave_status_publish(device_leave_word(moe, moe->rank, r), 0);
	}
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (e->alive[r] && r != moe->rank && group_has_died(moe->group, r)) {
			leave_status_publish_death(
				device_leave_word(moe, moe->rank, r), LEAVE_DIED);
			ends = true;
		}
	if (ends || members_are_to_change(moe->group))
		end_waits(moe, moe->rank);
	pthread_mutex_unlock(&e->lock);
}

static bool somebody_died(const tern_moe *moe)
{
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (moe->alive[r] &&
			leave_status_observe(device_leave_word(moe, moe->rank, r)) == LEAVE_DIED)
			return true;
	return false;
}

bool device_elastic_changes(const tern_moe *moe)
{
	return members_are_to_change(moe->group) || somebody_died(moe);
}

int device_elastic_look(tern_moe *moe)
{
	struct gpu_report report = {0};
	int rc = elastic_look(moe);

	if (!rc && somebody_died(moe))
		rc = elastic_lost(moe);
	if (!rc)
		moe->device->ops->read_report(moe->device->exchange, 0, &report);
	return report.reason == GPU_LOST_EXPERTS ? elastic_fail_lost(moe) : rc;
}

/* ---- the change ------------------------------------------------------------------------------ */

/* An exchange whose device fails goes on for nobody. */
static void give_up(tern_moe *moe, int rc)
{
	if (rc && !moe->failed)
		exchange_fail(moe, rc, -1);
}

/* What this rank has completed is told with its record, which comes later. */
static bool has_stopped(void *ctx)
{
	tern_moe *moe = ctx;
	struct device *d = moe->device;
	int rc = 0;

	if (d->elastic->stopped_in == moe->group->view + 1)
		return true;
	end_waits(moe, moe->rank);
	rc = device_outcome(d, d->ops->quiesce(d->exchange));
	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++) {
		_Atomic uint64_t *done = &progress_of(moe, slot)->done;
		uint64_t next;

		rc = find_next(moe, slot, &next);
		if (!rc && next > atomic_load_explicit(done, memory_order_relaxed))
			atomic_store_explicit(done, next, memory_order_relaxed);
	}
	give_up(moe, rc);
	d->elastic->stopped_in = moe->group->view + 1;
	return true;
}

/* ---- going on -------------------------------------------------------------------------------- */

/* What kernels see from the next round on. */
static int write_view(tern_moe *moe)
{
	struct device *d = moe->device;
	struct device_view view = {.alive = moe->alive,
		.placement = &moe->placement,
		.epochs = d->elastic->epochs,
		.pane = fresh_pane(d, moe->group->view) * d->pane_bytes};

	return device_outcome(d, d->ops->resume(d->exchange, &view));
}

static int resume(tern_moe *moe)
{
	struct device *d = moe->device;
	struct device_elastic *e = d->elastic;

	elastic_take_over(moe);
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++) {
		e->base[slot] = moe->slots[slot].round;
		e->epochs[slot] = epoch_of(moe, e->base[slot]);
		moe->slots[slot].tag = e->base[slot];
		d->streams[slot].plan = NULL;
	}
	allow_waits(moe);
	return write_view(moe);
}

int device_elastic_place_check(tern_moe *moe)
{
	struct device *d = moe->device;
	int rc = device_outcome(d, d->ops->quiesce(d->exchange));

	rc = rc ? rc : device_look(moe);
	return rc == TERN_ERR_LOST_EXPERTS ? 0 : rc; /* it may be what brings them back */
}

int device_elastic_place(tern_moe *moe)
{
	struct device_elastic *e = moe->device->elastic;
	int rc = 0;

	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++) {
		uint64_t next;

		rc = find_next(moe, slot, &next);
		e->epochs[slot] = epoch_of(moe, next);
		e->base[slot] = next;
	}
	return rc ? rc : write_view(moe);
}

static void rest(void *ctx)
{
	fresh_prepare(ctx);
}

static int remake(void *ctx)
{
	tern_moe *moe = ctx;
	int rc;

	if (moe->failed)
		return 0;
	rc = fresh_await(moe);
	if (rc == TERN_ERR_MEMBERS)
		return rc;
	rc = rc ? rc : resume(moe);
	give_up(moe, rc);
	return 0;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int check(const tern_moe *moe)
{
	if (moe->topology.nr_nodes > 1)
		return fail(TERN_ERR_UNSUPPORTED,
			"elastic: on devices ranks are on one node, and reach each other's memory");
	if (!moe->device->window[0].by_fd)
		return fail(TERN_ERR_UNSUPPORTED,
			"elastic: the driver has no descriptors for some device's memory, so who "
			"is left out could not be fenced");
	return 0;
}

static void drop(struct device_elastic *e)
{
	if (!e)
		return;
	free(e->alive);
	free(e->base);
	free(e->epochs);
	free(e);
}

static int make(tern_moe *moe)
{
	struct device_elastic *e = calloc(1, sizeof(*e));
	uint32_t nr_slots = moe->config.nr_slots;

	if (e) {
		e->alive = malloc(moe->nr_ranks);
		e->base = calloc(nr_slots, sizeof(*e->base));
		e->epochs = calloc(nr_slots, sizeof(*e->epochs));
	}
	if (!e || !e->alive || !e->base || !e->epochs) {
		drop(e);
		return fail(TERN_ERR_NOMEM, "no memory for an elastic exchange");
	}
	pthread_mutex_init(&e->lock, NULL);
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		e->alive[r] = moe->alive[r];
	for (uint32_t slot = 0; slot < nr_slots; slot++)
		e->epochs[slot] = epoch_of(moe, 0);
	e->client = (struct member_client){.wanted = wanted,
		.has_stopped = has_stopped,
		.remake = remake,
		.rest = rest,
		.ctx = moe,
		.number = moe->group->round};
	moe->told = device_progress(moe);
	death_watch_remove(moe->group, &moe->device->watcher);
	moe->device->elastic = e;
	death_watch_add(moe->group, &moe->device->watcher); /* also of who has died meanwhile */
	return 0;
}

int device_elastic_open(tern_moe *moe)
{
	int rc = check(moe);

	rc = rc ? rc : make(moe);
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : fresh_open(moe);
	rc = rc ? rc : members_add_client(moe->group, &moe->device->elastic->client);
	if (rc)
		return rc;
	moe->device->elastic->listed = true;
	return 0;
}

void device_elastic_close(tern_moe *moe)
{
	struct device_elastic *e = moe->device->elastic;

	moe->told = NULL; /* the board's */
	if (!e)
		return;
	death_watch_remove(moe->group, &moe->device->watcher); /* its thread looks into e */
	if (e->listed)
		members_remove_client(moe->group, &e->client);
	pthread_mutex_destroy(&e->lock);
	drop(e);
	fresh_close(moe);
	moe->device->elastic = NULL;
}
