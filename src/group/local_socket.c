/* SPDX-License-Identifier: Apache-2.0 */
#include "group/local_socket.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"

#define NAME_PREFIX "tern-"

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

static int new_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int local_listen(struct fd_passing_address *address, int *listener)
{
	struct sockaddr_un un;
	int rc;

	if (getrandom(address, sizeof(*address), 0) != sizeof(*address))
		return fail_errno("getrandom");
	*listener = new_socket();
	if (*listener < 0)
		return fail_errno("socket");
	if (!bind(*listener, (struct sockaddr *)&un, socket_address(&un, address->name)) &&
		!listen(*listener, 4096))
		return 0;
	rc = fail_errno("binding a Unix socket");
	close(*listener);
	*listener = -1;
	return rc;
}

int local_connect(const struct fd_passing_address *address)
{
	struct sockaddr_un un;
	socklen_t length = socket_address(&un, address->name);
	int s = new_socket(), cause;

	if (s < 0 || !connect(s, (struct sockaddr *)&un, length))
		return s;
	cause = errno;
	close(s);
	errno = cause;
	return -1;
}

bool local_same_user(int socket)
{
	struct ucred cred;
	socklen_t length = sizeof(cred);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &length) &&
	       cred.uid == geteuid();
}

union fd_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(LOCAL_FDS * sizeof(int))];
};

bool local_send(int socket, const void *data, size_t bytes, const int *fds, int nr_fds)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	size_t length = (size_t)nr_fds * sizeof(int);
	struct cmsghdr *cmsg;

	if (nr_fds) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(length);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(length);
		memcpy(CMSG_DATA(cmsg), fds, length);
	}
	return sendmsg(socket, &msg, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* There is room for no more than these. */
static void take_descriptors(struct msghdr *msg, int *fds)
{
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg);
	size_t bytes = 0;

	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		bytes = cmsg->cmsg_len - CMSG_LEN(0);
	if (bytes <= LOCAL_FDS * sizeof(int))
		memcpy(fds, bytes ? (const void *)CMSG_DATA(cmsg) : fds, bytes);
}

void local_close_fds(const int *fds)
{
	for (int i = 0; i < LOCAL_FDS; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

bool local_receive(int socket, void *data, size_t room, struct local_message *message)
{
	struct iovec iov = {.iov_base = data, .iov_len = room};
	union fd_control control;
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t length = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);

	*message = (struct local_message){.fds = {-1, -1}};
	/* The kernel looks for a message first and for the end after that: who says something and
	 * hangs up in between seems to have said nothing (seen on Linux 6.1). What was said before
	 * the end is there by now. */
	if (length == 0 && !msg.msg_controllen) {
		msg.msg_controllen = sizeof(control.bytes);
		length = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	}
	if (length < 0)
		return errno != EAGAIN && errno != EINTR;
	take_descriptors(&msg, message->fds);
	message->bytes = length;
	message->whole = !(msg.msg_flags & MSG_TRUNC);
	message->cut = msg.msg_flags & MSG_CTRUNC;
	return true;
}

_Static_assert(sizeof(union fd_control) - sizeof(struct cmsghdr) <= LOCAL_FDS * sizeof(int),
	"take_descriptors has a place for each");
