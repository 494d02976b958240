/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "exchange/elastic.h"

__attribute__((format(printf, 2, 3))) void wrong(
	struct sim_views *v, const char *format, ...)
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

void post(struct sim_views *v, struct event event, uint64_t in_us)
{
	size_t at = v->nr_events++;

	if (at == v->room) {
		size_t room = v->room ? 2 * v->room : 1024;
		struct event *heap = realloc(v->heap, room * sizeof(*heap));

		if (!heap) {
			v->nr_events--;
			wrong(v, "no memory for events");
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

uint64_t cut_until(const struct sim_views *v, uint32_t a, uint32_t b)
{
	return v->cut_until_us[v->ranks[a].host * v->nr_hosts + v->ranks[b].host];
}

void land(struct sim_views *v, uint32_t to, uint32_t from, enum kind kind, struct word word)
{
	struct sim_rank *rank = &v->ranks[to];

	if (rank->state == DEAD || rank->barred[from])
		return;
	if (rank->phase != EXPELLED && set_has(&rank->agreement.mine.view.alive, from) &&
		word.view < rank->agreement.mine.view.number)
		wrong(v, "a store of rank %u, of its view %llu, reaches rank %u in view %llu", from,
			(unsigned long long)word.view, to,
			(unsigned long long)rank->agreement.mine.view.number);
	if (rank->phase != EXPELLED && !set_has(&rank->agreement.mine.view.alive, from))
		wrong(v,
			"a store of rank %u, of its view %llu, reaches rank %u, which acts on view "
			"%llu without it",
			from, (unsigned long long)word.view, to,
			(unsigned long long)rank->agreement.mine.view.number);
	rank->words[kind][from] = word;
}

/* Within a host stores are there at once. A network that is cut goes on to try: they come when it
 * heals. */
void store(struct sim_views *v, uint32_t from, uint32_t to, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[from];
	uint64_t view = rank->agreement.mine.view.number, heals = cut_until(v, from, to);
	struct word word = {.epoch = elastic_epoch(FIRST_EPOCH, rank->round,
				    breaks(v, VIEWS_BREAK_OLD_EPOCHS) ? 0 : view),
		.view = view,
		.round = rank->round};
	uint64_t late_us = heals > v->now_us ? heals - v->now_us : 0;

	if (same_host(v, from, to)) {
		land(v, to, from, kind, word);
		return;
	}
	if (rank->closed[to])
		return;
	rank->under_way[to]++;
	post(v,
		(struct event){.kind = STORE,
			.to = to,
			.from = from,
			.store = {.kind = kind, .word = word}},
		late_us + 1 + draw(v, DELAY_US));
}

void tell(struct sim_views *v, uint32_t from)
{
	const struct sim_rank *rank = &v->ranks[from];

	for (uint32_t to = 0; to < v->nr_ranks; to++) {
		struct event event = {.kind = RECORD, .to = to, .from = from};

		if (to == from || v->ranks[to].state == DEAD || cut_until(v, from, to) > v->now_us)
			continue;
		event.told.record = malloc(sizeof(*event.told.record));
		if (!event.told.record) {
			wrong(v, "no memory for records");
			return;
		}
		*event.told.record = rank->agreement.mine;
		event.told.done = rank->done;
		post(v, event, same_host(v, from, to) ? 1 : 1 + draw(v, DELAY_US));
	}
}
