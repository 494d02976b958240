/* SPDX-License-Identifier: Apache-2.0 */
/* An elastic exchange between nodes: this rank's window has a key of its own for each rank that
 * writes there, so that one can be shut out alone; and the group asks, before this rank says that
 * it has stopped, whether all that it has sent has landed. */
#ifndef TERN_PATH_ELASTIC_PATH_H
#define TERN_PATH_ELASTIC_PATH_H

#include "exchange/state.h"

/* Local: the keys. Undone by elastic_path_close, which comes before the engine path is unclaimed.
 */
int elastic_path_open(tern_moe *moe);
void elastic_path_close(tern_moe *moe);

/* Collective: imports all other ranks' windows, and tells the group of this exchange. */
int elastic_path_connect(tern_moe *moe);

#endif
