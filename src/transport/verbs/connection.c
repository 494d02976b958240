/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: made, brought up, given up.
 *
 * A connection that is given up is put into the error state, so that its device touches nothing of
 * it any more, and lives on until what was under way on it has been flushed out of the completion
 * queue: a queue pair's number that is used anew may not be mistaken for it, and a receive that it
 * has used must be seen to be posted again. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define REAP_NS 1000000000u /* nobody waits longer for the rest of a connection */

/* ---- by number ------------------------------------------------------------------------------- */

static uint32_t place_of(const struct verbs *v, uint32_t qpn)
{
	return qpn * 2654435761u & (v->nr_lookup - 1);
}

struct verbs_connection *verbs_connection_find(const struct verbs *v, uint32_t qpn)
{
	for (uint32_t at = place_of(v, qpn); v->lookup[at].connection;
		at = (at + 1) & (v->nr_lookup - 1))
		if (v->lookup[at].qpn == qpn)
			return v->lookup[at].connection;
	return NULL;
}

static void rebuild_lookup(struct verbs *v)
{
	memset(v->lookup, 0, v->nr_lookup * sizeof(*v->lookup));
	for (struct verbs_connection *connection = v->connections; connection;
		connection = connection->next) {
		uint32_t at = place_of(v, connection->qp->qp_num);

		while (v->lookup[at].connection)
			at = (at + 1) & (v->nr_lookup - 1);
		v->lookup[at] = (struct verbs_lookup){connection->qp->qp_num, connection};
	}
}

/* ---- making ---------------------------------------------------------------------------------- */

static void fill_capacity(
	const struct verbs *v, const struct verbs_connection *connection, struct ibv_qp_cap *cap)
{
	*cap = (struct ibv_qp_cap){.max_send_wr = connection->nr_slots,
		.max_send_sge = 1,
		.max_inline_data = v->inline_bytes};
}

static struct ibv_srq *srq_of(const struct verbs *v, enum verbs_connection_kind kind)
{
	return kind == VERBS_DATA ? v->immediate_srq : v->message_srq;
}

/* The post functions that build a request in the device's own form; an old provider has none. */
static int create_extended(struct verbs *v, struct verbs_connection *connection)
{
	struct ibv_qp_init_attr_ex attr = {.send_cq = v->send_cq,
		.recv_cq = v->receive_cq,
		.srq = srq_of(v, connection->kind),
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = v->parent ? v->parent : v->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_SEND};
	struct verbs_context *context = verbs_get_ctx_op(v->context, create_qp_ex);

	fill_capacity(v, connection, &attr.cap);
	connection->qp = context ? context->create_qp_ex(v->context, &attr) : NULL;
	if (!connection->qp)
		return context ? errno : EOPNOTSUPP;
	connection->extended = v->library.qp_to_qp_ex(connection->qp);
	connection->inline_bytes = attr.cap.max_inline_data;
	return 0;
}

static int create_classic(struct verbs *v, struct verbs_connection *connection)
{
	struct ibv_qp_init_attr attr = {.send_cq = v->send_cq,
		.recv_cq = v->receive_cq,
		.srq = srq_of(v, connection->kind),
		.qp_type = IBV_QPT_RC};

	fill_capacity(v, connection, &attr.cap);
	connection->qp = v->library.create_qp(v->parent ? v->parent : v->pd, &attr);
	connection->inline_bytes = attr.cap.max_inline_data;
	return connection->qp ? 0 : errno;
}

/* A peer that comes and goes faster than its connections are flushed: the oldest go unflushed. */
static void make_room(struct verbs *v)
{
	while (v->nr_retired && v->nr_connections >= v->nr_lookup / 2) {
		struct verbs_connection *oldest = NULL;

		for (struct verbs_connection *connection = v->connections; connection;
			connection = connection->next)
			if (connection->retired)
				oldest = connection;
		verbs_connection_free(v, oldest);
	}
}

