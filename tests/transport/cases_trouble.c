/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong, and what has to be refused. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/cases.h"

static int try_write(struct world *w, const struct transport_write *write)
{
	uint64_t end = now_ms() + CASE_WAIT_MS;
	int rc;

	while ((rc = w->peers[0].transport->ops->write(w->peers[0].transport, write)) ==
		TRANSPORT_AGAIN) {
		expect(now_ms() < end, "AGAIN for too long");
		world_turn(w);
	}
	return rc;
}

static void expect_refused(struct world *w, const struct transport_write *write, const char *what)
{
	int rc = try_write(w, write);

	expect(rc == TERN_ERR_INVALID, "%s was answered %d", what, rc);
	expect(*tern_last_error(), "%s: no cause", what);
}

/* A good write gets through, whatever happened before. */
static void expect_works(struct world *w)
{
	struct transport_write write = a_write(w, 0, 1, 0, 2048, 512);

	write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
	write.immediate = 4711;
	write.cookie = 4711;
	fill(w->peers[0].from, 512, 99);
	post(w, 0, &write);
	expect(take_event(w, 1, EVENT_IMMEDIATE).immediate == 4711, "another immediate");
	expect(take_event(w, 0, EVENT_WRITTEN).cookie == 4711, "another cookie");
	expect_filled(w->peers[1].to + 2048, 512, 99, "a good write after trouble");
}

static void run_refusals(const struct network *n)
{
	struct transport_write write;
	struct transport_key beyond;
	struct transport *t;
	struct world w;

	world_begin(&w, n, 3, 8192);
	expect_ok(peer_open(&w, 0), "open");
	expect_ok(peer_open(&w, 1), "open");
	world_connect(&w, 0, 1);
	world_connect(&w, 1, 0);
	expect_works(&w);
	write = a_write(&w, 0, 1, 0, w.bytes - 10, 11);
	expect_refused(&w, &write, "a write past the end of its target");
	write = a_write(&w, 0, 1, 0, UINT64_MAX - 5, 8);
	expect_refused(&w, &write, "a write at an offset near 2^64");
	write = a_write(&w, 0, 1, w.bytes - 10, 0, 11);
	expect_refused(&w, &write, "a write from past the end of its source");
	write = a_write(&w, 0, 1, 0, 0, 8);
	write.region = NULL;
	expect_refused(&w, &write, "a write from memory that is not registered");
	write = a_write(&w, 0, 1, 0, 0, 8);
	write.peer = 2;
	expect_refused(&w, &write, "a write to a peer that is not connected");
	write.peer = 3;
	expect_refused(&w, &write, "a write to a peer that is not");
	if (w.peers[0].info.inline_bytes < w.bytes) {
		write = a_write(&w, 0, 1, 0, 0, w.peers[0].info.inline_bytes + 1);
		write.flags = WRITE_INLINE;
		expect_refused(&w, &write, "an inline write over the limit");
	}
	if (w.peers[0].info.write_bytes < UINT64_MAX) {
		beyond = w.peers[1].to_key;
		beyond.bytes = UINT64_MAX;
		write = a_write(&w, 0, 1, 0, 0, w.peers[0].info.write_bytes + 1);
		write.key = &beyond;
		expect_refused(&w, &write, "a write over the limit");
	}
	t = w.peers[0].transport;
	expect(t->ops->send(t, 2, "x", 1) == TERN_ERR_INVALID,
		"a message to a peer that is not connected was not refused");
	expect(t->ops->connect(t, 3, "", 0) == TERN_ERR_INVALID,
		"a peer that cannot be was connected");
	expect(t->ops->connect(t, 2, "short", 5) < 0, "an address of 5 bytes was taken");
	expect_works(&w);
	world_close(&w);
}

