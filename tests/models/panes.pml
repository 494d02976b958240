/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence of elastic exchanges on GPUs whose windows have two panes (src/gpu/host/fresh.c): the window of rank 0, which
 * all others store into. The view says which pane is in use, so that a change puts no memory in place: view v has pane v
 * modulo 2. Up to DEATHS of the others end, or are stopped, at any moment, and what their kernels had before them is stored
 * later, at any time. Beside the rounds of view v, or when v + 1 is acted on if there was no time, rank 0 puts other memory
 * behind the pane of view v + 1 and passes it to the members, who map it (`fresh`). Proves that what is read under a word of
 * the own view was stored in that view, and that nobody waits for ever.
 *
 * What else there is to a change, device_fence.pml has: whose windows have one pane.
 */
#ifndef RANKS
#define RANKS 4
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#define MEMORIES (DEATHS + 1)
#define ALL ((1 << RANKS) - 1)
#define IS_IN(set, rank) ((set) >> (rank) & 1)
#ifdef SAME_PLACES /* of who stores; else they change with the view, as where results come from other replicas */
#define PLACE(from, view) (from)
#else
#define PLACE(from, view) (((from) + (view)) % RANKS)
#endif
#ifdef BREAK_ONE_PANE
#define PANE(view) 0
#else
#define PANE(view) ((view) & 1)
#endif
#define AT(pane, memory, place) (((pane) * MEMORIES + (memory)) * RANKS + (place))

byte data[2 * MEMORIES * RANKS], word[2 * MEMORIES * RANKS]; /* the view, + 1, that it was stored in */
byte memory[2];            /* behind rank 0's panes */
byte seen[2 * RANKS];      /* which memory of each pane a rank has mapped */
byte fresh = 1;            /* for which view rank 0 has put other memory in place; the exchange began with two good panes */
byte mapped[RANKS] = 1;    /* for which view a rank has mapped it */
byte view_of[RANKS], ready[RANKS];
byte stopped[RANKS];       /* + 1: in which view */
byte dead;                 /* a set */
byte nr_deaths, nr_views = 1;
byte members[DEATHS + 1] = ALL;

#define MINE(r) IS_IN(members[view] & ~dead, r)
#if RANKS == 3
#define EACH(what) (what(0) && what(1) && what(2))
#define ANY(what) (what(0) || what(1) || what(2))
#else
#define EACH(what) (what(0) && what(1) && what(2) && what(3))
#define ANY(what) (what(0) || what(1) || what(2) || what(3))
#endif
#define STOPPED1(r) (!MINE(r) || stopped[r] > view)
#define READY1(r) (!IS_IN(members[view], r) || ready[r] >= view)
#define WANTED1(r) (stopped[r] == view + 1)
#define WANTED ((members[view] & dead) || ANY(WANTED1))

/* Rank 0 reads in the pane of its view. */
#ifdef BREAK_READ_THE_OLD
#define READ(view) PANE((view) + ((view) > 0))
#else
#define READ(view) PANE(view)
#endif
#define HERE1(r) ((r) == 0 || !IS_IN(members[view], r) || word[AT(READ(view), memory[READ(view)], PLACE(r, view))] == view + 1)
#define THERE(from, view) AT(PANE(view), seen[2 * (from) + PANE(view)], PLACE(from, view))

inline may_die()
{
	if
	:: atomic { me > 1 && nr_deaths < DEATHS -> nr_deaths++; dead = dead | 1 << me; goto end }
	:: true
	fi
}

/* Other memory for the pane of that view, which nobody stores into but who has gone. */
inline freshen(next)
{
#if !defined(BREAK_NO_RENEWAL) && !defined(BREAK_ONE_PANE)
	memory[PANE(next)]++;
#endif
#ifdef BREAK_PASSED_TO_THE_GONE
	i = 1;
	do
	:: i < RANKS -> if :: IS_IN(dead, i) -> seen[2 * i + PANE(next)] = memory[PANE(next)] :: else fi; i++
	:: else -> break
	od;
	i = 0;
#endif
	fresh = next
}

/* All have stopped, and the next view is agreed upon. */
inline change()
{
	stopped[me] = view + 1;
	EACH(STOPPED1) || nr_views > view + 1;
	may_die();
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
}

active proctype reader()
{
	byte me = 0, view = 0, i = 0;

round:
	do
	:: EACH(HERE1) -> break
	:: !EACH(HERE1) && WANTED -> goto over
	/* beside the round: all act on this view, and there is time for it, or there is not */
	:: fresh == view && view < DEATHS && EACH(READY1) -> d_step { freshen(view + 1) }
	od;
	skip;
	d_step {
		do
		:: i < RANKS ->
			assert(i == 0 || !IS_IN(members[view], i) ||
				data[AT(READ(view), memory[READ(view)], PLACE(i, view))] == view + 1);
			i++
		:: else -> break
		od;
		i = 0
#ifdef WITNESS
		assert(view < DEATHS)
#endif
	}
	do
	:: WANTED -> break
	:: fresh == view && view < DEATHS && EACH(READY1) -> d_step { freshen(view + 1) }
	:: timeout -> goto end
	od;
over:
	change();
	if
	:: fresh < view -> d_step { freshen(view) }
	:: else
	fi;
	ready[me] = view;
	if
	:: EACH(READY1) -> goto round
	:: !EACH(READY1) && WANTED -> goto over
	fi;
end:
	skip
}

active [RANKS - 1] proctype writer()
{
	byte me = _pid, view = 0;

round:
	may_die();
	data[THERE(me, view)] = view + 1;
	word[THERE(me, view)] = view + 1;
	do
	:: WANTED -> break
	:: mapped[me] == view && fresh > view -> /* beside the round */
		d_step { seen[2 * me + PANE(view + 1)] = memory[PANE(view + 1)]; mapped[me] = view + 1 }
	:: timeout -> goto end
	od;
over:
	may_die();
	change();
	may_die();
	if
	:: mapped[me] >= view
	:: mapped[me] < view && fresh >= view ->
#ifndef BREAK_NOT_MAPPED
		seen[2 * me + PANE(view)] = memory[PANE(view)];
#endif
		mapped[me] = view
	:: mapped[me] < view && fresh < view && WANTED -> goto over
	fi;
	may_die();
	ready[me] = view;
	if
	:: EACH(READY1) -> goto round
	:: !EACH(READY1) && WANTED -> goto over
	fi;
end:
	skip
}

/* Kernels whose process has ended, or is stopped: what they had before them, in their view. With BREAK_NO_QUIESCE also of
 * a process that has said it has stopped. */
active [RANKS - 1] proctype kernel()
{
	byte me = _pid - RANKS + 1, view;

#ifdef BREAK_NO_QUIESCE
end_idle:
	IS_IN(dead, me) || stopped[me];
	view = stopped[me] - (stopped[me] > 0);
#else
end_idle:
	IS_IN(dead, me);
	view = view_of[me];
#endif
	data[THERE(me, view)] = view + 1;
#ifndef DATA_ALONE
	word[THERE(me, view)] = view + 1;
#endif
}
