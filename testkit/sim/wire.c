/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a write between posting and completion. */
#include "testkit/sim/inside.h"

#include <string.h>

static uint64_t max_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t transmit_ns(uint64_t bytes, uint64_t bytes_per_second)
{
	return bytes_per_second ? bytes * 1000000000u / bytes_per_second : 0;
}

/* ---- out ------------------------------------------------------------------------------------- */

static void inject(struct flight *flight)
{
	struct endpoint *source = flight->source;
	struct sim_network *network = source->network;
	const struct sim_settings *settings = &network->settings;
	const struct sim_link *link = sim_link_between(network, flight->from_rank, flight->to_rank);
	struct peer *peer = &source->peers[flight->peer];
	uint64_t start = network->now,
		 nic_ns = transmit_ns(flight->bytes, settings->nic.bytes_per_second);

	flight->injected = true;
	flight->wire_ns = transmit_ns(flight->bytes, link->bytes_per_second);
	if (sim_chance(network, settings->stall_per_mille)) {
		source->out_ns = max_of(source->out_ns, start) + settings->stall_ns;
		network->stats.stalls++;
	}
	if (!sim_same_node(network, flight->from_rank, flight->to_rank)) {
		start = max_of(start, source->out_ns);
		source->out_ns = start + max_of(settings->nic.request_ns, nic_ns);
		flight->wire_ns = max_of(flight->wire_ns, nic_ns);
	}
	start += link->latency_ns + sim_delay(network, link->jitter_ns);
	if (sim_keeps_order(settings))
		start = peer->arrive_ns = max_of(start, peer->arrive_ns);
	sim_foresee(network, start, HAPPEN_ARRIVE, flight, flight->serial, 0);
	if (settings->retry_ns)
		sim_foresee(network, network->now + settings->retry_ns, HAPPEN_EXPIRE, flight,
			flight->serial, 0);
}

/* A queue pair is a queue: what is behind a fenced write waits with it. */
void sim_queue_pair_kick(struct sim_network *network, struct queue_pair *qp)
{
	struct flight *flight;

	while ((flight = qp->head)) {
		if ((flight->flags & WRITE_FENCE) && qp->nr_outstanding &&
			!network->settings.lies) {
			network->stats.fences_waited += !flight->fenced;
			flight->fenced = true;
			return;
		}
		qp->head = flight->next;
		if (!qp->head)
			qp->tail = NULL;
		qp->nr_outstanding++;
		inject(flight);
	}
}

static void enter(struct sim_network *network, struct flight *flight)
{
	struct queue_pair *qp = sim_queue_pair_of(flight);

	flight->next = NULL;
	if (qp->tail)
		qp->tail->next = flight;
	else
		qp->head = flight;
	qp->tail = flight;
	sim_queue_pair_kick(network, qp);
}

/* ---- in -------------------------------------------------------------------------------------- */

static uint32_t count_pieces(const struct sim_settings *settings, uint64_t bytes)
{
	uint64_t nr = (bytes + settings->piece_bytes - 1) / settings->piece_bytes;

	return nr < 1 ? 1 : nr > settings->max_pieces ? settings->max_pieces : (uint32_t)nr;
}

static void foresee_pieces(struct endpoint *target, struct flight *flight)
{
	struct sim_network *network = target->network;
	const struct sim_settings *settings = &network->settings;
	struct peer *peer = &flight->source->peers[flight->peer];
	uint64_t at, start = network->now;
	uint32_t i, nr = count_pieces(settings, flight->bytes);

	if (!sim_same_node(network, flight->from_rank, flight->to_rank)) {
		start = max_of(start, target->in_ns);
		target->in_ns = start + transmit_ns(flight->bytes, settings->nic.bytes_per_second);
	}
	flight->nr_pieces = nr;
	for (i = 0; i < nr; i++) {
		at = start + flight->wire_ns * (i + 1) / nr;
		if (sim_keeps_order(settings))
			at = peer->land_ns = max_of(at, peer->land_ns);
		else
			at += sim_delay(network, settings->reorder_ns);
		sim_foresee(network, at, HAPPEN_LAND, flight, flight->serial, i);
	}
}

