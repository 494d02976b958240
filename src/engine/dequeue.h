/* SPDX-License-Identifier: Apache-2.0 */
/* From the ring to requests. */
#ifndef TERN_ENGINE_DEQUEUE_H
#define TERN_ENGINE_DEQUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"

/* True: something was taken, or a drain went on. */
bool take_commands(tern_engine *engine, uint32_t budget);
bool commands_wait(const tern_engine *engine); /* in some ring */

#endif
