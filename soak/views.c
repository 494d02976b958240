/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what happens ---------------------------------------------------------------------------- */

static void hear(struct sim_views *v, const struct event *event)
{
	struct sim_rank *rank = &v->ranks[event->to];

	if (rank->heard[event->from].version < event->told.record->version ||
		rank->heard_done[event->from] < event->told.done)
		rank->heard_done[event->from] = event->told.done;
	agreement_hear(&rank->agreement, event->from, event->told.record);
	rank->heard_us[event->from] = v->now_us;
}

/* Who was asleep has heard nobody, and does not hold it against them. */
static void wake(struct sim_views *v, struct sim_rank *rank)
{
	if (rank->state != STOPPED)
		return;
	rank->state = UP;
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		rank->heard_us[r] = v->now_us;
}

static void cut(struct sim_views *v, const struct event *event)
{
	uint32_t a = event->to % v->nr_hosts, b = event->to / v->nr_hosts;
	uint64_t until_us = v->now_us + event->told.done;

	v->cut_until_us[a * v->nr_hosts + b] = until_us;
	if (!event->from)
		v->cut_until_us[b * v->nr_hosts + a] = until_us;
}

static void handle(struct sim_views *v, struct event event)
{
	struct sim_rank *rank = event.kind == CUT ? &v->ranks[0] : &v->ranks[event.to];
	bool is_stopped = rank->state == STOPPED;

	switch (event.kind) {
	case TICK:
		if (rank->state == UP)
			do_something(v, event.to);
		if (rank->state != DEAD)
			post(v, event, 1 + draw(v, is_stopped ? 8 * TICK_US : TICK_US));
		break;
	case BEAT:
		if (rank->state == UP && rank->phase != EXPELLED)
			tell(v, event.to);
		if (rank->state != DEAD)
			post(v, event, BEAT_US);
		break;
	case RECORD:
		if (rank->state == UP)
			hear(v, &event);
		if (is_stopped) /* it lies there until the rank wakes */
			post(v, event, BEAT_US);
		else
			free(event.told.record);
		break;
	case STORE:
		v->ranks[event.from].under_way[event.to]--;
		if (!v->ranks[event.from].closed[event.to])
			land(v, event.to, event.from, event.store.kind, event.store.word);
		break;
	case END:
		die(v, event.to);
		break;
	case STOP:
		if (rank->state == UP)
			rank->state = STOPPED;
		break;
	case WAKE:
		wake(v, rank);
		break;
	case EXPEL:
		if (rank->state == UP && rank->phase != EXPELLED && event.from != event.to)
			agreement_expel(&rank->agreement, event.from);
		break;
	case CUT:
		cut(v, &event);
		break;
	}
}

/* ---- a scenario ------------------------------------------------------------------------------ */

/* Soon after the one before, half of the time: that is where agreements are under way. */
static uint64_t draw_moment(struct sim_views *v, uint64_t *last_us)
{
	uint64_t at_us =
		draw(v, 2) ? *last_us + draw(v, SILENCE_US / 4) : draw(v, 200 + v->nr_rounds * 60);

	*last_us = at_us;
	return at_us;
}

static void note_fault(struct sim_views *v, uint64_t until_us)
{
	v->last_fault_us = until_us > v->last_fault_us ? until_us : v->last_fault_us;
}

static void draw_stop(struct sim_views *v, uint64_t at_us)
{
	uint32_t rank = draw(v, v->nr_ranks);
	uint64_t for_us = 50 + draw(v, 5 * SILENCE_US);

	post(v, (struct event){.kind = STOP, .to = rank}, at_us);
	post(v, (struct event){.kind = WAKE, .to = rank}, at_us + for_us);
	note_fault(v, at_us + for_us);
}

static void draw_cut(struct sim_views *v, uint64_t at_us)
{
	uint64_t for_us = 100 + draw(v, 4 * SILENCE_US);
	uint32_t a = draw(v, v->nr_hosts), b = draw(v, v->nr_hosts);
	bool from_all = draw(v, 2); /* else between two */

	for (uint32_t host = 0; host < v->nr_hosts; host++) {
		uint32_t other = from_all ? host : b;
		struct event event = {.kind = CUT,
			.to = other * v->nr_hosts + a,
			.from = v->random >> 20 & 1, /* one way alone, for all the same */
			.told = {.done = for_us}};

		if (other != a)
			post(v, event, at_us);
	}
	note_fault(v, at_us + for_us);
}

