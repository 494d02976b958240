/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for peers that have gone and writes that do not end. */
#ifndef TERN_ENGINE_FAILURE_DETECTOR_H
#define TERN_ENGINE_FAILURE_DETECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"

int watch_processes(tern_engine *engine);
void unwatch_processes(tern_engine *engine);
/* In the place of what was watched for this peer before; false: errno. Until the peer is lost. */
bool watch_process(tern_engine *engine, uint32_t peer, int lifeline);
void stop_watching(tern_engine *engine, uint32_t peer);
/* One look at all of them; heartbeats go out too. */
void look_after_peers(tern_engine *engine);

#endif
