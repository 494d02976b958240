/* SPDX-License-Identifier: Apache-2.0 */
/* What goes well: bytes arrive, whole, once, and nowhere else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/transport/cases.h"

#define EDGE 64 /* poison on both sides of what is written */

/* More than the transport takes at once goes as the engine would post it: in order, the last piece
 * with everything. */
static void post_in_pieces(struct world *w, const struct transport_write *whole)
{
	uint64_t most = w->peers[0].info.write_bytes;
	struct transport_write piece = *whole;

	expect(whole->bytes <= most || (w->peers[0].info.caps & TRANSPORT_ORDERED),
		"%llu bytes are more than a write takes, and there is no order",
		(unsigned long long)whole->bytes);
	for (; piece.bytes > most; piece.bytes -= most) {
		struct transport_write part = piece;

		part.bytes = most;
		part.flags = 0;
		post(w, 0, &part);
		piece.from = (const uint8_t *)piece.from + most;
		piece.offset += most;
	}
	post(w, 0, &piece);
}

/* One write with immediate and completion, looked at on both sides. */
static void one_write(
	struct world *w, uint64_t from_at, uint64_t to_at, uint64_t bytes, uint32_t immediate)
{
	struct transport_write write = a_write(w, 0, 1, from_at, to_at, bytes);
	struct transport_event event;
	uint8_t *to = w->peers[1].to;

	write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
	write.immediate = immediate;
	write.cookie = 0xc00c1e00000000 + immediate;
	fill(w->peers[0].from + from_at, bytes, immediate);
	poison(to + to_at - (to_at < EDGE ? to_at : EDGE), bytes + 2 * EDGE);
	post_in_pieces(w, &write);
	event = take_event(w, 1, EVENT_IMMEDIATE);
	expect(event.immediate == immediate, "immediate %x arrived as %x", immediate,
		event.immediate);
	expect(event.peer == 0 || event.peer == UINT32_MAX, "from peer %u", event.peer);
	expect_only(to + to_at - (to_at < EDGE ? to_at : EDGE),
		bytes + EDGE + (to_at < EDGE ? to_at : EDGE), to_at < EDGE ? to_at : EDGE, bytes,
		immediate, "a write");
	event = take_event(w, 0, EVENT_WRITTEN);
	expect(event.cookie == write.cookie && event.peer == 1, "cookie %llx of peer %u",
		(unsigned long long)event.cookie, event.peer);
}

static void run_info(const struct network *n)
{
	struct transport_info *info;
	struct world w;

	world_open(&w, n, 2, 4096);
	info = &w.peers[0].info;
	expect(!strcmp(info->name, n->ops->name) && info->provider[0],
		"name \"%s\", provider \"%s\"", info->name, info->provider);
	expect(info->caps == n->caps, "caps are %u, known are %u", info->caps, n->caps);
	expect(info->depth >= 64 && info->message_bytes >= WORLD_MESSAGE &&
			info->write_bytes >= 1 << 20,
		"depth %u, messages %u, writes %llu", info->depth, info->message_bytes,
		(unsigned long long)info->write_bytes);
	expect(info->inline_bytes >= 8, "inline %u", info->inline_bytes);
	world_close(&w);
}

static void run_sizes(const struct network *n)
{
	static const uint64_t sizes[] = {0, 1, 2, 7, 8, 63, 64, 65, 255, 256, 257, 1023, 1256, 1257,
		4095, 4096, 4097, 7168, 16384, 16385, 65536, 65537, 262144, 1 << 20, (1 << 20) + 1,
		8 << 20, 64 << 20};
	struct world w;

	world_open(&w, n, 2, MOST_BYTES + 4096);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		one_write(&w, 1024, 1024, sizes[i], i + 1);
	world_close(&w);
}

static void run_unaligned(const struct network *n)
{
	uint64_t state = 1;
	struct world w;

	world_open(&w, n, 2, 1 << 20);
	for (uint32_t i = 0; i < scaled(n, 300); i++)
		one_write(&w, draw(&state, 4096), draw(&state, 4096),
			draw(&state, i % 10 ? 600 : 70000), i);
	world_close(&w);
}

