/* SPDX-License-Identifier: Apache-2.0 */
#include "group/line.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "group/far_socket.h"

#define MAGIC 0x656e696cu
#define LEFT_OUT 'X'
#define ALL_NS 5000000000u /* of all of them */
#define MOST_STRANGERS 64  /* connections that have not said who they are */
#define SLICE_MS 5

/* What the others have to know. */
struct line_address {
	uint64_t secret;
	struct far_address at; /* 0 addresses: it takes no lines */
};

/* The first words on a line. */
struct line_hello {
	uint32_t magic, rank;
	uint64_t secret; /* of whom it is for */
};

/* A line that is being made to a higher rank. */
struct call {
	int fd;        /* -1: none */
	uint32_t next; /* address */
	bool said, done;
	uint64_t since_ns;
};

struct making {
	tern_group *group;
	struct line_address mine, *all; /* [R] */
	struct call *calls;             /* [R] */
	int listener;
	int strangers[MOST_STRANGERS];
	uint32_t nr_strangers;
};

static bool is_elsewhere(const tern_group *group, int r)
{
	return group->peers[r].node != group->peers[group->rank].node;
}

/* ---- where this rank can be called ----------------------------------------------------------- */

/* Without a listener this rank takes no lines. */
static int making_open(struct making *m, tern_group *group)
{
	int rc = 0;

	*m = (struct making){.group = group, .listener = -1};
	m->all = calloc((size_t)group->nr_ranks, sizeof(*m->all));
	m->calls = calloc((size_t)group->nr_ranks, sizeof(*m->calls));
	if (!m->all || !m->calls)
		rc = fail(TERN_ERR_NOMEM, "no memory for lines to %d ranks", group->nr_ranks);
	else if (getrandom(&m->mine.secret, sizeof(m->mine.secret), 0) != sizeof(m->mine.secret))
		rc = fail_errno("getrandom");
	for (int r = 0; !rc && r < group->nr_ranks; r++)
		m->calls[r].fd = -1;
	if (rc)
		return rc;
	m->listener = far_listen(&m->mine.at);
	return 0;
}

static void making_close(struct making *m)
{
	for (int r = 0; m->calls && r < m->group->nr_ranks; r++)
		if (m->calls[r].fd >= 0)
			close(m->calls[r].fd);
	for (uint32_t i = 0; i < m->nr_strangers; i++)
		close(m->strangers[i]);
	if (m->listener >= 0)
		close(m->listener);
	free(m->all);
	free(m->calls);
}

/* ---- calling higher ranks -------------------------------------------------------------------- */

static void begin_call(struct making *m, int r)
{
	const struct far_address *to = &m->all[r].at;
	struct call *call = &m->calls[r];

	if (call->next >= to->nr || call->next >= FAR_MOST_ADDRESSES) {
		call->done = true;
		return;
	}
	call->fd = far_begin(to, call->next++);
	call->said = false;
	call->since_ns = clock_ns();
}

