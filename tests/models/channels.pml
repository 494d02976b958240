/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput between nodes (src/path/internode_send.c, src/path/relay.c): a source on one node; on the other one its gateway and a rank
 * behind it. Counts of all, then rows in chunks to the gateway, whose proxy stores them in the outputs of its node and then
 * the source's dispatch words. The network delivers chunks, reports and the source's counts to the gateway in any order.
 *
 * Proves that a chunk is not stored to while the network or the gateway may read it, that no row is placed into an output
 * that is still read, that a word comes after all rows of its round and none is lost, that nobody waits for ever, and that
 * whoever leaves in peace is not missed. How many rows a round has, which ranks get them, which chunk is taken, whether the
 * last one has a row, and whether a round is combined or released is left open. A chunk has one row at most.
 *
 * DEATH=1: VICTIM dies at any time. What the gateway's node tells the source, credits among it, arrives at once: the worst
 * case for reuse. Abandoned rounds are in exchange_ht.pml: no chunk of theirs is ever sent. Results: pieces.pml.
 */
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef VICTIM
#define VICTIM GATEWAY
#endif
#define FIRST 1 /* epoch */

#define GATEWAY 0 /* ranks, as far as arrays have them */
#define BEHIND 1
#define SOURCE 2
#define BIT(n) (1 << (n))
#define AT(slot, rank) (2 * (slot) + (rank))

typedef chunk {
	byte slot, epoch, row, places, nr_chunks;
	bool has_row
}
chunk staged[CHUNKS], landed[CHUNKS];
bool reading[CHUNKS]; /* the write is under way: the network may read its source */
bool flying[CHUNKS];  /* its bytes have not landed */
bool arrived[CHUNKS]; /* the gateway's proxy has not taken it */
bool inside[CHUNKS];  /* ghost: landed, and the gateway has not done with it */
bool busy[CHUNKS];    /* not given back */

byte counts[SLOTS * 2];	       /* last epoch of a rank's counts, at the source and on its node */
byte source_counts[SLOTS * 2]; /* of the source's, at this rank */
byte sent_counts[SLOTS * 2];   /* ghost of the network: on their way */
byte word[SLOTS * 2];	       /* the source's dispatch word, at this rank */
byte combined[SLOTS * 2];      /* this rank's combine word or mark, at the source */

byte came[SLOTS], announced[SLOTS], joined[SLOTS]; /* relay_round: chunks, of how many, epoch */
byte rows_for[SLOTS * 2];			   /* relay_round */
byte out[SLOTS * 2 * ROWS];			   /* output rows: the epoch */
byte count[SLOTS * 2];				   /* of the word */
byte wants[SLOTS * 2];				   /* ghost: rows that the source sends, a bit for each */
bool in_use[SLOTS * 2];				   /* ghost: the caller reads its output */

bool parted[3], dead[3];
bool receives; /* the gateway's caller is in a receive half */

/* ---- things made wrong ---- */

#ifdef BREAK_NO_CREDIT
#define IS_GIVEN_BACK(c) true
#else
#define IS_GIVEN_BACK(c) (!busy[c])
#endif

#ifdef BREAK_NO_COMPLETION
#define HAS_LANDED(c) true
#else
#define HAS_LANDED(c) (!reading[c])
#endif

#ifdef BREAK_CREDIT_FIRST
#define CREDIT_LAST false
#else
#define CREDIT_LAST true
#endif

/* As if the last chunk were the last to arrive. */
#ifdef BREAK_WORD_AT_LAST
#define ALL_CAME(s) (announced[s] != 0)
#else
#define ALL_CAME(s) (came[s] == announced[s])
#endif

#ifdef BREAK_WORD_BEFORE_ROWS
#define ROWS_FIRST false
#else
#define ROWS_FIRST true
#endif

#ifdef BREAK_OWN_WORD_FIRST
#define OWN_WORD_LAST false
#else
#define OWN_WORD_LAST true
#endif

/* The gateway's caller passes chunks on when it receives, as if there were no proxy. */
#ifdef BREAK_CALLER_RELAYS
#define MAY_RELAY receives
#else
#define MAY_RELAY true
#endif

