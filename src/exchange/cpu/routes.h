/* SPDX-License-Identifier: Apache-2.0 */
/* From the caller's arguments to the plan of a round: what a dispatch does before it sends
 * anything. */
#ifndef TERN_EXCHANGE_CPU_ROUTES_H
#define TERN_EXCHANGE_CPU_ROUTES_H

#include "exchange/state.h"

/* Reads and checks all ids, and chooses replicas. Fills slot->physical, which means nothing until
 * the slot's state moves on. */
int routes_read(tern_moe *moe, struct slot *s, const struct tern_dispatch *args);

/* Keeps the weights and counts rows and routes: the round has begun. */
void routes_count(tern_moe *moe, struct slot *s, const struct tern_dispatch *args);

/* What this rank stores in this round's dispatch. */
uint64_t routes_bytes(const tern_moe *moe, const struct slot *s);

/* Adds the round to the statistics. */
void routes_account(tern_moe *moe, const struct slot *s);

#endif
