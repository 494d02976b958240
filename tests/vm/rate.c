/* SPDX-License-Identifier: Apache-2.0 */
/* How many writes a second the verbs transport makes from one process to another: rate DEVICE BYTES
 * NR [imm]. As ib_write_bw does it: up to 128 under way, one in 100 reported, no copies in
 * requests. tests/vm/rate.sh puts the two beside each other. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>

#include "base/clock.h"
#include "transport/transport.h"

#define DEPTH 128u
#define REPORT 100u
#define PATIENCE_NS 60000000000u

struct board {
	uint8_t addresses[2][TRANSPORT_ADDRESS_BYTES];
	uint32_t bytes[2];
	struct transport_key keys[2];
	_Atomic int present[2];
	_Atomic int done;
};

struct side {
	struct board *board;
	const char *device;
	uint64_t bytes;
	uint32_t nr, who;
	bool immediate;
	struct transport *t;
	struct transport_region *region;
	uint8_t *memory;
	uint32_t nr_written, nr_immediates, nr_polls;
	uint64_t end_ns;
};

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "rate: %s: %s\n", what, tern_last_error());
	exit(1);
}

static void poll_side(struct side *s)
{
	struct transport_event events[32];
	int nr = s->t->ops->poll(s->t, events, 32);

	check(nr >= 0, "polling");
	if (++s->nr_polls % 1024 == 0) /* reading the clock is dear in an emulated machine */
		check(clock_ns() < s->end_ns, "it takes too long");
	for (int i = 0; i < nr; i++) {
		check(events[i].kind == EVENT_WRITTEN || events[i].kind == EVENT_IMMEDIATE,
			events[i].text ? events[i].text : "an event");
		s->nr_written += events[i].kind == EVENT_WRITTEN ? (uint32_t)events[i].cookie : 0;
		s->nr_immediates += events[i].kind == EVENT_IMMEDIATE;
	}
}

static void open_side(struct side *s)
{
	struct transport_options options = {.device = s->device,
		.self = s->who,
		.nr_peers = 2,
		.depth = DEPTH,
		.message_bytes = 64};
	struct board *b = s->board;
	struct transport_info info;

	s->end_ns = clock_ns() + PATIENCE_NS;
	s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	check(s->memory != MAP_FAILED, "memory");
	check(!transport_verbs.open(&options, &s->t, &info), "opening");
	check(!transport_verbs.reg(s->t, s->memory, s->bytes, &s->region, &b->keys[s->who]),
		"registering");
	b->bytes[s->who] = TRANSPORT_ADDRESS_BYTES;
	check(!transport_verbs.address(s->t, b->addresses[s->who], &b->bytes[s->who]), "address");
	atomic_store_explicit(&b->present[s->who], 1, memory_order_release);
	while (!atomic_load_explicit(&b->present[1 - s->who], memory_order_acquire))
		check(clock_ns() < s->end_ns, "waiting for the other");
	check(!transport_verbs.connect(
		      s->t, 1 - s->who, b->addresses[1 - s->who], b->bytes[1 - s->who]),
		"connecting");
}

static void write_all(struct side *s, uint32_t nr)
{
	struct transport_write w = {.peer = 1 - s->who,
		.region = s->region,
		.from = s->memory,
		.key = &s->board->keys[1 - s->who],
		.bytes = s->bytes};
	uint32_t before = s->nr_written;

	for (uint32_t i = 1; i <= nr;) {
		uint32_t last = i % REPORT == 0 ? REPORT : i == nr ? nr % REPORT : 0;
		int rc;

		w.flags = (s->immediate ? WRITE_IMMEDIATE : 0) | (last ? WRITE_SIGNALLED : 0);
		w.cookie = last;
		rc = s->nr_written - before + DEPTH > i - 1 ? transport_verbs.write(s->t, &w)
							    : TRANSPORT_AGAIN;
		check(rc >= 0, "writing");
		i += rc == 0;
		if (rc)
			poll_side(s);
	}
	while (s->nr_written - before < nr)
		poll_side(s);
}

/* The target of plain writes has nothing to do, as perftest's; that of immediates takes them. */
static void be_target(struct side *s)
{
	while (!atomic_load_explicit(&s->board->done, memory_order_acquire)) {
		poll_side(s);
		if (!s->immediate)
			nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	check(!s->immediate || s->nr_immediates == s->nr + DEPTH, "immediates were lost");
	_exit(0);
}

int main(int argc, char **argv)
{
	struct side s = {.device = argc > 1 ? argv[1] : NULL,
		.bytes = argc > 2 ? strtoull(argv[2], NULL, 0) : 8,
		.nr = argc > 3 ? (uint32_t)atoi(argv[3]) : 1000,
		.immediate = argc > 4 && !strcmp(argv[4], "imm")};
	uint64_t from;
	int status;
	pid_t pid;

	s.board = mmap(
		NULL, sizeof(*s.board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(s.board != MAP_FAILED && s.bytes && s.nr, "usage: rate DEVICE BYTES NR [imm]");
	pid = fork();
	s.who = pid == 0;
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_side(&s);
	if (pid == 0)
		be_target(&s);
	write_all(&s, DEPTH); /* the connection, and caches */
	from = clock_ns();
	write_all(&s, s.nr);
	from = clock_ns() - from;
	printf("%.0f writes/s %.3f MB/s\n", (double)s.nr * 1e9 / (double)from,
		(double)(s.nr * s.bytes) * 1e3 / (double)from);
	while (s.immediate && s.nr_written < s.nr + DEPTH)
		poll_side(&s);
	nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
	atomic_store_explicit(&s.board->done, 1, memory_order_release);
	check(waitpid(pid, &status, 0) == pid && status == 0, "the target");
	return 0;
}
