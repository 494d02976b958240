/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTS_ENGINE_SHARED_H
#define TERN_TESTS_ENGINE_SHARED_H

#include "tern_engine.h"
#include "tests/exchange/ranks.h"

/* Collective: registers this rank's memory, and takes in that of all ranks: remotes[nr_ranks].
 * Returns 0 or a code. */
int share_memory(struct rank *rank, tern_engine *engine, void *memory, uint64_t bytes,
	tern_region **region, tern_remote **remotes);

#endif