static void arrive(struct sim_network *network, struct flight *flight)
{
	struct endpoint *target = sim_endpoint_find(network, flight->target);

	if (!target || sim_is_cut(network, flight->from_rank, flight->to_rank))
		return;
	if (!network->settings.target_polls) {
		foresee_pieces(target, flight);
		return;
	}
	flight->arriving = true;
	flight->next = NULL;
	if (target->last_arrival)
		target->last_arrival->next = flight;
	else
		target->arrivals = flight;
	target->last_arrival = flight;
	sim_endpoint_ready(target);
}

void sim_wire_progress(struct endpoint *endpoint)
{
	struct flight *flight;

	while ((flight = endpoint->arrivals)) {
		endpoint->arrivals = flight->next;
		flight->arriving = false;
		foresee_pieces(endpoint, flight);
	}
	endpoint->last_arrival = NULL;
}

/* NULL: not in memory that is registered. */
static uint8_t *place_of(const struct endpoint *target, const struct flight *flight)
{
	uint32_t place = (uint32_t)flight->key;
	const struct transport_region *region =
		place < target->nr_regions ? target->regions[place] : NULL;
	uint64_t base = region ? (uint64_t)(uintptr_t)region->base : 0;

	if (!region || region->key != flight->key || flight->address < base)
		return NULL;
	if (flight->address - base > region->bytes ||
		flight->bytes > region->bytes - (flight->address - base))
		return NULL;
	return region->base + (flight->address - base);
}

void sim_wire_poison(struct flight *flight)
{
	struct endpoint *target = sim_endpoint_find(flight->source->network, flight->target);
	uint8_t *to = target && flight->bytes ? place_of(target, flight) : NULL;

	if (to)
		memset(to, SIM_POISON, flight->bytes);
}

void sim_flight_copy_piece(struct endpoint *target, struct flight *flight, uint32_t piece)
{
	uint64_t from = flight->bytes * piece / flight->nr_pieces,
		 to = flight->bytes * (piece + 1) / flight->nr_pieces;
	struct sim_network *network = target->network;
	uint8_t *base = place_of(target, flight);
	const uint8_t *source = flight->flags & WRITE_INLINE ? flight->inlined : flight->from;

	if (!base && flight->bytes)
		flight->bad_key = true;
	else if (to > from)
		memcpy(base + from, source + from, to - from);
	if (base && to > from && sim_chance(network, network->settings.spoil_per_mille)) {
		base[from + sim_delay(network, to - from - 1)] ^=
			(uint8_t)(1 << sim_delay(network, 7));
		network->stats.spoilt++;
	}
	flight->landed |= (uint64_t)1 << piece;
}

static void foresee_end(struct sim_network *network, struct flight *flight)
{
	const struct sim_settings *settings = &network->settings;
	const struct sim_link *link = sim_link_between(network, flight->to_rank, flight->from_rank);
	struct peer *peer = &flight->source->peers[flight->peer];
	uint64_t at = network->now + link->latency_ns + sim_delay(network, link->jitter_ns) +
		      settings->nic.completion_ns +
		      sim_delay(network, settings->completion_jitter_ns);

	network->stats.landed++;
	network->stats.bad_keys += flight->bad_key;
	flight->reported = flight->bad_key || !(flight->flags & WRITE_IMMEDIATE);
	if (!flight->reported)
		sim_foresee(network,
			network->now + (sim_keeps_order(settings)
						       ? 0
						       : sim_delay(network, settings->reorder_ns)),
			HAPPEN_REPORT, flight, flight->serial, 0);
	if (sim_keeps_order(settings))
		at = peer->acked_ns = max_of(at, peer->acked_ns);
	sim_foresee(network, at, HAPPEN_ACKED, flight, flight->serial, 0);
	if (sim_chance(network, settings->duplicate_per_mille))
		sim_foresee(network, at + 1 + sim_delay(network, settings->far.latency_ns),
			HAPPEN_ACKED, flight, flight->serial, 1);
}

