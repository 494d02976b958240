/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine: what a lane hands to it is done later, in any order, piece by piece. What a copy
 * into shared memory will overwrite is spoilt at once; what a copy out of it takes, it takes when
 * its turn comes. So who reads too early, or writes again too early, gets wrong bytes. Fences do
 * nothing to it, until the lane has waited for a copy's end: then it is like a store of that lane,
 * which others see by and by, or when a fence has made it arrive. */
#include <stdlib.h>
#include <string.h>

#include "tests/device/emulate/inside.h"

#define MOST_COPIES 65536
#define MOST_PIECE 2048 /* done at once */
#define ONE_RESTS 8     /* of so many copies out */

/* In an mbarrier's 8 bytes. A phase ends when all have arrived and all bytes are there. */
struct copy_barrier {
	uint32_t phases : 8;                  /* that have ended */
	uint32_t arrivals : 12, awaited : 12; /* of a phase; of this one, still to come */
	int32_t bytes; /* expected, and not there; below 0: there before they were expected */
};

struct copy {
	const struct operation *launch;
	const struct emulated_block *block;
	struct emulated_lane *lane;   /* out; NULL: in, or its block has ended */
	struct handed_on by;          /* out, when the lane has waited for its end */
	bool ended;                   /* out: for the lane, that may learn of it */
	struct copy_barrier *barrier; /* in */
	uint8_t *to, *held;           /* held: what a copy out has taken */
	const uint8_t *from;
	uint32_t bytes, done, group;
	uint64_t not_before; /* turn */
};

static struct copy copies[MOST_COPIES];
static uint32_t nr, nr_known; /* known: which a lane has waited for, and that are under way to
				 others */

static bool is_known(const struct copy *c)
{
	return c->by.lanes != 0;
}

static bool overlaps(const struct copy *c, const void *at, uint32_t bytes)
{
	return c->to < (const uint8_t *)at + bytes && (const uint8_t *)at < c->to + c->bytes;
}

static struct copy *copy_begin(void *to, const void *from, uint32_t bytes)
{
	struct copy *c;

	if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16 || !bytes)
		emulated_die("a copy of %u bytes from %p to %p", bytes, from, to);
	copies_overtaken_by(to, bytes);
	copies_overtaken_by(from, bytes);
	if (nr == MOST_COPIES)
		emulated_die("more than %d copies are under way", MOST_COPIES);
	c = &copies[nr++];
	*c = (struct copy){.launch = emulated_lane->warp->block->launch,
		.block = emulated_lane->warp->block,
		.to = to,
		.from = from,
		.bytes = bytes};
	emulated_moves();
	return c;
}

void emulated_barrier_open(uint64_t *barrier, uint32_t arrivals)
{
	if (arrivals > 0xfff)
		emulated_die("a barrier of %u arrivals; at most 4095", arrivals);
	*(struct copy_barrier *)barrier =
		(struct copy_barrier){.arrivals = arrivals & 0xfff, .awaited = arrivals & 0xfff};
}

static void look_at(struct copy_barrier *b)
{
	if (b->bytes || b->awaited)
		return;
	b->awaited = b->arrivals;
	b->phases++;
	emulated_moves();
}

static void copied(struct copy_barrier *b, uint32_t bytes)
{
	b->bytes -= (int32_t)bytes;
	look_at(b);
}

void emulated_copied_in(uint64_t *barrier, uint32_t bytes)
{
	order_release(barrier);
	copied((struct copy_barrier *)barrier, bytes);
}

void emulated_copy_in(void *shared, const void *from, uint32_t bytes, uint64_t *barrier)
{
	copy_begin(shared, from, bytes)->barrier = (struct copy_barrier *)barrier;
	memset(shared, 0xa7, bytes);
}

void emulated_arrive(uint64_t *barrier, uint32_t bytes)
{
	struct copy_barrier *b = (struct copy_barrier *)barrier;

	order_release(barrier);
	stores_arrive();
	if (!b->awaited--)
		emulated_die("more have arrived at a barrier than it is for");
	b->bytes += (int32_t)bytes;
	look_at(b);
}

uint32_t emulated_copy_there(const uint64_t *barrier, uint32_t parity)
{
	order_acquire((void *)barrier);
	return (((const struct copy_barrier *)barrier)->phases & 1) != parity;
}

void emulated_copy_out(void *to, const void *shared, uint32_t bytes)
{
	struct copy *c = copy_begin(to, shared, bytes);

	c->lane = emulated_lane;
	c->lane->copies_out++;
	c->group = emulated_lane->copy_group;
	c->not_before = rest_until(ONE_RESTS);
	*(volatile uint8_t *)to = *(volatile uint8_t *)to; /* a bad address shows here */
}

