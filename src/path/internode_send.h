/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to other nodes in high-throughput mode: once for each node, in chunks, to the gateway there.
 * Where no chunk is free the answer is CHANNEL_FULL: the caller waits until channel_has_room, and
 * calls again, which goes on where it was. */
#ifndef TERN_PATH_INTERNODE_SEND_H
#define TERN_PATH_INTERNODE_SEND_H

#include "exchange/plan.h"
#include "exchange/rows.h"
#include "path/chunk.h"

#define CHANNEL_FULL 1

/* Who gives chunks of this node's channel back, and whether one is free. */
uint32_t channel_gateway(const tern_moe *moe, uint32_t node);
bool channel_has_room(tern_moe *moe, uint32_t node);

/* Room for a row of so many bytes on the way to a node. */
int channels_room(tern_moe *moe, uint32_t slot, uint32_t node, uint32_t bytes);

/* Where the row goes that there is room for. */
struct chunk_writer *channels_writer(tern_moe *moe, uint32_t node);

/* All rows of the round are in chunks: the last ones leave, to every node. *node: whose channel is
 * full. */
int channels_finish(tern_moe *moe, uint32_t slot, uint32_t *node);

/* A call ends before the round is sent: what is in chunks leaves. */
int channels_flush(tern_moe *moe, uint32_t slot);

/* ---- for path_engine.c ----------------------------------------------------------------------- */

uint64_t channels_bytes(const tern_moe *moe); /* of staging */
int channels_open(tern_moe *moe);
void channels_close(tern_moe *moe, uint64_t deadline_ns);
void channels_credit(tern_moe *moe, uint32_t gateway, uint32_t bits); /* on the proxy */
bool channels_have_landed(const tern_moe *moe);                       /* all that was sent */
/* On the proxy, while no half is under way: all chunks are free, and gateways are chosen anew. */
void channels_begin_again(tern_moe *moe);
bool channels_settled(const tern_moe *moe); /* every chunk to a gateway that still takes part has
					       been given back */

#endif