static void land(struct sim_network *network, struct flight *flight, uint32_t piece)
{
	struct endpoint *target = sim_endpoint_find(network, flight->target);

	if (!target)
		return;
	sim_flight_copy_piece(target, flight, piece);
	if (sim_flight_has_landed(flight))
		foresee_end(network, flight);
}

static void report(struct sim_network *network, struct flight *flight)
{
	struct endpoint *target = sim_endpoint_find(network, flight->target);
	uint32_t peer =
		target ? sim_peer_number(target, flight->from_id, flight->from_rank) : NO_PEER;
	struct note *note = NULL;

	if (target && !sim_is_down(target, peer))
		note = sim_note_add(target, EVENT_IMMEDIATE, peer);
	if (note) {
		note->event.immediate = flight->immediate;
		network->stats.immediates++;
	}
	flight->reported = true;
	if (!flight->source)
		sim_flight_release(network, flight);
}

/* ---- completion ------------------------------------------------------------------------------ */

static void acked(struct sim_network *network, struct flight *flight)
{
	struct endpoint *source = flight->source;
	struct queue_pair *qp = sim_queue_pair_of(flight);

	if (sim_is_cut(network, flight->to_rank, flight->from_rank))
		return;
	network->stats.completions++;
	if (flight->bad_key)
		sim_note_failed(source, flight, TERN_ERR_INVALID,
			"the write was outside of the peer's registered memory");
	else if (flight->flags & WRITE_SIGNALLED)
		sim_note_written(source, flight);
	if (network->settings.duplicates_pass && flight->flags & WRITE_SIGNALLED &&
		sim_chance(network, network->settings.duplicate_per_mille))
		sim_note_written(source, flight);
	sim_flight_finish(flight);
	sim_endpoint_ready(source); /* there is room for another write */
	sim_queue_pair_kick(network, qp);
}

void sim_wire_happen(struct sim_network *network, const struct happening *what)
{
	struct flight *flight = what->subject;
	bool over =
		flight->serial != what->serial || (!flight->source && what->kind != HAPPEN_REPORT);

	if (over) {
		network->stats.duplicates_dropped += what->kind == HAPPEN_ACKED && what->detail;
		return;
	}
	switch (what->kind) {
	case HAPPEN_ENTER:
		enter(network, flight);
		break;
	case HAPPEN_ARRIVE:
		arrive(network, flight);
		break;
	case HAPPEN_LAND:
		land(network, flight, what->detail);
		break;
	case HAPPEN_REPORT:
		report(network, flight);
		break;
	case HAPPEN_ACKED:
		acked(network, flight);
		break;
	case HAPPEN_EXPIRE:
		sim_wire_peer_down(flight->source, flight->peer, TERN_ERR_PEER_DEAD,
			"a write was not acknowledged in time");
		break;
	}
}

/* ---- messages -------------------------------------------------------------------------------- */

void sim_wire_message(struct sim_network *network, struct message *message)
{
	struct endpoint *target = sim_endpoint_find(network, message->target);
	uint32_t peer =
		target ? sim_peer_number(target, message->from_id, message->from_rank) : NO_PEER;
	struct endpoint *source = sim_endpoint_find(network, message->from_id);
	struct note *note = NULL;

	if (source) {
		source->nr_messages--;
		sim_endpoint_ready(source);
	}
	if (target && !sim_is_cut(network, message->from_rank, message->to_rank) &&
		!sim_is_down(target, peer))
		note = sim_note_add(target, EVENT_MESSAGE, peer);
	if (!note) {
		sim_message_give(network, message);
		return;
	}
	note->message = message;
	note->event.data = message->data;
	note->event.bytes = message->bytes;
}
