/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks that live agree on who belongs to the group: the next view. Pure: no memory is shared
 * here, no time passes and nothing is sent. Each rank has one record, which it alone writes; what
 * carries records to the others may lose, repeat and reorder them, as long as the last one comes at
 * some time. The same code runs over shared memory (view.c), in the simulator and in its tests.
 *
 *   stopped     this rank stores nothing for others any more in this view
 *   promised    a ballot: it takes no commit of a lower one. Ballot b is led by rank b % R
 *   commit      what its ballot's leader has chosen: stored before it is told, told before acted on
 *
 * The leader of the highest ballot waits until all that it keeps have stopped and promised, takes
 * over the commit of the highest ballot among them, or chooses them as the next view. The others
 * store its commit when they have fenced whom it leaves out. A commit counts when all have stored
 * it that are not known to have ended, or a majority of the last view. docs/survive.md says why. */
#ifndef TERN_GROUP_AGREEMENT_H
#define TERN_GROUP_AGREEMENT_H

#include <stdbool.h>
#include <stdint.h>

#define VIEW_MOST_RANKS 256

/* After a view with a newcomer the next gathering has a number that no rank can have given anything
 * to, also one that was ahead and has died, and another place on the board than the last one. */
#define GATHERINGS_SKIPPED 3

struct rank_set {
	uint64_t words[VIEW_MOST_RANKS / 64];
};

struct view {
	uint64_t number;       /* 0: as the group was made */
	struct rank_set alive; /* its members */
	uint64_t newcomer;     /* + 1: let in with it; 0: nobody was */
	uint64_t nonce;        /* by which that one is known */
	uint64_t gathering;    /* the first that it takes part in */
};

/* What a rank tells. Only as many bytes as there are are ever sent: no pointers. */
struct agreement_record {
	uint64_t version;         /* rises with each change; 0: nothing was told yet */
	struct view view;         /* that it acts on */
	struct rank_set gone;     /* of its members: whom it does not want in the next one */
	struct rank_set dead;     /* of these: known to have ended, and to store nothing any more */
	struct rank_set expelled; /* of these: somebody has asked for it */
	uint64_t stopped;         /* 1: in this view it stores nothing for others any more */
	uint64_t newcomer;  /* + 1: a rank that is no member and for which all is prepared here;
			       0: none. Fixed from when it has stopped */
	uint64_t nonce;     /* of that one: several may have come in its place */
	uint64_t gathering; /* the last that it has begun */
	uint64_t promised;  /* 0: nothing */
	uint64_t ballot;    /* of `commit`; 0: there is none */
	struct view commit; /* to be the next view */
};

enum agreement_news {
	AGREEMENT_CHANGED = 1, /* the own record: tell the others */
	AGREEMENT_DECIDED = 2, /* agreement.next is agreed upon: agreement_act */
	AGREEMENT_EXPELLED = 4 /* the others go on without this rank: it may store nothing */
};

struct agreement {
	uint32_t rank, nr_ranks;
	struct agreement_record mine;
	struct agreement_record *heard; /* [nr_ranks] the last of each; the caller's memory */
	struct rank_set fenced;         /* who cannot store to this rank's memory any more */
	struct rank_set to_fence;       /* who has to be fenced before it goes on */
	struct view next;
	uint32_t broken; /* variants for tests: enum agreement_break */
};

/* One thing made wrong, which the invariants have to catch. */
enum agreement_break {
	AGREEMENT_BREAK_NO_PROMISE = 1, /* takes a commit of a lower ballot than it promised */
	AGREEMENT_BREAK_FORGET = 2,     /* a new leader chooses without asking for old commits */
	AGREEMENT_BREAK_ACT_ALONE = 4,  /* acts on a commit that nobody else has stored */
	AGREEMENT_BREAK_NO_QUORUM = 8,  /* who is merely silent is left out by a minority, too */
	AGREEMENT_BREAK_NO_FENCE = 16,  /* nobody is fenced */
	AGREEMENT_BREAK_UNREADY = 32,   /* a newcomer is let in for which only the leader is ready
					 */
	AGREEMENT_BREAK_OLD_RECORD = 64 /* what its predecessor told counts as a newcomer's */
};

