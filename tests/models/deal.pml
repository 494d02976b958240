/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both products of a layer's experts (src/gpu/cuda/layer/deal.cuh): the kernels of its rounds on one stream, of which gate and up may run beside the dispatch, and down begins before gate and up has ended.
 *
 *   dispatch   waits for the combine ahead of it, lets gate and up start, brings rows
 *   gate, up   blocks; each lets down start, takes the tile of its own number, draws others, stores each tile of h and counts it by expert; ends behind the dispatch's end
 *   down       blocks; each lets the combine start, takes and draws tiles, and looks at an expert's count before it reads h; ends behind the end of gate and up, and the last one puts the words back
 *   combine    waits for down's end
 *
 * A kernel may start when all blocks ahead of it have let it, or have ended; its blocks start at any time from then on, as SMs become free. A round has 0 to TILES tiles, of experts with two each.
 * A count is a release and a look an acquire, so that taking one away is a count before its store, or no look. A look may be given up, as one that takes too long is: then all is there with the end of
 * gate and up. Proves that each tile of each product is made once in each round, that down reads what this round's gate and up has stored, and that the next round finds the words as they were.
 */
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef TILES
#define TILES 3
#endif
#ifndef BLOCKS
#define BLOCKS 2
#endif
#define EXPERTS ((TILES + 1) / 2)

#define GATE 0
#define DOWN 1
#define ALL(r) (BLOCKS * (r))

byte drawn[2], counted[EXPERTS], ended; /* words */
byte h[TILES];                          /* the round that stored it */
byte nr[ROUNDS + 1];                    /* ghost: tiles */
byte made[2 * TILES];                   /* ghost: in which round last */
byte rounds;                            /* combines that have ended */
byte dispatch_let, dispatch_ended, gate_let, gate_ended, down_let, down_ended; /* blocks, over all rounds */

inline make(which, tile)
{
	d_step {
		assert(made[which * TILES + tile] != r);
		made[which * TILES + tile] = r
	}
}

inline draw(which, tile)
{
	d_step {
		tile = BLOCKS + drawn[which];
		drawn[which]++
	}
}

proctype gate(byte r; byte tile)
{
	gate_let++;
	do
	:: tile >= nr[r] -> break
	:: else ->
		make(GATE, tile);
#ifdef BREAK_COUNTED_FIRST
		counted[tile / 2]++;
		h[tile] = r;
#else
		h[tile] = r;
		counted[tile / 2]++;
#endif
		draw(GATE, tile)
	od;
#ifndef BREAK_ENDS_FIRST
	dispatch_ended >= r;
#endif
	gate_ended++
}

/* All of an expert's tiles, the one of this number among them. */
inline look(tile)
{
#ifdef BREAK_NO_LOOK
	skip
#else
	if
	:: counted[tile / 2] == (tile / 2 * 2 + 1 < nr[r] -> 2 : 1)
	:: gate_ended == ALL(r)
	fi
#endif
}

inline read(tile)
{
	d_step {
		assert(h[tile / 2 * 2] == r);
		assert(tile / 2 * 2 + 1 >= nr[r] || h[tile / 2 * 2 + 1] == r)
	}
}

proctype down(byte r; byte tile)
{
	byte before, i;

	down_let++;
#ifdef BREAK_ENDED_FIRST
	d_step { before = ended; ended++ };
#endif
	do
	:: tile >= nr[r] -> break
	:: else ->
		look(tile);
		read(tile);
		make(DOWN, tile);
		draw(DOWN, tile)
	od;
#ifdef BREAK_PUT_BACK_BEFORE_END
	skip;
#else
	gate_ended == ALL(r);
#endif
#ifndef BREAK_ENDED_FIRST
	d_step { before = ended; ended++ };
#endif
	if
#ifdef BREAK_FIRST_PUTS_BACK
	:: before == 0 ->
#else
	:: before == BLOCKS - 1 ->
#endif
		drawn[GATE] = 0;
		drawn[DOWN] = 0;
#ifndef BREAK_COUNTS_KEPT
		for (i : 0 .. EXPERTS - 1) {
			counted[i] = 0
		}
#endif
		ended = 0
	:: else
	fi;
	gate_ended == ALL(r);
	assert(dispatch_ended >= r);
	down_ended++
}

active proctype dispatch()
{
	byte r = 1, tiles;

	do
	:: r <= ROUNDS ->
#ifdef BREAK_LET_BEFORE_WAIT
		r == 1 || down_let == ALL(r - 1); /* the combine has let it start */
#else
		rounds == r - 1;
#endif
		select(tiles : 0 .. TILES);
		nr[r] = tiles;
		dispatch_let = r;
		rounds == r - 1;
		dispatch_ended = r;
		r++
	:: else -> break
	od
}

active proctype gates()
{
	byte r = 1, i;

	do
	:: r <= ROUNDS ->
		dispatch_let >= r;
		for (i : 0 .. BLOCKS - 1) {
			run gate(r, i)
		}
		r++
	:: else -> break
	od
}

active proctype downs()
{
	byte r = 1, i;

	do
	:: r <= ROUNDS ->
		gate_let == ALL(r);
		for (i : 0 .. BLOCKS - 1) {
			run down(r, i)
		}
		r++
	:: else -> break
	od
}

active proctype combine()
{
	byte r = 1, i;

	do
	:: r <= ROUNDS ->
		down_let >= ALL(r) && down_ended == ALL(r);
		d_step {
			for (i : 0 .. 2 * TILES - 1) {
				assert((made[i] == r) == (i % TILES < nr[r]))
			}
		}
#ifdef WITNESS
		assert(r < ROUNDS || nr[r] < TILES);
#endif
		rounds = r;
		r++
	:: else -> break
	od
}
