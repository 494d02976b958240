/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of views.c:
 *
 *   views.c          a scenario: what is drawn, what happens, how it ends
 *   views_events.c   events, and what ranks send each other
 *   views_members.c  a rank changes its view
 *   views_rounds.c   a rank makes rounds
 */
#ifndef TERN_SOAK_VIEWS_INSIDE_H
#define TERN_SOAK_VIEWS_INSIDE_H

#include "soak/views.h"

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

/* ---- views_events.c -------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) void wrong(struct sim_views *v, const char *format, ...);
void post(struct sim_views *v, struct event event, uint64_t in_us);
struct event take_first(struct sim_views *v);
void land(struct sim_views *v, uint32_t to, uint32_t from, enum kind kind, struct word word);
void store(struct sim_views *v, uint32_t from, uint32_t to, enum kind kind);
/* Its record, to all. */
void tell(struct sim_views *v, uint32_t from);

static inline bool breaks(const struct sim_views *v, uint32_t how)
{
	return v->wishes->broken & how;
}

static inline uint32_t draw(struct sim_views *v, uint32_t n)
{
	return random_below(&v->random, n);
}

static inline bool same_host(const struct sim_views *v, uint32_t a, uint32_t b)
{
	return v->ranks[a].host == v->ranks[b].host;
}

/* Far apart, as hosts go together. */
static inline uint32_t home_of(const struct sim_views *v, uint32_t expert, uint32_t copy)
{
	return (expert + copy * (1 + v->nr_ranks / COPIES)) % v->nr_ranks;
}

/* ---- views_members.c ------------------------------------------------------------------------- */

void die(struct sim_views *v, uint32_t rank);
void begin_change(struct sim_views *v, uint32_t me);
void quiesce(struct sim_views *v, uint32_t me);
void change(struct sim_views *v, uint32_t me);
void look_around(struct sim_views *v, uint32_t me);

/* ---- views_rounds.c -------------------------------------------------------------------------- */

/* A rank's turn. */
void do_something(struct sim_views *v, uint32_t me);

#endif
