/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a rank's proxy stays awake while its device may write commands: that takes a core. */
#ifndef TERN_GPU_HOST_AWAKE_H
#define TERN_GPU_HOST_AWAKE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* A rank as its neighbours on this machine see it. */
struct core_share {
	cpu_set_t cores; /* where it may run */
	bool here;       /* on this machine */
};

/* Whether each rank that may run where this one may finds two cores there: for its own thread, and
 * for its proxy. */
bool cores_suffice(const struct core_share *shares, uint32_t nr_ranks, uint32_t rank);

/* As TERN_PROXY_AWAKE says (0 or 1); else as cores suffice. */
int proxy_awake(
	const struct core_share *shares, uint32_t nr_ranks, uint32_t rank, bool *stays_awake);

#endif
