/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gates (src/gpu/cuda/common/gate.cuh, include/tern_device.cuh): kernels of one rank that read rows while the dispatch still brings others, and a combine that takes y while it is made.
 *
 *   dispatch   two warps that each store a row, if it comes, and count it; who publishes how many there are, and zeroes the marks of y before; and who adds what is missing of a whole tile, at any
 *              time
 *              HIGH=1, high throughput: a row is awaited by its head, which its sender stores behind it; row 1 is a further place of row 0's, copied here, which takes its time; counts are
 *              the plan's, which has ended before the round begins
 *              FAR=1: between nodes, each row is a run of its own (groups.cuh). The head and the runs land and are reported in any order; the proxy stores which runs have come, then the head's
 *              epoch; a warp that has seen the epoch passes on which have come, until all have; the others copy rows out of landing
 *              HOPS=1, with FAR: the landing is a gateway's, and which of its runs have come its own to know; it stores the row in its place here, and a mark behind it, for which a warp waits
 *   reader     may run from when the dispatch has begun its round; waits for counts and for the tile; ends behind a wait for the dispatch's end
 *   maker      may run from when the reader has begun; waits for the reader's end, lets the combine start, stores y and marks its tile
 *   ending     a gated combine; or a release, behind the maker's end; then the next round
 *
 * Rows, counts and y are modelled by the round that wrote them. A round has 0 to 2 rows in its one tile, and may have no reader and no maker. Stores before a release are told in its order:
 * what a release or an acquire taken away would allow is a store told later than its word, which is what is made wrong here.
 */
#ifndef ROUNDS
#define ROUNDS 3
#endif
#define WHOLE 2 /* rows of a tile */
#ifdef FAR
#define WARPS 4 /* of a dispatch; the collecting one, too */
#else
#define WARPS 3
#endif

byte round, counted;       /* words */
byte ready, done;          /* of the tile; ready never goes back */
byte row[2], counts, of_counts, y;
byte begun, ended;         /* dispatches: have let the next kernel start; have ended */
byte nr[ROUNDS + 1];       /* ghost: rows of a round */
bool with[ROUNDS + 1];     /* ghost: somebody reads and makes */
byte warps[ROUNDS + 1];    /* of the dispatch that have ended */
byte reader_began, reader_ended, maker_let, maker_ended, round_over;

inline publish(r)
{
#ifdef BREAK_COUNTED_FIRST
	counted = r;
#endif
	counts = nr[r];
	of_counts = r;
#ifndef BREAK_MARKS_KEPT
	done = 0;
#endif
#ifndef BREAK_COUNTED_FIRST
	counted = r;
#endif
}

#ifdef HIGH
byte head, copied;         /* rounds of which row 0 has come, and has been copied to row 1 */

proctype sender(byte r)
{
#ifdef BREAK_HEAD_FIRST
	head = r;
	row[0] = r;
#else
	row[0] = r;
	head = r;
#endif
}

proctype copy(byte r)
{
	row[1] = row[0];
	copied = r;
}

/* Either place is counted when it is there; row 0 may be counted with row 1. */
proctype receiver(byte r)
{
	if
	:: nr[r] > 0 ->
		run sender(r);
		head == r;
		if
		:: nr[r] == 2 ->
			run copy(r);
#ifndef BREAK_COUNTED_UNDER_WAY
			copied == r;
#endif
		:: else
		fi;
		ready = ready + nr[r];
	:: else
	fi;
	warps[r] = warps[r] + 2;
}
#endif

#ifdef FAR
#define HEAD 2

chan reported = [3] of {byte}; /* to the proxy: a run's number, or HEAD */
byte landing[2];
byte head, whole;          /* words */
byte runs;                 /* a word: of round `head`, a bit each */
byte passed_on[2];         /* words of this GPU */

proctype lands(byte r; byte what)
{
#ifdef BREAK_REPORTED_FIRST
	reported!what;
	landing[what] = r;
#else
	landing[what] = r;
	reported!what;
#endif
}

active proctype proxy()
{
	byte r = 1, come, nr_come, what;
	bool has_head;

end:	do
	:: d_step {
		reported?what ->
		if
		:: what == HEAD -> has_head = true
		:: else ->
			come = come | (1 << what);
			nr_come++
		fi;
		what = 0
	   }
	   if
	   :: has_head ->
#ifdef BREAK_ALL_AT_HEAD
		come = 3;
#endif
#ifdef BREAK_EPOCH_FIRST
		head = r;
		runs = come;
#else
		runs = come;
		head = r;
#endif
		if
		:: nr_come == nr[r] ->
			d_step {
				whole = r;
				come = 0;
				nr_come = 0;
				has_head = false;
				r++
			}
		:: else
		fi
	   :: else
	   fi
	od
}

