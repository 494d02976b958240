/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles that are drawn (src/gpu/cuda/layer/deal.cuh): the kernels of a layer's rounds on one stream, of which gate and up runs beside the dispatch, and down begins before gate and up has ended.
 *
 *   dispatch   waits for the combine ahead of it, lets gate and up start, brings rows
 *   gate, up   two blocks; block 0 zeroes what down draws from; each lets down start, takes the tile of its own number, draws others, and ends behind the dispatch's end
 *   down       two blocks, of two warps each: one lets the combine start, and draws tiles, whose weights it loads ahead; the other waits for the end of gate and up, and loads rows; block 0's zeroes what gate
 *              and up draws from
 *   combine    waits for down's end
 *
 * A kernel may start when all blocks ahead of it have let it, or have ended; its blocks start at any time from then on, as SMs become free. The words are drawn from and zeroed by atomics on one GPU, so a
 * value is that of the last one. Proves that each tile of each product is taken once in each round, and that rows of h are read when all of them are made.
 */
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef TILES
#define TILES 4
#endif
#define BLOCKS 2

#define GATE 0
#define DOWN 1

byte drawn[2];
byte taken[2 * TILES]; /* ghost: in which round last */
byte rounds;                               /* combines that have ended */
byte dispatch_let, dispatch_ended, gate_let, gate_ended, down_let; /* blocks, over all rounds */

#define ALL(r) (BLOCKS * (r))

/* The next one is drawn before this one's weights are loaded. */
inline take(which)
{
	do
	:: nr < TILES ->
		d_step {
			next = BLOCKS + drawn[which];
			drawn[which]++;
		}
		d_step {
			assert(taken[which * TILES + nr] == r - 1); /* nobody else has, in this round */
			taken[which * TILES + nr] = r;
			nr = next;
		}
	:: else -> break
	od
}

proctype gate(byte r; byte b)
{
	byte nr = b, next;

#ifdef BREAK_LET_BEFORE_ZERO
	gate_let++;
	if
	:: b == 0 -> drawn[DOWN] = 0
	:: else
	fi;
#else
	if
	:: b == 0 -> drawn[DOWN] = 0
	:: else
	fi;
	gate_let++;
#endif
	take(GATE);
#ifndef BREAK_ENDS_FIRST
	dispatch_ended >= r;
#endif
	gate_ended++;
}

byte down_warps; /* that have ended, over all rounds */

proctype down_weights(byte r; byte b)
{
	byte nr = b, next;

	down_let++;
	take(DOWN);
	down_warps++;
}

proctype down_rows(byte r; byte b)
{
	byte i;

#ifndef BREAK_ZERO_BEFORE_END
	gate_ended == ALL(r);
#endif
	if
	:: b == 0 -> drawn[GATE] = 0
	:: else
	fi;
	gate_ended == ALL(r);
	d_step {
		assert(dispatch_ended >= r);
		i = 0;
		do
		:: i < TILES ->
			assert(taken[GATE * TILES + i] == r);
			i++
		:: else -> break
		od
	}
	down_warps++;
}

active proctype dispatch()
{
	byte r = 1;

	do
	:: r <= ROUNDS ->
#ifdef BREAK_LET_BEFORE_WAIT
		r == 1 || down_let == ALL(r - 1); /* the combine has let it start */
		dispatch_let = r;
		rounds == r - 1;
#else
		rounds == r - 1;
		dispatch_let = r;
#endif
		dispatch_ended = r;
		r++
	:: else -> break
	od
}

active proctype gates()
{
	byte r = 1;

	do
	:: r <= ROUNDS ->
		dispatch_let >= r;
		run gate(r, 0);
		run gate(r, 1);
		r++
	:: else -> break
	od
}

active proctype downs()
{
	byte r = 1;

	do
	:: r <= ROUNDS ->
		gate_let == ALL(r);
		run down_weights(r, 0);
		run down_rows(r, 0);
		run down_weights(r, 1);
		run down_rows(r, 1);
		r++
	:: else -> break
	od
}

active proctype combine()
{
	byte r = 1, i;

	do
	:: r <= ROUNDS ->
		down_let >= ALL(r) && down_warps == 2 * ALL(r);
		d_step {
			i = 0;
			do
			:: i < TILES ->
				assert(taken[DOWN * TILES + i] == r);
				i++
			:: else -> break
			od
		}
#ifdef WITNESS
		assert(r < ROUNDS);
#endif
		rounds = r;
		r++
	:: else -> break
	od
}
