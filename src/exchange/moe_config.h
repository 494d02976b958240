/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_EXCHANGE_MOE_CONFIG_H
#define TERN_EXCHANGE_MOE_CONFIG_H

#include "tern.h"

/* A caller's configuration into one with all fields, of whatever version it is: 0, or what is wrong
 * with it by itself. */
int moe_config_read(
	struct tern_moe_config *config, const struct tern_moe_config *theirs, uint32_t nr_ranks);

/* What the caller leaves to the library: mode, chunks, threads; then what goes with that mode
 * alone. */
int moe_config_choose(struct tern_moe_config *config, uint32_t nr_ranks, uint32_t nr_nodes);

#endif
