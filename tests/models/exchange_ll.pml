/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency mode: send without asking, no barriers. Proves that regions are reused only after they were read (claims 1
 * and 2), that no word is overwritten before it was seen, that nobody waits for ever, also when a rank dies (claim 6), and that a rank may leave
 * as soon as its own last half is done.
 *
 * PLANS=2: every other round combines a plan again: its dispatch is words alone. IN_A_ROW: all but the first do.
 */
#define NR_KINDS 4
#define LAND(kind, s, p, q, value) seen[AT(kind, s, p, q)] = value
#define START_PLACES seen[AT(ROWS_WORD, s, p, q)] = FIRST_WORD; seen[AT(RESULTS_WORD, s, p, q)] = FIRST_WORD
#define WITNESSED witness_release
#include "ranks.pml"

#ifndef PLANS
#define PLANS 0
#endif
#ifdef IN_A_ROW
#define WITH_PLAN (PLANS && round[s])
#else
#define WITH_PLAN (PLANS && round[s] % 2)
#endif
#define REPLAYED (PLANS == 2 && WITH_PLAN)

/* Combined again before all have begun the round. */
#ifdef BREAK_NO_BEGINNING
#define BEGUN_BY_ALL !REPLAYED
#else
#define BEGUN_BY_ALL true
#endif

#ifdef BREAK_SKIP_MARKS
#define MARKS_AWAITED false
#else
#define MARKS_AWAITED released[s]
#endif

/* Publishes "I am done with your rows" before their headers were read for the last time. Each home has its word as soon
 * as its own rows were read and its results are stored. */
#ifdef BREAK_EARLY_RESULTS_WORD
#define EARLY true
#else
#define EARLY false
#endif

/* Goes on to the next round with the results still unread. */
#ifdef BREAK_NEXT_ROUND_BEFORE_RESULTS
#define RESULTS_LATE true
#else
#define RESULTS_LATE false
#endif

inline dispatch_send()
{
	if
	:: MARKS_AWAITED -> wait_for_all(RESULTS_WORD, s, EPOCH(round[s] - 1))
	:: else
	fi;
	atomic { released[s] = false; q = 0 }
	do
	:: q < RANKS ->
		atomic {
			if
			:: !REPLAYED -> put(ROWS, REGION(s), q, VALUE(EPOCH(round[s]), 0))
			:: else
			fi;
			put(ROWS_WORD, s, q, VALUE(EPOCH(round[s]), 0));
			q++
		}
	:: else -> q = 0; break
	od
}

inline results_words()
{
	atomic {
		for (q : 0 .. RANKS - 1) {
			put(RESULTS_WORD, s, q, VALUE(EPOCH(round[s]), released[s]))
		}
		q = 0
	}
}

inline read_rows()
{
	atomic {
		for (q : 0 .. RANKS - 1) {
			assert(REPLAYED || IS_EPOCH(seen[AT(ROWS, REGION(s), q, r)], EPOCH(round[s])))
		}
		q = 0
	}
}

/* Rows are copied out to the rank's own output; their headers stay in the region, and combine_send reads them again. */
inline dispatch_recv()
{
	if
	:: BEGUN_BY_ALL -> wait_for_all(ROWS_WORD, s, EPOCH(round[s]))
	:: else
	fi;
	read_rows()
}

inline combine_send()
{
	if
	:: EARLY -> results_words()
	:: else
	fi;
	do
	:: q < RANKS ->
		atomic {
			assert(REPLAYED || IS_EPOCH(seen[AT(ROWS, REGION(s), q, r)], EPOCH(round[s])));
			put(RESULTS, REGION(s), q, VALUE(EPOCH(round[s]), 0));
			if
			:: !EARLY -> put(RESULTS_WORD, s, q, VALUE(EPOCH(round[s]), 0))
			:: else
			fi;
			q++
		}
	:: else -> q = 0; break
	od
}

inline read_results(epoch)
{
	atomic {
		for (q : 0 .. RANKS - 1) {
			assert(IS_EPOCH(seen[AT(RESULTS, REGION(s), q, r)], epoch));
			assert(MARK_OF(seen[AT(RESULTS_WORD, s, q, r)]) == 0)
		}
		q = 0
	}
}

inline combine_recv()
{
	wait_for_all(RESULTS_WORD, s, EPOCH(round[s]));
	if
	:: RESULTS_LATE && round[s] + 1 < ROUNDS ->
		round[s]++;
		dispatch_send();
		read_results(EPOCH(round[s] - 1));
		half[s] = 1
	:: else ->
		read_results(EPOCH(round[s]));
		round[s]++;
		half[s] = 0
	fi
}

proctype rank(byte r)
{
	byte round[SLOTS], half[SLOTS], s, q, position;
	bool released[SLOTS];
	{
		do
		:: atomic { FINISHED -> LEAVE; goto left }
		:: else ->
			next_slot();
			if
			:: half[s] == 0 -> dispatch_send(); half[s] = 1
			:: half[s] == 1 -> dispatch_recv(); agree_on_ending(); half[s] = 2
			:: half[s] == 2 && released[s] ->
				results_words();
				d_step { NOTE(witness_release); round[s]++; half[s] = 0 }
			:: half[s] == 2 && !released[s] -> combine_send(); half[s] = 3
			:: half[s] == 3 -> combine_recv()
			fi
		od;
gave_up:
		GIVE_UP
	} OR_DIE;
left:
	skip;
	ENDED
}
