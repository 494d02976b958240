/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Early rows on GPUs in high-throughput mode (src/gpu/cuda/ht/dispatch_send.cuh, ht/plan.cu), between two ranks: a row leaves for an early slot of the other rank before any place is
 * known, in a kernel that was started before the plan's have ended.
 *
 *   stream(r)    a rank's kernels, one after the other: who makes x and ids, the plan (two kernels), the dispatch's receiving warps, the combine or the release. What a kernel does
 *                before it has waited for the one ahead of it is only told here where it matters: that it lets the next one start (`started`).
 *   sending(r)   the dispatch's sending warps, one token: they run from `started` on, beside the plan, and wait for its end (`planned`) on their way
 *   network      rows, heads, counts and result words land at any time, in any order
 *
 * A kernel that has not waited for those ahead of it may see what they have stored, or what was there before (`view`): only an acquire of what they have released makes it sure. Words that
 * are compared by epoch are read as they are.
 *
 * Proves that x and ids are read when they are made, that a slot is not stored to while its owner still reads the row of the round before, that a head comes after its row, that counts of
 * two parities are enough though the receivers read them late, and that nothing is under way to a window that is given back. ABANDON=0, RELEASE=0: no such rounds. FAIL=1: any wait may
 * expire, and a rank that failed keeps its window.
 */
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef ABANDON
#define ABANDON 1
#endif
#ifndef RELEASE
#define RELEASE 1
#endif
#ifndef FAIL
#define FAIL 0
#endif
#define FIRST 1
#define LAST (FIRST + ROUNDS - 1)

/* What a rank has in a round. Heads go to all ranks, rows only where an expert is. */
#define NO_TOKEN 0
#define TOKEN_STAYS 1
#define TOKEN_LEAVES 2

/* Of the window of rank q, which the other one stores to: the epoch that is there, and what goes with it. On its way: 0 for nothing. */
byte slot[2], head[2], result[2], counts[4];
bool head_places[2];
byte count_early[4];
byte row_flies[2], head_flies[2], result_flies[2], counts_fly[4];
bool places_fly[2];
byte early_flies[4];
bool given_back[2];

/* Of rank r's own memory: struct gpu_state, and x with its ids. */
byte epoch_dispatch[2], begun[2], exchanged[2];
bool failed[2], abandoned[2];
byte made[2], tokens[2];
byte started[2], planned[2], sent[2]; /* dispatches: that may run; whose plan has ended; whose sending warps have */

byte ending[ROUNDS]; /* ghost, the same on both: 1 combine, 2 release, 3 abandoned. Cleared by the second rank */
bool ended[ROUNDS];
bool expired; /* ghost: some wait has. The first is one of rank 1's: they are alike */
#define MAY_EXPIRE (FAIL && (r == 1 || expired))

/* ---- things made wrong ---- */

#ifdef BREAK_NO_COUNTS_WAIT
#define COUNTS_ARE_HERE true
#else
#define COUNTS_ARE_HERE (exchanged[r] == epoch)
#endif

#ifdef BREAK_NOT_BEGUN
#define HAS_BEGUN true
#else
#define HAS_BEGUN (begun[r] == epoch_dispatch[r])
#endif

#ifdef BREAK_NO_ACQUIRE
#define ACQUIRED view
#else
#define ACQUIRED begun[r]
#endif

#ifdef BREAK_ONE_PARITY
#define PARITY(epoch) 0
#else
#define PARITY(epoch) ((epoch) % 2)
#endif
#define AT(q, epoch) (2 * (q) + PARITY(epoch))

#ifdef BREAK_HEAD_BEFORE_ROW
#define ROWS_DONE true
#else
#define ROWS_DONE (row_flies[1 - r] == 0)
#endif

#if defined(BREAK_DROPPED_UNSENT) || defined(BREAK_DROPPED_SILENTLY)
#define DROPPED_SENT false
#else
#define DROPPED_SENT true
#endif

#ifdef BREAK_DROPPED_SILENTLY
#define DROPPED_AWAITED false
#else
#define DROPPED_AWAITED true
#endif

#ifdef BREAK_GIVE_BACK_FAILED
#define AT_REST true
#else
#define AT_REST (!failed[r])
#endif

#ifdef BREAK_OWN_PATIENCE
#define GIVES_UP MAY_EXPIRE
#else
#define GIVES_UP failed[r]
#endif

