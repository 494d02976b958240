/* SPDX-License-Identifier: Apache-2.0 */
/* A process takes the place of one that has gone: group/join.h has what it and each member's door
 * say to each other. */
#include "soak/views_inside.h"

#include <string.h>

/* ---- the newcomer ---------------------------------------------------------------------------- */

static void ask(struct sim_views *v, uint32_t me, uint32_t to, enum event_kind kind)
{
	post_message(v, (struct event){.kind = kind,
				.to = to,
				.from = me,
				.to_life = v->ranks[me].lives[to],
				.knows = v->ranks[me].knows_view});
}

/* Until a member answers it does not know who they are. */
static void knock(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool all = rank->knows_view && v->now_us >= rank->loaded_us;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		if (r == me || (rank->knows_view && !is_member(rank, r)))
			continue;
		rank->lives[r] = v->ranks[r].life; /* the rendezvous says where it is */
		all = all && rank->ready[r] == rank->lives[r];
		ask(v, me, r, ENTER);
	}
	for (uint32_t r = 0; r < v->nr_ranks && all; r++)
		if (r != me && is_member(rank, r))
			ask(v, me, r, GO);
}

static void come_in(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	const struct view *view = &rank->agreement.mine.view;

	agreement_act(&rank->agreement);
	rank->first_gathering[me] = view->gathering;
	gatherings_come(&rank->gatherings, view->gathering);
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		rank->heard_us[r] = v->now_us;
	leave_out(v, me);
	judge_view(v, me);
	v->outcome->joined++;
	gather_begin(v, me);
	views_tell(v, me);
}

void views_join(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	int news = rank->knows_view ? agreement_step(&rank->agreement) : 0;

	if (news & AGREEMENT_DECIDED) {
		come_in(v, me);
		return;
	}
	if (news & AGREEMENT_EXPELLED) { /* another process came in its place: it may be gone soon
					  */
		rank->knows_view = false;
		memset(rank->ready, 0, v->nr_ranks * sizeof(*rank->ready));
	}
	if (v->now_us < rank->ask_us)
		return;
	rank->ask_us = v->now_us + ASK_US;
	knock(v, me);
}

/* ---- a member's door ------------------------------------------------------------------------- */

static bool has_hung_up(const struct sim_views *v, uint32_t me, uint32_t r)
{
	const struct sim_guest *guest = &v->ranks[me].guests[r];

	return same_host(v, me, r) ? v->ranks[r].state == DEAD || v->ranks[r].life != guest->life
				   : v->now_us - guest->heard_us > SILENCE_US;
}

static void let_enter(struct sim_views *v, const struct event *event)
{
	struct sim_rank *rank = &v->ranks[event->to];
	struct sim_guest *guest = &rank->guests[event->from];

	if (is_member(rank, event->from))
		return;
	if (rank->lives[event->from] >= event->from_life && !breaks(v, VIEWS_BREAK_COME_AGAIN)) {
		post_message(v, (struct event){.kind = OUT,
					.to = event->from,
					.from = event->to,
					.to_life = event->from_life});
		return;
	}
	if (guest->life < event->from_life)
		*guest = (struct sim_guest){
			.life = event->from_life, .ready_us = v->now_us + 20 + draw(v, SILENCE_US)};
	guest->heard_us = v->now_us;
	guest->knows = guest->knows || event->knows;
	if (v->now_us >= guest->ready_us)
		post_message(v, (struct event){.kind = READY,
					.to = event->from,
					.from = event->to,
					.to_life = event->from_life,
					.view = rank->agreement.mine.view});
}

static bool is_ready(const struct sim_views *v, uint32_t me, uint32_t r)
{
	const struct sim_rank *rank = &v->ranks[me];
	const struct sim_guest *guest = &rank->guests[r];

	return guest->life && guest->knows && !is_member(rank, r) && v->now_us >= guest->ready_us &&
	       !has_hung_up(v, me, r);
}

void views_prepare(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint32_t r = 0;

	while (r < v->nr_ranks && !is_ready(v, me, r))
		r++;
	agreement_prepare(&rank->agreement, r < v->nr_ranks ? (int)r : -1,
		r < v->nr_ranks ? rank->guests[r].life : 0, rank->gatherings.number);
}

void views_admit(struct sim_views *v, uint32_t me, uint64_t prepared, uint64_t nonce)
{
	struct sim_rank *rank = &v->ranks[me];
	const struct view *view = &rank->agreement.mine.view;
	uint32_t n = (uint32_t)view->newcomer - 1;

	if (prepared != view->newcomer || nonce != view->nonce)
		views_wrong(v, "rank %u acts on view %llu with rank %u, for which it is not ready",
			me, (unsigned long long)view->number, n);
	rank->lives[n] = view->nonce;
	rank->guests[n] = (struct sim_guest){0};
	rank->heard_us[n] = v->now_us;
	rank->heard_done[n] = UNKNOWN;
	rank->closed[n] = false;
	rank->under_way[n] = 0;
	rank->first_gathering[n] = view->gathering;
	gatherings_jump(&rank->gatherings, view->gathering);
}

void hear_join(struct sim_views *v, const struct event *event)
{
	struct sim_rank *rank = &v->ranks[event->to];
	bool is_newcomer = rank->phase == JOINING;

	if (rank->phase == EXPELLED || is_newcomer != (event->kind == READY || event->kind == OUT))
		return;
	if (event->kind == OUT) {
		begin_life(v, event->to);
	} else if (event->kind == ENTER) {
		let_enter(v, event);
	} else if (event->kind == GO) {
		if (rank->guests[event->from].life == event->from_life)
			rank->wanted = rank->agreement.mine.view.number + 1;
	} else {
		if (!rank->knows_view)
			agreement_come(&rank->agreement, &event->view, rank->life);
		rank->knows_view = true;
		rank->ready[event->from] = event->from_life;
	}
}
