/* SPDX-License-Identifier: Apache-2.0
 *
 * A round made again (src/exchange/elastic.c): RANKS ranks make ROUNDS rounds over mapped memory, and up to DEATHS of them
 * die at any moment, also between the stores of one word and the next. Those that live stop, agree on the next view (here in
 * one step: tests/unit/test_agreement.c searches the agreement itself), find the round that some of them lack, and make it
 * again; who has completed it takes part without tokens. Proves that a rank reads what was stored in its own view for its own
 * round alone, by all members; that each completes each round once; that members are at most one round apart; and that
 * nobody waits for ever.
 *
 * A word holds an epoch, and beside it, for the proof, the view and the round that it was stored in.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define ROWS 0
#define SUMS 1
#define WORD(kind, to, from) ((kind) * RANKS * RANKS + (to) * RANKS + (from))
#define ALL ((1 << RANKS) - 1)
#define IS_IN(set, rank) ((set) >> (rank) & 1)
#ifdef BREAK_OLD_EPOCHS
#define EPOCH(n, v) (1 + (n))
#elif defined(BREAK_ONE_MORE) /* the round after may have been begun in the older view */
#define EPOCH(n, v) (1 + (n) + (v))
#else
#define EPOCH(n, v) (1 + (n) + 2 * (v))
#endif

byte epoch[2 * RANKS * RANKS], in_view[2 * RANKS * RANKS], in_round[2 * RANKS * RANKS];
byte done[RANKS];    /* rounds completed, where all can read it */
byte stopped[RANKS]; /* + 1: in which view it stores nothing any more */
byte dead;           /* a set */
byte nr_deaths;
byte members[DEATHS + 1] = ALL; /* of each view that was agreed upon */
byte nr_views = 1;
byte nr_served;

inline put(kind, to)
{
	d_step {
		if
		:: IS_IN(members[view], to) ->
			epoch[WORD(kind, to, me)] = EPOCH(n, view);
			in_view[WORD(kind, to, me)] = view;
			in_round[WORD(kind, to, me)] = n
		:: else
		fi
	}
}

#define HERE1(kind, r) (!IS_IN(members[view], r) || epoch[WORD(kind, me, r)] == EPOCH(n, view))
#define STOPPED1(r) (!IS_IN(members[view] & ~dead, r) || stopped[r] > view)
#define WANTED1(r) (stopped[r] == view + 1)
#if RANKS == 2
#define HERE(kind) (HERE1(kind, 0) && HERE1(kind, 1))
#define ALL_STOPPED (STOPPED1(0) && STOPPED1(1))
#define WANTED ((members[view] & dead) || WANTED1(0) || WANTED1(1))
#else
#define HERE(kind) (HERE1(kind, 0) && HERE1(kind, 1) && HERE1(kind, 2))
#define ALL_STOPPED (STOPPED1(0) && STOPPED1(1) && STOPPED1(2))
#define WANTED ((members[view] & dead) || WANTED1(0) || WANTED1(1) || WANTED1(2))
#endif

inline judge(kind)
{
	d_step {
		i = 0;
		do
		:: i < RANKS ->
			assert(!IS_IN(members[view], i) ||
				(in_view[WORD(kind, me, i)] == view && in_round[WORD(kind, me, i)] == n));
			i++
		:: else -> break
		od;
		i = 0
	}
}

inline may_die()
{
	if
	:: atomic { nr_deaths < DEATHS -> nr_deaths++; dead = dead | 1 << me; goto end }
	:: true
	fi
}

active [RANKS] proctype rank()
{
	byte me = _pid, view = 0, n = 0, i = 0, least;
	bool owed = false;

send:
	do
	:: i < RANKS -> may_die(); put(ROWS, i); i++
	:: else -> break
	od;
	i = 0;
	if
	:: HERE(ROWS) -> judge(ROWS)
	:: !HERE(ROWS) && WANTED -> goto change
	fi;
	do
	:: i < RANKS -> may_die(); put(SUMS, i); i++
	:: else -> break
	od;
	i = 0;
	if
	:: HERE(SUMS) -> judge(SUMS)
	:: !HERE(SUMS) && WANTED -> goto change
	fi;
	atomic {
		n++;
#ifdef BREAK_COUNT_TWICE
		nr_served = nr_served + owed;
		done[me]++;
#else
		if :: owed -> nr_served++ :: else -> done[me]++ fi;
#endif
		owed = false;
		assert(done[me] == n);
#ifdef WITNESS
		assert(nr_served == 0);
#endif
	}
	if
	:: n < ROUNDS -> goto send
	:: else
	fi;
	if /* the others may need it still */
	:: WANTED -> goto change
	:: timeout -> goto end
	fi;

change:
	may_die();
	stopped[me] = view + 1;
#ifndef BREAK_NO_STOP
	ALL_STOPPED || nr_views > view + 1;
#endif
	atomic {
		if
		:: nr_views == view + 1 -> members[nr_views] = members[view] & ~dead; nr_views++
		:: else
		fi;
		view++;
		least = done[me];
		i = 0;
		do
		:: i < RANKS ->
			if
			:: IS_IN(members[view], i) && done[i] < least -> least = done[i]
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0;
		assert(done[me] - least <= 1);
#ifdef BREAK_NO_SERVICE
		least = done[me];
#endif
		owed = least < done[me];
		n = least
	}
	if
	:: n < ROUNDS -> goto send
	:: else
	fi;
end:
	skip
}
