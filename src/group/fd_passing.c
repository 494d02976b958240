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
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define NAME_PREFIX "tern-"
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
struct visit {
	struct fd_passing *passing;
	struct fd_passing_guest *guests;
	int rank, nr_ranks, fd;
	uint32_t round, nr_kept;
	int to_call, to_hear;
	int callers[CALLERS_MOST]; /* -1: none */
};

static socklen_t socket_address(struct sockaddr_un *un, const uint8_t *name)
{
	static const char digits[] = "0123456789abcdef";
	char *at = un->sun_path + 1; /* a leading zero byte: the abstract name space */

	memset(un, 0, sizeof(*un));
	un->sun_family = AF_UNIX;
	memcpy(at, NAME_PREFIX, strlen(NAME_PREFIX));
	at += strlen(NAME_PREFIX);
	for (int i = 0; i < FD_PASSING_KEY_BYTES; i++) {
		*at++ = digits[name[i] >> 4];
		*at++ = digits[name[i] & 15];
	}
	return (socklen_t)(at - (char *)un);
}

int fd_passing_open(struct fd_passing **out)
{
	struct fd_passing *passing = calloc(1, sizeof(*passing));
	struct sockaddr_un un;
	int rc;

	if (!passing)
		return fail(TERN_ERR_NOMEM, "no memory to pass descriptors");
	if (getrandom(&passing->address, sizeof(passing->address), 0) != sizeof(passing->address)) {
		rc = fail_errno("getrandom");
		goto err_free;
	}
	passing->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (passing->listener < 0) {
		rc = fail_errno("socket");
		goto err_free;
	}
	if (bind(passing->listener, (struct sockaddr *)&un,
		    socket_address(&un, passing->address.name)) ||
		listen(passing->listener, 4096)) {
		rc = fail_errno("binding a Unix socket");
		goto err_close;
	}
	passing->spare = fcntl(passing->listener, F_DUPFD_CLOEXEC, 0);
	if (passing->spare < 0) {
		rc = fail_errno("duplicating a socket");
		goto err_close;
	}
	*out = passing;
	return 0;

err_close:
	close(passing->listener);
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

/* Both ends belong to one user, or the connection is not ours. */
static int same_user(int socket)
{
	struct ucred cred;
	socklen_t length = sizeof(cred);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &length) &&
	       cred.uid == geteuid();
}

union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int hello_send(int socket, const struct hello *hello, int fd)
{
	struct iovec iov = {.iov_base = (void *)hello, .iov_len = sizeof(*hello)};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;

	if (fd >= 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		memset(&control, 0, sizeof(control));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	}
	return sendmsg(socket, &msg, MSG_NOSIGNAL) == sizeof(*hello) ? 0 : -1;
}

/* The one descriptor that came along, or -1. The buffer's padding has room for a second one, so a
 * stranger's surplus is closed. */
static int take_descriptor(struct msghdr *msg)
{
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg);
	int fds[2] = {-1, -1};
	size_t bytes = 0;

	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		bytes = cmsg->cmsg_len - CMSG_LEN(0);
	if (bytes == 0 || bytes > sizeof(fds))
		return -1;
	memcpy(fds, CMSG_DATA(cmsg), bytes);
	if (bytes == sizeof(int))
		return fds[0];
	close(fds[0]);
	close(fds[1]);
	return -1;
}

/* False: nothing to read yet. */
static bool message_receive(int socket, struct message *message)
{
	struct iovec iov = {.iov_base = &message->hello, .iov_len = sizeof(message->hello)};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t length = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);

	message->fd = -1;
	message->whole = message->cut = false;
	/* The kernel looks for a message first and for the end after that: who says hello and hangs
	 * up in between seems to have said nothing (seen on Linux 6.1). What was said before the
	 * end is there by now. */
	if (length == 0 && !msg.msg_controllen) {
		msg.msg_controllen = sizeof(control.bytes);
		length = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	}
	if (length < 0)
		return errno != EAGAIN && errno != EINTR;
	message->fd = take_descriptor(&msg);
	message->whole = length == sizeof(message->hello) && !(msg.msg_flags & MSG_TRUNC);
	message->cut = msg.msg_flags & MSG_CTRUNC;
	message->hello.cause[CAUSE_TEXT - 1] = 0;
	return true;
}

_Static_assert(sizeof(union fd_control) - sizeof(struct cmsghdr) <= 2 * sizeof(int),
	"take_descriptor closes two");

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
	struct sockaddr_un un;
	socklen_t length = socket_address(&un, guest->address.name);
	int rc = 0, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (s < 0)
		return fail_errno("a socket to call rank %d", guest_rank);
	memcpy(hello->secret, guest->address.secret, sizeof(hello->secret));
	if (connect(s, (struct sockaddr *)&un, length))
		rc = errno == EAGAIN || (errno == ECONNREFUSED && guest->lifeline >= 0)
			     ? 1
			     : fail_errno("connecting to rank %d on this machine", guest_rank);
	else if (!same_user(s))
		rc = fail(TERN_ERR_BOOTSTRAP, "rank %d runs as another user", guest_rank);
	else if (hello_send(s, hello, fd))
		rc = passes(errno) ? 1 : fail_errno("sending a descriptor to rank %d", guest_rank);
	close(s); /* what was sent stays readable */
	return rc;
}

/* All that have not been called yet: one whose queue is full keeps nobody else waiting. */
static int call_guests(struct visit *v)
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
static void tell_guests(struct visit *v, int error)
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

static bool is_guest(const struct visit *v, const struct message *m)
{
	const struct hello *hello = &m->hello;

	return m->whole &&
	       !memcmp(hello->secret, v->passing->address.secret, FD_PASSING_KEY_BYTES) &&
	       hello->round == v->round && hello->rank < (uint32_t)v->nr_ranks &&
	       v->guests[hello->rank].wanted;
}

/* Puts the descriptor in its place; ignores strangers, and whoever sends twice. */
static int admit(struct visit *v, const struct message *m)
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
static int hear_caller(struct visit *v, int socket)
{
	struct message message;
	int rc;

	if (!message_receive(socket, &message))
		return 0;
	close(socket);
	rc = admit(v, &message);
	return rc ? rc : 1;
}

static int hear_callers(struct visit *v)
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
static int keep_caller(struct visit *v, int socket)
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

static int take_callers(struct visit *v)
{
	for (int i = 0; i < ACCEPTS_A_TURN && v->to_hear > 0; i++) {
		int rc, s = accept4(v->passing->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (s < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
			return 0;
		if (s < 0)
			return fail_errno("taking a connection of a rank on this machine");
		if (!same_user(s)) {
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

static int fail_waiting(const struct visit *v, int wait_ms)
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

static int look_for_deaths(const struct visit *v)
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
static int visit_all(struct visit *v, int wait_ms)
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

int fd_passing_exchange(struct fd_passing *passing, int rank, int nr_ranks, uint32_t round, int fd,
	struct fd_passing_guest *guests, int wait_ms)
{
	struct visit v = {.passing = passing,
		.guests = guests,
		.rank = rank,
		.nr_ranks = nr_ranks,
		.fd = fd,
		.round = round};
	int rc;

	for (int r = 0; r < nr_ranks; r++) {
		guests[r].called = 0;
		v.to_call += guests[r].wanted;
	}
	v.to_hear = v.to_call;
	memset(v.callers, -1, sizeof(v.callers));
	rc = visit_all(&v, wait_ms);
	for (int i = 0; i < CALLERS_MOST; i++)
		if (v.callers[i] >= 0)
			close(v.callers[i]);
	if (rc)
		tell_guests(&v, rc);
	return rc;
}
