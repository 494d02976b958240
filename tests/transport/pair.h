/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes (or threads), each with one peer. */
#ifndef TERN_TESTS_TRANSPORT_PAIR_H
#define TERN_TESTS_TRANSPORT_PAIR_H

#include <stdatomic.h>
#include <sys/types.h>

#include "tests/transport/world.h"

#define SLOTS 64
#define SLOT_BYTES 4096

/* What the two have in common besides the network. */
struct board {
	uint8_t addresses[2][TRANSPORT_ADDRESS_BYTES];
	uint32_t address_bytes[2];
	struct transport_key keys[2];
	_Atomic uint32_t present[2];
	_Atomic uint32_t checked[SLOTS]; /* the number of the last write that was looked at, plus 1
					  */
	_Atomic uint32_t finished[2];
	double half_trip_us;
};

/* One side: a world of two peers of which only `who` is open here. */
struct side {
	const struct network *network;
	struct board *board;
	uint32_t who, nr;
	struct world w;
};

struct board *board_make(void);

/* `other`'s flag is waited for with polling, as its connection may need ours to progress. */
void await(struct side *s, const _Atomic uint32_t *flag, const char *what);

void side_connect(struct side *s);

/* Events may come as soon as the other has this address, so who handles them is settled first. */
void side_open(
	struct side *s, void (*on_event)(struct world *, uint32_t, const struct transport_event *));

/* Both stay until both are finished: a target may have to poll for the other's last completions. */
void side_close(struct side *s);

pid_t fork_side(
	const struct network *n, struct board *b, uint32_t who, void (*body)(struct side *));
void expect_exit(pid_t pid);

#endif
