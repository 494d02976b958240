/* SPDX-License-Identifier: Apache-2.0 */
/* Greetings: peers that do not answer, that say what they should not, that part and meet again. */
#include <stdlib.h>
#include <string.h>

#include "tests/transport/cases_verbs.h"

static void run_unanswered(const struct network *n)
{
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	uint32_t bytes = sizeof(address);
	struct transport_event event;
	struct transport *t;
	struct world w;

	setenv("TERN_VERBS_CONNECT_MS", "300", 1);
	world_begin(&w, n, 2, 8192);
	expect_ok(peer_open(&w, 0), "open");
	expect_ok(peer_open(&w, 1), "open");
	t = w.peers[1].transport;
	expect_ok(t->ops->address(t, address, &bytes), "address");
	peer_close(&w, 1);
	t = w.peers[0].transport;
	expect_ok(t->ops->connect(t, 1, address, bytes), "connect");
	event = take_event(&w, 0, EVENT_PEER_DOWN);
	expect(event.peer == 1 && event.error == TERN_ERR_PEER_DEAD, "peer %u, error %d",
		event.peer, event.error);
	expect_text(&event, "not answered for 300 ms");
	world_close(&w);
}

/* Peer 0 says to peer 1 what it should not: every field of a greeting in turn is changed by chance.
 */
