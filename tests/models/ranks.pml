/* SPDX-License-Identifier: Apache-2.0
 *
 * What the models of both modes share: ranks, the network between them, waiting, leaving, dying, and slots.
 *
 *   rank p                      network                       rank q
 *   put(place, v)  ------>  flying[place] = v  ------>  seen[place] = v
 *                           lands at any time,          read by q
 *                           in any order
 *
 * One promise only is kept: a word lands after the data written before it at the same pair and phase. Stores through a
 * mapped window keep it by release and acquire, an engine by counting immediates; both do more than this network.
 *
 * Data is modelled by the epoch that wrote it. A reader asserts that it finds the epoch it waited for: nothing older
 * (the word ran ahead of the data) and nothing newer (the place was reused too early).
 *
 * Set from the command line:
 *   RANKS, SLOTS, ROUNDS
 *   FIRST         the first epoch; epochs wrap at WRAP
 *   RELEASE=0     rounds always end in combine, never in release
 *   DEATH=1       one rank may stop at any step; VICTIM: only this one
 *   EARLY_DATA=1  data is visible as soon as it is issued. What a rank does depends on words alone, and nothing hurts
 *                 reuse more than data that lands at once: so the proofs of reuse stay whole, in far fewer states. What
 *                 it hides, a word that runs ahead of its data, is left to the models without it.
 *   WITNESS       look for a run that comes to its end, to see that there is one
 *   BREAK_x       one thing is made wrong: the checker must find an error
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef FIRST
#define FIRST 1
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef EARLY_DATA
#define EARLY_DATA 0
#endif
#ifndef RELEASE
#define RELEASE 1
#endif

/* Epochs wrap, as 32-bit ones do. 0 in a place means that nothing was ever written there. */
#define WRAP 8
#define EPOCH(round) ((FIRST + (round)) % WRAP)
#define VALUE(epoch, mark) (2 * ((epoch) + 1) + (mark))
#define EPOCH_OF(value) ((value) / 2 - 1)
#define IS_EPOCH(value, epoch) ((value) / 2 == (epoch) + 1)
#define MARK_OF(value) ((value) % 2)

/* Kinds of places; data is even and its word follows it. COUNTS is used by high-throughput mode, once for each parity. */
#define ROWS 0
#define ROWS_WORD 1
#define RESULTS 2
#define RESULTS_WORD 3
#define COUNTS 4
#define COUNTS_WORD 5

/* The place of a kind that p writes in q's window for slot s. */
#define AT(kind, s, p, q) ((((kind) * SLOTS + (s)) * RANKS + (p)) * RANKS + (q))
#define NR_PLACES (NR_KINDS * SLOTS * RANKS * RANKS)

byte flying[NR_PLACES]; /* issued, not yet visible */
byte seen[NR_PLACES];	/* what the owner of the window reads */
#if NR_KINDS > 4
byte output[SLOTS * RANKS * RANKS]; /* high-throughput mode: received rows, by cell and not by source */
#endif

#define HERE 0
#define DEAD 1
#define GAVE_UP 2
#define LEFT 3
byte gone[RANKS];
bool killed;

/* ---- things made wrong ---- */

#ifdef BREAK_WORD_BEFORE_DATA
#define DATA_LANDED(kind, s, p, q) true
#else
#define DATA_LANDED(kind, s, p, q) (flying[AT((kind)-1, s, p, q)] == 0)
#endif

/* A wait that has seen a word missing and then its writer gone: the writer may have published and left in between. */
#ifdef BREAK_NO_SECOND_LOOK
#define SECOND_LOOK(arrived) false
#else
#define SECOND_LOOK(arrived) (arrived)
#endif

#ifdef BREAK_LEAVE_UNDRAINED
#define DRAINED true
#else
#define DRAINED (nr_flying[r] == 0)
#endif

#ifdef BREAK_SILENT_SURVIVOR
#define TELL_GAVE_UP skip
#else
#define TELL_GAVE_UP gone[r] = GAVE_UP
#endif

#ifdef BREAK_WAIT_FOR_ALL_BUT_ONE
#define MUST_WAIT(q, r) ((q) != ((r) + 1) % RANKS)
#else
#define MUST_WAIT(q, r) true
#endif

#ifdef BREAK_ONE_REGION_FOR_ALL_SLOTS
#define REGION(s) 0
#else
#define REGION(s) (s)
#endif

#ifdef BREAK_ZERO_WORDS
#define FIRST_WORD VALUE(0, 0)
#else
#define FIRST_WORD 0
#endif

/* ---- network ---- */

byte nr_flying[RANKS]; /* writes issued by a rank that have not landed */

/* Two writes in flight to one place could land in either order: that is a fault by itself. */
inline put(kind, slot, to, value)
{
	if
	:: to == r || (EARLY_DATA && kind % 2 == 0) -> LAND(kind, slot, r, to, value)
	:: else ->
		assert(flying[AT(kind, slot, r, to)] == 0);
		flying[AT(kind, slot, r, to)] = value;
		nr_flying[r]++
	fi
}

#define TAKE(kind) flying[AT(kind, s, p, q)] = 0; nr_flying[p]--

#define LANDING_DATA(kind) \
	d_step { flying[AT(kind, s, p, q)] != 0 -> LAND(kind, s, p, q, flying[AT(kind, s, p, q)]); TAKE(kind) }

#define LANDING_WORD(kind) \
	d_step { flying[AT(kind, s, p, q)] != 0 && DATA_LANDED(kind, s, p, q) -> \
		 seen[AT(kind, s, p, q)] = flying[AT(kind, s, p, q)]; TAKE(kind) }

