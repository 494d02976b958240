/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes, of which one dies, and what comes in its place. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/transport/cases.h"
#include "tests/transport/pair.h"

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

const struct transport_case death_cases[] = {
	{.name = "death", .run = run_death, .processes = true},
	{.name = "death_at_first", .run = run_death_at_first, .processes = true},
	{.name = "successor", .run = run_successor, .processes = true},
	{.name = NULL},
};
