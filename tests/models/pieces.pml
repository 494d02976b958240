/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results between nodes in high-throughput mode (src/path/results.c): from an expert's rank to one home, over all slots. Results
 * leave staging in pieces from a small pool, each with an immediate; a note says how many there were. The home's proxy counts
 * pieces, and stores the combine word when the note is there and as many have landed. The network delivers pieces, notes and
 * reports in any order.
 *
 * Proves that a piece is not stored to while the network may read it, and that results are read after all of them have come
 * and before the next ones do. How many pieces a round has is left open. The home's dispatch word arrives at once.
 */
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef POOL
#define POOL 2
#endif
#define FIRST 1
#define MOST 2 /* pieces of a round */

byte slot_of[POOL], row_of[POOL], staged[POOL];
bool reading[POOL], flying[POOL];
byte note[SLOTS], note_epoch[SLOTS]; /* staged; epoch 0: free */
bool note_flying[SLOTS];

byte dispatched[SLOTS]; /* the home's dispatch word, at the expert's rank */
byte result[SLOTS * MOST];
byte came[SLOTS], announced[SLOTS], epoch_of[SLOTS]; /* struct coming; announced: pieces + 1, or 0 */
byte word[SLOTS];
byte nr_sent[SLOTS]; /* ghost */

#ifdef BREAK_NO_COMPLETION
#define IS_FREE(p) true
#else
#define IS_FREE(p) (!reading[p])
#endif

#ifdef BREAK_WORD_AT_NOTE
#define ALL_CAME(s) (announced[s] != 0)
#else
#define ALL_CAME(s) (announced[s] == came[s] + 1)
#endif

#ifdef BREAK_KEEP_COUNT
#define COUNT_LEFT(s) came[s]
#else
#define COUNT_LEFT(s) 0
#endif

#ifdef BREAK_RESULTS_BEFORE_DISPATCH
#define MAY_SEND true
#else
#define MAY_SEND (dispatched[slot] == epoch)
#endif

inline complete(s)
{
	assert(!announced[s] || came[s] < announced[s]); /* more than it announced */
	if
	:: ALL_CAME(s) -> word[s] = epoch_of[s]; came[s] = COUNT_LEFT(s); announced[s] = 0; epoch_of[s] = 0
	:: else
	fi
}

inline land(p)
{
	atomic { flying[p] ->
		flying[p] = false;
		result[slot_of[p] * MOST + row_of[p]] = staged[p];
		came[slot_of[p]]++;
		complete(slot_of[p]) }
}

inline report(p)
{
	atomic { reading[p] && !flying[p] -> reading[p] = false; slot_of[p] = 0; row_of[p] = 0; staged[p] = 0 }
}

inline land_note(s)
{
	atomic { note_flying[s] ->
		note_flying[s] = false;
		announced[s] = note[s] + 1;
		epoch_of[s] = note_epoch[s];
		note[s] = 0; note_epoch[s] = 0;
		complete(s) }
}

proctype network()
{
end:
	do
	:: land(0)
	:: report(0)
#if POOL > 1
	:: land(1)
	:: report(1)
#endif
	:: land_note(0)
#if SLOTS > 1
	:: land_note(1)
#endif
	od
}

inline send_piece()
{
	atomic {
		if
		:: IS_FREE(0) -> p = 0
#if POOL > 1
		:: IS_FREE(1) -> p = 1
#endif
		fi;
		assert(!reading[p]); /* the network still reads it */
		slot_of[p] = slot; row_of[p] = row; staged[p] = epoch;
		reading[p] = true; flying[p] = true;
		row++; p = 0
	}
}

proctype expert()
{
	byte epoch = FIRST, slot, row, nr, p;

	do
	:: epoch < FIRST + ROUNDS && slot < SLOTS ->
		atomic {
			MAY_SEND;
			if
			:: nr = 0
			:: nr = 1
			:: nr = MOST
			fi;
			nr_sent[slot] = nr
		};
		do
		:: row < nr -> send_piece()
		:: else -> break
		od;
		atomic {
			!note_epoch[slot] -> note[slot] = nr; note_epoch[slot] = epoch; note_flying[slot] = true;
			nr = 0; row = 0; slot++
		}
	:: epoch < FIRST + ROUNDS && slot == SLOTS -> atomic { slot = 0; epoch++ }
	:: else -> break
	od
}

inline read_results()
{
	atomic {
		word[slot] == epoch ->
		assert(nr_sent[slot] < 1 || result[slot * MOST] == epoch);
		assert(nr_sent[slot] < 2 || result[slot * MOST + 1] == epoch);
		slot++
	}
}

proctype home()
{
	byte epoch = FIRST, slot;

	do
	:: epoch < FIRST + ROUNDS ->
		do
		:: atomic { slot < SLOTS -> dispatched[slot] = epoch; slot++ }
		:: else -> slot = 0; break
		od;
		do
		:: slot < SLOTS -> read_results()
		:: else -> slot = 0; break
		od;
		epoch++
	:: else -> break
	od;
#ifdef WITNESS
	assert(false)
#endif
}

init
{
	atomic { run network(); run expert(); run home() }
}
