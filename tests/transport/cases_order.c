/* SPDX-License-Identifier: Apache-2.0 */
/* Many at once: queues that fill, order where it is promised, fences, and a long mixed run. */
#include <stdlib.h>
#include <string.h>

#include "tests/transport/cases.h"

#define SLOT 1024u
#define NR_SLOTS 256u

/* Peer 0 posts without polling until it is refused, `nr` times at most. */
static uint32_t post_until_full(
	struct world *w, struct transport_write *write, uint32_t nr, bool vary)
{
	struct transport *t = w->peers[0].transport;
	uint32_t posted = 0;

	for (; posted < nr; posted++) {
		int rc;

		if (vary)
			*write = a_write(w, 0, 1, posted % NR_SLOTS * SLOT,
				posted % NR_SLOTS * SLOT, 1 + posted % SLOT);
		write->flags |= WRITE_IMMEDIATE | WRITE_SIGNALLED;
		write->immediate = posted;
		write->cookie = posted;
		rc = t->ops->write(t, write);
		expect_ok(rc, "write");
		if (rc == TRANSPORT_AGAIN)
			break;
	}
	return posted;
}

/* Each of 0 to nr - 1 comes once, in any order. */
static void expect_each_once(
	struct world *w, uint32_t who, enum transport_event_kind kind, uint32_t nr)
{
	uint8_t *seen = calloc(nr + 1, 1);
	struct transport_event event;

	for (uint32_t i = 0; i < nr; i++) {
		uint64_t value;

		event = take_event(w, who, kind);
		value = kind == EVENT_WRITTEN ? event.cookie : event.immediate;
		expect(value < nr && !seen[value]++,
			"event %u of %u: %llu, which is too much or was there before", i, nr,
			(unsigned long long)value);
	}
	free(seen);
	for (int i = 0; i < 100; i++)
		world_turn(w);
	expect(!try_take(w, who, kind, &event), "more events than writes");
}

static void write_across(struct world *w, uint32_t from, uint32_t to)
{
	struct transport_write write = {.peer = to, .flags = WRITE_IMMEDIATE | WRITE_SIGNALLED};

	post(w, from, &write);
	take_event(w, to, EVENT_IMMEDIATE);
	take_event(w, from, EVENT_WRITTEN);
}

/* Connections are made, so that nothing is refused for that reason. */
static void warm_up(struct world *w)
{
	write_across(w, 0, 1);
}

/* As many at once as the transport says, and each lands in its own place. */
static void run_outstanding(const struct network *n)
{
	struct transport_write write = {0};
	uint32_t nr, posted;
	struct world w;

	world_open(&w, n, 2, NR_SLOTS * SLOT);
	warm_up(&w);
	nr = w.peers[0].info.depth < NR_SLOTS ? w.peers[0].info.depth : NR_SLOTS;
	for (uint32_t i = 0; i < nr; i++)
		fill(w.peers[0].from + i * SLOT, 1 + i % SLOT, i);
	posted = post_until_full(&w, &write, nr, true);
	expect(posted == nr || n->few, "%u writes at once, and it says %u", posted, nr);
	for (; posted < nr; posted++) {
		write = a_write(&w, 0, 1, posted * SLOT, posted * SLOT, 1 + posted % SLOT);
		write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED;
		write.immediate = posted;
		write.cookie = posted;
		post(&w, 0, &write);
	}
	expect_each_once(&w, 0, EVENT_WRITTEN, nr);
	expect_each_once(&w, 1, EVENT_IMMEDIATE, nr);
	for (uint32_t i = 0; i < nr; i++)
		expect_only(
			w.peers[1].to + i * SLOT, SLOT, 0, 1 + i % SLOT, i, "one of many writes");
	world_close(&w);
}

/* Nobody polls until every queue has refused; then what was refused is tried again, and all of it
 * arrives once. */
