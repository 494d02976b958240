/* SPDX-License-Identifier: Apache-2.0 */
/* Posting and polling: the calls on the data path. */
#include "testkit/sim/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "transport/write_check.h"

/* ---- write ----------------------------------------------------------------------------------- */

static int check_peer(const struct endpoint *endpoint, uint32_t peer)
{
	if (endpoint->network->failed)
		return fail(endpoint->network->failed, "sim: the network ran out of memory");
	if (endpoint->dead)
		return fail(TERN_ERR_STATE, "sim: this rank has been killed");
	if (peer >= endpoint->nr_peers || !endpoint->peers[peer].target)
		return fail(TERN_ERR_INVALID, "sim: peer %u is not connected", peer);
	if (endpoint->peers[peer].down)
		return fail(TERN_ERR_PEER_DEAD, "sim: peer %u is down", peer);
	return 0;
}

static int check_write(const struct endpoint *endpoint, const struct transport_write *write)
{
	const struct sim_settings *settings = &endpoint->network->settings;
	const struct transport_region *region = write->region;
	int rc = check_peer(endpoint, write->peer);

	if (rc)
		return rc;
	if ((write->flags & WRITE_FENCE) && !settings->fence)
		return fail(TERN_ERR_UNSUPPORTED, "sim: this network has no fence");
	rc = write_check_bytes(write, "a write", settings->write_bytes);
	if (!rc && (write->flags & WRITE_INLINE))
		rc = write_check_bytes(write, "an inline write", settings->inline_bytes);
	if (rc || !write->bytes)
		return rc;
	rc = write_check_target(write);
	if (rc || (write->flags & WRITE_INLINE))
		return rc;
	return write_check_source(write, region ? region->base : NULL, region ? region->bytes : 0);
}

static bool connecting(struct endpoint *endpoint, uint32_t peer)
{
	if (endpoint->network->now >= endpoint->peers[peer].ready_ns)
		return false;
	sim_endpoint_wake(endpoint, endpoint->peers[peer].ready_ns);
	return true;
}

static bool refuse(struct endpoint *endpoint)
{
	const struct sim_settings *settings = &endpoint->network->settings;

	if (endpoint->nr_refusals < settings->again_first ||
		sim_chance(endpoint->network, settings->again_per_mille)) {
		endpoint->nr_refusals++;
		sim_endpoint_wake(endpoint, endpoint->network->now + settings->again_ns);
		return true;
	}
	endpoint->nr_refusals = 0;
	return false;
}

/* The very write that was refused last must come back with all its flags. */
static void compare_with_refused(struct endpoint *endpoint, const struct transport_write *write)
{
	struct refused *last = &endpoint->refused;
	bool same = last->any && last->peer == write->peer && last->cookie == write->cookie &&
		    last->bytes == write->bytes && last->from == write->from &&
		    last->immediate == write->immediate &&
		    (!write->key || last->address == write->key->address + write->offset);

	endpoint->network->stats.changed_retries += same && last->flags != write->flags;
	if (same)
		last->any = false;
}

static int again(struct endpoint *endpoint, const struct transport_write *write)
{
	endpoint->network->stats.agains++;
	endpoint->refused = (struct refused){.peer = write->peer,
		.flags = write->flags,
		.immediate = write->immediate,
		.cookie = write->cookie,
		.address = write->key ? write->key->address + write->offset : 0,
		.bytes = write->bytes,
		.from = write->from,
		.any = true};
	return TRANSPORT_AGAIN;
}

/* The proxy spends its time; returns when it is done. */
static uint64_t spend(struct endpoint *endpoint, uint64_t ns)
{
	if (endpoint->proxy_ns < endpoint->network->now)
		endpoint->proxy_ns = endpoint->network->now;
	return endpoint->proxy_ns += ns;
}

static uint64_t post_ns(const struct sim_nic *nic, uint32_t flags)
{
	return (flags & WRITE_INLINE) && nic->inline_post_ns ? nic->inline_post_ns : nic->post_ns;
}

static struct flight *make_flight(struct endpoint *endpoint, const struct transport_write *write)
{
	struct sim_network *network = endpoint->network;
	struct flight *flight = sim_pool_take(&network->flights);

	if (!flight)
		return NULL;
	flight->serial = ++network->serial;
	flight->source = endpoint;
	flight->from_id = sim_endpoint_id(endpoint);
	flight->target = endpoint->peers[write->peer].target;
	flight->from_rank = endpoint->rank;
	flight->to_rank = endpoint->peers[write->peer].rank;
	flight->peer = write->peer;
	flight->flags = write->flags;
	flight->immediate = write->immediate;
	flight->bytes = write->bytes;
	flight->cookie = write->cookie;
	flight->from = write->from;
	flight->address = write->key ? write->key->address + write->offset : 0;
	flight->key = write->key ? write->key->key : 0;
	if ((write->flags & WRITE_INLINE) && write->bytes)
		memcpy(flight->inlined, write->from, write->bytes);
	return flight;
}

static void count_flight(struct endpoint *endpoint, struct flight *flight)
{
	struct sim_network *network = endpoint->network;

	flight->older = endpoint->newest;
	*(endpoint->newest ? &endpoint->newest->newer : &endpoint->oldest) = flight;
	endpoint->newest = flight;
	endpoint->nr_in_flight++;
	network->nr_in_flight++;
	network->stats.writes++;
	network->stats.bytes += flight->bytes;
	if (network->nr_in_flight > network->stats.most_in_flight)
		network->stats.most_in_flight = network->nr_in_flight;
}