static void run_immediates(const struct network *n)
{
	static const uint32_t values[] = {
		0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, 0x00ff00ff, 0xdeadbeef};
	struct transport_event event;
	struct world w;

	world_open(&w, n, 2, 4096);
	for (uint32_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		struct transport_write alone = {
			.peer = 1, .flags = WRITE_IMMEDIATE, .immediate = values[i]};

		one_write(&w, 1024, 1024, 8, values[i]);
		post(&w, 0, &alone); /* no bytes, no region, no key */
		event = take_event(&w, 1, EVENT_IMMEDIATE);
		expect(event.immediate == values[i], "immediate %x arrived as %x", values[i],
			event.immediate);
	}
	expect(!try_take(&w, 0, EVENT_WRITTEN, &event),
		"a completion of a write that was not signalled");
	world_close(&w);
}

static void run_self(const struct network *n)
{
	struct world w;

	world_open(&w, n, 2, 1 << 20);
	for (uint32_t i = 0; i < 40; i++) {
		uint64_t bytes = i % 4 ? i * 100 : i * 10000;
		struct transport_write write = a_write(&w, 1, 1, i, 2 * i, bytes);
		struct transport_event event;

		write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
		write.immediate = i;
		fill(w.peers[1].from + i, bytes, i);
		post(&w, 1, &write);
		event = take_event(&w, 1, EVENT_IMMEDIATE);
		expect(event.immediate == i, "immediate %u", event.immediate);
		expect_filled(w.peers[1].to + 2 * i, bytes, i, "a write to itself");
		take_event(&w, 1, EVENT_WRITTEN);
		post_message(&w, 1, 1, &i, sizeof(i));
		event = take_event(&w, 1, EVENT_MESSAGE);
		expect(event.bytes == 4 && event.peer == 1 && !memcmp(event.data, &i, 4),
			"a message to itself");
		free((void *)(uintptr_t)event.data);
	}
	world_close(&w);
}

/* A message of n bytes goes there and comes back; then many without waiting. */
static void run_messages(const struct network *n)
{
	static const uint32_t sizes[] = {0, 1, 8, 63, 64, 100, 255, 256, 1000, WORLD_MESSAGE};
	uint8_t data[WORLD_MESSAGE + 1];
	struct transport_event event;
	struct world w;
	int rc;

	world_open(&w, n, 3, 4096);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		fill(data, sizes[i], i);
		post_message(&w, 0, 2, data, sizes[i]);
		poison(data, sizes[i]); /* it may change when send returns */
		event = take_event(&w, 2, EVENT_MESSAGE);
		expect(event.peer == 0 && event.bytes == sizes[i], "%u bytes from peer %u",
			event.bytes, event.peer);
		post_message(&w, 2, 0, event.data, event.bytes);
		free((void *)(uintptr_t)event.data);
		event = take_event(&w, 0, EVENT_MESSAGE);
		expect(event.peer == 2 && event.bytes == sizes[i], "%u bytes back from peer %u",
			event.bytes, event.peer);
		expect_filled(event.data, sizes[i], i, "a message's echo");
		free((void *)(uintptr_t)event.data);
	}
	rc = w.peers[0].transport->ops->send(w.peers[0].transport, 1, data, WORLD_MESSAGE + 1);
	expect(rc == TERN_ERR_INVALID, "a message that is too long was answered %d", rc);
	world_close(&w);
}

static void run_message_order(const struct network *n)
{
	uint32_t nr = scaled(n, 2000), next[2] = {0, 0};
	struct transport_event event;
	struct world w;

	world_open(&w, n, 3, 4096);
	for (uint32_t i = 0; i < nr; i++)
		for (uint32_t p = 0; p < 2; p++) {
			uint32_t words[3] = {i, p, i * p};

			post_message(&w, p, 2, words, sizeof(words));
		}
	while (next[0] < nr || next[1] < nr) {
		uint32_t words[3];

		event = take_event(&w, 2, EVENT_MESSAGE);
		memcpy(words, event.data, sizeof(words));
		free((void *)(uintptr_t)event.data);
		expect(event.peer < 2 && event.peer == words[1] && words[0] == next[event.peer],
			"message %u of peer %u, not %u", words[0], event.peer, next[event.peer]);
		next[event.peer]++;
	}
	world_close(&w);
}