#ifdef BREAK_ROWS_BEFORE_COUNTS
#define WAIT_FOR_COUNTS false
#else
#define WAIT_FOR_COUNTS true
#endif

#ifdef BREAK_EARLY_RESULTS_WORD
#define RESULTS_WORD_LAST false
#else
#define RESULTS_WORD_LAST true
#endif

#ifdef BREAK_SILENCE_FOR_NOTHING
#define SENDS_EMPTY false
#else
#define SENDS_EMPTY true
#endif

#ifdef BREAK_LEAVE_UNSETTLED
#define IS_SETTLED(c) true
#else
#define IS_SETTLED(c) (!busy[c] && !reading[c])
#endif

/* Who waits for a credit does not look after the gateway. */
#ifdef BREAK_TRUST_GATEWAY
#define LOOKS_AFTER_GATEWAY false
#else
#define LOOKS_AFTER_GATEWAY true
#endif

#define IS_GONE(rank) (parted[rank] || dead[rank])

/* ---- the network ---- */

inline clear(c)
{
	c.slot = 0; c.epoch = 0; c.row = 0; c.places = 0; c.nr_chunks = 0; c.has_row = false
}

inline land(c)
{
	atomic { flying[c] ->
		assert(!inside[c]); /* the gateway still needs what lies there */
		landed[c].slot = staged[c].slot;
		landed[c].epoch = staged[c].epoch;
		landed[c].row = staged[c].row;
		landed[c].places = staged[c].places;
		landed[c].nr_chunks = staged[c].nr_chunks;
		landed[c].has_row = staged[c].has_row;
		flying[c] = false; arrived[c] = true; inside[c] = true }
}

inline report(c)
{
	atomic { reading[c] && !flying[c] -> reading[c] = false; clear(staged[c]) }
}

inline deliver_counts(at)
{
	atomic { sent_counts[at] -> source_counts[at] = sent_counts[at]; sent_counts[at] = 0 }
}

proctype network()
{
	byte i;
end:
	do
	:: land(0)
	:: report(0)
#if CHUNKS > 1
	:: land(1)
	:: report(1)
#endif
	:: deliver_counts(AT(0, GATEWAY))
#if SLOTS > 1
	:: deliver_counts(AT(1, GATEWAY))
#endif
	od
}

/* ---- the gateway's proxy ---- */

inline give_credit()
{
	atomic { inside[c] = false; busy[c] = false }
}

inline place(rank)
{
	atomic {
		if
		:: landed[c].has_row && (landed[c].places & BIT(rank)) ->
			at = AT(landed[c].slot, rank);
			assert(!in_use[at]); /* an output that is still read */
			out[at * ROWS + landed[c].row] = landed[c].epoch;
			rows_for[AT(s, rank)]++
		:: else
		fi
	}
}

inline store_word(rank)
{
	atomic {
		at = AT(landed[c].slot, rank);
		count[at] = rows_for[AT(s, rank)];
		rows_for[AT(s, rank)] = 0;
		word[at] = joined[s]
	}
}

/* Two words in two steps: a rank that has its own may go on before the next is stored. */
inline publish()
{
	if
	:: all && OWN_WORD_LAST -> store_word(BEHIND); store_word(GATEWAY)
	:: all && !OWN_WORD_LAST -> store_word(GATEWAY); store_word(BEHIND)
	:: else
	fi;
	atomic {
		if
		:: all -> came[s] = 0; announced[s] = 0; joined[s] = 0
		:: else
		fi
	}
}

inline join()
{
	atomic {
		s = landed[c].slot;
		arrived[c] = false;
		if
		:: !came[s] -> joined[s] = landed[c].epoch
		:: else
		fi;
		came[s]++;
		assert(joined[s] == landed[c].epoch);
		assert(!announced[s] || !landed[c].nr_chunks);
		if
		:: landed[c].nr_chunks -> announced[s] = landed[c].nr_chunks
		:: else
		fi;
		all = ALL_CAME(s)
	}
}

