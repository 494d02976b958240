/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchange's path through an engine (src/path/path_engine.c), between two ranks. What a rank sends in a phase leaves a staging
 * copy as one write, which the network may read until it reports its end; an immediate with a few bits of the epoch follows
 * the bytes; the receiver's proxy makes the whole arrival word from it. Proves that staging is not stored to while the network
 * may read it, that a reader finds the bytes of its epoch, and that the proxy adds the right upper bits, however many rounds
 * were abandoned. Writes, immediates and reports come in any order; bytes come before their own immediate.
 *
 * COUNTS=1: high throughput, where counts go first and a round may be abandoned. BITS: of the epoch in an immediate.
 */
#ifndef COUNTS
#define COUNTS 0
#endif
#ifndef ROUNDS
#define ROUNDS 4
#endif
#ifndef BITS
#define BITS 3
#endif
#define FIRST 2
#define MASK ((1 << BITS) - 1)

#define DISPATCH 0
#define COMBINE 1
#define COUNTS_EVEN 2
#if COUNTS
#define NR_KINDS 4
#else
#define NR_KINDS 2
#endif
#define AT(kind, from) (2 * (kind) + (from))

byte staging[2 * NR_KINDS];   /* the epoch that was stored there */
bool reading[2 * NR_KINDS];   /* the write is under way: the network may read its source */
bool flying[2 * NR_KINDS];    /* its bytes have not landed */
bool unreported[2 * NR_KINDS]; /* landed, and the sender's proxy has not counted it */
byte window[2 * NR_KINDS];    /* what has landed, at the other rank */
byte word[2 * NR_KINDS];      /* arrival words, at the other rank */
chan immediates[2 * NR_KINDS] = [2] of { byte, byte }; /* low bits; ghost: the whole epoch */
byte verdict[ROUNDS];	      /* ghost: 1 go, 2 abandon */

/* ---- things made wrong ---- */

#ifdef BREAK_NO_BEGIN
#define MAY_BEGIN(kind) true
#else
#define MAY_BEGIN(kind) (!reading[AT(kind, r)])
#endif

#ifdef BREAK_IMMEDIATE_FIRST
#define BYTES_FIRST false
#else
#define BYTES_FIRST true
#endif

/* The upper bits are those of the last word of the same kind, also where rounds may have been abandoned since. */
#ifdef BREAK_OWN_WORD
#define BY_COUNTS false
#else
#define BY_COUNTS COUNTS
#endif

/* The next epoch with these bits, and not the nearest: as if counts never came ahead of what is left of a round. */
#ifdef BREAK_NEVER_BACK
#define IS_BEHIND(ahead) false
#else
#define IS_BEHIND(ahead) ((ahead) >= 1 << (BITS - 1))
#endif

#define LATER(a, b) ((a) > (b) -> (a) : (b))
#if COUNTS
#define LAST_COUNTS(from) LATER(word[AT(COUNTS_EVEN, from)], word[AT(COUNTS_EVEN + 1, from)])
#else
#define LAST_COUNTS(from) 0
#endif

/* ---- the engines ---- */

/* Bytes land, the immediate goes to the receiver's proxy, the end to the sender's: in this order for the first two alone. */
inline land(at)
{
	atomic { flying[at] -> window[at] = staging[at]; flying[at] = false; unreported[at] = true;
		if
		:: BYTES_FIRST -> immediates[at] ! staging[at] & MASK, staging[at]
		:: else
		fi }
}

inline report(at)
{
	atomic { unreported[at] -> unreported[at] = false; reading[at] = false }
}

inline deliver(at, from)
{
	atomic { immediates[at] ? bits, whole ->
		reached = (BY_COUNTS -> LAST_COUNTS(from) : word[at]);
		bits = (bits - reached) & MASK;
		word[at] = reached + bits - (IS_BEHIND(bits) -> 1 << BITS : 0);
		assert(word[at] == whole);
		bits = 0; whole = 0; reached = 0 }
}

proctype network(byte from)
{
	byte bits, whole, reached;
end:
	do
	:: land(AT(DISPATCH, from))
	:: land(AT(COMBINE, from))
	:: report(AT(DISPATCH, from))
	:: report(AT(COMBINE, from))
	:: deliver(AT(DISPATCH, from), from)
	:: deliver(AT(COMBINE, from), from)
#if COUNTS
	:: land(AT(COUNTS_EVEN, from))
	:: land(AT(COUNTS_EVEN + 1, from))
	:: report(AT(COUNTS_EVEN, from))
	:: report(AT(COUNTS_EVEN + 1, from))
	:: deliver(AT(COUNTS_EVEN, from), from)
	:: deliver(AT(COUNTS_EVEN + 1, from), from)
#endif
	od
}

/* ---- the ranks ---- */

inline store_and_publish(kind)
{
	MAY_BEGIN(kind);
	atomic {
		assert(!reading[AT(kind, r)]); /* the network still reads it */
		staging[AT(kind, r)] = epoch
	};
	atomic {
		assert(!flying[AT(kind, r)]); /* two writes to one place, in any order */
		reading[AT(kind, r)] = true;
		flying[AT(kind, r)] = true;
		if
		:: BYTES_FIRST
		:: else -> immediates[AT(kind, r)] ! epoch & MASK, epoch
		fi
	}
}

inline wait_and_read(kind)
{
	atomic {
		word[AT(kind, 1 - r)] == epoch -> assert(window[AT(kind, 1 - r)] == epoch)
	}
}

/* Both judge the same counts. */
inline judge()
{
	atomic {
		if
		:: verdict[epoch - FIRST] == 0 ->
			if
			:: verdict[epoch - FIRST] = 1
			:: verdict[epoch - FIRST] = 2
			fi
		:: else
		fi;
		go = verdict[epoch - FIRST] == 1
	}
}

proctype rank(byte r)
{
	byte epoch = FIRST;
	bool go = true;

	do
	:: epoch < FIRST + ROUNDS ->
#if COUNTS
		store_and_publish(COUNTS_EVEN + epoch % 2);
		wait_and_read(COUNTS_EVEN + epoch % 2);
		judge();
#endif
		if
		:: go ->
			store_and_publish(DISPATCH);
			wait_and_read(DISPATCH);
			store_and_publish(COMBINE);
			wait_and_read(COMBINE)
		:: else
		fi;
		epoch++
	:: else -> break
	od;
#ifdef WITNESS
	assert(false)
#endif
}

init
{
	byte at;
	atomic {
		for (at : 0 .. 2 * NR_KINDS - 1) {
			word[at] = FIRST - 1
		}
		run network(0);
		run network(1);
		run rank(0);
		run rank(1)
	}
}
