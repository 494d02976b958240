/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes, warps and blocks: who runs, and where they wait for each other. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/device/emulate/inside.h"

#define LINE 64
#define STACK_BYTES (EMULATED_STACK_KIB << 10)
#define BUSY_NS 21 /* a turn; odd, as a clock's low bits say nothing */
/* where all only poll, so that waits expire; but no more than has passed, if it may be another
 * thread or process that they wait for */
#define IDLE_NS 64001
#define MOST_IDLE_NS 2400000 /* a rest (streams.c), and some more */
#define MOST_PASSES 6        /* of a turn */

struct emulated_lane *emulated_lane;
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
uint64_t emulated_clock_ns = 1000000;

static struct fiber executor;
static struct emulated_warp **ready; /* those that can run */
static uint32_t nr_ready, room_ready;
static struct emulated_lane *spare_lanes;
static uint64_t history;
static uint64_t nr_idle; /* turns since something happened */

/* ---- who can run ----------------------------------------------------------------------------- */

static void can_run(struct emulated_warp *w)
{
	if (w->at)
		return;
	if (nr_ready == room_ready) {
		room_ready = 2 * room_ready + 64;
		ready = realloc(ready, room_ready * sizeof(*ready));
		if (!ready)
			emulated_die("no memory for %u warps", room_ready);
	}
	ready[nr_ready++] = w;
	w->at = nr_ready;
}

static void cannot_run(struct emulated_warp *w)
{
	struct emulated_warp *last = ready[--nr_ready];

	ready[w->at - 1] = last;
	last->at = w->at;
	w->at = 0;
}

#define MOST_REST 2048
#define TURNS_OF_REST 16 /* of each warp, where there are many */
static uint64_t turns;

static uint64_t idle_ns(void)
{
	static uint64_t before;
	struct timespec now;
	uint64_t ns, passed;

	if (emulated_one_thread() && !processes_several())
		return IDLE_NS;
	clock_gettime(CLOCK_MONOTONIC, &now);
	ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	passed = ns - before;
	before = ns;
	return passed < MOST_IDLE_NS ? passed : MOST_IDLE_NS;
}

void emulated_moves(void)
{
	nr_idle = 0;
}

bool warps_idle(void)
{
	return nr_idle > 64ull * nr_ready;
}

uint64_t rest_until(uint32_t one_of)
{
	return turns + (emulated_random(one_of)
				       ? 0
				       : emulated_random(MOST_REST + TURNS_OF_REST * nr_ready));
}

bool rests(uint64_t until)
{
	if (turns >= until)
		return false;
	emulated_moves();
	return true;
}

