/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that a rank makes on the simulated network. */
#include "testkit/sim/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct sim_address {
	char magic[8];
	uint64_t id;
};

static const char magic[8] = "ternsim";

uint64_t sim_endpoint_id(const struct endpoint *endpoint)
{
	return (uint64_t)endpoint->incarnation << 32 | endpoint->number;
}

struct endpoint *sim_endpoint_find(const struct sim_network *network, uint64_t id)
{
	uint32_t number = (uint32_t)id;
	struct endpoint *endpoint =
		number < network->nr_endpoints ? network->endpoints[number] : NULL;

	return endpoint && endpoint->incarnation == id >> 32 && !endpoint->dead ? endpoint : NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int grow_endpoints(struct sim_network *network)
{
	uint32_t room = network->room_endpoints ? network->room_endpoints * 2 : 16;
	struct endpoint **endpoints = realloc(network->endpoints, room * sizeof(struct endpoint *));
	uint32_t *incarnations;

	if (!endpoints)
		return TERN_ERR_NOMEM;
	network->endpoints = endpoints;
	incarnations = realloc(network->incarnations, room * sizeof(*incarnations));
	if (!incarnations)
		return TERN_ERR_NOMEM;
	network->incarnations = incarnations;
	network->room_endpoints = room;
	return 0;
}

/* A number for the new endpoint: one that was closed, or the next. */
static int number_endpoint(struct sim_network *network, struct endpoint *endpoint)
{
	uint32_t number = 0;

	while (number < network->nr_endpoints && network->endpoints[number])
		number++;
	if (number == network->room_endpoints && grow_endpoints(network))
		return TERN_ERR_NOMEM;
	if (number == network->nr_endpoints) {
		network->incarnations[number] = 0;
		network->nr_endpoints++;
	}
	network->endpoints[number] = endpoint;
	endpoint->number = number;
	endpoint->incarnation = ++network->incarnations[number];
	return 0;
}

static void free_endpoint(struct endpoint *endpoint)
{
	uint32_t i;

	for (i = 0; i < endpoint->nr_regions; i++)
		free(endpoint->regions[i]);
	free(endpoint->regions);
	free(endpoint->peers);
	free(endpoint->peer_of);
	free(endpoint->queue_pairs);
	free(endpoint);
}

static struct endpoint *make_endpoint(
	struct sim_network *network, const struct transport_options *options)
{
	struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
	uint32_t nr = network->settings.nic.nr_queue_pairs;

	if (!endpoint)
		return NULL;
	endpoint->network = network;
	endpoint->rank = options->self;
	endpoint->nr_peers = options->nr_peers;
	endpoint->nr_queue_pairs = nr ? nr : options->nr_peers;
	endpoint->peers = calloc(options->nr_peers, sizeof(*endpoint->peers));
	endpoint->queue_pairs = calloc(endpoint->nr_queue_pairs, sizeof(*endpoint->queue_pairs));
	if (endpoint->peers && endpoint->queue_pairs && !number_endpoint(network, endpoint))
		return endpoint;
	free_endpoint(endpoint);
	return NULL;
}

static uint32_t least(uint32_t wanted, uint32_t most)
{
	return wanted && wanted < most ? wanted : most;
}

static uint32_t caps_of(const struct sim_settings *settings)
{
	return (settings->ordered ? TRANSPORT_ORDERED : 0) |
	       (settings->fence ? TRANSPORT_FENCE : 0) |
	       (settings->target_polls ? TRANSPORT_TARGET_POLLS : 0) |
	       (settings->sees_death ? TRANSPORT_SEES_DEATH : 0);
}

static int sim_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	struct sim_network *network = options->network;
	const struct sim_settings *settings = network ? &network->settings : NULL;
	struct endpoint *endpoint;

	if (!network)
		return fail(TERN_ERR_INVALID, "sim: there is no network to join");
	if (!options->nr_peers)
		return fail(TERN_ERR_INVALID, "sim: nr_peers is 0");
	endpoint = make_endpoint(network, options);
	if (!endpoint)
		return fail(TERN_ERR_NOMEM, "sim: out of memory for %u peers", options->nr_peers);
	endpoint->base.ops = &transport_sim;
	endpoint->depth = least(options->depth, settings->depth);
	endpoint->message_bytes = least(options->message_bytes, settings->message_bytes);
	*info = (struct transport_info){.name = "sim",
		.provider = "simulated",
		.caps = caps_of(settings),
		.depth = endpoint->depth,
		.inline_bytes = settings->inline_bytes,
		.message_bytes = endpoint->message_bytes,
		.write_bytes = settings->write_bytes};
	*transport = &endpoint->base;
	return 0;
}

void sim_message_give(struct sim_network *network, struct message *message)
{
	if (message->pooled)
		sim_pool_give(&network->messages, message);
	else
		free(message);
}

void sim_give_lent(struct endpoint *endpoint)
{
	struct message *message;

	while ((message = endpoint->lent)) {
		endpoint->lent = message->next;
		sim_message_give(endpoint->network, message);
	}
}

static void drop_notes(struct endpoint *endpoint)
{
	struct note *note;

	while ((note = endpoint->notes)) {
		endpoint->notes = note->next;
		if (note->message)
			sim_message_give(endpoint->network, note->message);
		sim_pool_give(&endpoint->network->notes, note);
	}
}

static void unready(struct endpoint *endpoint)
{
	struct sim_network *network = endpoint->network;
	struct endpoint **at = &network->ready, *previous = NULL;

	while (*at && *at != endpoint) {
		previous = *at;
		at = &previous->next_ready;
	}
	if (!*at)
		return;
	*at = endpoint->next_ready;
	if (network->last_ready == endpoint)
		network->last_ready = previous;
}

