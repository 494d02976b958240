/* SPDX-License-Identifier: Apache-2.0
 *
 * Credits of writes (src/engine/post.c, events.c, peer_lost.c): a proxy posts items of several pieces to PEERS peers over NICS
 * networks, as long as a network and the peer have a credit. Proves that no network is given more than DEPTH writes, that
 * every item ends once, that no credit is lost, and that unsignalled writes, which end with the next signalled one, leave
 * enough credits to post that one. Also that an item's immediate is seen after all of its pieces (networks that keep no
 * order, several networks), and that the end of a peer gives back what it held, whatever is still reported of it.
 *
 * ORDERED=1: writes to a peer land in order, so pieces before the last may go unsignalled. Else they land in any order.
 * MORTAL=1: peer 1 may die at any moment. STALLED=1: nothing ever lands at peer 1, and peer 0 is served all the same.
 */
#ifndef PEERS
#define PEERS 2
#endif
#ifndef ITEMS
#define ITEMS 2 /* to each peer */
#endif
#ifndef PIECES
#define PIECES 3
#endif
#ifndef NICS
#define NICS 1
#endif
#ifndef DEPTH
#define DEPTH 4
#endif
#ifndef PEER_DEPTH
#define PEER_DEPTH 4
#endif
#ifndef ORDERED
#define ORDERED 1
#endif
#ifndef MORTAL
#define MORTAL 0
#endif
#ifndef STALLED
#define STALLED 0
#endif
#define NR_ITEMS (PEERS * ITEMS)
#define NR_RECORDS (NICS * DEPTH)
#define GENERATIONS 4
#define PEER_OF(item) ((item) / ITEMS)

byte nic_under_way[NICS], peer_under_way[PEERS];
byte nic_unsignalled, peer_unsignalled[PEERS];

/* Items. */
chan queue[PEERS] = [ITEMS] of { byte };
byte posted[NR_ITEMS], outstanding[NR_ITEMS];
byte put_off[PEERS]; /* of the item at the head: the network that is asked again, + 1 */
bool put_off_unsignalled[PEERS];
bool queued[NR_ITEMS], last[NR_ITEMS], immediate[NR_ITEMS], ended[NR_ITEMS];
byte nr_ended[PEERS];

/* Records: signalled writes under way. */
bool used[NR_RECORDS];
byte item_of[NR_RECORDS], nic_of[NR_RECORDS], covers[NR_RECORDS], generation[NR_RECORDS];

/* Networks: record + 1, or 0 of an unsignalled write; its generation, item, and whether it carries an immediate. */
chan wire[PEERS * NICS] = [DEPTH + 1] of { byte, byte, byte, bool };
chan events = [NR_RECORDS + 1] of { byte, byte };
byte landed[NR_ITEMS];	/* ghost: pieces that are visible at the peer */
byte in_network[NICS];	/* ghost: what a network really holds */
bool dead, lost;

/* ---- things made wrong ---- */

#ifdef BREAK_NO_NIC_LIMIT
#define NIC_ALLOWS true
#else
#define NIC_ALLOWS (nic_unsignalled < DEPTH / 2)
#endif

#ifdef BREAK_NO_LIMIT
#define MAY_GO_UNSIGNALLED true
#else
#define MAY_GO_UNSIGNALLED (NIC_ALLOWS && peer_unsignalled[p] < PEER_DEPTH / 2)
#endif

#ifdef BREAK_LAST_UNSIGNALLED
#define MAY_BE_LAST true
#else
#define MAY_BE_LAST (posted[i] + 1 < PIECES && !last[i])
#endif

#ifdef BREAK_FORGET_COVERS
#define GIVEN_BACK(r) 1
#else
#define GIVEN_BACK(r) (1 + covers[r])
#endif

/* What was put off is asked again as it was, but its place among the unsignalled is not kept. */
#ifdef BREAK_PLACE_NOT_KEPT
#define PLACE 0
#else
#define PLACE 1
#endif

#ifdef BREAK_NO_GENERATION
#define IS_OF(r, g) used[r]
#else
#define IS_OF(r, g) (used[r] && generation[r] == (g))
#endif

#ifdef BREAK_KEEP_UNSIGNALLED
#define GIVES_BACK_UNSIGNALLED false
#else
#define GIVES_BACK_UNSIGNALLED true
#endif

