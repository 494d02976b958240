/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's end of the socket to its launcher; launch_wire.h tells what is said on it. */
#include "group/boot/boot.h"
#include "group/boot/launch_wire.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct socket_boot {
	struct boot_seat seat;
	int fd;
	int wait_ms;
	uint64_t boot;     /* 0 until the launcher has numbered it */
	uint64_t sequence; /* of the latest gathering */
};

/* Waits for POLLIN or POLLOUT until the deadline. The socket is non-blocking by the flag of each
 * call only: O_NONBLOCK would be shared with every duplicate of it. */
static int wait_ready(struct socket_boot *s, short events, int64_t deadline_ms)
{
	struct pollfd p = {.fd = s->fd, .events = events};
	int64_t left_ms;
	int n;

	do {
		left_ms = deadline_ms - boot_now_ms();
		n = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return fail_errno("rank %d: poll on the launcher's socket", s->seat.rank);
	if (n == 0)
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d: gathering %llu was not answered within %d ms: not all of the %d "
			"ranks have come",
			s->seat.rank, (unsigned long long)s->sequence, s->wait_ms,
			s->seat.nr_ranks);
	return 0;
}

static int fail_gone(struct socket_boot *s)
{
	return fail(TERN_ERR_BOOTSTRAP,
		"rank %d: the launcher has closed its socket, or this process gave up an earlier "
		"gathering",
		s->seat.rank);
}

static int send_all(
	struct socket_boot *s, const void *data, size_t bytes, int more, int64_t deadline_ms)
{
	const char *at = data;
	ssize_t n;
	int rc;

