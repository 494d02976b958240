/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host/fresh.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ordering.h"
#include "exchange/elastic.h"

struct fresh {
	uint64_t view;    /* for which all have fresh memory */
	uint64_t renewed; /* for which this rank's pane has other memory */
	uint64_t asked;   /* for which this rank had time once */
	uint64_t refused; /* for which it failed beside rounds, and is left to the change */
	uint64_t visited; /* for which descriptors are passed */
	struct fd_passing *passing;
	struct fd_passing_guest *guests; /* [R] */
	struct fd_passing_visit *visit;  /* NULL: none is under way */
	bool *mapped;                    /* [R] in this visit */
};

/* ---- making it ------------------------------------------------------------------------------- */

uint32_t fresh_pane(const struct device *d, uint64_t view)
{
	return view % d->nr_panes;
}

static void end_visit(tern_moe *moe)
{
	struct fresh *f = moe->device->fresh;

	for (uint32_t r = 0; f->visit && r < moe->nr_ranks; r++)
		if (f->guests[r].fd >= 0)
			close(f->guests[r].fd);
	fd_passing_end(f->visit);
	f->visit = NULL;
}

/* Not before this rank acts on the view before that one: who goes with it has never had the new
 * memory. */
static int renew(tern_moe *moe, uint64_t view)
{
	struct device *d = moe->device;
	struct fresh *f = d->fresh;
	int rc;

	if (f->renewed == view)
		return 0;
	rc = device_outcome(d, d->ops->window_renew(&d->window[fresh_pane(d, view)]));
	f->renewed = rc ? f->renewed : view;
	return rc;
}

static int begin_visit(tern_moe *moe, uint64_t view)
{
	struct device *d = moe->device;
	struct fresh *f = d->fresh;
	uint32_t pane = fresh_pane(d, view);

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		f->guests[r].wanted = d->opened[pane][r].base && members_have(moe->group, r);
		f->guests[r].fd = -1;
		f->mapped[r] = false;
	}
	f->visited = view;
	return fd_passing_begin(f->passing, (int)moe->rank, (int)moe->nr_ranks, (uint32_t)view,
		d->window[pane].fd, f->guests, &f->visit);
}

static int map_what_came(tern_moe *moe)
{
	struct device *d = moe->device;
	struct fresh *f = d->fresh;
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		struct device_window *w = &d->opened[fresh_pane(d, f->visited)][r];

		if (f->guests[r].fd < 0 || f->mapped[r])
			continue;
		w->fd = f->guests[r].fd;
		rc = device_outcome(d, d->ops->window_reopen(w));
		w->fd = -1; /* the visit's */
		f->mapped[r] = !rc;
	}
	return rc;
}

/* Waits for nothing. 1: there is fresh memory for that view; 0: not yet. */
static int freshen(tern_moe *moe, uint64_t view)
{
	struct fresh *f = moe->device->fresh;
	int rc = 0, came;

	if (f->view >= view)
		return 1;
	if (f->visited != view)
		end_visit(moe);
	rc = renew(moe, view);
	if (!rc && !f->visit)
		rc = begin_visit(moe, view);
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!members_have(moe->group, r))
			fd_passing_without(f->visit, (int)r);
	came = rc ? rc : fd_passing_step(f->visit);
	rc = came < 0 ? came : map_what_came(moe);
	if (rc || !came)
		return rc;
	end_visit(moe);
	f->view = view;
	return 1;
}

/* 0: who is waited for may still come. */
static int look_after(const tern_moe *moe, uint32_t rank)
{
	if (group_has_died(moe->group, rank) || members_are_to_change(moe->group))
		return elastic_lost((tern_moe *)(uintptr_t)moe);
	return device_leave_status(moe, rank)
		       ? fail(TERN_ERR_PEER_LEFT, "rank %u has given up in view %llu", rank,
				 (unsigned long long)moe->group->view)
		       : 0;
}

static int look_for_fresh(void *ctx)
{
	tern_moe *moe = ctx;
	const struct fresh *f = moe->device->fresh;
	int rc = freshen(moe, moe->group->view);

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (f->guests[r].wanted && !(f->mapped[r] && f->guests[r].called))
			rc = look_after(moe, r);
	return rc;
}

