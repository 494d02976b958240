/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on other nodes as GPUs reach them (src/gpu/cuda/internode/internode.cuh, src/gpu/host/internode.c), between two ranks: kernels store a message to staging, in parts, and commands for them to a ring
 * that tells them nothing back; the engine's proxy takes these and writes each part from staging to the other rank's landing; that rank's proxy counts what came, and stores an arrival
 * word when the head and as many runs as it says are there; kernels wait for the word, then read. A round's kernels run one after the other; the slots' streams beside each other. The
 * network lands, tells and reports parts in any order; a part's bytes come before it is told.
 *
 * Proves that staging is not stored to before the network has done with it, that an entry of the ring is not written before it was read, that what is read in landing is of the round
 * that was waited for, also a while after, and that words of a kind come in order. COUNTS=1: high throughput, where counts go first, in two parities, and a round may be abandoned, or
 * released, which sends no combine. DEATH=1: rank 1 ends anywhere; rank 0 ends too, and takes what came before it was told.
 */
#ifndef COUNTS
#define COUNTS 0
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef RUNS
#define RUNS 1 /* of rank 0's dispatch and rank 1's combine, at most: all that a message has beside its head */
#endif
#ifndef ENTRIES
#define ENTRIES (SLOTS * (NR_KINDS + RUNS)) /* a slot's last message of each kind */
#endif
#ifndef TOGETHER
#define TOGETHER 0 /* 1: parts land, are told and reported in one step: for what is about the ring alone */
#endif
#define FIRST 1

#define DISPATCH 0
#define COMBINE 1
#define COUNTS_EVEN 2
#if COUNTS
#define NR_KINDS 4
#else
#define NR_KINDS 2
#endif
#define NR_MESSAGES (2 * SLOTS * NR_KINDS)
#define MESSAGE(from, slot, kind) (((from) * SLOTS + (slot)) * NR_KINDS + (kind))
#define HEAD(m) (2 * (m))
#define RUN(m) (2 * (m) + 1)
#define NOTHING 255

byte staging[2 * NR_MESSAGES]; /* the epoch that was stored there */
byte staged_runs[NR_MESSAGES]; /* what the head says */
byte landing[2 * NR_MESSAGES];
byte landed_runs[NR_MESSAGES];
bool busy[2 * NR_MESSAGES];	 /* a command for it has been rung, and its end is not counted: the network may read it */
bool flying[2 * NR_MESSAGES];	 /* posted; has not landed */
bool untold[2 * NR_MESSAGES];	 /* landed; its immediate has not been taken */
bool unreported[2 * NR_MESSAGES]; /* has ended; not counted */
byte nr_open[NR_MESSAGES];	 /* begun less ended, of a kind */
byte came[NR_MESSAGES];		 /* struct coming */
bool head_came[NR_MESSAGES];
byte word[NR_MESSAGES];

byte entry[2 * ENTRIES], turn[2 * ENTRIES];
byte tickets[2], taken[2];
bool lost;		/* rank 1, as rank 0's kernels are told */
bool dead;		/* rank 1 */
byte gave_up[NR_MESSAGES]; /* ghost: the epoch that rank 0 waits for no more */
byte verdict[SLOTS * ROUNDS]; /* ghost: 1 go, 2 abandon, 3 release */

/* ---- things made wrong ---- */

#ifdef BREAK_NO_STAGING_WAIT
#define IS_FREE(m) true
#else
#define IS_FREE(m) (nr_open[m] == 0)
#endif

#ifdef BREAK_COMBINE_NOT_WAITED
#define COMBINE_FREE true
#else
#define COMBINE_FREE IS_FREE(MESSAGE(r, slot, COMBINE))
#endif

#ifdef BREAK_WORD_AT_HEAD
#define ALL_CAME(m) head_came[m]
#else
#define ALL_CAME(m) (head_came[m] && came[m] == landed_runs[m])
#endif

#ifdef BREAK_KEEP_COUNT
#define COUNT_LEFT(m) came[m]
#else
#define COUNT_LEFT(m) 0
#endif

/* As pieces in a window would be read. */
#ifdef BREAK_NO_WORD
#define HAS_COME(m) (landing[HEAD(m)] == epoch)
#else
#define HAS_COME(m) (word[m] == epoch)
#endif

#ifdef BREAK_ONE_PARITY
#define COUNTS_OF(epoch) COUNTS_EVEN
#else
#define COUNTS_OF(epoch) (COUNTS_EVEN + (epoch) % 2)
#endif

#ifdef BREAK_SILENCE_FOR_NOTHING
#define SENDS(nr) ((nr) > 0)
#else
#define SENDS(nr) true
#endif

