/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor_try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "tern.h"

#define BYTES 8192u
#define SAMPLE 1000u
#define PATIENCE_NS 2000000000u
#define IMMEDIATE 0x7e57u

/* One process's end: it writes the second half of its memory into the first. */
struct trial {
	const struct transport_ops *ops;
	struct transport *transport;
	struct transport_info info;
	struct transport_region *region;
	struct transport_key key;
	uint8_t *memory;
	char *text;
	size_t room;
};

static int says(struct trial *t, const char *what)
{
	snprintf(t->text, t->room, "%s: %s", what, tern_last_error());
	return -1;
}

static int set_up(struct trial *t, const char *provider)
{
	struct transport_options options = {
		.provider = provider, .nr_peers = 1, .depth = 16, .message_bytes = 64};
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	uint32_t bytes = sizeof(address);

	if (t->ops->open(&options, &t->transport, &t->info)) {
		t->transport = NULL;
		snprintf(t->text, t->room, "%s", tern_last_error());
		return -1;
	}
	if (t->ops->reg(t->transport, t->memory, BYTES, &t->region, &t->key))
		return says(t, "memory cannot be registered");
	if (t->ops->address(t->transport, address, &bytes) ||
		t->ops->connect(t->transport, 0, address, bytes))
		return says(t, "it cannot be connected");
	return 0;
}

/* 1: the immediate has come; 0: not yet; negative: something failed. */
static int look(struct trial *t)
{
	struct transport_event events[8];
	int nr = t->ops->poll(t->transport, events, 8), came = 0;

	if (nr < 0)
		return says(t, "polling");
	for (int i = 0; i < nr; i++) {
		if (events[i].kind == EVENT_FAILED || events[i].kind == EVENT_PEER_DOWN) {
			snprintf(t->text, t->room, "%s", events[i].text);
			return -1;
		}
		came |= events[i].kind == EVENT_IMMEDIATE && events[i].immediate == IMMEDIATE;
	}
	return came;
}

static int write_once(struct trial *t)
{
	struct transport_write write = {.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED,
		.immediate = IMMEDIATE,
		.region = t->region,
		.from = t->memory + BYTES / 2,
		.key = &t->key,
		.bytes = SAMPLE};
	uint64_t end = clock_ns() + PATIENCE_NS;
	int posted = TRANSPORT_AGAIN, came = 0;

	memset(t->memory + BYTES / 2, 0x5a, SAMPLE);
	while (!came && clock_ns() < end) {
		if (posted == TRANSPORT_AGAIN)
			posted = t->ops->write(t->transport, &write);
		if (posted < 0)
			return says(t, "writing");
		came = look(t);
	}
	if (came < 0)
		return -1;
	if (!came || memcmp(t->memory, t->memory + BYTES / 2, SAMPLE)) {
		snprintf(t->text, t->room,
			came ? "what was written did not arrive whole"
			     : "a write to this process itself did not arrive within 2 s");
		return -1;
	}
	return 0;
}

int doctor_try(const struct transport_ops *ops, const char *provider, char *text, size_t room)
{
	struct trial t = {.ops = ops, .text = text, .room = room};
	int rc;

	t.memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (t.memory == MAP_FAILED) {
		snprintf(text, room, "no memory");
		return -1;
	}
	rc = set_up(&t, provider);
	rc = rc ? rc : write_once(&t);
	if (!rc)
		snprintf(text, room, "%s", t.info.provider);
	if (t.region)
		ops->dereg(t.transport, t.region);
	if (t.transport)
		ops->close(t.transport);
	munmap(t.memory, BYTES);
	return rc;
}
