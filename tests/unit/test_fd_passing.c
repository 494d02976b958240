/* SPDX-License-Identifier: Apache-2.0 */
/* Passing descriptors between ranks of one machine, with strangers at the door: garbage, wrong
 * secrets, wrong rounds, silence, storms. Some system calls pass through this file, so that what a
 * stranger does in the least favourable moment is done in it every time. */
#include "base/clock.h"
#include "group/fd_passing.h"
#include "tests/late.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tern.h"

#define MAX_GUESTS 8
#define ROUND 7

/* A memory file that tells its owner. */
static int token_of(int rank)
{
	int fd = memfd_create("test-token", MFD_CLOEXEC);

	if (fd >= 0 && write(fd, &rank, sizeof(rank)) != sizeof(rank))
		fail_msg("write");
	return fd;
}

static int owner_of(int fd)
{
	int rank = -1;

	return pread(fd, &rank, sizeof(rank), 0) == sizeof(rank) ? rank : -1;
}

struct member {
	struct fd_passing *passing;
	int rank, nr_ranks, wait_ms, rc;
	uint32_t round;
	struct fd_passing_guest guests[MAX_GUESTS];
};

static void *meet(void *arg)
{
	struct member *m = arg;
	int fd = token_of(m->rank);

	m->rc = fd_passing_exchange(
		m->passing, m->rank, m->nr_ranks, m->round, fd, m->guests, m->wait_ms);
	close(fd);
	return NULL;
}

static void open_members(struct member *members, int nr, int wait_ms)
{
	memset(members, 0, sizeof(*members) * (size_t)nr);
	for (int i = 0; i < nr; i++) {
		assert_int_equal(fd_passing_open(&members[i].passing), 0);
		members[i].rank = i;
		members[i].nr_ranks = nr;
		members[i].wait_ms = wait_ms;
		members[i].round = ROUND;
	}
	for (int i = 0; i < nr; i++)
		for (int j = 0; j < nr; j++) {
			members[i].guests[j] = (struct fd_passing_guest){
				.wanted = i != j, .fd = -1, .lifeline = -1};
			fd_passing_address(members[j].passing, &members[i].guests[j].address);
		}
}

static void run_members(struct member *members, int nr)
{
	pthread_t threads[MAX_GUESTS];

	for (int i = 0; i < nr; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, meet, &members[i]), 0);
	for (int i = 0; i < nr; i++)
		pthread_join(threads[i], NULL);
}

static void check_members(const struct member *members, int nr)
{
	for (int i = 0; i < nr; i++) {
		assert_int_equal(members[i].rc, 0);
		for (int j = 0; j < nr; j++)
			assert_int_equal(i == j ? j : owner_of(members[i].guests[j].fd), j);
	}
}

static void close_members(struct member *members, int nr)
{
	for (int i = 0; i < nr; i++) {
		for (int j = 0; j < nr; j++)
			if (members[i].guests[j].fd >= 0)
				close(members[i].guests[j].fd);
		fd_passing_close(members[i].passing);
	}
}

static int open_files(void)
{
	int nr = 0;

	for (int fd = 0; fd < 1024; fd++)
		nr += fcntl(fd, F_GETFD) >= 0;
	return nr;
}

static void everybody_meets(void **state)
{
	struct member members[MAX_GUESTS];
	int files = open_files();

	(void)state;
	for (int nr = 1; nr <= MAX_GUESTS; nr++) {
		open_members(members, nr, 30000);
		run_members(members, nr);
		check_members(members, nr);
		close_members(members, nr);
	}
	assert_int_equal(open_files(), files);
}

static void again_and_again(void **state)
{
	struct member members[3];

	(void)state;
	open_members(members, 3, 30000);
	for (uint32_t round = 0; round < 50; round++) {
		for (int i = 0; i < 3; i++)
			members[i].round = round;
		run_members(members, 3);
		check_members(members, 3);
		for (int i = 0; i < 3; i++)
			for (int j = 0; j < 3; j++)
				if (i != j) {
					close(members[i].guests[j].fd);
					members[i].guests[j].fd = -1;
				}
	}
	close_members(members, 3);
}