	while (bytes) {
		n = send(s->fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT | more);
		if (n < 0 && errno == EAGAIN) {
			rc = wait_ready(s, POLLOUT, deadline_ms);
			if (rc)
				return rc;
		} else if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
			return fail_gone(s);
		} else if (n < 0 && errno != EINTR) {
			return fail_errno("rank %d: send to the launcher", s->seat.rank);
		} else if (n > 0) {
			at += n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

static int recv_all(struct socket_boot *s, void *data, size_t bytes, int64_t deadline_ms)
{
	char *at = data;
	ssize_t n;
	int rc;

	while (bytes) {
		n = recv(s->fd, at, bytes, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno == ECONNRESET)) {
			return fail_gone(s);
		} else if (n < 0 && errno == EAGAIN) {
			rc = wait_ready(s, POLLIN, deadline_ms);
			if (rc)
				return rc;
		} else if (n < 0 && errno != EINTR) {
			return fail_errno("rank %d: receive from the launcher", s->seat.rank);
		} else if (n > 0) {
			at += n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

static int send_request(struct socket_boot *s, enum launch_kind kind, const void *mine,
	size_t bytes, int64_t deadline_ms)
{
	struct launch_header header = {
		.magic = LAUNCH_MAGIC,
		.version = LAUNCH_VERSION,
		.kind = (uint16_t)kind,
		.rank = s->seat.rank,
		.nr_ranks = s->seat.nr_ranks,
		.boot = s->boot,
		.sequence = s->sequence,
		.bytes = bytes,
	};
	int rc = send_all(s, &header, sizeof(header), bytes ? MSG_MORE : 0, deadline_ms);

	return rc ? rc : send_all(s, mine, bytes, 0, deadline_ms);
}

static int check_answer(struct socket_boot *s, const struct launch_header *h, size_t bytes)
{
	if (h->magic != LAUNCH_MAGIC || h->version != LAUNCH_VERSION)
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d: the launcher's answer begins with %08x, version %u; expected "
			"%08x, version %u",
			s->seat.rank, h->magic, h->version, LAUNCH_MAGIC, LAUNCH_VERSION);
	if (h->rank != s->seat.rank || h->nr_ranks != s->seat.nr_ranks ||
		h->sequence != s->sequence || !h->boot || (s->boot && h->boot != s->boot))
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d of %d: the launcher answers rank %d of %d, boot %llu, gathering "
			"%llu; expected boot "
			"%llu, gathering %llu",
			s->seat.rank, s->seat.nr_ranks, h->rank, h->nr_ranks,
			(unsigned long long)h->boot, (unsigned long long)h->sequence,
			(unsigned long long)s->boot, (unsigned long long)s->sequence);
	if (h->kind == LAUNCH_REFUSED && h->bytes < LAUNCH_MAX_TEXT)
		return 0;
	if (h->kind == LAUNCH_GATHERED && h->bytes == bytes)
		return 0;
	return fail(TERN_ERR_BOOTSTRAP,
		"rank %d: the launcher's answer is of kind %u with %llu bytes a rank; asked with "
		"%zu",
		s->seat.rank, h->kind, (unsigned long long)h->bytes, bytes);
}

/* *in_step: the stream stands at the end of an answer, so that another request may follow. */
static int recv_answer(
	struct socket_boot *s, void *all, size_t bytes, int64_t deadline_ms, bool *in_step)
{
	struct launch_header header;
	char text[LAUNCH_MAX_TEXT] = "";
	int rc;

	rc = recv_all(s, &header, sizeof(header), deadline_ms);
	if (!rc)
		rc = check_answer(s, &header, bytes);
	if (rc)
		return rc;
	s->boot = header.boot;
	if (header.kind == LAUNCH_GATHERED)
		rc = recv_all(s, all, bytes * (size_t)s->seat.nr_ranks, deadline_ms);
	else
		rc = recv_all(s, text, header.bytes, deadline_ms);
	if (rc)
		return rc;
	*in_step = true;
	return header.kind == LAUNCH_GATHERED ? 0 : fail(TERN_ERR_BOOTSTRAP, "%s", text);
}

int socket_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct socket_boot *s = ctx;
	int64_t deadline_ms = boot_now_ms() + s->wait_ms;
	bool in_step = false;
	int rc;

	if (bytes > LAUNCH_MAX_ALL / (uint64_t)s->seat.nr_ranks)
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d gathers %zu bytes from each of %d ranks; the launcher takes %llu "
			"in all",
			s->seat.rank, bytes, s->seat.nr_ranks, (unsigned long long)LAUNCH_MAX_ALL);
	s->sequence++;
	rc = send_request(s, LAUNCH_GATHER, mine, bytes, deadline_ms);
	if (!rc)
		rc = recv_answer(s, all, bytes, deadline_ms, &in_step);
	if (rc && !in_step)
		shutdown(s->fd, SHUT_RDWR); /* nobody can know where the stream stands: tell the
					       launcher, and the other boots */
	return rc;
}

static void socket_close(void *ctx)
{
	struct socket_boot *s = ctx;

	close(s->fd);
	free(s);
}

/* A descriptor of that number may be anything by now: the program may have closed all it did not
 * know. */
static int check_socket(int fd)
{
	int domain = 0, type = 0;
	socklen_t size = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) ||
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size))
		return fail(TERN_ERR_BOOTSTRAP,
			"%s is %d, which is no open socket: was it closed between the launcher and "
			"this program?",
			LAUNCH_ENV_FD, fd);
	if (domain != AF_UNIX || type != SOCK_STREAM)
		return fail(TERN_ERR_BOOTSTRAP,
			"%s is %d, a socket, but not the launcher's Unix stream socket",
			LAUNCH_ENV_FD, fd);
	return 0;
}

/* ---- the rendezvous -------------------------------------------------------------------------- */

/* Answered at once: a rank that gets none has lost its launcher. *bytes: of what is sent, and then
 * of what came into `value`. 0, 1: there is none; or an error. */
