/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks' devices reach each other's memory. Those of a node that do not become nodes of their
 * own to this exchange: NVLink domains, between which rows go through pinned host memory and an
 * engine, as between machines. */
#ifndef TERN_GPU_HOST_REACH_H
#define TERN_GPU_HOST_REACH_H

#include "gpu/host/inside.h"

/* Collective, behind the exchange of cards: finds links, divides moe->topology, chooses the format,
 * and opens an engine where one is needed that the group does not have. */
int device_reach(tern_moe *moe, const struct device_card *cards);

/* Each rank is put on the first nvlink_domain of its node whose ranks it reaches, and they it.
 * links[a * nr_ranks + b]: enum device_link, from a to b's memory; between nodes it is not looked
 * at. nvlink_domain_of[nr_ranks]: the lowest rank there. The same on all ranks. */
void device_nvlink_domains(
	const uint8_t *links, const uint32_t *node_of, uint32_t nr_ranks, int *nvlink_domain_of);

#endif