/* The other end answers with this rank's secret, which a stranger does not know. */
static bool goes_on(struct making *m, int r)
{
	struct call *call = &m->calls[r];
	struct pollfd pfd = {.fd = call->fd, .events = call->said ? POLLIN : POLLOUT};
	struct line_hello hello = {MAGIC, (uint32_t)m->group->rank, m->all[r].secret};
	ssize_t n;

	if (clock_ns() - call->since_ns > FAR_TRY_NS)
		return false;
	if (poll(&pfd, 1, 0) != 1)
		return true;
	if (!call->said) {
		call->said = true;
		return send(call->fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
	}
	n = recv(call->fd, &hello, sizeof(hello), 0);
	if (n != sizeof(hello) || hello.magic != MAGIC || hello.rank != (uint32_t)r ||
		hello.secret != m->mine.secret)
		return n < 0 && errno == EAGAIN;
	m->group->peers[r].line = call->fd;
	call->fd = -1;
	call->done = true;
	return true;
}

static void call_all(struct making *m)
{
	for (int r = m->group->rank + 1; r < m->group->nr_ranks; r++) {
		struct call *call = &m->calls[r];

		if (!is_elsewhere(m->group, r) || call->done)
			continue;
		if (call->fd < 0) {
			begin_call(m, r);
		} else if (!goes_on(m, r)) {
			close(call->fd);
			call->fd = -1;
		}
	}
}

/* ---- being called ---------------------------------------------------------------------------- */

static void take_calls(struct making *m)
{
	int fd;

	while (m->listener >= 0 && m->nr_strangers < MOST_STRANGERS &&
		(fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
		m->strangers[m->nr_strangers++] = fd;
}

/* True: it stays a stranger for now. */
static bool greet(struct making *m, int fd)
{
	struct line_hello hello;
	ssize_t n = recv(fd, &hello, sizeof(hello), 0);
	struct peer *peer;

	if (n < 0 && errno == EAGAIN)
		return true;
	if (n != sizeof(hello) || hello.magic != MAGIC || hello.secret != m->mine.secret ||
		hello.rank >= (uint32_t)m->group->rank ||
		!is_elsewhere(m->group, (int)hello.rank) || m->group->peers[hello.rank].line >= 0) {
		close(fd);
		return false;
	}
	peer = &m->group->peers[hello.rank];
	hello = (struct line_hello){MAGIC, (uint32_t)m->group->rank, m->all[hello.rank].secret};
	if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello))
		peer->line = fd;
	else
		close(fd);
	return false;
}

static void greet_all(struct making *m)
{
	uint32_t nr = 0;

	take_calls(m);
	for (uint32_t i = 0; i < m->nr_strangers; i++)
		if (greet(m, m->strangers[i]))
			m->strangers[nr++] = m->strangers[i];
	m->nr_strangers = nr;
}

static bool is_complete(const struct making *m)
{
	for (int r = 0; r < m->group->nr_ranks; r++)
		if (is_elsewhere(m->group, r) && m->group->peers[r].line < 0 &&
			(r < m->group->rank ? m->listener >= 0 && m->all[r].at.nr
					    : !m->calls[r].done))
			return false;
	return true;
}

static void make_lines(struct making *m)
{
	uint64_t begun = clock_ns(), limit_ns = (uint64_t)m->group->wait_ms * 1000000;

	limit_ns = limit_ns < ALL_NS ? limit_ns : ALL_NS;
	while (!is_complete(m) && clock_ns() - begun < limit_ns) {
		struct pollfd pfd = {.fd = m->listener, .events = POLLIN};

		call_all(m);
		greet_all(m);
		if (!is_complete(m))
			poll(&pfd, 1, m->nr_strangers ? 0 : SLICE_MS);
	}
}

/* ---- both ends ------------------------------------------------------------------------------- */

static void drop_line(struct peer *peer)
{
	if (peer->line >= 0)
		close(peer->line);
	peer->line = -1;
}

/* A line is one only where both ends have it: who gives up alone would seem to have ended. */
static int keep_common(tern_group *group)
{
	size_t nr = (size_t)group->nr_ranks;
	uint8_t *mine = calloc(nr, 1), *all = calloc(nr, nr);
	int rc = mine && all ? 0 : fail(TERN_ERR_NOMEM, "no memory for lines to %zu ranks", nr);

	rc = group_agree_status(group, rc, "lines between nodes");
	for (size_t r = 0; r < nr && !rc; r++)
		mine[r] = group->peers[r].line >= 0;
	rc = rc ? rc : group_allgather(group, mine, all, nr);
	for (size_t r = 0; r < nr; r++)
		if (rc || !all[r * nr + (size_t)group->rank])
			drop_line(&group->peers[r]);
	free(mine);
	free(all);
	return rc;
}

int lines_open(tern_group *group)
{
	struct making m;
	int rc = making_open(&m, group);

	rc = group_agree_status(group, rc, "lines between nodes");
	rc = rc ? rc : group_allgather(group, &m.mine, m.all, sizeof(m.mine));
	if (!rc)
		make_lines(&m);
	making_close(&m);
	return rc ? rc : keep_common(group);
}

void lines_close(tern_group *group)
{
	for (int r = 0; group->peers && r < group->nr_ranks; r++)
		drop_line(&group->peers[r]);
}

enum line_state line_look(const tern_group *group, uint32_t rank)
{
	int fd = group->peers[rank].line;
	char said;
	ssize_t n;

	if (fd < 0)
		return LINE_NONE;
	n = recv(fd, &said, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n == 1 && said == LEFT_OUT)
		return LINE_LEFT_OUT;
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? LINE_OPEN : LINE_ENDED;
}

/* It stays open, so that the kernel goes on to try where nothing comes through. */
void line_leave_out(const tern_group *group, uint32_t rank)
{
	const char said = LEFT_OUT;

	if (group->peers[rank].line >= 0)
		(void)!send(group->peers[rank].line, &said, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}
