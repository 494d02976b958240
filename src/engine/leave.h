/* SPDX-License-Identifier: Apache-2.0 */
/* Leaving, and ending what cannot end any more. */
#ifndef TERN_ENGINE_LEAVE_H
#define TERN_ENGINE_LEAVE_H

#include <stdbool.h>

#include "tern_engine.h"

/* One look, after each step of a proxy that is to end. True: it may. */
bool leave_done(tern_engine *engine);
/* After the proxy has ended: nothing is left unanswered. */
void end_everything(tern_engine *engine);

#endif