#ifdef BREAK_NO_SECOND_LOOK
#define COMES_YET(m) false
#else
#define COMES_YET(m) HAS_COME(m)
#endif

/* Of what rank 1 has sent, nothing is under way. */
#define UNDER_WAY(p) (flying[p] || untold[p])
#define ALL_ROWS_IN (!UNDER_WAY(HEAD(MESSAGE(1, 0, DISPATCH))) && !UNDER_WAY(HEAD(MESSAGE(1, 0, COMBINE))) && !UNDER_WAY(RUN(MESSAGE(1, 0, COMBINE))))
#if COUNTS
#define ALL_IN (ALL_ROWS_IN && !UNDER_WAY(HEAD(MESSAGE(1, 0, COUNTS_EVEN))) && !UNDER_WAY(HEAD(MESSAGE(1, 0, COUNTS_EVEN + 1))))
#else
#define ALL_IN ALL_ROWS_IN
#endif

/* Words of a lost rank that are still to be made come first. */
#ifdef BREAK_LOST_FIRST
#define MAY_TELL true
#else
#define MAY_TELL ALL_IN
#endif

#ifdef BREAK_FAILED_UNCOUNTED
#define COUNTS_FAILED false
#else
#define COUNTS_FAILED true
#endif

/* ---- engines and network ---- */

/* Commands in the order of their tickets: the next entry is there when its turn is this lap's. */
inline take(r)
{
	atomic { turn[r * ENTRIES + taken[r] % ENTRIES] == taken[r] / ENTRIES + 1 ->
		part = entry[r * ENTRIES + taken[r] % ENTRIES];
		assert(part != NOTHING); /* its turn was there, and it was not */
		entry[r * ENTRIES + taken[r] % ENTRIES] = NOTHING;
		assert(!flying[part] && !untold[part] && !unreported[part]); /* two writes to one place, in any order */
		if
		:: dead -> unreported[part] = true
		:: else -> flying[part] = true
#ifdef BREAK_IMMEDIATE_FIRST
			untold[part] = true
#endif
		fi;
		taken[r]++; part = 0 }
}

inline land(p)
{
	atomic { flying[p] ->
		flying[p] = false; unreported[p] = true;
		landing[p] = staging[p];
		if
		:: p % 2 == 0 -> landed_runs[p / 2] = staged_runs[p / 2]
		:: else
		fi;
#ifndef BREAK_IMMEDIATE_FIRST
		untold[p] = true
#endif
	}
}

/* What a rank that is dead should have got or sent gets lost, or has landed before. */
inline vanish(p)
{
	atomic { dead && flying[p] -> flying[p] = false; unreported[p] = true }
}

inline report(p)
{
	atomic { unreported[p] && (COUNTS_FAILED || !dead) -> unreported[p] = false; busy[p] = false; nr_open[p / 2]-- }
}

inline tell(p)
{
	atomic { untold[p] ->
		untold[p] = false;
		if
		:: p % 2 == 0 -> head_came[p / 2] = true
		:: else -> came[p / 2]++
		fi;
		if
		:: ALL_CAME(p / 2) ->
			assert(landing[HEAD(p / 2)] > word[p / 2]); /* else it overtook another, or came twice */
			assert(gave_up[p / 2] == 0 || landing[HEAD(p / 2)] != gave_up[p / 2]); /* it came, and was not taken */
			word[p / 2] = landing[HEAD(p / 2)];
			came[p / 2] = COUNT_LEFT(p / 2);
			head_came[p / 2] = false
		:: else
		fi }
}

#if TOGETHER
#define part_steps(p) :: atomic { flying[p] -> land(p); tell(p); report(p) }
#elif DEATH
#define part_steps(p) :: land(p) :: vanish(p) :: report(p) :: tell(p)
#else
#define part_steps(p) :: land(p) :: report(p) :: tell(p)
#endif
#define message_steps(m) part_steps(HEAD(m)) part_steps(RUN(m))
proctype network()
{
	byte part;
end:
	do
	:: take(0)
	:: take(1)
	message_steps(0)
	message_steps(1)
	message_steps(2)
	message_steps(3)
#if NR_MESSAGES > 4
	message_steps(4)
	message_steps(5)
	message_steps(6)
	message_steps(7)
#endif
#if DEATH && !defined(BREAK_SILENT_LOSS)
	:: atomic { dead && !lost && MAY_TELL -> lost = true }
#endif
	od
}

/* ---- kernels ---- */

inline store(p, e)
{
	atomic {
		assert(!busy[p]); /* the network still reads it */
		staging[p] = e;
		busy[p] = true
	}
}