static void run_bad_options(const struct network *n)
{
	struct transport_options options = {.provider = n->provider,
		.device = n->device,
		.self = 2,
		.nr_peers = 2,
		.depth = 16,
		.message_bytes = 64};
	struct transport *transport = NULL;
	struct transport_info info;
	int rc = n->ops->open(&options, &transport, &info);

	expect(rc == TERN_ERR_INVALID && !transport, "rank 2 of 2 was answered %d", rc);
	if (!n->provider)
		return;
	options.self = 0;
	options.provider = "carrier-pigeon";
	rc = n->ops->open(&options, &transport, &info);
	expect(rc == TERN_ERR_UNSUPPORTED && !transport &&
			strstr(tern_last_error(), "carrier-pigeon"),
		"an unknown provider was answered %d: %s", rc, tern_last_error());
	options.provider = n->provider;
	options.device = "nic-of-nowhere";
	rc = n->device ? n->ops->open(&options, &transport, &info) : TERN_ERR_UNSUPPORTED;
	expect(rc == TERN_ERR_UNSUPPORTED && !transport,
		"a device that is not there was answered %d", rc);
}

/* As the network is known to behave; what the target has is never touched. */
static void expect_bad_key(struct world *w, struct transport_write *write)
{
	struct transport_event event;
	int rc;

	write->flags = WRITE_SIGNALLED;
	write->cookie = 13;
	rc = try_write(w, write);
	switch (w->network->bad_key) {
	case KEY_REFUSED:
		expect(rc == TERN_ERR_INVALID, "a bad key was answered %d", rc);
		break;
	case KEY_SILENT:
		expect_ok(rc, "write");
		expect_silence(w, 0, EVENT_WRITTEN, 500);
		expect_silence(w, 0, EVENT_FAILED, 0);
		break;
	case KEY_FAILED:
		expect_ok(rc, "write");
		event = take_event(w, 0, EVENT_FAILED);
		expect(event.cookie == 13 && event.peer == 1, "cookie %llu of peer %u",
			(unsigned long long)event.cookie, event.peer);
		break;
	}
	expect(first_unpoisoned(w->peers[1].to, w->bytes) == w->bytes,
		"a write with a bad key has landed");
}

static void expect_works_after_bad_key(struct world *w)
{
	if (w->network->bad_key == KEY_SILENT)
		return;
	if (w->network->key_breaks) {
		expect(take_event(w, 0, EVENT_PEER_DOWN).peer == 1, "another peer is down");
		expect_ok(w->peers[0].transport->ops->disconnect(w->peers[0].transport, 1),
			"disconnect");
		world_connect(w, 0, 1);
	}
	expect_works(w);
}

static void run_bad_key(const struct network *n)
{
	struct transport_write write;
	struct transport_key key;
	struct world w;

	world_open(&w, n, 2, 8192);
	post(&w, 0, &(struct transport_write){.peer = 1, .flags = WRITE_IMMEDIATE});
	take_event(&w, 1, EVENT_IMMEDIATE);
	key = w.peers[1].to_key;
	key.key += 0x100000;
	write = a_write(&w, 0, 1, 0, 0, 700);
	write.key = &key;
	expect_bad_key(&w, &write);
	expect_works_after_bad_key(&w);
	world_close(&w);
}

static void run_deregistered(const struct network *n)
{
	struct transport_region *region;
	struct transport_write write;
	struct transport_key key;
	struct transport *t;
	uint8_t *memory = malloc(4096);
	struct world w;

	world_open(&w, n, 2, 8192);
	t = w.peers[1].transport;
	expect_ok(t->ops->reg(t, memory, 4096, &region, &key), "reg");
	poison(memory, 4096);
	fill(w.peers[0].from, 700, 3);
	write = a_write(&w, 0, 1, 0, 100, 700);
	write.key = &key;
	write.flags = WRITE_IMMEDIATE;
	post(&w, 0, &write);
	take_event(&w, 1, EVENT_IMMEDIATE);
	expect_only(memory, 4096, 100, 700, 3, "a write into registered memory");
	t->ops->dereg(t, region);
	poison(memory, 4096);
	expect_bad_key(&w, &write);
	expect(first_unpoisoned(memory, 4096) == 4096,
		"a write has landed in memory that is not registered any more");
	expect_works_after_bad_key(&w);
	world_close(&w);
	free(memory);
}

