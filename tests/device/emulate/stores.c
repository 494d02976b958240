/* SPDX-License-Identifier: Apache-2.0 */
/* Stores that are under way. A fence makes those arrive that come before it: the lane's own, and
 * those of lanes that it has met since. */
#include <stdlib.h>
#include <string.h>

#include "tests/device/emulate/inside.h"

#define LINE_BYTES 128
#define MOST_UNDER_WAY 16384 /* within a pass: a line for each of 256 ranks, many times */
#define MOST_LEFT 512        /* after it */
#define ONE_RESTS 64         /* of so many groups */
#define LINE_SLOTS 65536

/* What arrives together: of one line, from one pass of a warp. */
struct group {
	struct handed_on by;
	const struct operation *launch;
	uint8_t *line;
	uint32_t pass, nr;
	bool whole;
	uint64_t not_before;   /* turn */
	uint16_t older, newer; /* of those to lines of this hash, counted from 1 */
	struct {
		uint8_t *to;
		uint32_t bytes;
		uint8_t value[16];
	} of[LINE_BYTES / 16];
};

static struct group under_way[MOST_UNDER_WAY];
static uint32_t nr;
static uint16_t newest[LINE_SLOTS]; /* of those under way to lines of a hash, counted from 1 */

/* In one pass a warp stores thousands of words where there are hundreds of ranks, so who looks for
 * those to a line looks at no others. */
static uint16_t *newest_of(const uint8_t *line)
{
	return &newest[(uintptr_t)line / LINE_BYTES * 0x9e3779b1u >> 7 & (LINE_SLOTS - 1)];
}

/* Its neighbours have it at place `at` from here on. */
static void link_at(const struct group *g, uint16_t at)
{
	if (g->older)
		under_way[g->older - 1].newer = at;
	if (g->newer)
		under_way[g->newer - 1].older = at;
	else
		*newest_of(g->line) = at;
}

static void unlink_group(const struct group *g)
{
	if (g->older)
		under_way[g->older - 1].newer = g->newer;
	if (g->newer)
		under_way[g->newer - 1].older = g->older;
	else
		*newest_of(g->line) = g->older;
}

static void arrive(uint32_t i)
{
	struct group *g = &under_way[i];

	for (uint32_t p = 0; p < g->nr; p++)
		memcpy(g->of[p].to, g->of[p].value, g->of[p].bytes);
	for (uint32_t l = 0; g->by.warp && l < g->by.warp->nr; l++)
		g->by.warp->lanes[l]->nr_delayed -= g->by.lanes >> l & 1;
	emulated_moves();
	unlink_group(g);
	if (i == --nr)
		return;
	*g = under_way[nr];
	link_at(g, (uint16_t)(i + 1));
}

uint32_t emulated_delays_stores(void)
{
	return emulated_settings()->delayed;
}

/* This lane's stores arrive in the order in which they were made, if to the same place. */
static void overtakes_none(const uint8_t *to, uint32_t bytes)
{
	uint32_t at = *newest_of(to - (uintptr_t)to % LINE_BYTES), older;

	for (; at && emulated_lane->nr_delayed; at = older) {
		struct group *g = &under_way[at - 1];
		bool same = false;

		older = g->older;
		for (uint32_t p = 0; p < g->nr && g->by.warp == emulated_lane->warp; p++)
			same |= g->of[p].to < to + bytes && to < g->of[p].to + g->of[p].bytes;
		if (same)
			arrive(at - 1);
		if (older == nr + 1) /* it was the last, and lies in this one's place now */
			older = at;
	}
}

static struct group *group_for(uint8_t *line, uint32_t whole)
{
	const struct emulated_warp *w = emulated_lane->warp;
	struct group *g;

