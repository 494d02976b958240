/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of views.c:
 *
 *   views.c          a scenario: what is drawn, what happens, how it ends
 *   views_events.c   events, and what ranks send each other
 *   views_members.c  a rank changes its view
 *   views_rounds.c   a rank makes rounds
 *   views_join.c     a process takes the place of one that has gone
 *   views_gather.c   what ranks tell each other every few rounds, and what follows: experts move
 *   views_weights.c  weights on their way
 */
#ifndef TERN_SOAK_VIEWS_INSIDE_H
#define TERN_SOAK_VIEWS_INSIDE_H

#include "soak/views.h"

#include "exchange/placement.h"
#include "group/agreement.h"
#include "group/gatherings.h"
#include "tern_balance.h"
#include "testkit/random.h"

#define BEAT_US 200     /* records are told that often, whether or not they have changed */
#define SILENCE_US 1500 /* of a rank of another host: then it is to be left out */
#define KILL_US 100     /* at most, until a process has ended */
#define DELAY_US 40     /* of what is sent, at most, where nothing is cut */
#define TICK_US 12      /* between two acts of a rank, at most */
#define ASK_US 200      /* a newcomer knocks that often */
#define CHANGE_US 3000  /* a change may take, for each death and once more */
#define SETTLE_US 40000 /* after the last fault all have to have come to an end */
#define FIRST_EPOCH (UINT32_MAX - 12)
#define MOST_VIEWS 64
#define COPIES 3 /* of each expert, and places of each rank */
#define PAGES 4  /* of an expert */
#define PARTS 4  /* of each rank: two of members, two of who had the place before */
#define UNKNOWN UINT64_MAX
#define ANY_LIFE 0

enum kind {
	WORD_ROWS,
	WORD_SUMS,
	NR_KINDS
};

struct word {
	uint32_t epoch;
	struct placed placed; /* by which its rows were routed */
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
	GATHER,
	QUIESCE,      /* until its stores have landed, or cannot any more */
	CHANGE,       /* the view */
	LEARN_ROUNDS, /* of a new view: what the others have completed */
	JOINING,
	FINISHED,
	LOST, /* experts: it makes no more rounds */
	EXPELLED
};

/* What a rank gives to a gathering. */
struct part {
	uint64_t number;       /* 0: nothing */
	uint64_t done;         /* its rounds; UNKNOWN: it has joined */
	bool busy;             /* weights are on their way to it */
	int16_t holds[COPIES]; /* whole, in its places; -1: none */
};

/* A record, as it is sent. Parts go with it: the own, and those of ranks that have gone. */
struct told {
	struct agreement_record record;
	uint64_t done;
	uint32_t nr_refs, nr_parts;
	struct told_part {
		uint32_t rank;
		struct part part;
	} parts[];
};

/* A place for weights: what is in it, and what its rank believes to be. */
struct sim_place {
	int16_t expert;       /* -1: none that is whole */
	int16_t pages[PAGES]; /* the experts that they are of; -1: spoilt */
};

struct sim_move {
	bool busy, asked;
	uint32_t place, nr_pages, nr_wrong;
	uint32_t first, turn; /* the rank that is asked first; of sources */
	uint32_t number;      /* of the ask */
	int16_t expert;
	uint64_t asked_us;
};

/* Who has knocked at a member. */
struct sim_guest {
	uint64_t life, ready_us, heard_us;
	bool knows; /* who the members are: before, it would not hear that it is let in */
};

/* A rank's process. A place has one after the other, of which life 1 is the first. */
struct sim_rank {
	enum state state;
	enum phase phase;
	uint32_t host;
	uint64_t life;
	uint64_t *lives; /* [R] of the others: whose memory it maps, whose records it hears */
	struct agreement agreement;
	struct placement placement; /* as an exchange has it */
	struct agreement_record *heard;
	uint64_t *heard_us, *heard_done;
	uint64_t *barred;    /* [R] up to which life stores do not reach this rank's memory */
	bool *closed;        /* to whom this rank's do not, of those that are under way */
	uint32_t *under_way; /* stores, to each rank */
	struct word *words[NR_KINDS];
	uint64_t done, round;
	bool owed;
	uint32_t next; /* peer that is sent to */
	uint64_t change_us;
	struct view views[MOST_VIEWS]; /* that it acted on */
	bool acted[MOST_VIEWS];
	/* gatherings */
	struct gatherings gatherings;
	struct part (*parts)[PARTS]; /* [R] */
	bool gathers;
	bool *ever_gone;           /* [R] */
	uint64_t *first_gathering; /* [R] */
	uint64_t steps;            /* of the program, that it has gathered after */
	struct {
		uint64_t number, hash;
	} results[PARTS];
	/* joining */
	struct sim_guest *guests; /* [R] */
	uint64_t wanted;          /* the view that a newcomer waits for */
	uint64_t *ready;          /* [R] lives of members that are, for this newcomer */
	uint64_t ask_us, loaded_us;
	bool knows_view;
	/* weights */
	struct sim_place places[COPIES];
	struct sim_move move;
};

enum event_kind {
	TICK,
	BEAT,
	RECORD,
	STORE,
	END, /* of a process */
	STOP,
	WAKE,
	EXPEL, /* rank `to` asks for `from` to be left out, or leaves */
	CUT,   /* between hosts, until `cut_us`; from: 1: one way alone */
	JOIN,  /* a process is started, if the place has none */
	ENTER, /* a newcomer knocks */
	READY, /* a member has all that it needs to let it in */
	GO,    /* the newcomer has all, too */
	OUT,   /* it was let in, did not hear of it, and has been left out: begin again */
	ASK,   /* for a page */
	PAGE
};