static void run_full_queues(const struct network *n)
{
	struct transport_write bytes, alone = {.peer = 1};
	uint32_t posted, nr, most = 100000;
	struct world w;

	world_open(&w, n, 2, NR_SLOTS * SLOT);
	warm_up(&w);
	bytes = a_write(&w, 0, 1, 0, 0, 512);
	fill(w.peers[0].from, 512, 1);
	posted = post_until_full(&w, &bytes, most, false);
	expect(posted < most && (posted >= w.peers[0].info.depth || n->few), "%u writes at once",
		posted);
	for (nr = posted; nr < posted + 1000; nr++) {
		bytes.immediate = nr;
		bytes.cookie = nr;
		post(&w, 0, &bytes);
	}
	expect_each_once(&w, 0, EVENT_WRITTEN, nr);
	expect_each_once(&w, 1, EVENT_IMMEDIATE, nr);
	expect_only(w.peers[1].to, w.bytes, 0, 512, 1, "writes of full queues");
	posted = post_until_full(&w, &alone, most, false);
	expect(posted < most, "%u immediates at once", posted);
	expect_each_once(&w, 0, EVENT_WRITTEN, posted);
	expect_each_once(&w, 1, EVENT_IMMEDIATE, posted);
	world_close(&w);
}

/* A peer that is being connected, and does nothing for it, takes nothing of the depth that was
 * promised for the others. */
static void run_depth_while_connecting(const struct network *n)
{
	struct transport_write write;
	uint32_t posted;
	struct world w;

	world_begin(&w, n, 3, NR_SLOTS * SLOT);
	for (uint32_t p = 0; p < 3; p++)
		expect_ok(peer_open(&w, p), "open");
	world_connect(&w, 0, 1);
	world_connect(&w, 1, 0);
	warm_up(&w);
	world_connect(&w, 0, 2);
	peer_poll(&w, 0);
	write = a_write(&w, 0, 1, 0, 0, 512);
	fill(w.peers[0].from, 512, 1);
	posted = post_until_full(&w, &write, w.peers[0].info.depth, false);
	expect(posted == w.peers[0].info.depth || n->few, "%u writes at once, and it says %u",
		posted, w.peers[0].info.depth);
	expect_each_once(&w, 0, EVENT_WRITTEN, posted);
	expect_each_once(&w, 1, EVENT_IMMEDIATE, posted);
	/* libfabric's tcp loses the memory of a connection that is accepted and not yet made when
	 * its endpoint is closed. */
	world_connect(&w, 2, 0);
	write_across(&w, 0, 2);
	write_across(&w, 2, 0);
	world_close(&w);
}

static void run_full_messages(const struct network *n)
{
	uint32_t posted = 0, most = 100000, nr;
	struct world w;

	world_open(&w, n, 2, 4096);
	warm_up(&w);
	for (; posted < most; posted++) {
		int rc = w.peers[0].transport->ops->send(
			w.peers[0].transport, 1, &posted, sizeof(posted));

		expect_ok(rc, "send");
		if (rc == TRANSPORT_AGAIN)
			break;
	}
	expect((posted >= 16 || n->few) && posted < most, "%u messages at once", posted);
	for (nr = posted; nr < posted + 500; nr++)
		post_message(&w, 0, 1, &nr, sizeof(nr));
	for (uint32_t i = 0; i < nr; i++) {
		struct transport_event event = take_event(&w, 1, EVENT_MESSAGE);

		expect(event.bytes == 4 && !memcmp(event.data, &i, 4), "message %u of %u", i, nr);
		free((void *)(uintptr_t)event.data);
	}
	world_close(&w);
}

/* Peers 0 and 1 write to 2, all sizes, one slot each; an immediate means that all before it of that
 * peer have landed. The number of a write is in its immediate, with its peer, as some transports do
 * not tell. */
struct sequence {
	uint32_t next[2], sizes[2][NR_SLOTS];
};

static void check_sequence(struct world *w, uint32_t who, const struct transport_event *event)
{
	struct sequence *s = w->ctx;
	uint32_t peer = event->immediate >> 24, i = event->immediate & 0xffffff;

	if (event->kind != EVENT_IMMEDIATE)
		return;
	expect(who == 2 && peer < 2 && i == s->next[peer],
		"immediate %u of peer %u came when it was %u's turn", i, peer, s->next[peer]);
	for (uint32_t j = i & ~7u; j <= i; j++)
		expect_filled(w->peers[2].to + (peer * NR_SLOTS + j) * 16384, s->sizes[peer][j],
			peer * 1000 + j, "a write before an immediate");
	s->next[peer]++;
}

