/* SPDX-License-Identifier: Apache-2.0 */
/* Experts without replicas, whose ranks die and come back. Each rank has its block of experts at
 * home, and spare places. When a rank dies its experts go to spare places of others, from backups
 * that these have of each other's experts, or from the checkpoint; when one has come in its place
 * they go home.
 *
 *	places of a rank:   home, home, ... | spare, spare, ...
 *
 * What lies where follows from the set of ranks that serve alone: all that know the same set have
 * the same tables, in whatever order they learned of it. Tables name an expert in each place, so an
 * empty spare place serves one of its rank's home, with the weights that lie there. */
#ifndef TERN_EXAMPLES_GENERATE_HOMES_H
#define TERN_EXAMPLES_GENERATE_HOMES_H

#include <stdbool.h>

#include "checkpoint.h"
#include "config.h"
#include "experts.h"
#include "tern.h"

struct homes;

/* What came here when ranks had died. */
struct homes_brought {
	uint32_t nr;        /* experts, each layer's by itself */
	uint32_t nr_loaded; /* of these from the checkpoint */
	uint64_t ns;
};

struct homes_config {
	tern_group *group;
	const struct model_config *model;
	const struct checkpoint *checkpoint;
	struct experts *experts; /* of all places of this rank; those of home are loaded */
	bool joins; /* it has no engine with the others: the checkpoint is its source */
	int wait_ms;
};

/* NULL: no memory. */
struct homes *homes_create(uint32_t nr_experts, uint32_t nr_ranks, uint32_t rank);
void homes_destroy(struct homes *homes);

/* As long as the homes live. */
struct tern_placement homes_placement(const struct homes *homes);
/* Of this rank: ids[*nr_home], and the number of all places. */
const int32_t *homes_mine(const struct homes *homes, uint32_t *nr_home, uint32_t *nr_places);

/* Collective, but where the group was joined: weights can be brought from here on. Makes backups.
 */
int homes_open(struct homes *homes, const struct homes_config *config, struct fault *fault);

/* These serve from now on: brings what this rank lacks, and makes the placement that of this set.
 */
int homes_follow(struct homes *homes, const uint64_t serving[4], struct homes_brought *brought,
	struct fault *fault);
/* A number for that placement, for tern_moe_place; not 0. */
uint32_t homes_version(const struct homes *homes);

/* Which of this rank's experts in memory a local place of the exchange is served with. */
uint32_t homes_weights(const struct homes *homes, uint32_t local);

/* A page of backups that are missing since ranks died; between two rounds. */
void homes_step(struct homes *homes);

#endif