int sim_write(struct transport *transport, const struct transport_write *write)
{
	struct endpoint *endpoint = endpoint_of(transport);
	struct sim_network *network = endpoint->network;
	struct flight *flight;
	int rc = check_write(endpoint, write);

	if (rc)
		return rc;
	compare_with_refused(endpoint, write);
	if (endpoint->nr_in_flight >= endpoint->depth || connecting(endpoint, write->peer) ||
		refuse(endpoint))
		return again(endpoint, write);
	flight = make_flight(endpoint, write);
	if (!flight)
		return fail(TERN_ERR_NOMEM, "sim: out of memory for a write");
	count_flight(endpoint, flight);
	if (network->settings.poison)
		sim_wire_poison(flight);
	sim_foresee(network, spend(endpoint, post_ns(&network->settings.nic, write->flags)),
		HAPPEN_ENTER, flight, flight->serial, 0);
	return 0;
}

/* ---- send ------------------------------------------------------------------------------------ */

static struct message *make_message(struct sim_network *network, uint32_t bytes)
{
	bool pooled = bytes <= POOLED_MESSAGE_BYTES;
	struct message *message =
		pooled ? sim_pool_take(&network->messages) : calloc(1, sizeof(*message) + bytes);

	if (message)
		message->pooled = pooled;
	return message;
}

int sim_send(struct transport *transport, uint32_t number, const void *data, uint32_t bytes)
{
	struct endpoint *endpoint = endpoint_of(transport);
	struct sim_network *network = endpoint->network;
	const struct sim_link *link;
	struct message *message;
	struct peer *peer;
	uint64_t at;
	int rc = check_peer(endpoint, number);

	if (rc)
		return rc;
	if (bytes > endpoint->message_bytes)
		return fail(TERN_ERR_INVALID, "sim: a message of %u bytes, most is %u", bytes,
			endpoint->message_bytes);
	if (endpoint->nr_messages >= network->settings.depth || connecting(endpoint, number) ||
		refuse(endpoint)) {
		network->stats.agains++;
		return TRANSPORT_AGAIN;
	}
	message = make_message(network, bytes);
	if (!message)
		return fail(TERN_ERR_NOMEM, "sim: out of memory for a message");
	peer = &endpoint->peers[number];
	message->target = peer->target;
	message->from_id = sim_endpoint_id(endpoint);
	message->from_rank = endpoint->rank;
	message->to_rank = peer->rank;
	message->bytes = bytes;
	if (bytes)
		memcpy(message->data, data, bytes);
	link = sim_link_between(network, endpoint->rank, peer->rank);
	at = spend(endpoint, network->settings.nic.post_ns) + link->latency_ns +
	     sim_delay(network, link->jitter_ns);
	peer->message_ns = at > peer->message_ns ? at : peer->message_ns;
	endpoint->nr_messages++;
	network->stats.sends++;
	sim_foresee(network, peer->message_ns, HAPPEN_MESSAGE, message,
		message->from_id << 16 ^ message->target, bytes);
	return 0;
}

/* ---- poll ------------------------------------------------------------------------------------ */

static void take_note(struct endpoint *endpoint, struct transport_event *event)
{
	struct note *note = endpoint->notes;

	endpoint->notes = note->next;
	if (!endpoint->notes)
		endpoint->last_note = NULL;
	*event = note->event;
	if (note->message) {
		note->message->next = endpoint->lent;
		endpoint->lent = note->message;
	}
	sim_pool_give(&endpoint->network->notes, note);
}

int sim_poll(struct transport *transport, struct transport_event *events, int max)
{
	struct endpoint *endpoint = endpoint_of(transport);
	struct sim_network *network = endpoint->network;
	int nr = 0;

	if (network->failed)
		return fail(network->failed, "sim: the network ran out of memory");
	if (endpoint->dead)
		return fail(TERN_ERR_STATE, "sim: this rank has been killed");
	sim_give_lent(endpoint);
	sim_wire_progress(endpoint);
	if (endpoint->notes && endpoint->proxy_ns > network->now) {
		sim_endpoint_wake(endpoint, endpoint->proxy_ns);
		return 0;
	}
	while (nr < max && endpoint->notes)
		take_note(endpoint, &events[nr++]);
	if (network->settings.nic.poll_ns && nr)
		spend(endpoint, network->settings.nic.poll_ns * (uint64_t)nr);
	if (endpoint->notes)
		sim_endpoint_ready(endpoint);
	return nr;
}

void sim_spend(struct sim_network *network, uint32_t rank, uint64_t ns)
{
	uint32_t i;

	for (i = 0; i < network->nr_endpoints; i++)
		if (network->endpoints[i] && network->endpoints[i]->rank == rank)
			spend(network->endpoints[i], ns);
}

uint64_t sim_proxy_free(const struct sim_network *network, uint32_t rank)
{
	uint64_t latest = network->now;
	uint32_t i;

	for (i = 0; i < network->nr_endpoints; i++)
		if (network->endpoints[i] && network->endpoints[i]->rank == rank &&
			network->endpoints[i]->proxy_ns > latest)
			latest = network->endpoints[i]->proxy_ns;
	return latest;
}

uint32_t sim_rank(const struct transport *transport)
{
	return ((const struct endpoint *)transport)->rank;
}
