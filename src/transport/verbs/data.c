/* SPDX-License-Identifier: Apache-2.0 */
/* Writes, messages, and the credits that keep queues from overrunning.
 *
 * Credits. A target's receives are shared by all its peers, and each is used by one immediate or
 * message and posted again when the target polls. It has told each sender how many it may have
 * outstanding (its window), and writes into the sender's memory how many it has taken, in steps. So
 * there is always a receive, no completion queue overruns, and a target that does not poll costs
 * its senders AGAIN, not a device's retries.
 *
 * One doorbell. Writes to a peer wait until a small one (inline: a signal, or something urgent), a
 * full chain or the next poll posts them together.
 *
 * Reports. A request that nobody wants to hear of is not reported, but one in a quarter of a
 * connection is all the same, so that its slots come back; and as soon as half of the depth that
 * all peers share is held by such requests, every further one is. */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "transport/write_check.h"

/* ---- posting --------------------------------------------------------------------------------- */

static void build_extended(struct ibv_qp_ex *qp, const struct ibv_send_wr *wr)
{
	qp->wr_id = wr->wr_id;
	qp->wr_flags = wr->send_flags; /* rxe looks for IBV_SEND_INLINE here */
	if (wr->opcode == IBV_WR_SEND)
		ibv_wr_send(qp);
	else if (wr->opcode == IBV_WR_RDMA_WRITE)
		ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	else
		ibv_wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
	if (wr->send_flags & IBV_SEND_INLINE)
		ibv_wr_set_inline_data(
			qp, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
	else
		ibv_wr_set_sge_list(qp, (size_t)wr->num_sge, wr->sg_list);
}

static int post_extended(struct verbs_connection *connection, const struct ibv_send_wr *wr)
{
	ibv_wr_start(connection->extended);
	for (; wr; wr = wr->next)
		build_extended(connection->extended, wr);
	return ibv_wr_complete(connection->extended);
}

/* A chain, one doorbell. Slots are accounted for, so what is refused is refused for good. */
static void post_chain(
	struct verbs *v, struct verbs_connection *connection, struct ibv_send_wr *first)
{
	struct ibv_send_wr *bad;
	char text[160];
	int rc = connection->extended ? post_extended(connection, first)
				      : ibv_post_send(connection->qp, first, &bad);

	if (!rc)
		return;
	snprintf(text, sizeof(text), "its queue pair refuses requests: %s", strerror(rc));
	verbs_peer_fails(v, connection->peer, TERN_ERR_PEER_DEAD, text);
}

void verbs_flush_connection(struct verbs *v, struct verbs_connection *connection)
{
	uint32_t nr = connection->nr_held;

	if (!nr)
		return;
	verbs_connection_unhold(v, connection);
	for (uint32_t i = 0; i < nr; i++)
		connection->held[i].next = i + 1 < nr ? &connection->held[i + 1] : NULL;
	connection->nr_held = 0;
	post_chain(v, connection, connection->held);
}

void verbs_flush(struct verbs *v)
{
	while (v->nr_held_connections)
		verbs_flush_connection(v, v->held_connections[v->nr_held_connections - 1]);
}

static bool has_room(const struct verbs_connection *connection)
{
	return connection->posted - connection->ended < connection->nr_slots;
}

static bool has_to_report(const struct verbs *v, const struct verbs_connection *connection,
	const struct verbs_slot *slot)
{
	return slot->signalled || slot->kind != VERBS_WRITE ||
	       connection->nr_unsignalled + 1 >= connection->nr_slots / 4 ||
	       v->nr_unsignalled + 1 >= v->depth / 2;
}

/* A new request's place; whether it will be reported. */
static uint32_t take_slot(struct verbs *v, struct verbs_connection *connection,
	const struct verbs_slot *slot, bool *reported)
{
	uint32_t number = connection->posted++;

	*reported = has_to_report(v, connection, slot);
	v->nr_unsignalled -= connection->nr_unsignalled;
	connection->nr_unsignalled = *reported ? 0 : connection->nr_unsignalled + 1;
	v->nr_unsignalled += connection->nr_unsignalled;
	connection->slots[number % connection->nr_slots] = *slot;
	return number;
}

/* ---- may it be sent -------------------------------------------------------------------------- */

static int check_peer(struct verbs *v, uint32_t p)
{
	struct verbs_peer *peer;

	if (p >= v->nr_peers || v->peers[p].state == VERBS_UNKNOWN)
		return fail(TERN_ERR_INVALID, "peer %u is not connected", p);
	peer = &v->peers[p];
	if (peer->broken && peer->state == VERBS_UP)
		verbs_peer_fails(v, p, TERN_ERR_PEER_DEAD, peer->broken);
	if (peer->state == VERBS_DOWN)
		return fail(TERN_ERR_PEER_DEAD, "peer %u: %s", p, peer->text);
	return peer->state == VERBS_UP ? 0 : TRANSPORT_AGAIN;
}

/* The processor reads what is inline; from a GPU's memory that is a write like others. */
static bool is_inline(const struct transport_write *w)
{
	return (w->flags & WRITE_INLINE) && !(w->region && w->region->on_device);
}

static int check_ends(const struct verbs *v, const struct transport_write *w)
{
	const struct transport_region *region = w->region;
	int rc = write_check_target(w);

	rc = rc ? rc : write_check_bytes(w, "a write", v->port.attr.max_msg_sz);
	if (rc)
		return rc;
	return is_inline(w) ? write_check_bytes(w, "an inline write", v->inline_bytes)
			    : write_check_source(w, region ? (void *)(uintptr_t)region->base : NULL,
				      region ? region->bytes : 0);
}

/* What the peer's device has written here: the count was stored before by the peer, and its
 * complement travels with it, so that a count of which only some bytes are there is not believed.
 * Acquire: what the peer took, it took before. */
static uint32_t read_credit(const uint32_t *count, const uint32_t *complement, uint32_t before)
{
	uint32_t now = __atomic_load_n(count, __ATOMIC_ACQUIRE);

	return __atomic_load_n(complement, __ATOMIC_ACQUIRE) == ~now ? now : before;
}

static bool may_send_immediate(struct verbs *v, struct verbs_peer *peer)
{
	const struct verbs_credit *credit = &v->credits_in[peer - v->peers];

	if (peer->immediates_out - peer->immediates_taken < peer->window)
		return true;
	peer->immediates_taken =
		read_credit(&credit->immediates, &credit->not_immediates, peer->immediates_taken);
	return peer->immediates_out - peer->immediates_taken < peer->window;
}

static bool may_send_message(struct verbs *v, struct verbs_peer *peer)
{
	const struct verbs_credit *credit = &v->credits_in[peer - v->peers];

	if (peer->messages_out - peer->messages_taken < VERBS_MESSAGES)
		return true;
	peer->messages_taken =
		read_credit(&credit->messages, &credit->not_messages, peer->messages_taken);
	return peer->messages_out - peer->messages_taken < VERBS_MESSAGES;
}

/* ---- writes ---------------------------------------------------------------------------------- */

static void build_write(const struct verbs_connection *connection, const struct transport_write *w,
	uint32_t number, bool reported, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){(uintptr_t)w->from, (uint32_t)w->bytes,
		w->bytes && w->region ? w->region->mr->lkey : 0};
	*wr = (struct ibv_send_wr){.wr_id = verbs_wr_id(connection, number),
		.sg_list = sge,
		.num_sge = w->bytes > 0,
		.opcode =
			w->flags & WRITE_IMMEDIATE ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.send_flags = reported ? IBV_SEND_SIGNALED : 0,
		.imm_data = htonl(w->immediate)};
	if (w->flags & WRITE_FENCE)
		wr->send_flags |= IBV_SEND_FENCE;
	if (!w->bytes)
		return;
	if (is_inline(w))
		wr->send_flags |= IBV_SEND_INLINE;
	wr->wr.rdma.remote_addr = w->key->address + w->offset;
	wr->wr.rdma.rkey = (uint32_t)w->key->key;
}