struct event {
	uint64_t at_us, order;
	enum event_kind kind;
	uint32_t to, from;
	uint64_t to_life, from_life; /* ANY_LIFE: whoever is there */
	union {
		uint64_t cut_us;
		struct told *told;
		struct {
			enum kind kind;
			struct word word;
		} store;
		struct view view; /* of READY */
		bool knows;       /* ENTER, GO: who the members are */
		struct {
			uint32_t number, page;
			int16_t expert; /* PAGE: what the page is of; or */
			bool none;      /* it has not got it */
		} page;
	};
};

struct sim_views {
	const struct views_wishes *wishes;
	struct views_outcome *outcome;
	uint64_t random, seed, now_us, order, last_fault_us;
	uint32_t nr_ranks, nr_hosts, nr_rounds, every;
	uint32_t nr_deaths;
	bool only_deaths, failed;
	struct sim_rank *ranks;
	uint64_t *cut_until_us; /* [hosts][hosts] */
	struct event *heap;
	size_t nr_events, room;
	tern_balance *balance;
	double *load;
	int32_t *now, *planned, *logical; /* [places] */
	struct tern_copy *copies;
};

/* ---- views_events.c -------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) void views_wrong(
	struct sim_views *v, const char *format, ...);
void views_post(struct sim_views *v, struct event event, uint64_t in_us);
struct event take_first(struct sim_views *v);
/* To another host, unless it is cut off. */
void post_message(struct sim_views *v, struct event event);
void views_land(struct sim_views *v, const struct event *event);
void views_store(struct sim_views *v, uint32_t from, uint32_t to, enum kind kind);
/* Its record, to all. */
void views_tell(struct sim_views *v, uint32_t from);

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

/* Of the process that `me` knows there. */
static inline bool has_ended_at(const struct sim_views *v, uint32_t me, uint32_t r)
{
	return v->ranks[r].state == DEAD || v->ranks[r].life != v->ranks[me].lives[r];
}

static inline bool is_member(const struct sim_rank *rank, uint32_t r)
{
	return set_has(&rank->agreement.mine.view.alive, r);
}

/* A member, and its first gathering is over. */
static inline bool serves(const struct sim_views *v, const struct sim_rank *rank, uint32_t r)
{
	return is_member(rank, r) && (rank->gatherings.complete >= rank->first_gathering[r] ||
					     breaks(v, VIEWS_BREAK_SERVE_EARLY));
}

/* Far apart, as hosts go together. */
static inline uint32_t home_of(const struct sim_views *v, uint32_t expert, uint32_t copy)
{
	return (expert + copy * (1 + v->nr_ranks / COPIES)) % v->nr_ranks;
}

/* Rank r's place number i, among all. */
static inline uint32_t place_of(const struct sim_views *v, uint32_t r, uint32_t i)
{
	uint32_t back = i * (1 + v->nr_ranks / COPIES) % v->nr_ranks;

	return i * v->nr_ranks + (r + v->nr_ranks - back) % v->nr_ranks;
}

static inline uint32_t nr_places(const struct sim_views *v)
{
	return v->nr_ranks * COPIES;
}

/* ---- views_members.c ------------------------------------------------------------------------- */

void views_die(struct sim_views *v, uint32_t rank);
void begin_change(struct sim_views *v, uint32_t me);
void views_quiesce(struct sim_views *v, uint32_t me);
void views_change(struct sim_views *v, uint32_t me);
void look_around(struct sim_views *v, uint32_t me);
bool wants_change(const struct sim_views *v, uint32_t me);
/* The rank acts on its agreement's next view. */
void judge_view(struct sim_views *v, uint32_t me);
/* Places of ranks that do not serve are not sent to. */
void leave_out(struct sim_views *v, uint32_t me);

/* ---- views_rounds.c -------------------------------------------------------------------------- */

/* A rank's turn. */
void do_something(struct sim_views *v, uint32_t me);
void begin_round(struct sim_views *v, uint32_t me);

/* ---- views_join.c ---------------------------------------------------------------------------- */

void views_join(struct sim_views *v, uint32_t me); /* a newcomer's turn */
void hear_join(struct sim_views *v, const struct event *event);
/* For agreement_prepare. */
void views_prepare(struct sim_views *v, uint32_t me);
/* The view that `me` acts on lets one in. */
void views_admit(struct sim_views *v, uint32_t me, uint64_t prepared, uint64_t nonce);

/* ---- views_gather.c -------------------------------------------------------------------------- */

bool gather_is_due(const struct sim_views *v, const struct sim_rank *rank);
void gather_begin(struct sim_views *v, uint32_t me);
/* True: it is over. */
bool gather_step(struct sim_views *v, uint32_t me);
void hear_part(struct sim_rank *rank, uint32_t from, const struct part *part);

/* ---- views_weights.c ------------------------------------------------------------------------- */

/* As the process begins: what the first table has there. */
void weights_load(const struct sim_views *v, uint32_t me);
void move_begin(struct sim_views *v, uint32_t me, uint32_t place, int32_t expert, uint32_t from);
void move_step(struct sim_views *v, uint32_t me);
void hear_page(struct sim_views *v, const struct event *event);
/* Rows have come: the weights of all that the table names here are read. */
void judge_weights(struct sim_views *v, uint32_t me);

/* ---- views.c --------------------------------------------------------------------------------- */

/* A process begins in the rank's place. -1: no memory. */
int open_rank(struct sim_views *v, uint32_t r);
/* Another one, which joins. */
void begin_life(struct sim_views *v, uint32_t r);
void close_rank(struct sim_rank *rank);

#endif
