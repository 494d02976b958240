/* SPDX-License-Identifier: Apache-2.0
 *
 * High-throughput mode: counts first, then rows straight into their final place in the destination's output. Proves that
 * counts areas with two parities are safe, also with abandoned rounds (claim 3); that all ranks come to the same verdict; that rows of
 * an abandoned round never move; that output rows are never overwritten before their user is done with them (claim 4); and
 * that nobody waits for ever, also when a rank dies (claim 6).
 *
 * ABANDON=0: no round is over capacity. PLANS=1: every other round is dispatched with a plan, without counts. PLANS=2: every
 * other round combines a plan again, without rows. PLANS=3: likewise, as GPUs do: it begins with counts in place of words.
 * IN_A_ROW: all rounds but the first, in place of every other.
 */
#define NR_KINDS 8
#ifndef ABANDON
#define ABANDON 1
#endif
#ifndef PLANS
#define PLANS 0
#endif
#ifdef IN_A_ROW
#define WITH_PLAN (PLANS && round[s])
#else
#define WITH_PLAN (PLANS && round[s] % 2)
#endif
#define PLANNED (PLANS != 3 && WITH_PLAN)
#define REPLAYED (PLANS >= 2 && WITH_PLAN)
#define REPLAYED_BY_COUNTS (REPLAYED && !PLANNED)

/* Combined again before all have begun the round. */
#ifdef BREAK_NO_BEGINNING
#define BEGUN_BY_ALL !REPLAYED
#else
#define BEGUN_BY_ALL true
#endif

/* Rows land in the output, where the cell of a source moves from round to round, as ragged offsets do. Every cell is so
 * written by every source in turn: that p is done with a cell says nothing about its next writer. */
#define CELL(s, q, source, epoch) (((s) * RANKS + (q)) * RANKS + ((source) + (epoch)) % RANKS)
#define LAND(kind, s, p, q, value)						\
	if									\
	:: kind == ROWS -> output[CELL(s, q, p, EPOCH_OF(value))] = value	\
	:: else -> seen[AT(kind, s, p, q)] = value				\
	fi
#define START_PLACES								\
	seen[AT(ROWS_WORD, s, p, q)] = FIRST_WORD;				\
	seen[AT(RESULTS_WORD, s, p, q)] = FIRST_WORD;				\
	seen[AT(COUNTS_WORD, s, p, q)] = FIRST_WORD;				\
	seen[AT(COUNTS_WORD + 2, s, p, q)] = FIRST_WORD
#define WITNESSED (witness_release && (!ABANDON || witness_abandon))
#include "ranks.pml"

#ifdef BREAK_ONE_PARITY
#define PARITY(epoch) 0
#else
#define PARITY(epoch) ((epoch) % 2)
#endif

#ifdef BREAK_SKIP_MARKS
#define MARKS_AWAITED false
#else
#define MARKS_AWAITED released[s]
#endif

/* Rows are stored before all counts are there. */
#ifdef BREAK_ROWS_BEFORE_COUNTS
#define ROWS_FIRST true
#else
#define ROWS_FIRST false
#endif

/* A home gets its combine word when its own rows of y were read, not when all were. */
#ifdef BREAK_EARLY_RESULTS_WORD
#define EARLY true
#else
#define EARLY false
#endif

/* The capacity is judged by what this rank alone will receive. */
#ifdef BREAK_OWN_VERDICT
#define JUDGED(q) ((q) == r)
#else
#define JUDGED(q) true
#endif

/* The ghost of the verdict of round i of slot s: 1 go, 2 abandon. Cleared by the last rank. */
byte verdict[SLOTS * ROUNDS];
byte nr_judged[SLOTS * ROUNDS];

#define NOW EPOCH(round[s])

inline send_rows()
{
	for (q : 0 .. RANKS - 1) {
		if
		:: !REPLAYED -> put(ROWS, s, q, VALUE(NOW, 0))
		:: else
		fi;
		put(ROWS_WORD, s, q, VALUE(NOW, 0))
	}
	q = 0
}

/* The mark of a counts value: "with my rows, some rank is over its capacity". That one rank may say so is enough for
 * verdicts to differ. */
inline send_counts()
{
	atomic {
		if
		:: over = false
		:: ABANDON && !REPLAYED && r == 0 -> over = true
		fi;
		for (q : 0 .. RANKS - 1) {
			put(COUNTS + 2 * PARITY(NOW), s, q, VALUE(NOW, over));
			put(COUNTS_WORD + 2 * PARITY(NOW), s, q, VALUE(NOW, 0))
		}
		q = 0;
		over = false
	}
}

