/* SPDX-License-Identifier: Apache-2.0 */
/* Posting: nothing here allocates, locks or waits. */
#include "transport/ofi/ofi.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/write_check.h"

/* 0, AGAIN while the greeting is under way, or negative. */
static int check_peer(const struct ofi *o, uint32_t p)
{
	if (p >= o->nr_peers || o->peers[p].state == OFI_UNKNOWN)
		return fail(TERN_ERR_INVALID, "peer %u is not connected", p);
	if (o->peers[p].state == OFI_DOWN)
		return fail(TERN_ERR_PEER_DEAD, "peer %u: %s", p, o->peers[p].text);
	return o->peers[p].state == OFI_UP ? 0 : TRANSPORT_AGAIN;
}

static int peer_is_gone(struct ofi *o, uint32_t p, const char *text)
{
	ofi_peer_fails(o, p, TERN_ERR_PEER_DEAD, text);
	return fail(TERN_ERR_PEER_DEAD, "peer %u: %s", p, o->peers[p].text);
}

/* Refused. Where queues are far from full, and the provider makes lost connections again without a
 * word, a connection that once stood has been lost; if it cannot be made again for a second the
 * peer is gone. So has one that a greeting was posted on, or failed with; but its peer may have
 * only begun, and not look yet. */
static int judge_refusal(struct ofi *o, uint32_t p)
{
	struct ofi_peer *peer = &o->peers[p];
	bool up = peer->state == OFI_UP;

	if (!o->facts->reconnects || (!up && !peer->nr_greetings && !peer->refused_ns) ||
		o->nr_under_way > o->info->tx_attr->size / 2)
		return TRANSPORT_AGAIN;
	if (!peer->refused_ns)
		peer->refused_ns = clock_ns();
	if (clock_ns() - peer->refused_ns < (up ? OFI_LOST_NS : OFI_LOST_AT_FIRST_NS))
		return TRANSPORT_AGAIN;
	return peer_is_gone(o, p, "its connection is lost and cannot be made again");
}

/* libfabric's answer to a post, as the contract has it. */
static int judge_post(struct ofi *o, struct ofi_op *op, int64_t rc, const char *what)
{
	if (!rc) {
		if (o->peers[op->peer].state == OFI_UP)
			o->peers[op->peer].refused_ns = 0;
		ofi_op_posted(o, op);
		return 0;
	}
	if (rc == -FI_EAGAIN)
		return judge_refusal(o, op->peer);
	return ofi_is_death(-rc) ? peer_is_gone(o, op->peer, o->library.strerror((int)-rc))
				 : ofi_fail(o, rc, what);
}

static int check_ends(const struct ofi *o, const struct transport_write *w)
{
	const struct transport_region *region = w->region;
	int rc = write_check_target(w);

	rc = rc ? rc : write_check_bytes(w, "a write", o->info->ep_attr->max_msg_size);
	if (rc)
		return rc;
	return w->flags & WRITE_INLINE
		       ? write_check_bytes(w, "an inline write", OFI_INLINE_BYTES)
		       : write_check_source(w, region ? (void *)(uintptr_t)region->base : NULL,
				 region ? region->bytes : 0);
}

static int check_write(const struct ofi *o, const struct transport_write *w)
{
	int rc = check_peer(o, w->peer);

	if (rc < 0)
		return rc;
	if ((w->flags & WRITE_FENCE) && !(o->facts->caps & TRANSPORT_FENCE))
		return fail(TERN_ERR_UNSUPPORTED, "libfabric's provider %s has no fence",
			o->info->fabric_attr->prov_name);
	if (w->bytes) {
		int wrong = check_ends(o, w);

		return wrong ? wrong : rc;
	}
	return rc;
}

static uint64_t flags_of(const struct transport_write *w)
{
	uint64_t flags = FI_COMPLETION;

	if (w->flags & WRITE_IMMEDIATE)
		flags |= FI_REMOTE_CQ_DATA;
	if (w->flags & WRITE_SIGNALLED)
		flags |= FI_DELIVERY_COMPLETE;
	if (w->flags & WRITE_FENCE)
		flags |= FI_FENCE;
	return flags;
}

