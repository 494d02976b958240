/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows that a network writes into a GPU's memory (src/gpu/host/internode_rows.c): a completion lies in the host's memory, and what it tells of in the device's, where it may be seen later.
 * One rank sends rounds of a head and some runs to another, in one message; the other's proxy hears of parts in any order, flushes when all have come, and stores the arrival word; its
 * kernels wait for the word, read, and answer. That staging and landing are used again in time is internode.pml's.
 *
 * Proves that kernels read what the word stands for, and that the proxy reads heads that are there, where the driver orders nothing (ORDER=NONE, which needs the flush), where it orders what
 * the host was told of (ORDER=OWNER), and in pinned memory (ORDER=PINNED).
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef RUNS
#define RUNS 2 /* of a message, at most */
#endif
#define NONE 0
#define OWNER 1
#define PINNED 2
#ifndef ORDER
#define ORDER NONE
#endif

#define PARTS (RUNS + 1) /* the head is the first */

byte posted[PARTS], posted_runs;   /* what is on its way, and what the head says */
bool flying[PARTS];		   /* has not landed */
bool lags[PARTS];		   /* has landed in the device's memory; may not be seen */
bool untold[PARTS];		   /* has landed; the proxy has not heard of it */
byte seen[PARTS], seen_runs;	   /* by whoever reads */
bool head_came, flushes, tells;	   /* the proxy */
byte came, word, answered;

/* ---- things made wrong ---- */

#ifdef BREAK_NO_FLUSH
#define NEEDS_FLUSH false
#else
#define NEEDS_FLUSH (ORDER == NONE)
#endif

/* Heads are the device's, too. */
#ifdef BREAK_HEAD_ON_DEVICE
#define ON_DEVICE(p) (ORDER != PINNED)
#else
#define ON_DEVICE(p) (ORDER != PINNED && (p) > 0)
#endif

#ifdef BREAK_FLUSH_AT_HEAD
#define FLUSHES_AT_HEAD true
#else
#define FLUSHES_AT_HEAD false
#endif

/* ---- network and driver ---- */

inline appear(p)
{
	lags[p] = false;
	seen[p] = posted[p];
	if
	:: (p) == 0 -> seen_runs = posted_runs
	:: else
	fi
}

inline land(p)
{
	atomic { flying[p] ->
		flying[p] = false;
		untold[p] = true;
		if
		:: ON_DEVICE(p) -> lags[p] = true
		:: else -> appear(p)
		fi }
}

inline flush()
{
	for (i : 0 .. PARTS - 1) {
		if
		:: lags[i] -> appear(i)
		:: else
		fi
	};
	i = 0
}

#define part_steps(p) :: land(p) :: atomic { lags[p] -> appear(p) }
proctype network()
{
end:
	do
	part_steps(0)
	part_steps(1)
#if RUNS > 1
	part_steps(2)
#endif
	od
}

/* ---- the receiver's proxy ---- */

inline tell(p)
{
	atomic { untold[p] && (ORDER != OWNER || !lags[p]) ->
		untold[p] = false;
		if
		:: p == 0 ->
			head_came = true;
			if
			:: FLUSHES_AT_HEAD -> flush()
			:: else
			fi
		:: else -> came++
		fi;
		if
		:: head_came && came == seen_runs ->
			assert(seen[0] == word + 1); /* else it has read what a head is no more */
			came = 0; head_came = false;
			tells = true;
			flushes = NEEDS_FLUSH && !FLUSHES_AT_HEAD
		:: else
		fi }
}

proctype proxy()
{
	byte i;
end:
	do
#ifdef BREAK_WORD_BEFORE_FLUSH
	:: atomic { tells -> word = seen[0]; tells = false }
#else
	:: atomic { tells && !flushes -> word = seen[0]; tells = false }
#endif
	:: atomic { flushes -> flush(); flushes = false }
	:: tell(0)
	:: tell(1)
#if RUNS > 1
	:: tell(2)
#endif
	od
}

/* ---- kernels ---- */

inline post(p)
{
	atomic {
		assert(!flying[p] && !untold[p] && !lags[p]); /* two writes to one place, in any order */
		posted[p] = epoch;
		flying[p] = true
	}
}

proctype sender()
{
	byte epoch = 1, nr = 0, i = 0;
	do
	:: epoch <= ROUNDS ->
		answered == epoch - 1;
		atomic {
			nr = 0;
			do
			:: nr < RUNS -> nr++
			:: break
			od;
			posted_runs = nr
		};
		post(0);
		for (i : 1 .. nr) {
			post(i)
		};
		atomic { epoch++; i = 0 }
	:: else -> break
	od
}

proctype receiver()
{
	byte epoch = 1, i = 0;
	do
	:: epoch <= ROUNDS ->
		word == epoch;
		for (i : 1 .. seen_runs) {
			assert(seen[i] == epoch)
		};
		atomic { answered = epoch; epoch++; i = 0 }
	:: else -> break
	od;
#ifdef WITNESS
	assert(false)
#endif
	skip
}

init
{
	atomic { run network(); run proxy(); run sender(); run receiver() }
}
