/* SPDX-License-Identifier: Apache-2.0 */
/* Who runs next, and when time goes on. A rank has something to do when its network has news, when
 * its clock says so, or when something was stored for it. Of all that have, one is drawn; when none
 * has, time goes on to the next event.
 */
#include "soak/fleet_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/random.h"
#include "engine/engine.h"
#include "base/error.h"

#define STACK_BYTES (256u << 10)
#define MOST_IDLE_TURNS 20000000u /* without time going on: somebody goes round in a circle */

/* ---- small things ---------------------------------------------------------------------------- */

void fleet_note(struct fleet *fleet, uint64_t a, uint64_t b)
{
	fleet->digest = hash4(fleet->digest, a, b, sim_now(fleet->network));
}

uint64_t fleet_draw(struct fleet *fleet, uint64_t below)
{
	return below < 2 ? 0
			 : random_below(&fleet->random,
				   below > UINT32_MAX ? UINT32_MAX : (uint32_t)below);
}

static void wants_clock(struct fleet *fleet, uint64_t at_ns)
{
	if (at_ns < fleet->timer_ns)
		fleet->timer_ns = at_ns;
}

void fleet_queue(struct fleet *fleet, struct member *member)
{
	if (member->queued || member->dead)
		return;
	member->queued = true;
	fleet->queue[fleet->nr_queued++] = member->rank;
}

void fleet_wake(struct fleet *fleet, struct member *member)
{
	member->wake = true;
	fleet_queue(fleet, member);
}

/* ---- a rank goes on -------------------------------------------------------------------------- */

void fleet_resume(struct member *member)
{
	error_put_back(member->error);
	member->fleet->running = member;
	coroutine_resume(member->coroutine);
	member->fleet->running = NULL;
}

void fleet_wait(struct member *member, uint64_t until_ns)
{
	uint64_t now = sim_now(member->fleet->network);

	member->until_ns = until_ns > now ? until_ns : now + 1;
	wants_clock(member->fleet, member->until_ns);
	memccpy(member->error, tern_last_error(), 0, sizeof(member->error));
	coroutine_yield(member->coroutine);
}

static void run_body(void *ctx)
{
	struct member *member = ctx;

	member->fleet->body(member->fleet, member->rank, member->fleet->ctx);
}

/* What a rank's engine did may have been for ranks of its node, too. */
static void wake_node(struct fleet *fleet, const struct member *member)
{
	uint32_t nr = fleet->settings.ranks_per_node ? fleet->settings.ranks_per_node : 1,
		 first = member->rank / nr * nr;

	for (uint32_t r = first; r < first + nr && r < fleet->settings.nr_ranks; r++)
		fleet_wake(fleet, &fleet->members[r]);
}

static void step_engine(struct fleet *fleet, struct member *member)
{
	uint64_t look_ns;

	member->step = false;
	if (!member->engine)
		return;
	look_ns = engine_next_ns(member->engine);
	member->step = engine_step(member->engine, sim_now(fleet->network));
	wants_clock(fleet, engine_next_ns(member->engine));
	if (member->step || engine_next_ns(member->engine) != look_ns) /* a look may have found a
									  death */
		wake_node(fleet, member);
}

static void go_on(struct fleet *fleet, struct member *member)
{
	member->wake = false;
	if (coroutine_has_ended(member->coroutine))
		return;
	member->until_ns = NEVER;
	fleet_resume(member);
	member->step = member->engine != NULL; /* it may have commands now */
	if (!coroutine_has_ended(member->coroutine))
		return;
	fleet->nr_running -= !member->dead;
	fleet_note(fleet, member->rank, 1);
}

static void run_one(struct fleet *fleet)
{
	uint32_t at = (uint32_t)fleet_draw(fleet, fleet->nr_queued);
	struct member *member = &fleet->members[fleet->queue[at]];

	fleet->queue[at] = fleet->queue[--fleet->nr_queued];
	member->queued = false;
	if (member->dead)
		return;
	fleet->idle_turns++;
	if (member->step && (!member->wake || fleet_draw(fleet, 2)))
		step_engine(fleet, member);
	else if (member->wake)
		go_on(fleet, member);
	if ((member->step || member->wake) && !member->dead)
		fleet_queue(fleet, member);
}

/* ---- time goes on ---------------------------------------------------------------------------- */

/* Those whose time has come are queued; the others tell when theirs will. */
static void ring_clock(struct fleet *fleet)
{
	uint64_t now = sim_now(fleet->network);

	fleet->timer_ns = fleet_next_fault(fleet);
	for (uint32_t r = 0; r < fleet->settings.nr_ranks; r++) {
		struct member *member = &fleet->members[r];

		if (member->dead)
			continue;
		if (member->until_ns <= now)
			fleet_wake(fleet, member);
		else
			wants_clock(fleet, member->until_ns);
		if (!member->engine)
			continue;
		if (engine_next_ns(member->engine) <= now) {
			member->step = true;
			fleet_queue(fleet, member);
		} else {
			wants_clock(fleet, engine_next_ns(member->engine));
		}
	}
}