#ifdef HOPS
byte mark[2];

proctype gateway(byte r; byte i)
{
#ifndef BREAK_RUN_NOT_WAITED
	passed_on[i] == r;
#endif
#ifdef BREAK_MARK_FIRST
	mark[i] = r;
	row[i] = landing[i];
#else
	row[i] = landing[i];
	mark[i] = r;
#endif
}
#endif

proctype collector(byte r)
{
	byte seen;

	do
	:: whole == r ->
		passed_on[0] = r;
		passed_on[1] = r;
		break
	:: whole != r && runs & ~seen ->
		seen = runs;
		if
		:: seen & 1 -> passed_on[0] = r
		:: else
		fi;
		if
		:: seen & 2 -> passed_on[1] = r
		:: else
		fi
	od;
	warps[r]++;
}
#endif

proctype warp(byte r; byte i)
{
#ifdef FAR
	if
	:: i < nr[r] ->
#ifdef HOPS
		run gateway(r, i);
#ifndef BREAK_MARK_NOT_WAITED
		mark[i] == r;
#endif
#else
#ifndef BREAK_RUN_NOT_WAITED
		passed_on[i] == r;
#endif
#endif
	:: else
	fi;
#endif
	if
	:: i < nr[r] ->
#ifdef HOPS
		ready++;
#else
#ifdef BREAK_COUNTED_EARLY
		ready++;
		row[i] = r;
#else
#ifdef FAR
		row[i] = landing[i];
#else
		row[i] = r;
#endif
		ready++;
#endif
#endif
	:: else
	fi;
	warps[r]++;
}

proctype filler(byte r)
{
#ifndef BREAK_NOTHING_ADDED
	ready = ready + WHOLE - nr[r];
#endif
	warps[r]++;
}

/* The stream's dispatches. */
active proctype dispatch()
{
	byte r = 1;

	do
	:: r <= ROUNDS ->
		round_over == r - 1;
		if
		:: nr[r] = 0
		:: nr[r] = 1
		:: nr[r] = 2
		fi;
		if
		:: with[r] = true
#ifndef FAR /* nothing new without */
		:: with[r] = false
#endif
		fi;
#ifdef FAR
		if
		:: nr[r] > 0 -> run lands(r, 0)
		:: else
		fi;
		if
		:: nr[r] == 2 -> run lands(r, 1)
		:: else
		fi;
		reported!HEAD; /* where among them is a run's to choose */
#endif
#ifdef BREAK_LET_FIRST
		begun = r;
		round = r;
#else
		round = r;
		begun = r;
#endif
#ifdef FAR
		head == r; /* plans are there */
		run collector(r);
#endif
#ifdef HIGH
		run receiver(r);
#else
		run warp(r, 0);
		run warp(r, 1);
#endif
		run filler(r);
		publish(r);
		warps[r] == WARPS;
		ended = r;
		r++;
	:: else -> break
	od
}

active proctype reader()
{
	byte r = 1, mine, i;

	do
	:: r <= ROUNDS ->
		begun >= r;
		if
		:: with[r] ->
			mine = round;
			reader_began = r;
			counted >= mine;
			assert(of_counts == r && counts == nr[r]);
#ifndef BREAK_NOT_WAITED
			ready >= mine * WHOLE;
#endif
			i = 0;
			do
			:: i < nr[r] ->
				assert(row[i] == r);
				i++
			:: else -> break
			od;
#ifndef BREAK_READER_ENDS_FIRST
			ended >= r;
#endif
		:: else -> ended >= r
		fi;
		reader_began = r;
		reader_ended = r;
		r++;
	:: else -> break
	od
}

active proctype maker()
{
	byte r = 1;

	do
	:: r <= ROUNDS ->
		reader_began >= r;
#ifdef BREAK_LET_BEFORE_WAIT
		maker_let = r;
		reader_ended >= r;
#else
		reader_ended >= r;
		maker_let = r;
#endif
		if
		:: with[r] && nr[r] ->
#ifdef BREAK_MARKED_FIRST
			done++;
			y = r;
#else
			y = r;
			done++;
#endif
		:: else
		fi;
		maker_ended = r;
		r++;
	:: else -> break
	od
}

active proctype ending()
{
	byte r = 1;

	do
	:: r <= ROUNDS ->
		if
		:: maker_let >= r && with[r] -> /* gated */
			assert(ended >= r); /* what the dispatch leaves is read */
			if
			:: nr[r] ->
				done >= 1;
				assert(y == r);
			:: else
			fi;
			maker_ended >= r;
		:: maker_ended >= r /* released, or not gated */
		fi;
		round_over = r;
		r++;
	:: else -> break
	od;
#ifdef WITNESS
	assert(false);
#endif
}
