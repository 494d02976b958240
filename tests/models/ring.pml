/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of commands (src/engine/ring.h) with its bell (bell.h): WRITERS put COMMANDS each, one reader takes them and
 * sleeps when there are none. Proves that no entry is written while it is read or not yet read, that each command is taken
 * once and whole, that writers which find no room leave no hole, and that the reader sleeps through nothing. One step for
 * each load and store; an entry's bytes are two steps, so that they can be caught half done.
 *
 * SLEEPS=0: the reader never sleeps: more writers in the same number of states.
 */
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef COMMANDS
#define COMMANDS 3
#endif
#ifndef ENTRIES
#define ENTRIES 2
#endif
#ifndef SLEEPS
#define SLEEPS 1
#endif
#define TOTAL (WRITERS * COMMANDS)

/* Laps are 32 bits wide and wrap; here they wrap at LAPS. A fresh entry's 0 is no lap before the first wrap. */
#ifndef LAPS
#define LAPS 3
#endif
#define LAP(ticket) (((ticket) / ENTRIES + 1) % LAPS)

short room = ENTRIES;
byte tail, head;
byte turn[ENTRIES];
byte front[ENTRIES], back[ENTRIES]; /* the two halves of an entry: the number of the command, from 1 */
bool unread[ENTRIES];		    /* ghost: filled and not taken */
byte nr_taken[TOTAL + 1];	    /* ghost: of each command */

byte rung, waiters;
bool asleep;

/* ---- things made wrong ---- */

#ifdef BREAK_TICKET_FIRST /* a ticket is drawn, and given up where there is no room */
#define TICKET_FIRST true
#else
#define TICKET_FIRST false
#endif

#ifdef BREAK_NO_ROOM_CHECK
#define FOUND_ROOM(before) true
#else
#define FOUND_ROOM(before) ((before) > 0)
#endif

#ifdef BREAK_KEEP_ROOM /* who finds none does not put back what it took */
#define PUT_BACK 0
#else
#define PUT_BACK 1
#endif

#ifdef BREAK_TURN_FIRST
#define TURN_IS_FIRST true
#else
#define TURN_IS_FIRST false
#endif

#ifdef BREAK_ROOM_BEFORE_COPY
#define ROOM_FIRST true
#else
#define ROOM_FIRST false
#endif

#ifdef BREAK_FLAG_FOR_LAP /* filled or not, and nobody clears it */
#define TURN(ticket) 1
#else
#define TURN(ticket) LAP(ticket)
#endif

#ifdef BREAK_BELL_FIRST
#define BELL_FIRST true
#else
#define BELL_FIRST false
#endif

#ifdef BREAK_NO_LAST_LOOK
#define LAST_LOOK false
#else
#define LAST_LOOK (turn[head % ENTRIES] == TURN(head))
#endif

#ifdef BREAK_LISTEN_AFTER_LOOK
#define LISTEN_LATE true
#else
#define LISTEN_LATE false
#endif

/* Two that do no harm alone: each is guarded by the other's order. */
#ifdef BREAK_ANNOUNCE_LATE /* the sleeper is announced after its last look */
#define ANNOUNCE_LATE true
#else
#define ANNOUNCE_LATE false
#endif

#ifdef BREAK_READ_WAITERS_FIRST
#define WAITERS_FIRST true
#else
#define WAITERS_FIRST false
#endif

/* ---- writers ---- */

inline ring_bell()
{
	if
	:: WAITERS_FIRST -> seen = waiters; rung++
	:: else -> rung++; seen = waiters
	fi;
	if
	:: seen -> asleep = false /* the kernel's wake-up: of who sleeps now */
	:: else
	fi;
	seen = 0
}

inline fill_entry()
{
	atomic { assert(!unread[ticket % ENTRIES]); front[ticket % ENTRIES] = command };
	atomic { assert(!unread[ticket % ENTRIES]); back[ticket % ENTRIES] = command; unread[ticket % ENTRIES] = true }
}

inline put()
{
	do
	:: true ->
		if
		:: TICKET_FIRST -> atomic { ticket = tail; tail++ }
		:: else
		fi;
		atomic { before = room; room-- };
		if
		:: FOUND_ROOM(before) -> break
		:: else ->
			room = room + PUT_BACK;
			room > 0 /* the caller tries again later */
		fi
	od;
	if
	:: !TICKET_FIRST -> atomic { ticket = tail; tail++ }
	:: else
	fi;
	if
	:: TURN_IS_FIRST -> turn[ticket % ENTRIES] = TURN(ticket); fill_entry()
	:: else -> fill_entry(); turn[ticket % ENTRIES] = TURN(ticket)
	fi
}

proctype writer(byte w)
{
	byte i, ticket, command, seen;
	short before;

	do
	:: atomic { i < COMMANDS -> command = w * COMMANDS + i + 1 };
		if
		:: SLEEPS && BELL_FIRST -> ring_bell()
		:: else
		fi;
		put();
		if
		:: SLEEPS && !BELL_FIRST -> ring_bell()
		:: else
		fi;
		atomic { i++; ticket = 0; before = 0; command = 0 }
	:: atomic { i == COMMANDS -> break }
	od
}

/* ---- the reader ---- */

inline sleep()
{
	if
	:: LISTEN_LATE -> LAST_LOOK
	:: LISTEN_LATE -> !LAST_LOOK; waiters++; listened = rung; fall_asleep(); waiters--
	:: !LISTEN_LATE ->
		waiters = waiters + !ANNOUNCE_LATE;
		listened = rung;
		if
		:: LAST_LOOK -> waiters = waiters - !ANNOUNCE_LATE
		:: !LAST_LOOK -> waiters = waiters + ANNOUNCE_LATE; fall_asleep(); waiters--
		fi
	fi;
	listened = 0
}

/* The kernel compares and falls asleep in one step. */
inline fall_asleep()
{
	atomic {
		if
		:: rung == listened -> asleep = true
		:: else
		fi
	};
	!asleep
}

inline take()
{
	if
	:: ROOM_FIRST -> atomic { unread[head % ENTRIES] = false; room++ }
	:: else
	fi;
	got = front[head % ENTRIES];
	atomic {
		assert(got > 0 && got <= TOTAL && back[head % ENTRIES] == got);
		nr_taken[got]++;
		assert(nr_taken[got] == 1)
	};
	if
	:: !ROOM_FIRST -> atomic { unread[head % ENTRIES] = false; head++; room++ }
	:: else -> head++
	fi;
	got = 0
}

proctype reader()
{
	byte got, listened;

	do
	:: atomic { head == TOTAL -> break }
	:: atomic { head < TOTAL && turn[head % ENTRIES] == TURN(head) -> skip }; take()
	:: atomic { head < TOTAL && turn[head % ENTRIES] != TURN(head) -> skip };
		if
		:: SLEEPS -> sleep()
		:: else -> turn[head % ENTRIES] == TURN(head)
		fi
	od;
	assert(room <= ENTRIES);
#ifdef WITNESS
	assert(false)
#endif
}

init
{
	byte w;
	atomic {
		for (w : 0 .. WRITERS - 1) {
			run writer(w)
		}
		run reader()
	}
}