#ifdef BREAK_LET_FIRST
#define LETS_FIRST true
#else
#define LETS_FIRST false
#endif

#ifdef BREAK_EXCHANGED_FIRST
#define TELLS_FIRST true
#else
#define TELLS_FIRST false
#endif

#ifdef WITNESS
bool witness_row, witness_abandon, witness_release;
#define NOTE(what) what = true
#define NOTE_ENDING witness_release = witness_release || ending[round] == 2; witness_abandon = witness_abandon || ending[round] == 3
#else
#define NOTE(what) skip
#define NOTE_ENDING skip
#endif

/* ---- network ---- */

#define put(flight, value) assert(!given_back[1 - r] && flight == 0); flight = value

#ifdef LATE_WORDS
#define LATE true
#else
#define LATE false
#endif

#define ROW_LANDS(q) d_step { row_flies[q] -> slot[q] = row_flies[q]; row_flies[q] = 0 }
#define HEAD_LANDS(q) d_step { head_flies[q] -> head[q] = head_flies[q]; head_places[q] = places_fly[q]; head_flies[q] = 0; places_fly[q] = false }
#define RESULT_LANDS(q) d_step { result_flies[q] -> result[q] = result_flies[q]; result_flies[q] = 0 }
#define COUNTS_LAND(i) d_step { counts_fly[i] -> counts[i] = counts_fly[i]; count_early[i] = early_flies[i]; counts_fly[i] = 0; early_flies[i] = 0 }

proctype network(byte q)
{
end:
	do
	:: ROW_LANDS(q)
	:: HEAD_LANDS(q)
	:: RESULT_LANDS(q)
	:: COUNTS_LAND(2 * q)
	:: COUNTS_LAND(2 * q + 1)
	od
}

/* ---- the dispatch's sending warps ---- */

/* plan_has_begun, then ids, x and the number of tokens are read. */
inline read_token()
{
	if
	:: atomic { HAS_BEGUN -> epoch = epoch_dispatch[r]; view = ACQUIRED };
		atomic {
			if
			:: view = made[r]
			:: skip
			fi;
			assert(failed[r] || (view == FIRST + round && epoch == FIRST + round));
			there = !failed[r] && tokens[r] != NO_TOKEN
		}
	:: atomic { MAY_EXPIRE -> expired = true; failed[r] = true }
	fi
}

/* counts_are_here, then the row is stored. It gives up when the plan has: else the token would be sent by nobody. */
inline store_row()
{
	if
	:: atomic { COUNTS_ARE_HERE ->
		if
		:: tokens[r] == TOKEN_LEAVES -> put(row_flies[1 - r], epoch)
		:: else
		fi }
	:: atomic { GIVES_UP -> there = false }
	fi
}

inline send_head(has_places)
{
	atomic { ROWS_DONE -> put(head_flies[1 - r], FIRST + round); places_fly[1 - r] = has_places }
}

proctype sending(byte r)
{
	byte round, epoch, view;
	bool there;

	do
	:: atomic { round == ROUNDS -> break }
	:: atomic { round < ROUNDS && started[r] > round -> skip };
		read_token();
		if
		:: there -> store_row()
		:: else
		fi;
		atomic { planned[r] > round -> view = FIRST + round; assert(failed[r] || there == (tokens[r] != NO_TOKEN)) }; /* wait_for_previous */
		if
		:: failed[r] -> row_flies[1 - r] == 0
		:: !failed[r] && there && !abandoned[r] -> send_head(tokens[r] == TOKEN_LEAVES)
		:: !failed[r] && there && abandoned[r] && DROPPED_SENT -> send_head(false)
		:: else
		fi;
		atomic { sent[r]++; round++; there = false; epoch = 0 }
	od
}

/* ---- the others ---- */

/* A wait in a kernel, after which the others return at once. */
inline await(condition)
{
	if
	:: condition
	:: MAY_EXPIRE -> expired = true; failed[r] = true
	fi
}

/* What the caller does in a round, and what follows for both. Rank 0's rows may be too many. */
inline agree()
{
	if
	:: ending[round] == 0 ->
		if
		:: ending[round] = 1
		:: RELEASE -> ending[round] = 2
		:: ABANDON -> ending[round] = 3
		fi
	:: else
	fi
}

