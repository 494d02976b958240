/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks in one thread and in virtual time. Each is a coroutine that calls the library as any
 * program does; its waits come out at the fleet (src/base/scheduler.h), which steps engines and the
 * simulated network and resumes who may go on, in an order drawn from the seed. The same settings
 * give the same run, to the last nanosecond.
 *
 *   fleet_create ── fleet_run: until all bodies have returned, or the limit ── fleet_destroy
 *
 * A rank that was killed is not resumed any more. When all others have ended it is buried: its
 * clock runs on its own, so that its waits expire at once and its body comes to its end, and
 * nothing leaks. */
#ifndef TERN_SOAK_FLEET_H
#define TERN_SOAK_FLEET_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"
#include "testkit/sim/sim.h"

struct fleet;

struct fleet_settings {
	uint64_t seed; /* of the order in which ranks run; the network has its own */
	uint32_t nr_ranks;
	uint32_t ranks_per_node; /* their windows are mapped; 0 and 1: every rank is its own node */
	struct sim_settings network;
	struct tern_engine_config engine; /* what the groups' engines get */
	int wait_ms;                      /* of groups, and of a gathering */
	uint64_t limit_ns;                /* of virtual time */
};

/* What a rank runs. It has to come to an end when fleet_is_buried says so. */
typedef void (*fleet_body)(struct fleet *fleet, uint32_t rank, void *ctx);

int fleet_create(
	const struct fleet_settings *settings, fleet_body body, void *ctx, struct fleet **fleet);
void fleet_destroy(struct fleet *fleet);

/* True: all ranks that live have returned. False: the limit was reached, and fleet_failure says who
 * waits where. */
bool fleet_run(struct fleet *fleet);
const char *fleet_failure(const struct fleet *fleet);

/* ---- from a body ----------------------------------------------------------------------------- */

int fleet_join(struct fleet *fleet, uint32_t rank, tern_group **group); /* tern_group_create */
void fleet_pause(struct fleet *fleet, uint32_t rank, uint64_t ns);
void fleet_does(struct fleet *fleet, uint32_t rank, const char *what); /* for fleet_failure; a
									  constant text */
bool fleet_is_buried(const struct fleet *fleet, uint32_t rank);

/* ---- faults: now or at a time ---------------------------------------------------------------- */

/* Of its own rank and now, it returns when the rank is buried. */
void fleet_kill(struct fleet *fleet, uint32_t rank, uint64_t at_ns);
void fleet_cut(struct fleet *fleet, uint32_t from, uint32_t to, bool both_ways, uint64_t at_ns);
uint64_t fleet_fault_ns(const struct fleet *fleet); /* when the first one came; UINT64_MAX: none yet
						     */
bool fleet_is_dead(const struct fleet *fleet, uint32_t rank);

/* ---- what happened --------------------------------------------------------------------------- */

struct sim_network *fleet_network(const struct fleet *fleet);
uint64_t fleet_now(const struct fleet *fleet);
uint64_t fleet_digest(const struct fleet *fleet); /* of all that happened, in order, with its times
						   */

#endif
