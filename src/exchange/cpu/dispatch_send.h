/* SPDX-License-Identifier: Apache-2.0 */
/* The first half, for calls that have the second one too. */
#ifndef TERN_EXCHANGE_CPU_DISPATCH_SEND_H
#define TERN_EXCHANGE_CPU_DISPATCH_SEND_H

#include "exchange/cpu/plans.h"
#include "exchange/state.h"

/* Arguments and the slot's state. joined: the second half is called with the first, and goes on if
 * that is done. */
int dispatch_check(tern_moe *moe, const struct tern_dispatch *args, bool joined);

/* The first half, when all arguments have been checked. */
int dispatch_send(tern_moe *moe, const struct tern_dispatch *args);

/* A round that this rank has released ends: all others have. */
int wait_for_released(tern_moe *moe, uint32_t slot);

/* In place of a dispatch: the slot's next round begins without rows, as a plan is combined again.
 * Waits until all have begun it. Called again after a time-out, it goes on. */
int dispatch_nothing(tern_moe *moe, uint32_t slot, const struct kept_plan *plan, uint64_t tag);

#endif
