/* SPDX-License-Identifier: Apache-2.0
 *
 * A process joins (src/group/door.c, newcomer.c, gatherings.h): ranks 0 and 1 make rounds, and gather between two of them,
 * STEPS times. Place 2 is vacant. A newcomer has each of them get ready for it, in any order, and asks for a change of
 * members; it may die at any moment, and another may come after it. The members stop, agree (here in one step:
 * tests/unit/test_agreement.c searches the agreement itself) and act, each in its time, at different places of their
 * programs. Proves that a view has a newcomer where both are ready for that one; that it takes part from its first gathering
 * on, in which all are at one place of their programs; that nobody takes a part of an older gathering, or of an older
 * process, for one of this; and that nobody waits for ever.
 *
 * A part is a number on a board, in one of two places in turn; beside it, for the proof, who gave it, and where in its
 * program that one was. Of rounds there is a counter for each rank: who waits for a round of another waits for that.
 */
#ifndef STEPS
#define STEPS 3
#endif
#ifndef DEATHS
#define DEATHS 1 /* of newcomers: so many, and one more comes */
#endif
#define SKIPPED 3
#ifdef BREAK_ONE_JUMP /* the last newcomer's is all that is remembered */
#define ONE_JUMP true
#else
#define ONE_JUMP false
#endif
#define NEW 2 /* the place */
#define NEVER 255
#define BOARD(life, place, number) (((place) == NEW -> 2 + (life) : (place)) * 2 + (number) % 2)

byte part[2 * (3 + DEATHS)], part_step[2 * (3 + DEATHS)];
byte rounds[3 + DEATHS];  /* begun: of ranks 0 and 1, then of each life of rank 2 */
byte life;                /* of the newcomer: 0, 1, ... */
byte dead;                /* so many have died */
byte ready[2];            /* + 1: for which life all is prepared here */
bool go;                  /* the newcomer has all, and asks for a change */
byte begun[2];            /* gatherings, as records tell them */
bool stopped[2];
byte prepared[2];         /* as ready, when it stopped */
byte view;                /* the last that was agreed upon: */
bool has_new;
byte who, first;          /* its life; its first gathering */
byte acted[2];            /* views */
bool finished[2];
byte nr_served;

#ifdef BREAK_UNREADY
#define ALL_PREPARED (prepared[0] == life + 1 || prepared[1] == life + 1)
#else
#define ALL_PREPARED (prepared[0] == life + 1 && prepared[1] == life + 1)
#endif

/* Both have stopped: the next view. Who has come in and lives stays. */
inline agree()
{
	atomic {
		if
		:: stopped[0] && stopped[1] && acted[0] == view && acted[1] == view ->
			if
			:: has_new && dead == who -> skip
			:: has_new && dead > who -> has_new = false
			:: else
			fi;
			if
			:: !has_new && ALL_PREPARED && dead == life ->
				has_new = true;
				who = life;
				first = (begun[0] > begun[1] -> begun[0] : begun[1]) + SKIPPED
			:: else
			fi;
			view++
		:: else
		fi
	}
}

#define DIED (has_new && dead > who) /* its process has ended: seen at once */
#define WANTED (view > acted[me] || (stopped[1 - me] && acted[1 - me] == acted[me]) || DIED || \
	(go && !has_new && dead == life && ready[me] == life + 1))

/* tern_group_view_change */
inline change()
{
	atomic {
		begun[me] = number;
		prepared[me] = ready[me];
		stopped[me] = true
	}
	agree();
	view > acted[me];
	atomic {
		stopped[me] = false;
		acted[me] = view;
		if
		:: has_new && (!has || its != who) ->
			assert(prepared[me] == who + 1);
			its = who;
			entry = first;
			if
			:: ONE_JUMP || !to || number >= to || to == first ->
				from = first - SKIPPED;
				to = first
			:: else -> /* this rank has not come to the one before */
				from2 = first - SKIPPED;
				to2 = first
			fi
		:: else
		fi;
		has = has_new
	}
}

