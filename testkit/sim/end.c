/* SPDX-License-Identifier: Apache-2.0 */
/* How writes end: completed, failed, dropped or torn; and what the engine is told of it. */
#include "testkit/sim/inside.h"

/* ---- telling the engine ---------------------------------------------------------------------- */

struct note *sim_note_add(struct endpoint *endpoint, enum transport_event_kind kind, uint32_t peer)
{
	struct sim_network *network = endpoint->network;
	struct note *note = sim_pool_take(&network->notes);

	if (!note) {
		network->failed = TERN_ERR_NOMEM;
		return NULL;
	}
	note->event.kind = kind;
	note->event.peer = peer;
	if (endpoint->last_note)
		endpoint->last_note->next = note;
	else
		endpoint->notes = note;
	endpoint->last_note = note;
	if (endpoint->proxy_ns > network->now)
		sim_endpoint_wake(endpoint, endpoint->proxy_ns);
	else
		sim_endpoint_ready(endpoint);
	return note;
}

void sim_note_failed(
	struct endpoint *endpoint, const struct flight *flight, int error, const char *text)
{
	struct note *note;

	endpoint->network->stats.failures++;
	if (!(flight->flags & WRITE_SIGNALLED))
		return;
	note = sim_note_add(endpoint, EVENT_FAILED, flight->peer);
	if (!note)
		return;
	note->event.cookie = flight->cookie;
	note->event.error = error;
	note->event.text = text;
}

void sim_note_written(struct endpoint *endpoint, const struct flight *flight)
{
	struct note *note = sim_note_add(endpoint, EVENT_WRITTEN, flight->peer);

	if (note)
		note->event.cookie = flight->cookie;
}

/* Its peer number for whoever sent something. Who is not connected from here yet goes by its own
 * number. */
uint32_t sim_peer_number(const struct endpoint *endpoint, uint64_t from_id, uint32_t from_rank)
{
	uint32_t number = (uint32_t)from_id,
		 peer = number < endpoint->nr_peer_of ? endpoint->peer_of[number] : NO_PEER;

	if (peer != NO_PEER && endpoint->peers[peer].target == from_id)
		return peer;
	return from_rank < endpoint->nr_peers && !endpoint->peers[from_rank].target ? from_rank
										    : NO_PEER;
}

bool sim_is_down(const struct endpoint *endpoint, uint32_t peer)
{
	return peer != NO_PEER && endpoint->peers[peer].down;
}

/* ---- the end of a write ---------------------------------------------------------------------- */

bool sim_flight_has_landed(const struct flight *flight)
{
	return flight->nr_pieces &&
	       flight->landed == UINT64_MAX >> (MAX_PIECES - flight->nr_pieces);
}

struct queue_pair *sim_queue_pair_of(const struct flight *flight)
{
	struct endpoint *endpoint = flight->source;

	return &endpoint->queue_pairs[flight->peer % endpoint->nr_queue_pairs];
}

void sim_flight_release(struct sim_network *network, struct flight *flight)
{
	flight->serial = 0;
	sim_pool_give(&network->flights, flight);
}

static void unlink_arrival(struct endpoint *target, struct flight *flight)
{
	struct flight **at = &target->arrivals, *previous = NULL;

	while (*at && *at != flight) {
		previous = *at;
		at = &previous->next;
	}
	if (!*at)
		return;
	*at = flight->next;
	if (target->last_arrival == flight)
		target->last_arrival = previous;
}

static void unlink_entered(struct queue_pair *qp, struct flight *flight)
{
	struct flight **at = &qp->head, *previous = NULL;

	while (*at && *at != flight) {
		previous = *at;
		at = &previous->next;
	}
	if (!*at)
		return; /* still with the proxy */
	*at = flight->next;
	if (qp->tail == flight)
		qp->tail = previous;
}

/* The source is done with it. Only an immediate may still be due, which needs none of the source's
 * memory. */
void sim_flight_finish(struct flight *flight)
{
	struct endpoint *source = flight->source, *target = NULL;
	struct sim_network *network = source->network;

	if (flight->injected)
		sim_queue_pair_of(flight)->nr_outstanding--;
	else
		unlink_entered(sim_queue_pair_of(flight), flight);
	if (flight->arriving)
		target = sim_endpoint_find(network, flight->target);
	if (target)
		unlink_arrival(target, flight);
	*(flight->older ? &flight->older->newer : &source->oldest) = flight->newer;
	*(flight->newer ? &flight->newer->older : &source->newest) = flight->older;
	source->nr_in_flight--;
	network->nr_in_flight--;
	flight->source = NULL;
	if (flight->reported || !sim_flight_has_landed(flight))
		sim_flight_release(network, flight);
}

void sim_wire_peer_down(struct endpoint *endpoint, uint32_t peer, int error, const char *text)
{
	struct flight *flight, *newer;
	struct note *note;

	if (endpoint->peers[peer].down || !endpoint->peers[peer].target)
		return;
	endpoint->peers[peer].down = true;
	for (flight = endpoint->oldest; flight; flight = newer) {
		newer = flight->newer;
		if (flight->peer != peer)
			continue;
		sim_note_failed(endpoint, flight, error, text);
		sim_flight_finish(flight);
	}
	note = sim_note_add(endpoint, EVENT_PEER_DOWN, peer);
	if (note) {
		note->event.error = error;
		note->event.text = text;
	}
	sim_queue_pair_kick(
		endpoint->network, &endpoint->queue_pairs[peer % endpoint->nr_queue_pairs]);
}

/* ---- without a word -------------------------------------------------------------------------- */

/* The source died: each piece that was on the wire lands or does not. */
static void tear(struct flight *flight)
{
	struct sim_network *network = flight->source->network;
	struct endpoint *target = sim_endpoint_find(network, flight->target);
	uint32_t i;

	for (i = 0; target && i < flight->nr_pieces; i++)
		if (!(flight->landed >> i & 1) && sim_chance(network, 500))
			sim_flight_copy_piece(target, flight, i);
	flight->reported = true; /* or rather: it never will be */
}

void sim_wire_drop(struct endpoint *endpoint, uint32_t peer)
{
	struct flight *flight, *newer;

	for (flight = endpoint->oldest; flight; flight = newer) {
		newer = flight->newer;
		if (flight->peer == peer)
			sim_flight_finish(flight);
	}
	sim_queue_pair_kick(
		endpoint->network, &endpoint->queue_pairs[peer % endpoint->nr_queue_pairs]);
}

void sim_wire_abandon(struct endpoint *endpoint, bool torn)
{
	struct flight *flight;

	while ((flight = endpoint->oldest)) {
		if (torn && !sim_flight_has_landed(flight))
			tear(flight);
		sim_flight_finish(flight);
	}
	while ((flight = endpoint->arrivals)) {
		endpoint->arrivals = flight->next;
		flight->arriving = false;
	}
	endpoint->last_arrival = NULL;
}
