/* SPDX-License-Identifier: Apache-2.0 */
/* The path to ranks whose windows are not mapped: path.h, by way of the transfer engine. */
#ifndef TERN_PATH_PATH_ENGINE_H
#define TERN_PATH_PATH_ENGINE_H

#include "path/place.h"

int engine_path_open(tern_moe *moe);
void engine_path_close(tern_moe *moe);
uint8_t *engine_path_region(const tern_moe *moe, uint32_t slot, uint32_t rank);
uint8_t *engine_path_counts(const tern_moe *moe, uint32_t slot, uint32_t epoch);
int engine_path_begin(tern_moe *moe, uint32_t slot, enum word_kind kind);
int engine_path_publish(tern_moe *moe, uint32_t rank, const struct publication *publication);
void engine_path_settle(tern_moe *moe);
void engine_path_leave(tern_moe *moe, uint64_t leave_status);
uint64_t engine_path_bytes(const tern_moe *moe);

#endif