static void selected_guests(void **state)
{
	struct member members[4];

	(void)state;
	open_members(members, 4, 30000);
	for (int i = 0; i < 4; i++) /* 0 with 1, 2 with 3 */
		for (int j = 0; j < 4; j++)
			members[i].guests[j].wanted = (i ^ 1) == j;
	run_members(members, 4);
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++)
			assert_int_equal(members[i].guests[j].fd >= 0
						 ? owner_of(members[i].guests[j].fd)
						 : -1,
				(i ^ 1) == j ? j : -1);
	close_members(members, 4);
}

/* ---- in steps -------------------------------------------------------------------------------- */

#define STEPS 1000 /* what is sent can be read at once */

static struct fd_passing_visit *begin_visit(struct member *m, uint32_t round, int fd)
{
	struct fd_passing_visit *visit = NULL;

	for (int r = 0; r < m->nr_ranks; r++) {
		m->guests[r].wanted = r != m->rank;
		m->guests[r].fd = -1;
	}
	assert_int_equal(
		fd_passing_begin(m->passing, m->rank, m->nr_ranks, round, fd, m->guests, &visit),
		0);
	return visit;
}

static void end_visit(struct member *m, struct fd_passing_visit *visit)
{
	fd_passing_end(visit);
	for (int r = 0; r < m->nr_ranks; r++) {
		if (m->guests[r].fd >= 0)
			close(m->guests[r].fd);
		m->guests[r].fd = -1;
	}
}

/* Rank 2 has gone before it passed anything, and comes to the next visit, where nobody takes what
 * was passed for the first. */
static void in_steps(void **state)
{
	struct member members[3];
	struct fd_passing_visit *visits[3];
	int files = open_files(), nr_met = 0, fds[3];

	(void)state;
	open_members(members, 3, 0);
	for (int i = 0; i < 3; i++)
		fds[i] = token_of(i);
	for (int i = 0; i < 2; i++)
		visits[i] = begin_visit(&members[i], 7, fds[i]);
	for (int step = 0; step < STEPS; step++)
		for (int i = 0; i < 2; i++)
			assert_int_equal(fd_passing_step(visits[i]), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(owner_of(members[i].guests[1 - i].fd), 1 - i);
		fd_passing_without(visits[i], 2);
		assert_int_equal(fd_passing_step(visits[i]), 1);
		end_visit(&members[i], visits[i]);
	}
	for (int i = 0; i < 3; i++)
		visits[i] = begin_visit(&members[i], 8, fds[i]);
	for (int step = 0; step < STEPS && nr_met < 3; step++) {
		nr_met = 0;
		for (int i = 0; i < 3; i++)
			nr_met += fd_passing_step(visits[i]);
	}
	for (int i = 0; i < 3; i++)
		members[i].rc = 0;
	check_members(members, 3);
	for (int i = 0; i < 3; i++) {
		end_visit(&members[i], visits[i]);
		close(fds[i]);
	}
	close_members(members, 3);
	assert_int_equal(open_files(), files);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* -1: the queue is full, or this process. */
static int try_knock(const struct fd_passing_address *address, int flags)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
	int length = 5;

	memcpy(un.sun_path + 1, "tern-", 5);
	for (int i = 0; i < FD_PASSING_KEY_BYTES; i++)
		length += snprintf(un.sun_path + 1 + length, 3, "%02x", address->name[i]);
	if (s < 0)
		return -1;
	if (!connect(s, (struct sockaddr *)&un,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)))
		return s;
	assert_int_equal(errno, EAGAIN);
	close(s);
	return -1;
}

static int knock(const struct fd_passing_address *address)
{
	int s = try_knock(address, 0);

	assert_true(s >= 0);
	return s;
}

/* Bytes, with nr_fds descriptors. */
static void say(int s, const void *bytes, size_t size, int nr_fds)
{
	char control[CMSG_SPACE(8 * sizeof(int))] __attribute__((aligned(8))) = {0};
	struct iovec iov = {.iov_base = (void *)bytes, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[8], fd = token_of(99);

	for (int i = 0; i < nr_fds; i++)
		fds[i] = fd;
	if (nr_fds) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE((size_t)nr_fds * sizeof(int));
		*CMSG_FIRSTHDR(&msg) = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS,
			.cmsg_len = CMSG_LEN((size_t)nr_fds * sizeof(int))};
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), fds, (size_t)nr_fds * sizeof(int));
	}
	sendmsg(s, &msg, MSG_NOSIGNAL); /* may be refused: strangers have no claim */
	close(fd);
}

