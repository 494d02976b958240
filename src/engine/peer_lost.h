/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a peer. */
#ifndef TERN_ENGINE_PEER_LOST_H
#define TERN_ENGINE_PEER_LOST_H

#include <stdint.h>

#include "tern_engine.h"

/* Told once: what needs the peer ends with this error and cause. */
void peer_lost(tern_engine *engine, uint32_t peer, int error, const char *cause);

/* Before the engine runs: all but this rank itself are lost until they are admitted (admit.c). */
void peers_begin_lost(tern_engine *engine);

#endif
