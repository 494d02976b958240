/* SPDX-License-Identifier: Apache-2.0 */
/* A network between ranks that are threads of this process, which moves the memory of devices as a
 * NIC would: its proxies put copies on streams, beside kernels that run and wait for them. All else
 * is the shared-memory transport's. TERN_TRANSPORT=copying names it where it was offered. */
#ifndef TERN_TESTS_DEVICE_COPYING_H
#define TERN_TESTS_DEVICE_COPYING_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

extern const struct transport_ops transport_copying;

/* While no transport is open. */
struct copying_settings {
	/* An immediate is reported while its bytes are under way, as long as so many polls of the
	 * sender last, or until copying_flush: what a completion in the host's memory says of bytes
	 * in a device's, where the driver orders nothing. 0: it comes after its bytes. */
	uint32_t lag;
	/* Where it lags: 1, the first half of each line of 128 bytes is there before; 2, the
	 * second; 0, nothing is. */
	uint32_t torn;
	uint32_t refuses; /* that registration of a transport's of a device's memory, from 1; 0:
			     none */
};

struct copying_stats {
	uint64_t copies, bytes; /* put on streams */
	uint64_t early;         /* immediates that were reported before their bytes */
	uint64_t flushed;       /* copies that a flush has put on a stream */
	uint64_t held;          /* runs that waited for copying_hold */
};

/* From now on settings may name it. Devices: of ranks r modulo nr_devices, as device_choose has
 * them. */
void copying_offer(int nr_devices);
void copying_set(const struct copying_settings *settings);
void copying_stats(struct copying_stats *stats); /* since they were set */

/* By any thread: runs of that group of experts and of those behind it are under way only when this
 * is called again (INTERNODE_GROUPS: with none). Every network of this process loses all its peers.
 * Neither outlives copying_set. */
void copying_hold(uint32_t group);
void copying_cut(void);

/* What lags has landed. By any thread. */
void copying_flush(void *ctx);

#endif
