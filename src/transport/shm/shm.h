/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of the shared-memory transport have in common: shm.c opens, connects and
 * registers, data.c writes and polls. */
#ifndef TERN_TRANSPORT_SHM_SHM_H
#define TERN_TRANSPORT_SHM_SHM_H

#include <poll.h>

#include "transport/shm/mailbox.h"
#include "transport/transport.h"

#define SHM_WRITE_MOST ((uint64_t)1 << 30)

struct transport_region {
	const uint8_t *base;
	uint64_t bytes;
	uint32_t at; /* in the mailbox */
};

struct shm_peer {
	struct mailbox *mailbox;       /* NULL: not connected */
	struct connection *connection; /* mine, in the peer's mailbox */
	struct connection *inbox;      /* the peer's, in mine */
	uint32_t immediates_put, messages_put, messages_read;
	bool failed;   /* nothing more is written to it */
	bool reported; /* and the engine knows */
	int error;
	char text[96];
};

struct shm {
	struct transport base;
	struct mailbox *mailbox;
	struct shm_peer *peers;
	struct pollfd *lives; /* pidfds, by peer; -1: none to watch */
	struct transport_event *completions;
	uint32_t nr_completions, completions_put, completions_taken; /* a power of two; counters
									modulo 2^32 */
	uint32_t self, nr_peers, next_peer, nr_polls;
	uint64_t looked_ns, next_key;
	bool any_failed;
};

static inline struct shm *shm_of(struct transport *transport)
{
	return (struct shm *)transport;
}

int shm_write(struct transport *transport, const struct transport_write *write);
int shm_send(struct transport *transport, uint32_t p, const void *data, uint32_t bytes);
int shm_poll(struct transport *transport, struct transport_event *events, int max);

#endif