/* Regions come and go; none is mixed up with another. */
static void run_regions(const struct network *n)
{
	struct transport_region *regions[50];
	struct transport_key keys[50];
	static uint8_t memory[50][512];
	struct transport *t;
	struct world w;

	world_open(&w, n, 2, 8192);
	t = w.peers[1].transport;
	for (uint32_t i = 0; i < 50; i++)
		expect_ok(t->ops->reg(t, memory[i], 512, &regions[i], &keys[i]), "reg");
	for (uint32_t round = 0; round < (n->slow ? 1 : 4); round++) {
		for (uint32_t i = 0; i < 50; i++) {
			struct transport_write write = a_write(&w, 0, 1, i, 20, 300);

			if ((i + round) % 3 == 0) {
				t->ops->dereg(t, regions[i]);
				expect_ok(t->ops->reg(t, memory[i], 512, &regions[i], &keys[i]),
					"reg");
			}
			poison(memory, sizeof(memory));
			fill(w.peers[0].from + i, 300, i);
			write.key = &keys[i];
			write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
			post(&w, 0, &write);
			take_event(&w, 1, EVENT_IMMEDIATE);
			take_event(&w, 0, EVENT_WRITTEN);
			expect_only(memory[0], sizeof(memory), i * 512 + 20, 300, i,
				"a write into one of many regions");
		}
	}
	for (uint32_t i = 0; i < 50; i++)
		t->ops->dereg(t, regions[i]);
	world_close(&w);
}

/* A peer closes, a new one with its number takes its place. */
static void run_replaced(const struct network *n)
{
	struct world w;

	world_open(&w, n, 2, 8192);
	for (uint32_t i = 0; i < 3; i++) {
		struct transport *t = w.peers[0].transport;

		expect_works(&w);
		peer_close(&w, 1);
		for (uint64_t end = now_ms() + 50; now_ms() < end;)
			world_turn(&w);
		expect_ok(t->ops->disconnect(t, 1), "disconnect");
		expect(t->ops->send(t, 1, "x", 1) == TERN_ERR_INVALID,
			"a message to a peer that is disconnected was not refused");
		expect_ok(peer_open(&w, 1), "open");
		world_connect(&w, 0, 1);
		world_connect(&w, 1, 0);
	}
	expect_works(&w);
	world_close(&w);
}

/* A target that does nothing for a while is slow, not dead. */
static void run_stalled_target(const struct network *n)
{
	uint64_t bytes = 256 << 10, end = now_ms() + 1600;
	uint32_t posted = 0, nr = 0;
	struct transport_event event;
	struct world w;

	world_open(&w, n, 2, bytes);
	expect_works(&w);
	while (now_ms() < end) {
		struct transport_write write = a_write(&w, 0, 1, 0, 0, bytes);
		int rc;

		write.flags = WRITE_SIGNALLED | WRITE_IMMEDIATE;
		rc = w.peers[0].transport->ops->write(w.peers[0].transport, &write);
		expect_ok(rc, "a write to a target that is slow");
		posted += rc == 0;
		if (rc)
			peer_poll(&w, 0);
		expect(!try_take(&w, 0, EVENT_PEER_DOWN, &event),
			"a slow target was taken for dead: %s", event.text);
	}
	for (; nr < posted; nr++)
		take_event(&w, 1, EVENT_IMMEDIATE);
	while (nr-- > 0)
		take_event(&w, 0, EVENT_WRITTEN);
	expect_works(&w);
	world_close(&w);
}

static int count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr;
}

