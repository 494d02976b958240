/* SPDX-License-Identifier: Apache-2.0 */
/* Completions become events here. */
#include "transport/ofi/ofi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define BATCH 32
#define LOOK_NS 250000000u
#define LOOK_POLLS 64 /* the clock is read once in so many polls */

/* ---- greetings ------------------------------------------------------------------------------- */

static void post_greetings(struct ofi *o)
{
	for (uint32_t p = 0; p < o->nr_peers; p++)
		if (o->peers[p].state == OFI_GREETING && !o->peers[p].greeted) {
			int rc = ofi_greet(o, p);

			o->peers[p].greeted = rc == 0;
			if (rc < 0)
				ofi_peer_fails(o, p, rc, tern_last_error());
		}
}

static void greeting_is_out(struct ofi *o, struct ofi_op *op)
{
	if (op->told || o->peers[op->peer].state != OFI_GREETING)
		return;
	o->peers[op->peer].state = OFI_UP;
	o->peers[op->peer].refused_ns = 0;
	o->nr_greeting--;
}

/* A greeting that meets the remains of an earlier connection to the same address fails with them;
 * after some, one makes a new connection. */
static bool greet_again(struct ofi *o, const struct ofi_op *op)
{
	struct ofi_peer *peer = &o->peers[op->peer];

	if (op->kind != OFI_HELLO || peer->state != OFI_GREETING)
		return false;
	if (!peer->refused_ns)
		peer->refused_ns = clock_ns();
	if (clock_ns() - peer->refused_ns > OFI_LOST_NS)
		return false;
	peer->greeted = false;
	return true;
}

/* A peer for which nothing completes gets another greeting: where its connection is gone and the
 * provider keeps that to itself, the greeting cannot be posted (see judge_post). The longer it is
 * silent with a connection that takes them, the rarer they become: eight last for a minute. */
static void look_after_peers(struct ofi *o)
{
	uint64_t now;

	if (++o->nr_polls % LOOK_POLLS)
		return;
	now = clock_ns();
	if (now - o->looked_ns < LOOK_NS)
		return;
	o->looked_ns = now;
	for (uint32_t p = 0; p < o->nr_peers; p++) {
		struct ofi_peer *peer = &o->peers[p];
		bool is_met =
			peer->state == OFI_UP || (peer->state == OFI_GREETING && peer->greeted);

		if (is_met && peer->nr_under_way && !peer->moved &&
			now - peer->greeted_ns >= (uint64_t)LOOK_NS << peer->nr_greetings &&
			!ofi_greet(o, p))
			peer->greeted_ns = now;
		peer->moved = false;
	}
}

/* ---- completions ----------------------------------------------------------------------------- */

static void repost_later(struct ofi *o, struct ofi_op *op)
{
	op->next = o->to_post;
	o->to_post = op;
}

static bool is_of_sender(const struct ofi *o, const struct ofi_header *header)
{
	const struct ofi_peer *peer = &o->peers[header->sender];

	return peer->state == OFI_UNKNOWN || peer->secret == header->senders;
}

/* The number of events: 1, or 0 for what no rank of ours can have sent. */
static int message_arrived(
	struct ofi *o, struct ofi_op *op, uint64_t bytes, struct transport_event *event)
{
	struct ofi_header header = {0};

	repost_later(o, op); /* on the next poll */
	if (bytes >= sizeof(header))
		memcpy(&header, op->buffer, sizeof(header));
	if (header.kind != OFI_SEND || header.secret != o->secret || header.sender >= o->nr_peers ||
		bytes - sizeof(header) > o->message_bytes || !is_of_sender(o, &header))
		return 0;
	*event = (struct transport_event){.kind = EVENT_MESSAGE,
		.peer = header.sender,
		.data = op->buffer + sizeof(header),
		.bytes = (uint32_t)(bytes - sizeof(header))};
	return 1;
}

static int operation_done(struct ofi *o, struct ofi_op *op, struct transport_event *event)
{
	bool tell = op->kind == OFI_WRITE && op->signalled && !op->told;

	if (tell)
		*event = (struct transport_event){
			.kind = EVENT_WRITTEN, .peer = op->peer, .cookie = op->cookie};
	if (op->kind == OFI_HELLO)
		greeting_is_out(o, op);
	ofi_op_ended(o, op);
	return tell;
}

/* FI_REMOTE_WRITE tells an immediate from a completion of our own: sockets sets FI_REMOTE_CQ_DATA
 * on both. */