inline relay()
{
	join();
	if
	:: !CREDIT_LAST -> give_credit()
	:: else
	fi;
	if
	:: !ROWS_FIRST -> publish()
	:: else
	fi;
	place(BEHIND);
	place(GATEWAY);
	if
	:: ROWS_FIRST -> publish()
	:: else
	fi;
	atomic {
		if
		:: CREDIT_LAST -> clear(landed[c]); give_credit()
		:: else
		fi;
		s = 0; at = 0; all = false; c = 0
	}
}

proctype proxy()
{
	byte c, s, at;
	bool all;

	{
end:
		do
		:: atomic { arrived[0] && MAY_RELAY -> c = 0 }; relay()
#if CHUNKS > 1
		:: atomic { arrived[1] && MAY_RELAY -> c = 1 }; relay()
#endif
		od
	} unless { dead[GATEWAY] }
}

/* ---- the source ---- */

/* Only after a death. */
inline give_up(rank)
{
	assert(DEATH && dead[VICTIM]); parted[rank] = true; go = false
}

inline take_chunk()
{
	if
	:: IS_GIVEN_BACK(0) && HAS_LANDED(0) -> c = 0
#if CHUNKS > 1
	:: IS_GIVEN_BACK(1) && HAS_LANDED(1) -> c = 1
#endif
	:: LOOKS_AFTER_GATEWAY && IS_GONE(GATEWAY) -> give_up(SOURCE)
	fi
}

inline want(rank)
{
	wants[AT(slot, rank)] = wants[AT(slot, rank)] | (has_row && (places & BIT(rank)) -> BIT(row) : 0)
}

inline store_chunk()
{
	assert(!reading[c]); /* the network still reads it */
	nr_sent++;
	staged[c].slot = slot;
	staged[c].epoch = epoch;
	staged[c].has_row = has_row;
	staged[c].row = row;
	staged[c].places = places;
	staged[c].nr_chunks = (ended -> nr_sent : 0);
	want(GATEWAY);
	want(BEHIND);
	busy[c] = true; reading[c] = true; flying[c] = true;
	c = 0
}

/* The next row goes to some ranks; the last one may be the end of the round, or that comes in a chunk of its own. */
inline choose_chunk()
{
	if
	:: row < nr && row + 1 == nr -> has_row = true; ended = true
	:: row < nr -> has_row = true; ended = false
	:: row == nr -> has_row = false; ended = true
	fi;
	if
	:: has_row -> places = 1
	:: has_row -> places = 2
	:: has_row -> places = 3
	:: else -> places = 0
	fi
}

inline send_rows()
{
	if
	:: nr = 0
	:: nr = 1
#if ROWS > 1
	:: nr = 2
#endif
	fi;
	ended = !SENDS_EMPTY && !nr;
	do
	:: go && !ended ->
		atomic {
			choose_chunk();
			take_chunk();
			if
			:: go -> store_chunk()
			:: else
			fi;
			row++
		}
	:: else -> break
	od;
	nr = 0; row = 0; places = 0; ended = false; has_row = false; nr_sent = 0
}

inline wait_for_combined(slot, which)
{
	if
	:: combined[AT(slot, GATEWAY)] == which && combined[AT(slot, BEHIND)] == which
	:: (combined[AT(slot, GATEWAY)] != which && IS_GONE(GATEWAY)) || (combined[AT(slot, BEHIND)] != which && IS_GONE(BEHIND)) -> give_up(SOURCE)
	fi
}

inline dispatch_send()
{
	if
	:: go && released[slot] -> wait_for_combined(slot, epoch - 1)
	:: else
	fi;
	if
	:: go ->
		sent_counts[AT(slot, GATEWAY)] = epoch;
		source_counts[AT(slot, BEHIND)] = epoch;
		if
		:: !WAIT_FOR_COUNTS || (counts[AT(slot, GATEWAY)] >= epoch && counts[AT(slot, BEHIND)] >= epoch)
		:: (counts[AT(slot, GATEWAY)] < epoch && IS_GONE(GATEWAY)) || (counts[AT(slot, BEHIND)] < epoch && IS_GONE(BEHIND)) -> give_up(SOURCE)
		fi
	:: else
	fi;
	if
	:: go -> send_rows()
	:: else
	fi
}