/* Open, write, close with writes under way, again and again: nothing is left behind. */
static void run_reopened(const struct network *n)
{
	uint32_t settled = 3, times = settled + 1 + scaled(n, 4);
	int before = 0, after;
	struct world w;

	for (uint32_t i = 0; i < times; i++) {
		if (i == settled)
			before = count_descriptors();
		world_open(&w, n, 2, 1 << 20);
		expect_works(&w);
		for (uint32_t j = 0; j < 20; j++) {
			struct transport_write write = a_write(&w, 0, 1, 0, 0, 10000 * j);

			write.flags = WRITE_SIGNALLED | WRITE_IMMEDIATE;
			if (w.peers[0].transport->ops->write(w.peers[0].transport, &write))
				break;
		}
		world_close(&w);
	}
	after = count_descriptors();
	expect(after <= before, "%d descriptors became %d", before, after);
}

/* Who can reach an endpoint needs nothing else than a key to write: so none follows from another,
 * or from the order of registering. */
static void run_secret_keys(const struct network *n)
{
	enum {
		nr = 16
	};
	struct transport_region *regions[2][nr];
	struct transport_key keys[2][nr];
	uint32_t nr_small = 0, nr_steps = 0;
	struct world w;

	world_open(&w, n, 2, 4096);
	for (uint32_t i = 0; i < 2 * nr; i++) {
		struct peer *p = &w.peers[i / nr];

		expect_ok(p->transport->ops->reg(p->transport, p->to, 4096,
				  &regions[i / nr][i % nr], &keys[i / nr][i % nr]),
			"reg");
	}
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t key = keys[0][i].key;

		nr_small += key >> 32 == 0;
		nr_steps += i > 1 && key - keys[0][i - 1].key == keys[0][1].key - keys[0][0].key;
		expect(key != keys[1][i].key, "both have key %llx", (unsigned long long)key);
	}
	expect(nr_small < 2 && nr_steps < 2, "keys follow one another: %llx, %llx, %llx",
		(unsigned long long)keys[0][0].key, (unsigned long long)keys[0][1].key,
		(unsigned long long)keys[0][2].key);
	for (uint32_t i = 0; i < 2 * nr; i++) {
		struct peer *p = &w.peers[i / nr];

		p->transport->ops->dereg(p->transport, regions[i / nr][i % nr]);
	}
	expect_works(&w);
	world_close(&w);
}

/* A message that does not carry the secret of the address it went to is from nobody that was told
 * that address. */
static void run_stranger(const struct network *n)
{
	enum {
		secret_at = 48
	};
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	struct transport_event event;
	uint32_t bytes = sizeof(address);
	struct transport *t;
	struct world w;

	world_open(&w, n, 3, 4096);
	t = w.peers[1].transport;
	expect_ok(t->ops->address(t, address, &bytes), "address");
	address[secret_at] ^= 1;
	t = w.peers[2].transport;
	expect_ok(t->ops->disconnect(t, 1), "disconnect");
	expect_ok(t->ops->connect(t, 1, address, bytes), "connect");
	for (int i = 0; i < 100; i++) /* more than there are buffers: they are given back */
		post_message(&w, 2, 1, "guess", 6);
	expect_silence(&w, 1, EVENT_MESSAGE, 300);
	post_message(&w, 0, 1, "friend", 7);
	event = take_event(&w, 1, EVENT_MESSAGE);
	expect(event.peer == 0 && event.bytes == 7, "%u bytes from %u", event.bytes, event.peer);
	free((void *)(uintptr_t)event.data);
	world_close(&w);
}

const struct transport_case trouble_cases[] = {
	{.name = "secret_keys", .run = run_secret_keys, .only = &transport_ofi},
	{.name = "stranger", .run = run_stranger, .only = &transport_ofi},
	{.name = "refusals", .run = run_refusals},
	{.name = "bad_options", .run = run_bad_options},
	{.name = "bad_key", .run = run_bad_key},
	{.name = "deregistered", .run = run_deregistered},
	{.name = "regions", .run = run_regions},
	{.name = "stalled_target", .run = run_stalled_target},
	{.name = "replaced", .run = run_replaced},
	{.name = "reopened", .run = run_reopened},
	{.name = NULL},
};
