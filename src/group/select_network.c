/* SPDX-License-Identifier: Apache-2.0 */
/* Which networks this rank offers to ranks whose memory cannot be mapped, and what has come of it,
 * in words. */
#include "group/select_network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "base/rank_list.h"

#define BY_DEFAULT "verbs+ofi"
#define MOST_WAYS 16 /* told apart */
#define SELF UINT8_MAX
#define LEAST_ROOM 64

/* "verbs@mlx5_0+ofi": the second does. */
static bool leaves_a_device_open(const char *transport)
{
	for (const char *at = transport; at; at = strchr(at, '+')) {
		at += *at == '+';
		if (!memchr(at, '@', strcspn(at, "+")))
			return true;
	}
	return false;
}

void select_networks(const char *setting, struct choice *choice)
{
	const char *environment = getenv("TERN_TRANSPORT");

	choice->transport = setting ? setting : environment ? environment : BY_DEFAULT;
	choice->by = setting ? "by setting" : environment ? "by TERN_TRANSPORT" : "by default";
	choice->device =
		leaves_a_device_open(choice->transport) ? getenv("TERN_NODE_ADDRESS") : NULL;
}

/* ---- in words -------------------------------------------------------------------------------- */

static const char *way_to(const tern_group *group, int rank)
{
	switch (group->peers[rank].path) {
	case TERN_PATH_MAPPED:
		return "shared memory";
	case TERN_PATH_ENGINE:
		return engine_why(group->engine, (uint32_t)rank);
	default:
		return group->no_engine;
	}
}

/* Which of the ways leads to each rank; those that are one too many count as the last. */
static uint32_t find_ways(const tern_group *group, const char *ways[MOST_WAYS], uint8_t *way_of)
{
	uint32_t nr = 0;

	for (int r = 0; r < group->nr_ranks; r++) {
		const char *way = r == group->rank ? NULL : way_to(group, r);
		uint32_t w = 0;

		while (way && w < nr && strcmp(ways[w], way))
			w++;
		if (way && w == nr && nr < MOST_WAYS)
			ways[nr++] = way;
		way_of[r] = !way ? SELF : (uint8_t)(w < MOST_WAYS ? w : MOST_WAYS - 1);
	}
	return nr;
}

static size_t add(char *text, size_t bytes, size_t at, const char *before, const char *what)
{
	size_t length =
		at < bytes ? (size_t)snprintf(text + at, bytes - at, "%s%s", before, what) : 0;

	return at + length < bytes ? at + length : bytes - 1;
}

void describe_paths(const tern_group *group, const struct choice *choice, char *text, size_t bytes)
{
	const char *ways[MOST_WAYS];
	uint8_t *way_of = calloc((size_t)group->nr_ranks, sizeof(*way_of));
	uint32_t nr = way_of ? find_ways(group, ways, way_of) : 0;
	size_t at = add(text, bytes, 0, group->nr_ranks == 1 ? "no peers" : "", "");

	for (uint32_t w = 0; w < nr && bytes - at > LEAST_ROOM; w++) {
		at = add(text, bytes, at, at ? "; " : "", "");
		at += rank_list(
			text + at, (bytes - at) / 2, way_of, (uint32_t)group->nr_ranks, (uint8_t)w);
		at = add(text, bytes, at, ": ",
			w + 1 == MOST_WAYS ? "each for a reason of its own" : ways[w]);
	}
	if (choice) {
		at = add(text, bytes, at, "; offered here ", choice->by);
		at = add(text, bytes, at, ": ", choice->transport);
	}
	if (group->engine)
		add(text, bytes, at, "; open: ", tern_engine_describe(group->engine));
	free(way_of);
}

void describe_more(tern_group *group, const char *what)
{
	char *text = group->description, first;
	size_t length = strlen(text), bytes = sizeof(group->description);

	if (strstr(text, what) || length + LEAST_ROOM > bytes)
		return;
	add(text, bytes, length + 1, " ", what);
	first = ';';
	__atomic_store_n(&text[length], first, __ATOMIC_RELEASE);
}
