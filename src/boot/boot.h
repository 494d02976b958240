/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to find the other ranks, behind tern_boot_env(). */
#ifndef TERN_BOOT_H
#define TERN_BOOT_H

#include "tern.h"

#include <stdbool.h>
#include <stdint.h>

#define BOOT_WAIT_MS 30000 /* of one gathering, where TERN_WAIT_MS says nothing else */

/* The socket that `tern run` left open as fd, which stays the caller's: the boot works on a duplicate. */
int boot_socket(int rank, int nr_ranks, int fd, int wait_ms, struct tern_boot *boot);

/* One of pmix.c and pmix_none.c is compiled. Present: this process was started by a PMIx launcher. */
bool boot_pmix_present(void);
int boot_pmix(int wait_ms, struct tern_boot *boot);

/* CLOCK_MONOTONIC, in milliseconds. */
int64_t boot_now_ms(void);

#endif