static void draw_faults(struct sim_views *v)
{
	uint32_t nr_cuts = v->nr_hosts > 1 && !v->only_deaths ? draw(v, 4) : 0,
		 nr_stops = v->only_deaths ? 0 : draw(v, 3);
	uint64_t last_us = draw(v, 200 + v->nr_rounds * 60);

	v->nr_deaths = draw(v, v->nr_ranks < 4 ? 2 : 3);
	if (v->only_deaths && !v->nr_deaths)
		v->nr_deaths = 1;
	for (uint32_t i = 0; i < nr_cuts; i++)
		draw_cut(v, draw_moment(v, &last_us));
	for (uint32_t i = 0; i < v->nr_deaths; i++) {
		uint64_t at_us = draw_moment(v, &last_us);

		post(v, (struct event){.kind = END, .to = draw(v, v->nr_ranks)}, at_us);
		note_fault(v, at_us);
	}
	for (uint32_t i = 0; i < nr_stops; i++)
		draw_stop(v, draw_moment(v, &last_us));
	if (!v->only_deaths && draw(v, 4) == 0) {
		struct event event = {
			.kind = EXPEL, .to = draw(v, v->nr_ranks), .from = draw(v, v->nr_ranks)};

		post(v, event, draw_moment(v, &last_us));
		note_fault(v, last_us);
	}
}

static int open_placement(const struct sim_views *v, struct sim_rank *rank)
{
	int32_t logical[VIEW_MOST_RANKS * COPIES], rank_of[VIEW_MOST_RANKS * COPIES];
	uint32_t nr = v->nr_ranks;

	for (uint32_t i = 0; i < nr * COPIES; i++) {
		logical[i] = (int32_t)(i % nr);
		rank_of[i] = (int32_t)home_of(v, i % nr, i / nr);
	}
	return placement_init(&rank->placement,
		&(struct tern_placement){
			.nr_physical = nr * COPIES, .logical = logical, .rank = rank_of},
		nr, nr);
}

static int open_rank(struct sim_views *v, uint32_t r)
{
	struct sim_rank *rank = &v->ranks[r];
	bool ok = true;

	rank->host = v->nr_hosts == 1 ? 0 : r * v->nr_hosts / v->nr_ranks;
	rank->heard = calloc(v->nr_ranks, sizeof(*rank->heard));
	rank->heard_us = calloc(v->nr_ranks, sizeof(*rank->heard_us));
	rank->heard_done = calloc(v->nr_ranks, sizeof(*rank->heard_done));
	rank->barred = calloc(v->nr_ranks, sizeof(*rank->barred));
	rank->closed = calloc(v->nr_ranks, sizeof(*rank->closed));
	rank->under_way = calloc(v->nr_ranks, sizeof(*rank->under_way));
	for (int k = 0; k < NR_KINDS; k++) {
		rank->words[k] = calloc(v->nr_ranks, sizeof(*rank->words[k]));
		ok = ok && rank->words[k];
		for (uint32_t i = 0; ok && i < v->nr_ranks; i++)
			rank->words[k][i].epoch = FIRST_EPOCH - 1;
	}
	if (!ok || !rank->heard || !rank->heard_us || !rank->heard_done || !rank->barred ||
		!rank->closed || !rank->under_way)
		return -1;
	if (open_placement(v, rank))
		return -1;
	agreement_init(&rank->agreement, r, v->nr_ranks, rank->heard);
	rank->agreement.broken = v->wishes->broken & 0xffff;
	rank->views[0] = rank->agreement.mine.view.alive;
	rank->nr_views = 1;
	post(v, (struct event){.kind = TICK, .to = r}, draw(v, TICK_US));
	post(v, (struct event){.kind = BEAT, .to = r}, draw(v, BEAT_US));
	return 0;
}