proctype wire(byte s; byte p; byte q)
{
end:
	do
	:: LANDING_DATA(ROWS)
	:: LANDING_WORD(ROWS_WORD)
	:: LANDING_DATA(RESULTS)
	:: LANDING_WORD(RESULTS_WORD)
#if NR_KINDS > 4
	:: LANDING_DATA(COUNTS)
	:: LANDING_WORD(COUNTS_WORD)
	:: LANDING_DATA(COUNTS + 2)
	:: LANDING_WORD(COUNTS_WORD + 2)
#endif
	od
}

/* ---- waiting ---- */

/* Waits for the word of every rank, one after another. The inner `if` blocks: the rank has seen the word missing and goes
 * on when it arrives or when its writer is known to be gone. */
#define ARRIVED(kind, slot, epoch) (!MUST_WAIT(q, r) || IS_EPOCH(seen[AT(kind, slot, q, r)], epoch))

inline wait_for_all(kind, slot, epoch)
{
	do
	:: atomic { q == RANKS -> q = 0; break }
	:: atomic { q < RANKS && ARRIVED(kind, slot, epoch) -> q++ }
	:: atomic { q < RANKS && !ARRIVED(kind, slot, epoch) ->
		if
		:: ARRIVED(kind, slot, epoch) -> q++
		:: gone[q] != HERE ->
			if
			:: SECOND_LOOK(ARRIVED(kind, slot, epoch)) -> q++
			:: else -> goto gave_up
			fi
		fi }
	od
}

/* ---- what all ranks do alike without talking: the callers' side of the contract ---- */

/* How round i of slot s ends: 1 in combine, 2 in release. The first rank to ask decides, the last one clears the note,
 * so that states do not differ by what is past. */
byte ending[SLOTS * ROUNDS];
byte nr_asked[SLOTS * ROUNDS];

inline agree_on_ending()
{
	atomic {
		if
		:: ending[s * ROUNDS + round[s]] == 0 ->
			if
			:: ending[s * ROUNDS + round[s]] = 1
			:: RELEASE -> ending[s * ROUNDS + round[s]] = 2
			fi
		:: else
		fi;
		released[s] = ending[s * ROUNDS + round[s]] == 2;
		nr_asked[s * ROUNDS + round[s]]++;
		if
		:: nr_asked[s * ROUNDS + round[s]] == RANKS ->
			ending[s * ROUNDS + round[s]] = 0;
			nr_asked[s * ROUNDS + round[s]] = 0
		:: else
		fi
	}
}

/* Which slot the next half is called on: any order, the same on all ranks. */
#if SLOTS == 1
#define next_slot() skip
#define FINISHED (round[0] == ROUNDS)
#elif defined(BREAK_SLOT_ORDER)
#define FINISHED (round[0] == ROUNDS && round[1] == ROUNDS)
inline next_slot()
{
	atomic {
		if
		:: round[0] < ROUNDS -> s = 0
		:: round[1] < ROUNDS -> s = 1
		fi
	}
}
#else
#define FINISHED (round[0] == ROUNDS && round[1] == ROUNDS)
#define RING 16
byte order[RING]; /* slot + 1 */
byte nr_passed[RING];

inline next_slot()
{
	atomic {
		if
		:: order[position] == 0 && round[0] < ROUNDS -> order[position] = 1
		:: order[position] == 0 && round[1] < ROUNDS -> order[position] = 2
		:: else
		fi;
		s = order[position] - 1;
		nr_passed[position]++;
		if
		:: nr_passed[position] == RANKS -> order[position] = 0; nr_passed[position] = 0
		:: else
		fi;
		position = (position + 1) % RING
	}
}
#endif

/* ---- death, and the start ---- */

#if DEATH
#ifdef VICTIM
#define MORTAL(rank) ((rank) == VICTIM)
#else
#define MORTAL(rank) true
#endif

/* What the dead rank had in flight is lost from some moment on: what lands before that moment has come through. */
active proctype death()
{
	byte victim, i;
end:
	if
	:: d_step { MORTAL(0) && gone[0] == HERE -> gone[0] = DEAD; killed = true }
	:: d_step { MORTAL(1) && gone[1] == HERE -> gone[1] = DEAD; killed = true; victim = 1 }
#if RANKS > 2
	:: d_step { MORTAL(2) && gone[2] == HERE -> gone[2] = DEAD; killed = true; victim = 2 }
#endif
	fi;
	d_step {
		for (i : 0 .. NR_PLACES - 1) {
			if
			:: (i / RANKS) % RANKS == victim -> flying[i] = 0
			:: else
			fi
		}
		i = 0
	}
}
#define OR_DIE unless { gone[r] == DEAD }
#else
#define OR_DIE
#endif

/* A rank that comes to its end leaves once its own writes have landed. One that gives up must have had a reason. */
#define LEAVE DRAINED -> gone[r] = LEFT
#define GIVE_UP atomic { assert(killed); TELL_GAVE_UP }

/* WITNESS turns the question around: the checker must find a run that comes to its end after everything of interest. */
#ifdef WITNESS
bool witness_release, witness_abandon;
byte nr_ended;
#define NOTE(what) what = true
#define ENDED atomic { nr_ended++; assert(!(nr_ended == RANKS && WITNESSED)) }
#else
#define NOTE(what) skip
#define ENDED skip
#endif

init
{
	byte s, p, q;
	atomic {
		for (s : 0 .. SLOTS - 1) {
			for (p : 0 .. RANKS - 1) {
				for (q : 0 .. RANKS - 1) {
					START_PLACES;
					if
					:: p != q -> run wire(s, p, q)
					:: else
					fi
				}
			}
		}
		for (p : 0 .. RANKS - 1) {
			run rank(p)
		}
	}
}
