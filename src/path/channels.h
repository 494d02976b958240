/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to other nodes in high-throughput mode: once for each node, in chunks, to the gateway there.
 * All may time out, and go on where they were when called again; what one call took of a channel it
 * has sent or given back when it returns.
 */
#ifndef TERN_PATH_CHANNELS_H
#define TERN_PATH_CHANNELS_H

#include "exchange/plan.h"
#include "exchange/rows.h"

/* Room for a row of so many bytes on the way to a node. */
int channels_room(tern_moe *moe, uint32_t slot, uint32_t node, uint32_t bytes);

/* Where the row goes that there is room for. */
struct chunk_writer *channels_writer(tern_moe *moe, uint32_t node);

/* All rows of the round are in chunks: the last ones leave, to every node. */
int channels_finish(tern_moe *moe, uint32_t slot);

/* A call ends before the round is sent: what is in chunks leaves. */
int channels_flush(tern_moe *moe, uint32_t slot);

#endif
