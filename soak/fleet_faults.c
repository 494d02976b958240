/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths and cuts at their time; burials. */
#include "soak/fleet_inside.h"

#include "base/error.h"

static void strike(struct fleet *fleet, struct fault *fault)
{
	struct member *victim = &fleet->members[fault->from];

	fault->done = true;
	if (fleet->fault_ns == NEVER)
		fleet->fault_ns = sim_now(fleet->network);
	fleet_note(fleet, (uint64_t)fault->from << 32 | fault->to, 2 + (uint64_t)fault->kind);
	if (fault->kind == FAULT_CUT) {
		sim_cut(fleet->network, fault->from, fault->to);
		if (fault->both_ways)
			sim_cut(fleet->network, fault->to, fault->from);
		return;
	}
	if (victim->dead)
		return;
	sim_kill(fleet->network, fault->from);
	fleet->nr_running -= !coroutine_has_ended(victim->coroutine);
	victim->dead = true;
}

void fleet_faults_strike(struct fleet *fleet)
{
	for (uint32_t i = 0; i < fleet->nr_faults; i++)
		if (!fleet->faults[i].done && fleet->faults[i].at_ns <= sim_now(fleet->network))
			strike(fleet, &fleet->faults[i]);
}

uint64_t fleet_next_fault(const struct fleet *fleet)
{
	uint64_t next = NEVER;

	for (uint32_t i = 0; i < fleet->nr_faults; i++)
		if (!fleet->faults[i].done && fleet->faults[i].at_ns < next)
			next = fleet->faults[i].at_ns;
	return next;
}

static void foresee(struct fleet *fleet, const struct fault *fault)
{
	if (fleet->nr_faults == MOST_FAULTS)
		return;
	fleet->faults[fleet->nr_faults++] = *fault;
	if (fault->at_ns <= sim_now(fleet->network))
		strike(fleet, &fleet->faults[fleet->nr_faults - 1]);
	else if (fault->at_ns < fleet->timer_ns)
		fleet->timer_ns = fault->at_ns;
}

/* Called by a body, which is the victim's own or not: a rank that is dead is not resumed before it
 * is buried. */
void fleet_kill(struct fleet *fleet, uint32_t rank, uint64_t at_ns)
{
	struct member *victim = &fleet->members[rank];

	foresee(fleet, &(struct fault){.kind = FAULT_KILL, .from = rank, .at_ns = at_ns});
	if (victim->dead && !victim->buried && victim == fleet->running)
		fleet_wait(victim, NEVER);
}

void fleet_cut(struct fleet *fleet, uint32_t from, uint32_t to, bool both_ways, uint64_t at_ns)
{
	foresee(fleet, &(struct fault){.kind = FAULT_CUT,
			       .from = from,
			       .to = to,
			       .both_ways = both_ways,
			       .at_ns = at_ns});
}

uint64_t fleet_fault_ns(const struct fleet *fleet)
{
	return fleet->fault_ns;
}

bool fleet_is_dead(const struct fleet *fleet, uint32_t rank)
{
	return fleet->members[rank].dead;
}

bool fleet_is_buried(const struct fleet *fleet, uint32_t rank)
{
	return fleet->members[rank].buried;
}

/* The dead, and after a failure those that still wait: nobody else runs any more, so each comes to
 * its end in one go.
 */
void fleet_bury_all(struct fleet *fleet)
{
	for (uint32_t r = 0; r < fleet->settings.nr_ranks; r++) {
		struct member *member = &fleet->members[r];

		member->buried = true;
		member->buried_ns = sim_now(fleet->network);
		while (!coroutine_has_ended(member->coroutine))
			fleet_resume(member);
	}
}
