/* SPDX-License-Identifier: Apache-2.0 */
/* How processes of one machine pass each other descriptors: each listens on a socket of
 * local_socket.h, and takes only connections of its own user that know its secret. */
#ifndef TERN_GROUP_FD_PASSING_H
#define TERN_GROUP_FD_PASSING_H

#include <stdint.h>

#include "group/local_socket.h"

struct fd_passing;

int fd_passing_open(struct fd_passing **passing);
void fd_passing_close(struct fd_passing *passing);
void fd_passing_address(const struct fd_passing *passing, struct fd_passing_address *address);

/* An entry of the guest list, by rank. */
struct fd_passing_guest {
	int wanted; /* 1: exchange descriptors with this rank */
	struct fd_passing_address address;
	int lifeline; /* readable when the rank's process has ended, which fails at once with
			 TERN_ERR_PEER_DEAD; -1: not known */
	int fd;       /* out: what the rank sent; -1 before, the caller closes it */
	int called;   /* out: 1: it was sent what it is to have */
};

/* Sends `fd` to every wanted rank and receives one from each, within wait_ms. All of them do the
 * same. On failure received descriptors stay in guests, and the others are told the cause, so that
 * they fail with it and do not wait. `round` tells one exchange from the next. Strangers that
 * connect can use up wait_ms, and hold few descriptors. */
int fd_passing_exchange(struct fd_passing *passing, int rank, int nr_ranks, uint32_t round, int fd,
	struct fd_passing_guest *guests, int wait_ms);

/* The same in steps, none of which waits; guests belong to the visit until its end, and what came
 * is the caller's then. Beginning calls nobody. */
struct fd_passing_visit;
int fd_passing_begin(struct fd_passing *passing, int rank, int nr_ranks, uint32_t round, int fd,
	struct fd_passing_guest *guests, struct fd_passing_visit **visit);
int fd_passing_step(struct fd_passing_visit *visit); /* 1: all is passed; 0: not yet */
/* That rank has gone: neither called nor heard any more. */
void fd_passing_without(struct fd_passing_visit *visit, int rank);
void fd_passing_end(struct fd_passing_visit *visit); /* of NULL: nothing */

#endif
