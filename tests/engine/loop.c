/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/loop.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define NEWS 8192
#define MESSAGE 512

struct loop_news {
	struct transport_event event;
	uint8_t data[MESSAGE];
};

struct flight {
	struct transport_write write;
	uint8_t copy[64]; /* of an inline write */
	uint8_t *to;
	uint32_t due; /* polls */
	enum loop_fate fate;
};

struct loop {
	struct transport transport;
	struct loop_net *net;
	uint32_t self, connection, nr_peers, depth;
	struct flight *flights; /* in order of posting */
	uint32_t nr_flights;
	struct loop_news *news;
	uint64_t head, tail;           /* of news */
	struct loop_news last[64];     /* what the last poll handed out */
	uint32_t refusals[LOOP_RANKS]; /* of the write to this peer that comes next */
	struct transport_write refused[LOOP_RANKS];
	bool told_dead[LOOP_RANKS], cut[LOOP_RANKS];
};

struct transport_region {
	uint8_t *base;
	uint64_t bytes;
};

void loop_net_init(struct loop_net *net, const struct loop_settings *settings)
{
	memset(net, 0, sizeof(*net));
	net->settings = *settings;
	net->random = settings->seed * 2 + 1;
	pthread_mutex_init(&net->lock, NULL);
}

void loop_net_close(struct loop_net *net)
{
	pthread_mutex_destroy(&net->lock);
}

void loop_kill(struct loop_net *net, uint32_t rank, bool told)
{
	pthread_mutex_lock(&net->lock);
	net->dead[rank] = true;
	net->told = told;
	pthread_mutex_unlock(&net->lock);
}

uint32_t loop_under_way(struct loop_net *net, uint32_t rank)
{
	uint32_t nr = 0;

	pthread_mutex_lock(&net->lock);
	for (uint32_t connection = 0; connection < LOOP_LANES; connection++)
		nr += net->members[rank][connection] ? net->members[rank][connection]->nr_flights
						     : 0;
	pthread_mutex_unlock(&net->lock);
	return nr;
}

static uint32_t draw(struct loop_net *net, uint32_t below)
{
	net->random = net->random * 6364136223846793005u + 1442695040888963407u;
	return below ? (uint32_t)(net->random >> 33) % below : 0;
}

static int loop_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	struct loop_net *net = options->network;
	struct loop *l = calloc(1, sizeof(*l));

	l->transport.ops = &transport_loop;
	l->net = net;
	l->self = options->self;
	l->nr_peers = options->nr_peers;
	l->depth = net->settings.depth;
	l->flights = calloc(l->depth, sizeof(*l->flights));
	l->news = calloc(NEWS, sizeof(*l->news));
	pthread_mutex_lock(&net->lock);
	l->connection = net->nr_open[l->self]++;
	net->members[l->self][l->connection] = l;
	pthread_mutex_unlock(&net->lock);
	*info = (struct transport_info){.name = "loop",
		.provider = "test",
		.caps = net->settings.caps,
		.depth = l->depth,
		.inline_bytes = net->settings.inline_bytes,
		.message_bytes = MESSAGE,
		.write_bytes = net->settings.write_bytes};
	*transport = &l->transport;
	return 0;
}

static struct loop *loop_of(struct transport *transport)
{
	return (struct loop *)(void *)transport;
}

static void loop_close(struct transport *transport)
{
	struct loop *l = loop_of(transport);

	pthread_mutex_lock(&l->net->lock);
	l->net->members[l->self][l->connection] = NULL;
	pthread_mutex_unlock(&l->net->lock);
	free(l->flights);
	free(l->news);
	free(l);
}

static int loop_address(struct transport *transport, void *address, uint32_t *bytes)
{
	memcpy(address, &loop_of(transport)->self, sizeof(uint32_t));
	*bytes = sizeof(uint32_t);
	return 0;
}

static int loop_connect(
	struct transport *transport, uint32_t peer, const void *address, uint32_t bytes)
{
	uint32_t number;

	memcpy(&number, address, sizeof(number));
	return bytes == sizeof(number) && number == peer && peer < loop_of(transport)->nr_peers
		       ? 0
		       : fail(TERN_ERR_PROTOCOL, "a wrong address");
}

static int loop_disconnect(struct transport *transport, uint32_t peer)
{
	struct loop *l = loop_of(transport);
	uint32_t kept = 0;

	pthread_mutex_lock(&l->net->lock);
	l->cut[peer] = true;
	for (uint32_t i = 0; i < l->nr_flights; i++)
		if (l->flights[i].write.peer != peer)
			l->flights[kept++] = l->flights[i];
	l->nr_flights = kept;
	pthread_mutex_unlock(&l->net->lock);
	return 0;
}

