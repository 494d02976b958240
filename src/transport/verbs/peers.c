/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' addresses and states. */
#include "transport/verbs/verbs.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define ADDRESS_MAGIC 0x76726574u
#define ADDRESS_VERSION 1u
#define QKEY 0x11117465u

/* ---- addresses ------------------------------------------------------------------------------- */

static void own_address(const struct verbs *v, struct verbs_address *a)
{
	*a = (struct verbs_address){.magic = ADDRESS_MAGIC,
		.version = ADDRESS_VERSION,
		.identity = v->identity,
		.qpn = v->greet_qp->qp_num,
		.qkey = QKEY,
		.lid = v->port.attr.lid,
		.on_ethernet = v->port.attr.link_layer == IBV_LINK_LAYER_ETHERNET};
	memcpy(a->gid, v->port.gid.gid.raw, sizeof(a->gid));
}

int verbs_address(struct transport *transport, void *address, uint32_t *bytes)
{
	struct verbs_address a;

	own_address(verbs_of(transport), &a);
	if (*bytes < sizeof(a))
		return fail(
			TERN_ERR_INVALID, "an address takes %zu bytes, not %u", sizeof(a), *bytes);
	memcpy(address, &a, sizeof(a));
	*bytes = sizeof(a);
	return 0;
}

static int read_address(const struct verbs *v, uint32_t peer, const void *address, uint32_t bytes,
	struct verbs_address *a)
{
	bool on_ethernet = v->port.attr.link_layer == IBV_LINK_LAYER_ETHERNET;

	if (peer >= v->nr_peers || bytes != sizeof(*a))
		return fail(TERN_ERR_INVALID, "peer %u of %u, an address of %u bytes", peer,
			v->nr_peers, bytes);
	memcpy(a, address, sizeof(*a));
	if (a->magic != ADDRESS_MAGIC || a->version != ADDRESS_VERSION)
		return fail(TERN_ERR_MISMATCH,
			"peer %u: no address of the verbs transport, version %u", peer,
			ADDRESS_VERSION);
	if (a->on_ethernet != on_ethernet)
		return fail(TERN_ERR_MISMATCH, "peer %u is on %s, this rank on %s", peer,
			a->on_ethernet ? "Ethernet" : "InfiniBand",
			on_ethernet ? "Ethernet" : "InfiniBand");
	return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void retire_connections(struct verbs *v, struct verbs_peer *peer, bool forget)
{
	for (uint32_t kind = 0; kind < VERBS_CONNECTIONS; kind++) {
		if (!peer->connections[kind])
			continue;
		verbs_connection_retire(v, peer->connections[kind]);
		peer->connections[kind]->forgotten = forget;
		peer->connections[kind] = NULL;
	}
}

static void reset_counts(struct verbs *v, struct verbs_peer *peer)
{
	uint32_t p = (uint32_t)(peer - v->peers);

	peer->immediates_out = peer->messages_out = peer->immediates_taken = peer->messages_taken =
		0;
	peer->immediates_in = peer->messages_in = peer->immediates_told = peer->messages_told = 0;
	v->nr_credits_due -= peer->credit_due;
	peer->credit_under_way = peer->credit_due = false;
	v->credits_in[p] = (struct verbs_credit){0, 0, UINT32_MAX, UINT32_MAX};
}

/* A new pair of connections to a peer whose address is known; whatever it had before is given up.
 */
int verbs_peer_begin(struct verbs *v, uint32_t p)
{
	struct verbs_peer *peer = &v->peers[p];
	int rc = 0;

	retire_connections(v, peer, false);
	reset_counts(v, peer);
	peer->session = ++v->next_session;
	peer->session_theirs = 0;
	peer->broken = NULL;
	for (uint32_t kind = 0; kind < VERBS_CONNECTIONS && !rc; kind++)
		rc = verbs_connection_make(
			v, p, (enum verbs_connection_kind)kind, &peer->connections[kind]);
	if (rc) {
		retire_connections(v, peer, true);
		peer->state = VERBS_UNKNOWN;
		return rc;
	}
	peer->state = VERBS_GREETING;
	peer->began_ns = clock_ns();
	peer->greet_ns = 0;
	peer->greet_pause_ns = 0;
	v->nr_waiting++;
	return p == v->self ? verbs_connect_self(v) : 0;
}

int verbs_connect(struct transport *transport, uint32_t p, const void *address, uint32_t bytes)
{
	struct verbs *v = verbs_of(transport);
	struct verbs_address a;
	struct verbs_peer *peer;
	struct ibv_ah_attr route;
	int rc = read_address(v, p, address, bytes, &a);

	if (rc)
		return rc;
	peer = &v->peers[p];
	if (peer->state != VERBS_UNKNOWN)
		return fail(TERN_ERR_STATE, "peer %u is connected", p);
	peer->address = a;
	verbs_fill_route(v, &a, &route);
	peer->ah = v->library.create_ah(v->pd, &route);
	if (!peer->ah)
		return fail_errno("verbs: a route from %s, GID %s, to peer %u", v->port.device,
			v->port.address, p);
	rc = verbs_peer_begin(v, p);
	if (rc && peer->state != VERBS_UNKNOWN) {
		verbs_disconnect(transport, p);
	} else if (rc) {
		v->library.destroy_ah(peer->ah);
		peer->ah = NULL;
	}
	return rc;
}

/* Its queue pairs go into the error state at once: the device reads and writes nothing for them any
 * more. */
void verbs_peer_fails(struct verbs *v, uint32_t p, int error, const char *text)
{
	struct verbs_peer *peer = &v->peers[p];
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (peer->state == VERBS_UNKNOWN || peer->state == VERBS_DOWN)
		return;
	v->nr_waiting -= peer->state != VERBS_UP;
	for (uint32_t kind = 0; kind < VERBS_CONNECTIONS; kind++)
		if (peer->connections[kind]) {
			verbs_connection_unhold(v, peer->connections[kind]);
			peer->connections[kind]->told = peer->connections[kind]->ended;
			v->library.modify_qp(peer->connections[kind]->qp, &attr, IBV_QP_STATE);
		}
	peer->state = VERBS_DOWN;
	peer->error = error;
	v->nr_down++;
	snprintf(peer->text, sizeof(peer->text), "%s", text);
}

/* All but the text, which the engine may still be reading. */
static void forget(struct verbs_peer *peer)
{
	char text[sizeof(peer->text)];

	memcpy(text, peer->text, sizeof(text));
	*peer = (struct verbs_peer){.state = VERBS_UNKNOWN};
	memcpy(peer->text, text, sizeof(text));
}

int verbs_disconnect(struct transport *transport, uint32_t p)
{
	struct verbs *v = verbs_of(transport);
	struct verbs_peer *peer;

	if (p >= v->nr_peers)
		return fail(TERN_ERR_INVALID, "peer %u of %u", p, v->nr_peers);
	peer = &v->peers[p];
	if (peer->state == VERBS_UNKNOWN)
		return 0;
	v->nr_waiting -= peer->state == VERBS_GREETING || peer->state == VERBS_HALF;
	v->nr_down -= peer->state == VERBS_DOWN && !peer->reported;
	retire_connections(v, peer, true);
	reset_counts(v, peer);
	if (peer->ah)
		v->library.destroy_ah(peer->ah);
	forget(peer);
	return 0;
}