static int open_scenario(struct sim_views *v, uint64_t seed)
{
	uint32_t most = v->wishes->most_ranks ? v->wishes->most_ranks : 16;

	v->random = hash2(seed, 0x7669657773u);
	v->nr_ranks = v->wishes->nr_ranks ? v->wishes->nr_ranks : 2 + draw(v, most - 1);
	v->nr_rounds = v->wishes->nr_rounds ? v->wishes->nr_rounds : 10 + draw(v, 60);
	v->only_deaths = draw(v, 3) == 0;
	v->nr_hosts = v->only_deaths ? 1 : 1 + draw(v, v->nr_ranks < 5 ? v->nr_ranks : 5);
	v->ranks = calloc(v->nr_ranks, sizeof(*v->ranks));
	v->cut_until_us = calloc((size_t)v->nr_hosts * v->nr_hosts, sizeof(*v->cut_until_us));
	if (!v->ranks || !v->cut_until_us)
		return -1;
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (open_rank(v, r))
			return -1;
	draw_faults(v);
	snprintf(v->outcome->shape, sizeof(v->outcome->shape),
		"%u ranks on %u hosts, %u rounds, %u deaths%s", v->nr_ranks, v->nr_hosts,
		v->nr_rounds, v->nr_deaths, v->only_deaths ? "" : ", cuts and stops");
	return 0;
}

static void close_scenario(struct sim_views *v)
{
	for (size_t i = 0; i < v->nr_events; i++)
		if (v->heap[i].kind == RECORD)
			free(v->heap[i].told.record);
	for (uint32_t r = 0; v->ranks && r < v->nr_ranks; r++) {
		placement_free(&v->ranks[r].placement);
		free(v->ranks[r].heard);
		free(v->ranks[r].heard_us);
		free(v->ranks[r].heard_done);
		free(v->ranks[r].barred);
		free(v->ranks[r].closed);
		free(v->ranks[r].under_way);
		free(v->ranks[r].words[0]);
		free(v->ranks[r].words[1]);
	}
	free(v->ranks);
	free(v->cut_until_us);
	free(v->heap);
}

static bool has_ended(const struct sim_rank *rank)
{
	return rank->state == DEAD || rank->phase >= FINISHED;
}

static bool all_have_ended(const struct sim_views *v)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (!has_ended(&v->ranks[r]))
			return false;
	return true;
}

static void judge_end(struct sim_views *v)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		struct sim_rank *rank = &v->ranks[r];
		bool expelled = rank->phase == EXPELLED,
		     stuck = rank->phase == CHANGE && agreement_lacks_quorum(&rank->agreement);

		v->outcome->nr_lost += rank->state != DEAD && rank->phase == LOST;
		if (rank->state == DEAD || rank->phase == FINISHED || rank->phase == LOST)
			continue;
		v->outcome->nr_expelled += expelled;
		v->outcome->nr_stuck += stuck;
		if ((!expelled && !stuck) || v->only_deaths)
			wrong(v, "rank %u is in phase %d of view %llu, with %llu of %u rounds done",
				r, (int)rank->phase,
				(unsigned long long)rank->agreement.mine.view.number,
				(unsigned long long)rank->done, v->nr_rounds);
	}
}

int views_run(uint64_t seed, const struct views_wishes *wishes, struct views_outcome *outcome)
{
	struct sim_views v = {.wishes = wishes, .outcome = outcome};
	uint64_t end_us;

	*outcome = (struct views_outcome){.digest = seed};
	if (open_scenario(&v, seed)) {
		close_scenario(&v);
		return -1;
	}
	end_us = v.last_fault_us + SETTLE_US;
	while (!v.failed && v.nr_events && v.now_us < end_us &&
		(v.now_us <= v.last_fault_us || !all_have_ended(&v))) {
		struct event event = take_first(&v);

		v.now_us = event.at_us;
		outcome->events++;
		outcome->digest = hash4(outcome->digest, event.at_us, event.kind,
			(uint64_t)event.to << 32 | event.from);
		handle(&v, event);
	}
	if (!v.failed)
		judge_end(&v);
	outcome->good = !v.failed;
	close_scenario(&v);
	return 0;
}