static int loop_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **region, struct transport_key *key)
{
	(void)transport;
	*region = calloc(1, sizeof(**region));
	**region = (struct transport_region){base, bytes};
	*key = (struct transport_key){(uint64_t)(uintptr_t)base, bytes, 0x7e57};
	return 0;
}

static void loop_dereg(struct transport *transport, struct transport_region *region)
{
	(void)transport;
	free(region);
}

static bool same_write(const struct transport_write *a, const struct transport_write *b)
{
	return a->peer == b->peer && a->flags == b->flags && a->immediate == b->immediate &&
	       a->key == b->key && a->offset == b->offset && a->bytes == b->bytes;
}

static bool refuses(struct loop *l, const struct transport_write *w)
{
	struct loop_net *net = l->net;
	uint32_t *refusals = &l->refusals[w->peer];

	if (!net->settings.again_first)
		return false;
	if (*refusals && !same_write(&l->refused[w->peer], w))
		net->nr_changed++;
	l->refused[w->peer] = *w;
	if ((*refusals)++ < net->settings.again_first)
		return true;
	*refusals = 0;
	return false;
}

static int loop_write(struct transport *transport, const struct transport_write *w)
{
	struct loop *l = loop_of(transport);
	struct loop_net *net = l->net;
	struct flight *f;
	enum loop_fate fate = net->settings.fate ? net->settings.fate(l->self, w) : LOOP_LANDS;
	int rc = 0;

	pthread_mutex_lock(&net->lock);
	if (l->cut[w->peer] || (net->dead[w->peer] && net->told && l->told_dead[w->peer]))
		rc = fail(TERN_ERR_PEER_DEAD, "rank %u is gone", w->peer);
	else if (fate == LOOP_REFUSED)
		rc = fail(TERN_ERR_INVALID, "the network will not have it");
	else if (fate == LOOP_AGAIN || l->nr_flights == l->depth || refuses(l, w))
		rc = TRANSPORT_AGAIN;
	else if ((w->flags & WRITE_FENCE) && !(net->settings.caps & TRANSPORT_FENCE))
		rc = fail(TERN_ERR_UNSUPPORTED, "no fences here");
	else if (w->bytes > net->settings.write_bytes ||
		 ((w->flags & WRITE_INLINE) && w->bytes > net->settings.inline_bytes) ||
		 (w->bytes && (w->key->key != 0x7e57 || w->offset + w->bytes > w->key->bytes)))
		rc = fail(TERN_ERR_SYSTEM, "the engine broke the contract");
	if (!rc) {
		f = &l->flights[l->nr_flights++];
		*f = (struct flight){
			.write = *w, .due = draw(net, net->settings.slowest + 1), .fate = fate};
		f->to = w->bytes ? (uint8_t *)(uintptr_t)w->key->address + w->offset : NULL;
		if (w->bytes && (w->flags & WRITE_INLINE)) {
			memcpy(f->copy, w->from, w->bytes);
			f->write.from = NULL;
		}
		net->nr_writes++;
		net->nr_unsignalled += !(w->flags & WRITE_SIGNALLED);
		net->nr_fenced += (w->flags & WRITE_FENCE) != 0;
		if (l->nr_flights > net->most_under_way)
			net->most_under_way = l->nr_flights;
	}
	pthread_mutex_unlock(&net->lock);
	return rc;
}

static struct loop_news *add_news(struct loop *l)
{
	if (!l || l->tail - l->head == NEWS)
		return NULL;
	memset(&l->news[l->tail % NEWS].event, 0, sizeof(struct transport_event));
	return &l->news[l->tail++ % NEWS];
}

static int loop_send(struct transport *transport, uint32_t peer, const void *data, uint32_t bytes)
{
	struct loop *l = loop_of(transport);
	struct loop_net *net = l->net;
	struct loop_news *news = NULL;
	int rc = 0;

	pthread_mutex_lock(&net->lock);
	if (l->cut[peer] || (net->dead[peer] && net->told && l->told_dead[peer]))
		rc = fail(TERN_ERR_PEER_DEAD, "rank %u is gone", peer);
	else if (net->settings.again_first && draw(net, net->settings.again_first + 1))
		rc = TRANSPORT_AGAIN;
	else if (!net->dead[peer] && !net->dead[l->self] && net->members[peer][l->connection]) {
		news = add_news(net->members[peer][l->connection]);
		rc = news ? 0 : TRANSPORT_AGAIN;
	}
	if (news) {
		news->event = (struct transport_event){
			.kind = EVENT_MESSAGE, .peer = l->self, .bytes = bytes};
		memcpy(news->data, data, bytes);
	}
	pthread_mutex_unlock(&net->lock);
	return rc;
}

