/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange/elastic.h"
#include "exchange/placement.h"
#include "group/agreement.h"
#include "testkit/random.h"

#define BEAT_US 200     /* records are told that often, whether or not they have changed */
#define SILENCE_US 1500 /* of a rank of another host: then it is to be left out */
#define KILL_US 100     /* at most, until a process has ended */
#define DELAY_US 40     /* of what is sent, at most, where nothing is cut */
#define TICK_US 12      /* between two acts of a rank, at most */
#define CHANGE_US 3000  /* a change may take, for each death and once more */
#define SETTLE_US 40000 /* after the last fault all have to have come to an end */
#define FIRST_EPOCH (UINT32_MAX - 12)
#define MOST_VIEWS 64
#define COPIES 3 /* of each expert */

enum kind {
	WORD_ROWS,
	WORD_SUMS,
	NR_KINDS
};

struct word {
	uint32_t epoch;
	uint64_t view, round;
};

enum state {
	UP,
	STOPPED, /* as by SIGSTOP; its memory is there */
	DEAD
};

enum phase {
	SEND_ROWS,
	AWAIT_ROWS,
	SEND_SUMS,
	AWAIT_SUMS,
	QUIESCE,      /* until its stores have landed, or cannot any more */
	CHANGE,       /* the view */
	LEARN_ROUNDS, /* of a new view: what the others have completed */
	FINISHED,
	LOST, /* experts: it makes no more rounds */
	EXPELLED
};

struct sim_rank {
	enum state state;
	enum phase phase;
	uint32_t host;
	struct agreement agreement;
	struct placement placement; /* as an exchange has it */
	struct agreement_record *heard;
	uint64_t *heard_us, *heard_done;
	bool *barred;        /* whose stores do not reach this rank's memory any more */
	bool *closed;        /* to whom this rank's do not, of those that are under way */
	uint32_t *under_way; /* stores, to each rank */
	struct word *words[NR_KINDS];
	uint64_t done, round;
	bool owed;
	uint32_t next; /* peer that is sent to */
	uint64_t change_us;
	struct rank_set views[MOST_VIEWS]; /* that it acted on */
	uint64_t nr_views;
};

enum event_kind {
	TICK,
	BEAT,
	RECORD,
	STORE,
	END, /* of a process */
	STOP,
	WAKE,
	EXPEL, /* rank `to` asks for `from` to be left out */
	CUT    /* between hosts, until `told.done`; from: 1: one way alone */
};

struct event {
	uint64_t at_us, order;
	enum event_kind kind;
	uint32_t to, from;
	union {
		struct {
			struct agreement_record *record;
			uint64_t done;
		} told;
		struct {
			enum kind kind;
			struct word word;
		} store;
	};
};

struct sim_views {
	const struct views_wishes *wishes;
	struct views_outcome *outcome;
	uint64_t random, now_us, order, last_fault_us;
	uint32_t nr_ranks, nr_hosts, nr_rounds;
	uint32_t nr_deaths;
	bool only_deaths, failed;
	struct sim_rank *ranks;
	uint64_t *cut_until_us; /* [hosts][hosts] */
	struct event *heap;
	size_t nr_events, room;
};

