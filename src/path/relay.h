/* SPDX-License-Identifier: Apache-2.0 */
/* A gateway's part of rows between nodes; on the proxy but for open and close. */
#ifndef TERN_PATH_RELAY_H
#define TERN_PATH_RELAY_H

#include "exchange/state.h"

int relay_open(tern_moe *moe);
void relay_close(tern_moe *moe, uint64_t deadline_ns);
void relay_chunk(tern_moe *moe, uint32_t source, uint32_t bits);
/* What has come of rounds, and credits that are owed, are of a view that is over. */
void relay_forget(tern_moe *moe);
/* Its rows. False: broken. */
bool relay_take(tern_moe *moe, uint32_t source, uint32_t channel, uint32_t chunk);
void relay_more(void *moe);

#endif
