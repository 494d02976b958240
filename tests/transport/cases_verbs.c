/* SPDX-License-Identifier: Apache-2.0 */
/* What only an RDMA device can do: its faults, each with its cause in words, and its settings. The
 * tests reach into the transport where a fault has no other way in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/cases_verbs.h"

struct verbs *inside(struct world *w, uint32_t who)
{
	return verbs_of(w->peers[who].transport);
}

void expect_works(struct world *w, uint32_t from, uint32_t to)
{
	struct transport_write write = a_write(w, from, to, 0, 2048, 512);

	write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
	write.immediate = write.cookie = 4711;
	fill(w->peers[from].from, 512, from);
	post(w, from, &write);
	expect(take_event(w, to, EVENT_IMMEDIATE).immediate == 4711, "another immediate");
	expect(take_event(w, from, EVENT_WRITTEN).cookie == 4711, "another cookie");
	expect_filled(w->peers[to].to + 2048, 512, from, "a good write");
}

void expect_text(const struct transport_event *event, const char *part)
{
	expect(strstr(event->text, part), "\"%s\" is not in \"%s\"", part, event->text);
}

static void expect_refused_as_dead(struct world *w)
{
	struct transport *t = w->peers[0].transport;
	struct transport_write write = a_write(w, 0, 1, 0, 0, 8);
	const struct verbs_peer *peer = &inside(w, 0)->peers[1];
	uint32_t posted = peer->connections[VERBS_DATA]->posted;

	expect(t->ops->write(t, &write) == TERN_ERR_PEER_DEAD,
		"a write to a peer that is down was not refused");
	expect(t->ops->send(t, 1, "x", 1) == TERN_ERR_PEER_DEAD,
		"a message to a peer that is down was not refused");
	expect(peer->connections[VERBS_DATA]->posted == posted,
		"something was posted to a dead queue pair");
}

/* A write with a wrong key, and three behind it on one event_count: the first is told why, the
 * others that they were flushed, then the peer is down; another peer goes on. */
static void run_flushed(const struct network *n)
{
	struct transport_event event;
	struct transport_key bad;
	struct world w;

	world_open(&w, n, 3, 8192);
	expect_works(&w, 0, 1);
	bad = w.peers[1].to_key;
	bad.key += 0x100000;
	for (uint32_t i = 0; i < 4; i++) {
		struct transport_write write = a_write(&w, 0, 1, 0, 0, 700);

		write.flags = WRITE_SIGNALLED;
		write.cookie = i;
		write.key = i ? &w.peers[1].to_key : &bad;
		expect(w.peers[0].transport->ops->write(w.peers[0].transport, &write) == 0,
			"write %u", i);
	}
	for (uint32_t i = 0; i < 4; i++) {
		event = take_event(&w, 0, EVENT_FAILED);
		expect(event.cookie == i && event.peer == 1, "cookie %llu of peer %u",
			(unsigned long long)event.cookie, event.peer);
		expect(event.error == (i ? TERN_ERR_PEER_DEAD : TERN_ERR_SYSTEM),
			"write %u: error %d", i, event.error);
		expect_text(&event, "remote access error");
		expect_text(&event, "vendor error");
		expect_text(&event, "request 1");
	}
	expect(take_event(&w, 0, EVENT_PEER_DOWN).peer == 1, "another peer is down");
	expect_refused_as_dead(&w);
	expect_works(&w, 0, 2);
	expect(first_unpoisoned(w.peers[1].to, 2048) == 2048,
		"a write behind a failed one has landed");
	world_close(&w);
}

/* The peer that was written to with a wrong key: its own next write to the culprit ends, one way or
 * the other. */