static int ask(struct socket_boot *s, enum launch_kind kind, const struct launch_value *sent,
	void *value, size_t *bytes)
{
	int64_t deadline_ms = boot_now_ms() + s->wait_ms;
	struct launch_header header;
	uint8_t came[LAUNCH_MAX_VALUE];
	int rc = send_request(s, kind, sent, *bytes, deadline_ms);

	rc = rc ? rc : recv_all(s, &header, sizeof(header), deadline_ms);
	if (!rc && (header.magic != LAUNCH_MAGIC || header.version != LAUNCH_VERSION ||
			   (header.kind != LAUNCH_VALUE && header.kind != LAUNCH_NOTHING) ||
			   header.bytes > sizeof(came)))
		rc = fail(TERN_ERR_BOOTSTRAP, "rank %d: the launcher's answer is of kind %u",
			s->seat.rank, header.kind);
	rc = rc ? rc : recv_all(s, came, header.bytes, deadline_ms);
	if (rc) {
		shutdown(s->fd, SHUT_RDWR);
		return rc;
	}
	if (header.kind == LAUNCH_NOTHING)
		return 1;
	*bytes = header.bytes;
	if (value)
		memcpy(value, came, header.bytes);
	return 0;
}

/* What the environment says each time; the socket stays open as long as the process wants. */
static int open_here(struct socket_boot *s, const char *key, struct launch_value *v, int wait_ms)
{
	int rc, rank, nr_ranks, fd;

	rc = boot_launch_numbers(&rank, &nr_ranks, &fd);
	rc = rc ? rc : check_socket(fd);
	if (!rc && strlen(key) >= sizeof(v->key))
		rc = fail(TERN_ERR_INVALID, "the key \"%s\" of a rendezvous has %zu bytes", key,
			strlen(key));
	*s = (struct socket_boot){.seat = {rank, nr_ranks, 0}, .fd = fd, .wait_ms = wait_ms};
	memset(v, 0, sizeof(*v));
	if (!rc)
		snprintf(v->key, sizeof(v->key), "%s", key);
	return rc;
}

static int socket_set(void *ctx, const char *key, const void *value, size_t bytes, int wait_ms)
{
	struct socket_boot s;
	struct launch_value v;
	size_t all = LAUNCH_KEY + bytes;
	int rc = open_here(&s, key, &v, wait_ms);

	(void)ctx;
	if (!rc && bytes > LAUNCH_MAX_VALUE)
		rc = fail(TERN_ERR_INVALID, "%zu bytes for a rendezvous; at most %d", bytes,
			LAUNCH_MAX_VALUE);
	if (rc)
		return rc;
	memcpy(v.value, value, bytes);
	rc = ask(&s, LAUNCH_SET, &v, NULL, &all);
	return rc == 1 ? fail(TERN_ERR_NOMEM, "the launcher has no room for \"%s\"", key) : rc;
}

static int socket_get(void *ctx, const char *key, void *value, size_t *bytes, int wait_ms)
{
	struct socket_boot s;
	struct launch_value v;
	uint8_t came[LAUNCH_MAX_VALUE];
	size_t all = LAUNCH_KEY;
	int rc = open_here(&s, key, &v, wait_ms);

	(void)ctx;
	rc = rc ? rc : ask(&s, LAUNCH_GET, &v, came, &all);
	if (rc)
		return rc;
	if (all > *bytes)
		return fail(TERN_ERR_INVALID, "\"%s\" of the rendezvous has %zu bytes, and not %zu",
			key, all, *bytes);
	memcpy(value, came, all);
	*bytes = all;
	return 0;
}

void socket_rendezvous(struct tern_rendezvous *rendezvous)
{
	*rendezvous = (struct tern_rendezvous){.set = socket_set, .get = socket_get};
}

int boot_socket(int rank, int nr_ranks, int fd, int wait_ms, struct tern_boot *boot)
{
	struct socket_boot *s;
	int rc = check_socket(fd);

	if (rc)
		return rc;
	s = malloc(sizeof(*s));
	if (!s)
		return fail(TERN_ERR_NOMEM, "no memory for the bootstrap of rank %d", rank);
	*s = (struct socket_boot){.seat = {rank, nr_ranks, 1}, .wait_ms = wait_ms};
	s->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (s->fd < 0) {
		rc = fail_errno("duplicating the launcher's socket %d", fd);
		free(s);
		return rc;
	}
	*boot = (struct tern_boot){
		.rank = rank,
		.nr_ranks = nr_ranks,
		.allgather = socket_allgather,
		.ctx = s,
		.close = socket_close,
	};
	return 0;
}
