/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes (or threads), each with one peer: real concurrency. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/transport/cases.h"
#include "tests/transport/pair.h"

/* ---- data before immediate ------------------------------------------------------------------- */

static uint32_t hammer_bytes(uint32_t i)
{
	return i % 16 == 15 ? SLOT_BYTES : 8 + i * 13 % 500;
}

/* Each write is looked at in the moment that its immediate is seen. */
static void hammer_seen(struct world *w, uint32_t who, const struct transport_event *event)
{
	struct side *s = w->ctx;
	uint32_t i = event->immediate, slot = i % SLOTS;

	if (event->kind != EVENT_IMMEDIATE)
		return;
	expect_filled(w->peers[who].to + slot * SLOT_BYTES, hammer_bytes(i), i,
		"data whose immediate was seen");
	expect(atomic_exchange_explicit(&s->board->checked[slot], i + 1, memory_order_release) +
					SLOTS ==
				i + 1 ||
			i < SLOTS,
		"write %u came twice or too soon", i);
	s->nr++;
}

static void hammer_target(struct side *s, uint32_t nr)
{
	uint64_t end = now_ms() + 2 * CASE_WAIT_MS;

	for (; s->nr < nr; world_turn(&s->w))
		expect(now_ms() < end, "%u of %u writes came", s->nr, nr);
}

static void hammer_written(struct world *w, uint32_t who, const struct transport_event *event)
{
	struct side *s = w->ctx;

	if (event->kind == EVENT_PEER_DOWN &&
		atomic_load_explicit(&s->board->finished[s->who], memory_order_relaxed))
		return; /* the other has seen that both are finished, and this one not yet */
	expect(event->kind == EVENT_WRITTEN, "peer %u: an event of kind %d: %s", who, event->kind,
		event->text ? event->text : "");
	s->nr++;
}

static void hammer_source(struct side *s, uint32_t nr)
{
	uint64_t end = now_ms() + 2 * CASE_WAIT_MS;
	uint32_t source = s->who, target = 1 - s->who;

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t slot = i % SLOTS;
		struct transport_write write = a_write(&s->w, source, target, slot * SLOT_BYTES,
			slot * SLOT_BYTES, hammer_bytes(i));

		while (i >= SLOTS && (atomic_load_explicit(&s->board->checked[slot],
					      memory_order_acquire) != i - SLOTS + 1 ||
					     s->nr + SLOTS / 2 < i)) {
			expect(now_ms() < end, "write %u of %u waits for its slot; %u are written",
				i, nr, s->nr);
			world_turn(&s->w);
		}
		fill(s->w.peers[source].from + slot * SLOT_BYTES, write.bytes, i);
		write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
		write.immediate = i;
		post(&s->w, source, &write);
	}
	for (; s->nr < nr; world_turn(&s->w))
		expect(now_ms() < end, "%u of %u writes are done", s->nr, nr);
}

static void hammer_side(struct side *s)
{
	uint32_t nr = scaled(s->network, s->network->paired / 4);

	side_open(s, s->who == 0 ? hammer_written : hammer_seen);
	if (s->who == 0)
		hammer_source(s, nr);
	else
		hammer_target(s, nr);
	side_close(s);
}

static void run_hammer_processes(const struct network *n)
{
	struct side s = {.network = n, .board = board_make(), .who = 1};
	pid_t pid = fork_side(n, s.board, 0, hammer_side);

	hammer_side(&s);
	expect_exit(pid);
}

struct start {
	void (*body)(struct side *);
	struct side side;
};

static void *side_thread(void *arg)
{
	struct start *start = arg;

	start->body(&start->side);
	return NULL;
}

static void run_threads(const struct network *n, void (*body)(struct side *))
{
	struct board *b = board_make();
	struct start first = {.body = body, .side = {.network = n, .board = b, .who = 0}};
	struct side second = {.network = n, .board = b, .who = 1};
	pthread_t thread;

	expect(!pthread_create(&thread, NULL, side_thread, &first), "a thread");
	body(&second);
	pthread_join(thread, NULL);
}

static void run_hammer_threads(const struct network *n)
{
	run_threads(n, hammer_side);
}

/* ---- immediates alone, to itself and to the other -------------------------------------------- */

static void alone_side(struct side *s)
{
	struct transport_write write = {.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED};
	uint32_t nr = scaled(s->network, 200);
	uint8_t seen[2 * 201] = {0};

	side_open(s, NULL);
	world_connect(&s->w, s->who, s->who);
	for (uint32_t i = 0; i < nr; i++) {
		for (write.peer = 0; write.peer < 2; write.peer++) {
			write.immediate = 2 * i + (write.peer == s->who);
			post(&s->w, s->who, &write);
		}
		for (uint32_t both = 0; both < 2; both++) {
			uint32_t value = take_event(&s->w, s->who, EVENT_IMMEDIATE).immediate;

			take_event(&s->w, s->who, EVENT_WRITTEN);
			expect(value < 2 * nr && !seen[value]++, "immediate %u of %u, or again",
				value, 2 * nr);
		}
	}
	side_close(s);
}

static void run_alone_threads(const struct network *n)
{
	run_threads(n, alone_side);
}

static void run_alone_processes(const struct network *n)
{
	struct side s = {.network = n, .board = board_make(), .who = 1};
	pid_t pid = fork_side(n, s.board, 0, alone_side);

	alone_side(&s);
	expect_exit(pid);
}

/* ---- latency and bandwidth, for people ------------------------------------------------------- */

static void ping_pong(struct side *s, uint32_t nr, uint64_t bytes, bool first)
{
	uint32_t other = 1 - s->who;
	struct transport_write write = a_write(&s->w, s->who, other, 0, 0, bytes);

	write.flags = WRITE_IMMEDIATE;
	for (uint32_t i = 0; i < nr; i++) {
		write.immediate = i;
		if (first)
			post(&s->w, s->who, &write);
		expect(take_event(&s->w, s->who, EVENT_IMMEDIATE).immediate == i,
			"another immediate");
		if (!first)
			post(&s->w, s->who, &write);
	}
}

static void trip_side(struct side *s)
{
	uint32_t nr = scaled(s->network, s->network->paired / 20);
	uint64_t start;

	side_open(s, NULL);
	ping_pong(s, 10, 8, s->who == 0);
	start = clock_ns();
	ping_pong(s, nr, 8, s->who == 0);
	s->board->half_trip_us = (double)(clock_ns() - start) / nr / 2000;
	side_close(s);
}

static void run_round_trips(const struct network *n)
{
	struct side s = {.network = n, .board = board_make(), .who = 1};
	pid_t pid = fork_side(n, s.board, 0, trip_side);

	trip_side(&s);
	expect_exit(pid);
	printf("# 8 bytes, half a round trip: %.2f us\n", s.board->half_trip_us);
}

const struct transport_case pair_cases[] = {
	{.name = "hammer_processes", .run = run_hammer_processes, .processes = true},
	{.name = "hammer_threads", .run = run_hammer_threads, .processes = true},
	{.name = "alone_threads", .run = run_alone_threads, .processes = true},
	{.name = "alone_processes", .run = run_alone_processes, .processes = true},
	{.name = "round_trips", .run = run_round_trips, .processes = true},
	{.name = NULL},
};
