/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of several ranks in one test, over loop: stepped by the test's own thread in a time of
 * its own, or each with its proxy. */
#ifndef TERN_TESTS_ENGINE_WORLD_H
#define TERN_TESTS_ENGINE_WORLD_H

#include "engine/engine.h"
#include "tests/engine/loop.h"

#define WORLD_BYTES (1u << 20)

struct world {
	struct loop_net net;
	struct loop_net other; /* where `apart` is a rank: leads from it to all and from all to it
				*/
	int nr, apart;
	struct scheduler scheduler; /* of stepped engines */
	uint64_t now_ns;
	uint64_t pace_ns;        /* time that passes in each round of idle */
	bool frozen[LOOP_RANKS]; /* not stepped */
	tern_engine *engines[LOOP_RANKS];
	uint8_t *memory[LOOP_RANKS];
	tern_region *regions[LOOP_RANKS];
	tern_remote *remotes[LOOP_RANKS][LOOP_RANKS]; /* [at][of] */
	void (*watch)(struct world *world);           /* after each round */
	void *watch_ctx;
};

void world_settings(struct loop_settings *settings, struct tern_engine_config *config);
void world_open(struct world *world, int nr, const struct loop_settings *settings,
	const struct tern_engine_config *config, bool stepped);
/* The same with two networks. The rank that is apart has the other one alone. */
void world_open_mixed(struct world *world, int nr, const struct loop_settings *settings,
	const struct loop_settings *other, uint32_t other_nics, int apart,
	const struct tern_engine_config *config, bool stepped);
struct loop_net *world_net(struct world *world, int from, int to); /* the network that leads from
								      one to the other */
void world_close(struct world *world);
void world_round(void *world);             /* steps all engines once */
uint8_t world_byte(int rank, uint64_t at); /* what world_open fills memory with */
const uint8_t *world_bytes(int rank);      /* all WORLD_BYTES of it */

#endif
