/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's end of the ranks' sockets: serves their gatherings. src/group/boot/launch_wire.h
 * tells what is said. */
#ifndef TERN_CLI_GATHER_H
#define TERN_CLI_GATHER_H

struct gather;

/* NULL: no memory. The sockets become the server's. */
struct gather *gather_new(int nr_ranks, const int *fds);
void gather_free(struct gather *g);

int gather_fd(const struct gather *g, int rank);             /* -1: nothing to wait for any more */
short gather_events(const struct gather *g, int rank);       /* what to poll it for */
void gather_ready(struct gather *g, int rank, short events); /* what poll saw */

/* The rank's process is gone: `how` continues the sentence "rank 3 ...". Who waits for it is
 * refused, now and later. */
void gather_rank_ended(struct gather *g, int rank, const char *how);

/* Another process has its number now. It finds what ranks have set (the rendezvous); gatherings are
 * refused to it as to all others. The socket becomes the server's. */
void gather_rank_restarted(struct gather *g, int rank, int fd);

/* Looks after ranks that closed their socket and still live. Returns the ms until it wants to be
 * called again, or -1.
 */
int gather_tick(struct gather *g);

#endif
