/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hops between nodes of GPUs (src/gpu/cuda/internode/forward.cuh, forward_ht.cuh): sources on one node; two ranks on the other, each gateway of one source, whose kernel stores that
 * source's rows in its own window and in its neighbour's. The network delivers parts of messages in any order, and a proxy stores the arrival word when all of one have come.
 *
 * Proves that a row is passed on whole and of its round, that none is stored over one that is still read, be it in a window or in landing, that who leaves in peace is not missed, that
 * gateways do not wait for each other for ever, and that a gateway's death is told and blamed on it. Left open: which ranks a row goes to; which rounds are abandoned or released (HIGH=1)
 * or combine a plan again (low latency), so that ways of an older round lie in landing.
 *
 * A source has one row a round. What a rank tells a source, combine words and counts, arrives at once: the worst case for reuse. Staging, and that words and landing of heads are used
 * again in time: internode.pml. Parities of counts: exchange_ht.pml. DEATH=1: rank 0 dies at any time.
 */
#ifndef HIGH
#define HIGH 0
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef SOURCES
#define SOURCES 1
#endif
#ifndef DEATH
#define DEATH 0
#endif

#define RANKS 2
#define AT(s, r) ((s) * RANKS + (r))
#define BIT(r) (1 << (r))

#define UNDECIDED 0
#define FULL 1
#define ABANDONED 2 /* no message, no result */
#define AGAIN 3	    /* a plan is combined again: no rows */
#define RELEASED 4  /* no result */

byte kind[ROUNDS + 2];

/* From source s to its gateway, rank s: the row and its way; to each rank: whether it has one. */
byte sent_row[SOURCES], sent_way[SOURCES], sent_bits[SOURCES];
byte head_epoch[SOURCES * RANKS];
bool head_wants[SOURCES * RANKS], row_flies[SOURCES], head_flies[SOURCES * RANKS];
bool row_came[SOURCES], head_came[SOURCES * RANKS], has_run[SOURCES];

byte landed_row[SOURCES], way_epoch[SOURCES], way_bits[SOURCES]; /* landing of the gateway */
bool passing_on[SOURCES];					  /* ghost: it reads there */
byte word[SOURCES * RANKS];
bool wants[SOURCES * RANKS]; /* landing: a row for this rank */

byte window[SOURCES * RANKS], mark[SOURCES * RANKS];
bool in_use[SOURCES * RANKS]; /* ghost: it reads its row */

byte combined[SOURCES * RANKS], counts[RANKS]; /* as sources see them */

bool source_left[SOURCES], left[RANKS], dead[RANKS], failed[RANKS], source_failed[SOURCES];

/* ---- things made wrong ---- */

/* As if the gateway's word stood for its node's. */
#ifdef BREAK_GATEWAY_ALONE
#define ASKED(s, r) ((r) == (s))
#else
#define ASKED(s, r) true
#endif

#ifdef BREAK_WORD_AT_HEAD
#define ALL_CAME(s, r) head_came[AT(s, r)]
#else
#define ALL_CAME(s, r) (head_came[AT(s, r)] && ((r) != (s) || !has_run[s] || row_came[s]))
#endif

/* Nobody looks whether a way is of this round. */
#ifdef BREAK_OLD_WAY
#define IS_WAY(epoch, e) true
#else
#define IS_WAY(epoch, e) ((epoch) == (e))
#endif

/* Also what a fence that is missing amounts to. */
#ifdef BREAK_MARK_FIRST
#define MARK_LAST false
#else
#define MARK_LAST true
#endif

#ifdef BREAK_NO_MARK
#define MARKED(s) true
#else
#define MARKED(s) (mark[AT(s, r)] == e)
#endif

/* Passed on when this rank has what it waits for itself. */
#ifdef BREAK_OWN_FIRST
#define OWN_FIRST true
#else
#define OWN_FIRST false
#endif

/* A rank tells that it leaves when its last kernel has begun to pass on. */
#ifdef BREAK_LEAVE_FIRST
#define LEAVES_FIRST (e == ROUNDS)
#else
#define LEAVES_FIRST false
#endif

