/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes (or threads), each with one peer: real concurrency, and deaths. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/transport/cases.h"
#include "base/clock.h"

#define SLOTS 64
#define SLOT_BYTES 4096

/* What the two have in common besides the network. */
struct board {
	uint8_t addresses[2][TRANSPORT_ADDRESS_BYTES];
	uint32_t address_bytes[2];
	struct transport_key keys[2];
	_Atomic uint32_t present[2];
	_Atomic uint32_t checked[SLOTS]; /* the number of the last write that was looked at, plus 1
					  */
	_Atomic uint32_t finished[2];
	double half_trip_us;
};

/* One side: a world of two peers of which only `who` is open here. */
struct side {
	const struct network *network;
	struct board *board;
	uint32_t who, nr;
	struct world w;
};

static struct board *board_make(void)
{
	void *at = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	expect(at != MAP_FAILED, "no memory");
	return at;
}

/* `other`'s flag is waited for with polling, as its connection may need ours to progress. */
static void await(struct side *s, const _Atomic uint32_t *flag, const char *what)
{
	uint64_t end = now_ms() + CASE_WAIT_MS;

	while (!atomic_load_explicit(flag, memory_order_acquire)) {
		expect(now_ms() < end, "peer %u waited %d ms for %s", s->who, CASE_WAIT_MS, what);
		world_turn(&s->w);
	}
}

static void side_connect(struct side *s)
{
	uint32_t other = 1 - s->who;
	struct transport *t = s->w.peers[s->who].transport;

	await(s, &s->board->present[other], "the other's address");
	s->w.peers[other].to_key = s->board->keys[other];
	expect_ok(t->ops->connect(
			  t, other, s->board->addresses[other], s->board->address_bytes[other]),
		"connect");
}

/* Events may come as soon as the other has this address, so who handles them is settled first. */
static void side_open(
	struct side *s, void (*on_event)(struct world *, uint32_t, const struct transport_event *))
{
	struct board *b = s->board;
	struct transport *t;

	world_begin(&s->w, s->network, 2, SLOTS * SLOT_BYTES);
	s->w.on_event = on_event;
	s->w.ctx = s;
	expect_ok(peer_open(&s->w, s->who), "open");
	t = s->w.peers[s->who].transport;
	b->keys[s->who] = s->w.peers[s->who].to_key;
	b->address_bytes[s->who] = TRANSPORT_ADDRESS_BYTES;
	expect_ok(t->ops->address(t, b->addresses[s->who], &b->address_bytes[s->who]), "address");
	atomic_store_explicit(&b->present[s->who], 1, memory_order_release);
	side_connect(s);
}

/* Both stay until both are finished: a target may have to poll for the other's last completions. */
static void side_close(struct side *s)
{
	atomic_store_explicit(&s->board->finished[s->who], 1, memory_order_release);
	await(s, &s->board->finished[1 - s->who], "the other to finish");
	peer_close(&s->w, s->who);
}

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

/* ---- processes ------------------------------------------------------------------------------- */

static pid_t fork_side(
	const struct network *n, struct board *b, uint32_t who, void (*body)(struct side *))
{
	pid_t parent = getpid(), pid;

	fflush(NULL);
	pid = fork();
	expect(pid >= 0, "fork");
	if (pid == 0) {
		struct side s = {.network = n, .board = b, .who = who};

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		body(&s);
		_exit(0);
	}
	return pid;
}

