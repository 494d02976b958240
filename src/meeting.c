/* SPDX-License-Identifier: Apache-2.0 */
#include "meeting.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"

#define NAME_PREFIX "tern-"

struct meeting {
	int listener;
	struct meeting_address address;
};

/* What comes with each descriptor. */
struct hello {
	uint8_t secret[MEETING_KEY_BYTES]; /* the receiver's */
	uint32_t rank;                     /* the sender's */
	uint32_t round;
};

/* A connection that has been taken and has not said hello yet. */
struct caller {
	int socket;
	struct caller *next;
};

static socklen_t socket_address(struct sockaddr_un *un, const uint8_t *name)
{
	static const char digits[] = "0123456789abcdef";
	char *at = un->sun_path + 1; /* a leading zero byte: the abstract name space */

	memset(un, 0, sizeof(*un));
	un->sun_family = AF_UNIX;
	memcpy(at, NAME_PREFIX, strlen(NAME_PREFIX));
	at += strlen(NAME_PREFIX);
	for (int i = 0; i < MEETING_KEY_BYTES; i++) {
		*at++ = digits[name[i] >> 4];
		*at++ = digits[name[i] & 15];
	}
	return (socklen_t)(at - (char *)un);
}

int meeting_open(struct meeting **out)
{
	struct meeting *meeting = calloc(1, sizeof(*meeting));
	struct sockaddr_un un;
	int rc;

	if (!meeting)
		return fail(TERN_ERR_NOMEM, "no memory for a meeting");
	if (getrandom(&meeting->address, sizeof(meeting->address), 0) != sizeof(meeting->address)) {
		rc = fail_errno("getrandom");
		goto err_free;
	}
	meeting->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (meeting->listener < 0) {
		rc = fail_errno("socket");
		goto err_free;
	}
	if (bind(meeting->listener, (struct sockaddr *)&un, socket_address(&un, meeting->address.name)) ||
		listen(meeting->listener, 4096)) {
		rc = fail_errno("binding a Unix socket");
		goto err_close;
	}
	*out = meeting;
	return 0;

err_close:
	close(meeting->listener);
err_free:
	free(meeting);
	return rc;
}

void meeting_close(struct meeting *meeting)
{
	if (!meeting)
		return;
	close(meeting->listener);
	free(meeting);
}

void meeting_address(const struct meeting *meeting, struct meeting_address *address)
{
	*address = meeting->address;
}

/* Both ends belong to one user, or the connection is not ours. */
static int same_user(int socket)
{
	struct ucred cred;
	socklen_t length = sizeof(cred);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &length) && cred.uid == geteuid();
}

union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int hello_send(int socket, const struct hello *hello, int fd)
{
	struct iovec iov = {.iov_base = (void *)hello, .iov_len = sizeof(*hello)};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	struct cmsghdr *cmsg;

	memset(&control, 0, sizeof(control));
	cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	return sendmsg(socket, &msg, MSG_NOSIGNAL) == sizeof(*hello) ? 0 : -1;
}

/* The one descriptor that came along, or -1. The buffer's padding has room for a second one, so a stranger's surplus is
 * closed. */
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

/* -1: nothing to read yet. Else 0, and *fd is -1 when what came is not a hello. */
static int hello_receive(int socket, struct hello *hello, int *fd)
{
	struct iovec iov = {.iov_base = hello, .iov_len = sizeof(*hello)};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t length = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);

	*fd = -1;
	/* The kernel looks for a message first and for the end after that: who says hello and hangs up in between seems to have said nothing (seen on Linux 6.1). What was said
	 * before the end is there by now. */
	if (length == 0 && !msg.msg_controllen) {
		msg.msg_controllen = sizeof(control.bytes);
		length = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	}
	if (length < 0)
		return errno == EAGAIN || errno == EINTR ? -1 : 0;
	*fd = take_descriptor(&msg);
	if (*fd >= 0 && (length != sizeof(*hello) || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))) {
		close(*fd);
		*fd = -1;
	}
	return 0;
}

_Static_assert(sizeof(union fd_control) - sizeof(struct cmsghdr) <= 2 * sizeof(int), "take_descriptor closes two");

