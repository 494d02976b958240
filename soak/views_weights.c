/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on their way: docs/weights.md, page by page. The last source is the checkpoint. */
#include "soak/views_inside.h"

#define SPOILT (-1)
#define MOST_WRONG 3

void weights_load(const struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	for (uint32_t i = 0; i < COPIES; i++) {
		int16_t expert = (int16_t)(place_of(v, me, i) % v->nr_ranks);

		rank->places[i].expert = expert;
		for (int page = 0; page < PAGES; page++)
			rank->places[i].pages[page] = expert;
	}
}

/* ---- what rounds read ------------------------------------------------------------------------ */

/* Where this rank finds what the table names in its place i: there, or in another of its places. */
static int place_read(const struct sim_views *v, uint32_t me, uint32_t i)
{
	const struct sim_rank *rank = &v->ranks[me];
	int16_t expert = (int16_t)rank->placement.logical[place_of(v, me, i)];

	for (uint32_t k = 0; k < COPIES; k++)
		if (rank->places[(i + k) % COPIES].expert == expert)
			return (int)((i + k) % COPIES);
	return -1;
}

void judge_weights(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	for (uint32_t i = 0; i < COPIES; i++) {
		uint32_t p = place_of(v, me, i);
		int at = place_read(v, me, i);
		bool whole = at >= 0;

		for (int page = 0; page < PAGES && at >= 0; page++)
			whole = whole &&
				rank->places[at].pages[page] == (int16_t)rank->placement.logical[p];
		if (!whole)
			views_wrong(v,
				"rank %u computes expert %u in round %llu, version %u, of weights "
				"that are not whole",
				me, rank->placement.logical[p], (unsigned long long)rank->round,
				rank->placement.placed.version);
	}
}

/* ---- moves ----------------------------------------------------------------------------------- */

void move_begin(struct sim_views *v, uint32_t me, uint32_t place, int32_t expert, uint32_t from)
{
	struct sim_rank *rank = &v->ranks[me];
	uint32_t number = rank->move.number;

	(void)v;
	rank->places[place].expert = -1;
	rank->move = (struct sim_move){.busy = true,
		.place = place,
		.first = from,
		.number = number,
		.expert = (int16_t)expert};
}

/* The rank that is asked in this turn: the first, each other that lives, and `me` for the
 * checkpoint. */
static uint32_t source_of(const struct sim_views *v, uint32_t me)
{
	const struct sim_move *m = &v->ranks[me].move;

	if (!m->turn)
		return m->first;
	return m->turn < v->nr_ranks ? (me + m->turn) % v->nr_ranks : me;
}

static void next_source(struct sim_move *m)
{
	m->turn++;
	m->asked = false;
	m->nr_wrong = 0;
}

static void ask_for_page(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	struct sim_move *m = &rank->move;
	uint32_t source = source_of(v, me);

	if (source != me && !is_member(rank, source)) {
		next_source(m);
		return;
	}
	m->asked = true;
	m->asked_us = v->now_us;
	m->number++;
	post_message(v,
		(struct event){.kind = ASK,
			.to = source,
			.from = me,
			.to_life = rank->lives[source],
			.page = {.number = m->number, .page = m->nr_pages, .expert = m->expert}});
}

void move_step(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	struct sim_move *m = &rank->move;

	if (!m->busy || rank->phase == EXPELLED || rank->phase == JOINING)
		return;
	if (m->asked && v->now_us - m->asked_us < SILENCE_US / 2)
		return;
	if (m->asked && source_of(v, me) != me)
		next_source(m);
	ask_for_page(v, me);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static const struct sim_place *whole_place(const struct sim_rank *rank, int16_t expert)
{
	for (int i = 0; i < COPIES; i++)
		if (rank->places[i].expert == expert)
			return &rank->places[i];
	return NULL;
}

static void give_page(struct sim_views *v, const struct event *ask)
{
	const struct sim_place *place = whole_place(&v->ranks[ask->to], ask->page.expert);
	struct event event = {.kind = PAGE,
		.to = ask->from,
		.from = ask->to,
		.to_life = ask->from_life,
		.page = ask->page};

	event.page.none = !place;
	if (place)
		event.page.expert = place->pages[ask->page.page];
	if (ask->from == ask->to)
		event.page.none = false; /* the checkpoint */
	else if (draw(v, 32) == 0)
		event.page.expert = SPOILT;
	post_message(v, event);
}

static void take_page(struct sim_views *v, uint32_t me, const struct event *event)
{
	struct sim_rank *rank = &v->ranks[me];
	struct sim_move *m = &rank->move;

	for (uint32_t i = 0; i < COPIES; i++)
		if (place_read(v, me, i) == (int)m->place)
			views_wrong(v, "rank %u overwrites what its rounds read", me);
	rank->places[m->place].pages[event->page.page] = event->page.expert;
	m->asked = false;
	m->nr_wrong = 0;
	if (++m->nr_pages < PAGES)
		return;
	rank->places[m->place].expert = m->expert;
	m->busy = false;
	v->outcome->moved++;
}

static void hear_answer(struct sim_views *v, const struct event *event)
{
	struct sim_move *m = &v->ranks[event->to].move;

	if (!m->busy || !m->asked || m->number != event->page.number)
		return;
	if (event->page.none) {
		next_source(m);
	} else if (event->page.expert != m->expert && !breaks(v, VIEWS_BREAK_NO_SUMS)) {
		m->asked = false;
		if (++m->nr_wrong == MOST_WRONG)
			next_source(m);
	} else {
		take_page(v, event->to, event);
	}
}

void hear_page(struct sim_views *v, const struct event *event)
{
	if (v->ranks[event->to].phase == EXPELLED)
		return;
	if (event->kind == ASK)
		give_page(v, event);
	else
		hear_answer(v, event);
}