static void expect_exit(pid_t pid)
{
	int status = -1;

	expect(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0,
		"the other process ended with status %x", status);
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

/* ---- deaths ---------------------------------------------------------------------------------- */

/* Says that it is there, then polls until it is killed. */
static void victim_side(struct side *s)
{
	struct transport_write write = {
		.peer = 1 - s->who, .flags = WRITE_IMMEDIATE, .immediate = 1};

	side_open(s, NULL);
	post(&s->w, s->who, &write);
	for (;;)
		world_turn(&s->w);
}

/* Likewise, but from then on it looks no more: what comes to it has no answer. Over libfabric its
 * write goes out all the same; elsewhere it may go out as somebody looks. */
static void deaf_victim_side(struct side *s)
{
	bool looks = strncmp(s->network->name, "ofi", 3) != 0;
	struct transport_write write = {.peer = 1 - s->who,
		.flags = WRITE_IMMEDIATE | (looks ? WRITE_SIGNALLED : 0),
		.immediate = 1};

	side_open(s, NULL);
	post(&s->w, s->who, &write);
	if (looks)
		take_event(&s->w, s->who, EVENT_WRITTEN);
	for (;;)
		pause();
}

static void kill_it(pid_t pid)
{
	kill(pid, SIGKILL);
	expect(waitpid(pid, NULL, 0) == pid, "waitpid");
	remove_leftovers(pid);
}

static struct transport_write last_write(struct side *s)
{
	struct transport_write write = a_write(&s->w, 0, 1, 0, 0, 100);

	write.flags = WRITE_SIGNALLED;
	write.cookie = 77;
	return write;
}

/* Writes until the network notices; every signalled write that was taken has to be reported as
 * failed before the peer is. */
static void expect_death_on_write(struct side *s)
{
	struct transport *t = s->w.peers[0].transport;
	struct transport_write write = last_write(s);
	uint64_t end = now_ms() + CASE_WAIT_MS;
	uint32_t posted = 0, reported = 0;
	struct transport_event event;
	int rc = 0;

	while (!try_take(&s->w, 0, EVENT_PEER_DOWN, &event)) {
		if (rc >= 0 && posted < 50)
			rc = t->ops->write(t, &write);
		posted += rc == 0 && posted < 50;
		world_turn(&s->w);
		expect(now_ms() < end,
			"%u writes to a dead peer, and nothing came of it; the last was answered "
			"%d: %s",
			posted, rc, tern_last_error());
	}
	expect(event.peer == 1 && event.error == TERN_ERR_PEER_DEAD, "peer %u, error %d: %s",
		event.peer, event.error, event.text);
	while (try_take(&s->w, 0, EVENT_FAILED, &event) ||
		try_take(&s->w, 0, EVENT_WRITTEN, &event))
		reported++;
	expect(posted == reported || (posted == 50 && reported >= 50),
		"%u writes were taken, %u reported", posted, reported);
}

static void expect_death_unseen(struct side *s)
{
	struct transport *t = s->w.peers[0].transport;
	struct transport_write write = last_write(s);
	struct transport_event event;
	uint64_t end = now_ms() + 1000;

	t->ops->write(t, &write);
	while (now_ms() < end)
		world_turn(&s->w);
	expect(!try_take(&s->w, 0, EVENT_PEER_DOWN, &event),
		"the death was seen, which is better than what the table says");
}

static void die(const struct network *n, void (*victim)(struct side *))
{
	struct side s = {.network = n, .board = board_make()};
	pid_t pid = fork_side(n, s.board, 1, victim);
	struct transport_event event;
	struct transport_write write;
	struct transport *t;

	side_open(&s, NULL);
	take_event(&s.w, 0, EVENT_IMMEDIATE);
	kill_it(pid);
	t = s.w.peers[0].transport;
	write = last_write(&s);
	if (n->death == DEATH_SEEN) {
		event = take_event(&s.w, 0, EVENT_PEER_DOWN);
		expect(event.peer == 1 && event.error == TERN_ERR_PEER_DEAD, "peer %u, error %d",
			event.peer, event.error);
	} else if (n->death == DEATH_ON_WRITE) {
		expect_death_on_write(&s);
	} else {
		expect_death_unseen(&s);
	}
	if (n->death != DEATH_SILENT) {
		expect(t->ops->write(t, &write) == TERN_ERR_PEER_DEAD,
			"a write to a dead peer was not refused");
		expect(t->ops->send(t, 1, "x", 1) == TERN_ERR_PEER_DEAD,
			"a message to a dead peer was not refused");
		expect_silence(&s.w, 0, EVENT_PEER_DOWN, 20);
	}
	expect_ok(t->ops->disconnect(t, 1), "disconnect");
	peer_close(&s.w, 0);
}

static void run_death(const struct network *n)
{
	die(n, victim_side);
}

/* Where writes tell of it some die while the way to them is still being made. */
static void run_death_at_first(const struct network *n)
{
	uint32_t nr = n->death == DEATH_ON_WRITE ? 1 + scaled(n, 3) : 1;

	for (uint32_t i = 0; i < nr; i++)
		die(n, deaf_victim_side);
}

/* After a death a new process takes the number, and everything works with it. */
static void greeter_side(struct side *s)
{
	struct transport_write write;

	side_open(s, NULL);
	write = a_write(&s->w, s->who, 0, 0, 0, 1000);
	write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
	write.immediate = 2;
	fill(s->w.peers[s->who].from, 1000, 2);
	post(&s->w, s->who, &write);
	take_event(&s->w, s->who, EVENT_WRITTEN);
	expect(take_event(&s->w, s->who, EVENT_IMMEDIATE).immediate == 3, "another immediate");
	side_close(s);
}

static void run_successor(const struct network *n)
{
	struct side s = {.network = n, .board = board_make()};
	pid_t pid = fork_side(n, s.board, 1, victim_side);
	struct transport *t;

	side_open(&s, NULL);
	take_event(&s.w, 0, EVENT_IMMEDIATE);
	kill_it(pid);
	t = s.w.peers[0].transport;
	for (uint64_t end = now_ms() + 30; now_ms() < end;)
		world_turn(&s.w);
	expect_ok(t->ops->disconnect(t, 1), "disconnect");
	atomic_store(&s.board->present[1], 0);
	pid = fork_side(n, s.board, 1, greeter_side);
	side_connect(&s);
	expect(take_event(&s.w, 0, EVENT_IMMEDIATE).immediate == 2, "another immediate");
	expect_filled(s.w.peers[0].to, 1000, 2, "a write of the successor");
	post(&s.w, 0,
		&(struct transport_write){.peer = 1, .flags = WRITE_IMMEDIATE, .immediate = 3});
	side_close(&s);
	expect_exit(pid);
}

const struct transport_case pair_cases[] = {
	{.name = "hammer_processes", .run = run_hammer_processes, .processes = true},
	{.name = "hammer_threads", .run = run_hammer_threads, .processes = true},
	{.name = "alone_threads", .run = run_alone_threads, .processes = true},
	{.name = "alone_processes", .run = run_alone_processes, .processes = true},
	{.name = "round_trips", .run = run_round_trips, .processes = true},
	{.name = "death", .run = run_death, .processes = true},
	{.name = "death_at_first", .run = run_death_at_first, .processes = true},
	{.name = "successor", .run = run_successor, .processes = true},
	{.name = NULL},
};
