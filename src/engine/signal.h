/* SPDX-License-Identifier: Apache-2.0 */
/* Put with signal: its policies, and how those hold up the ring. */
#ifndef TERN_ENGINE_SIGNAL_H
#define TERN_ENGINE_SIGNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/command.h"
#include "tern_engine.h"

/* A policy that holds up the ring until writes have landed. */
enum stall_kind {
	STALL_NONE,
	STALL_PEER,
	STALL_ALL_PEERS,
	STALL_GROUP
};

struct stall {
	enum stall_kind kind;
	uint32_t peer;   /* STALL_ALL_PEERS: the one that is being waited for */
	uint32_t group;  /* operation */
	uint64_t polled; /* step at which that peer's wait began: each is polled for at least once
			  */
};

/* True: the ring is held up. */
bool signal_stalled(tern_engine *engine);
/* False: no requests for it yet. */
bool signal_take_put(tern_engine *engine, const struct command *command);

#endif