static void run_inline(const struct network *n)
{
	uint64_t limit, state = 3;
	uint8_t *scratch;
	struct world w;

	world_open(&w, n, 2, 8192);
	limit = w.peers[0].info.inline_bytes < 4096 ? w.peers[0].info.inline_bytes : 4096;
	scratch = malloc(4096);
	for (uint32_t i = 0; i < scaled(n, 400); i++) {
		struct transport_write write =
			a_write(&w, 0, 1, 0, 1024, i ? draw(&state, (uint32_t)limit + 1) : limit);

		write.region = NULL; /* memory that nobody has registered */
		write.from = scratch;
		write.flags = WRITE_INLINE | WRITE_IMMEDIATE;
		write.immediate = i;
		fill(scratch, write.bytes, i);
		poison(w.peers[1].to, w.bytes);
		post(&w, 0, &write);
		fill(scratch, 4096, ~(uint64_t)i);
		expect(take_event(&w, 1, EVENT_IMMEDIATE).immediate == i, "immediate %u", i);
		expect_only(w.peers[1].to, w.bytes, 1024, write.bytes, i, "an inline write");
	}
	free(scratch);
	world_close(&w);
}

/* The bytes are there when the completion is, looked up in the target's memory past the transport.
 */
static void run_written_is_landed(const struct network *n)
{
	uint64_t bytes = 256 << 10;
	uint32_t nr = scaled(n, 100);
	struct world w;

	world_open(&w, n, 2, bytes);
	for (uint32_t i = 0; i < nr; i++) {
		struct transport_write write = a_write(&w, 0, 1, 0, 0, bytes);

		write.flags = WRITE_SIGNALLED;
		write.cookie = i;
		fill(w.peers[0].from, bytes, i);
		post(&w, 0, &write);
		expect(take_event(&w, 0, EVENT_WRITTEN).cookie == i, "another cookie");
		expect_filled(w.peers[1].to, bytes, i, "a write whose completion has come");
	}
	world_close(&w);
}

static void run_late_peer(const struct network *n)
{
	struct world w;

	world_begin(&w, n, 3, 8192);
	expect_ok(peer_open(&w, 0), "open");
	expect_ok(peer_open(&w, 1), "open");
	world_connect(&w, 0, 1);
	world_connect(&w, 1, 0);
	for (uint32_t i = 0; i < 50; i++)
		one_write(&w, 1024, 1024, 100, i);
	expect_ok(peer_open(&w, 2), "open");
	for (uint32_t p = 0; p < 2; p++) {
		struct transport_write write;

		world_connect(&w, p, 2);
		world_connect(&w, 2, p);
		write = a_write(&w, 2, p, 0, 2048, 100);
		write.flags = WRITE_IMMEDIATE;
		fill(w.peers[2].from, 100, 7);
		post(&w, 2, &write);
		take_event(&w, p, EVENT_IMMEDIATE);
		expect_filled(w.peers[p].to + 2048, 100, 7, "a write of the late peer");
		write = a_write(&w, p, 2, 0, 2048, 100);
		write.flags = WRITE_IMMEDIATE;
		fill(w.peers[p].from, 100, 8);
		post(&w, p, &write);
		take_event(&w, 2, EVENT_IMMEDIATE);
		expect_filled(w.peers[2].to + 2048, 100, 8, "a write to the late peer");
	}
	for (uint32_t i = 0; i < 50; i++)
		one_write(&w, 1024, 1024, 100, i);
	world_close(&w);
}

const struct transport_case basic_cases[] = {
	{.name = "info", .run = run_info},
	{.name = "sizes", .run = run_sizes},
	{.name = "unaligned", .run = run_unaligned},
	{.name = "immediates", .run = run_immediates},
	{.name = "self", .run = run_self},
	{.name = "messages", .run = run_messages},
	{.name = "message_order", .run = run_message_order},
	{.name = "inline", .run = run_inline},
	{.name = "written_is_landed", .run = run_written_is_landed},
	{.name = "late_peer", .run = run_late_peer},
	{.name = NULL},
};