static int all_are_ready(void *ctx)
{
	tern_moe *moe = ctx;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		if (members_have(moe->group, r) &&
			record_observe(device_ready_word(moe, r)) < moe->group->view)
			return look_after(moe, r);
	return 1;
}

static int await(tern_moe *moe, int (*look)(void *ctx))
{
	int rc = wait_until(&moe->wait_policy, (uint64_t)moe->group->wait_ms * 1000000, look, moe);

	return rc < 0 ? rc
	       : rc   ? 0
		      : fail(TERN_ERR_TIMEOUT,
				"rank %u waited %d ms for other members' windows (view %llu)",
				moe->rank, moe->group->wait_ms, (unsigned long long)moe->group->view);
}

int fresh_await(tern_moe *moe)
{
	int rc = await(moe, look_for_fresh);

	if (rc)
		return rc;
	record_publish(device_ready_word(moe, moe->rank), moe->group->view);
	return await(moe, all_are_ready);
}

/* The driver is done with those that have gone: while it takes a process down, calls that manage
 * memory wait, some 60 ms. Who has left may live on. */
static bool gone_are_over(const tern_moe *moe)
{
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		struct pollfd end = {.fd = moe->group->peers[r].lifeline, .events = POLLIN};

		if (!members_have(moe->group, r) && death_watch_saw(moe->group, r) && end.fd >= 0 &&
			poll(&end, 1, 0) != 1)
			return false;
	}
	return true;
}

/* Beside rounds: the pane that no kernel uses gets other memory, for the next view. Not the first
 * time that this rank has time in a view: it may have the round to make yet that is made again. */
void fresh_prepare(tern_moe *moe)
{
	struct device *d = moe->device;
	struct fresh *f = d->fresh;
	uint64_t next = moe->group->view + 1;
	char cause[1024];

	if (d->nr_panes == 1 || f->view >= next || f->refused == next || moe->failed ||
		!device_at_rest(moe))
		return;
	if (f->asked != next) {
		f->asked = next;
		return;
	}
	if (members_are_to_change(moe->group) || !gone_are_over(moe))
		return;
	snprintf(cause, sizeof(cause), "%s", tern_last_error());
	if (freshen(moe, next) < 0)
		f->refused = next;
	error_put_back(cause);
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The first view's pane is as the exchange has made it. */
static int make(tern_moe *moe)
{
	struct fresh *f = calloc(1, sizeof(*f));

	moe->device->fresh = f;
	if (f) {
		f->guests = calloc(moe->nr_ranks, sizeof(*f->guests));
		f->mapped = calloc(moe->nr_ranks, sizeof(*f->mapped));
	}
	if (!f || !f->guests || !f->mapped)
		return fail(TERN_ERR_NOMEM, "no memory for an elastic exchange");
	f->view = moe->device->nr_panes - 1;
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		f->guests[r].fd = -1;
		f->guests[r].lifeline = moe->group->peers[r].lifeline;
	}
	return fd_passing_open(&f->passing);
}

/* Where each is called. */
static int introduce(tern_moe *moe, struct fd_passing_address *all)
{
	struct fresh *f = moe->device->fresh;
	struct fd_passing_address mine;
	int rc;

	fd_passing_address(f->passing, &mine);
	rc = group_allgather(moe->group, &mine, all, sizeof(mine));
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		f->guests[r].address = all[r];
	return rc;
}

int fresh_open(tern_moe *moe)
{
	struct fd_passing_address *all = calloc(moe->nr_ranks, sizeof(*all));
	int rc =
		all ? make(moe) : fail(TERN_ERR_NOMEM, "no memory for %u addresses", moe->nr_ranks);

	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : introduce(moe, all);
	free(all);
	return rc;
}

void fresh_close(tern_moe *moe)
{
	struct fresh *f = moe->device->fresh;

	if (!f)
		return;
	end_visit(moe);
	fd_passing_close(f->passing);
	free(f->guests);
	free(f->mapped);
	free(f);
	moe->device->fresh = NULL;
}
