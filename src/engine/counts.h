/* SPDX-License-Identifier: Apache-2.0 */
/* Immediates by value: how many have come, and who expects how many. */
#ifndef TERN_ENGINE_COUNTS_H
#define TERN_ENGINE_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"

struct immediate_count {
	bool used;
	uint32_t value;
	uint32_t first, last; /* operations that expect it */
	uint64_t count;
};

int counts_open(tern_engine *engine);
void counts_close(tern_engine *engine);

void counts_arrive(tern_engine *engine, uint32_t value);
void counts_expect(tern_engine *engine, uint32_t number);

/* Ends the expectations that need a peer that is down; all of them. */
void counts_peer_down(tern_engine *engine);
void counts_end_all(tern_engine *engine, int error, const char *cause);
/* Those that nobody has expected yet. */
uint64_t counts_of(const tern_engine *engine, uint32_t value);

#endif