#ifdef BREAK_EARLY_IMMEDIATE
#define GO_TOGETHER true
#else
#define GO_TOGETHER (PIECES == 1 || (ORDERED && NICS == 1))
#endif

#ifdef BREAK_NO_PEER_DEPTH
#define PEER_HAS_CREDIT(peer) true
#else
#define PEER_HAS_CREDIT(peer) (peer_under_way[peer] < PEER_DEPTH)
#endif

/* ---- items and records ---- */

inline check_ended(item)
{
	if
	:: outstanding[item] == 0 && !queued[item] && last[item] && immediate[item] && !(lost && PEER_OF(item) == 1) ->
		queued[item] = true;
		queue[PEER_OF(item)] ! item
	:: outstanding[item] == 0 && !queued[item] && (!last[item] || !immediate[item] || (lost && PEER_OF(item) == 1)) ->
		assert(!ended[item]);
		ended[item] = true;
		nr_ended[PEER_OF(item)]++
	:: else
	fi
}

inline free_record(r)
{
	used[r] = false;
	generation[r] = (generation[r] + 1) % GENERATIONS;
	assert(nic_under_way[nic_of[r]] >= GIVEN_BACK(r) && peer_under_way[PEER_OF(item_of[r])] >= GIVEN_BACK(r));
	nic_under_way[nic_of[r]] = nic_under_way[nic_of[r]] - GIVEN_BACK(r);
	peer_under_way[PEER_OF(item_of[r])] = peer_under_way[PEER_OF(item_of[r])] - GIVEN_BACK(r);
	assert(outstanding[item_of[r]] > 0);
	outstanding[item_of[r]]--;
	covers[r] = 0;
	check_ended(item_of[r])
}

inline take_up_again(peer)
{
	nic_unsignalled = nic_unsignalled - PLACE * put_off_unsignalled[peer];
	put_off_unsignalled[peer] = false;
	put_off[peer] = 0
}

/* The lowest that is free, in r. */
inline find_record()
{
	r = 0;
	do
	:: r < NR_RECORDS && used[r] -> r++
	:: else -> break
	od;
	assert(r < NR_RECORDS)
}

/* ---- posting ---- */

inline note_posted()
{
	nic_under_way[n]++;
	peer_under_way[p]++;
	if
	:: unsignalled -> peer_unsignalled[p]++; nic_unsignalled++
	:: else ->
		used[r] = true;
		item_of[r] = i;
		nic_of[r] = n;
		covers[r] = peer_unsignalled[p];
		nic_unsignalled = nic_unsignalled - peer_unsignalled[p];
		peer_unsignalled[p] = 0;
		outstanding[i]++
	fi;
	if
	:: last[i] -> immediate[i] = false; is_last = true
	:: else -> posted[i]++; is_last = posted[i] == PIECES; immediate[i] = immediate[i] && !carries
	fi;
	if
	:: is_last -> last[i] = true; queued[i] = false; queue[p] ? _
	:: else
	fi
}

/* Into the network; what is sent to the dead goes nowhere and is never heard of. */
inline send()
{
	if
	:: dead && p == 1
	:: else ->
		in_network[n]++;
		assert(in_network[n] <= DEPTH);
		if
		:: unsignalled -> wire[p * NICS + n] ! 0, 0, i, carries
		:: else -> wire[p * NICS + n] ! r + 1, generation[r], i, carries
		fi
	fi
}

inline post(peer, nic)
{
	atomic {
		nempty(queue[peer]) && !(lost && peer == 1) && nic_under_way[nic] < DEPTH && PEER_HAS_CREDIT(peer) &&
			(put_off[peer] == 0 || put_off[peer] == nic + 1) ->
		p = peer;
		n = nic;
		queue[p] ? <i>;
		unsignalled = (put_off[p] -> put_off_unsignalled[p] : MAY_BE_LAST && ORDERED && NICS == 1 && MAY_GO_UNSIGNALLED);
		carries = immediate[i] && (last[i] || (posted[i] + 1 == PIECES && GO_TOGETHER));
		if
		:: put_off[p] == 0 -> /* the network puts it off */
			put_off[p] = n + 1;
			put_off_unsignalled[p] = unsignalled;
			nic_unsignalled = nic_unsignalled + PLACE * unsignalled
		:: true ->
			take_up_again(p);
			find_record();
			send();
			note_posted()
		fi;
		p = 0; n = 0; i = 0; r = 0; unsignalled = false; carries = false; is_last = false
	}
}