/* The first kernel waits for who made x and ids; they for the last round. Then the kernels behind may start: the second one lets the dispatch start at once. */
inline plan_begins()
{
	atomic {
		made[r] = FIRST + round;
		if
		:: tokens[r] = NO_TOKEN
		:: tokens[r] = TOKEN_STAYS
		:: tokens[r] = TOKEN_LEAVES
		fi;
		if
		:: !LETS_FIRST || round == 0 -> started[r]++
		:: else
		fi
	}
}

inline plan()
{
	agree();
	put(counts_fly[AT(1 - r, epoch_dispatch[r])], epoch_dispatch[r]);
	early_flies[AT(1 - r, epoch_dispatch[r])] = (tokens[r] != NO_TOKEN);
	if
	:: !LATE -> COUNTS_LAND(AT(1 - r, epoch_dispatch[r]))
	:: else
	fi;
	if
	:: TELLS_FIRST -> exchanged[r] = epoch_dispatch[r]
	:: else
	fi;
	await(counts[AT(r, epoch_dispatch[r])] == epoch_dispatch[r]);
	if
	:: !failed[r] -> exchanged[r] = epoch_dispatch[r]; abandoned[r] = (ending[round] == 3)
	:: else
	fi
}

/* By the counts it knows whose rows are early, and for how many heads to wait. */
inline receive()
{
	assert(counts[AT(r, FIRST + round)] == FIRST + round);
	waits = count_early[AT(r, FIRST + round)] && (!abandoned[r] || DROPPED_AWAITED);
	if
	:: waits -> await(head[r] == FIRST + round)
	:: else
	fi;
	copies = waits && !failed[r] && !abandoned[r] && head_places[r]
}

inline read_slot()
{
	if
	:: copies -> assert(slot[r] == FIRST + round); NOTE(witness_row)
	:: else
	fi
}

/* A result for each row that came; a rank waits for those of its own. */
inline combine()
{
	if
	:: copies ->
		put(result_flies[1 - r], FIRST + round);
		if
		:: !LATE -> RESULT_LANDS(1 - r)
		:: else
		fi
	:: else
	fi;
	if
	:: tokens[r] == TOKEN_LEAVES -> await(result[r] == FIRST + round)
	:: else
	fi
}

/* What is of no further use: fewer states. */
inline clear()
{
	if
	:: slot[r] == FIRST + round -> slot[r] = 0
	:: else
	fi;
	if
	:: head[r] == FIRST + round -> head_places[r] = false
	:: else
	fi;
	if
	:: result[r] == FIRST + round -> result[r] = 0
	:: else
	fi;
	if
	:: counts[AT(r, FIRST + round)] == FIRST + round -> count_early[AT(r, FIRST + round)] = 0
	:: else
	fi;
	if
	:: ended[round] -> ending[round] = 0; ended[round] = false
	:: else -> ended[round] = true
	fi
}

/* Within an atomic step others run where it has to wait. */
proctype stream(byte r)
{
	byte round;
	bool waits, copies;

	do
	:: round < ROUNDS ->
		plan_begins();
		begun[r] = epoch_dispatch[r];
		atomic {
			if
			:: !failed[r] -> plan()
			:: else
			fi;
			planned[r]++
		};
		atomic {
			if
			:: !failed[r] -> receive()
			:: else
			fi;
			read_slot()
		};
		atomic { read_slot() }; /* a copy takes its time */
		atomic { sent[r] > round -> /* the dispatch has ended */
			if
			:: LETS_FIRST && round + 1 < ROUNDS -> started[r]++
			:: else
			fi;
			if
			:: !failed[r] && ending[round] == 1 -> combine()
			:: else
			fi
		};
		atomic {
			if
			:: !failed[r] -> NOTE_ENDING; epoch_dispatch[r]++
			:: else
			fi;
			clear();
			round++;
			waits = false;
			copies = false
		}
	:: else -> break
	od;
	/* It leaves, whatever the other one still does. */
	atomic {
		if
		:: AT_REST ->
			assert(!row_flies[r] && !head_flies[r] && !result_flies[r] && !counts_fly[2 * r] && !counts_fly[2 * r + 1]);
			given_back[r] = true
		:: else
		fi
	}
#ifdef WITNESS
	;
	given_back[0] && given_back[1];
	assert(!(witness_row && (!ABANDON || witness_abandon) && (!RELEASE || witness_release)))
#endif
}

init
{
	atomic {
		epoch_dispatch[0] = FIRST;
		epoch_dispatch[1] = FIRST;
		run network(0);
		run network(1);
		run stream(0);
		run stream(1);
		run sending(0);
		run sending(1)
	}
}
