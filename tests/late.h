/* SPDX-License-Identifier: Apache-2.0 */
/* What a busy machine has kept from a process: tests that judge how long Tern waited allow for it.
 */
#ifndef TERN_TESTS_LATE_H
#define TERN_TESTS_LATE_H

#include <sys/types.h>

/* How long the threads that this process has could have run and did not, in sum, since they began.
 * 0 where the kernel does not say (no /proc/PID/schedstat). */
unsigned long long late_ns(void);
unsigned long long late_of(pid_t pid);

/* How long ago from_ns was (CLOCK_MONOTONIC), less what this process was late in all. */
unsigned long long passed_ns(unsigned long long from_ns);

#endif