struct words { /* as in fd_passing.c */
	uint8_t secret[FD_PASSING_KEY_BYTES];
	uint32_t rank, round;
	int32_t error;
	char text[132];
};

static struct words words_of(const struct fd_passing_address *address, uint32_t rank)
{
	struct words words = {.rank = rank, .round = ROUND};

	memcpy(words.secret, address->secret, sizeof(words.secret));
	return words;
}

/* Says what rank 1 would say to that address. */
static void say_rank_1(int s, const struct fd_passing_address *address)
{
	struct words words = words_of(address, 1);

	say(s, &words, sizeof(words), 1);
	close(s);
}

/* Each stranger says something else; connections stay open in `sockets`. */
static int send_strangers(const struct fd_passing_address *address, int *sockets)
{
	struct words good = words_of(address, 1), words;
	char garbage[4096];
	int nr = 0;

	memset(garbage, 0x77, sizeof(garbage));
#define STRANGER(size, nr_fds, ...)                                                                \
	do {                                                                                       \
		words = good;                                                                      \
		__VA_ARGS__;                                                                       \
		sockets[nr] = knock(address);                                                      \
		say(sockets[nr++], &words, size, nr_fds);                                          \
	} while (0)
	sockets[nr++] = knock(address); /* says nothing */
	STRANGER(sizeof(words), 1, words.secret[3] ^= 1);
	STRANGER(sizeof(words), 1, words.round++);
	STRANGER(sizeof(words), 0, words.secret[3] ^= 1, words.error = TERN_ERR_NOMEM);
	STRANGER(sizeof(words), 0, words.round++, words.error = TERN_ERR_NOMEM);
	STRANGER(sizeof(words), 0, words.error = 1); /* no error has this number */
	STRANGER(sizeof(words), 1, words.rank = 0);  /* nobody calls himself */
	STRANGER(sizeof(words), 1, words.rank = 77);
	STRANGER(sizeof(words), 1, words.rank = UINT32_MAX);
	STRANGER(sizeof(words), 0, (void)0); /* no descriptor */
	STRANGER(sizeof(words) - 1, 1, (void)0);
	STRANGER(sizeof(words), 3, words.secret[0] ^= 1); /* more descriptors than asked for */
	STRANGER(0, 0, (void)0);
#undef STRANGER
	sockets[nr] = knock(address);
	say(sockets[nr++], garbage, sizeof(garbage), 1);
	sockets[nr] = knock(address);
	close(sockets[nr]); /* came and went */
	sockets[nr++] = knock(address);
	return nr;
}

static void strangers(void **state)
{
	struct fd_passing_address address;
	struct member members[2];
	int sockets[32], nr, files = open_files();

	(void)state;
	open_members(members, 2, 30000);
	fd_passing_address(members[0].passing, &address);
	nr = send_strangers(&address, sockets);
	run_members(members, 2);
	check_members(members, 2);
	for (int i = 0; i < nr; i++)
		close(sockets[i]);
	close_members(members, 2);
	assert_int_equal(open_files(), files); /* their descriptors were closed, too */
}

/* The first comes in; who says the same again does not take its place. */
static void says_it_twice(void **state)
{
	struct member members[2];
	struct fd_passing_address address;
	struct words words;
	int sockets[2], files = open_files();

	(void)state;
	open_members(members, 2, 30000);
	fd_passing_address(members[0].passing, &address);
	words = words_of(&address, 1);
	for (int i = 0; i < 2; i++) {
		sockets[i] = knock(&address);
		say(sockets[i], &words, sizeof(words), 1);
	}
	meet(&members[0]);
	assert_int_equal(members[0].rc, 0);
	assert_int_equal(owner_of(members[0].guests[1].fd), 99);
	close(sockets[0]);
	close(sockets[1]);
	close_members(members, 2);
	assert_int_equal(open_files(), files);
}

/* ---- storms ---------------------------------------------------------------------------------- */