uint64_t emulated_now_ns(void)
{
	return emulated_clock_ns;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Of a pass: lanes that have not had their turn. */
static struct emulated_warp *passing;
static uint32_t next_index, nr_left;

/* Goes on in the next lane that can, or, from the last one, behind the pass. By way of the executor
 * lanes would change places twice as often. */
static void go_on_from(struct fiber *from)
{
	while (nr_left) {
		struct emulated_lane *lane = passing->lanes[next_index];
		const struct emulated_lane *soon;

		nr_left--;
		if (++next_index == passing->nr)
			next_index = 0;
		soon = passing->lanes[next_index];
		__builtin_prefetch(soon->fiber.sp);
		__builtin_prefetch((char *)soon->fiber.sp + LINE);
		if (lane->state != LANE_READY)
			continue;
		emulated_lane = lane;
		threadIdx.x = lane->thread;
		blockIdx.x = lane->block;
		fiber_switch(from, &lane->fiber);
		return;
	}
	emulated_lane = NULL;
	if (from != &executor)
		fiber_switch(from, &executor);
}

static void leave(enum lane_state state)
{
	struct emulated_lane *lane = emulated_lane;

	lane->state = state;
	if (state == LANE_ENDED) {
		lane->warp->block->nr_ended++;
		if (fiber_overrun(&lane->fiber))
			emulated_die("a lane's stack of %d bytes was too small", STACK_BYTES);
	}
	go_on_from(&lane->fiber);
}

void emulated_yield(void)
{
	leave(LANE_YIELDS);
}

void emulated_may_yield(void)
{
	if (emulated_random(4) == 0)
		leave(LANE_YIELDS);
}

static void lane_main(void *arg)
{
	struct emulated_lane *lane = arg;
	struct operation *op = lane->warp->block->launch;

	order_acquire(&op->put);
	if (!op->early)
		order_acquire(&op->stream->order);
	op->run(op->call);
	order_release(&op->stream->order);
	leave(LANE_ENDED);
}

void lane_spare(struct emulated_lane *lane)
{
	lane->next_free = spare_lanes;
	spare_lanes = lane;
}

/* Rather one that the stream has had: what it did then is ordered before this. */
static struct emulated_lane *lane_take(struct emulated_stream *stream)
{
	struct emulated_lane **list = stream->free_lanes ? &stream->free_lanes : &spare_lanes,
			     *lane = *list;

	if (lane) {
		*list = lane->next_free;
		return lane;
	}
	lane = aligned_alloc(LINE, (sizeof(*lane) + LINE - 1) / LINE * LINE);
	if (!lane || fiber_create(&lane->fiber, STACK_BYTES))
		emulated_die("no memory for a lane");
	return lane;
}

/* ---- meetings -------------------------------------------------------------------------------- */

static const uint64_t *meet(enum meeting what, uint32_t mask, uint64_t value, int line)
{
	struct emulated_lane *lane = emulated_lane;
	struct emulated_warp *w = lane->warp;
	uint64_t *values = w->values[w->phase & 1];

	if (mask != 0xffffffffu || w->nr != WARP_LANES)
		emulated_die("line %d: a meeting of some lanes (%08x of %u) is not emulated", line,
			mask, w->nr);
	if (w->nr_met && (w->what != what || w->line != line))
		emulated_die("lanes of a warp meet at lines %d (%d) and %d (%d)", w->line,
			(int)w->what, line, (int)what);
	w->what = what;
	w->line = line;
	w->nr_met++;
	values[lane->index] = value;
	w->bits[w->phase & 1] |= (uint32_t)(value != 0) << lane->index;
	if (what == MEET_SYNC)
		order_release(w);
	leave(LANE_MEETS);
	if (what == MEET_SYNC)
		order_acquire(w);
	return values;
}

uint64_t emulated_meet(enum meeting what, uint32_t mask, uint64_t value, uint32_t from, int line)
{
	return meet(what, mask, value, line)[from];
}

uint32_t emulated_ballot(uint32_t mask, uint32_t value, int line)
{
	const struct emulated_warp *w = emulated_lane->warp;
	const uint32_t *bits = &w->bits[w->phase & 1];

	meet(MEET_VOTE, mask, value, line);
	return *bits;
}

uint32_t emulated_match(uint32_t mask, uint32_t value, int line)
{
	const uint64_t *values = meet(MEET_MATCH, mask, value, line);
	uint32_t bits = 0;

	for (uint32_t i = 0; i < WARP_LANES; i++)
		bits |= (uint32_t)(values[i] == value) << i;
	return bits;
}

uint32_t emulated_reduce(enum reduction how, uint32_t mask, uint32_t value, int line)
{
	const uint64_t *values = meet(MEET_REDUCE, mask, value, line);
	uint32_t all = (uint32_t)values[0];

	for (uint32_t i = 1; i < WARP_LANES; i++) {
		uint32_t v = (uint32_t)values[i];

		all = how == REDUCE_ADD   ? all + v
		      : how == REDUCE_OR  ? all | v
		      : how == REDUCE_MIN ? (v < all ? v : all)
		      : v > all           ? v
					  : all;
	}
	return all;
}

static void all_met(struct emulated_warp *w)
{
	if (w->what == MEET_SYNC)
		stores_met(w);
	for (uint32_t i = 0; i < w->nr; i++)
		w->lanes[i]->state = LANE_READY;
	w->nr_met = 0;
	w->bits[++w->phase & 1] = 0;
}

/* ---- barriers -------------------------------------------------------------------------------- */

static void all_arrived(struct emulated_block *block, uint32_t id)
{
	struct emulated_barrier *b = &block->barriers[id];

	b->result = b->any | b->all << 1;
	b->nr_arrived = 0;
	stores_at_barrier(block);
	for (uint32_t i = 0; i < block->nr_warps; i++)
		for (uint32_t l = 0; l < block->warps[i].nr; l++) {
			struct emulated_lane *lane = block->warps[i].lanes[l];

			if (lane->state != LANE_AT_BARRIER || lane->barrier != id)
				continue;
			lane->state = LANE_READY;
			can_run(&block->warps[i]);
		}
}

uint32_t emulated_barrier(uint32_t id, uint32_t nr_threads, uint32_t value)
{
	struct emulated_lane *lane = emulated_lane;
	struct emulated_block *block = lane->warp->block;
	struct emulated_barrier *b = &block->barriers[id];

	if (!b->nr_arrived) {
		b->nr_threads = nr_threads;
		b->any = 0;
		b->all = 1;
	} else if (b->nr_threads != nr_threads) {
		emulated_die("barrier %u of %u threads, and of %u", id, b->nr_threads, nr_threads);
	}
	b->any |= value != 0;
	b->all &= value != 0;
	order_release(b);
	lane->barrier = id;
	lane->state = LANE_AT_BARRIER;
	if (++b->nr_arrived == nr_threads)
		all_arrived(block, id);
	leave(lane->state);
	order_acquire(b);
	return b->result;
}

/* ---- kernels that follow --------------------------------------------------------------------- */

uint32_t emulated_has_copy_engine(void)
{
	return emulated_settings()->code >= 90;
}

/* Code for sm_80 does neither. A block's first lane that says so counts: those that say it later
 * change nothing (PTX ISA, griddepcontrol). */
void emulated_let_next_start(void)
{
	struct emulated_block *block = emulated_lane->warp->block;

	if (emulated_settings()->code < 90 || block->has_let)
		return;
	block->has_let = 1;
	block_lets_next(block->launch);
}

void emulated_wait_for_previous(void)
{
	struct emulated_stream *stream = emulated_lane->warp->block->launch->stream;

	if (emulated_settings()->code < 90)
		return;
	while (stream->first != emulated_lane->warp->block->launch)
		leave(LANE_YIELDS);
	order_acquire(&stream->order);
}

/* ---- passes and turns ------------------------------------------------------------------------ */

/* Every lane that can goes on for a while. Returns how many can go on after that. */
static uint32_t pass(struct emulated_warp *w)
{
	uint32_t can = 0, ended = 0, yields = 0;

	passing = w;
	next_index = emulated_random(w->nr);
	nr_left = w->nr;
	w->pass++;
	blockDim = w->block->launch->block;
	gridDim = w->block->launch->grid;
	/* Thousands of lanes lie in no cache: finding them is most of what changing places costs.
	 */
	for (uint32_t i = 0; i < w->nr; i++)
		__builtin_prefetch(w->lanes[i]);
	go_on_from(&executor);
	stores_trim();
	if (w->nr_met == w->nr)
		all_met(w);
	for (uint32_t i = 0; i < w->nr; i++) {
		struct emulated_lane *lane = w->lanes[i];

		yields += lane->state == LANE_YIELDS;
		if (lane->state == LANE_YIELDS)
			lane->state = LANE_READY;
		can += lane->state == LANE_READY;
		ended += lane->state == LANE_ENDED;
	}
	if (w->nr_met && !can)
		emulated_die("%u lanes of a warp wait at line %d for others, of which %u have "
			     "ended and the rest wait at a barrier",
			w->nr_met, w->line, ended);
	return yields ? 0x80000000u | can : can;
}

static void turn(struct emulated_warp *w)
{
	uint32_t left = 1 + emulated_random(MOST_PASSES), can;

	do
		can = pass(w);
	while (can && !(can >> 31) && --left);
	if (!can)
		cannot_run(w);
	if (w->block->nr_ended == w->block->nr_lanes)
		block_ended(w->block);
}

void warps_reset(void)
{
	history = 0;
	nr_idle = 0;
	emulated_clock_ns = 1000000;
}

uint64_t emulated_history(void)
{
	return history;
}

bool warps_turn(void)
{
	uint32_t next;

	if (!nr_ready)
		return false;
	fiber_adopt(&executor);
	next = emulated_random(nr_ready);
	turn(ready[next]);
	turns++;
	stores_some();
	copies_some();
	history = (history ^ next ^ (uint64_t)nr_ready << 32) * 0x9e3779b97f4a7c15ull;
	nr_idle++;
	emulated_clock_ns += warps_idle() ? idle_ns() : BUSY_NS;
	return true;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void lane_init(
	struct emulated_lane *lane, struct emulated_warp *w, uint32_t thread, uint32_t number)
{
	struct fiber fiber = lane->fiber;

	memset(lane, 0, sizeof(*lane));
	lane->fiber = fiber;
	lane->warp = w;
	lane->index = thread % WARP_LANES;
	lane->thread = thread;
	lane->block = number;
	lane->shared = w->block->shared;
	fiber_start(&lane->fiber, lane_main, lane);
}

static void block_make(struct operation *launch, uint32_t number)
{
	struct emulated_block *block = calloc(1, sizeof(*block));
	uint32_t nr = launch->block.x;

	if (!block ||
		!(block->warps = calloc(
			  (nr + WARP_LANES - 1) / WARP_LANES, sizeof(*block->warps))) ||
		!(block->shared = shared_take(launch->shared_bytes)))
		emulated_die("no memory for a block");
	memset(block->shared, 0xcd, launch->shared_bytes);
	block->launch = launch;
	block->nr_lanes = nr;
	block->nr_warps = (nr + WARP_LANES - 1) / WARP_LANES;
	for (uint32_t i = 0; i < nr; i++) {
		struct emulated_warp *w = &block->warps[i / WARP_LANES];
		struct emulated_lane *lane = lane_take(launch->stream);

		w->block = block;
		w->lanes[w->nr++] = lane;
		lane_init(lane, w, i, number);
	}
	for (uint32_t i = 0; i < block->nr_warps; i++)
		can_run(&block->warps[i]);
}

/* What a kernel needs to run at all is no news of what ran before. */
void block_start(struct operation *launch, uint32_t number)
{
	order_ignore(true);
	block_make(launch, number);
	order_ignore(false);
}