static void run_victim(const struct network *n)
{
	struct transport_write write;
	struct transport_key bad;
	struct world w;
	int rc = 0;

	world_open(&w, n, 3, 8192);
	expect_works(&w, 0, 1);
	bad = w.peers[1].to_key;
	bad.key += 0x100000;
	write = a_write(&w, 0, 1, 0, 0, 700);
	write.flags = WRITE_SIGNALLED;
	write.key = &bad;
	post(&w, 0, &write);
	take_event(&w, 0, EVENT_PEER_DOWN);
	write = a_write(&w, 1, 0, 0, 0, 700);
	write.flags = WRITE_SIGNALLED;
	rc = w.peers[1].transport->ops->write(w.peers[1].transport, &write);
	expect(rc == 0 || rc == TERN_ERR_PEER_DEAD, "the victim's write was answered %d", rc);
	expect(take_event(&w, 1, EVENT_PEER_DOWN).peer == 0, "another peer is down");
	expect_works(&w, 1, 2);
	world_close(&w);
}

static void run_retry_exceeded(const struct network *n)
{
	struct transport_event event;
	struct transport_write write;
	struct transport_key key;
	struct world w;

	setenv("TERN_VERBS_TIMEOUT", "12", 1);
	setenv("TERN_VERBS_RETRY", "2", 1);
	world_open(&w, n, 3, 8192);
	expect_works(&w, 0, 1);
	write = a_write(&w, 0, 1, 0, 0, 700);
	write.flags = WRITE_SIGNALLED;
	write.cookie = 5;
	key = w.peers[1].to_key;
	write.key = &key;
	peer_close(&w, 1);
	w.peers[1].to_key = key;
	post(&w, 0, &write);
	expect_works(&w, 0, 2);
	event = take_event(&w, 0, EVENT_FAILED);
	expect(event.cookie == 5 && event.error == TERN_ERR_PEER_DEAD, "cookie %llu, error %d",
		(unsigned long long)event.cookie, event.error);
	expect_text(&event, "retry counter exceeded");
	expect(take_event(&w, 0, EVENT_PEER_DOWN).peer == 1, "another peer is down");
	expect_refused_as_dead(&w);
	expect_works(&w, 2, 0);
	world_close(&w);
}

/* Credits keep this from happening; so they are forged, and the target does not poll. */
static void run_rnr_exhausted(const struct network *n)
{
	struct transport_write write = {.peer = 1, .flags = WRITE_IMMEDIATE | WRITE_SIGNALLED};
	struct transport_event event;
	uint64_t end = now_ms() + CASE_WAIT_MS;
	struct world w;

	setenv("TERN_VERBS_RNR_RETRY", "1", 1);
	world_open(&w, n, 2, 8192);
	expect_works(&w, 0, 1);
	inside(&w, 0)->peers[1].window = 1u << 30;
	while (!try_take(&w, 0, EVENT_FAILED, &event)) {
		expect(now_ms() < end, "a target without receives was never noticed");
		w.peers[0].transport->ops->write(w.peers[0].transport, &write);
		peer_poll(&w, 0);
	}
	expect_text(&event, "RNR retry counter exceeded");
	expect_text(&event, "no receive posted");
	world_close(&w);
}

/* All that credits allow is sent to a target that does not poll: not one of the device's retries is
 * needed. */
static void run_no_overrun(const struct network *n)
{
	struct transport_write write = {.flags = WRITE_IMMEDIATE};
	uint32_t posted[3] = {0}, came[3] = {0};
	struct world w;

	setenv("TERN_VERBS_RNR_RETRY", "0", 1);
	world_open(&w, n, 3, 8192);
	for (uint32_t from = 0; from < 3; from++)
		expect_works(&w, from, 2);
	for (uint64_t end = now_ms() + 500; now_ms() < end;)
		for (write.peer = 2, write.immediate = 0; write.immediate < 2; write.immediate++) {
			struct transport *t = w.peers[write.immediate].transport;
			int rc = t->ops->write(t, &write);

			expect_ok(rc, "write");
			posted[write.immediate] += rc == 0;
			if (rc == 0 || t->ops->send(t, 2, "x", 1) < 0)
				continue;
			peer_poll(&w, write.immediate);
		}
	expect(posted[0] >= 256 && posted[1] >= 256, "%u and %u writes were taken", posted[0],
		posted[1]);
	while (came[0] < posted[0] || came[1] < posted[1])
		came[take_event(&w, 2, EVENT_IMMEDIATE).immediate]++;
	expect_works(&w, 0, 2);
	world_close(&w);
}

