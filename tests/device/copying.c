/* SPDX-License-Identifier: Apache-2.0 */
/* A write from or to a device's memory is a copy on one of the transport's streams. When its stream
 * is empty the copy has ended, and then an inner write without bytes, over shared memory, carries
 * its immediate and its completion. A write between host memories is the inner transport's. */
#include "tests/device/copying.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/offers.h"
#include "gpu/wire/internode.h"
#include "testkit/device/ops.h"

#define NR_STREAMS 4
#define DEPTH 64
#define ON_DEVICE 1u /* in a key's address; memory begins at even ones */
#define NONE_HELD 0
#define LINE 128

enum copy_state {
	COPY_FREE = 0,
	COPY_LAGS, /* its immediate was reported, and it is not under way yet */
	COPY_HELD,
	COPY_RUNS,
	COPY_DONE
};

struct copy {
	enum copy_state state;
	uint32_t peer, flags, immediate, stream, polls_left;
	uint64_t cookie, bytes;
	void *to;
	const void *from;
};

struct transport_region {
	struct transport_region *inner;
	bool on_device;
};

struct copying {
	struct transport base;
	struct transport *inner;
	struct copying *next; /* of this process */
	const struct bench_device_ops *ops;
	pthread_mutex_t lock;                                   /* what a flush looks at */
	uint32_t nr_peers, next_stream, nr_held, nr_registered; /* of devices' memory */
	int device;
	void *streams[NR_STREAMS];
	struct copy copies[DEPTH];
	struct transport_event *held; /* [nr_peers] ends of peers to which copies run */
	uint32_t self, nr_cut;        /* peers that it has lost */
	char (*held_text)[96];
};

static struct copying_settings settings;
static struct copying_stats stats;
static struct copying *all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static int devices;
static uint32_t held_from = INTERNODE_GROUPS; /* of groups; so: none is held */
static bool cut;

static struct copying *copying_of(struct transport *transport)
{
	return (struct copying *)transport;
}

static void count(uint64_t *of, uint64_t more)
{
	__atomic_fetch_add(of, more, __ATOMIC_RELAXED);
}

/* ---- settings -------------------------------------------------------------------------------- */

void copying_offer(int nr_devices)
{
	devices = nr_devices;
	network_list_extra = &transport_copying;
}

void copying_set(const struct copying_settings *as)
{
	settings = *as;
	memset(&stats, 0, sizeof(stats));
	held_from = INTERNODE_GROUPS;
	cut = false;
}

void copying_hold(uint32_t group)
{
	__atomic_store_n(&held_from, group, __ATOMIC_RELAXED);
}

void copying_cut(void)
{
	__atomic_store_n(&cut, true, __ATOMIC_RELAXED);
}

void copying_stats(struct copying_stats *to)
{
	*to = stats;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void close_streams(struct copying *t)
{
	for (uint32_t i = 0; i < NR_STREAMS; i++) {
		if (!t->streams[i])
			continue;
		t->ops->stream_wait(t->streams[i]);
		t->ops->stream_destroy(t->streams[i]);
	}
}

static void copying_close(struct transport *transport)
{
	struct copying *t = copying_of(transport), **at = &all;

	pthread_mutex_lock(&all_lock);
	while (*at && *at != t)
		at = &(*at)->next;
	if (*at)
		*at = t->next;
	pthread_mutex_unlock(&all_lock);
	if (t->ops)
		close_streams(t);
	if (t->inner)
		t->inner->ops->close(t->inner);
	pthread_mutex_destroy(&t->lock);
	free(t->held);
	free(t->held_text);
	free(t);
}

static int open_parts(
	struct copying *t, const struct transport_options *options, struct transport_info *info)
{
	int rc = 0;

	t->held = calloc(t->nr_peers, sizeof(*t->held));
	t->held_text = calloc(t->nr_peers, sizeof(*t->held_text));
	t->ops = bench_device_ops_load();
	if (!t->held || !t->held_text || !t->ops)
		return fail(TERN_ERR_NOMEM, "copying: no memory, or no devices");
	rc = t->ops->use(t->device);
	for (uint32_t i = 0; i < NR_STREAMS && !rc; i++)
		rc = t->ops->stream_create(&t->streams[i], false);
	if (rc)
		return fail(rc, "copying: %s", t->ops->error_text());
	return transport_shm.open(options, &t->inner, info);
}

static int copying_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	struct copying *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return fail(TERN_ERR_NOMEM, "copying: no memory");
	t->base.ops = &transport_copying;
	t->nr_peers = options->nr_peers;
	t->self = options->self;
	t->device = (int)options->self % devices;
	pthread_mutex_init(&t->lock, NULL);
	rc = open_parts(t, options, info);
	if (rc) {
		copying_close(&t->base);
		return rc;
	}
	info->name = "copying";
	strcpy(info->provider, "copies on streams");
	info->caps = TRANSPORT_SEES_DEATH | TRANSPORT_DEVICE_MEMORY;
	info->depth = info->depth < DEPTH ? info->depth : DEPTH;
	info->inline_bytes = 0; /* no processor reads a device's memory */
	pthread_mutex_lock(&all_lock);
	t->next = all;
	all = t;
	pthread_mutex_unlock(&all_lock);
	*transport = &t->base;
	return 0;
}