/* ---- the end of a peer ---- */

inline lose_peer()
{
	lost = true;
	do
	:: len(queue[1]) > 0 ->
		queue[1] ? i;
		take_up_again(1);
		queued[i] = false;
		check_ended(i)
	:: else -> break
	od;
	for (r : 0 .. NR_RECORDS - 1) {
		if
		:: used[r] && PEER_OF(item_of[r]) == 1 -> free_record(r)
		:: else
		fi
	}
	if
	:: GIVES_BACK_UNSIGNALLED ->
		nic_under_way[0] = nic_under_way[0] - peer_unsignalled[1];
		nic_unsignalled = nic_unsignalled - peer_unsignalled[1];
		peer_under_way[1] = peer_under_way[1] - peer_unsignalled[1];
		peer_unsignalled[1] = 0
	:: else
	fi;
	i = 0;
	r = 0
}

/* ---- processes ---- */

#define SERVED (nr_ended[0] == ITEMS && (STALLED || nr_ended[1] == ITEMS))

active proctype proxy()
{
	byte p, n, i, r, g;
	bool unsignalled, carries, is_last;

	atomic {
		for (i : 0 .. NR_ITEMS - 1) {
			immediate[i] = true;
			queued[i] = true;
			queue[PEER_OF(i)] ! i
		}
		i = 0
	}
	do
	:: post(0, 0)
	:: post(1, 0)
#if NICS > 1
	:: post(0, 1)
	:: post(1, 1)
#endif
	:: atomic { events ? r, g ->
		if
		:: IS_OF(r, g) -> free_record(r)
		:: else
		fi;
		r = 0; g = 0 }
	:: atomic { dead && !lost -> lose_peer() }
	:: atomic { SERVED && empty(events) && (!dead || lost) -> break }
	od;
	if
	:: !STALLED ->
		assert(nic_under_way[0] == 0 && nic_unsignalled == 0 && nic_under_way[NICS - 1] == 0);
		assert(peer_under_way[0] == 0 && peer_under_way[1] == 0);
		assert(peer_unsignalled[0] == 0 && peer_unsignalled[1] == 0)
	:: else
	fi;
#ifdef WITNESS
	assert(false)
#endif
}

#define LAND								\
	in_network[n]--;						\
	landed[i] = landed[i] + (landed[i] < PIECES);			\
	assert(!with || landed[i] == PIECES);				\
	if								\
	:: r > 0 -> events ! r - 1, g					\
	:: else								\
	fi;								\
	r = 0; g = 0; i = 0; with = false

proctype network(byte p; byte n)
{
	byte r, g, i;
	bool with;
end:
	do
	:: atomic { ORDERED && !(STALLED && p == 1) && nempty(wire[p * NICS + n]) -> wire[p * NICS + n] ? r, g, i, with; LAND }
#if !ORDERED
	:: atomic { !(STALLED && p == 1) && wire[p * NICS + n] ?? [1, g, i, with] -> wire[p * NICS + n] ?? 1, g, i, with; r = 1; LAND }
	:: atomic { !(STALLED && p == 1) && wire[p * NICS + n] ?? [2, g, i, with] -> wire[p * NICS + n] ?? 2, g, i, with; r = 2; LAND }
	:: atomic { !(STALLED && p == 1) && wire[p * NICS + n] ?? [3, g, i, with] -> wire[p * NICS + n] ?? 3, g, i, with; r = 3; LAND }
	:: atomic { !(STALLED && p == 1) && wire[p * NICS + n] ?? [4, g, i, with] -> wire[p * NICS + n] ?? 4, g, i, with; r = 4; LAND }
#endif
	od
}

#if MORTAL
/* What was in the networks is gone; what was reported still lies among the events. */
active proctype death()
{
	byte n;
end:
	atomic {
		!dead -> dead = true;
		for (n : 0 .. NICS - 1) {
			do
			:: len(wire[NICS + n]) > 0 -> wire[NICS + n] ? _, _, _, _; in_network[n]--
			:: else -> break
			od
		}
	}
}
#endif

init
{
	byte p, n;
	atomic {
		for (p : 0 .. PEERS - 1) {
			for (n : 0 .. NICS - 1) {
				run network(p, n)
			}
		}
	}
}
