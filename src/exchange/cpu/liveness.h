/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_EXCHANGE_CPU_LIVENESS_H
#define TERN_EXCHANGE_CPU_LIVENESS_H

#include "exchange/state.h"

/* Waits until every rank's word of this kind carries the slot's epoch: first by spinning, then
 * asleep on the phase's event_count. TERN_ERR_TIMEOUT after the exchange's wait_ms; sooner, and for
 * good, when a missing peer has died or left. Fills in moe->report. */
int wait_for_all(tern_moe *moe, uint32_t slot, enum word_kind kind, enum tern_phase phase);

/* That of a dispatch, and adds to waited_ns[R] how long each rank was waited for, also where that
 * was in vain. */
int wait_and_time(tern_moe *moe, uint32_t slot, uint64_t *waited_ns);

/* Waits in dispatch until `peer` has made room: ready(ctx). TERN_ERR_TIMEOUT after wait_ms; sooner,
 * and for good, when the peer has died or left. */
int wait_for_room(tern_moe *moe, uint32_t slot, uint32_t peer, bool (*ready)(void *ctx), void *ctx);

#endif
