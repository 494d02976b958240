/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits of a tile (src/gpu/cuda/layer/split.cuh): blocks that each have a part of k leave their sums in memory and add one to the tile's word; who finds all others there adds the sums up and
 * puts the word back. The next launch begins when all of this one's blocks have ended.
 *
 * A store is told to other blocks at the latest by its block's next release, or when the launch ends. Proves that in each launch one block, and no more than one, adds up sums, and that it
 * reads all of this launch's.
 */
#ifndef SPLITS
#define SPLITS 3
#endif
#ifndef LAUNCHES
#define LAUNCHES 3
#endif

byte launch, arrived, running;
byte sum[SPLITS];   /* as others see it: the launch that left it */
bool flies[SPLITS]; /* stored, and not told yet */
byte added;         /* ghost: by how many blocks of this launch */

inline tell(i)
{
	d_step {
		if
		:: flies[i] -> sum[i] = launch; flies[i] = false
		:: else
		fi
	}
}

proctype block(byte i)
{
	byte came, j, seen[SPLITS];

	flies[i] = true;
#ifdef BREAK_NO_ACQUIRE
	d_step {
		for (j : 0 .. SPLITS - 1) { seen[j] = sum[j] }
	}
#endif
	if
#ifdef BREAK_NO_RELEASE
	:: skip
#endif
	:: tell(i)
	fi;
	atomic { came = arrived; arrived++ }
#ifdef BREAK_FIRST_ADDS
	if
	:: came == 0 ->
#else
	if
	:: came == SPLITS - 1 ->
#endif
#ifndef BREAK_KEPT
		arrived = 0;
#endif
#ifndef BREAK_NO_ACQUIRE
		d_step {
			for (j : 0 .. SPLITS - 1) { seen[j] = sum[j] }
		}
#endif
		d_step {
			for (j : 0 .. SPLITS - 1) { assert(j == i || seen[j] == launch) }
		}
		added++
	:: else
	fi;
	tell(i); /* the launch's end */
	running--
}

init {
	byte i;

	do
	:: launch < LAUNCHES ->
		atomic {
			launch++;
			added = 0;
			running = SPLITS;
			for (i : 0 .. SPLITS - 1) { run block(i) }
		}
		running == 0;
		assert(added == 1)
	:: else -> break
	od
#ifdef WITNESS
	assert(false)
#endif
}
