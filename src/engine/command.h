/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the ring between whoever wants something sent and the proxy. Fixed entries that a
 * CPU thread writes now and a GPU thread can: nothing but numbers, objects by their index in the
 * engine's tables. The proxy checks every number before it follows it. */
#ifndef TERN_ENGINE_COMMAND_H
#define TERN_ENGINE_COMMAND_H

#include <stdatomic.h>
#include <stdint.h>

enum command_kind {
	COMMAND_NOTHING = 0,
	COMMAND_WRITE = 1,   /* bytes, an immediate, or both */
	COMMAND_PAGES = 2,   /* the operation has the lists */
	COMMAND_SCATTER = 3, /* likewise */
	COMMAND_EXPECT = 4,
	COMMAND_BARRIER = 5,
	COMMAND_PUT = 6,  /* one put of the group that `completion` names; the last one that the
			     proxy takes sends the group's signals off */
	COMMAND_SEND = 7, /* message slot number: local_offset */
	COMMAND_CALL = 8  /* the operation has the function */
};

enum command_flags {
	COMMAND_IMMEDIATE = 1, /* value is sent as immediate */
	COMMAND_COUNTED = 2    /* completion is a counter, not an operation */
};

#define COMMAND_NONE UINT32_MAX /* no completion wanted */
#define COMMAND_NO_MEMORY 0     /* no region, no remote: indices begin with 1 */

struct command {
	_Atomic uint32_t turn; /* ring.h: which lap the entry belongs to; stored last */
	uint8_t kind;
	uint8_t flags;
	uint8_t reserved[2];
	uint32_t peer;
	uint32_t completion; /* index of an operation, or number of a counter */
	uint16_t local;      /* indices in the engine's tables */
	uint16_t remote;
	uint16_t signal_remote;
	uint16_t reserved2;
	uint64_t local_offset;
	uint64_t remote_offset;
	uint64_t bytes;
	uint64_t signal_offset;
	uint64_t value; /* immediate, or the signal's word */
};
_Static_assert(sizeof(struct command) == 64, "a command is one entry of 64 bytes");

#endif
