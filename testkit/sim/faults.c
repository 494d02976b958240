/* SPDX-License-Identifier: Apache-2.0 */
/* Links that differ, black holes, stalls and deaths. */
#include "testkit/sim/inside.h"

#include <stdlib.h>

#include "base/error.h"

/* ---- links ----------------------------------------------------------------------------------- */

static struct pair_fault *fault_find(const struct sim_network *network, uint32_t from, uint32_t to)
{
	uint32_t i;

	for (i = 0; i < network->nr_faults; i++)
		if (network->faults[i].from == from && network->faults[i].to == to)
			return &network->faults[i];
	return NULL;
}

static struct pair_fault *fault_add(struct sim_network *network, uint32_t from, uint32_t to)
{
	struct pair_fault *fault = fault_find(network, from, to);

	if (fault)
		return fault;
	fault = realloc(network->faults, (network->nr_faults + 1) * sizeof(*fault));
	if (!fault) {
		network->failed = TERN_ERR_NOMEM;
		return NULL;
	}
	network->faults = fault;
	fault += network->nr_faults++;
	*fault = (struct pair_fault){.from = from, .to = to};
	return fault;
}

int sim_link_set(
	struct sim_network *network, uint32_t from, uint32_t to, const struct sim_link *link)
{
	struct pair_fault *fault = fault_add(network, from, to);

	if (!fault)
		return fail(TERN_ERR_NOMEM, "simulated network: out of memory");
	fault->has_link = true;
	fault->link = *link;
	return 0;
}

void sim_cut(struct sim_network *network, uint32_t from, uint32_t to)
{
	struct pair_fault *fault = fault_add(network, from, to);

	if (fault)
		fault->cut = true;
}

void sim_mend(struct sim_network *network, uint32_t from, uint32_t to)
{
	struct pair_fault *fault = fault_find(network, from, to);

	if (fault)
		fault->cut = false;
}

bool sim_is_cut(const struct sim_network *network, uint32_t from, uint32_t to)
{
	const struct pair_fault *fault = fault_find(network, from, to);

	return fault && fault->cut;
}

bool sim_same_node(const struct sim_network *network, uint32_t a, uint32_t b)
{
	uint32_t nr = network->settings.ranks_per_node;

	return a == b || (nr && a / nr == b / nr);
}

const struct sim_link *sim_link_between(
	const struct sim_network *network, uint32_t from, uint32_t to)
{
	const struct pair_fault *fault = fault_find(network, from, to);

	if (fault && fault->has_link)
		return &fault->link;
	return sim_same_node(network, from, to) ? &network->settings.near : &network->settings.far;
}

void sim_stall(struct sim_network *network, uint32_t rank, uint64_t ns)
{
	uint32_t i;

	for (i = 0; i < network->nr_endpoints; i++) {
		struct endpoint *endpoint = network->endpoints[i];

		if (!endpoint || endpoint->rank != rank)
			continue;
		if (endpoint->out_ns < network->now)
			endpoint->out_ns = network->now;
		endpoint->out_ns += ns;
		network->stats.stalls++;
	}
}

/* ---- death ----------------------------------------------------------------------------------- */

static void tell(struct endpoint *other, uint64_t id, uint64_t late_ns)
{
	struct sim_network *network = other->network;
	uint32_t peer;

	for (peer = 0; peer < other->nr_peers; peer++)
		if (other->peers[peer].target == id && !other->peers[peer].down)
			sim_foresee(network,
				network->now + network->settings.detect_ns + late_ns +
					sim_delay(network, network->settings.far.jitter_ns),
				HAPPEN_DOWN, NULL, sim_endpoint_id(other), peer);
}

void sim_tell_end(struct endpoint *endpoint, uint64_t late_ns)
{
	struct sim_network *network = endpoint->network;
	uint32_t i;

	for (i = 0; network->settings.sees_death && i < network->nr_endpoints; i++) {
		struct endpoint *other = network->endpoints[i];

		if (other && other != endpoint && !other->dead)
			tell(other, sim_endpoint_id(endpoint), late_ns);
	}
}

void sim_kill_now(struct sim_network *network, uint32_t rank)
{
	uint32_t i;

	for (i = 0; i < network->nr_endpoints; i++) {
		struct endpoint *endpoint = network->endpoints[i];

		if (!endpoint || endpoint->rank != rank || endpoint->dead)
			continue;
		sim_wire_abandon(endpoint, true);
		sim_tell_end(endpoint, 0);
		endpoint->dead = true;
	}
}

void sim_kill(struct sim_network *network, uint32_t rank)
{
	sim_kill_now(network, rank);
}

void sim_kill_at(struct sim_network *network, uint32_t rank, uint64_t ns)
{
	sim_foresee(network, ns, HAPPEN_KILL, NULL, 0, rank);
}

uint32_t sim_kill_random(
	struct sim_network *network, uint32_t nr_ranks, uint64_t from_ns, uint64_t to_ns)
{
	uint32_t rank = (uint32_t)sim_random(network, nr_ranks);

	sim_kill_at(
		network, rank, from_ns + sim_delay(network, to_ns > from_ns ? to_ns - from_ns : 0));
	return rank;
}