static void sim_close(struct transport *transport)
{
	struct endpoint *endpoint = endpoint_of(transport);

	sim_wire_abandon(endpoint, false);
	if (!endpoint->dead) /* what it has written is reported first: it left in peace */
		sim_tell_end(endpoint, endpoint->network->settings.reorder_ns);
	sim_give_lent(endpoint);
	drop_notes(endpoint);
	unready(endpoint);
	endpoint->network->endpoints[endpoint->number] = NULL;
	free_endpoint(endpoint);
}

/* ---- peers ----------------------------------------------------------------------------------- */

static int sim_address(struct transport *transport, void *address, uint32_t *bytes)
{
	struct sim_address mine = {.id = sim_endpoint_id(endpoint_of(transport))};

	if (*bytes < sizeof(mine))
		return fail(TERN_ERR_INVALID, "sim: an address needs %zu bytes, not %u",
			sizeof(mine), *bytes);
	memcpy(mine.magic, magic, sizeof(magic));
	memcpy(address, &mine, sizeof(mine));
	*bytes = sizeof(mine);
	return 0;
}

static int remember_peer(struct endpoint *endpoint, uint32_t number, uint32_t peer)
{
	uint32_t nr = number + 1 > endpoint->nr_peers ? number + 1 : endpoint->nr_peers, *peer_of;

	if (number >= endpoint->nr_peer_of) {
		peer_of = realloc(endpoint->peer_of, nr * sizeof(*peer_of));
		if (!peer_of)
			return fail(TERN_ERR_NOMEM, "sim: out of memory for a peer");
		while (endpoint->nr_peer_of < nr)
			peer_of[endpoint->nr_peer_of++] = NO_PEER;
		endpoint->peer_of = peer_of;
	}
	endpoint->peer_of[number] = peer;
	return 0;
}

static int sim_connect(
	struct transport *transport, uint32_t number, const void *address, uint32_t bytes)
{
	struct endpoint *endpoint = endpoint_of(transport), *target;
	struct sim_network *network = endpoint->network;
	struct sim_address its;

	if (number >= endpoint->nr_peers)
		return fail(TERN_ERR_INVALID, "sim: there is no peer %u among %u", number,
			endpoint->nr_peers);
	if (bytes != sizeof(its) || memcmp(address, magic, sizeof(magic)))
		return fail(
			TERN_ERR_INVALID, "sim: peer %u has an address of another network", number);
	if (endpoint->peers[number].target)
		return fail(TERN_ERR_STATE, "sim: peer %u is connected already", number);
	memcpy(&its, address, sizeof(its));
	target = sim_endpoint_find(network, its.id);
	if (!target)
		return fail(TERN_ERR_PEER_DEAD, "sim: peer %u is gone", number);
	if (remember_peer(endpoint, target->number, number))
		return TERN_ERR_NOMEM;
	endpoint->peers[number] = (struct peer){.target = its.id,
		.rank = target->rank,
		.ready_ns = network->now + network->settings.connect_ns};
	return 0;
}

static int sim_disconnect(struct transport *transport, uint32_t number)
{
	struct endpoint *endpoint = endpoint_of(transport);

	if (number >= endpoint->nr_peers || !endpoint->peers[number].target)
		return fail(TERN_ERR_STATE, "sim: peer %u is not connected", number);
	sim_wire_drop(endpoint, number);
	endpoint->peer_of[(uint32_t)endpoint->peers[number].target] = NO_PEER;
	memset(&endpoint->peers[number], 0, sizeof(struct peer));
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int free_place(struct endpoint *endpoint, uint32_t *place)
{
	struct transport_region **regions;

	for (*place = 0; *place < endpoint->nr_regions; ++*place)
		if (!endpoint->regions[*place])
			return 0;
	regions = realloc(
		endpoint->regions, (endpoint->nr_regions + 1) * sizeof(struct transport_region *));
	if (!regions)
		return TERN_ERR_NOMEM;
	regions[endpoint->nr_regions++] = NULL;
	endpoint->regions = regions;
	return 0;
}

static int sim_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **out, struct transport_key *key)
{
	struct endpoint *endpoint = endpoint_of(transport);
	struct transport_region *region;
	uint32_t place;

	if (!base || !bytes)
		return fail(TERN_ERR_INVALID, "sim: no memory to register");
	region = malloc(sizeof(*region));
	if (!region || free_place(endpoint, &place)) {
		free(region);
		return fail(TERN_ERR_NOMEM, "sim: out of memory for a region");
	}
	*region = (struct transport_region){
		.base = base, .bytes = bytes, .key = ++endpoint->network->nr_keys << 32 | place};
	endpoint->regions[place] = region;
	*key = (struct transport_key){
		.address = (uint64_t)(uintptr_t)base, .bytes = bytes, .key = region->key};
	*out = region;
	return 0;
}

static void sim_dereg(struct transport *transport, struct transport_region *region)
{
	if (!region)
		return;
	endpoint_of(transport)->regions[(uint32_t)region->key] = NULL;
	free(region);
}

const struct transport_ops transport_sim = {
	.name = "sim",
	.open = sim_open,
	.close = sim_close,
	.address = sim_address,
	.connect = sim_connect,
	.disconnect = sim_disconnect,
	.reg = sim_reg,
	.dereg = sim_dereg,
	.write = sim_write,
	.send = sim_send,
	.poll = sim_poll,
};
