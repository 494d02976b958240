/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on devices that go on when members of their group die: what a change of view takes
 * here. docs/survive.md, "On GPUs". */
#ifndef TERN_GPU_HOST_ELASTIC_H
#define TERN_GPU_HOST_ELASTIC_H

#include "gpu/host/inside.h"

/* Collective, when all else is open. Closing is fine after any failure, before the board goes. */
int device_elastic_open(tern_moe *moe);
void device_elastic_close(tern_moe *moe);

/* Any thread: a process has ended. All waits of this rank's kernels end, if it was a member's. */
void device_elastic_died(tern_moe *moe, uint32_t rank);

/* 0, or TERN_ERR_MEMBERS, where a change is wanted or somebody has died; TERN_ERR_LOST_EXPERTS. */
int device_elastic_look(tern_moe *moe);

/* The same, but what has happened alone: nobody is told that a change is wanted. */
bool device_elastic_changes(const tern_moe *moe);

/* Other tables, between rounds: the check waits for the device. */
int device_elastic_place_check(tern_moe *moe);
int device_elastic_place(tern_moe *moe);

/* exchange/ops.h */
int device_still_owed(tern_moe *moe, uint32_t slot);

#endif
