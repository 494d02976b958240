/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/pair.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct board *board_make(void)
{
	void *at = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	expect(at != MAP_FAILED, "no memory");
	return at;
}

void await(struct side *s, const _Atomic uint32_t *flag, const char *what)
{
	uint64_t end = now_ms() + CASE_WAIT_MS;

	while (!atomic_load_explicit(flag, memory_order_acquire)) {
		expect(now_ms() < end, "peer %u waited %d ms for %s", s->who, CASE_WAIT_MS, what);
		world_turn(&s->w);
	}
}

void side_connect(struct side *s)
{
	uint32_t other = 1 - s->who;
	struct transport *t = s->w.peers[s->who].transport;

	await(s, &s->board->present[other], "the other's address");
	s->w.peers[other].to_key = s->board->keys[other];
	expect_ok(t->ops->connect(
			  t, other, s->board->addresses[other], s->board->address_bytes[other]),
		"connect");
}

void side_open(
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

void side_close(struct side *s)
{
	atomic_store_explicit(&s->board->finished[s->who], 1, memory_order_release);
	await(s, &s->board->finished[1 - s->who], "the other to finish");
	peer_close(&s->w, s->who);
}

pid_t fork_side(const struct network *n, struct board *b, uint32_t who, void (*body)(struct side *))
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

void expect_exit(pid_t pid)
{
	int status = -1;

	expect(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0,
		"the other process ended with status %x", status);
}
