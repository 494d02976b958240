/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence of elastic exchanges on GPUs (src/gpu/host/fresh.c). RANKS ranks make a round in each view; up to DEATHS of
 * their processes end, or are stopped, at any moment, and what their kernels had before them is stored later, at any time:
 * nobody hears of its end. Those that live end their own kernels, agree on the next view (in one step:
 * tests/unit/test_agreement.c searches the agreement itself), put other memory behind the addresses of their windows
 * (window_renew), map each other's new memory (window_reopen) and make the round there. Proves that what is read under a word
 * of the own view was stored in that view, and that nobody waits for ever. So it is where a window has one pane: panes.pml has
 * those with two.
 *
 * A window is a row of places in each of its memories. Who stores in which place changes with the view, as it does where
 * results of a token come from another replica. DATA_ALONE: what comes late are no words, which would be waited for in
 * vain, but data under words that have come.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define MEMORIES (DEATHS + 1)
#define ALL ((1 << RANKS) - 1)
#define IS_IN(set, rank) ((set) >> (rank) & 1)
#define PLACE(from, view) (((from) + (view)) % RANKS)
#define AT(to, memory, place) (((to) * MEMORIES + (memory)) * RANKS + (place))
#define SEEN(rank, to) ((rank) * RANKS + (to))

byte data[RANKS * MEMORIES * RANKS], word[RANKS * MEMORIES * RANKS]; /* the view, + 1, that it was stored in */
byte memory[RANKS];         /* behind a rank's own window */
byte seen[RANKS * RANKS];   /* which memory of another's window a rank has mapped */
byte view_of[RANKS];
byte stopped[RANKS];        /* + 1: in which view */
byte renewed[RANKS];        /* for which view */
byte dead;                  /* a set */
byte nr_deaths, nr_views = 1;
byte members[DEATHS + 1] = ALL;

#define MINE(r) IS_IN(members[view] & ~dead, r)
#define HERE1(r) ((r) == me || !IS_IN(members[view], r) || word[AT(me, memory[me], PLACE(r, view))] == view + 1)
#define STOPPED1(r) (!MINE(r) || stopped[r] > view)
#define RENEWED1(r) (!MINE(r) || renewed[r] > view)
#define WANTED1(r) (stopped[r] == view + 1)
#if RANKS == 3
#define EACH(what) (what(0) && what(1) && what(2))
#define ANY(what) (what(0) || what(1) || what(2))
#else
#define EACH(what) (what(0) && what(1) && what(2) && what(3))
#define ANY(what) (what(0) || what(1) || what(2) || what(3))
#endif
#define WANTED ((members[view] & dead) || ANY(WANTED1))

/* Through the mapping that the rank has when it is stored. */
#define THERE(from, to, view) AT(to, seen[SEEN(from, to)], PLACE(from, view))

inline may_die()
{
	if
	:: atomic { nr_deaths < DEATHS -> nr_deaths++; dead = dead | 1 << me; goto end }
	:: true
	fi
}

inline renew()
{
#ifdef BREAK_NO_RENEWAL
	skip;
#elif defined(BREAK_DEATH_IS_A_FENCE) /* but its kernels go on */
	if
	:: !(members[view - 1] & dead) -> memory[me]++
	:: else
	fi;
#else
	memory[me]++;
#endif
#ifdef BREAK_PASSED_EARLY /* to who may die before the view is agreed upon */
	i = 0;
	do
	:: i < RANKS ->
		if :: MINE(i) && stopped[i] > view -> seen[SEEN(i, me)] = memory[me] :: else fi;
		i++
	:: else -> break
	od;
	i = 0;
#endif
}

active [RANKS] proctype rank()
{
	byte me = _pid, view = 0, i = 0;

round:
	do
	:: i < RANKS ->
		if
		:: i != me && IS_IN(members[view], i) ->
			may_die();
			data[THERE(me, i, view)] = view + 1;
			word[THERE(me, i, view)] = view + 1
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	if
	:: EACH(HERE1) ->
		d_step {
			do
			:: i < RANKS ->
				assert(i == me || !IS_IN(members[view], i) ||
					data[AT(me, memory[me], PLACE(i, view))] == view + 1);
				i++
			:: else -> break
			od;
			i = 0
#ifdef WITNESS
			assert(view < DEATHS);
#endif
		}
	:: !EACH(HERE1) && WANTED
	fi;
	if /* the others may need it still */
	:: WANTED
	:: timeout -> goto end
	fi;

	/* the change */
	may_die();
change:
	stopped[me] = view + 1;
	EACH(STOPPED1) || nr_views > view + 1;
	may_die();
#ifdef BREAK_PASSED_EARLY
	d_step { renew(); renewed[me] = view + 1 }
	EACH(RENEWED1) || nr_views > view + 1;
#endif
	atomic {
		if
		:: nr_views == view + 1 -> members[nr_views] = members[view] & ~dead; nr_views++
		:: else
		fi;
		if
		:: !IS_IN(members[view + 1], me) -> goto end
		:: else
		fi;
		view++;
		view_of[me] = view
	}
#ifndef BREAK_PASSED_EARLY
	may_die();
	d_step { renew(); renewed[me] = view }
#endif
	do
	:: i < RANKS ->
		may_die();
		if
		:: !IS_IN(members[view], i) || renewed[i] >= view ->
#ifndef BREAK_NOT_MAPPED
			seen[SEEN(me, i)] = memory[i];
#endif
			i++
		:: WANTED -> i = 0; goto change
		fi
	:: else -> break
	od;
	i = 0;
	goto round;
end:
	skip
}

/* Kernels whose process has ended, or is stopped: what they had before them, in their view. With BREAK_NO_QUIESCE also of
 * a process that has said it has stopped. */
active [RANKS] proctype kernel()
{
	byte me = _pid - RANKS, view, i = 0;

#ifdef BREAK_NO_QUIESCE
end_idle:
	IS_IN(dead, me) || stopped[me];
	view = stopped[me] - 1;
#else
end_idle:
	IS_IN(dead, me);
	view = view_of[me];
#endif
	do
	:: i < RANKS && i != me ->
		data[THERE(me, i, view)] = view + 1;
#ifndef DATA_ALONE
		word[THERE(me, i, view)] = view + 1;
#endif
		i++
	:: i < RANKS -> i++
	:: else -> break
	od
}
