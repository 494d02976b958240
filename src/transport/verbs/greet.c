/* SPDX-License-Identifier: Apache-2.0 */
/* How two ranks tell each other of their queue pairs: by datagrams, whose queue pair is in the
 * address that the group or a late rank passes on. So a rank needs to know of each other one
 * nothing that was made for the two of them, and peers can come at any time.
 *
 *   p: connect                                q: connect
 *   GREETING ── hello(session p) ──────────►  (too early: dropped; p says it again)
 *   GREETING ── hello(session p) ──────────►  GREETING: queue pairs up, HALF
 *   HALF: up  ◄── hello(session q, p's) ────
 *   UP (q knows p's) ── hello(p, q's, up) ──► UP
 *
 * A rank is UP when it knows that the other's queue pairs can receive. A hello of a later session
 * of the same rank means that it has begun anew, after an error that only it has seen. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define MAGIC 0x6e726574u
#define VERSION 1u
#define QKEY 0x11117465u
#define ROOM 512u /* of a datagram's buffer, route header included */
#define FIRST_PAUSE_NS 5000000u
#define LONGEST_PAUSE_NS 100000000u

_Static_assert(sizeof(struct verbs_hello) + VERBS_GRH_BYTES <= ROOM, "a greeting fits");

/* ---- opening --------------------------------------------------------------------------------- */

static int post_receive(struct verbs *v, uint32_t number)
{
	struct ibv_sge sge = {(uintptr_t)v->greetings_in + number * ROOM, ROOM, v->pinned_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(v->greet_qp, &wr, &bad);
}

static int bring_up(struct verbs *v)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)v->settings.pkey_index,
		.port_num = v->port.port,
		.qkey = QKEY};
	int rc = v->library.modify_qp(
		v->greet_qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	attr.qp_state = IBV_QPS_RTR;
	rc = rc ? rc : v->library.modify_qp(v->greet_qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_RTS;
	rc = rc ? rc : v->library.modify_qp(v->greet_qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
	for (uint32_t i = 0; i < VERBS_GREETINGS && !rc; i++)
		rc = post_receive(v, i);
	return rc;
}

int verbs_greet_open(struct verbs *v)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = VERBS_GREETINGS,
			.max_recv_wr = VERBS_GREETINGS,
			.max_send_sge = 1,
			.max_recv_sge = 1}};
	int rc;

	v->greet_cq = v->library.create_cq(v->context, 2 * VERBS_GREETINGS, NULL, NULL, 0);
	if (!v->greet_cq)
		return fail_errno("verbs: a completion queue for greetings on %s", v->port.device);
	attr.send_cq = attr.recv_cq = v->greet_cq;
	v->greet_qp = v->library.create_qp(v->pd, &attr);
	if (!v->greet_qp)
		return fail_errno("verbs: a datagram queue pair on %s", v->port.device);
	rc = bring_up(v);
	if (!rc)
		return 0;
	errno = rc;
	return fail_errno("verbs: bringing up a datagram queue pair on %s", v->port.device);
}

/* A datagram that cannot leave (no route, while a port is down) may put its queue pair into the
 * error state. The number stays, as peers know it; what was under way is said again. */
static void renew(struct verbs *v)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	struct ibv_wc wc[2 * VERBS_GREETINGS];

	if (v->library.modify_qp(v->greet_qp, &attr, IBV_QP_STATE))
		return;
	ibv_poll_cq(v->greet_cq, 2 * VERBS_GREETINGS, wc); /* all of it is of before */
	v->greetings_done = v->greetings_posted;
	v->greet_broken = bring_up(v) != 0;
}

/* ---- saying ---------------------------------------------------------------------------------- */