#define MOST_LATE 20000 /* then a storm dies down: who waits for calm fails and does not hang */
#define FEW_LATE 2000

static struct storm {
	bool watched;                        /* by one thread; the others' calls are left alone */
	const struct fd_passing_address *on; /* NULL: calm */
	bool foreign;                        /* strangers of another user */
	int wait_ms;
	int nr_guests;   /* that have connected before it began */
	int stranger;    /* the one that was taken last */
	int nr, nr_late; /* taken, and of these after the deadline */
	unsigned long long deadline_ns;
	int highest;                                /* descriptor of all */
	const struct fd_passing_address *last_word; /* where a silent one speaks at the last moment
						     */
	int silent;                                 /* its end */
	_Atomic int broken_sends;                   /* so many are answered by `cause` */
	int cause;
} storm;

static void storm_begins(
	const struct fd_passing_address *on, bool foreign, int wait_ms, int nr_guests)
{
	storm = (struct storm){.watched = true,
		.on = on,
		.foreign = foreign,
		.wait_ms = wait_ms,
		.nr_guests = nr_guests,
		.stranger = -1};
}

/* In a storm another has connected before this one is taken. The deadline is counted from the
 * first: its own is not later. */
int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags)
{
	int s;

	if (storm.on && storm.nr_late < MOST_LATE) {
		s = try_knock(storm.on, SOCK_NONBLOCK);
		if (s >= 0)
			close(s);
		if (!storm.nr++)
			storm.deadline_ns =
				clock_ns() + (unsigned long long)storm.wait_ms * 1000000;
		storm.nr_late += clock_ns() > storm.deadline_ns;
	}
	s = (int)syscall(SYS_accept4, listener, address, length, flags);
	if (!storm.watched)
		return s;
	storm.stranger = storm.nr > storm.nr_guests ? s : -1;
	storm.highest = s > storm.highest ? s : storm.highest;
	return s;
}

int getsockopt(int s, int level, int name, void *value, socklen_t *length)
{
	int rc = (int)syscall(SYS_getsockopt, s, level, name, value, length);

	if (storm.on && storm.foreign && name == SO_PEERCRED && s == storm.stranger) {
		((struct ucred *)value)->uid++;
		storm.stranger = -1;
	}
	return rc;
}

int shutdown(int s, int how)
{
	const struct fd_passing_address *address = storm.last_word;

	if (address) {
		storm.last_word = NULL;
		say_rank_1(storm.silent, address);
	}
	return (int)syscall(SYS_shutdown, s, how);
}

ssize_t sendmsg(int s, const struct msghdr *msg, int flags)
{
	if (atomic_fetch_sub(&storm.broken_sends, 1) > 0) {
		errno = storm.cause;
		return -1;
	}
	return syscall(SYS_sendmsg, s, msg, flags);
}

/* Somebody connects, again and again, faster than he can be turned away: the wait ends all the
 * same. */
static void storm_is_bounded(void **state)
{
	struct member members[2];
	struct fd_passing_address address;

	(void)state;
	for (int foreign = 0; foreign < 2; foreign++) {
		open_members(members, 2, 50);
		fd_passing_address(members[0].passing, &address);
		storm_begins(&address, foreign, 50, 0);
		meet(&members[0]);
		storm.on = NULL;
		storm.watched = false;
		assert_int_equal(members[0].rc, TERN_ERR_BOOTSTRAP);
		assert_non_null(strstr(tern_last_error(), "waited 50 ms for rank 1"));
		assert_in_range(storm.nr_late, 0, FEW_LATE);
		assert_in_range(storm.highest, 0, MOST_LATE / 2);
		close_members(members, 2);
	}
}

/* Whom nobody is missing does not wait for calm. */
static void storm_and_all_are_there(void **state)
{
	struct member members[2];
	struct fd_passing_address address;

	(void)state;
	for (int foreign = 0; foreign < 2; foreign++) {
		open_members(members, 2, 30);
		fd_passing_address(members[0].passing, &address);
		say_rank_1(knock(&address), &address);
		storm_begins(&address, foreign, 30, 1);
		meet(&members[0]);
		storm.on = NULL;
		storm.watched = false;
		assert_int_equal(members[0].rc, 0);
		assert_int_equal(owner_of(members[0].guests[1].fd), 99);
		assert_in_range(storm.nr, 0, FEW_LATE);
		close_members(members, 2);
	}
}