int verbs_write(struct transport *transport, const struct transport_write *w)
{
	struct verbs *v = verbs_of(transport);
	int rc = check_peer(v, w->peer);
	struct verbs_connection *connection;
	uint32_t number, at;
	bool reported;

	if (rc >= 0 && w->bytes) {
		int wrong = check_ends(v, w);

		rc = wrong ? wrong : rc;
	}
	if (rc)
		return rc;
	connection = v->peers[w->peer].connections[VERBS_DATA];
	if (v->nr_under_way == v->depth || !has_room(connection))
		return TRANSPORT_AGAIN;
	if ((w->flags & WRITE_IMMEDIATE) && !may_send_immediate(v, &v->peers[w->peer]))
		return TRANSPORT_AGAIN;
	number = take_slot(v, connection,
		&(struct verbs_slot){.cookie = w->cookie,
			.kind = VERBS_WRITE,
			.signalled = w->flags & WRITE_SIGNALLED},
		&reported);
	v->nr_under_way++;
	v->peers[w->peer].immediates_out += (w->flags & WRITE_IMMEDIATE) != 0;
	at = connection->nr_held++;
	build_write(
		connection, w, number, reported, &connection->held[at], &connection->held_sges[at]);
	if (!at)
		v->held_connections[v->nr_held_connections++] = connection;
	if ((w->flags & WRITE_INLINE) || connection->nr_held >= (uint32_t)v->settings.chain)
		verbs_flush_connection(v, connection);
	return 0;
}

/* ---- messages and credits -------------------------------------------------------------------- */

static void post_control(struct verbs *v, struct verbs_connection *connection,
	const struct verbs_slot *slot, struct ibv_send_wr *wr)
{
	bool reported;

	wr->wr_id = verbs_wr_id(connection, take_slot(v, connection, slot, &reported));
	wr->send_flags |= IBV_SEND_SIGNALED;
	post_chain(v, connection, wr);
}

