/* SPDX-License-Identifier: Apache-2.0 */
/* Completions become events here. */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define BATCH 32
#define LOOK_POLLS 64    /* the clock and the greetings are looked at once in so many polls */
#define ASK_NS 50000000u /* the device is asked for events */

/* ---- failures in words ----------------------------------------------------------------------- */

static const char *explain(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_REM_ACCESS_ERR:
		return "no such key, or outside of its region";
	case IBV_WC_RETRY_EXC_ERR:
		return "no answer: dead, its port down, or a wrong GID or MTU";
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return "the peer had no receive posted for too long";
	case IBV_WC_WR_FLUSH_ERR:
		return "an earlier request of this queue pair had failed";
	case IBV_WC_LOC_PROT_ERR:
		return "the source is not registered any more";
	case IBV_WC_REM_OP_ERR:
		return "the peer's device could not do it";
	default:
		return "see the vendor's error";
	}
}

static const char *kind_name(const struct verbs_slot *slot)
{
	return slot->kind == VERBS_WRITE     ? "a write"
	       : slot->kind == VERBS_MESSAGE ? "a message"
					     : "a credit";
}

static void describe(const struct verbs *v, const struct verbs_connection *connection,
	const struct verbs_slot *slot, const struct ibv_wc *wc, char *text, size_t bytes)
{
	snprintf(text, bytes,
		"%s to peer %u: %s%s%s (%s; vendor error 0x%x, queue pair 0x%x, request %u)",
		kind_name(slot), connection->peer, v->library.wc_status_str(wc->status),
		v->port_trouble ? " while " : "", v->port_trouble ? v->port_trouble : "",
		explain(wc->status), wc->vendor_err, connection->qp->qp_num, (uint32_t)wc->wr_id);
}

/* ---- the device's own events ----------------------------------------------------------------- */

static void queue_pair_event(struct verbs *v, const struct ibv_async_event *event)
{
	struct verbs_connection *connection;

	for (connection = v->connections; connection && connection->qp != event->element.qp;
		connection = connection->next)
		;
	if (!connection || connection->retired ||
		event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED ||
		event->event_type == IBV_EVENT_COMM_EST)
		return;
	if (event->event_type == IBV_EVENT_QP_ACCESS_ERR)
		v->peers[connection->peer].broken =
			"it wrote with a wrong key, which broke the connection (access error)";
	else
		v->peers[connection->peer].broken =
			"the device gave up its queue pair (fatal or request error)";
}

/* Nothing that waits is posted to a queue pair that an event has called dead; what is under way
 * comes back as failed. */
static void take_device_event(struct verbs *v, const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		queue_pair_event(v, event);
		break;
	case IBV_EVENT_PORT_ERR:
		if (event->element.port_num == v->port.port)
			v->port_trouble = "this rank's port is down";
		break;
	case IBV_EVENT_PORT_ACTIVE:
		if (event->element.port_num == v->port.port)
			v->port_trouble = NULL;
		break;
	case IBV_EVENT_DEVICE_FATAL:
		for (uint32_t p = 0; p < v->nr_peers; p++)
			verbs_peer_fails(
				v, p, TERN_ERR_PEER_DEAD, "this rank's RDMA device has failed");
		break;
	default:
		break;
	}
}

static void ask_device(struct verbs *v)
{
	struct ibv_async_event event;

	while (!v->library.get_async_event(v->context, &event)) {
		take_device_event(v, &event);
		v->library.ack_async_event(&event);
	}
}

/* ---- what was sent --------------------------------------------------------------------------- */

static struct verbs_connection *find_connection(struct verbs *v, const struct ibv_wc *wc)
{
	struct verbs_connection *connection = verbs_connection_find(v, wc->qp_num);

	if (!connection || wc->wr_id >> 32 != verbs_wr_id(connection, 0) >> 32)
		return NULL;
	return (uint32_t)wc->wr_id - connection->ended < connection->posted - connection->ended
		       ? connection
		       : NULL;
}

static void slot_ends(struct verbs *v, struct verbs_connection *connection)
{
	const struct verbs_slot *slot =
		&connection->slots[connection->ended++ % connection->nr_slots];

	v->nr_under_way -= connection->kind == VERBS_DATA;
	if (slot->kind == VERBS_MESSAGE)
		v->free_sends[v->nr_free_sends++] = slot->message;
	if (slot->kind == VERBS_CREDIT && !connection->retired)
		v->peers[connection->peer].credit_under_way = false;
}

