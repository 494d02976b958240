/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of weights of several ranks over a simulated network that spoils bytes and loses ranks:
 * each moves experts into its places at random, and all bytes of all that is held are looked at. */
#ifndef TERN_TESTS_ENGINE_WEIGHTS_WORLD_H
#define TERN_TESTS_ENGINE_WEIGHTS_WORLD_H

#include <stdint.h>

struct weights_world {
	/* in */
	uint64_t seed;
	uint32_t spoil_per_mille; /* of pieces of writes */
	uint32_t nr_moves;        /* of each rank */
	int kills;                /* not 0: one rank dies on the way */
	/* out */
	uint64_t nr_whole, nr_lost, nr_wrong_pages, nr_spoilt, nr_left;
	uint64_t nr_wrong; /* places whose bytes are not those of what they hold */
	char failure[512]; /* "": all else was well */
};

void weights_world_run(struct weights_world *world);

#endif