/* Connections that say nothing take few descriptors, and nobody's place. */
static void silent_crowd(void **state)
{
	struct member members[2];
	struct fd_passing_address address;
	int sockets[400], files = open_files();

	(void)state;
	open_members(members, 2, 30000);
	fd_passing_address(members[0].passing, &address);
	for (int i = 0; i < 400; i++)
		sockets[i] = knock(&address);
	say_rank_1(knock(&address), &address);
	storm = (struct storm){.watched = true};
	meet(&members[0]);
	assert_int_equal(members[0].rc, 0);
	assert_int_equal(owner_of(members[0].guests[1].fd), 99);
	assert_in_range(storm.highest, sockets[399], sockets[399] + 100);
	for (int i = 0; i < 400; i++)
		close(sockets[i]);
	close_members(members, 2);
	assert_int_equal(open_files(), files);
}

/* A peer that is slow to speak is shown out with the crowd. What it says while the door closes is
 * heard; what it says to the closed door it says again. */
static void slow_among_silent(void **state)
{
	struct member members[2];
	struct fd_passing_address address;
	int sockets[400], files = open_files();

	(void)state;
	open_members(members, 2, 1000);
	fd_passing_address(members[0].passing, &address);
	storm = (struct storm){.watched = true, .last_word = &address, .silent = knock(&address)};
	for (int i = 0; i < 400; i++)
		sockets[i] = knock(&address);
	meet(&members[0]);
	assert_null(storm.last_word);
	assert_int_equal(members[0].rc, 0);
	assert_int_equal(owner_of(members[0].guests[1].fd), 99);
	for (int i = 0; i < 400; i++)
		close(sockets[i]);
	close_members(members, 2);
	assert_int_equal(open_files(), files);
}

static void says_it_again(void **state)
{
	static const int causes[] = {EPIPE, ECONNRESET, ECONNREFUSED, ETOOMANYREFS};
	struct member members[2];

	(void)state;
	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
		open_members(members, 2, 30000);
		storm = (struct storm){.broken_sends = 3, .cause = causes[i]};
		run_members(members, 2);
		assert_true(storm.broken_sends <= 0);
		check_members(members, 2);
		close_members(members, 2);
	}
}

/* Rank 1's queue is full of strangers: it is named, not nobody, and rank 2 has been served. */
static void full_queue(void **state)
{
	struct member members[3];
	struct fd_passing_address address;
	int nr = 0, files = open_files();

	(void)state;
	open_members(members, 3, 100);
	fd_passing_address(members[1].passing, &address);
	for (int s; nr < 10000; nr++) {
		s = try_knock(&address, SOCK_NONBLOCK);
		if (s < 0)
			break;
		close(s);
	}
	assert_in_range(nr, 1, 9999);
	fd_passing_address(members[0].passing, &address);
	for (uint32_t r = 1; r < 3; r++) {
		struct words words = words_of(&address, r);
		int s = knock(&address);

		say(s, &words, sizeof(words), 1);
		close(s);
	}
	meet(&members[0]);
	assert_int_equal(members[0].rc, TERN_ERR_BOOTSTRAP);
	assert_non_null(strstr(tern_last_error(), "waited 100 ms for rank 1"));
	members[2].guests[1].wanted = 0;
	meet(&members[2]);
	assert_int_equal(owner_of(members[2].guests[0].fd), 0);
	close_members(members, 3);
	assert_int_equal(open_files(), files);
}

/* ---- out of descriptors ---------------------------------------------------------------------- */

