/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include <string.h>

/* ---- changing the view ----------------------------------------------------------------------- */

void views_die(struct sim_views *v, uint32_t rank)
{
	if (v->ranks[rank].state == DEAD)
		return;
	v->ranks[rank].state = DEAD;
	v->outcome->nr_died++;
}

/* A process that has ended stores nothing; nor does a rank that leaves, by its own word. */
static bool is_harmless(const struct sim_views *v, uint32_t me, uint32_t r)
{
	const struct agreement_record *theirs = &v->ranks[me].heard[r];

	return has_ended_at(v, me, r) || (theirs->stopped && set_has(&theirs->gone, r));
}

/* On its own host a process is killed, and its end is seen; elsewhere the link is closed. */
static bool fence(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool any = false;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		if (!set_has(&rank->agreement.to_fence, r))
			continue;
		if (same_host(v, me, r) && !is_harmless(v, me, r) &&
			!breaks(v, VIEWS_BREAK_KEEP_LINKS)) {
			views_post(v,
				(struct event){.kind = END, .to = r, .to_life = rank->lives[r]},
				1 + draw(v, KILL_US));
			continue;
		}
		if (!breaks(v, VIEWS_BREAK_KEEP_LINKS))
			rank->barred[r] = rank->lives[r];
		agreement_fence(&rank->agreement, r);
		any = true;
	}
	return any;
}

/* Of two that have each other in their views. */
static bool differ(const struct sim_rank *a, const struct sim_rank *b, uint64_t number)
{
	const struct view *x = &a->views[number], *y = &b->views[number];

	return a->state != DEAD && b->state != DEAD && a->acted[number] && b->acted[number] &&
	       (memcmp(&x->alive, &y->alive, sizeof(x->alive)) || x->newcomer != y->newcomer ||
		       x->nonce != y->nonce || x->gathering != y->gathering);
}

void judge_view(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t number = rank->agreement.mine.view.number;

	v->outcome->changes++;
	if (number >= MOST_VIEWS) {
		views_wrong(v, "rank %u is at view %llu", me, (unsigned long long)number);
		return;
	}
	rank->views[number] = rank->agreement.mine.view;
	rank->acted[number] = true;
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (differ(&v->ranks[r], rank, number))
			views_wrong(v, "ranks %u and %u act on different views %llu", r, me,
				(unsigned long long)number);
}

void leave_out(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint8_t alive[VIEW_MOST_RANKS];

	for (uint32_t r = 0; r < v->nr_ranks; r++)
		alive[r] = serves(v, rank, r);
	if (!breaks(v, VIEWS_BREAK_OLD_PLACES))
		placement_leave_out(&rank->placement, alive);
}

static void judge_time(struct sim_views *v, uint32_t me)
{
	uint64_t took_us = v->now_us - v->ranks[me].change_us;

	if (!v->only_deaths)
		return;
	if (took_us > v->outcome->slowest_us)
		v->outcome->slowest_us = took_us;
	if (took_us > (uint64_t)(v->outcome->nr_died + 1) * CHANGE_US)
		views_wrong(v, "rank %u took %llu us to change its view, with %u deaths", me,
			(unsigned long long)took_us, v->outcome->nr_died);
}

static void act(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t prepared = rank->agreement.mine.newcomer, nonce = rank->agreement.mine.nonce;

	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (is_member(rank, r) && !set_has(&rank->agreement.next.alive, r))
			rank->ever_gone[r] = true;
	agreement_act(&rank->agreement);
	if (rank->agreement.mine.view.newcomer)
		views_admit(v, me, prepared, nonce);
	leave_out(v, me);
	judge_view(v, me);
	judge_time(v, me);
	rank->phase = LEARN_ROUNDS;
	views_tell(v, me);
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

static void stop(struct sim_views *v, uint32_t me)
{
	views_prepare(v, me);
	agreement_stop(&v->ranks[me].agreement);
	views_tell(v, me);
}

void views_quiesce(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (!has_stopped(v, rank))
		return;
	rank->phase = CHANGE;
	stop(v, me);
}

void begin_change(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	rank->change_us = v->now_us;
	if (breaks(v, VIEWS_BREAK_GO_ON)) {
		stop(v, me);
		return;
	}
	rank->phase = QUIESCE;
	views_quiesce(v, me);
}

bool wants_change(const struct sim_views *v, uint32_t me)
{
	const struct sim_rank *rank = &v->ranks[me];

	return agreement_wanted(&rank->agreement) ||
	       rank->wanted > rank->agreement.mine.view.number;
}

void views_change(struct sim_views *v, uint32_t me)
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
		views_tell(v, me);
}

/* Deaths of its own host at once, of others by their silence. */
void look_around(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		if (r == me || !is_member(rank, r))
			continue;
		if (same_host(v, me, r) && has_ended_at(v, me, r))
			agreement_leave_out(&rank->agreement, r, true);
		else if (!same_host(v, me, r) && v->now_us - rank->heard_us[r] > SILENCE_US)
			agreement_leave_out(&rank->agreement, r, false);
	}
}
