/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to find the other ranks, behind tern_boot_env(). */
#ifndef TERN_GROUP_BOOT_BOOT_H
#define TERN_GROUP_BOOT_BOOT_H

#include "tern.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BOOT_WAIT_MS 30000 /* of one gathering, where TERN_WAIT_MS says nothing else */

/* What the ctx of every built-in boot begins with: struct tern_boot is the caller's, who may change
 * it, or copy it and give it twice. */
struct boot_seat {
	int rank, nr_ranks;
	_Atomic int nr_free; /* boots of this ctx that no group has */
};

/* TERN_ERR_INVALID if a built-in boot says something else than what it was made for. */
int boot_check(const struct tern_boot *boot);
/* For a group. TERN_ERR_INVALID if a built-in boot is another group's, which also closes it. */
int boot_take(const struct tern_boot *boot);

/* The built-in boots are known by these. */
int self_allgather(void *ctx, const void *mine, void *all, size_t bytes);
int threads_allgather(void *ctx, const void *mine, void *all, size_t bytes);
int socket_allgather(void *ctx, const void *mine, void *all, size_t bytes);
int pmix_allgather(void *ctx, const void *mine, void *all, size_t bytes);

/* The socket that `tern run` left open as fd, which stays the caller's: the boot works on a
 * duplicate. */
int boot_socket(int rank, int nr_ranks, int fd, int wait_ms, struct tern_boot *boot);

/* What `tern run` keeps for its ranks, over the same socket. */
void socket_rendezvous(struct tern_rendezvous *rendezvous);
/* Of the environment that `tern run` makes. */
int boot_launch_numbers(int *rank, int *nr_ranks, int *fd);

/* pmix*.c or pmix_none.c are compiled. Present: this process was started by a PMIx launcher.
 */
bool boot_pmix_present(void);
int boot_pmix(int wait_ms, struct tern_boot *boot);
int pmix_rendezvous(struct tern_rendezvous *rendezvous);

/* CLOCK_MONOTONIC, in milliseconds. */
int64_t boot_now_ms(void);

#endif
