/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between the protocol and what moves the bytes. A half asks where bytes for a peer go,
 * stores them there, and publishes the arrival word of the phase when all are stored. On the mapped
 * path that place is the peer's window itself. On the engine path it is staging, which publishing
 * sends. In high-throughput mode rows and results for ranks that are not mapped leave in bounded
 * pieces meanwhile: internode_send.h, results.h. */
#ifndef TERN_PATH_PATH_H
#define TERN_PATH_PATH_H

#include "path/place.h"

/* Where this rank's region for `rank` is filled in: low latency, or mapped. */
uint8_t *path_region(const tern_moe *moe, uint32_t slot, uint32_t rank);

/* Where this rank's counts for `rank` are filled in. Those that are not mapped share one place. */
uint8_t *path_counts(const tern_moe *moe, uint32_t slot, uint32_t rank);

/* Everything placed for `rank` is complete: hand it over, publish the word and wake the rank if it
 * sleeps for it. Fails where the rank cannot be reached any more; the exchange is then over. */
int path_publish(tern_moe *moe, uint32_t rank, const struct publication *publication);

/* Before a half places anything: staging of the slot's previous round is free, or TERN_ERR_TIMEOUT
 * as any wait. */
int path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind);

/* Collective: the ways to all ranks, once windows are mapped. Undone by paths_close. */
int paths_open(tern_moe *moe);
void paths_close(tern_moe *moe);

/* Before this rank leaves with all well: what it sent has landed and been passed on, or wait_ms is
 * over. */
void path_settle(tern_moe *moe);

/* This rank leaves, or gives up because of `peer`: leave word as in wire.h. */
void path_leave(tern_moe *moe, uint64_t leave_status);

/* The leave word of a rank, 0 while it takes part. */
uint64_t path_leave_status(const tern_moe *moe, uint32_t rank);

/* True if the rank's process is known to have ended, or its network to be gone; *text tells the
 * latter's cause, or is NULL. */
bool path_is_lost(const tern_moe *moe, uint32_t rank, const char **text);

/* The rank whose rows from `source` this one gets: a gateway on this node, or `source` itself. */
uint32_t path_relay_of(const tern_moe *moe, uint32_t source);

/* The rank that sent what no correct peer sends, and what it was; -1: none did. */
int path_broken(const tern_moe *moe, const char **text);

/* Bytes that wait to be sent, or arrived to be passed on; not those of regions. */
uint64_t path_staging_bytes(const tern_moe *moe);

#endif