static __attribute__((format(printf, 2, 3))) void wrong(
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

static bool breaks(const struct sim_views *v, uint32_t how)
{
	return v->wishes->broken & how;
}

static uint32_t draw(struct sim_views *v, uint32_t n)
{
	return random_below(&v->random, n);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_before(const struct event *a, const struct event *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void post(struct sim_views *v, struct event event, uint64_t in_us)
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

static struct event take_first(struct sim_views *v)
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

static bool same_host(const struct sim_views *v, uint32_t a, uint32_t b)
{
	return v->ranks[a].host == v->ranks[b].host;
}

static void land(struct sim_views *v, uint32_t to, uint32_t from, enum kind kind, struct word word)
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
static void store(struct sim_views *v, uint32_t from, uint32_t to, enum kind kind)
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

static void tell(struct sim_views *v, uint32_t from)
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

/* Far apart, as hosts go together. */
static uint32_t home_of(const struct sim_views *v, uint32_t expert, uint32_t copy)
{
	return (expert + copy * (1 + v->nr_ranks / COPIES)) % v->nr_ranks;
}

/* ---- changing the view ----------------------------------------------------------------------- */

static void die(struct sim_views *v, uint32_t rank)
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

static void quiesce(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (!has_stopped(v, rank))
		return;
	rank->phase = CHANGE;
	agreement_stop(&rank->agreement);
	tell(v, me);
}

static void begin_change(struct sim_views *v, uint32_t me)
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

static void change(struct sim_views *v, uint32_t me)
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

/* What a member has completed when it stopped, or since: it completes nothing more before this rank
 * takes part. */
static bool knows_rounds_of(const struct sim_rank *rank, uint32_t r)
{
	const struct agreement_record *theirs = &rank->heard[r];
	uint64_t mine = rank->agreement.mine.view.number;

	return theirs->version && (theirs->view.number >= mine ||
					  (theirs->view.number + 1 == mine && theirs->stopped));
}

/* By the view alone, and not by what the rank believes. */
static bool somebody_has(const struct sim_views *v, const struct sim_rank *rank, uint32_t expert)
{
	bool has = false;

	for (uint32_t i = 0; i < COPIES; i++)
		has = has || set_has(&rank->agreement.mine.view.alive, home_of(v, expert, i));
	return has;
}

/* Each token goes to one member for each of its experts; or to nobody, where one has no member. */
static void judge_places(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool all = true;

	for (uint32_t e = 0; e < v->nr_ranks; e++) {
		uint32_t p = placement_choose(&rank->placement, e, me, (uint32_t)rank->round);

		all = all && somebody_has(v, rank, e);
		if (rank->phase == LOST ||
			(p != PLACEMENT_NOBODY &&
				set_has(&rank->agreement.mine.view.alive, rank->placement.rank[p])))
			continue;
		wrong(v, "rank %u, in view %llu, sends to expert %u where no member has it", me,
			(unsigned long long)rank->agreement.mine.view.number, e);
	}
	if (all && rank->phase == LOST)
		wrong(v, "rank %u misses experts that members have", me);
}

static void begin_round(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool lost = rank->placement.nr_lost && !breaks(v, VIEWS_BREAK_HIDE_LOSS);

	rank->next = 0;
	rank->phase = rank->round == v->nr_rounds ? FINISHED : lost ? LOST : SEND_ROWS;
	if (rank->phase != FINISHED)
		judge_places(v, me);
}

static void find_round(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t least = rank->done;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		if (r == me || !set_has(&rank->agreement.mine.view.alive, r))
			continue;
		if (!knows_rounds_of(rank, r))
			return;
		least = rank->heard_done[r] < least ? rank->heard_done[r] : least;
	}
	if (rank->done - least > 1)
		wrong(v, "rank %u has completed %llu rounds, and another %llu", me,
			(unsigned long long)rank->done, (unsigned long long)least);
	if (breaks(v, VIEWS_BREAK_NO_SERVICE))
		least = rank->done;
	rank->round = least;
	rank->owed = least < rank->done;
	begin_round(v, me);
}

/* ---- a rank acts ----------------------------------------------------------------------------- */

/* Deaths of its own host at once, of others by their silence. */
static void look_around(struct sim_views *v, uint32_t me)
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

static bool all_words_are_here(struct sim_views *v, uint32_t me, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t view = rank->agreement.mine.view.number;
	uint32_t due = elastic_epoch(
		FIRST_EPOCH, rank->round, breaks(v, VIEWS_BREAK_OLD_EPOCHS) ? 0 : view);

	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (set_has(&rank->agreement.mine.view.alive, r) && r != me &&
			rank->words[kind][r].epoch != due)
			return false;
	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		const struct word *word = &rank->words[kind][r];

		if (set_has(&rank->agreement.mine.view.alive, r) && r != me &&
			(word->view != view || word->round != rank->round))
			wrong(v,
				"rank %u reads in view %llu, round %llu what rank %u stored in "
				"view %llu, round %llu",
				me, (unsigned long long)view, (unsigned long long)rank->round, r,
				(unsigned long long)word->view, (unsigned long long)word->round);
	}
	return true;
}

static void end_round(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (rank->owed && !breaks(v, VIEWS_BREAK_COUNT_TWICE)) {
		v->outcome->served++;
	} else {
		if (rank->done != rank->round)
			wrong(v, "rank %u sums round %llu once more, after %llu", me,
				(unsigned long long)rank->round, (unsigned long long)rank->done);
		rank->done++;
		v->outcome->rounds++;
	}
	rank->round++;
	rank->owed = false;
	begin_round(v, me);
}

/* To one peer after the other: it may die, or be stopped, between two. */
static void send_some(struct sim_views *v, uint32_t me, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[me];
	uint32_t nr = 1 + draw(v, v->nr_ranks);

	for (; nr && rank->next < v->nr_ranks; rank->next++, nr--) {
		uint32_t to = (me + 1 + rank->next) % v->nr_ranks;

		if (to != me && set_has(&rank->agreement.mine.view.alive, to))
			store(v, me, to, kind);
	}
	if (rank->next < v->nr_ranks)
		return;
	rank->next = 0;
	rank->phase++;
}

static void await(struct sim_views *v, uint32_t me, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[me];

	if (all_words_are_here(v, me, kind)) {
		if (kind == WORD_SUMS)
			end_round(v, me);
		else
			rank->phase++;
		return;
	}
	look_around(v, me);
	if (agreement_wanted(&rank->agreement) && !rank->agreement.mine.stopped)
		begin_change(v, me);
}

static void do_something(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (breaks(v, VIEWS_BREAK_GO_ON) && rank->agreement.mine.stopped)
		change(v, me);
	switch (rank->phase) {
	case SEND_ROWS:
		send_some(v, me, WORD_ROWS);
		break;
	case AWAIT_ROWS:
		await(v, me, WORD_ROWS);
		break;
	case SEND_SUMS:
		send_some(v, me, WORD_SUMS);
		break;
	case AWAIT_SUMS:
		await(v, me, WORD_SUMS);
		break;
	case QUIESCE:
		look_around(v, me);
		quiesce(v, me);
		break;
	case CHANGE:
		look_around(v, me);
		change(v, me);
		break;
	case LEARN_ROUNDS:
		find_round(v, me);
		look_around(v, me);
		if (rank->phase == LEARN_ROUNDS && agreement_wanted(&rank->agreement))
			begin_change(v, me);
		break;
	case FINISHED: /* others may still need it */
	case LOST:
		look_around(v, me);
		if (agreement_wanted(&rank->agreement))
			begin_change(v, me);
		break;
	case EXPELLED:
		break;
	}
}

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
