/* SPDX-License-Identifier: Apache-2.0 */
#include "group/fd_passing.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define CAUSE_TEXT 132
#define ACCEPTS_A_TURN 256 /* then the clock is looked at, however many more have come */
#define CALLERS_MOST 64    /* that have said nothing yet: the most silent makes room for the next */

struct fd_passing {
	int listener;
	int spare; /* given up to tell the others that there are no descriptors left; or -1 */
	struct fd_passing_address address;
};

/* What comes with each descriptor, or, with an error, in its place. */
struct hello {
	uint8_t secret[FD_PASSING_KEY_BYTES]; /* the receiver's */
	uint32_t rank;                        /* the sender's */
	uint32_t round;
	int32_t error;
	char cause[CAUSE_TEXT];
};

/* What was read from a caller. */
struct message {
	struct hello hello;
	int fd;     /* the one that came along, or -1 */
	bool whole; /* a hello, from its first byte to its last */
	bool cut;   /* something came along that has no place in this process */
};

/* One rank's part in one exchange. */
struct fd_passing_visit {
	struct fd_passing *passing;
	struct fd_passing_guest *guests;
	int rank, nr_ranks, fd;
	uint32_t round, nr_kept;
	int to_call, to_hear;
	int callers[CALLERS_MOST]; /* -1: none */
};

int fd_passing_open(struct fd_passing **out)
{
	struct fd_passing *passing = calloc(1, sizeof(*passing));
	int rc;

	if (!passing)
		return fail(TERN_ERR_NOMEM, "no memory to pass descriptors");
	rc = local_listen(&passing->address, &passing->listener);
	if (rc)
		goto err_free;
	passing->spare = fcntl(passing->listener, F_DUPFD_CLOEXEC, 0);
	if (passing->spare < 0) {
		rc = fail_errno("duplicating a socket");
		close(passing->listener);
		goto err_free;
	}
	*out = passing;
	return 0;

err_free:
	free(passing);
	return rc;
}

void fd_passing_close(struct fd_passing *passing)
{
	if (!passing)
		return;
	if (passing->spare >= 0)
		close(passing->spare);
	close(passing->listener);
	free(passing);
}

void fd_passing_address(const struct fd_passing *passing, struct fd_passing_address *address)
{
	*address = passing->address;
}

/* False: nothing to read yet. */
static bool message_receive(int socket, struct message *message)
{
	struct local_message m;

	if (!local_receive(socket, &message->hello, sizeof(message->hello), &m))
		return false;
	message->fd = m.fds[0];
	if (m.fds[1] >= 0) { /* a stranger's surplus */
		close(m.fds[0]);
		close(m.fds[1]);
		message->fd = -1;
	}
	message->whole = m.bytes == sizeof(message->hello) && m.whole;
	message->cut = m.cut;
	message->hello.cause[CAUSE_TEXT - 1] = 0;
	return true;
}

/* ---- calling --------------------------------------------------------------------------------- */

/* Why a hello was not sent that may be the next time: the other has no room, or has shown this
 * caller out among those that were silent. */
static bool passes(int cause)
{
	return cause == EAGAIN || cause == EPIPE || cause == ECONNRESET || cause == ECONNREFUSED ||
	       cause == ETOOMANYREFS;
}

/* 0: sent; 1: try again; negative: an error. */
static int call_guest(
	const struct fd_passing_guest *guest, int guest_rank, struct hello *hello, int fd)
{
	int rc = 0, s = local_connect(&guest->address);

	if (s < 0 && error_of_errno(errno) == TERN_ERR_NOMEM)
		return fail_errno("a socket to call rank %d", guest_rank);
	if (s < 0)
		return errno == EAGAIN || (errno == ECONNREFUSED && guest->lifeline >= 0)
			       ? 1
			       : fail_errno("connecting to rank %d on this machine", guest_rank);
	memcpy(hello->secret, guest->address.secret, sizeof(hello->secret));
	if (!local_same_user(s))
		rc = fail(TERN_ERR_BOOTSTRAP, "rank %d runs as another user", guest_rank);
	else if (!local_send(s, hello, sizeof(*hello), &fd, fd >= 0))
		rc = passes(errno) ? 1 : fail_errno("sending a descriptor to rank %d", guest_rank);
	close(s); /* what was sent stays readable */
	return rc;
}