/* Whether an earlier write to this peer, or a fence among them, holds this one back. */
static bool held_back(const struct loop *l, uint32_t number)
{
	const struct flight *f = &l->flights[number];
	bool ordered = l->net->settings.caps & TRANSPORT_ORDERED,
	     fenced = f->write.flags & WRITE_FENCE, earlier = false;

	for (uint32_t i = 0; i < number; i++) {
		if (l->flights[i].write.peer != f->write.peer)
			continue;
		earlier = true;
		fenced = fenced || (l->flights[i].write.flags & WRITE_FENCE);
	}
	return earlier && (ordered || fenced);
}

static void land(struct loop *l, struct flight *f)
{
	struct loop *target = l->net->members[f->write.peer][l->connection];
	struct loop_news *news;

	if (!target || l->net->dead[f->write.peer] || f->fate == LOOP_VANISHES)
		return;
	if (f->fate == LOOP_LANDS && f->write.bytes)
		memmove(f->to, f->write.from ? f->write.from : f->copy, f->write.bytes);
	if (f->fate == LOOP_LANDS && (f->write.flags & WRITE_IMMEDIATE)) {
		news = add_news(target);
		if (news)
			news->event = (struct transport_event){.kind = EVENT_IMMEDIATE,
				.peer = UINT32_MAX,
				.immediate = f->write.immediate};
	}
	news = f->fate == LOOP_FAILS || (f->write.flags & WRITE_SIGNALLED) ? add_news(l) : NULL;
	if (news)
		news->event = (struct transport_event){
			.kind = f->fate == LOOP_FAILS ? EVENT_FAILED : EVENT_WRITTEN,
			.peer = f->write.peer,
			.cookie = f->write.cookie,
			.error = f->fate == LOOP_FAILS ? TERN_ERR_SYSTEM : 0,
			.text = "the test wants it so"};
}

static bool room_for_news(const struct loop *l, const struct loop *target)
{
	return l->tail - l->head < NEWS - 8 && (!target || target->tail - target->head < NEWS - 8);
}

static void move_flights(struct loop *l)
{
	uint32_t kept = 0;
	bool landed[4096] = {false};

	for (uint32_t i = 0; i < l->nr_flights; i++) {
		struct flight *f = &l->flights[i];

		if (f->due) {
			f->due--;
			continue;
		}
		landed[i] = !held_back(l, i) &&
			    room_for_news(l, l->net->members[f->write.peer][l->connection]);
		if (landed[i])
			land(l, f);
	}
	for (uint32_t i = 0; i < l->nr_flights; i++)
		if (!landed[i])
			l->flights[kept++] = l->flights[i];
	l->nr_flights = kept;
}

static void tell_deaths(struct loop *l)
{
	for (uint32_t p = 0; p < l->nr_peers; p++) {
		struct loop_news *news =
			l->net->dead[p] && l->net->told && !l->told_dead[p] && p != l->self
				? add_news(l)
				: NULL;

		if (!news)
			continue;
		news->event = (struct transport_event){.kind = EVENT_PEER_DOWN,
			.peer = p,
			.error = TERN_ERR_PEER_DEAD,
			.text = "its plug was pulled"};
		l->told_dead[p] = true;
	}
}

static int loop_poll(struct transport *transport, struct transport_event *events, int max)
{
	struct loop *l = loop_of(transport);
	int nr = 0;

	if (atomic_load(&l->net->broken))
		return fail(TERN_ERR_SYSTEM, "the test has cut it");
	pthread_mutex_lock(&l->net->lock);
	if (!l->net->dead[l->self]) {
		tell_deaths(l);
		move_flights(l);
		for (; nr < max && l->head < l->tail; nr++) {
			l->last[nr] = l->news[l->head++ % NEWS];
			events[nr] = l->last[nr].event;
			events[nr].data = l->last[nr].data;
		}
	}
	pthread_mutex_unlock(&l->net->lock);
	return nr;
}

const struct transport_ops transport_loop = {
	.name = "loop",
	.open = loop_open,
	.close = loop_close,
	.address = loop_address,
	.connect = loop_connect,
	.disconnect = loop_disconnect,
	.reg = loop_reg,
	.dereg = loop_dereg,
	.write = loop_write,
	.send = loop_send,
	.poll = loop_poll,
};
