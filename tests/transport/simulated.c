/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/simulated.h"

#include "testkit/sim/sim.h"

#define EVENTS_PER_PUMP 8

static void *make(const struct sim_settings *settings)
{
	struct sim_network *network;

	expect_ok(sim_network_create(settings, &network), "the simulated network");
	return network;
}

static void fair(struct sim_settings *settings)
{
	sim_settings_init(settings);
	settings->sees_death = true;
}

static void foul(struct sim_settings *settings)
{
	fair(settings);
	settings->far.jitter_ns = 20000;
	settings->piece_bytes = 64;
	settings->max_pieces = 64;
	settings->reorder_ns = 100000;
	settings->completion_jitter_ns = 20000;
	settings->duplicate_per_mille = 100;
	settings->stall_per_mille = 20;
	settings->stall_ns = 20000;
	settings->connect_ns = 5000;
	settings->again_per_mille = 50;
}

void *make_fair(const struct network *network, uint32_t nr_peers)
{
	struct sim_settings settings;

	(void)network;
	(void)nr_peers;
	fair(&settings);
	return make(&settings);
}

void *make_foul(const struct network *network, uint32_t nr_peers)
{
	struct sim_settings settings;

	(void)network;
	(void)nr_peers;
	foul(&settings);
	return make(&settings);
}

void *make_foul_ordered(const struct network *network, uint32_t nr_peers)
{
	struct sim_settings settings;

	(void)network;
	(void)nr_peers;
	foul(&settings);
	settings.ordered = true;
	settings.fence = true;
	settings.target_polls = true;
	settings.nic.nr_queue_pairs = 2;
	return make(&settings);
}

void pump_simulated(void *made)
{
	int i;

	for (i = 0; i < EVENTS_PER_PUMP && sim_step(made); i++)
		;
}

void unmake_simulated(void *made)
{
	sim_network_destroy(made);
}