static int copying_address(struct transport *transport, void *address, uint32_t *bytes)
{
	struct transport *inner = copying_of(transport)->inner;

	return inner->ops->address(inner, address, bytes);
}

static int copying_connect(
	struct transport *transport, uint32_t p, const void *address, uint32_t bytes)
{
	struct transport *inner = copying_of(transport)->inner;

	return inner->ops->connect(inner, p, address, bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int copying_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **out, struct transport_key *key)
{
	struct copying *t = copying_of(transport);
	struct transport_region *region = calloc(1, sizeof(*region));
	int rc = region ? 0 : fail(TERN_ERR_NOMEM, "copying: no memory for a region");

	if (!rc && t->ops->on_device(base, &region->on_device))
		rc = fail(TERN_ERR_SYSTEM, "copying: %s", t->ops->error_text());
	if (!rc && region->on_device && ++t->nr_registered == settings.refuses)
		rc = fail(TERN_ERR_UNSUPPORTED,
			"copying: it was told to refuse %llu bytes of a device",
			(unsigned long long)bytes);
	rc = rc ? rc : t->inner->ops->reg(t->inner, base, bytes, &region->inner, key);
	if (rc) {
		free(region);
		return rc;
	}
	key->address = (uintptr_t)base | (region->on_device ? ON_DEVICE : 0);
	*out = region;
	return 0;
}

/* As with a NIC, nothing comes over it any more. */
static void copying_dereg(struct transport *transport, struct transport_region *region)
{
	struct copying *t = copying_of(transport);

	if (!region)
		return;
	t->inner->ops->dereg(t->inner, region->inner);
	if (region->on_device)
		copying_flush(NULL);
	free(region);
}

/* ---- writing --------------------------------------------------------------------------------- */

static struct copy *find_free(struct copying *t)
{
	for (uint32_t i = 0; i < DEPTH; i++)
		if (t->copies[i].state == COPY_FREE)
			return &t->copies[i];
	return NULL;
}

static int start(struct copying *t, struct copy *c)
{
	c->stream = t->next_stream++ % NR_STREAMS;
	c->state = COPY_RUNS;
	count(&stats.copies, 1);
	count(&stats.bytes, c->bytes);
	if (t->ops->use(t->device) || t->ops->copy(c->to, c->from, c->bytes, t->streams[c->stream]))
		return fail(TERN_ERR_SYSTEM, "copying: %s", t->ops->error_text());
	return 0;
}

static bool is_held(uint32_t flags, uint32_t immediate)
{
	return flags & WRITE_IMMEDIATE && immediate & INTERNODE_IMMEDIATE_RUN &&
	       (immediate & INTERNODE_IMMEDIATE_GROUP) >=
		       __atomic_load_n(&held_from, __ATOMIC_RELAXED);
}

/* 0, TRANSPORT_AGAIN or an error. */
static int tell(struct copying *t, const struct copy *c, uint32_t flags)
{
	struct transport_write write = {.peer = c->peer,
		.flags = c->flags & flags,
		.immediate = c->immediate,
		.cookie = c->cookie};

	return write.flags ? t->inner->ops->write(t->inner, &write) : 0;
}

/* What comes before the rest, which comes with all. */
static void tear(struct copying *t, const struct copy *c)
{
	uint8_t *to = c->to;
	const uint8_t *from = c->from;
	uint64_t half = LINE / 2, at = settings.torn == 2 ? half : 0;

	for (; settings.torn && at + half <= c->bytes && !t->ops->use(t->device); at += LINE)
		t->ops->copy(to + at, from + at, half, t->streams[0]);
	if (settings.torn)
		t->ops->stream_wait(t->streams[0]);
}

static int begin(struct copying *t, const struct transport_write *w)
{
	struct copy *c = find_free(t);
	uint32_t lag = w->flags & WRITE_IMMEDIATE ? settings.lag : 0;
	int rc = c ? 0 : TRANSPORT_AGAIN;

	if (rc)
		return rc;
	*c = (struct copy){.peer = w->peer,
		.flags = w->flags,
		.immediate = w->immediate,
		.cookie = w->cookie,
		.bytes = w->bytes,
		.polls_left = lag,
		.from = w->from,
		.to = (uint8_t *)(uintptr_t)(w->key->address & ~(uint64_t)ON_DEVICE) + w->offset};
	if (is_held(c->flags, c->immediate)) {
		c->state = COPY_HELD;
		count(&stats.held, 1);
		return 0;
	}
	if (!lag)
		return start(t, c);
	c->state = COPY_LAGS;
	tear(t, c);
	rc = tell(t, c, WRITE_IMMEDIATE);
	if (rc)
		c->state = COPY_FREE;
	c->flags &= ~(uint32_t)WRITE_IMMEDIATE;
	count(&stats.early, !rc);
	return rc;
}

static int copying_write(struct transport *transport, const struct transport_write *w)
{
	struct copying *t = copying_of(transport);
	struct transport_write inner = *w;
	int rc;

	if (w->bytes && ((w->region && w->region->on_device) || w->key->address & ON_DEVICE)) {
		if (w->flags & WRITE_INLINE || w->offset > w->key->bytes ||
			w->bytes > w->key->bytes - w->offset)
			return fail(TERN_ERR_INVALID, "copying: %llu bytes, inline or outside",
				(unsigned long long)w->bytes);
		pthread_mutex_lock(&t->lock);
		rc = begin(t, w);
		pthread_mutex_unlock(&t->lock);
		return rc;
	}
	inner.region = w->region ? w->region->inner : NULL;
	return t->inner->ops->write(t->inner, &inner);
}

static int copying_send(struct transport *transport, uint32_t p, const void *data, uint32_t bytes)
{
	struct transport *inner = copying_of(transport)->inner;

	return inner->ops->send(inner, p, data, bytes);
}

/* What was on its way has landed, and nobody asks for it. */
static int copying_disconnect(struct transport *transport, uint32_t p)
{
	struct copying *t = copying_of(transport);

	pthread_mutex_lock(&t->lock);
	for (uint32_t i = 0; i < DEPTH; i++) {
		struct copy *c = &t->copies[i];

		if (c->state == COPY_FREE || c->peer != p)
			continue;
		if (c->state == COPY_RUNS)
			t->ops->stream_wait(t->streams[c->stream]);
		c->state = COPY_FREE;
	}
	t->nr_held -= t->held[p].kind != NONE_HELD;
	t->held[p].kind = NONE_HELD;
	pthread_mutex_unlock(&t->lock);
	return t->inner->ops->disconnect(t->inner, p);
}

/* ---- what lags ------------------------------------------------------------------------------- */

static void land(struct copying *t)
{
	for (uint32_t i = 0; i < DEPTH; i++)
		if (t->copies[i].state == COPY_LAGS) {
			count(&stats.flushed, 1);
			start(t, &t->copies[i]);
		}
	for (uint32_t i = 0; i < NR_STREAMS; i++)
		t->ops->stream_wait(t->streams[i]);
}

void copying_flush(void *ctx)
{
	(void)ctx;
	pthread_mutex_lock(&all_lock);
	for (struct copying *t = all; t; t = t->next) {
		pthread_mutex_lock(&t->lock);
		land(t);
		pthread_mutex_unlock(&t->lock);
	}
	pthread_mutex_unlock(&all_lock);
}

/* ---- polling --------------------------------------------------------------------------------- */

static bool has_copies(const struct copying *t, uint32_t peer)
{
	for (uint32_t i = 0; i < DEPTH; i++)
		if (t->copies[i].state != COPY_FREE && t->copies[i].peer == peer)
			return true;
	return false;
}

static void look_at_streams(struct copying *t)
{
	for (uint32_t s = 0; s < NR_STREAMS; s++) {
		bool used = false, idle = false;

		for (uint32_t i = 0; i < DEPTH; i++)
			used |= t->copies[i].state == COPY_RUNS && t->copies[i].stream == s;
		if (!used || t->ops->stream_idle(t->streams[s], &idle) || !idle)
			continue;
		for (uint32_t i = 0; i < DEPTH; i++)
			if (t->copies[i].state == COPY_RUNS && t->copies[i].stream == s)
				t->copies[i].state = COPY_DONE;
	}
}

/* Ends of writes that cannot be told any more. */
static int look_at_copies(struct copying *t, struct transport_event *events, int max)
{
	int nr = 0;

	look_at_streams(t);
	for (uint32_t i = 0; i < DEPTH && nr < max; i++) {
		struct copy *c = &t->copies[i];
		int rc = c->state == COPY_DONE ? tell(t, c, WRITE_IMMEDIATE | WRITE_SIGNALLED)
					       : TRANSPORT_AGAIN;

		if ((c->state == COPY_LAGS && --c->polls_left == 0) ||
			(c->state == COPY_HELD && !is_held(c->flags, c->immediate)))
			start(t, c);
		if (rc == TRANSPORT_AGAIN)
			continue;
		if (rc < 0)
			events[nr++] = (struct transport_event){.kind = EVENT_FAILED,
				.peer = c->peer,
				.cookie = c->cookie,
				.error = rc,
				.text = "copying: its peer has gone"};
		c->state = COPY_FREE;
		t->base.moved = true;
	}
	for (; __atomic_load_n(&cut, __ATOMIC_RELAXED) && t->nr_cut < t->nr_peers && nr < max;
		t->nr_cut++)
		if (t->nr_cut != t->self)
			events[nr++] = (struct transport_event){.kind = EVENT_PEER_DOWN,
				.peer = t->nr_cut,
				.error = TERN_ERR_PEER_DEAD,
				.text = "copying: it was told that its peers have died"};
	for (uint32_t p = 0; p < t->nr_peers && t->nr_held && nr < max; p++)
		if (t->held[p].kind != NONE_HELD && !has_copies(t, p)) {
			events[nr++] = t->held[p];
			t->held[p].kind = NONE_HELD;
			t->nr_held--;
		}
	return nr;
}

/* A peer's end comes after those of all writes to it. */
static int hold_ends(struct copying *t, struct transport_event *events, int nr)
{
	int left = 0;

	for (int i = 0; i < nr; i++) {
		struct transport_event *e = &events[i];

		if (e->kind != EVENT_PEER_DOWN || !has_copies(t, e->peer)) {
			events[left++] = *e;
			continue;
		}
		strncpy(t->held_text[e->peer], e->text, sizeof(t->held_text[0]) - 1);
		t->held[e->peer] = *e;
		t->held[e->peer].text = t->held_text[e->peer];
		t->nr_held++;
	}
	return left;
}

static int copying_poll(struct transport *transport, struct transport_event *events, int max)
{
	struct copying *t = copying_of(transport);
	int nr, more;

	pthread_mutex_lock(&t->lock);
	t->base.moved = false;
	nr = look_at_copies(t, events, max);
	more = t->inner->ops->poll(t->inner, events + nr, max - nr);
	more = more < 0 ? more : hold_ends(t, events + nr, more);
	pthread_mutex_unlock(&t->lock);
	return more < 0 ? more : nr + more;
}

const struct transport_ops transport_copying = {
	.name = "copying",
	.open = copying_open,
	.close = copying_close,
	.address = copying_address,
	.connect = copying_connect,
	.disconnect = copying_disconnect,
	.reg = copying_reg,
	.dereg = copying_dereg,
	.write = copying_write,
	.send = copying_send,
	.poll = copying_poll,
};
