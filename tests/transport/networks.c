/* SPDX-License-Identifier: Apache-2.0 */
/* Every transport and provider that the suite knows, with what is known of it. docs/transports.md says the same in words. */
#include "transport/sim.h"
#include "world.h"

static void *make_sim(const struct network *n, uint32_t nr_peers)
{
	struct sim_network *made = NULL;
	struct sim_settings settings;

	(void)nr_peers;
	sim_settings_init(&settings);
	settings.ordered = n->caps & TRANSPORT_ORDERED;
	settings.fence = n->caps & TRANSPORT_FENCE;
	settings.target_polls = n->caps & TRANSPORT_TARGET_POLLS;
	settings.again_per_mille = 20;
	settings.reorder_ns = settings.ordered ? 0 : 3000;
	expect_ok(sim_network_create(&settings, &made), "making a network");
	return made;
}

static void pump_sim(void *made)
{
	for (int i = 0; i < 64; i++)
		sim_step(made);
}

static void unmake_sim(void *made)
{
	sim_network_destroy(made);
}

#define MB ((uint64_t)1 << 20)

const struct network networks[] = {
	{.name = "shm",
		.ops = &transport_shm,
		.caps = TRANSPORT_ORDERED | TRANSPORT_FENCE | TRANSPORT_SEES_DEATH,
		.bad_key = KEY_REFUSED,
		.death = DEATH_SEEN,
		.knows_source = true,
		.most_bytes = 64 * MB,
		.soak = 200000},
	{.name = "ofi:tcp;ofi_rxm",
		.ops = &transport_ofi,
		.provider = "tcp;ofi_rxm",
		.device = "lo",
		.caps = TRANSPORT_ORDERED | TRANSPORT_TARGET_POLLS,
		.bad_key = KEY_FAILED,
		.key_breaks = true,
		.death = DEATH_ON_WRITE,
		.most_bytes = 64 * MB,
		.soak = 100000},
	/* libfabric 1.17 layers ofi_rxm over it unasked. */
	{.name = "ofi:tcp",
		.ops = &transport_ofi,
		.provider = "tcp",
		.device = "127.0.0.1",
		.caps = TRANSPORT_ORDERED | TRANSPORT_TARGET_POLLS,
		.bad_key = KEY_FAILED,
		.key_breaks = true,
		.death = DEATH_ON_WRITE,
		.most_bytes = 8 * MB,
		.soak = 20000,
		.brief = true},
	{.name = "ofi:shm",
		.ops = &transport_ofi,
		.provider = "shm",
		.caps = TRANSPORT_TARGET_POLLS,
		.few = true,
		.bad_key = KEY_SILENT,
		.death = DEATH_SILENT,
		.most_bytes = 64 * MB,
		.soak = 100000},
	{.name = "ofi:udp;ofi_rxd",
		.ops = &transport_ofi,
		.provider = "udp;ofi_rxd",
		.device = "lo",
		.caps = TRANSPORT_TARGET_POLLS,
		.bad_key = KEY_SILENT,
		.death = DEATH_SILENT,
		.most_bytes = 16 * MB,
		.soak = 50000},
	{.name = "ofi:sockets",
		.ops = &transport_ofi,
		.provider = "sockets",
		.device = "lo",
		.caps = TRANSPORT_FENCE,
		.bad_key = KEY_FAILED,
		.death = DEATH_ON_WRITE,
		.most_bytes = 8 * MB,
		.soak = 4000,
		.slow = true},
	{.name = "sim",
		.ops = &transport_sim,
		.few = true,
		.bad_key = KEY_FAILED,
		.knows_source = true,
		.most_bytes = 64 * MB,
		.soak = 100000,
		.alone = true,
		.make = make_sim,
		.pump = pump_sim,
		.unmake = unmake_sim},
	{.name = "sim:ordered",
		.ops = &transport_sim,
		.few = true,
		.caps = TRANSPORT_ORDERED | TRANSPORT_FENCE | TRANSPORT_TARGET_POLLS,
		.bad_key = KEY_FAILED,
		.knows_source = true,
		.most_bytes = 8 * MB,
		.soak = 50000,
		.alone = true,
		.make = make_sim,
		.pump = pump_sim,
		.unmake = unmake_sim},
};

const uint32_t nr_networks = sizeof(networks) / sizeof(networks[0]);