/* The process has `nr` descriptors left from now on. */
static struct rlimit leave_descriptors(int nr)
{
	struct rlimit before, now;
	int lowest = dup(0);

	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	now = (struct rlimit){(rlim_t)(lowest + nr), before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
	return before;
}

/* In each place where it can happen: without one to call with, to take a caller with, to take what
 * it passes. This rank says so, and tells the other. */
static void no_descriptors(void **state)
{
	static const char *const places[] = {"a socket to call rank 1", "taking a connection",
		"no place for the descriptor that rank 1 passes"};
	struct member members[2];
	struct fd_passing_address address;
	struct rlimit before;
	int files = open_files(), fd, silent;

	(void)state;
	storm = (struct storm){0};
	for (int place = 0; place < 3; place++) {
		open_members(members, 2, 3000);
		fd_passing_address(members[0].passing, &address);
		silent = knock(&address);
		if (place == 2) {
			close(silent);
			say_rank_1(knock(&address), &address);
		}
		fd = token_of(0);
		before = leave_descriptors(place ? 1 : 0);
		members[0].rc = fd_passing_exchange(
			members[0].passing, 0, 2, ROUND, fd, members[0].guests, 3000);
		setrlimit(RLIMIT_NOFILE, &before);
		close(fd);
		assert_int_equal(members[0].rc, TERN_ERR_NOMEM);
		if (!strstr(tern_last_error(), places[place]))
			fail_msg("\"%s\" is not in \"%s\"", places[place], tern_last_error());
		meet(&members[1]);
		/* The last has been served by then, and may be content. */
		assert_int_equal(members[1].rc, place ? 0 : TERN_ERR_NOMEM);
		if (!place)
			assert_non_null(strstr(tern_last_error(), "rank 0: a socket to call"));
		if (place != 2)
			close(silent);
		close_members(members, 2);
	}
	assert_int_equal(open_files(), files);
}

/* A guest who never comes is waited for as long as was said, silent strangers or not, and named. */
static void bounded_wait(void **state)
{
	struct member members[3];
	struct fd_passing_address address;
	int sockets[32], nr, files = open_files();
	unsigned long long start;

	(void)state;
	open_members(members, 3, 100);
	fd_passing_address(members[0].passing, &address);
	nr = send_strangers(&address, sockets);
	start = clock_ns();
	meet(&members[0]);
	assert_int_equal(members[0].rc, TERN_ERR_BOOTSTRAP);
	assert_true(clock_ns() - start >= 100 * 1000000ULL);
	assert_true(passed_ns(start) < 20 * 1000000000ULL);
	assert_non_null(strstr(tern_last_error(), "waited 100 ms for rank 1"));
	for (int i = 0; i < nr; i++)
		close(sockets[i]);
	close_members(members, 3);
	assert_int_equal(open_files(), files);
}

static void nobody_there(void **state)
{
	struct member members[2];

	(void)state;
	open_members(members, 2, 1000);
	fd_passing_close(members[1].passing);
	members[1].passing = NULL;
	meet(&members[0]);
	assert_true(members[0].rc < 0);
	assert_non_null(strstr(tern_last_error(), "rank 1"));
	close_members(members, 2);
}

/* The name is in no file system: only in the abstract space, which goes with the process. */
static void no_name(void **state)
{
	struct fd_passing_address address;
	struct member member[1];
	char name[80] = "tern-", line[512];
	FILE *list;
	int nr = 0;

	(void)state;
	open_members(member, 1, 0);
	fd_passing_address(member[0].passing, &address);
	for (int i = 0; i < FD_PASSING_KEY_BYTES; i++)
		snprintf(name + 5 + 2 * i, 3, "%02x", address.name[i]);
	list = fopen("/proc/net/unix", "r");
	while (list && fgets(line, sizeof(line), list)) {
		const char *at = strstr(line, name);

		nr += at && at[-1] == '@';
		assert_true(!at || at[-1] == '@');
	}
	if (list) {
		fclose(list);
		assert_int_equal(nr, 1);
	}
	close_members(member, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everybody_meets),
		cmocka_unit_test(again_and_again),
		cmocka_unit_test(selected_guests),
		cmocka_unit_test(in_steps),
		cmocka_unit_test(strangers),
		cmocka_unit_test(says_it_twice),
		cmocka_unit_test(storm_is_bounded),
		cmocka_unit_test(storm_and_all_are_there),
		cmocka_unit_test(silent_crowd),
		cmocka_unit_test(slow_among_silent),
		cmocka_unit_test(says_it_again),
		cmocka_unit_test(full_queue),
		cmocka_unit_test(no_descriptors),
		cmocka_unit_test(bounded_wait),
		cmocka_unit_test(nobody_there),
		cmocka_unit_test(no_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
