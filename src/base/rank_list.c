/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rank_list.h"

#include <stdio.h>

#define LONGEST_RUN 32 /* ", 4294967295-4294967295, ..." */

static uint32_t end_of_run(const uint8_t *set_of, uint32_t nr_ranks, uint8_t set, uint32_t at)
{
	while (at < nr_ranks && set_of[at] == set)
		at++;
	return at;
}

size_t rank_list(char *text, size_t bytes, const uint8_t *set_of, uint32_t nr_ranks, uint8_t set)
{
	uint32_t nr = 0;
	size_t at;

	if (bytes < LONGEST_RUN) {
		snprintf(text, bytes, "...");
		return bytes > 3 ? 3 : bytes - !!bytes;
	}
	for (uint32_t r = 0; r < nr_ranks; r++)
		nr += set_of[r] == set;
	at = (size_t)snprintf(text, bytes, nr == 1 ? "rank" : "ranks");
	for (uint32_t r = 0, end, told = 0; r < nr_ranks; r = end + 1) {
		end = end_of_run(set_of, nr_ranks, set, r);
		if (end == r)
			continue;
		if (bytes - at < LONGEST_RUN)
			return at + (size_t)snprintf(text + at, bytes - at, ", ...");
		at += (size_t)snprintf(text + at, bytes - at, "%s%u", told++ ? ", " : " ", r);
		if (end > r + 1)
			at += (size_t)snprintf(text + at, bytes - at, "-%u", end - 1);
	}
	return at;
}