/* 1 or 0 events. The first failure is the cause of all others of that peer; its text is the peer's
 * own, as others may fail in the same poll. */
static int request_failed(struct verbs *v, struct verbs_connection *connection,
	const struct verbs_slot *slot, bool tell, const struct ibv_wc *wc,
	struct transport_event *event)
{
	bool death = wc->status == IBV_WC_WR_FLUSH_ERR || wc->status == IBV_WC_RETRY_EXC_ERR;
	struct verbs_peer *peer = &v->peers[connection->peer];
	char text[sizeof(peer->text)];

	if (peer->state != VERBS_DOWN) {
		ask_device(v); /* what it knows of its port belongs to the cause */
		describe(v, connection, slot, wc, text, sizeof(text));
		verbs_peer_fails(v, connection->peer, TERN_ERR_PEER_DEAD, text);
	}
	if (tell)
		*event = (struct transport_event){.kind = EVENT_FAILED,
			.peer = connection->peer,
			.cookie = slot->cookie,
			.error = death ? TERN_ERR_PEER_DEAD : TERN_ERR_SYSTEM,
			.text = peer->text};
	return tell;
}

/* Requests end in order: those before this one that were not to be reported have ended too. */
static int sent(struct verbs *v, const struct ibv_wc *wc, struct transport_event *event)
{
	struct verbs_connection *connection = find_connection(v, wc);
	uint32_t number = (uint32_t)wc->wr_id;
	struct verbs_slot slot;
	bool tell;

	if (!connection)
		return 0;
	slot = connection->slots[number % connection->nr_slots];
	tell = slot.kind == VERBS_WRITE && slot.signalled && !connection->retired;
	if (v->peers[connection->peer].state == VERBS_DOWN &&
		(int32_t)(number - connection->told) < 0)
		tell = false;
	while (connection->ended != number + 1)
		slot_ends(v, connection);
	if (wc->status != IBV_WC_SUCCESS)
		return connection->retired ? 0
					   : request_failed(v, connection, &slot, tell, wc, event);
	if (tell)
		*event = (struct transport_event){
			.kind = EVENT_WRITTEN, .peer = connection->peer, .cookie = slot.cookie};
	return tell;
}

/* ---- what came ------------------------------------------------------------------------------- */

static int immediate_came(struct verbs *v, const struct verbs_connection *connection,
	const struct ibv_wc *wc, struct transport_event *event)
{
	*event = (struct transport_event){.kind = EVENT_IMMEDIATE,
		.peer = connection->peer,
		.immediate = ntohl(wc->imm_data)};
	if (!connection->retired) {
		v->peers[connection->peer].immediates_in++;
		verbs_credit_is_due(v, connection->peer);
	}
	return 1;
}

static int message_came(struct verbs *v, const struct verbs_connection *connection,
	const struct ibv_wc *wc, struct transport_event *event)
{
	*event = (struct transport_event){.kind = EVENT_MESSAGE,
		.peer = connection->peer,
		.data = v->messages_in + wc->wr_id * v->buffer_bytes,
		.bytes = wc->byte_len};
	return 1;
}

/* 1 or 0 events. A receive is posted again whatever came of it. */
static int received(struct verbs *v, const struct ibv_wc *wc, struct transport_event *event)
{
	struct verbs_connection *connection = verbs_connection_find(v, wc->qp_num);
	bool good = connection && !connection->forgotten && wc->status == IBV_WC_SUCCESS;

	if (wc->wr_id == UINT64_MAX) {
		v->nr_immediates_used++;
		return good && (wc->wc_flags & IBV_WC_WITH_IMM)
			       ? immediate_came(v, connection, wc, event)
			       : 0;
	}
	v->given_out[v->nr_given_out++] =
		(struct verbs_given){(uint32_t)wc->wr_id, connection ? connection->peer : 0,
			connection ? connection->session : 0, connection && !connection->retired};
	return good ? message_came(v, connection, wc, event) : 0;
}

/* Before credits go back, so that there is a receive for each of them. */
static int post_receives(struct verbs *v)
{
	int rc = 0;

	if (v->nr_immediates_used)
		rc = verbs_post_immediates(v, v->nr_immediates_used);
	v->nr_immediates_used = 0;
	return rc;
}

