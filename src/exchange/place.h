/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that move between rounds: tern_moe_place. A round is of one version of the tables, which
 * travels ahead of its rows: with counts in high throughput, else at the head of each region. */
#ifndef TERN_EXCHANGE_PLACE_H
#define TERN_EXCHANGE_PLACE_H

#include "exchange/state.h"

/* All sources of the slot's round have the struct placed of this rank at `placed`, `stride` bytes
 * from one to the next; else TERN_ERR_MISMATCH names them, and the exchange is over. */
int placed_check(tern_moe *moe, uint32_t slot, const uint8_t *placed, uint64_t stride);

#endif