inline draw()
{
	atomic { ticket = tickets[r]; tickets[r]++ }
}

inline ring(p)
{
	draw();
	atomic {
		assert(ticket < taken[r] + ENTRIES); /* what lies there has not been read */
		nr_open[(p) / 2]++;
#ifdef BREAK_TURN_FIRST
		turn[r * ENTRIES + ticket % ENTRIES] = ticket / ENTRIES + 1
#else
		entry[r * ENTRIES + ticket % ENTRIES] = p
#endif
	};
	atomic {
#ifdef BREAK_TURN_FIRST
		entry[r * ENTRIES + ticket % ENTRIES] = p;
#else
		turn[r * ENTRIES + ticket % ENTRIES] = ticket / ENTRIES + 1;
#endif
		ticket = 0
	}
}

/* All is stored before the first command. The dispatch goes to rank 1 with rows, the combine to rank 0 with results. */
inline send(m, may_run)
{
	atomic {
		if
		:: may_run && RUNS -> nr = 1
		:: nr = 0
		fi;
		assert(!busy[HEAD(m)]);
		staging[HEAD(m)] = epoch; staged_runs[m] = nr
	};
	if
	:: SENDS(nr) ->
		if
		:: nr -> store(RUN(m), epoch); ring(RUN(m))
		:: else
		fi;
		atomic { busy[HEAD(m)] = true };
		ring(HEAD(m))
	:: else
	fi;
	nr = 0
}

/* Waits, reads, and reads again later: nothing new has come over it. */
inline collect(m)
{
	do
	:: atomic { HAS_COME(m) -> break }
#if DEATH
	:: r == 0 && !HAS_COME(m) -> /* the first look */
		if
		:: HAS_COME(m)
		:: atomic { lost -> skip }; atomic {
			if
			:: COMES_YET(m)
			:: else -> assert(word[m] != epoch); gave_up[m] = epoch; goto over
			fi }
		fi
#endif
	od;
	read(m);
	read(m)
}

inline read(m)
{
	atomic {
		assert(landing[HEAD(m)] == epoch);
		assert(landed_runs[m] == 0 || landing[RUN(m)] == epoch)
	}
}

/* All judge the same counts. */
inline judge()
{
	atomic {
		if
		:: verdict[slot * ROUNDS + epoch - FIRST] ->  skip
		:: !verdict[slot * ROUNDS + epoch - FIRST] -> verdict[slot * ROUNDS + epoch - FIRST] = 1
		:: !verdict[slot * ROUNDS + epoch - FIRST] -> verdict[slot * ROUNDS + epoch - FIRST] = 2
		:: !verdict[slot * ROUNDS + epoch - FIRST] -> verdict[slot * ROUNDS + epoch - FIRST] = 3
		fi;
		go = verdict[slot * ROUNDS + epoch - FIRST]
	}
}

proctype stream(byte r, slot)
{
	byte epoch = FIRST, ticket, nr, go = 1;

	{
	do
	:: epoch < FIRST + ROUNDS ->
#if COUNTS
		IS_FREE(MESSAGE(r, slot, COUNTS_OF(epoch))) && IS_FREE(MESSAGE(r, slot, DISPATCH));
		send(MESSAGE(r, slot, COUNTS_OF(epoch)), false);
		collect(MESSAGE(1 - r, slot, COUNTS_OF(epoch)));
		judge();
#endif
		if
		:: go != 2 ->
			send(MESSAGE(r, slot, DISPATCH), r == 0);
			COMBINE_FREE;
			collect(MESSAGE(1 - r, slot, DISPATCH))
		:: else
		fi;
		if
		:: go == 1 ->
			send(MESSAGE(r, slot, COMBINE), r == 1);
			IS_FREE(MESSAGE(r, slot, DISPATCH));
#ifndef BREAK_NEXT_ROUND_EARLY
			collect(MESSAGE(1 - r, slot, COMBINE))
#endif
		:: else
		fi;
		atomic { epoch++; go = 1 }
	:: else -> break
	od
	} unless { DEATH && r == 1 && dead };
over:
#ifdef WITNESS
	assert(false)
#endif
	skip
}

#if DEATH
proctype killer()
{
	dead = true
}
#endif

init
{
	byte i;
	atomic {
		for (i : 0 .. 2 * ENTRIES - 1) {
			entry[i] = NOTHING
		}
		run network();
		run stream(0, 0);
		run stream(1, 0);
#if SLOTS > 1
		run stream(0, 1);
		run stream(1, 1);
#endif
#if DEATH
		run killer()
#endif
	}
}
