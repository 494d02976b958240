/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BASE_RANK_LIST_H
#define TERN_BASE_RANK_LIST_H

#include <stddef.h>
#include <stdint.h>

/* For people: "rank 3", "ranks 0-3, 6", of those whose set_of[rank] is `set`; ends with "..." where
 * there is no room for all. Returns the text's length, which is less than bytes. */
size_t rank_list(char *text, size_t bytes, const uint8_t *set_of, uint32_t nr_ranks, uint8_t set);

#endif
