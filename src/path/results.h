/* SPDX-License-Identifier: Apache-2.0 */
/* Results for homes that are not mapped: staged as a whole in low-latency mode, in pieces that
 * leave when they are full in high-throughput mode. */
#ifndef TERN_PATH_RESULTS_H
#define TERN_PATH_RESULTS_H

#include "path/place.h"

/* True if one of the homes [first, first + replica_ranks) is not mapped. */
bool results_are_staged(const tern_moe *moe, uint32_t first);

/* Where the result `home_row` of these homes is stored. May time out in high-throughput mode;
 * nothing is begun then. */
int results_place(tern_moe *moe, uint32_t slot, uint32_t first, uint32_t home_row, uint8_t **place);

/* What was placed leaves. */
int results_flush(tern_moe *moe, uint32_t slot);

/* Begins of what is published to a home: of staging in low-latency mode, of its note in
 * high-throughput mode. */
void results_publication(
	tern_moe *moe, uint32_t slot, uint32_t home, struct publication *publication);

/* ---- for path_engine.c ----------------------------------------------------------------------- */

uint64_t results_bytes(const tern_moe *moe); /* of staging */
int results_open(tern_moe *moe);
bool results_settled(const tern_moe *moe); /* every piece has landed */
void results_begin_again(tern_moe *moe); /* no half is under way: what was placed does not leave */
void results_close(tern_moe *moe, uint64_t deadline_ns);
/* On the proxy: a piece has landed; or its note has, with the word's epoch. */
void results_piece(tern_moe *moe, uint32_t slot, uint32_t source, uint32_t epoch);
void results_announced(tern_moe *moe, uint32_t slot, uint32_t source, uint32_t epoch);

#endif