static void forge(struct world *w, uint64_t *state)
{
	struct verbs *v = inside(w, 0);
	struct verbs_peer *peer = &v->peers[1];
	struct verbs_hello hello = {.magic = 0x6e726574u,
		.version = 1,
		.from = 0,
		.is_up = 1,
		.identity_from = v->identity,
		.identity_to = peer->address.identity,
		.session_from = peer->session,
		.session_to = peer->session_theirs,
		.mtu = 3,
		.window = 100};
	uint32_t at = draw(state, sizeof(hello) / 4),
		 length = draw(state, 8) ? sizeof(hello) : draw(state, sizeof(hello));
	struct ibv_sge sge = {(uintptr_t)v->greetings_out, length, v->pinned_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = UINT64_MAX,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	/* What tells a successor, or a new session, is for those who know the identities: they may
	 * do harm. */
	if (at * 4 == offsetof(struct verbs_hello, session_from) ||
		at * 4 == offsetof(struct verbs_hello, session_from) + 4)
		return;
	((uint32_t *)(void *)&hello)[at] =
		draw(state, 2) ? draw(state, UINT32_MAX) : draw(state, 4) - 2;
	memcpy(v->greetings_out, &hello, sizeof(hello));
	wr.wr.ud.ah = peer->ah;
	wr.wr.ud.remote_qpn = peer->address.qpn;
	wr.wr.ud.remote_qkey = peer->address.qkey;
	expect(ibv_post_send(v->greet_qp, &wr, &bad) == 0, "a datagram");
	v->greetings_posted++;
	while (v->greetings_done != v->greetings_posted)
		world_turn(w);
}

static void run_forged(const struct network *n)
{
	struct transport_event event;
	uint64_t state = 17;
	struct world w;

	world_open(&w, n, 2, 8192);
	expect_works(&w, 0, 1);
	for (uint32_t i = 0; i < scaled(n, 2000); i++) {
		forge(&w, &state);
		if (i % 50 == 0)
			expect_works(&w, i / 50 % 2, 1 - i / 50 % 2);
	}
	expect_works(&w, 1, 0);
	expect(!try_take(&w, 1, EVENT_PEER_DOWN, &event), "a forged greeting took a peer down: %s",
		event.text);
	world_close(&w);
}

void reconnect(struct world *w)
{
	for (uint32_t who = 0; who < 2; who++)
		expect_ok(
			w->peers[who].transport->ops->disconnect(w->peers[who].transport, 1 - who),
			"disconnect");
	for (uint32_t who = 0; who < 2; who++)
		world_connect(w, who, 1 - who);
}

static void take_message(struct world *w, uint32_t i)
{
	struct transport_event event = take_event(w, 1, EVENT_MESSAGE);

	expect(event.bytes == 4 && !memcmp(event.data, &i, 4), "another message than %u", i);
	free((void *)(uintptr_t)event.data);
}

/* Two ranks part and meet again while buffers of messages are out: each connection counts its own.
 */
static void run_renewed(const struct network *n)
{
	struct world w;

	world_open(&w, n, 2, 8192);
	for (uint32_t round = 0; round < 5; round++) {
		for (uint32_t i = 0; i < 15; i++)
			post_message(&w, 0, 1, &i, sizeof(i));
		for (uint64_t end = now_ms() + 50; now_ms() < end;)
			peer_poll(&w, 0);
		peer_poll(&w, 1); /* takes them all; their buffers go back at its next poll */
		reconnect(&w);
		for (uint32_t i = 0; i < 15; i++)
			take_message(&w, i);
		for (uint32_t i = 0; i < 60; i++) {
			post_message(&w, 0, 1, &i, sizeof(i));
			take_message(&w, i);
		}
		expect_works(&w, 0, 1);
		expect_works(&w, 1, 0);
	}
	world_close(&w);
}

/* Greetings that find no way out for a while: the wire is there later. */
static void run_wire_later(const struct network *n)
{
	struct world w;

	if (!n->other)
		skip_case("there is no link to take down");
	world_begin(&w, n, 2, 8192);
	expect_ok(peer_open(&w, 0), "open");
	expect_ok(peer_open(&w, 1), "open");
	world_connect(&w, 0, 1);
	world_connect(&w, 1, 0);
	shell("scripts/vm/wire.sh down");
	expect_silence(&w, 0, EVENT_PEER_DOWN, 300);
	shell("scripts/vm/wire.sh up");
	expect_works(&w, 0, 1);
	expect_works(&w, 1, 0);
	world_close(&w);
}

/* A rank that has begun anew is greeted by a peer that does not know it yet, from the connection
 * before: it waits for the peer's new one, so that the two do not chase each other. */
static void run_stale_greeting(const struct network *n)
{
	struct transport *t;
	struct world w;
	uint64_t end;

	world_open(&w, n, 2, 8192);
	expect_works(&w, 0, 1);
	expect_works(&w, 1, 0);
	t = w.peers[0].transport;
	expect_ok(t->ops->disconnect(t, 1), "disconnect");
	world_connect(&w, 0, 1);
	verbs_greet_say(inside(&w, 1), 0);
	for (end = now_ms() + 50; now_ms() < end;)
		peer_poll(&w, 0);
	expect(inside(&w, 0)->peers[1].state == VERBS_GREETING,
		"a greeting of the connection before was believed");
	expect_works(&w, 0, 1);
	expect_works(&w, 1, 0);
	expect(inside(&w, 0)->peers[1].session == inside(&w, 0)->next_session,
		"another connection was made than was asked for");
	world_close(&w);
}

/* Nobody polls between leave_statuses: connections that are given up do not pile up. */
static void run_storm(const struct network *n)
{
	struct transport_write write = {.peer = 1, .flags = WRITE_IMMEDIATE};
	struct world w;

	world_open(&w, n, 2, 8192);
	expect_works(&w, 0, 1);
	for (uint32_t i = 0; i < 60; i++) {
		w.peers[0].transport->ops->write(w.peers[0].transport, &write);
		reconnect(&w);
	}
	expect(inside(&w, 0)->nr_connections <= inside(&w, 0)->nr_lookup / 2 + 1, "%u connections",
		inside(&w, 0)->nr_connections);
	expect_works(&w, 0, 1);
	for (uint64_t end = now_ms() + CASE_WAIT_MS; inside(&w, 0)->nr_retired;) {
		expect(now_ms() < end, "%u connections were not given back",
			inside(&w, 0)->nr_retired);
		world_turn(&w);
	}
	expect(inside(&w, 0)->nr_under_way == 0, "%u requests are under way",
		inside(&w, 0)->nr_under_way);
	world_close(&w);
}

const struct transport_case verbs_greet_cases[] = {
	{.name = "unanswered", .run = run_unanswered, .only = &transport_verbs},
	{.name = "forged", .run = run_forged, .only = &transport_verbs},
	{.name = "wire_later", .run = run_wire_later, .only = &transport_verbs},
	{.name = "stale_greeting", .run = run_stale_greeting, .only = &transport_verbs},
	{.name = "renewed", .run = run_renewed, .only = &transport_verbs},
	{.name = "storm", .run = run_storm, .only = &transport_verbs},
	{.name = NULL},
};