	for (uint32_t at = whole ? *newest_of(line) : 0; at; at = g->older) {
		g = &under_way[at - 1];
		if (g->by.warp == w && g->pass == w->pass && g->line == line && g->whole &&
			!g->by.arrived && g->nr < LINE_BYTES / 16)
			return g;
	}
	if (nr == MOST_UNDER_WAY)
		emulated_die("a pass of a warp stores to more than %d places",
			MOST_UNDER_WAY - MOST_LEFT);
	g = &under_way[nr++];
	*g = (struct group){.by = {.warp = w, .block = w->block},
		.launch = w->block->launch,
		.line = line,
		.pass = w->pass,
		.whole = whole,
		.older = *newest_of(line)};
	link_at(g, (uint16_t)nr);
	g->not_before = rest_until(ONE_RESTS);
	return g;
}

/* In a GPU's own memory lines are always whole. */
static bool keeps_lines(const void *to)
{
	return emulated_settings()->lines ||
	       memory_device(to) == emulated_lane->warp->block->launch->stream->device;
}

static void check_reach(const void *to)
{
	int here = emulated_lane->warp->block->launch->stream->device, there = memory_device(to),
	    can = 1;

	if (there >= 0 && there != here)
		cudaDeviceCanAccessPeer(&can, here, there);
	if (!can)
		emulated_die("a kernel of device %d stores to %p, in the memory of device %d", here,
			to, there);
}

void emulated_delay(void *to, const void *value, uint32_t bytes, uint32_t whole)
{
	uint32_t lane = emulated_lane->index;
	struct group *g;

	if (emulated_settings()->nvlink_domain)
		check_reach(to);
	overtakes_none(to, bytes);
	copies_overtaken_by(to, bytes);
	g = group_for((uint8_t *)to - (uintptr_t)to % LINE_BYTES, whole && keeps_lines(to));
	g->of[g->nr].to = to;
	g->of[g->nr].bytes = bytes;
	memcpy(g->of[g->nr].value, value, bytes);
	g->nr++;
	emulated_lane->nr_delayed += !(g->by.lanes >> lane & 1);
	g->by.lanes |= 1u << lane;
	*(volatile uint8_t *)to = *(volatile uint8_t *)to; /* a bad address shows here */
}

void emulated_loads(const void *from, uint32_t bytes)
{
	if (emulated_lane->nr_delayed)
		overtakes_none(from, bytes);
	copies_overtaken_by(from, bytes);
}

void emulated_fence(void)
{
	const struct emulated_lane *lane = emulated_lane;

	emulated_may_yield(); /* others of the warp may be ahead, or behind */
	emulated_lane->fenced = 1;
	for (uint32_t i = nr; i--;)
		if (is_handed_to(&under_way[i].by, lane))
			arrive(i);
	copies_fence();
}

void stores_met(const struct emulated_warp *w)
{
	for (uint32_t i = 0; i < nr; i++)
		handed_on_met(&under_way[i].by, w);
	copies_met(w);
}

void stores_at_barrier(const struct emulated_block *block)
{
	for (uint32_t i = 0; i < nr; i++)
		handed_on_at_barrier(&under_way[i].by, block);
	copies_at_barrier(block);
}

/* This lane's, at a barrier in shared memory. Who waits there hands them on with a fence of its
 * own. */
void stores_arrive(void)
{
	for (uint32_t i = 0; i < nr && emulated_lane->nr_delayed; i++)
		handed_on_by_lane(&under_way[i].by, emulated_lane);
	copies_handed_on();
}

void stores_without_block(const struct emulated_block *block)
{
	for (uint32_t i = 0; i < nr; i++) {
		if (under_way[i].by.block != block)
			continue;
		under_way[i].by.block = NULL;
		under_way[i].by.warp = NULL;
	}
}

void stores_of_kernel(const struct operation *launch)
{
	for (uint32_t i = nr; i--;)
		if (under_way[i].launch == launch)
			arrive(i);
}

/* Not within a pass: the rest of a line may be still to come. */
void stores_trim(void)
{
	while (nr > MOST_LEFT)
		arrive(emulated_random(nr));
}

void stores_some(void)
{
	for (uint32_t some = nr ? emulated_random(4) + nr / 256 : 0; some && nr; some--) {
		uint32_t i = emulated_random(nr);

		if (!rests(under_way[i].not_before))
			arrive(i);
	}
}
