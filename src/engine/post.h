/* SPDX-License-Identifier: Apache-2.0 */
/* From peers' queues to their transports. */
#ifndef TERN_ENGINE_POST_H
#define TERN_ENGINE_POST_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"

/* Peers with work take turns. True: something was posted. */
bool post_work(tern_engine *engine, uint32_t budget);

#endif