/* They have ended for the lane, which learns of it. */
static void know(uint32_t but)
{
	const struct emulated_lane *lane = emulated_lane;

	for (uint32_t i = 0; i < nr && emulated_lane->copies_out; i++) {
		struct copy *c = &copies[i];

		if (c->lane != lane || is_known(c) || lane->copy_group - c->group <= but)
			continue;
		c->by = (struct handed_on){
			.warp = lane->warp, .block = lane->warp->block, .lanes = 1u << lane->index};
		emulated_lane->copies_out--;
		nr_known++;
	}
}

uint32_t emulated_copies_left(uint32_t but, uint32_t only_reads)
{
	for (uint32_t i = 0; i < nr && emulated_lane->copies_out; i++)
		if (copies[i].lane == emulated_lane && !is_known(&copies[i]) &&
			emulated_lane->copy_group - copies[i].group > but &&
			!(only_reads ? copies[i].held != NULL : copies[i].ended))
			return 1;
	if (!only_reads)
		know(but);
	return 0;
}

/* Some more of it. True: that was all. */
static bool go_on(struct copy *c, uint32_t most)
{
	uint32_t bytes = c->bytes - c->done < most ? c->bytes - c->done : most;

	if (c->lane && !c->held) {
		c->held = malloc(c->bytes);
		if (!c->held)
			emulated_die("no memory for a copy");
		memcpy(c->held, c->from, c->bytes);
		return false;
	}
	memcpy(c->to + c->done, (c->held ? c->held : c->from) + c->done, bytes);
	c->done += bytes;
	if (c->done < c->bytes)
		return false;
	if (c->barrier)
		copied(c->barrier, c->bytes);
	c->ended = true;
	emulated_moves();
	if (c->lane && !is_known(c)) /* the lane has yet to wait for it */
		return false;
	return true;
}

static void forget(uint32_t i)
{
	nr_known -= is_known(&copies[i]);
	free(copies[i].held);
	copies[i] = copies[--nr];
}

static void finish(uint32_t i)
{
	while (!go_on(&copies[i], MOST_PIECE))
		;
	forget(i);
}

void copies_fence(void)
{
	for (uint32_t i = nr_known ? nr : 0; i--;)
		if (is_known(&copies[i]) && is_handed_to(&copies[i].by, emulated_lane))
			finish(i);
}

void copies_met(const struct emulated_warp *warp)
{
	for (uint32_t i = 0; i < nr && nr_known; i++)
		if (is_known(&copies[i]))
			handed_on_met(&copies[i].by, warp);
}

void copies_at_barrier(const struct emulated_block *block)
{
	for (uint32_t i = 0; i < nr && nr_known; i++)
		if (is_known(&copies[i]))
			handed_on_at_barrier(&copies[i].by, block);
}

void copies_handed_on(void)
{
	for (uint32_t i = 0; i < nr && nr_known; i++)
		if (is_known(&copies[i]))
			handed_on_by_lane(&copies[i].by, emulated_lane);
}

void copies_overtaken_by(const void *at, uint32_t bytes)
{
	for (uint32_t i = nr_known ? nr : 0; i--;)
		if (is_known(&copies[i]) && is_handed_to(&copies[i].by, emulated_lane) &&
			overlaps(&copies[i], at, bytes))
			finish(i);
}

void copies_some(void)
{
	for (uint32_t some = nr ? 1 + emulated_random(4) + nr / 8 : 0; some && nr; some--) {
		uint32_t i = emulated_random(nr);

		struct copy *c = &copies[i];

		if (c->held && rests(c->not_before))
			continue;
		if (c->held && !c->ended) { /* which says nothing of who sees it when */
			c->ended = true;
			c->not_before = rest_until(ONE_RESTS);
			emulated_moves();
			continue;
		}
		if (c->done == c->bytes) /* its lane has not waited for it */
			continue;
		if (go_on(c, 16 + 16 * emulated_random(MOST_PIECE / 16)))
			forget(i);
	}
}

/* Its shared memory goes. */
void copies_without_block(const struct emulated_block *block)
{
	for (uint32_t i = 0; i < nr; i++) {
		struct copy *c = &copies[i];

		if (c->block != block)
			continue;
		if (!c->held)
			emulated_die("a block has ended with a copy under way %s its shared memory",
				c->barrier ? "into" : "from");
		c->block = NULL;
		c->lane = NULL;
		c->by.block = NULL;
		c->by.warp = NULL;
	}
}

void copies_of_kernel(const struct operation *launch)
{
	for (uint32_t i = nr; i--;)
		if (copies[i].launch == launch)
			finish(i);
}
