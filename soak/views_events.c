/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "exchange/elastic.h"

__attribute__((format(printf, 2, 3))) void views_wrong(struct sim_views *v, const char *format, ...)
{
	va_list args;
	int at;

	if (v->failed)
		return;
	v->failed = true;
	at = snprintf(v->outcome->text, sizeof(v->outcome->text),
		"at %llu us: ", (unsigned long long)v->now_us);
	va_start(args, format);
	vsnprintf(v->outcome->text + at, sizeof(v->outcome->text) - (size_t)at, format, args);
	va_end(args);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

void views_post(struct sim_views *v, struct event event, uint64_t in_us)
{
	size_t at = v->nr_events++;

	if (at == v->room) {
		size_t room = v->room ? 2 * v->room : 1024;
		struct event *heap = realloc(v->heap, room * sizeof(*heap));

		if (!heap) {
			v->nr_events--;
			views_wrong(v, "no memory for events");
			return;
		}
		v->heap = heap;
		v->room = room;
	}
	event.at_us = v->now_us + in_us;
	event.order = v->order++;
	for (; at && is_before(&event, &v->heap[(at - 1) / 2]); at = (at - 1) / 2)
		v->heap[at] = v->heap[(at - 1) / 2];
	v->heap[at] = event;
}

struct event take_first(struct sim_views *v)
{
	struct event first = v->heap[0], last = v->heap[--v->nr_events];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < v->nr_events) {
		if (child + 1 < v->nr_events && is_before(&v->heap[child + 1], &v->heap[child]))
			child++;
		if (!is_before(&v->heap[child], &last))
			break;
		v->heap[at] = v->heap[child];
		at = child;
	}
	v->heap[at] = last;
	return first;
}

/* ---- what is sent ---------------------------------------------------------------------------- */

static uint64_t cut_until(const struct sim_views *v, uint32_t a, uint32_t b)
{
	return v->cut_until_us[v->ranks[a].host * v->nr_hosts + v->ranks[b].host];
}

void post_message(struct sim_views *v, struct event event)
{
	if (cut_until(v, event.from, event.to) > v->now_us)
		return;
	event.from_life = v->ranks[event.from].life;
	views_post(v, event, same_host(v, event.from, event.to) ? 1 : 1 + draw(v, DELAY_US));
}

/* Into the memory of a process that has ended, or that has shut the sender out, nothing comes. */
void views_land(struct sim_views *v, const struct event *event)
{
	uint32_t to = event->to, from = event->from;
	struct sim_rank *rank = &v->ranks[to];
	const struct word *word = &event->store.word;

	if (rank->state == DEAD || rank->life != event->to_life ||
		rank->barred[from] >= event->from_life)
		return;
	if (rank->phase != EXPELLED && is_member(rank, from) &&
		(word->view < rank->agreement.mine.view.number ||
			rank->lives[from] != event->from_life))
		views_wrong(v,
			"a store of rank %u, process %llu, of its view %llu, reaches rank %u in "
			"view %llu with process %llu",
			from, (unsigned long long)event->from_life, (unsigned long long)word->view,
			to, (unsigned long long)rank->agreement.mine.view.number,
			(unsigned long long)rank->lives[from]);
	if (rank->phase != EXPELLED && !is_member(rank, from))
		views_wrong(v,
			"a store of rank %u, of its view %llu, reaches rank %u, which acts on view "
			"%llu without it",
			from, (unsigned long long)word->view, to,
			(unsigned long long)rank->agreement.mine.view.number);
	rank->words[event->store.kind][from] = *word;
}

/* Within a host stores are there at once. A network that is cut goes on to try: they come when it
 * heals. A round that is made for others has no tokens: it is of any placement. */
void views_store(struct sim_views *v, uint32_t from, uint32_t to, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[from];
	uint64_t view = rank->agreement.mine.view.number, heals = cut_until(v, from, to);
	struct word word = {.epoch = elastic_epoch(FIRST_EPOCH, rank->round,
				    breaks(v, VIEWS_BREAK_OLD_EPOCHS) ? 0 : view),
		.placed = rank->owed ? (struct placed){0, 0} : rank->placement.placed,
		.view = view,
		.round = rank->round};
	struct event event = {.kind = STORE,
		.to = to,
		.from = from,
		.to_life = rank->lives[to],
		.from_life = rank->life,
		.store = {.kind = kind, .word = word}};
	uint64_t late_us = heals > v->now_us ? heals - v->now_us : 0;

	if (same_host(v, from, to)) {
		views_land(v, &event);
		return;
	}
	if (rank->closed[to])
		return;
	rank->under_way[to]++;
	views_post(v, event, late_us + 1 + draw(v, DELAY_US));
}

/* Of ranks that have gone: others may not have heard them. */
static bool goes_along(const struct sim_views *v, const struct sim_rank *rank, uint32_t r)
{
	return r == rank->agreement.rank ||
	       (rank->ever_gone[r] && !breaks(v, VIEWS_BREAK_KEEP_PARTS));
}

static struct told *told_of(const struct sim_views *v, const struct sim_rank *rank)
{
	uint32_t nr = 0;
	struct told *told;

	for (uint32_t r = 0; r < v->nr_ranks; r++)
		nr += goes_along(v, rank, r) ? PARTS : 0;
	told = malloc(sizeof(*told) + nr * sizeof(told->parts[0]));
	if (!told)
		return NULL;
	told->record = rank->agreement.mine;
	told->done = serves(v, rank, rank->agreement.rank) ? rank->done : UNKNOWN;
	told->nr_refs = told->nr_parts = 0;
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		for (int i = 0; i < PARTS && goes_along(v, rank, r); i++)
			if (rank->parts[r][i].number)
				told->parts[told->nr_parts++] =
					(struct told_part){r, rank->parts[r][i]};
	return told;
}

void views_tell(struct sim_views *v, uint32_t from)
{
	struct told *told = told_of(v, &v->ranks[from]);

	if (!told) {
		views_wrong(v, "no memory for records");
		return;
	}
	for (uint32_t to = 0; to < v->nr_ranks; to++) {
		if (to == from || v->ranks[to].state == DEAD || cut_until(v, from, to) > v->now_us)
			continue;
		told->nr_refs++;
		post_message(v, (struct event){.kind = RECORD,
					.to = to,
					.from = from,
					.to_life = v->ranks[to].life,
					.told = told});
	}
	if (!told->nr_refs)
		free(told);
}
