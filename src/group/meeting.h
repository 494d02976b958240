/* SPDX-License-Identifier: Apache-2.0 */
/* How processes of one machine pass each other descriptors: each listens on an abstract Unix socket with a random name,
 * and takes only connections of its own user that know its secret. Nothing lies in a file system, nothing outlives the
 * processes. */
#ifndef TERN_MEETING_H
#define TERN_MEETING_H

#include <stdint.h>

#define MEETING_KEY_BYTES 16

/* What the others have to know; shared through the bootstrap. */
struct meeting_address {
	uint8_t name[MEETING_KEY_BYTES];
	uint8_t secret[MEETING_KEY_BYTES];
};

struct meeting;

int meeting_open(struct meeting **meeting);
void meeting_close(struct meeting *meeting);
void meeting_address(const struct meeting *meeting, struct meeting_address *address);

/* A meeting's guest list entry, by rank. */
struct meeting_guest {
	int wanted; /* 1: exchange descriptors with this rank */
	struct meeting_address address;
	int fd; /* out: what the rank sent; -1 before, the caller closes it */
	int called; /* out: 1: it was sent what it is to have */
};

/* Sends `fd` to every wanted rank and receives one from each, within wait_ms. All of them do the
 * same. On failure received descriptors stay in guests, and the others are told the cause, so that
 * they fail with it and do not wait. `round` tells one exchange from the next. Strangers that
 * connect can use up wait_ms, and hold few descriptors. */
int meeting_exchange(struct meeting *meeting, int rank, int nr_ranks, uint32_t round, int fd,
	struct meeting_guest *guests, int wait_ms);

#endif