int ofi_write(struct transport *transport, const struct transport_write *w)
{
	struct ofi *o = ofi_of(transport);
	bool own = !w->bytes || ((w->flags & WRITE_INLINE) && !(w->region && w->region->on_device));
	uint64_t bytes = w->bytes ? w->bytes : o->facts->least_bytes;
	struct fi_rma_iov to = {.len = bytes};
	struct iovec from = {.iov_len = bytes};
	struct fi_msg_rma msg = {.msg_iov = &from,
		.iov_count = 1,
		.rma_iov = &to,
		.rma_iov_count = 1,
		.data = w->flags & WRITE_IMMEDIATE ? w->immediate : 0};
	struct ofi_op *op;
	int rc = check_write(o, w);

	if (rc)
		return rc;
	op = ofi_op_take(o, OFI_WRITE, w->peer);
	if (!op)
		return TRANSPORT_AGAIN;
	if (own && w->bytes)
		memcpy(op->buffer, w->from, w->bytes);
	from.iov_base = own ? op->buffer : (void *)(uintptr_t)w->from;
	to.addr = w->bytes ? w->key->address + w->offset : o->peers[w->peer].landing.address;
	to.key = w->bytes ? w->key->key : o->peers[w->peer].landing.key;
	msg.desc = own ? &op->desc : (void **)(uintptr_t)&w->region->desc;
	msg.addr = o->peers[w->peer].address;
	msg.context = &op->context;
	op->cookie = w->cookie;
	op->signalled = w->flags & WRITE_SIGNALLED;
	rc = judge_post(o, op, fi_writemsg(o->ep, &msg, flags_of(w)), "writing");
	if (rc)
		ofi_op_return(o, op);
	return rc;
}

/* A greeting is a few bytes to the peer's landing, done when they are there: what was only sent may
 * have gone into a connection that is broken, and tcp;ofi_rxm does not tell for messages. */
int ofi_greet(struct ofi *o, uint32_t p)
{
	struct ofi_op *op =
		o->peers[p].nr_greetings < OFI_GREETINGS ? ofi_op_take(o, OFI_HELLO, p) : NULL;
	struct fi_rma_iov to = {.addr = o->peers[p].landing.address,
		.len = OFI_LANDING_BYTES,
		.key = o->peers[p].landing.key};
	struct iovec from = {.iov_len = OFI_LANDING_BYTES};
	struct fi_msg_rma msg = {.msg_iov = &from,
		.iov_count = 1,
		.addr = o->peers[p].address,
		.rma_iov = &to,
		.rma_iov_count = 1};
	int rc;

	if (!op)
		return TRANSPORT_AGAIN;
	from.iov_base = op->buffer;
	msg.desc = &op->desc;
	msg.context = &op->context;
	rc = judge_post(
		o, op, fi_writemsg(o->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE), "greeting");
	if (rc)
		ofi_op_return(o, op);
	return rc;
}

static int post_send(struct ofi *o, uint32_t p, const void *data, uint32_t bytes)
{
	struct ofi_header header = {.kind = OFI_SEND,
		.sender = o->self,
		.secret = o->peers[p].secret,
		.senders = o->secret};
	struct ofi_op *op =
		o->peers[p].nr_sends < OFI_PEER_SENDS ? ofi_op_take(o, OFI_SEND, p) : NULL;
	int rc;

	if (!op)
		return TRANSPORT_AGAIN;
	memcpy(op->buffer, &header, sizeof(header));
	if (bytes)
		memcpy(op->buffer + sizeof(header), data, bytes);
	rc = judge_post(o, op,
		fi_send(o->ep, op->buffer, sizeof(header) + bytes, op->desc, o->peers[p].address,
			&op->context),
		"sending");
	if (rc)
		ofi_op_return(o, op);
	return rc;
}

int ofi_send(struct transport *transport, uint32_t p, const void *data, uint32_t bytes)
{
	struct ofi *o = ofi_of(transport);
	int rc = check_peer(o, p);

	if (rc < 0)
		return rc;
	if (bytes > o->message_bytes)
		return fail(TERN_ERR_INVALID, "a message of %u bytes; the longest is %u", bytes,
			o->message_bytes);
	return rc ? rc : post_send(o, p, data, bytes);
}

/* What cannot be posted now is tried again on the next poll. */
void ofi_post_receives(struct ofi *o)
{
	while (o->to_post) {
		struct ofi_op *op = o->to_post;

		if (fi_recv(o->ep, op->buffer, o->receives.buffer_bytes, op->desc, FI_ADDR_UNSPEC,
			    &op->context))
			return;
		o->to_post = op->next;
		op->next = NULL;
	}
}
