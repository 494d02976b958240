/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a peer. */
#ifndef TERN_ENGINE_PEER_LOST_H
#define TERN_ENGINE_PEER_LOST_H

#include <stdint.h>

#include "tern_engine.h"

/* Told once: what needs the peer ends with this error and cause. */
void peer_lost(tern_engine *engine, uint32_t peer, int error, const char *cause);

#endif
