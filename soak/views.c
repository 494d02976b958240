/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what happens ---------------------------------------------------------------------------- */

/* Between hosts nothing is heard any more of whom this rank has let go, but that it has been left
 * out itself: that is said on the line. */
static bool is_deaf_to(const struct sim_views *v, const struct event *event)
{
	const struct sim_rank *rank = &v->ranks[event->to];
	const struct agreement_record *record = &event->told->record;

	return !same_host(v, event->to, event->from) && rank->phase != JOINING &&
	       (rank->barred[event->from] >= event->from_life || rank->closed[event->from]) &&
	       (record->view.number <= rank->agreement.mine.view.number ||
		       set_has(&record->view.alive, event->to));
}

/* Records of a process whose board is mapped: a newcomer maps those of who is there. */
static void hear(struct sim_views *v, const struct event *event)
{
	struct sim_rank *rank = &v->ranks[event->to];
	uint32_t from = event->from;
	const struct told *told = event->told;

	if (rank->phase == JOINING && rank->lives[from] < event->from_life) {
		memset(&rank->heard[from], 0, sizeof(rank->heard[from]));
		rank->lives[from] = event->from_life;
	}
	if (rank->lives[from] != event->from_life || is_deaf_to(v, event))
		return;
	if (rank->heard[from].version < told->record.version || rank->heard_done[from] == UNKNOWN ||
		(told->done != UNKNOWN && rank->heard_done[from] < told->done))
		rank->heard_done[from] = told->done;
	agreement_hear(&rank->agreement, from, &told->record);
	rank->heard_us[from] = v->now_us;
	for (uint32_t i = 0; i < told->nr_parts; i++)
		hear_part(rank, told->parts[i].rank, &told->parts[i].part);
}

static void forget(struct told *told)
{
	if (!--told->nr_refs)
		free(told);
}

/* What the process that was there has sent still arrives, but for what it had given up. */
void begin_life(struct sim_views *v, uint32_t r)
{
	struct sim_rank *rank = &v->ranks[r];
	uint64_t life = rank->life;

	for (size_t i = 0; i < v->nr_events; i++)
		if (v->heap[i].kind == STORE && v->heap[i].from == r &&
			v->heap[i].from_life == life && rank->closed[v->heap[i].to])
			v->heap[i].to_life = UNKNOWN;
	close_rank(rank);
	*rank = (struct sim_rank){.life = life};
	if (open_rank(v, r)) {
		views_wrong(v, "no memory for a rank");
		return;
	}
	rank->phase = JOINING;
	rank->loaded_us = v->now_us + draw(v, 2 * SILENCE_US);
}

/* Whoever starts processes starts one where none is, or where it has been left out. */
static void start_process(struct sim_views *v, uint32_t r)
{
	struct sim_rank *rank = &v->ranks[r];

	if (rank->state == UP && rank->phase == EXPELLED)
		rank->state = DEAD;
	if (rank->state == DEAD)
		begin_life(v, r);
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
	uint64_t until_us = v->now_us + event->cut_us;

	v->cut_until_us[a * v->nr_hosts + b] = until_us;
	if (!event->from)
		v->cut_until_us[b * v->nr_hosts + a] = until_us;
}

/* What was for a process that another has replaced is not counted any more. */
static void arrive(struct sim_views *v, const struct event *event)
{
	struct sim_rank *from = &v->ranks[event->from];

	if (from->life == event->from_life && from->lives[event->to] == event->to_life) {
		from->under_way[event->to]--;
		if (from->closed[event->to])
			return;
	}
	views_land(v, event);
}

static void tick(struct sim_views *v, struct event event)
{
	struct sim_rank *rank = &v->ranks[event.to];
	bool is_stopped = rank->state == STOPPED;

	if (event.kind == BEAT && !is_stopped && rank->phase != EXPELLED && rank->phase != JOINING)
		views_tell(v, event.to);
	if (event.kind == TICK && !is_stopped)
		do_something(v, event.to);
	views_post(v, event,
		event.kind == BEAT ? BEAT_US : 1 + draw(v, is_stopped ? 8 * TICK_US : TICK_US));
}