void shell(const char *command)
{
	expect(system(command) == 0, "%s", command);
}

/* Peer 1 loses both others at once, and hears of each what was its. */
static void own_port_is_down(struct world *w)
{
	struct transport_event event;

	for (uint32_t to = 0; to < 3; to += 2) {
		struct transport_write write = a_write(w, 1, to, 0, 0, 700);

		write.flags = WRITE_SIGNALLED;
		write.cookie = to;
		post(w, 1, &write);
	}
	peer_poll(w, 1); /* posts them */
	for (uint64_t end = now_ms() + 100; now_ms() < end;)
		peer_poll(w, 0);
	for (uint32_t i = 0; i < 2; i++) {
		char own[16];

		event = take_event(w, 1, EVENT_FAILED);
		snprintf(own, sizeof(own), "to peer %u:", event.peer);
		expect(event.cookie == event.peer, "cookie %llu of peer %u",
			(unsigned long long)event.cookie, event.peer);
		expect_text(&event, own);
		expect_text(&event, "port is down");
		event = take_event(w, 1, EVENT_PEER_DOWN);
		snprintf(own, sizeof(own), "to peer %u:", event.peer);
		expect_text(&event, own);
	}
}

static struct transport_write told_write(struct world *w)
{
	struct transport_write write = a_write(w, 0, 1, 0, 0, 700);

	write.flags = WRITE_SIGNALLED | WRITE_IMMEDIATE;
	return write;
}

/* Retries last for 17 s and more: a busy host takes seconds for two commands. */
static void port_is_down_briefly(const struct network *n)
{
	struct transport_write write;
	struct world w;

	setenv("TERN_VERBS_TIMEOUT", "19", 1);
	world_open(&w, n, 3, 8192);
	expect_works(&w, 0, 1);
	write = told_write(&w);
	shell("scripts/vm/wire.sh down"); /* the wire is pulled: rxe1 loses its carrier */
	post(&w, 0, &write);
	expect_silence(&w, 0, EVENT_WRITTEN, 200);
	shell("scripts/vm/wire.sh up");
	take_event(&w, 1, EVENT_IMMEDIATE);
	take_event(&w, 0, EVENT_WRITTEN);
	expect_works(&w, 1, 0);
	world_close(&w);
}

/* Short enough for the device's retries, a port that goes down and up is not noticed; longer, and
 * the cause says what it was. Both ends are told, a peer that is not behind the wire goes on, and
 * when the wire is there again so is the connection, if both want it. */
static void run_port_down(const struct network *n)
{
	struct transport_write write;
	struct transport_event event;
	struct world w;

	if (!n->other)
		skip_case("there is no link to take down");
	port_is_down_briefly(n);
	setenv("TERN_VERBS_TIMEOUT", "16", 1);
	world_open(&w, n, 3, 8192);
	expect_works(&w, 0, 1);
	write = told_write(&w);
	shell("scripts/vm/wire.sh down");
	post(&w, 0, &write);
	expect_works(&w, 0, 2);
	event = take_event(&w, 0, EVENT_FAILED);
	expect_text(&event, "retry counter exceeded");
	expect_text(&event, "port is down");
	take_event(&w, 0, EVENT_PEER_DOWN);
	expect_works(&w, 2, 0);
	own_port_is_down(&w);
	shell("scripts/vm/wire.sh up");
	reconnect(&w);
	expect_works(&w, 0, 1);
	expect_works(&w, 1, 0);
	world_close(&w);
}

/* Nobody wants to hear of any of them: their places come back all the same, however many peers
 * share them. */
static void run_unsignalled(const struct network *n)
{
	struct transport_write write;
	struct world w;

	world_open(&w, n, MAX_PEERS, 8192);
	for (uint32_t i = 0; i < 8 * WORLD_DEPTH; i++) {
		write = a_write(&w, 0, i % MAX_PEERS, 0, 0, 64);
		post(&w, 0, &write);
	}
	for (uint32_t to = 0; to < MAX_PEERS; to++)
		expect_works(&w, 0, to);
	world_close(&w);
}