int verbs_send(struct transport *transport, uint32_t p, const void *data, uint32_t bytes)
{
	struct verbs *v = verbs_of(transport);
	struct ibv_send_wr wr = {.num_sge = bytes > 0, .opcode = IBV_WR_SEND};
	struct verbs_slot slot = {.kind = VERBS_MESSAGE};
	struct verbs_peer *peer;
	struct ibv_sge sge;
	int rc = check_peer(v, p);

	if (rc >= 0 && bytes > v->message_bytes)
		return fail(TERN_ERR_INVALID, "a message of %u bytes; %u are possible", bytes,
			v->message_bytes);
	if (rc)
		return rc;
	peer = &v->peers[p];
	if (bytes > peer->message_bytes)
		return fail(TERN_ERR_INVALID, "a message of %u bytes; peer %u takes %u", bytes, p,
			peer->message_bytes);
	if (!v->nr_free_sends || !has_room(peer->connections[VERBS_CONTROL]) ||
		!may_send_message(v, peer))
		return TRANSPORT_AGAIN;
	slot.message = v->free_sends[--v->nr_free_sends];
	sge = (struct ibv_sge){
		(uintptr_t)v->messages_out + (uint64_t)slot.message * v->buffer_bytes, bytes,
		v->pinned_mr->lkey};
	wr.sg_list = &sge;
	if (bytes)
		memcpy(v->messages_out + (uint64_t)slot.message * v->buffer_bytes, data, bytes);
	peer->messages_out++;
	post_control(v, peer->connections[VERBS_CONTROL], &slot, &wr);
	return 0;
}

void verbs_credit_is_due(struct verbs *v, uint32_t p)
{
	struct verbs_peer *peer = &v->peers[p];

	if (peer->credit_due)
		return;
	if (peer->immediates_in - peer->immediates_told < v->window / 4 &&
		peer->messages_in - peer->messages_told < VERBS_MESSAGES / 4)
		return;
	peer->credit_due = true;
	v->nr_credits_due++;
}

static void return_credit(struct verbs *v, uint32_t p)
{
	struct verbs_peer *peer = &v->peers[p];
	struct verbs_credit *from = &v->credits_out[p];
	struct ibv_sge sge = {(uintptr_t)from, sizeof(*from), v->pinned_mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};

	*from = (struct verbs_credit){
		peer->immediates_in, peer->messages_in, ~peer->immediates_in, ~peer->messages_in};
	wr.wr.rdma.remote_addr = peer->credit_address;
	wr.wr.rdma.rkey = peer->credit_key;
	peer->immediates_told = peer->immediates_in;
	peer->messages_told = peer->messages_in;
	peer->credit_due = false;
	v->nr_credits_due--;
	peer->credit_under_way = true;
	post_control(v, peer->connections[VERBS_CONTROL],
		&(struct verbs_slot){.kind = VERBS_CREDIT}, &wr);
}

/* One at a time for each peer, as its source may not change under way. HALF: the peer's queue pairs
 * can receive, else nothing would have come from it. */
void verbs_return_credits(struct verbs *v)
{
	for (uint32_t p = 0; p < v->nr_peers && v->nr_credits_due; p++) {
		struct verbs_peer *peer = &v->peers[p];
		bool alive = peer->state == VERBS_UP || peer->state == VERBS_HALF;

		if (peer->credit_due && alive && !peer->broken && !peer->credit_under_way &&
			has_room(peer->connections[VERBS_CONTROL]))
			return_credit(v, p);
	}
}

/* ---- receives -------------------------------------------------------------------------------- */

/* An immediate's bytes go where its write says; the receive itself has none. */
int verbs_post_immediates(struct verbs *v, uint32_t nr)
{
	struct ibv_recv_wr wrs[32], *bad;

	for (uint32_t done = 0, some; done < nr; done += some) {
		int rc;

		some = nr - done < 32 ? nr - done : 32;
		for (uint32_t i = 0; i < some; i++)
			wrs[i] = (struct ibv_recv_wr){
				.wr_id = UINT64_MAX, .next = i + 1 < some ? &wrs[i + 1] : NULL};
		rc = ibv_post_srq_recv(v->immediate_srq, wrs, &bad);
		if (rc) {
			errno = rc;
			return fail_errno("verbs: posting %u receives", nr);
		}
	}
	return 0;
}

int verbs_post_buffers(struct verbs *v, const struct verbs_given *given, uint32_t nr)
{
	struct ibv_recv_wr wrs[32], *bad;
	struct ibv_sge sges[32];

	for (uint32_t done = 0, some; done < nr; done += some) {
		int rc;

		some = nr - done < 32 ? nr - done : 32;
		for (uint32_t i = 0; i < some; i++) {
			uint32_t number = given[done + i].number;

			sges[i] = (struct ibv_sge){
				(uintptr_t)v->messages_in + (uint64_t)number * v->buffer_bytes,
				v->buffer_bytes, v->pinned_mr->lkey};
			wrs[i] = (struct ibv_recv_wr){.wr_id = number,
				.sg_list = &sges[i],
				.num_sge = 1,
				.next = i + 1 < some ? &wrs[i + 1] : NULL};
		}
		rc = ibv_post_srq_recv(v->message_srq, wrs, &bad);
		if (rc) {
			errno = rc;
			return fail_errno("verbs: posting %u receive buffers", nr);
		}
	}
	return 0;
}