/* All that have not been called yet: one whose queue is full keeps nobody else waiting. */
static int call_guests(struct fd_passing_visit *v)
{
	struct hello hello = {.rank = (uint32_t)v->rank, .round = v->round};

	for (int r = 0; r < v->nr_ranks && v->to_call > 0; r++) {
		struct fd_passing_guest *guest = &v->guests[r];
		int rc = guest->wanted && !guest->called ? call_guest(guest, r, &hello, v->fd) : 1;

		if (rc < 0)
			return rc;
		guest->called |= rc == 0;
		v->to_call -= rc == 0;
	}
	return 0;
}

/* Tells the others why this rank gives up, so that they need not wait for it; whose queue is full
 * is not told. This thread's text stays. */
static void tell_guests(struct fd_passing_visit *v, int error)
{
	struct hello hello = {.rank = (uint32_t)v->rank, .round = v->round, .error = error};
	char cause[1024];

	snprintf(cause, sizeof(cause), "%s", tern_last_error());
	snprintf(hello.cause, sizeof(hello.cause), "%.*s", CAUSE_TEXT - 1, cause);
	if (v->passing->spare >= 0)
		close(v->passing->spare);
	for (int r = 0; r < v->nr_ranks; r++)
		if (v->guests[r].wanted)
			call_guest(&v->guests[r], r, &hello, -1);
	v->passing->spare = fcntl(v->passing->listener, F_DUPFD_CLOEXEC, 0);
	error_put_back(cause);
}

/* ---- hearing --------------------------------------------------------------------------------- */

static bool is_guest(const struct fd_passing_visit *v, const struct message *m)
{
	const struct hello *hello = &m->hello;

	return m->whole &&
	       !memcmp(hello->secret, v->passing->address.secret, FD_PASSING_KEY_BYTES) &&
	       hello->round == v->round && hello->rank < (uint32_t)v->nr_ranks &&
	       v->guests[hello->rank].wanted;
}

/* Puts the descriptor in its place; ignores strangers, and whoever sends twice. */
static int admit(struct fd_passing_visit *v, const struct message *m)
{
	bool guest = is_guest(v, m), missing = guest && v->guests[m->hello.rank].fd < 0;
	bool fits = missing && m->fd >= 0 && !m->cut && !m->hello.error;

	if (fits) {
		v->guests[m->hello.rank].fd = m->fd;
		v->to_hear--;
		return 0;
	}
	if (m->fd >= 0)
		close(m->fd);
	if (guest && m->hello.error < 0)
		return fail(m->hello.error, "rank %u: %s", m->hello.rank, m->hello.cause);
	if (missing && m->cut && m->fd < 0)
		return fail(TERN_ERR_NOMEM,
			"this process has no place for the descriptor that rank %u passes",
			m->hello.rank);
	return 0;
}

/* 1: the caller has spoken and is done with; 0: not yet; negative: an error. */
static int hear_caller(struct fd_passing_visit *v, int socket)
{
	struct message message;
	int rc;

	if (!message_receive(socket, &message))
		return 0;
	close(socket);
	rc = admit(v, &message);
	return rc ? rc : 1;
}

