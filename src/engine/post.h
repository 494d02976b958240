/* SPDX-License-Identifier: Apache-2.0 */
/* From peers' queues to their transports. */
#ifndef TERN_ENGINE_POST_H
#define TERN_ENGINE_POST_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/nics.h"
#include "engine/request.h"
#include "tern_engine.h"

/* The NIC that a request's next write is bound to: the one that put it off, or its peer's own if it
 * is pinned. NONE: any of the network's. */
uint32_t bound_nic(const struct network *network, const struct request *request);

/* Peers with work take turns. True: something was posted. */
bool post_work(tern_engine *engine, uint32_t budget);

#endif