/* heard[nr_ranks]: zeroed, and kept by the caller for as long. */
void agreement_init(struct agreement *agreement, uint32_t rank, uint32_t nr_ranks,
	struct agreement_record *heard);

/* Of a rank that is no member: it comes into the next view after this one that has it. */
void agreement_come(struct agreement *agreement, const struct view *view, uint64_t nonce);

/* Likewise: somebody acts on this view. AGREEMENT_DECIDED: it has this rank; AGREEMENT_EXPELLED: it
 * has another one in its place. */
int agreement_look(struct agreement *agreement, const struct view *theirs);

/* Before agreement_stop: a newcomer for which all is prepared here (-1: none), and the last
 * gathering that was begun. */
void agreement_prepare(
	struct agreement *agreement, int newcomer, uint64_t nonce, uint64_t gathering);

/* What this rank knows, each in any order and also when it is known already: it stores nothing for
 * others any more; a rank is to be left out, and may be known to have ended; a rank's stores cannot
 * reach this one's memory any more. */
void agreement_stop(struct agreement *agreement);
void agreement_leave_out(struct agreement *agreement, uint32_t rank, bool ended);
void agreement_fence(struct agreement *agreement, uint32_t rank);
/* This rank leaves, or another is asked to be left out, whatever it says of others. */
void agreement_expel(struct agreement *agreement, uint32_t rank);
/* A record arrived. Older ones than was heard are ignored. */
void agreement_hear(
	struct agreement *agreement, uint32_t rank, const struct agreement_record *record);

/* As far as it goes without news; a set of enum agreement_news. Sets to_fence. */
int agreement_step(struct agreement *agreement);

/* After AGREEMENT_DECIDED: `next` is the view from here on. Whom it has and this rank wants out
 * stays wanted out. Of a newcomer nothing is known yet. */
void agreement_act(struct agreement *agreement);

/* Somebody, here or elsewhere, wants another view. */
bool agreement_wanted(const struct agreement *agreement);

/* Those that can still be heard are too few to go on without the others. */
bool agreement_lacks_quorum(const struct agreement *agreement);

/* ---- sets of ranks --------------------------------------------------------------------------- */

static inline bool set_has(const struct rank_set *set, uint32_t rank)
{
	return set->words[rank / 64] >> (rank % 64) & 1;
}

static inline void set_add(struct rank_set *set, uint32_t rank)
{
	set->words[rank / 64] |= 1ull << (rank % 64);
}

static inline void set_remove(struct rank_set *set, uint32_t rank)
{
	set->words[rank / 64] &= ~(1ull << (rank % 64));
}

static inline uint32_t set_count(const struct rank_set *set)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < VIEW_MOST_RANKS / 64; i++)
		nr += (uint32_t)__builtin_popcountll(set->words[i]);
	return nr;
}

static inline struct rank_set set_without(struct rank_set a, const struct rank_set *b)
{
	for (uint32_t i = 0; i < VIEW_MOST_RANKS / 64; i++)
		a.words[i] &= ~b->words[i];
	return a;
}

static inline struct rank_set set_both(struct rank_set a, const struct rank_set *b)
{
	for (uint32_t i = 0; i < VIEW_MOST_RANKS / 64; i++)
		a.words[i] &= b->words[i];
	return a;
}

static inline struct rank_set set_either(struct rank_set a, const struct rank_set *b)
{
	for (uint32_t i = 0; i < VIEW_MOST_RANKS / 64; i++)
		a.words[i] |= b->words[i];
	return a;
}

static inline bool set_is_empty(const struct rank_set *set)
{
	return set_count(set) == 0;
}

#endif
