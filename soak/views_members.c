/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include <string.h>

/* ---- changing the view ----------------------------------------------------------------------- */

void die(struct sim_views *v, uint32_t rank)
{
	if (v->ranks[rank].state == DEAD)
		return;
	v->ranks[rank].state = DEAD;
	v->outcome->nr_died++;
}

/* On its own host a process is killed, and its end is seen; elsewhere the link is closed. */
static bool fence(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool any = false;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		if (!set_has(&rank->agreement.to_fence, r))
			continue;
		if (same_host(v, me, r) && v->ranks[r].state != DEAD &&
			!breaks(v, VIEWS_BREAK_KEEP_LINKS)) {
			post(v, (struct event){.kind = END, .to = r}, 1 + draw(v, KILL_US));
			continue;
		}
		rank->barred[r] = !breaks(v, VIEWS_BREAK_KEEP_LINKS);
		agreement_fence(&rank->agreement, r);
		any = true;
	}
	return any;
}

static void judge_view(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t number = rank->agreement.mine.view.number;

	if (number >= MOST_VIEWS) {
		wrong(v, "rank %u is at view %llu", me, (unsigned long long)number);
		return;
	}
	rank->views[number] = rank->agreement.mine.view.alive;
	rank->nr_views = number + 1;
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (v->ranks[r].state != DEAD && v->ranks[r].nr_views > number &&
			memcmp(&v->ranks[r].views[number], &rank->views[number],
				sizeof(rank->views[number])))
			wrong(v, "ranks %u and %u act on different views %llu", r, me,
				(unsigned long long)number);
}

static void leave_out(struct sim_rank *rank, uint32_t nr_ranks)
{
	uint8_t alive[VIEW_MOST_RANKS];

	for (uint32_t r = 0; r < nr_ranks; r++)
		alive[r] = set_has(&rank->agreement.mine.view.alive, r);
	placement_leave_out(&rank->placement, alive);
}

static void act(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t took_us = v->now_us - rank->change_us;

	agreement_act(&rank->agreement);
	if (!breaks(v, VIEWS_BREAK_OLD_PLACES))
		leave_out(rank, v->nr_ranks);
	judge_view(v, me);
	v->outcome->changes++;
	if (v->only_deaths && took_us > v->outcome->slowest_us)
		v->outcome->slowest_us = took_us;
	if (v->only_deaths && took_us > (uint64_t)(v->outcome->nr_died + 1) * CHANGE_US)
		wrong(v, "rank %u took %llu us to change its view, with %u deaths", me,
			(unsigned long long)took_us, v->outcome->nr_died);
	rank->phase = LEARN_ROUNDS;
	tell(v, me);
}

/* Links to whom it wants out are closed: what is under way there does not land any more. */
static bool has_stopped(struct sim_views *v, struct sim_rank *rank)
{
	bool all = true;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		rank->closed[r] = rank->closed[r] || set_has(&rank->agreement.mine.gone, r);
		all = all && (!rank->under_way[r] || rank->closed[r]);
	}
	return all || breaks(v, VIEWS_BREAK_LATE_STORES);
}

void quiesce(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (!has_stopped(v, rank))
		return;
	rank->phase = CHANGE;
	agreement_stop(&rank->agreement);
	tell(v, me);
}

void begin_change(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	rank->change_us = v->now_us;
	if (breaks(v, VIEWS_BREAK_GO_ON)) {
		agreement_stop(&rank->agreement);
		tell(v, me);
		return;
	}
	rank->phase = QUIESCE;
	quiesce(v, me);
}

void change(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool fenced, told = false;
	int news;

	if (breaks(v, VIEWS_BREAK_DAWDLE) && v->now_us < rank->change_us + 4 * CHANGE_US)
		return;
	do {
		news = agreement_step(&rank->agreement);
		fenced = fence(v, me);
		told = told || (news & AGREEMENT_CHANGED);
	} while (news == AGREEMENT_CHANGED || (!news && fenced));
	if (news & AGREEMENT_EXPELLED)
		rank->phase = EXPELLED;
	else if (news & AGREEMENT_DECIDED)
		act(v, me);
	else if (told)
		tell(v, me);
}


/* Deaths of its own host at once, of others by their silence. */
void look_around(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		if (r == me || !set_has(&rank->agreement.mine.view.alive, r))
			continue;
		if (same_host(v, me, r) && v->ranks[r].state == DEAD)
			agreement_leave_out(&rank->agreement, r, true);
		else if (!same_host(v, me, r) && v->now_us - rank->heard_us[r] > SILENCE_US)
			agreement_leave_out(&rank->agreement, r, false);
	}
}