/* It takes part in the gathering of this number, or serves after that one. */
#ifdef BREAK_SERVE_AT_ONCE
#define SERVES has
#else
#define SERVES (has && complete >= entry)
#endif
#define TAKES_PART (has && number >= entry)

#ifdef BREAK_JUMP_AT_ONCE /* also one that is a gathering behind another */
#define JUMPS (to && number < to)
#else
#define JUMPS (to && number == from)
#endif

inline next_number()
{
	if
	:: JUMPS ->
		atomic {
			number = to;
			from = from2;
			to = to2;
			from2 = 0;
			to2 = 0
		}
	:: else -> number++
	fi
}

#define HERE(place) (part[BOARD(its, place, number)] == number)
#define ALL_HERE (HERE(1 - me) && (!TAKES_PART || HERE(NEW)))
#define ROUND_HERE (rounds[1 - me] > step && (!SERVES || rounds[NEW + its] > step))

active [2] proctype member()
{
	byte me = _pid, step, number, complete, entry = NEVER, from, to, from2, to2, its;
	bool has;

	do
	:: step < STEPS ->
		/* a round */
		rounds[me] = step + 1;
		do
		:: ROUND_HERE -> break
		:: !ROUND_HERE && WANTED -> change()
		od;
		step++;
		/* a gathering */
		next_number();
		atomic {
			part_step[BOARD(its, me, number)] = step;
			part[BOARD(its, me, number)] = number
		}
		do
		:: ALL_HERE -> break
		:: !ALL_HERE && WANTED -> change()
		od;
		atomic {
			assert(part_step[BOARD(its, 1 - me, number)] == step);
			complete = number
		}
	:: else -> break
	od;
	finished[me] = true;
end_of_program: /* it still answers */
	do
	:: WANTED -> change()
	od
}

/* The board of a process that comes is its own. */
active proctype newcomer()
{
	byte number, step;

again:
	go = false;
	do /* doors, in any order, and again as long as it takes */
	:: ready[0] != life + 1 -> ready[0] = life + 1
	:: ready[1] != life + 1 -> ready[1] = life + 1
	:: ready[0] == life + 1 && ready[1] == life + 1 -> break
#ifdef BREAK_UNREADY
	:: ready[0] == life + 1 -> break
#endif
	:: dead < DEATHS -> goto dies
	od;
	go = true;
	do
	:: has_new && who == life -> break
	:: dead < DEATHS -> goto dies
	od;
	atomic {
		number = first;
		part_step[BOARD(life, NEW, number)] = NEVER;
		part[BOARD(life, NEW, number)] = number
	}
	do
	:: part[BOARD(0, 0, number)] == number && part[BOARD(0, 1, number)] == number -> break
	:: dead < DEATHS -> goto dies
	:: finished[0] || finished[1] -> goto out /* there is no other gathering */
	od;
	atomic {
		step = part_step[BOARD(0, 0, number)];
		assert(step == part_step[BOARD(0, 1, number)]);
#ifdef BREAK_OWN_COUNT /* it begins where its program does */
		step = 0;
#endif
		nr_served++
	}
	do
	:: step < STEPS ->
		rounds[NEW + life] = step + 1;
		do
		:: rounds[0] > step && rounds[1] > step -> break
		:: dead < DEATHS -> goto dies
		od;
		step++;
		number++;
		atomic {
			part_step[BOARD(life, NEW, number)] = step;
			part[BOARD(life, NEW, number)] = number
		}
		do
		:: part[BOARD(0, 0, number)] == number && part[BOARD(0, 1, number)] == number -> break
		:: dead < DEATHS -> goto dies
		od;
		assert(part_step[BOARD(0, 0, number)] == step && part_step[BOARD(0, 1, number)] == step)
	:: else -> break
	od;
	goto out;
dies:
	atomic {
		go = false;
		dead++;
		life++
	}
	goto again;
out:
#ifdef WITNESS
	assert(nr_served == 0);
#endif
	skip
}