static void expect_open(const struct network *n, const char *device, int expected)
{
	struct transport_options options = {
		.device = device, .nr_peers = 2, .depth = 16, .message_bytes = 64};
	struct transport *t = NULL;
	struct transport_info info;
	int rc = n->ops->open(&options, &t, &info);

	expect(rc == expected, "device %s was answered %d: %s", device, rc,
		rc ? tern_last_error() : "");
	if (t)
		t->ops->close(t);
}

static void expect_setting(
	const struct network *n, const char *name, const char *value, int expected)
{
	setenv(name, value, 1);
	expect_open(n, n->provider, expected);
	unsetenv(name);
}

static void run_settings(const struct network *n)
{
	static const char *const bad[][2] = {{"TERN_VERBS_MTU", "1000"}, {"TERN_VERBS_MTU", "lots"},
		{"TERN_VERBS_TIMEOUT", "32"}, {"TERN_VERBS_RETRY", "-1"},
		{"TERN_VERBS_SERVICE_LEVEL", "16"}, {"TERN_VERBS_TRAFFIC_CLASS", "256"},
		{"TERN_VERBS_POST", "fast"}, {"TERN_VERBS_CHAIN", "0"},
		{"TERN_VERBS_GID_INDEX", "1x"}, {"TERN_VERBS_GID_INDEX", "256"}};
	static const char *const good[][2] = {{"TERN_VERBS_MTU", "256"},
		{"TERN_VERBS_TRAFFIC_CLASS", "106"}, {"TERN_VERBS_SERVICE_LEVEL", "3"},
		{"TERN_VERBS_POST", "classic"}, {"TERN_VERBS_POST", "extended"},
		{"TERN_VERBS_PORT", "1"}, {"TERN_VERBS_PKEY_INDEX", "0"}};

	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_setting(n, bad[i][0], bad[i][1], TERN_ERR_INVALID);
	for (uint32_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		expect_setting(n, good[i][0], good[i][1], 0);
	expect_setting(n, "TERN_VERBS_GID_INDEX", "200", TERN_ERR_UNSUPPORTED);
	expect_setting(n, "TERN_VERBS_PORT", "9", TERN_ERR_UNSUPPORTED);
	expect_open(n, "127.0.0.1", 0);
	expect_open(n, "lo", 0);
	expect_open(n, "10.77.0.2", 0);
	expect_open(n, NULL, 0);
	expect_open(n, "10.99.0.1", TERN_ERR_UNSUPPORTED);
	expect_open(n, "rxe0:2", TERN_ERR_UNSUPPORTED);
}

/* With relaxed ordering nothing is promised of different writes; each one's immediate still stands
 * behind its bytes. */
static void run_relaxed(const struct network *n)
{
	struct world w;

	setenv("TERN_VERBS_RELAXED_ORDERING", "1", 1);
	world_open(&w, n, 2, 8192);
	expect(!(w.peers[0].info.caps & (TRANSPORT_ORDERED | TRANSPORT_FENCE)), "caps are %u",
		w.peers[0].info.caps);
	expect_works(&w, 0, 1);
	expect_works(&w, 1, 0);
	world_close(&w);
}

const struct transport_case verbs_cases[] = {
	{.name = "flushed", .run = run_flushed, .only = &transport_verbs},
	{.name = "victim", .run = run_victim, .only = &transport_verbs},
	{.name = "retry_exceeded", .run = run_retry_exceeded, .only = &transport_verbs},
	{.name = "rnr_exhausted", .run = run_rnr_exhausted, .only = &transport_verbs},
	{.name = "no_overrun", .run = run_no_overrun, .only = &transport_verbs},
	{.name = "unsignalled", .run = run_unsignalled, .only = &transport_verbs},
	{.name = "port_down", .run = run_port_down, .only = &transport_verbs},
	{.name = "settings", .run = run_settings, .only = &transport_verbs},
	{.name = "relaxed", .run = run_relaxed, .only = &transport_verbs},
	{.name = "device_memory", .run = run_device_memory, .only = &transport_verbs},
	{.name = NULL},
};