/* To a rank that is stopped: it lies there until the rank wakes. */
static void deliver(struct sim_views *v, struct event event)
{
	bool is_stopped = v->ranks[event.to].state == STOPPED;

	if (is_stopped) {
		views_post(v, event, BEAT_US);
	} else if (event.kind == RECORD) {
		hear(v, &event);
		forget(event.told);
	} else if (event.kind == ASK || event.kind == PAGE) {
		hear_page(v, &event);
	} else {
		hear_join(v, &event);
	}
}

static void happen_to(struct sim_views *v, const struct event *event)
{
	struct sim_rank *rank = &v->ranks[event->to];

	switch (event->kind) {
	case END:
		views_die(v, event->to);
		break;
	case STOP:
		if (rank->state == UP)
			rank->state = STOPPED;
		break;
	case WAKE:
		wake(v, rank);
		break;
	case EXPEL:
		if (rank->state == UP && rank->phase != EXPELLED && rank->phase != JOINING)
			agreement_expel(&rank->agreement, event->from);
		break;
	case JOIN:
		start_process(v, event->to);
		break;
	default:
		break;
	}
}

/* For the process that it was for. */
static bool is_received(const struct sim_views *v, const struct event *event)
{
	const struct sim_rank *rank = &v->ranks[event->to];

	return event->to_life == ANY_LIFE || (rank->state != DEAD && rank->life == event->to_life);
}

static void handle(struct sim_views *v, struct event event)
{
	if (event.kind == CUT) {
		cut(v, &event);
	} else if (event.kind == STORE) {
		arrive(v, &event);
	} else if (!is_received(v, &event)) {
		if (event.kind == RECORD)
			forget(event.told);
	} else if (event.kind == TICK || event.kind == BEAT) {
		tick(v, event);
	} else if (event.kind == RECORD || event.kind > JOIN) {
		deliver(v, event);
	} else {
		happen_to(v, &event);
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

	views_post(v, (struct event){.kind = STOP, .to = rank}, at_us);
	views_post(v, (struct event){.kind = WAKE, .to = rank}, at_us + for_us);
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
			.cut_us = for_us};

		if (other != a)
			views_post(v, event, at_us);
	}
	note_fault(v, at_us + for_us);
}

/* Some time after its place has become vacant, or not yet. */
static void draw_join(struct sim_views *v, uint32_t rank, uint64_t at_us)
{
	uint64_t join_us = at_us + draw(v, 5 * SILENCE_US);

	if (draw(v, 4) == 0)
		return;
	views_post(v, (struct event){.kind = JOIN, .to = rank}, join_us);
	note_fault(v, join_us);
}

static void draw_death(struct sim_views *v, uint64_t at_us)
{
	uint32_t rank = draw(v, v->nr_ranks);

	views_post(v, (struct event){.kind = END, .to = rank}, at_us);
	note_fault(v, at_us);
	draw_join(v, rank, at_us);
}

/* It leaves, or is left out by another. */
static void draw_expulsion(struct sim_views *v, uint64_t at_us)
{
	uint32_t from = draw(v, v->nr_ranks), to = draw(v, 2) ? from : draw(v, v->nr_ranks);

	views_post(v, (struct event){.kind = EXPEL, .to = to, .from = from}, at_us);
	note_fault(v, at_us);
	draw_join(v, from, at_us);
}