inline combine_or_release()
{
	if
	:: go -> released[slot] = false; wait_for_combined(slot, epoch)
	:: go -> released[slot] = true
	:: else
	fi
}

#define CHUNKS_SETTLED (IS_GONE(GATEWAY) || (IS_SETTLED(0) && IS_SETTLED(CHUNKS - 1)))
#define COUNTS_LANDED (IS_GONE(GATEWAY) || (!sent_counts[AT(0, GATEWAY)] && !sent_counts[AT(SLOTS - 1, GATEWAY)]))

/* path_settle, then the leave word. */
inline leave()
{
	if
	:: atomic { go && CHUNKS_SETTLED && COUNTS_LANDED -> parted[SOURCE] = true }
	:: !go
	fi
}

proctype source()
{
	byte epoch = FIRST, slot, c, nr, row, places, nr_sent;
	bool go = true, ended, has_row, released[SLOTS];

	{
		do
		:: go && epoch < FIRST + ROUNDS ->
			do
			:: slot < SLOTS -> atomic { dispatch_send(); slot++ }
			:: else -> slot = 0; break
			od;
			do
			:: slot < SLOTS -> atomic { combine_or_release(); slot++ }
			:: else -> slot = 0; break
			od;
			epoch++
		:: else -> break
		od;
		leave()
#ifdef WITNESS
		;
		assert(!go || !released[SLOTS - 1])
#endif
	} unless { dead[SOURCE] }
}

/* ---- the gateway's caller, and the rank behind it ---- */

inline tell_and_await_counts()
{
	counts[AT(slot, r)] = epoch;
	if
	:: counts[AT(slot, 1 - r)] >= epoch && source_counts[AT(slot, r)] == epoch
	:: (counts[AT(slot, 1 - r)] < epoch && IS_GONE(1 - r)) || (source_counts[AT(slot, r)] != epoch && IS_GONE(SOURCE)) -> give_up(r)
	fi
}

inline await_word()
{
	receives = receives || r == GATEWAY;
	if
	:: word[AT(slot, r)] == epoch -> in_use[AT(slot, r)] = true
	:: word[AT(slot, r)] != epoch && (IS_GONE(SOURCE) || IS_GONE(GATEWAY)) && r != GATEWAY -> give_up(r)
	:: word[AT(slot, r)] != epoch && IS_GONE(SOURCE) && r == GATEWAY -> give_up(r)
	fi;
	receives = receives && r != GATEWAY
}

inline read_rows()
{
	atomic {
		at = AT(slot, r);
		i = 0;
		do
		:: i < ROWS ->
			assert(!(wants[at] & BIT(i)) || out[at * ROWS + i] == epoch); /* lost, or of another round */
			count[at] = count[at] - ((wants[at] & BIT(i)) -> 1 : 0);
			out[at * ROWS + i] = 0;
			i++
		:: else -> break
		od;
		assert(!count[at]);
		wants[at] = 0;
		i = 0; at = 0
	}
}

/* The output is in use between these two. */
inline receive_and_combine()
{
	atomic { await_word() };
	atomic {
		if
		:: go && !RESULTS_WORD_LAST -> combined[AT(slot, r)] = epoch
		:: else
		fi
	};
	atomic {
		if
		:: go -> read_rows(); in_use[AT(slot, r)] = false; combined[AT(slot, r)] = epoch
		:: else
		fi;
		slot++
	}
}

proctype receiver(byte r)
{
	byte epoch = FIRST, slot, at, i;
	bool go = true;

	{
		do
		:: go && epoch < FIRST + ROUNDS ->
			do
			:: go && slot < SLOTS -> atomic { tell_and_await_counts(); slot++ }
			:: else -> slot = 0; break
			od;
			do
			:: go && slot < SLOTS -> receive_and_combine()
			:: else -> slot = 0; break
			od;
			epoch++
		:: else -> break
		od;
		parted[r] = true
	} unless { dead[r] }
}

proctype death()
{
end:
	atomic { dead[VICTIM] = true }
}

init
{
	atomic {
		run network();
		run proxy();
		run source();
		run receiver(GATEWAY);
		run receiver(BEHIND);
#if DEATH
		run death()
#endif
	}
}
