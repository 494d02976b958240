/* SPDX-License-Identifier: Apache-2.0 */
/* Abstract Unix sockets with random names, on which processes of one machine pass each other
 * messages and descriptors. Nothing lies in a file system, nothing outlives the processes. */
#ifndef TERN_GROUP_LOCAL_SOCKET_H
#define TERN_GROUP_LOCAL_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FD_PASSING_KEY_BYTES 16
#define LOCAL_FDS 2 /* most that go with one message */

/* What others have to know to be let in. */
struct fd_passing_address {
	uint8_t name[FD_PASSING_KEY_BYTES];
	uint8_t secret[FD_PASSING_KEY_BYTES];
};

/* Draws name and secret, and listens there; nothing blocks. */
int local_listen(struct fd_passing_address *address, int *listener);

/* -1 with errno; else a socket that does not block. */
int local_connect(const struct fd_passing_address *address);

/* Both ends belong to one user, or the connection is not ours. */
bool local_same_user(int socket);

/* One message, whole or not at all: true, or errno. */
bool local_send(int socket, const void *data, size_t bytes, const int *fds, int nr_fds);

struct local_message {
	ssize_t bytes;      /* 0: the other has closed, or said nothing */
	int fds[LOCAL_FDS]; /* the caller's to close; -1 */
	bool whole;         /* it was not longer than the room for it */
	bool cut;           /* something came along that has no place in this process */
};

/* Those that are there: descriptors that nobody has taken. */
void local_close_fds(const int *fds);

/* False: nothing to read yet. */
bool local_receive(int socket, void *data, size_t room, struct local_message *message);

#endif