static void take_ready(struct fleet *fleet)
{
	uint32_t rank;

	while (sim_take_ready(fleet->network, &rank)) {
		fleet->members[rank].step = true;
		fleet_queue(fleet, &fleet->members[rank]);
	}
}

/* False: nothing will ever happen any more. */
static bool pass_time(struct fleet *fleet)
{
	uint64_t next, before = sim_now(fleet->network);

	if (sim_next(fleet->network, &next) && next < fleet->timer_ns) {
		if (!sim_step(fleet->network))
			return false;
	} else {
		if (fleet->timer_ns == NEVER)
			return false;
		sim_run_until(fleet->network, fleet->timer_ns);
		fleet_faults_strike(fleet);
		ring_clock(fleet);
	}
	if (sim_now(fleet->network) != before)
		fleet->idle_turns = 0;
	return true;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void say_who_waits(struct fleet *fleet, const char *why)
{
	size_t at = (size_t)snprintf(fleet->failure, sizeof(fleet->failure),
		"%s after %.3f ms of virtual time:", why, (double)sim_now(fleet->network) / 1e6);

	for (uint32_t r = 0; r < fleet->settings.nr_ranks && at < sizeof(fleet->failure) - 400;
		r++) {
		struct member *m = &fleet->members[r];

		if (m->dead)
			at += (size_t)snprintf(fleet->failure + at, sizeof(fleet->failure) - at,
				"\n  rank %u is dead", r);
		else if (!coroutine_has_ended(m->coroutine))
			at += (size_t)snprintf(fleet->failure + at, sizeof(fleet->failure) - at,
				"\n  rank %u is in %s since %.3f ms (%.200s)", r, m->doing,
				(double)m->since_ns / 1e6, m->error);
	}
}

bool fleet_run(struct fleet *fleet)
{
	bool stuck = false;

	while (fleet->nr_running && !*fleet->failure) {
		take_ready(fleet);
		if (fleet->nr_queued)
			run_one(fleet);
		else
			stuck = !pass_time(fleet);
		if (stuck)
			say_who_waits(fleet, "nothing is under way");
		else if (fleet->idle_turns > MOST_IDLE_TURNS)
			say_who_waits(fleet, "ranks go round in a circle");
		else if (sim_now(fleet->network) > fleet->settings.limit_ns)
			say_who_waits(fleet, "not ended");
	}
	fleet_bury_all(fleet);
	return !*fleet->failure;
}

const char *fleet_failure(const struct fleet *fleet)
{
	return fleet->failure;
}

/* ---- making and ending ----------------------------------------------------------------------- */

static int create_members(struct fleet *fleet)
{
	uint32_t nr = fleet->settings.nr_ranks;

	fleet->members = calloc(nr, sizeof(*fleet->members));
	fleet->queue = calloc(nr, sizeof(*fleet->queue));
	fleet->visitors = calloc(nr, sizeof(*fleet->visitors));
	if (!fleet->members || !fleet->queue || !fleet->visitors)
		return fail(TERN_ERR_NOMEM, "no memory for a fleet of %u ranks", nr);
	for (uint32_t r = 0; r < nr; r++) {
		struct member *member = &fleet->members[r];

		*member = (struct member){
			.fleet = fleet, .rank = r, .doing = "nothing yet", .until_ns = NEVER};
		member->coroutine = coroutine_create(STACK_BYTES, run_body, member);
		if (!member->coroutine)
			return fail(TERN_ERR_NOMEM, "no memory for the stack of rank %u", r);
		fleet_wake(fleet, member);
	}
	fleet->nr_running = nr;
	return 0;
}

int fleet_create(
	const struct fleet_settings *settings, fleet_body body, void *ctx, struct fleet **out)
{
	struct fleet *fleet = calloc(1, sizeof(*fleet));
	int rc;

	if (!fleet)
		return fail(TERN_ERR_NOMEM, "no memory for a fleet");
	fleet->settings = *settings;
	fleet->settings.network.ranks_per_node = settings->ranks_per_node;
	fleet->body = body;
	fleet->ctx = ctx;
	fleet->random = hash2(settings->seed, 0x666c656574);
	fleet->timer_ns = fleet->fault_ns = NEVER;
	rc = sim_network_create(&fleet->settings.network, &fleet->network);
	rc = rc ? rc : create_members(fleet);
	if (rc) {
		fleet_destroy(fleet);
		return rc;
	}
	*out = fleet;
	return 0;
}

void fleet_destroy(struct fleet *fleet)
{
	if (!fleet)
		return;
	for (uint32_t r = 0; fleet->members && r < fleet->settings.nr_ranks; r++)
		coroutine_destroy(fleet->members[r].coroutine);
	sim_network_destroy(fleet->network);
	free(fleet->members);
	free(fleet->queue);
	free(fleet->visitors);
	free(fleet);
}

struct sim_network *fleet_network(const struct fleet *fleet)
{
	return fleet->network;
}

uint64_t fleet_now(const struct fleet *fleet)
{
	return sim_now(fleet->network);
}

uint64_t fleet_digest(const struct fleet *fleet)
{
	return hash2(fleet->digest, sim_trace_hash(fleet->network));
}
