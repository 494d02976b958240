/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks of a fleet find each other, and the scheduler that their groups get. */
#include "soak/fleet_inside.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "group/group.h"

/* ---- the scheduler --------------------------------------------------------------------------- */

static uint64_t scheduler_time(void *ctx)
{
	const struct member *member = ctx;

	return member->buried ? member->buried_ns : sim_now(member->fleet->network);
}

static void scheduler_idle(void *ctx, uint64_t until_ns)
{
	struct member *member = ctx;

	if (!member->buried)
		fleet_wait(member, until_ns);
	else
		member->buried_ns = until_ns > member->buried_ns && until_ns < NEVER / 2
					    ? until_ns
					    : member->buried_ns + 1000;
}

static void scheduler_stored(void *ctx, uint32_t rank)
{
	struct member *member = ctx;

	if (rank != member->rank)
		fleet_wake(member->fleet, &member->fleet->members[rank]);
}

static void scheduler_engine(void *ctx, tern_engine *engine, bool runs)
{
	struct member *member = ctx;

	member->engine = runs ? engine : NULL;
	member->step = runs;
	if (runs)
		fleet_queue(member->fleet, member);
}

static bool scheduler_has_died(void *ctx, uint32_t rank)
{
	const struct member *member = ctx;

	return fleet_is_dead(member->fleet, rank);
}

static void scheduler_configure(void *ctx, struct tern_engine_config *config)
{
	const struct tern_engine_config *wanted =
		&((const struct member *)ctx)->fleet->settings.engine;
	const char *transport = config->transport;

	*config = *wanted;
	config->transport = transport;
}

/* ---- the allgather --------------------------------------------------------------------------- */

static void hand_out(struct fleet *fleet)
{
	uint32_t nr = fleet->settings.nr_ranks;

	for (uint32_t to = 0; to < nr; to++)
		for (uint32_t from = 0; from < nr && fleet->visitors[from].bytes; from++)
			memcpy((char *)fleet->visitors[to].all + from * fleet->visitors[from].bytes,
				fleet->visitors[from].mine, fleet->visitors[from].bytes);
}

static int complete_turn(struct fleet *fleet)
{
	uint32_t nr = fleet->settings.nr_ranks;

	for (uint32_t r = 1; r < nr; r++)
		if (fleet->visitors[r].bytes != fleet->visitors[0].bytes) {
			snprintf(fleet->poison, sizeof(fleet->poison),
				"rank %u gathers %zu bytes, rank 0 %zu", r,
				fleet->visitors[r].bytes, fleet->visitors[0].bytes);
			return fail(TERN_ERR_BOOTSTRAP, "%s", fleet->poison);
		}
	hand_out(fleet);
	fleet->turn++;
	fleet->nr_present = 0;
	for (uint32_t r = 0; r < nr; r++) {
		fleet->visitors[r].present = false;
		fleet_wake(fleet, &fleet->members[r]);
	}
	return 0;
}

static void give_up(struct fleet *fleet, const struct member *member)
{
	uint32_t missing = 0;

	while (fleet->visitors[missing].present)
		missing++;
	snprintf(fleet->poison, sizeof(fleet->poison),
		"rank %u did not come to gathering %llu within %d ms, says rank %u", missing,
		(unsigned long long)fleet->turn + 1, fleet->settings.wait_ms, member->rank);
}

static int wait_turn(struct fleet *fleet, struct member *member)
{
	uint64_t turn = fleet->turn,
		 deadline = sim_now(fleet->network) + (uint64_t)fleet->settings.wait_ms * 1000000;

	while (fleet->turn == turn && !*fleet->poison && !member->buried) {
		if (sim_now(fleet->network) >= deadline)
			give_up(fleet, member);
		else
			fleet_wait(member, deadline);
	}
	if (fleet->turn != turn)
		return 0;
	return fail(TERN_ERR_BOOTSTRAP, "%s", *fleet->poison ? fleet->poison : "this rank is dead");
}

static int allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct member *member = ctx;
	struct fleet *fleet = member->fleet;

	if (*fleet->poison || member->buried)
		return fail(TERN_ERR_BOOTSTRAP, "%s",
			*fleet->poison ? fleet->poison : "this rank is dead");
	fleet->visitors[member->rank] =
		(struct visitor){.mine = mine, .all = all, .bytes = bytes, .present = true};
	return ++fleet->nr_present == fleet->settings.nr_ranks ? complete_turn(fleet)
							       : wait_turn(fleet, member);
}

/* ---- for bodies ------------------------------------------------------------------------------ */

int fleet_join(struct fleet *fleet, uint32_t rank, tern_group **group)
{
	struct member *member = &fleet->members[rank];
	uint32_t per_node = fleet->settings.ranks_per_node ? fleet->settings.ranks_per_node : 1;
	struct tern_group_config config;
	char node[16];

	member->scheduler = (struct scheduler){.ctx = member,
		.now = scheduler_time,
		.idle = scheduler_idle,
		.wake = scheduler_stored,
		.has_died = scheduler_has_died,
		.engine = scheduler_engine,
		.configure = scheduler_configure,
		.transport = &transport_sim,
		.network = fleet->network};
	tern_group_config_init(&config);
	snprintf(node, sizeof(node), "%u", rank / per_node);
	config.node = node;
	config.transport = "sim";
	config.wait_ms = fleet->settings.wait_ms;
	config.boot = (struct tern_boot){.rank = (int)rank,
		.nr_ranks = (int)fleet->settings.nr_ranks,
		.allgather = allgather,
		.ctx = member};
	return group_create_scheduled(&config, &member->scheduler, group);
}

void fleet_pause(struct fleet *fleet, uint32_t rank, uint64_t ns)
{
	struct member *member = &fleet->members[rank];
	uint64_t until_ns = scheduler_time(member) + ns;

	while (!member->buried && sim_now(fleet->network) < until_ns)
		fleet_wait(member, until_ns);
}

void fleet_does(struct fleet *fleet, uint32_t rank, const char *what)
{
	fleet->members[rank].doing = what;
	fleet->members[rank].since_ns = sim_now(fleet->network);
}
