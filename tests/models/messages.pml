/* SPDX-License-Identifier: Apache-2.0
 *
 * Credits of two-sided messages (src/engine/message.c): a rank sends MESSAGES to a peer whose reader takes its time. Proves
 * that no more than CREDITS lie unread there, that no credit is lost, also where the transport puts a send off, and that
 * all messages come though the reader itself sends nothing.
 *
 *   sender: credits      network, in order      peer's proxy: inbox      reader: reads, returns ──► a heartbeat's header
 */
#ifndef CREDITS
#define CREDITS 3
#endif
#ifndef MESSAGES
#define MESSAGES 7
#endif

byte credits = CREDITS;
byte nr_sent, nr_read;
bool all_returned, receiver_done;
byte inbox;    /* filled slots; the reader's copy ends before it gives one back */
byte returned; /* unread_returned: added to by the reader, taken by the proxy */
chan there = [CREDITS + 1] of { bit };
chan back = [CREDITS + 1] of { byte }; /* credits in headers */

/* ---- things made wrong ---- */

#ifdef BREAK_RETURN_WHEN_ALL /* more than a peer without credits can ever wait for */
#define ENOUGH (CREDITS + 1)
#else
#define ENOUGH ((CREDITS + 1) / 2)
#endif

#ifdef BREAK_NO_RETURN
#define RETURNS false
#else
#define RETURNS true
#endif

#ifdef BREAK_RETURN_ON_ARRIVAL
#define ON_ARRIVAL 1
#else
#define ON_ARRIVAL 0
#endif

#ifdef BREAK_LOSE_ON_AGAIN
#define PUT_BACK(nr) 0
#else
#define PUT_BACK(nr) (nr)
#endif

#ifdef BREAK_PLAIN_EXCHANGE /* the proxy reads what is due, and clears it a step later */
#define TAKE_DUE due = returned; returned = 0
#else
#define TAKE_DUE atomic { due = returned; returned = 0 }
#endif

#ifdef BREAK_NO_CREDITS
#define HAS_CREDIT true
#else
#define HAS_CREDIT (credits > 0)
#endif

active proctype sender_proxy()
{
	byte given;

	do
	:: atomic { nr_sent < MESSAGES && HAS_CREDIT && nfull(there) -> there ! 0; credits = credits - (credits > 0); nr_sent++ }
	:: atomic { back ? given -> credits = credits + given; assert(credits <= CREDITS); given = 0 }
	:: atomic { receiver_done && empty(back) -> break }
	od;
	assert(credits + returned == CREDITS) /* wherever they were, they are all there */
}

active proctype receiver_proxy()
{
	byte due;
	bit what;

	do
	:: atomic { there ? what ->
		assert(inbox < CREDITS); /* else keep() calls the sender lost */
		inbox++;
		returned = returned + ON_ARRIVAL }
	:: atomic { RETURNS && returned >= ENOUGH -> skip };
		TAKE_DUE;
		if
		:: nfull(back) -> back ! due
		:: atomic { returned = returned + PUT_BACK(due) } /* put off */
		fi;
		due = 0
	:: atomic { all_returned && (returned < ENOUGH || !RETURNS) -> break }
	od;
	receiver_done = true
}

active proctype reader()
{
	do
	:: atomic { nr_read < MESSAGES && inbox > 0 -> inbox--; nr_read++ };
		atomic { returned = returned + 1 - ON_ARRIVAL }
	:: atomic { nr_read == MESSAGES -> all_returned = true; break }
	od;
#ifdef WITNESS
	assert(false)
#endif
}