/* 0: sent; 1: the other's queue is full, try again; negative: an error. */
static int call_guest(const struct meeting_guest *guest, int guest_rank, int rank, uint32_t round, int fd)
{
	struct hello hello = {.rank = (uint32_t)rank, .round = round};
	struct sockaddr_un un;
	socklen_t length = socket_address(&un, guest->address.name);
	int rc = 0, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (s < 0)
		return fail_errno("socket");
	memcpy(hello.secret, guest->address.secret, sizeof(hello.secret));
	if (connect(s, (struct sockaddr *)&un, length))
		rc = errno == EAGAIN ? 1 : fail_errno("connecting to rank %d on this machine", guest_rank);
	else if (!same_user(s))
		rc = fail(TERN_ERR_BOOTSTRAP, "rank %d runs as another user", guest_rank);
	else if (hello_send(s, &hello, fd))
		rc = fail_errno("sending a descriptor to rank %d", guest_rank);
	close(s); /* what was sent stays readable */
	return rc;
}

static void take_callers(struct meeting *meeting, struct caller **callers)
{
	for (;;) {
		int s = accept4(meeting->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct caller *caller;

		if (s < 0)
			return;
		caller = same_user(s) ? malloc(sizeof(*caller)) : NULL;
		if (!caller) {
			close(s);
			continue;
		}
		*caller = (struct caller){.socket = s, .next = *callers};
		*callers = caller;
	}
}

/* Puts the descriptor in its place; refuses strangers, and whoever sends twice. */
static int admit(const struct meeting *meeting, const struct hello *hello, int fd, uint32_t round, int nr_ranks,
	struct meeting_guest *guests)
{
	bool fits = fd >= 0 && !memcmp(hello->secret, meeting->address.secret, MEETING_KEY_BYTES) &&
		    hello->round == round && hello->rank < (uint32_t)nr_ranks && guests[hello->rank].wanted &&
		    guests[hello->rank].fd < 0;

	if (!fits) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	guests[hello->rank].fd = fd;
	return 1;
}

/* How many descriptors came from the callers that have spoken; those are done with. */
static int hear_callers(
	struct meeting *meeting, struct caller **callers, uint32_t round, int nr_ranks, struct meeting_guest *guests)
{
	int nr = 0;

	while (*callers) {
		struct caller *caller = *callers;
		struct hello hello;
		int fd;

		if (hello_receive(caller->socket, &hello, &fd) < 0) {
			callers = &caller->next;
			continue;
		}
		nr += admit(meeting, &hello, fd, round, nr_ranks, guests);
		*callers = caller->next;
		close(caller->socket);
		free(caller);
	}
	return nr;
}

static void drop_callers(struct caller *callers)
{
	while (callers) {
		struct caller *next = callers->next;

		close(callers->socket);
		free(callers);
		callers = next;
	}
}

static int missing_guest(const struct meeting_guest *guests, int nr_ranks)
{
	for (int r = 0; r < nr_ranks; r++)
		if (guests[r].wanted && guests[r].fd < 0)
			return r;
	return -1;
}

int meeting_exchange(struct meeting *meeting, int rank, int nr_ranks, uint32_t round, int fd,
	struct meeting_guest *guests, int wait_ms)
{
	struct caller *callers = NULL;
	uint64_t deadline = clock_ns() + (uint64_t)wait_ms * 1000000;
	int to_call = 0, to_hear = 0, rc = 0;

	for (int r = 0; r < nr_ranks; r++)
		to_hear += guests[r].wanted;
	while (to_call < nr_ranks || to_hear > 0) {
		struct pollfd pfd = {.fd = meeting->listener, .events = POLLIN};

		while (to_call < nr_ranks && rc == 0) {
			if (guests[to_call].wanted)
				rc = call_guest(&guests[to_call], to_call, rank, round, fd);
			to_call += rc == 0;
		}
		if (rc < 0)
			break;
		rc = 0;
		take_callers(meeting, &callers);
		to_hear -= hear_callers(meeting, &callers, round, nr_ranks, guests);
		if (to_call == nr_ranks && to_hear <= 0)
			break;
		if (clock_ns() > deadline) {
			rc = fail(TERN_ERR_BOOTSTRAP, "waited %d ms for rank %d to pass its window", wait_ms,
				missing_guest(guests, nr_ranks));
			break;
		}
		/* Callers send right after they connect, so a short slice serves those that have connected and not yet
		 * sent. */
		poll(&pfd, 1, callers || to_call < nr_ranks ? 1 : 20);
	}
	drop_callers(callers);
	return rc;
}
