/* SPDX-License-Identifier: Apache-2.0
 *
 * Sleeping and waking: one rank waits for the words of SENDERS others, asleep on the event count of one slot and phase. Proves
 * that no wake-up is lost (claim 5): nobody ends asleep, without any time-out.
 *
 * AHEAD=1: a sender may be one round ahead of the receiver, as counts of an abandoned round allow. AHEAD=0: a sender starts
 * a round when the receiver has ended the one before, as dispatch and combine do.
 * DEATH=1: one sender may stop at any step. SLICES=1: a sleep ends by itself once nothing else can happen.
 */
#ifndef SENDERS
#define SENDERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef AHEAD
#define AHEAD 1
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef SLICES
#define SLICES 0
#endif

byte words[2 * SENDERS]; /* the epoch, by parity */
#define WORD(epoch, sender) words[((epoch) % 2) * SENDERS + (sender)]

byte rung; /* the futex */
bool waiters;
byte wake_at;
bool asleep; /* the kernel's side of it */

byte receiver_at;	/* the round that the receiver has begun */
byte receiver_done;	/* and ended */
byte sender_at[SENDERS]; /* the round whose word the sender has published */
bool dead[SENDERS];
bool killed;

#if SENDERS == 2
#define ALL(condition_0, condition_1, condition_2) (condition_0 && condition_1)
#else
#define ALL(condition_0, condition_1, condition_2) (condition_0 && condition_1 && condition_2)
#endif

#define ARRIVED(epoch) ALL(WORD(epoch, 0) == epoch, WORD(epoch, 1) == epoch, WORD(epoch, 2) == epoch)

/* May a sender begin this round? */
#if AHEAD
#define MAY_BEGIN(epoch) \
	(receiver_at >= (epoch)-1 && ALL(sender_at[0] >= (epoch)-1, sender_at[1] >= (epoch)-1, sender_at[2] >= (epoch)-1))
#else
#define MAY_BEGIN(epoch) (receiver_done >= (epoch)-1)
#endif

/* ---- things made wrong ---- */

#ifdef BREAK_READ_WAITERS_FIRST
#define WAITERS_FIRST true
#else
#define WAITERS_FIRST false
#endif

#ifdef BREAK_RING_BEFORE_WORD
#define RING_FIRST true
#else
#define RING_FIRST false
#endif

/* The wait counts from where the event count stands when it begins, and misses who came before. */
#ifdef BREAK_BASE_FROM_DOORBELL
#define TARGET(epoch) (rung + SENDERS)
#else
#define TARGET(epoch) ((epoch)*SENDERS)
#endif

/* Sleeps without a last look at the words. */
#ifdef BREAK_NO_LAST_LOOK
#define LAST_LOOK(arrived) false
#else
#define LAST_LOOK(arrived) (arrived)
#endif

/* Looks at the words before it takes the count to sleep on, not after. */
#ifdef BREAK_COUNT_AFTER_LOOK
#define COUNT_LATE true
#else
#define COUNT_LATE false
#endif

/* A store of waiters that is not sequentially consistent: the kernel's comparison overtakes it. */
#ifdef BREAK_WEAK_WAITERS
byte store_buffer; /* value + 1 */
#define SET_WAITERS(value) atomic { store_buffer == 0 -> store_buffer = (value) + 1 }

active proctype drain()
{
end:
	do
	:: d_step { store_buffer != 0 -> waiters = store_buffer - 1; store_buffer = 0 }
	od
}
#else
#define SET_WAITERS(value) waiters = value
#endif

/* ---- the sender: path_publish, arrival_publish and event_count_advance ---- */

#define PUBLISH WORD(epoch, me) = epoch; sender_at[me] = epoch

proctype sender(byte me)
{
	byte epoch = 1, count;
	bool seen_waiters;
	{
		do
		:: epoch > ROUNDS -> goto over
		:: epoch <= ROUNDS && killed -> goto over
		:: atomic { epoch <= ROUNDS && MAY_BEGIN(epoch) ->
			if
			:: RING_FIRST
			:: else -> PUBLISH
			fi };
			if
			:: WAITERS_FIRST -> seen_waiters = waiters
			:: else
			fi;
			d_step { rung++; count = rung }
			if
			:: !WAITERS_FIRST -> seen_waiters = waiters
			:: else
			fi;
			if
			:: atomic { seen_waiters && count >= wake_at -> count = 0; seen_waiters = false };
				asleep = false /* FUTEX_WAKE */
			:: atomic { !(seen_waiters && count >= wake_at) -> count = 0; seen_waiters = false }
			fi;
			atomic {
				if
				:: RING_FIRST -> PUBLISH
				:: else
				fi;
				epoch++
			}
		od
	} unless { dead[me] };
over:
	skip
}

/* ---- the receiver: wait_asleep, sleep_slice, event_count_listen and event_count_leave ---- */

proctype receiver()
{
	byte epoch = 1, count, target;

	do
	:: epoch > ROUNDS -> break
	:: else ->
		d_step { receiver_at = epoch; target = TARGET(epoch) }
		do
		:: atomic { ARRIVED(epoch) -> break }
		:: atomic { !ARRIVED(epoch) && killed -> goto over } /* told to the caller: the dead one, or one that gave up */
		:: atomic { !ARRIVED(epoch) && !killed -> skip }
			count = rung;
			wake_at = target;
			SET_WAITERS(1);
			if
			:: LAST_LOOK(ARRIVED(epoch))
			:: else ->
				if
				:: COUNT_LATE -> count = rung
				:: else
				fi;
				atomic { /* FUTEX_WAIT: compares and falls asleep in one */
					if
					:: rung == count -> asleep = true
					:: else
					fi
				};
				!asleep
			fi;
			count = 0;
			SET_WAITERS(0)
		od;
		assert(ARRIVED(epoch));
		d_step { receiver_done = epoch; epoch++ }
	od;
over:
	skip
}

/* A slice may be needed for a death alone: a sender that stopped between its word and its wake-up. */
#if SLICES
active proctype slices()
{
end:
	do
	:: atomic { timeout && asleep -> assert(killed); asleep = false }
	od
}
#endif

#if DEATH
active proctype death()
{
end:
	if
	:: d_step { dead[0] = true; killed = true }
	:: d_step { dead[1] = true; killed = true }
#if SENDERS > 2
	:: d_step { dead[2] = true; killed = true }
#endif
	fi
}
#endif

init
{
	byte i;
	atomic {
		run receiver();
		for (i : 0 .. SENDERS - 1) {
			run sender(i)
		}
	}
}
