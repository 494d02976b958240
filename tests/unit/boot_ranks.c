/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

#include "tests/late.h"
#include "tests/unit/boot_ranks.h"

#define MOST_BYTES 100000

static size_t bytes_of_round(const struct rank *rank, int round)
{
	static const size_t sizes[] = {8, 0, 1, 4096, 64};

	if (round % 64 == 63)
		return MOST_BYTES; /* more than a socket holds */
	return rank->bytes ? rank->bytes : sizes[round % 5];
}

/* Byte i of what a rank has in a round counts on from its first. All are parts of this. */
static unsigned char counted[256 + MOST_BYTES];

static void count_bytes(void)
{
	for (size_t i = 0; i < sizeof(counted); i++)
		counted[i] = (unsigned char)i;
}

static const unsigned char *right_bytes(int rank, int round)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, count_bytes);
	return counted + (unsigned char)(rank * 31 + round);
}

static bool is_right(const unsigned char *all, int nr_ranks, size_t bytes, int round)
{
	for (int r = 0; r < nr_ranks; r++)
		if (memcmp(all + (size_t)r * bytes, right_bytes(r, round), bytes) != 0)
			return false;
	return true;
}

static int one_round(struct rank *rank, int round)
{
	struct tern_boot *boot = rank->second.allgather && round & 1 ? &rank->second : &rank->boot;
	size_t bytes = bytes_of_round(rank, round);
	unsigned char *mine = malloc(bytes + 1),
		      *all = calloc(1, bytes * (size_t)boot->nr_ranks + 1);
	int rc;

	memcpy(mine, right_bytes(boot->rank, round), bytes);
	rc = boot->allgather(boot->ctx, mine, all, bytes);
	if (!rc && !is_right(all, boot->nr_ranks, bytes, round))
		rank->bad_rounds++;
	free(mine);
	free(all);
	return rc;
}

void *rank_main(void *arg)
{
	struct rank *rank = arg;
	int64_t begin_ms = boot_now_ms(), late_ms = (int64_t)(late_ns() / 1000000);

	rank->rc = 0;
	for (int round = 0; round < rank->nr_rounds && !rank->rc; round++)
		rank->rc = one_round(rank, round);
	snprintf(rank->text, sizeof(rank->text), "%s", rank->rc ? tern_last_error() : "");
	rank->took_ms = boot_now_ms() - begin_ms;
	rank->late_ms = (int64_t)(late_ns() / 1000000) - late_ms;
	return NULL;
}

void start_rank(struct rank *rank)
{
	assert_int_equal(pthread_create(&rank->thread, NULL, rank_main, rank), 0);
}

void join_rank(struct rank *rank)
{
	assert_int_equal(pthread_join(rank->thread, NULL), 0);
}

void assert_text(const struct rank *rank, int rc, const char *part)
{
	assert_int_equal(rank->rc, rc);
	if (!strstr(rank->text, part))
		fail_msg("\"%s\" is not in \"%s\"", part, rank->text);
}

void assert_last_error(const char *part)
{
	if (!strstr(tern_last_error(), part))
		fail_msg("\"%s\" is not in \"%s\"", part, tern_last_error());
}

void close_ranks(struct rank *ranks, int n)
{
	for (int r = 0; r < n; r++) {
		ranks[r].boot.close(ranks[r].boot.ctx);
		if (ranks[r].second.close)
			ranks[r].second.close(ranks[r].second.ctx);
	}
}

void read_whole(int fd, void *to, size_t bytes)
{
	assert_int_equal(recv(fd, to, bytes, MSG_WAITALL), bytes);
}

void write_bytewise(int fd, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (send(fd, (const char *)from + i, 1, MSG_NOSIGNAL) != 1)
			return; /* the rank has had enough */
}
