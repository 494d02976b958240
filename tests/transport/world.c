/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/world.h"

#include <dirent.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

#define POISON 0xa5
#define IDLE_TURNS 200

/* ---- ends of a case -------------------------------------------------------------------------- */

void expect(bool ok, const char *format, ...)
{
	va_list args;

	if (ok)
		return;
	va_start(args, format);
	printf("# ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
	fflush(stdout);
	_exit(1);
}

void skip_case(const char *reason)
{
	printf("# SKIP %s\n", reason);
	fflush(stdout);
	_exit(77);
}

void expect_ok(int rc, const char *what)
{
	expect(rc >= 0, "%s: %s: %s", what, tern_strerror(rc), tern_last_error());
}

void remove_leftovers(int pid)
{
	DIR *dir = opendir("/dev/shm");
	char prefix[32];

	snprintf(prefix, sizeof(prefix), "%d:", pid);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (!strncmp(entry->d_name, prefix, strlen(prefix)))
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
}

/* ---- patterns -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
	return x ^ (x >> 32);
}

/* 8 bytes at a time, from one multiplication. */
static uint64_t word_at(uint64_t seed, uint64_t i)
{
	return (seed + i) * 0x9e3779b97f4a7c15u ^ seed;
}

void fill(void *to, uint64_t bytes, uint64_t seed)
{
	uint8_t *at = to;
	uint64_t start = mix(seed), word;

	for (uint64_t i = 0; i < bytes; i += 8) {
		word = word_at(start, i / 8);
		memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

uint64_t first_wrong(const void *where, uint64_t bytes, uint64_t seed)
{
	const uint8_t *at = where;
	uint64_t start = mix(seed), word;

	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t nr = bytes - i < 8 ? bytes - i : 8;

		word = word_at(start, i / 8);
		if (!memcmp(at + i, &word, nr))
			continue;
		for (uint64_t j = 0; j < nr; j++)
			if (at[i + j] != ((uint8_t *)&word)[j])
				return i + j;
	}
	return bytes;
}

void poison(void *to, uint64_t bytes)
{
	memset(to, POISON, bytes);
}

uint64_t first_unpoisoned(const void *where, uint64_t bytes)
{
	const uint8_t *at = where;

	if (!bytes || (at[0] == POISON && !memcmp(at, at + 1, bytes - 1)))
		return bytes;
	for (uint64_t i = 0; i < bytes; i++)
		if (at[i] != POISON)
			return i;
	return bytes;
}

void expect_filled(const void *at, uint64_t bytes, uint64_t seed, const char *what)
{
	uint64_t wrong = first_wrong(at, bytes, seed);

	expect(wrong == bytes, "%s: byte %llu of %llu is wrong", what, (unsigned long long)wrong,
		(unsigned long long)bytes);
}

void expect_only(const uint8_t *base, uint64_t room, uint64_t offset, uint64_t bytes, uint64_t seed,
	const char *what)
{
	uint64_t before = first_unpoisoned(base, offset),
		 after = first_unpoisoned(base + offset + bytes, room - offset - bytes);

	expect(before == offset, "%s: byte %llu was touched, before the write at %llu", what,
		(unsigned long long)before, (unsigned long long)offset);
	expect(after == room - offset - bytes, "%s: a byte was touched %llu behind the write", what,
		(unsigned long long)after);
	expect_filled(base + offset, bytes, seed, what);
}

uint64_t now_ms(void)
{
	return clock_ns() / 1000000;
}

uint32_t scaled(const struct network *n, uint32_t nr)
{
	const char *divisor = getenv("TERN_TEST_DIVISOR");
	uint32_t by = (divisor ? (uint32_t)atoi(divisor) : 1) * (n && n->slow ? 5 : 1);

	return by > 1 ? nr / by + 1 : nr;
}

uint32_t draw(uint64_t *state, uint32_t below)
{
	*state += 0x9e3779b97f4a7c15u;
	return (uint32_t)((mix(*state) >> 32) * below >> 32);
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static void *map_bytes(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	expect(at != MAP_FAILED, "no memory");
	return at;
}

void world_begin(struct world *w, const struct network *network, uint32_t nr_peers, uint64_t bytes)
{
	memset(w, 0, sizeof(*w));
	w->network = network;
	w->nr_peers = nr_peers;
	w->bytes = bytes;
	w->made = network->make ? network->make(network, nr_peers) : NULL;
}

int peer_open(struct world *w, uint32_t who)
{
	struct peer *peer = &w->peers[who];
	struct transport_options options = {
		.provider = who % 2 && w->network->other ? w->network->other : w->network->provider,
		.device = w->network->device,
		.network = w->made,
		.self = who,
		.nr_peers = w->nr_peers,
		.depth = WORLD_DEPTH,
		.message_bytes = WORLD_MESSAGE};
	int rc = w->network->ops->open(&options, &peer->transport, &peer->info);

	if (rc)
		return rc;
	peer->from = map_bytes(w->bytes);
	peer->to = map_bytes(w->bytes);
	poison(peer->to, w->bytes);
	expect_ok(peer->transport->ops->reg(peer->transport, peer->from, w->bytes,
			  &peer->from_region, &peer->from_key),
		"reg");
	expect_ok(peer->transport->ops->reg(
			  peer->transport, peer->to, w->bytes, &peer->to_region, &peer->to_key),
		"reg");
	return 0;
}

void peer_close(struct world *w, uint32_t who)
{
	struct peer *peer = &w->peers[who];

	if (!peer->transport)
		return;
	peer->transport->ops->dereg(peer->transport, peer->from_region);
	peer->transport->ops->dereg(peer->transport, peer->to_region);
	peer->transport->ops->close(peer->transport);
	munmap(peer->from, w->bytes);
	munmap(peer->to, w->bytes);
	for (int kind = 0; kind <= EVENT_PEER_DOWN; kind++) {
		struct queue *q = &peer->queues[kind];

		for (uint32_t i = q->first; i < q->nr; i++)
			free((void *)(uintptr_t)q->events[i].data);
		free(q->events);
	}
	memset(peer, 0, sizeof(*peer));
}

void world_connect(struct world *w, uint32_t who, uint32_t to)
{
	struct transport *t = w->peers[to].transport;
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	uint32_t bytes = sizeof(address);

	expect_ok(t->ops->address(t, address, &bytes), "address");
	expect(bytes <= TRANSPORT_ADDRESS_BYTES, "an address of %u bytes", bytes);
	t = w->peers[who].transport;
	expect_ok(t->ops->connect(t, to, address, bytes), "connect");
}

void world_open(struct world *w, const struct network *network, uint32_t nr_peers, uint64_t bytes)
{
	world_begin(w, network, nr_peers, bytes);
	for (uint32_t p = 0; p < nr_peers; p++)
		expect_ok(peer_open(w, p), "open");
	for (uint32_t p = 0; p < nr_peers; p++)
		for (uint32_t q = 0; q < nr_peers; q++)
			world_connect(w, p, q);
}

void world_close(struct world *w)
{
	for (uint32_t p = 0; p < w->nr_peers; p++)
		peer_close(w, p);
	if (w->network->unmake)
		w->network->unmake(w->made);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Good for the last few failures. */
static const char *keep_text(const char *text)
{
	static char texts[512][200];
	static uint32_t next;
	char *at = texts[next++ % 512];

	snprintf(at, sizeof(texts[0]), "%s", text);
	return at;
}

static void queue_event(struct queue *q, const struct transport_event *event)
{
	struct transport_event copy = *event;

	if (q->nr == q->room) {
		q->room = q->room ? 2 * q->room : 64;
		q->events = realloc(q->events, q->room * sizeof(*q->events));
		expect(q->events, "no memory");
	}
	copy.data = NULL;
	if (event->kind == EVENT_MESSAGE) {
		void *data = malloc(event->bytes + 1);

		expect(data, "no memory");
		memcpy(data, event->data, event->bytes);
		copy.data = data;
	}
	copy.text = event->text ? keep_text(event->text) : NULL;
	q->events[q->nr++] = copy;
}

static void check_event(struct world *w, uint32_t who, const struct transport_event *event)
{
	expect(event->kind >= EVENT_WRITTEN && event->kind <= EVENT_PEER_DOWN,
		"an event of kind %d", event->kind);
	if (event->kind == EVENT_IMMEDIATE && event->peer == UINT32_MAX)
		expect(!w->network->knows_source, "an immediate without its peer");
	else
		expect(event->peer < w->nr_peers, "peer %u: an event of peer %u", who, event->peer);
	if (event->kind == EVENT_FAILED || event->kind == EVENT_PEER_DOWN)
		expect(event->error < 0 && event->text && *event->text,
			"a failure without a cause");
	if (event->kind == EVENT_MESSAGE)
		expect(event->bytes <= WORLD_MESSAGE && (event->data || !event->bytes),
			"a message of %u bytes", event->bytes);
}

void peer_poll(struct world *w, uint32_t who)
{
	struct peer *peer = &w->peers[who];
	struct transport_event events[16];
	int nr = peer->transport->ops->poll(peer->transport, events, 16);

	expect_ok(nr, "poll");
	expect(nr <= 16, "%d events in room for 16", nr);
	w->nr_idle = nr ? 0 : w->nr_idle + 1;
	for (int i = 0; i < nr; i++) {
		check_event(w, who, &events[i]);
		if (w->on_event)
			w->on_event(w, who, &events[i]);
		else
			queue_event(&peer->queues[events[i].kind], &events[i]);
	}
}

void world_turn(struct world *w)
{
	for (uint32_t p = 0; p < w->nr_peers; p++)
		if (w->peers[p].transport)
			peer_poll(w, p);
	if (w->network->pump)
		w->network->pump(w->made);
	else if (w->nr_idle > IDLE_TURNS)
		sched_yield(); /* the other side may be waiting for this core */
}

bool try_take(struct world *w, uint32_t who, enum transport_event_kind kind,
	struct transport_event *event)
{
	struct queue *q = &w->peers[who].queues[kind];

	if (q->first == q->nr)
		return false;
	*event = q->events[q->first++];
	if (q->first == q->nr)
		q->first = q->nr = 0;
	return true;
}

static void complain(struct world *w, uint32_t who, enum transport_event_kind kind)
{
	static const char *const names[] = {"?", "EVENT_WRITTEN", "EVENT_IMMEDIATE",
		"EVENT_MESSAGE", "EVENT_FAILED", "EVENT_PEER_DOWN"};
	struct peer *peer = &w->peers[who];

	expect(false,
		"peer %u waited %d ms for %s; waiting events: %u written, %u immediates, %u "
		"messages, %u failed, %u down",
		who, CASE_WAIT_MS, names[kind], peer->queues[1].nr - peer->queues[1].first,
		peer->queues[2].nr - peer->queues[2].first,
		peer->queues[3].nr - peer->queues[3].first,
		peer->queues[4].nr - peer->queues[4].first,
		peer->queues[5].nr - peer->queues[5].first);
}

struct transport_event take_event(struct world *w, uint32_t who, enum transport_event_kind kind)
{
	struct transport_event event = {0};
	uint64_t end = now_ms() + CASE_WAIT_MS;

	while (!try_take(w, who, kind, &event)) {
		if (now_ms() > end)
			complain(w, who, kind);
		world_turn(w);
	}
	return event;
}

void expect_silence(struct world *w, uint32_t who, enum transport_event_kind kind, int ms)
{
	uint64_t end = now_ms() + (uint64_t)ms;
	struct transport_event event;

	while (now_ms() < end)
		world_turn(w);
	expect(!try_take(w, who, kind, &event), "peer %u: an event of kind %d that should not be",
		who, kind);
}

/* ---- posting --------------------------------------------------------------------------------- */

struct transport_write a_write(struct world *w, uint32_t who, uint32_t to, uint64_t from_at,
	uint64_t to_at, uint64_t bytes)
{
	return (struct transport_write){.peer = to,
		.region = w->peers[who].from_region,
		.from = w->peers[who].from + from_at,
		.key = &w->peers[to].to_key,
		.offset = to_at,
		.bytes = bytes};
}

void post(struct world *w, uint32_t who, const struct transport_write *write)
{
	struct transport *t = w->peers[who].transport;
	uint64_t end = now_ms() + CASE_WAIT_MS;
	int rc;

	while ((rc = t->ops->write(t, write)) == TRANSPORT_AGAIN) {
		expect(now_ms() < end, "a write of %llu bytes was answered AGAIN for %d ms",
			(unsigned long long)write->bytes, CASE_WAIT_MS);
		world_turn(w);
	}
	expect_ok(rc, "write");
}

void post_message(struct world *w, uint32_t who, uint32_t to, const void *data, uint32_t bytes)
{
	struct transport *t = w->peers[who].transport;
	uint64_t end = now_ms() + CASE_WAIT_MS;
	int rc;

	while ((rc = t->ops->send(t, to, data, bytes)) == TRANSPORT_AGAIN) {
		expect(now_ms() < end, "a message was answered AGAIN for %d ms", CASE_WAIT_MS);
		world_turn(w);
	}
	expect_ok(rc, "send");
}