#ifdef BREAK_NO_SECOND_LOOK
#define SECOND_LOOK false
#else
#define SECOND_LOOK true
#endif

/* Who misses a row looks after nobody; or after its source. */
#ifdef BREAK_LOOKS_AFTER_NOBODY
#define LOOKS_AFTER false
#else
#define LOOKS_AFTER true
#endif
#ifdef BREAK_BLAME_SOURCE
#define BLAMES_SOURCE true
#else
#define BLAMES_SOURCE false
#endif

/* ---- */

inline decide(e)
{
	atomic {
		if
		:: kind[e] != UNDECIDED
		:: kind[e] == UNDECIDED -> kind[e] = FULL
#if HIGH
		:: kind[e] == UNDECIDED -> kind[e] = ABANDONED
		:: kind[e] == UNDECIDED -> kind[e] = RELEASED
#else
		:: kind[e] == UNDECIDED && e > 1 -> kind[e] = AGAIN
#endif
		fi
	}
}

/* ---- the network and the proxies of ranks 0 and 1 ---- */

#define head_steps(s, r)							\
	:: atomic { head_flies[AT(s, r)] ->					\
		head_flies[AT(s, r)] = false;					\
		head_came[AT(s, r)] = true;					\
		wants[AT(s, r)] = head_wants[AT(s, r)];				\
		if								\
		:: (r) == (s) && sent_way[s] == head_epoch[AT(s, r)] ->		\
			assert(!passing_on[s]);					\
			way_epoch[s] = sent_way[s]; way_bits[s] = sent_bits[s]	\
		:: else								\
		fi }								\
	:: atomic { ALL_CAME(s, r) ->						\
		head_came[AT(s, r)] = false;					\
		if								\
		:: (r) == (s) -> row_came[s] = false				\
		:: else								\
		fi;								\
		word[AT(s, r)] = head_epoch[AT(s, r)] }
#define row_steps(s)								\
	:: atomic { row_flies[s] ->						\
		assert(!passing_on[s]);						\
		row_flies[s] = false; row_came[s] = true; landed_row[s] = sent_row[s] }

proctype network()
{
end:
	do
	head_steps(0, 0)
	head_steps(0, 1)
	row_steps(0)
#if SOURCES > 1
	head_steps(1, 0)
	head_steps(1, 1)
	row_steps(1)
#endif
	od
}

/* ---- sources ---- */

#define RANK_GONE(r) (dead[r] || failed[r])

/* Of rank r, for round e. */
#define MAY_SEND(r) (!ASKED(s, r) || (HIGH -> counts[r] >= e : combined[AT(s, r)] >= e - 1))
#define HAS_RESULTS(r) (!ASKED(s, r) || combined[AT(s, r)] >= e)

proctype source(byte s)
{
	byte e = 1, bits;

	do
	:: e <= ROUNDS ->
		if
		:: MAY_SEND(0) && MAY_SEND(1)
		:: RANK_GONE(0) || RANK_GONE(1) -> source_failed[s] = true; goto out
		fi;
		decide(e);
		if
		:: kind[e] == ABANDONED
		:: kind[e] != ABANDONED ->
			atomic {
				bits = 0;
				if
				:: kind[e] == AGAIN
				:: kind[e] != AGAIN ->
					if
					:: bits = BIT(0)
					:: bits = BIT(1)
					:: bits = BIT(0) | BIT(1)
					:: skip
					fi;
					sent_way[s] = e
				fi;
				assert(!row_flies[s] && !head_flies[AT(s, 0)] && !head_flies[AT(s, 1)]);
				sent_row[s] = e; sent_bits[s] = bits;
				has_run[s] = bits != 0; row_flies[s] = bits != 0;
				head_epoch[AT(s, 0)] = e; head_wants[AT(s, 0)] = bits & BIT(0);
				head_epoch[AT(s, 1)] = e; head_wants[AT(s, 1)] = (bits & BIT(1)) != 0;
				head_flies[AT(s, 0)] = true; head_flies[AT(s, 1)] = true;
				bits = 0
			};
			if
			:: kind[e] == RELEASED
			:: HAS_RESULTS(0) && HAS_RESULTS(1)
			:: RANK_GONE(0) || RANK_GONE(1) -> source_failed[s] = true; goto out
			fi
		fi;
		e++
	:: else -> break
	od;
	/* It leaves when all that it sent has landed. */
	!row_flies[s] && !head_flies[AT(s, 0)] && !head_flies[AT(s, 1)];
	source_left[s] = true;
out:
	skip
}

