/* SPDX-License-Identifier: Apache-2.0 */
/* TCP between ranks of different nodes: where one can be called, and calling. */
#ifndef TERN_GROUP_FAR_SOCKET_H
#define TERN_GROUP_FAR_SOCKET_H

#include <stdint.h>

#define FAR_MOST_ADDRESSES 8
#define FAR_TRY_NS 1000000000u /* of one address */

/* What others have to know; plain bytes. */
struct far_address {
	uint32_t nr, port;                      /* 0 addresses: it cannot be called */
	uint32_t addresses[FAR_MOST_ADDRESSES]; /* in network order, as port is */
};

/* Listens at a port that the system chooses: a socket that does not block, or -1. */
int far_listen(struct far_address *mine);

/* Begins to call one of the addresses: a socket that does not block, or -1. */
int far_begin(const struct far_address *to, uint32_t which);

/* Calls one after the other: a socket that does not block; -1: nobody answers within wait_ms. */
int far_connect(const struct far_address *to, int wait_ms);

#endif