static void draw_faults(struct sim_views *v)
{
	uint32_t nr_cuts = v->nr_hosts > 1 && !v->only_deaths ? draw(v, 4) : 0,
		 nr_stops = v->only_deaths ? 0 : draw(v, 3);
	uint64_t last_us = draw(v, 200 + v->nr_rounds * 60);

	v->nr_deaths = draw(v, v->nr_ranks < 4 ? 2 : 4);
	if (v->only_deaths && !v->nr_deaths)
		v->nr_deaths = 1;
	for (uint32_t i = 0; i < nr_cuts; i++)
		draw_cut(v, draw_moment(v, &last_us));
	for (uint32_t i = 0; i < v->nr_deaths; i++)
		draw_death(v, draw_moment(v, &last_us));
	for (uint32_t i = 0; i < nr_stops; i++)
		draw_stop(v, draw_moment(v, &last_us));
	if (!v->only_deaths && draw(v, 3) == 0)
		draw_expulsion(v, draw_moment(v, &last_us));
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

static int alloc_rank(struct sim_views *v, struct sim_rank *rank)
{
	size_t nr = v->nr_ranks;
	bool ok = true;

	rank->lives = calloc(nr, sizeof(*rank->lives));
	rank->heard = calloc(nr, sizeof(*rank->heard));
	rank->heard_us = calloc(nr, sizeof(*rank->heard_us));
	rank->heard_done = calloc(nr, sizeof(*rank->heard_done));
	rank->barred = calloc(nr, sizeof(*rank->barred));
	rank->closed = calloc(nr, sizeof(*rank->closed));
	rank->under_way = calloc(nr, sizeof(*rank->under_way));
	rank->parts = calloc(nr, sizeof(*rank->parts));
	rank->ever_gone = calloc(nr, sizeof(*rank->ever_gone));
	rank->first_gathering = calloc(nr, sizeof(*rank->first_gathering));
	rank->guests = calloc(nr, sizeof(*rank->guests));
	rank->ready = calloc(nr, sizeof(*rank->ready));
	for (int k = 0; k < NR_KINDS; k++) {
		rank->words[k] = calloc(nr, sizeof(*rank->words[k]));
		ok = ok && rank->words[k];
	}
	return ok && rank->lives && rank->heard && rank->heard_us && rank->heard_done &&
			       rank->barred && rank->closed && rank->under_way && rank->parts &&
			       rank->ever_gone && rank->first_gathering && rank->guests &&
			       rank->ready
		       ? 0
		       : -1;
}

void close_rank(struct sim_rank *rank)
{
	placement_free(&rank->placement);
	free(rank->lives);
	free(rank->heard);
	free(rank->heard_us);
	free(rank->heard_done);
	free(rank->barred);
	free(rank->closed);
	free(rank->under_way);
	free(rank->parts);
	free(rank->ever_gone);
	free(rank->first_gathering);
	free(rank->guests);
	free(rank->ready);
	free(rank->words[0]);
	free(rank->words[1]);
}

int open_rank(struct sim_views *v, uint32_t r)
{
	struct sim_rank *rank = &v->ranks[r];

	rank->host = v->nr_hosts == 1 ? 0 : r * v->nr_hosts / v->nr_ranks;
	rank->life++;
	if (alloc_rank(v, rank) || open_placement(v, rank))
		return -1;
	for (uint32_t i = 0; i < v->nr_ranks; i++) {
		rank->lives[i] = i == r ? rank->life : 1;
		for (int k = 0; k < NR_KINDS; k++)
			rank->words[k][i].epoch = FIRST_EPOCH - 1;
	}
	weights_load(v, r);
	agreement_init(&rank->agreement, r, v->nr_ranks, rank->heard);
	rank->agreement.broken = v->wishes->broken & 0xffff;
	views_post(
		v, (struct event){.kind = TICK, .to = r, .to_life = rank->life}, draw(v, TICK_US));
	views_post(
		v, (struct event){.kind = BEAT, .to = r, .to_life = rank->life}, draw(v, BEAT_US));
	return 0;
}

/* Plans are pure, so one serves all ranks. */
static int open_plans(struct sim_views *v)
{
	int32_t *rank = calloc(nr_places(v), sizeof(*rank));
	struct tern_balance_config config = {.size = sizeof(config),
		.nr_experts = v->nr_ranks,
		.nr_physical = nr_places(v),
		.nr_ranks = v->nr_ranks,
		.rank = rank};
	int rc = -1;

	v->load = calloc(v->nr_ranks, sizeof(*v->load));
	v->now = calloc(nr_places(v), sizeof(*v->now));
	v->planned = calloc(nr_places(v), sizeof(*v->planned));
	v->logical = calloc(nr_places(v), sizeof(*v->logical));
	v->copies = calloc(nr_places(v), sizeof(*v->copies));
	for (uint32_t p = 0; rank && p < nr_places(v); p++)
		rank[p] = (int32_t)home_of(v, p % v->nr_ranks, p / v->nr_ranks);
	if (rank && v->load && v->now && v->planned && v->logical && v->copies)
		rc = tern_balance_create(&config, &v->balance);
	free(rank);
	return rc;
}

static int open_scenario(struct sim_views *v, uint64_t seed)
{
	uint32_t most = v->wishes->most_ranks ? v->wishes->most_ranks : 16;

	v->random = hash2(seed, 0x7669657773u);
	v->seed = seed;
	v->nr_ranks = v->wishes->nr_ranks ? v->wishes->nr_ranks : 2 + draw(v, most - 1);
	v->nr_rounds = v->wishes->nr_rounds ? v->wishes->nr_rounds : 10 + draw(v, 150);
	v->every = 2 + draw(v, 6);
	v->only_deaths = draw(v, 3) == 0;
	v->nr_hosts = v->only_deaths ? 1 : 1 + draw(v, v->nr_ranks < 5 ? v->nr_ranks : 5);
	v->ranks = calloc(v->nr_ranks, sizeof(*v->ranks));
	v->cut_until_us = calloc((size_t)v->nr_hosts * v->nr_hosts, sizeof(*v->cut_until_us));
	if (!v->ranks || !v->cut_until_us || open_plans(v))
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
			forget(v->heap[i].told);
	for (uint32_t r = 0; v->ranks && r < v->nr_ranks; r++)
		close_rank(&v->ranks[r]);
	tern_balance_destroy(v->balance);
	free(v->load);
	free(v->now);
	free(v->planned);
	free(v->logical);
	free(v->copies);
	free(v->ranks);
	free(v->cut_until_us);
	free(v->heap);
}

/* No member is left that makes rounds, and would gather again. */
static bool nobody_gathers(const struct sim_views *v)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (v->ranks[r].state != DEAD && v->ranks[r].phase < JOINING &&
			serves(v, &v->ranks[r], r))
			return false;
	return true;
}