static int hear_callers(struct fd_passing_visit *v)
{
	for (int i = 0; i < CALLERS_MOST; i++) {
		int rc = v->callers[i] >= 0 ? hear_caller(v, v->callers[i]) : 0;

		if (rc)
			v->callers[i] = -1;
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Who has been silent for so many callers goes. The door is closed before the last look: what is
 * said after that comes back to who says it. */
static int keep_caller(struct fd_passing_visit *v, int socket)
{
	int *place = &v->callers[v->nr_kept++ % CALLERS_MOST], old = *place, rc;

	*place = socket;
	if (old < 0)
		return 0;
	shutdown(old, SHUT_RD);
	rc = hear_caller(v, old);
	if (rc == 0)
		close(old);
	return rc < 0 ? rc : 0;
}

static int take_callers(struct fd_passing_visit *v)
{
	for (int i = 0; i < ACCEPTS_A_TURN && v->to_hear > 0; i++) {
		int rc, s = accept4(v->passing->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (s < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
			return 0;
		if (s < 0)
			return fail_errno("taking a connection of a rank on this machine");
		if (!local_same_user(s)) {
			close(s);
			continue;
		}
		rc = hear_caller(v, s);
		if (rc == 0)
			rc = keep_caller(v, s);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

static int fail_waiting(const struct fd_passing_visit *v, int wait_ms)
{
	int r = 0;

	while (r < v->nr_ranks && !(v->guests[r].wanted && v->guests[r].fd < 0))
		r++;
	if (r < v->nr_ranks)
		return fail(TERN_ERR_BOOTSTRAP, "waited %d ms for rank %d to pass its descriptor",
			wait_ms, r);
	for (r = 0; !(v->guests[r].wanted && !v->guests[r].called);)
		r++;
	return fail(TERN_ERR_BOOTSTRAP,
		"waited %d ms for rank %d to take a descriptor: its queue is full", wait_ms, r);
}

static int look_for_deaths(const struct fd_passing_visit *v)
{
	for (int r = 0; r < v->nr_ranks; r++) {
		const struct fd_passing_guest *guest = &v->guests[r];
		struct pollfd pfd = {.fd = guest->lifeline, .events = POLLIN};

		if (guest->wanted && (guest->fd < 0 || !guest->called) && guest->lifeline >= 0 &&
			poll(&pfd, 1, 0) == 1)
			return fail(TERN_ERR_PEER_DEAD,
				"rank %d died before it had passed its descriptor", r);
	}
	return 0;
}

/* Whoever is missing nobody has not waited in vain, however late it is. */
static int visit_all(struct fd_passing_visit *v, int wait_ms)
{
	uint64_t deadline = clock_ns() + (uint64_t)wait_ms * 1000000;

	for (;;) {
		struct pollfd pfd = {.fd = v->passing->listener, .events = POLLIN};
		int rc = call_guests(v);

		rc = rc ? rc : hear_callers(v);
		rc = rc ? rc : take_callers(v);
		if (rc || (v->to_call == 0 && v->to_hear == 0))
			return rc;
		rc = look_for_deaths(v);
		if (rc)
			return rc;
		if (clock_ns() > deadline)
			return fail_waiting(v, wait_ms);
		/* Callers send right after they connect, so a short slice serves those that have
		 * connected and not yet sent. */
		poll(&pfd, 1, v->nr_kept || v->to_call ? 1 : 20);
	}
}

static void visit_begin(struct fd_passing_visit *v)
{
	for (int r = 0; r < v->nr_ranks; r++) {
		v->guests[r].called = 0;
		v->to_call += v->guests[r].wanted;
	}
	v->to_hear = v->to_call;
	memset(v->callers, -1, sizeof(v->callers));
}

static void visit_end(struct fd_passing_visit *v)
{
	for (int i = 0; i < CALLERS_MOST; i++)
		if (v->callers[i] >= 0)
			close(v->callers[i]);
}

int fd_passing_exchange(struct fd_passing *passing, int rank, int nr_ranks, uint32_t round, int fd,
	struct fd_passing_guest *guests, int wait_ms)
{
	struct fd_passing_visit v = {.passing = passing,
		.guests = guests,
		.rank = rank,
		.nr_ranks = nr_ranks,
		.fd = fd,
		.round = round};
	int rc;

	visit_begin(&v);
	rc = visit_all(&v, wait_ms);
	visit_end(&v);
	if (rc)
		tell_guests(&v, rc);
	return rc;
}

/* ---- in steps -------------------------------------------------------------------------------- */

int fd_passing_begin(struct fd_passing *passing, int rank, int nr_ranks, uint32_t round, int fd,
	struct fd_passing_guest *guests, struct fd_passing_visit **visit)
{
	struct fd_passing_visit *v = calloc(1, sizeof(*v));

	if (!v)
		return fail(TERN_ERR_NOMEM, "no memory to pass descriptors");
	*v = (struct fd_passing_visit){.passing = passing,
		.guests = guests,
		.rank = rank,
		.nr_ranks = nr_ranks,
		.fd = fd,
		.round = round};
	visit_begin(v);
	*visit = v;
	return 0;
}

int fd_passing_step(struct fd_passing_visit *v)
{
	int rc = call_guests(v);

	rc = rc ? rc : hear_callers(v);
	rc = rc ? rc : take_callers(v);
	return rc ? rc : v->to_call == 0 && v->to_hear == 0;
}

void fd_passing_without(struct fd_passing_visit *v, int rank)
{
	struct fd_passing_guest *guest = &v->guests[rank];

	if (!guest->wanted)
		return;
	v->to_call -= !guest->called;
	v->to_hear -= guest->fd < 0;
	guest->wanted = 0;
}

void fd_passing_end(struct fd_passing_visit *v)
{
	if (v)
		visit_end(v);
	free(v);
}
