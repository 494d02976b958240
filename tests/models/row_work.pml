/* SPDX-License-Identifier: Apache-2.0
 *
 * Work on rows by several threads (src/exchange/row_work.c): the thread that calls fills in entries of a ring, two others
 * and it itself take them. Proves that each op is done once, as it was filled in, that all are done when the work is finished,
 * that no thread is left asleep when the exchange closes, and that nothing waits for a thread that sleeps.
 */
#ifndef PLACES
#define PLACES 2
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef RING_AT
#define RING_AT 1
#endif

byte places[PLACES]; /* the number of the op that is filled in, from 1 */
byte offered, taken, nr_done;
byte made[OPS]; /* how often */
byte nr_asleep, nr_rings;
bool locked, closes;

/* One op, if there is one: each load and store a step, but for the exchange. */
inline run_next(at, ran)
{
	ran = false;
	at = taken;
	do
	:: at >= offered -> break
	:: else ->
#ifdef BREAK_PLAIN_TAKE
		taken = at + 1;
		ran = true;
		break
#else
		atomic {
			if
			:: taken == at -> taken++; ran = true; break
			:: else -> at = taken
			fi
		}
#endif
	od;
	if
	:: ran ->
#ifdef BREAK_DONE_EARLY
		atomic { nr_done++ };
#endif
		assert(places[at % PLACES] == at + 1);
		atomic { made[at]++; assert(made[at] == 1) };
#ifndef BREAK_DONE_EARLY
		atomic { nr_done++ }
#endif
	:: else
	fi
}

inline ring(closing)
{
	atomic { !locked -> locked = true };
	nr_rings++;
	closes = closing;
	locked = false
}

proctype worker()
{
	byte at, seen;
	bool ran;

	do
	:: run_next(at, ran);
		if
		:: ran
		:: else ->
			/* the condition: given up and taken again in one step with the lock */
			atomic { !locked -> locked = true };
			nr_asleep++;
#ifdef BREAK_SLEEP_UNSEEN
			locked = false;
			seen = nr_rings;
			nr_rings != seen;
			atomic { !locked -> locked = true };
#else
			if
			:: closes || nr_rings != seen
			:: else ->
				locked = false;
				atomic { !locked && (closes || nr_rings != seen) -> locked = true }
			fi;
#endif
			nr_asleep--;
			seen = nr_rings;
			if
			:: closes -> locked = false; break
			:: else -> locked = false
			fi
		fi
	od
}

byte told, finished;

inline finish(at, ran)
{
	do
	:: run_next(at, ran);
		if
		:: ran
		:: else -> break
		fi
	od;
#ifndef BREAK_NO_JOIN
	nr_done == told;
#endif
	finished = told
}

init {
	byte at, i;
	bool ran;

	atomic { run worker(); run worker(); };
	do
	:: told < OPS ->
#ifndef BREAK_REUSE
		if
		:: told - finished == PLACES -> finish(at, ran)
		:: else
		fi;
#endif
#ifdef BREAK_OFFER_FIRST
		offered = told + 1;
#endif
		places[told % PLACES] = told + 1;
		told++;
		offered = told;
		if
		:: told - finished == RING_AT && nr_asleep > 0 -> ring(false)
		:: else
		fi
	:: told == OPS -> break
	:: told > finished -> /* a half that ends */
		finish(at, ran);
		i = 0;
		do
		:: i < told -> assert(made[i] == 1); i++
		:: else -> break
		od
	od;
	finish(at, ran);
	i = 0;
	do
	:: i < OPS -> assert(made[i] == 1); i++
	:: else -> break
	od;
#ifdef WITNESS
	assert(false);
#endif
	ring(true)
}
