/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated networks for the suite: fair weather, foul weather, and foul weather in order with
 * fences. */
#ifndef TERN_TESTS_TRANSPORT_SIMULATED_H
#define TERN_TESTS_TRANSPORT_SIMULATED_H

#include "tests/transport/world.h"

void *make_fair(const struct network *network, uint32_t nr_peers);
void *make_foul(const struct network *network, uint32_t nr_peers);
void *make_foul_ordered(const struct network *network, uint32_t nr_peers);
void pump_simulated(void *made);
void unmake_simulated(void *made);

#endif
