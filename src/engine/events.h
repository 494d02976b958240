/* SPDX-License-Identifier: Apache-2.0 */
/* What transports report. */
#ifndef TERN_ENGINE_EVENTS_H
#define TERN_ENGINE_EVENTS_H

#include <stdbool.h>

#include "tern_engine.h"

/* True: something was. */
bool poll_transports(tern_engine *engine);

#endif
