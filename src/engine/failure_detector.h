/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for peers that have gone and writes that do not end. */
#ifndef TERN_ENGINE_FAILURE_DETECTOR_H
#define TERN_ENGINE_FAILURE_DETECTOR_H

#include "tern_engine.h"

int watch_processes(tern_engine *engine);
/* One look at all of them; heartbeats go out too. */
void look_after_peers(tern_engine *engine);

#endif