/* ---- ranks 0 and 1 ---- */

inline store_row(s, t)
{
	if
	:: MARK_LAST ->
		atomic { assert(!in_use[AT(s, t)]); window[AT(s, t)] = landed_row[s] };
		mark[AT(s, t)] = e
	:: else ->
		mark[AT(s, t)] = e;
		atomic { assert(!in_use[AT(s, t)]); window[AT(s, t)] = landed_row[s] }
	fi
}

/* Low latency: a row's pieces are its mark. */
inline pass_on(s)
{
	if
	:: IS_WAY(way_epoch[s], e) ->
		passing_on[s] = true;
		if
		:: way_bits[s] & BIT(0) -> store_row(s, 0)
		:: else
		fi;
		if
		:: way_bits[s] & BIT(1) -> store_row(s, 1)
		:: else
		fi;
		passing_on[s] = false
	:: else
	fi
}

inline give_up(right)
{
	atomic { assert(right); failed[r] = true };
	goto out
}

#define CARRIER_FAILED(s) ((BLAMES_SOURCE && source_failed[s]) || (!BLAMES_SOURCE && (dead[s] || failed[s])))
#define CARRIER_GONE(s) (CARRIER_FAILED(s) || (BLAMES_SOURCE && source_left[s]) || (!BLAMES_SOURCE && left[s]))

inline await_row(s)
{
	if
	:: wants[AT(s, r)] ->
		if
		:: MARKED(s)
		:: !MARKED(s) ->
			if
			:: MARKED(s)
			:: LOOKS_AFTER && CARRIER_GONE(s) ->
				if
				:: SECOND_LOOK && MARKED(s)
				:: !SECOND_LOOK || !MARKED(s) -> give_up(CARRIER_FAILED(s))
				fi
			fi
		fi;
		atomic { in_use[AT(s, r)] = true; assert(window[AT(s, r)] == e) }
	:: else
	fi
}

inline await_word(s)
{
	if
	:: word[AT(s, r)] == e
	:: word[AT(s, r)] != e && source_failed[s] -> give_up(true)
	fi
}

inline end_row(s)
{
	atomic {
		assert(!in_use[AT(s, r)] || window[AT(s, r)] == e);
		in_use[AT(s, r)] = false
	}
}

inline tell()
{
	if
	:: kind[e] != RELEASED ->
		atomic {
			combined[AT(0, r)] = e;
#if SOURCES > 1
			combined[AT(1, r)] = e
#endif
		}
	:: else
	fi
}

proctype rank(byte r)
{
	byte e = 1;

	{
	do
	:: e <= ROUNDS ->
		counts[r] = e;
		decide(e);
		if
		:: kind[e] == ABANDONED
		:: kind[e] != ABANDONED ->
			await_word(0);
#if SOURCES > 1
			await_word(1);
#endif
			if
			:: r < SOURCES && !OWN_FIRST -> left[r] = LEAVES_FIRST; pass_on(r)
			:: else
			fi;
			await_row(0);
#if SOURCES > 1
			await_row(1);
#endif
			if
			:: r < SOURCES && OWN_FIRST -> pass_on(r)
			:: else
			fi;
			end_row(0);
#if SOURCES > 1
			end_row(1);
#endif
			tell()
		fi;
		e++
	:: else -> break
	od;
	left[r] = true
	} unless { dead[r] }
out:
	skip;
#ifdef WITNESS
	assert(r == 0 || dead[0] || kind[1] != WITNESS || failed[r])
#endif
}

proctype death()
{
	if
	:: DEATH -> dead[0] = true
	:: skip
	fi
}

init
{
	atomic {
		run network(); run source(0);
#if SOURCES > 1
		run source(1);
#endif
		run rank(0); run rank(1); run death()
	}
}
