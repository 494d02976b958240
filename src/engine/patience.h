/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded wait of a caller: spins, then yields, then gives time away; a stepped engine is stepped
 * by it. */
#ifndef TERN_ENGINE_PATIENCE_H
#define TERN_ENGINE_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"

#define PATIENCE_SPINS 200 /* rounds, before it yields */

struct patience {
	tern_engine *engine;
	uint64_t deadline_ns, last_ns;
	uint32_t rounds, stuck;
};

struct patience patience_for(tern_engine *engine, uint64_t wait_ns);
bool patience_left(struct patience *patience); /* false: time is up */

uint64_t engine_now(const tern_engine *engine);
bool engine_on_proxy(const tern_engine *engine);

#endif