static int entry_to_event(
	struct ofi *o, const struct fi_cq_data_entry *entry, struct transport_event *event)
{
	if (entry->flags & FI_REMOTE_WRITE) {
		if (!(entry->flags & FI_REMOTE_CQ_DATA))
			return 0;
		*event = (struct transport_event){.kind = EVENT_IMMEDIATE,
			.peer = UINT32_MAX,
			.immediate = (uint32_t)entry->data};
		return 1;
	}
	if (!entry->op_context)
		return 0;
	if (entry->flags & FI_RECV)
		return message_arrived(o, entry->op_context, entry->len, event);
	return operation_done(o, entry->op_context, event);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void describe(struct ofi *o, const struct fi_cq_err_entry *err)
{
	char cause[96] = "";
	const char *text =
		fi_cq_strerror(o->cq, err->prov_errno, err->err_data, cause, sizeof(cause));

	snprintf(o->text, sizeof(o->text), "%s (libfabric %s error %d%s%s)",
		o->library.strerror(err->err), o->info->fabric_attr->prov_name, err->err,
		text && *text ? ": " : "", text ? text : "");
}

/* A write that failed and was not signalled leaves a hole that nobody would hear of: then the peer
 * counts as gone. */
static int operation_failed(struct ofi *o, struct ofi_op *op, const struct fi_cq_err_entry *err,
	struct transport_event *event)
{
	/* tcp cancels what waits for a connection that is gone, and says so in the provider's own
	 * number alone */
	bool death = ofi_is_death(err->err) ||
		     (err->err == FI_ECANCELED && ofi_is_death(llabs((long long)err->prov_errno)));
	bool tell = op->kind == OFI_WRITE && op->signalled && !op->told;
	int error = death ? TERN_ERR_PEER_DEAD : TERN_ERR_SYSTEM;

	describe(o, err);
	if (tell)
		*event = (struct transport_event){.kind = EVENT_FAILED,
			.peer = op->peer,
			.cookie = op->cookie,
			.error = error,
			.text = o->text};
	if (!op->told && (death || !tell) && !greet_again(o, op))
		ofi_peer_fails(o, op->peer, error, o->text);
	ofi_op_ended(o, op);
	return tell;
}

/* 1 or 0 events. */
static int take_failure(struct ofi *o, struct transport_event *event)
{
	struct fi_cq_err_entry err = {0};
	struct ofi_op *op;

	if (fi_cq_readerr(o->cq, &err, 0) <= 0)
		return 0;
	op = err.op_context;
	if (!op || (err.flags & FI_REMOTE_WRITE))
		return 0;
	if (op->kind != OFI_RECEIVE)
		return operation_failed(o, op, &err, event);
	repost_later(o, op);
	return 0;
}

static int fail_under_way(struct ofi *o, uint32_t p, struct transport_event *events, int max)
{
	struct ofi_peer *peer = &o->peers[p];
	int nr = 0;

	for (struct ofi_slab *slab = o->writes.slabs; slab; slab = slab->next)
		for (uint32_t i = 0; i < slab->nr_ops && nr < max; i++) {
			struct ofi_op *op = &slab->ops[i];

			if (!op->busy || op->peer != p || op->told)
				continue;
			op->told = true;
			if (op->signalled)
				events[nr++] = (struct transport_event){.kind = EVENT_FAILED,
					.peer = p,
					.cookie = op->cookie,
					.error = peer->error,
					.text = peer->text};
		}
	return nr;
}

/* First all its writes, then the peer itself. */
static int report_down(struct ofi *o, struct transport_event *events, int max)
{
	int nr = 0;

	for (uint32_t p = 0; p < o->nr_peers && nr < max; p++) {
		struct ofi_peer *peer = &o->peers[p];

		if (peer->state != OFI_DOWN || peer->reported)
			continue;
		nr += fail_under_way(o, p, events + nr, max - nr);
		if (nr == max)
			break;
		peer->reported = true;
		o->nr_down--;
		events[nr++] = (struct transport_event){.kind = EVENT_PEER_DOWN,
			.peer = p,
			.error = peer->error,
			.text = peer->text};
	}
	return nr;
}

/* ---- polling --------------------------------------------------------------------------------- */

/* One read of the queue, and so one round of the provider's progress: the number of events, or a
 * negative code. `more`: the queue may have more. */
static int read_queue(struct ofi *o, struct transport_event *events, int max, bool *more)
{
	struct fi_cq_data_entry entries[BATCH];
	int64_t got = fi_cq_read(o->cq, entries, (size_t)(max < BATCH ? max : BATCH));
	int nr = 0;

	*more = got > 0 || got == -FI_EAVAIL;
	o->base.moved = o->base.moved || got > 0;
	if (got == -FI_EAVAIL)
		return take_failure(o, events);
	if (got < 0)
		return got == -FI_EAGAIN || got == -FI_EINTR
			       ? 0
			       : ofi_fail(o, got, "reading the completion queue");
	for (int64_t i = 0; i < got; i++)
		nr += entry_to_event(o, &entries[i], events + nr);
	return nr;
}

int ofi_poll(struct transport *transport, struct transport_event *events, int max)
{
	struct ofi *o = ofi_of(transport);
	bool more = true;
	int nr = 0;

	transport->moved = false;
	if (o->to_post)
		ofi_post_receives(o);
	if (o->nr_greeting)
		post_greetings(o);
	if (o->facts->reconnects)
		look_after_peers(o);
	for (int rounds = 0; more && nr < max && rounds < 4; rounds++) {
		int got = read_queue(o, events + nr, max - nr, &more);

		if (got < 0)
			return nr ? nr : got;
		nr += got;
	}
	return nr + (o->nr_down ? report_down(o, events + nr, max - nr) : 0);
}