inline judge()
{
	atomic {
		for (q : 0 .. RANKS - 1) {
			assert(IS_EPOCH(seen[AT(COUNTS + 2 * PARITY(NOW), s, q, r)], NOW));
			over = over || (JUDGED(q) && MARK_OF(seen[AT(COUNTS + 2 * PARITY(NOW), s, q, r)]));
			seen[AT(COUNTS + 2 * PARITY(NOW), s, q, r)] = VALUE(NOW, 0) /* of no further use: fewer states */
		}
		q = 0;
		assert(verdict[s * ROUNDS + round[s]] == 0 || verdict[s * ROUNDS + round[s]] == 1 + over);
		verdict[s * ROUNDS + round[s]] = 1 + over;
		nr_judged[s * ROUNDS + round[s]]++;
		if
		:: nr_judged[s * ROUNDS + round[s]] == RANKS ->
			verdict[s * ROUNDS + round[s]] = 0;
			nr_judged[s * ROUNDS + round[s]] = 0
		:: else
		fi
	}
}

inline dispatch_send()
{
	if
	:: MARKS_AWAITED -> wait_for_all(RESULTS_WORD, s, EPOCH(round[s] - 1))
	:: else
	fi;
	released[s] = false;
	if
	:: PLANNED
	:: else ->
		send_counts();
		if
		:: ROWS_FIRST -> atomic { send_rows() }
		:: else
		fi;
		if
		:: BEGUN_BY_ALL || !REPLAYED ->
			wait_for_all(COUNTS_WORD + 2 * PARITY(NOW), s, NOW);
			judge()
		:: else
		fi
	fi;
	if
	:: atomic { over -> NOTE(witness_abandon); assert(!ROWS_FIRST); over = false; round[s]++ }
	:: atomic { !over ->
		if
		:: (!ROWS_FIRST || PLANNED) && !REPLAYED_BY_COUNTS -> send_rows()
		:: else
		fi;
		half[s] = 1 }
	fi
}

inline dispatch_recv()
{
	if
	:: BEGUN_BY_ALL && !REPLAYED_BY_COUNTS -> wait_for_all(ROWS_WORD, s, NOW)
	:: else
	fi
}

/* Reads the whole output: the experts do so, and combine_send does when y is stored over it. */
inline read_output()
{
	atomic {
		for (q : 0 .. RANKS - 1) {
			assert(REPLAYED || IS_EPOCH(output[CELL(s, r, q, NOW)], NOW))
		}
		q = 0
	}
}

inline results_words()
{
	atomic {
		for (q : 0 .. RANKS - 1) {
			put(RESULTS_WORD, s, q, VALUE(NOW, released[s]))
		}
		q = 0
	}
}

inline combine_send()
{
	if
	:: !EARLY ->
		atomic {
			for (q : 0 .. RANKS - 1) {
				assert(REPLAYED || IS_EPOCH(output[CELL(s, r, q, NOW)], NOW));
				put(RESULTS, s, q, VALUE(NOW, 0))
			}
			q = 0
		};
		results_words()
	:: else -> /* the other homes first, one after another, this rank's own rows last */
		do
		:: atomic { q < RANKS ->
			assert(REPLAYED || IS_EPOCH(output[CELL(s, r, (r + 1 + q) % RANKS, NOW)], NOW));
			put(RESULTS, s, (r + 1 + q) % RANKS, VALUE(NOW, 0));
			put(RESULTS_WORD, s, (r + 1 + q) % RANKS, VALUE(NOW, 0));
			q++ }
		:: atomic { q == RANKS -> q = 0; break }
		od
	fi
}

inline combine_recv()
{
	wait_for_all(RESULTS_WORD, s, NOW);
	atomic {
		for (q : 0 .. RANKS - 1) {
			assert(IS_EPOCH(seen[AT(RESULTS, s, q, r)], NOW));
			assert(MARK_OF(seen[AT(RESULTS_WORD, s, q, r)]) == 0)
		}
		q = 0
	}
}

proctype rank(byte r)
{
	byte round[SLOTS], half[SLOTS], s, q, position;
	bool released[SLOTS], over;
	{
		do
		:: atomic { FINISHED -> LEAVE; goto left }
		:: else ->
			next_slot();
			if
			:: half[s] == 0 -> dispatch_send()
			:: half[s] == 1 -> dispatch_recv(); read_output(); agree_on_ending(); half[s] = 2
			:: half[s] == 2 && released[s] ->
				read_output();
				results_words();
				atomic { NOTE(witness_release); round[s]++; half[s] = 0 }
			:: half[s] == 2 && !released[s] -> combine_send(); half[s] = 3
			:: half[s] == 3 -> combine_recv(); atomic { round[s]++; half[s] = 0 }
			fi
		od;
gave_up:
		GIVE_UP
	} OR_DIE;
left:
	skip;
	ENDED
}