static void run_order(const struct network *n)
{
	struct sequence s = {0};
	uint64_t state = 5;
	struct world w;

	if (!(n->caps & TRANSPORT_ORDERED))
		skip_case("writes have no order here");
	world_open(&w, n, 3, 2 * NR_SLOTS * 16384);
	w.on_event = check_sequence;
	w.ctx = &s;
	for (uint32_t i = 0; i < NR_SLOTS; i++)
		for (uint32_t p = 0; p < 2; p++) {
			uint32_t at = (p * NR_SLOTS + i) * 16384;
			struct transport_write write = a_write(
				&w, p, 2, at, at, s.sizes[p][i] = draw(&state, i % 3 ? 16384 : 64));

			write.flags = i % 8 == 7 || i % 5 == 0 ? WRITE_IMMEDIATE
							       : WRITE_IMMEDIATE | WRITE_SIGNALLED;
			write.immediate = p << 24 | i;
			fill(w.peers[p].from + at, write.bytes, p * 1000 + i);
			post(&w, p, &write);
		}
	for (uint64_t end = now_ms() + CASE_WAIT_MS; s.next[0] < NR_SLOTS || s.next[1] < NR_SLOTS;
		world_turn(&w))
		expect(now_ms() < end, "only %u and %u immediates came", s.next[0], s.next[1]);
	world_close(&w);
}

/* A large write, then a small one with a fence: when the small one is reported the large one is
 * there. */
static void run_fence(const struct network *n)
{
	uint64_t bytes = 1 << 20;
	struct world w;

	world_open(&w, n, 2, bytes + 4096);
	for (uint32_t i = 0; i < 20; i++) {
		struct transport_write large = a_write(&w, 0, 1, 0, 0, bytes),
				       small = a_write(&w, 0, 1, bytes, bytes, 8);

		small.flags = WRITE_FENCE | WRITE_IMMEDIATE | (i % 2 ? WRITE_SIGNALLED : 0);
		small.immediate = i;
		if (!(n->caps & TRANSPORT_FENCE)) {
			int rc = w.peers[0].transport->ops->write(w.peers[0].transport, &small);

			expect(rc == TERN_ERR_UNSUPPORTED || rc == TERN_ERR_INVALID,
				"a fence that is not there was answered %d", rc);
			continue;
		}
		fill(w.peers[0].from, bytes + 8, i);
		post(&w, 0, &large);
		post(&w, 0, &small);
		expect(take_event(&w, 1, EVENT_IMMEDIATE).immediate == i, "immediate %u", i);
		expect_filled(w.peers[1].to, bytes + 8, i, "a write before a fence");
	}
	world_close(&w);
}

/* ---- soak ------------------------------------------------------------------------------------ */

/* Three peers write, whenever a slot is free: a slot is free again when its write was reported on
 * both sides. */
struct soak {
	uint32_t sizes[3][3][NR_SLOTS]; /* [from][to][slot]; what is under way */
	uint8_t busy[3][3][NR_SLOTS];   /* 2: nothing has been reported; 1: half */
	uint64_t seeds[3][3][NR_SLOTS];
	uint32_t messages_out[3][3], messages_in[3][3];
	uint64_t done;
};

static uint64_t slot_at(uint32_t other, uint32_t slot)
{
	return (uint64_t)(other * NR_SLOTS + slot) * SLOT;
}

