/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that gather over a boot, each in a thread. With cmocka: what does not hold fails the test.
 */
#ifndef TERN_TESTS_UNIT_BOOT_RANKS_H
#define TERN_TESTS_UNIT_BOOT_RANKS_H

#include "group/boot/boot.h"

#include <pthread.h>

#define MAX_RANKS 8

struct rank {
	struct tern_boot boot;
	struct tern_boot second; /* where a test uses two boots at once */
	int nr_rounds;
	size_t bytes;             /* of each payload; varied where 0 */
	int bad_rounds;           /* wrong data */
	int rc;                   /* of the first failure */
	int64_t took_ms, late_ms; /* how long a rank took, and how long it could have run meanwhile
				     and did not */
	char text[1024];
	pthread_t thread;
};

void *rank_main(void *rank); /* all its rounds, by who calls it */
void start_rank(struct rank *rank);
void join_rank(struct rank *rank);
void close_ranks(struct rank *ranks, int n);
void assert_text(const struct rank *rank, int rc, const char *part);
void assert_last_error(const char *part);

/* What the launcher's end of a socket reads and writes. */
void read_whole(int fd, void *to, size_t bytes);
void write_bytewise(int fd, const void *from, size_t bytes);

#endif