static void fill_hello(const struct verbs *v, uint32_t p, struct verbs_hello *h)
{
	const struct verbs_peer *peer = &v->peers[p];

	*h = (struct verbs_hello){.magic = MAGIC,
		.version = VERSION,
		.from = v->self,
		.is_up = peer->state == VERBS_UP,
		.identity_from = v->identity,
		.identity_to = peer->address.identity,
		.session_from = peer->session,
		.session_to = peer->session_theirs,
		.mtu = (uint32_t)v->port.attr.active_mtu,
		.window = v->window,
		.message_bytes = v->message_bytes,
		.credit_key = v->pinned_mr->rkey,
		.credit_address = (uintptr_t)&v->credits_in[p]};
	for (uint32_t kind = 0; kind < VERBS_CONNECTIONS; kind++) {
		h->qpn[kind] = peer->connections[kind]->qp->qp_num;
		h->psn[kind] = verbs_psn(v, peer->session, (enum verbs_connection_kind)kind);
	}
}

/* Lost where all buffers are under way: it is said again. */
void verbs_greet_say(struct verbs *v, uint32_t p)
{
	struct verbs_peer *peer = &v->peers[p];
	uint8_t *buffer = v->greetings_out + v->greetings_posted % VERBS_GREETINGS * ROOM;
	struct ibv_sge sge = {(uintptr_t)buffer, sizeof(struct verbs_hello), v->pinned_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = UINT64_MAX,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	struct verbs_hello hello;

	if (v->greetings_posted - v->greetings_done == VERBS_GREETINGS)
		return;
	fill_hello(v, p, &hello);
	memcpy(buffer, &hello, sizeof(hello));
	wr.wr.ud.ah = peer->ah;
	wr.wr.ud.remote_qpn = peer->address.qpn;
	wr.wr.ud.remote_qkey = peer->address.qkey;
	if (!ibv_post_send(v->greet_qp, &wr, &bad))
		v->greetings_posted++;
}

/* ---- hearing --------------------------------------------------------------------------------- */

static int take_ends(struct verbs *v, uint32_t p, const struct verbs_hello *h)
{
	struct verbs_peer *peer = &v->peers[p];
	int rc = 0;

	for (uint32_t kind = 0; kind < VERBS_CONNECTIONS && !rc; kind++)
		rc = verbs_connection_bring_up(v, peer->connections[kind], h,
			verbs_psn(v, peer->session, (enum verbs_connection_kind)kind));
	peer->session_theirs = h->session_from;
	peer->credit_address = h->credit_address;
	peer->credit_key = h->credit_key;
	peer->window = h->window;
	peer->message_bytes = h->message_bytes;
	return rc;
}

static void is_up(struct verbs *v, struct verbs_peer *peer)
{
	peer->state = VERBS_UP;
	v->nr_waiting--;
}

/* The peer began anew, because it has seen an error here that this rank has not. With writes under
 * way some of them may be lost, and then it has to be told. */
static int begin_anew(struct verbs *v, uint32_t p)
{
	struct verbs_peer *peer = &v->peers[p];
	int rc;

	if (peer->connections[VERBS_DATA]->posted != peer->connections[VERBS_DATA]->ended) {
		verbs_peer_fails(v, p, TERN_ERR_PEER_DEAD,
			"it began a new connection while writes to it were under way");
		return TERN_ERR_PEER_DEAD;
	}
	v->nr_waiting -= peer->state == VERBS_HALF;
	rc = verbs_peer_begin(v, p);
	if (rc) { /* it was connected, so its end has to be told */
		peer->state = VERBS_UP;
		verbs_peer_fails(v, p, rc, tern_last_error());
	}
	return rc;
}

/* Said by a rank whose queue pairs are connected with those that this one had before: another will
 * follow when it has heard of the new ones. */
static bool is_stale(const struct verbs_peer *peer, const struct verbs_hello *h)
{
	return peer->state == VERBS_GREETING && h->session_to && h->session_to != peer->session;
}

static void take_hello(struct verbs *v, const struct verbs_hello *h)
{
	struct verbs_peer *peer = &v->peers[h->from];
	int rc = 0;

	if (is_stale(peer, h))
		return;
	if ((peer->state == VERBS_HALF || peer->state == VERBS_UP) &&
		h->session_from > peer->session_theirs)
		rc = begin_anew(v, h->from);
	if (!rc && peer->state == VERBS_GREETING) {
		rc = take_ends(v, h->from, h);
		if (rc)
			verbs_peer_fails(v, h->from, rc, tern_last_error());
		else
			peer->state = VERBS_HALF;
	}
	if (rc || h->session_from != peer->session_theirs)
		return;
	if (peer->state == VERBS_HALF && h->session_to == peer->session)
		is_up(v, peer);
	if (!h->is_up)
		verbs_greet_say(v, h->from);
}

/* Anybody on the network can send a datagram: all that it says is checked, and the identities are
 * secrets of 64 bits. */
static bool is_valid(const struct verbs *v, const struct verbs_hello *h, uint32_t bytes)
{
	const struct verbs_peer *peer;

	if (bytes != sizeof(*h) + VERBS_GRH_BYTES || h->magic != MAGIC || h->version != VERSION ||
		h->from >= v->nr_peers)
		return false;
	peer = &v->peers[h->from];
	if (peer->state == VERBS_UNKNOWN || peer->state == VERBS_DOWN || h->from == v->self)
		return false;
	if (h->identity_from != peer->address.identity || h->identity_to != v->identity ||
		!h->session_from)
		return false;
	return h->mtu >= IBV_MTU_256 && h->mtu <= IBV_MTU_4096 && h->window &&
	       h->window < 1u << 24 && !(h->credit_address & 7);
}

void verbs_greet_poll(struct verbs *v)
{
	struct ibv_wc wc[8];
	int nr = ibv_poll_cq(v->greet_cq, 8, wc);

	for (int i = 0; i < nr; i++) {
		struct verbs_hello hello;

		v->greet_broken |= wc[i].status != IBV_WC_SUCCESS;
		if (wc[i].wr_id == UINT64_MAX) {
			v->greetings_done++;
			continue;
		}
		memcpy(&hello, v->greetings_in + wc[i].wr_id * ROOM + VERBS_GRH_BYTES,
			sizeof(hello));
		post_receive(v, (uint32_t)wc[i].wr_id);
		if (wc[i].status == IBV_WC_SUCCESS && is_valid(v, &hello, wc[i].byte_len))
			take_hello(v, &hello);
	}
	if (v->greet_broken)
		renew(v);
}

/* ---- again, and no more ---------------------------------------------------------------------- */

static void greet_again(struct verbs *v, uint32_t p, uint64_t now)
{
	struct verbs_peer *peer = &v->peers[p];
	char text[120];

	if (now - peer->began_ns > (uint64_t)v->settings.connect_ms * 1000000) {
		snprintf(text, sizeof(text), "it has not answered for %d ms (%s)",
			v->settings.connect_ms,
			peer->state == VERBS_GREETING ? "no greeting came"
						      : "it does not know of ours");
		verbs_peer_fails(v, p, TERN_ERR_PEER_DEAD, text);
		return;
	}
	if (now < peer->greet_ns)
		return;
	verbs_greet_say(v, p);
	peer->greet_ns = now + peer->greet_pause_ns;
	peer->greet_pause_ns = peer->greet_pause_ns * 2 < LONGEST_PAUSE_NS
				       ? peer->greet_pause_ns * 2
				       : LONGEST_PAUSE_NS;
	if (!peer->greet_pause_ns)
		peer->greet_pause_ns = FIRST_PAUSE_NS;
}

void verbs_greet_timers(struct verbs *v, uint64_t now)
{
	for (uint32_t p = 0; p < v->nr_peers && v->nr_waiting; p++)
		if (v->peers[p].state == VERBS_GREETING || v->peers[p].state == VERBS_HALF)
			greet_again(v, p, now);
}

/* A rank knows all of itself: its queue pairs are connected with themselves. */
int verbs_connect_self(struct verbs *v)
{
	struct verbs_peer *peer = &v->peers[v->self];
	struct verbs_hello hello;
	int rc;

	fill_hello(v, v->self, &hello);
	rc = take_ends(v, v->self, &hello);
	if (!rc)
		is_up(v, peer);
	return rc;
}