static int to_init(struct verbs *v, struct verbs_connection *connection)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)v->settings.pkey_index,
		.port_num = v->port.port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	return v->library.modify_qp(connection->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int verbs_connection_make(struct verbs *v, uint32_t peer, enum verbs_connection_kind kind,
	struct verbs_connection **out)
{
	uint32_t nr_slots = kind == VERBS_DATA ? v->nr_slots : VERBS_MESSAGES + 2;
	struct verbs_connection *connection =
		calloc(1, sizeof(*connection) + nr_slots * sizeof(connection->slots[0]));
	int rc;

	if (!connection)
		return fail(TERN_ERR_NOMEM, "no memory for a queue pair's requests");
	connection->peer = peer;
	connection->kind = kind;
	connection->nr_slots = nr_slots;
	connection->session = (uint16_t)v->next_session;
	rc = v->extended ? create_extended(v, connection) : create_classic(v, connection);
	if (rc) {
		free(connection);
		errno = rc;
		return fail_errno("verbs: making a queue pair with %u requests on %s", nr_slots,
			v->port.device);
	}
	make_room(v);
	connection->next = v->connections;
	v->connections = connection;
	v->nr_connections++;
	rebuild_lookup(v);
	rc = to_init(v, connection);
	if (rc) {
		verbs_connection_free(v, connection);
		errno = rc;
		return fail_errno("verbs: a queue pair on %s port %u, pkey %d", v->port.device,
			v->port.port, v->settings.pkey_index);
	}
	*out = connection;
	return 0;
}

/* ---- bringing up ----------------------------------------------------------------------------- */

/* Both ends can tell; another PSN for each connection keeps packets of an earlier one out. */
uint32_t verbs_psn(const struct verbs *v, uint64_t session, enum verbs_connection_kind kind)
{
	uint64_t x = (v->identity ^ (session * 2 + kind)) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(x >> 40);
}

void verbs_fill_route(const struct verbs *v, const struct verbs_address *to, struct ibv_ah_attr *ah)
{
	*ah = (struct ibv_ah_attr){.dlid = to->lid,
		.sl = (uint8_t)v->settings.service_level,
		.port_num = v->port.port};
	memcpy(ah->grh.dgid.raw, to->gid, sizeof(to->gid));
	ah->grh.sgid_index = (uint8_t)v->port.gid_index;
	ah->grh.hop_limit = 64;
	ah->grh.traffic_class = (uint8_t)v->settings.traffic_class;
	/* InfiniBand needs a global header between subnets alone. */
	ah->is_global = v->port.attr.link_layer == IBV_LINK_LAYER_ETHERNET ||
			memcmp(to->gid, v->port.gid.gid.raw, 8);
}

static int to_ready_to_receive(
	struct verbs *v, struct verbs_connection *connection, const struct verbs_hello *theirs)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
		.path_mtu = theirs->mtu < (uint32_t)v->port.attr.active_mtu
				    ? (enum ibv_mtu)theirs->mtu
				    : v->port.attr.active_mtu,
		.dest_qp_num = theirs->qpn[connection->kind],
		.rq_psn = theirs->psn[connection->kind],
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = (uint8_t)v->settings.min_rnr_timer};

	verbs_fill_route(v, &v->peers[connection->peer].address, &attr.ah_attr);
	return v->library.modify_qp(connection->qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_ready_to_send(struct verbs *v, struct verbs_connection *connection, uint32_t psn)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
		.sq_psn = psn,
		.timeout = (uint8_t)v->settings.timeout,
		.retry_cnt = (uint8_t)v->settings.retry,
		.rnr_retry = (uint8_t)v->settings.rnr_retry,
		.max_rd_atomic = 1};

	return v->library.modify_qp(connection->qp, &attr,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int verbs_connection_bring_up(struct verbs *v, struct verbs_connection *connection,
	const struct verbs_hello *theirs, uint32_t psn_ours)
{
	int rc = to_ready_to_receive(v, connection, theirs);

	rc = rc ? rc : to_ready_to_send(v, connection, psn_ours);
	if (!rc)
		return 0;
	errno = rc;
	return fail_errno("verbs: connecting a queue pair of %s, GID %s, with peer %u",
		v->port.device, v->port.address, connection->peer);
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* What waits for its doorbell will not be posted. */
void verbs_connection_unhold(struct verbs *v, struct verbs_connection *connection)
{
	for (uint32_t i = 0; i < v->nr_held_connections; i++)
		if (v->held_connections[i] == connection)
			v->held_connections[i] = v->held_connections[--v->nr_held_connections];
}

void verbs_connection_retire(struct verbs *v, struct verbs_connection *connection)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	verbs_connection_unhold(v, connection);
	connection->posted -= connection->nr_held;
	v->nr_under_way -= connection->nr_held;
	connection->nr_held = 0;
	v->nr_unsignalled -= connection->nr_unsignalled;
	connection->nr_unsignalled = 0;
	v->library.modify_qp(connection->qp, &attr, IBV_QP_STATE);
	connection->retired = true;
	connection->retired_ns = clock_ns();
	v->nr_retired++;
}

static void give_back_buffers(struct verbs *v, struct verbs_connection *connection)
{
	v->nr_under_way -=
		connection->kind == VERBS_DATA ? connection->posted - connection->ended : 0;
	for (; connection->ended != connection->posted; connection->ended++) {
		const struct verbs_slot *slot =
			&connection->slots[connection->ended % connection->nr_slots];

		if (slot->kind == VERBS_MESSAGE)
			v->free_sends[v->nr_free_sends++] = slot->message;
	}
}

void verbs_connection_free(struct verbs *v, struct verbs_connection *connection)
{
	struct verbs_connection **at = &v->connections;

	while (*at != connection)
		at = &(*at)->next;
	*at = connection->next;
	v->nr_connections--;
	v->library.destroy_qp(connection->qp);
	give_back_buffers(v, connection);
	v->nr_retired -= connection->retired;
	free(connection);
	rebuild_lookup(v);
}

/* The completion queues have been seen empty since the connections were retired. */
void verbs_connections_reap(struct verbs *v, uint64_t now)
{
	struct verbs_connection *connection = v->connections, *next;

	for (; connection; connection = next) {
		next = connection->next;
		if (connection->retired && (connection->ended == connection->posted ||
						   now - connection->retired_ns > REAP_NS))
			verbs_connection_free(v, connection);
	}
}