/* A member that has come to its end answers newcomers all the same. */
static bool nobody_lets_in(const struct sim_views *v)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (v->ranks[r].state != DEAD && v->ranks[r].phase != JOINING &&
			v->ranks[r].phase != EXPELLED &&
			!agreement_lacks_quorum(&v->ranks[r].agreement))
			return false;
	return true;
}

static bool has_ended(const struct sim_views *v, uint32_t r)
{
	const struct sim_rank *rank = &v->ranks[r];

	if (rank->state == DEAD || rank->phase >= FINISHED)
		return true;
	if (rank->phase == JOINING)
		return nobody_lets_in(v);
	return rank->phase == GATHER && !serves(v, rank, r) && nobody_gathers(v);
}

static bool all_have_ended(const struct sim_views *v)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (!has_ended(v, r))
			return false;
	return true;
}

static void judge_end(struct sim_views *v)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		struct sim_rank *rank = &v->ranks[r];
		bool expelled = rank->phase == EXPELLED,
		     stuck = rank->phase == CHANGE && agreement_lacks_quorum(&rank->agreement),
		     leaves = set_has(&rank->agreement.mine.gone, r);

		v->outcome->nr_lost += rank->state != DEAD && rank->phase == LOST;
		if (rank->phase != EXPELLED && (leaves || has_ended(v, r)))
			continue;
		if (rank->state == DEAD)
			continue;
		v->outcome->nr_expelled += expelled;
		v->outcome->nr_stuck += stuck;
		if ((!expelled && !stuck) || v->only_deaths)
			views_wrong(v,
				"rank %u is in phase %d of view %llu, with %llu of %u rounds done",
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