/* The buffers of the messages that the last poll gave out. */
static int take_back_buffers(struct verbs *v)
{
	int rc = v->nr_given_out ? verbs_post_buffers(v, v->given_out, v->nr_given_out) : 0;

	for (uint32_t i = 0; i < v->nr_given_out; i++) {
		const struct verbs_given *given = &v->given_out[i];
		struct verbs_peer *peer = &v->peers[given->peer];

		if (!given->counts || (uint16_t)peer->session != given->session ||
			!peer->connections[VERBS_CONTROL])
			continue; /* the peer counts anew since */
		peer->messages_in++;
		verbs_credit_is_due(v, given->peer);
	}
	v->nr_given_out = 0;
	return rc;
}

/* ---- peers that are down --------------------------------------------------------------------- */

static int fail_under_way(
	struct verbs *v, struct verbs_peer *peer, struct transport_event *events, int max)
{
	struct verbs_connection *connection = peer->connections[VERBS_DATA];
	int nr = 0;

	if (connection && (int32_t)(connection->told - connection->ended) < 0)
		connection->told = connection->ended;
	for (; connection && connection->told != connection->posted && nr < max;
		connection->told++) {
		const struct verbs_slot *slot =
			&connection->slots[connection->told % connection->nr_slots];

		if (slot->signalled)
			events[nr++] = (struct transport_event){.kind = EVENT_FAILED,
				.peer = (uint32_t)(peer - v->peers),
				.cookie = slot->cookie,
				.error = peer->error,
				.text = peer->text};
	}
	return nr;
}

/* First all its writes, then the peer itself. */
static int report_down(struct verbs *v, struct transport_event *events, int max)
{
	int nr = 0;

	for (uint32_t p = 0; p < v->nr_peers && nr < max; p++) {
		struct verbs_peer *peer = &v->peers[p];

		if (peer->state != VERBS_DOWN || peer->reported)
			continue;
		nr += fail_under_way(v, peer, events + nr, max - nr);
		if (nr == max)
			break;
		peer->reported = true;
		v->nr_down--;
		events[nr++] = (struct transport_event){.kind = EVENT_PEER_DOWN,
			.peer = p,
			.error = peer->error,
			.text = peer->text};
	}
	return nr;
}

/* ---- polling --------------------------------------------------------------------------------- */

static void look_around(struct verbs *v, bool empty)
{
	uint64_t now;

	if (!v->nr_waiting && ++v->nr_polls % LOOK_POLLS)
		return;
	verbs_greet_poll(v);
	now = clock_ns(); /* after what a greeting may have begun */
	if (v->nr_waiting)
		verbs_greet_timers(v, now);
	if (v->nr_retired && empty)
		verbs_connections_reap(v, now);
	if (now - v->asked_ns > ASK_NS) {
		v->asked_ns = now;
		ask_device(v);
	}
}

static int read_queue(struct verbs *v, struct ibv_cq *cq,
	int (*take)(struct verbs *, const struct ibv_wc *, struct transport_event *),
	struct transport_event *events, int max, bool *empty)
{
	struct ibv_wc wc[BATCH];
	int got = ibv_poll_cq(cq, max < BATCH ? max : BATCH, wc), nr = 0;

	*empty = *empty && got == 0;
	if (got < 0)
		return fail(TERN_ERR_SYSTEM, "verbs: %s's completion queue cannot be read",
			v->port.device);
	for (int i = 0; i < got; i++)
		nr += take(v, &wc[i], events + nr);
	return nr;
}

int verbs_poll(struct transport *transport, struct transport_event *events, int max)
{
	struct verbs *v = verbs_of(transport);
	bool empty = true;
	int nr, rc;

	verbs_flush(v);
	rc = take_back_buffers(v);
	if (rc)
		return rc;
	nr = read_queue(v, v->receive_cq, received, events, max, &empty);
	rc = nr < 0 ? nr : post_receives(v);
	if (rc)
		return rc;
	if (v->nr_credits_due)
		verbs_return_credits(v);
	if (nr < max) {
		rc = read_queue(v, v->send_cq, sent, events + nr, max - nr, &empty);
		if (rc < 0)
			return nr ? nr : rc;
		nr += rc;
	}
	look_around(v, empty);
	return nr + (v->nr_down && nr < max ? report_down(v, events + nr, max - nr) : 0);
}