static void soak_event(struct world *w, uint32_t who, const struct transport_event *event)
{
	struct soak *s = w->ctx;

	if (event->kind == EVENT_IMMEDIATE) {
		uint32_t from = event->immediate >> 16, slot = event->immediate & 0xffff;

		expect(from < 3 && slot < NR_SLOTS && s->busy[from][who][slot],
			"peer %u: an immediate %x that nobody sent", who, event->immediate);
		expect(event->peer == from || event->peer == UINT32_MAX,
			"an immediate of peer %u came as %u's", from, event->peer);
		expect_only(w->peers[who].to + slot_at(from, slot), SLOT, 0,
			s->sizes[from][who][slot], s->seeds[from][who][slot], "a write");
		poison(w->peers[who].to + slot_at(from, slot), s->sizes[from][who][slot]);
		s->done += --s->busy[from][who][slot] == 0;
	} else if (event->kind == EVENT_WRITTEN) {
		uint32_t to = (uint32_t)event->cookie >> 16, slot = event->cookie & 0xffff;

		expect(to == event->peer && slot < NR_SLOTS && s->busy[who][to][slot],
			"peer %u: a cookie %llx of no write", who,
			(unsigned long long)event->cookie);
		s->done += --s->busy[who][to][slot] == 0;
	} else if (event->kind == EVENT_MESSAGE) {
		expect(event->bytes == 4 &&
				!memcmp(event->data, &s->messages_in[event->peer][who], 4),
			"a message out of turn");
		s->messages_in[event->peer][who]++;
	} else {
		expect(false, "an event of kind %d: %s", event->kind, event->text);
	}
}

static bool soak_write(struct world *w, struct soak *s, uint64_t *state, uint32_t i)
{
	uint32_t from = draw(state, 3), to = draw(state, 3), slot = draw(state, NR_SLOTS),
		 size = draw(state, 4) ? draw(state, 65) : draw(state, SLOT + 1);
	struct transport *t = w->peers[from].transport;
	struct transport_write write =
		a_write(w, from, to, slot_at(to, slot), slot_at(from, slot), size);
	int rc;

	if (s->busy[from][to][slot])
		return false;
	write.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED | (size <= 64 && i % 2 ? WRITE_INLINE : 0);
	write.immediate = from << 16 | slot;
	write.cookie = to << 16 | slot;
	fill(w->peers[from].from + slot_at(to, slot), size, i);
	s->sizes[from][to][slot] = size;
	s->seeds[from][to][slot] = i;
	s->busy[from][to][slot] = 2; /* the event may come from within the next poll of anybody */
	rc = t->ops->write(t, &write);
	expect_ok(rc, "write");
	if (rc == TRANSPORT_AGAIN) {
		s->busy[from][to][slot] = 0;
		return false;
	}
	if (write.flags & WRITE_INLINE)
		poison(w->peers[from].from + slot_at(to, slot), size);
	return true;
}

static void run_soak(const struct network *n)
{
	static struct soak s;
	uint64_t state = 11, end;
	uint32_t nr = scaled(NULL, SOAK);
	struct world w;

	world_open(&w, n, 3, 3 * NR_SLOTS * SLOT);
	w.on_event = soak_event;
	w.ctx = &s;
	end = now_ms() + 2 * CASE_WAIT_MS;
	for (uint32_t i = 0, tries = 0; i < nr; tries++) {
		uint32_t p = tries % 3;

		i += soak_write(&w, &s, &state, i);
		if (tries % 97 == 0 && !w.peers[p].transport->ops->send(w.peers[p].transport,
					       (p + 1) % 3, &s.messages_out[p][(p + 1) % 3], 4))
			s.messages_out[p][(p + 1) % 3]++;
		if (draw(&state, 4) == 0)
			peer_poll(&w, p);
		if (tries % 64 == 0)
			world_turn(&w);
		expect(now_ms() < end, "%u of %u writes were posted and %llu done", i, nr,
			(unsigned long long)s.done);
	}
	for (; s.done < nr || memcmp(s.messages_in, s.messages_out, sizeof(s.messages_in));
		world_turn(&w))
		expect(now_ms() < end, "%llu of %u writes were done", (unsigned long long)s.done,
			nr);
	for (uint32_t p = 0; p < 3; p++)
		expect(first_unpoisoned(w.peers[p].to, w.bytes) == w.bytes,
			"a byte outside of all writes was touched");
	world_close(&w);
}

const struct transport_case order_cases[] = {
	{.name = "outstanding", .run = run_outstanding},
	{.name = "full_queues", .run = run_full_queues},
	{.name = "depth_while_connecting", .run = run_depth_while_connecting},
	{.name = "full_messages", .run = run_full_messages},
	{.name = "order", .run = run_order},
	{.name = "fence", .run = run_fence},
	{.name = "soak", .run = run_soak},
	{.name = NULL},
};
