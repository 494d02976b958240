/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/gather.h"
#include "group/boot/launch_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A process that ends closes its socket a moment before it can be waited for; only then is it known
 * how it ended. */
#define END_GRACE_MS 500

struct conn {
	int fd; /* -1: closed */
	struct launch_header in;
	char *payload;
	size_t in_done; /* bytes of `in` and then of payload received */
	bool asked;     /* a whole request is here and not yet answered */
	bool deaf;      /* said something senseless: nothing more is read */
	uint64_t nr_boots;
	struct launch_header out;
	const char *body; /* follows `out`: g->all or text */
	size_t body_bytes;
	size_t out_done;
	bool answering;
	char text[LAUNCH_MAX_TEXT];
	int64_t closed_ms; /* when its end of file was seen; 0: not */
};

/* Of the rendezvous. */
struct kept_value {
	struct launch_value v;
	size_t bytes; /* of the value */
	struct kept_value *next;
};

struct gather {
	int nr_ranks;
	struct kept_value *values;
	int nr_values;
	int nr_asked;
	char *all; /* the answer on its way: no rank asks again before it has read its own */
	char blame[LAUNCH_MAX_TEXT]; /* who can take part no more; "" while all can */
	struct conn conns[];
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct gather *gather_new(int nr_ranks, const int *fds)
{
	struct gather *g = calloc(1, sizeof(*g) + (size_t)nr_ranks * sizeof(g->conns[0]));

	if (!g)
		return NULL;
	g->nr_ranks = nr_ranks;
	for (int r = 0; r < nr_ranks; r++)
		g->conns[r].fd = fds[r];
	return g;
}

static void conn_close(struct conn *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->answering = false;
	free(c->payload);
	c->payload = NULL;
}

void gather_free(struct gather *g)
{
	if (!g)
		return;
	for (int r = 0; r < g->nr_ranks; r++)
		conn_close(&g->conns[r]);
	while (g->values) {
		struct kept_value *v = g->values;

		g->values = v->next;
		free(v);
	}
	free(g->all);
	free(g);
}

int gather_fd(const struct gather *g, int rank)
{
	const struct conn *c = &g->conns[rank];

	return c->closed_ms && !c->answering ? -1 : c->fd; /* a closed one would wake poll for ever
							    */
}

short gather_events(const struct gather *g, int rank)
{
	const struct conn *c = &g->conns[rank];

	return (c->asked || c->deaf || c->closed_ms ? 0 : POLLIN) | (c->answering ? POLLOUT : 0);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Sends what fits; the rest goes when poll says so. */
static void push_answer(struct conn *c)
{
	while (c->answering) {
		size_t head = sizeof(c->out);
		bool in_head = c->out_done < head;
		const char *from = in_head ? (const char *)&c->out + c->out_done
					   : c->body + (c->out_done - head);
		size_t left = in_head ? head - c->out_done : head + c->body_bytes - c->out_done;
		ssize_t n = left ? send(c->fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
			c->answering = false; /* nobody reads it; the end of file tells the rest */
		else if ((c->out_done += (size_t)n) == head + c->body_bytes)
			c->answering = false;
	}
}

static void answer(struct gather *g, int rank, enum launch_kind kind, const char *body,
	size_t bytes, size_t body_bytes)
{
	struct conn *c = &g->conns[rank];

	c->out = (struct launch_header){
		.magic = LAUNCH_MAGIC,
		.version = LAUNCH_VERSION,
		.kind = (uint16_t)kind,
		.rank = rank,
		.nr_ranks = g->nr_ranks,
		.boot = c->in.boot,
		.sequence = c->in.sequence,
		.bytes = bytes,
	};
	c->body = body;
	c->body_bytes = body_bytes;
	c->out_done = 0;
	c->answering = true;
	g->nr_asked -= c->asked;
	c->asked = false;
	c->in_done = 0;
	free(c->payload);
	c->payload = NULL;
	push_answer(c);
}

static void refuse(struct gather *g, int rank, const char *text)
{
	struct conn *c = &g->conns[rank];

	snprintf(c->text, sizeof(c->text), "%s", text);
	answer(g, rank, LAUNCH_REFUSED, c->text, strlen(c->text), strlen(c->text));
}

static void refuse_all_asked(struct gather *g, const char *text)
{
	for (int r = 0; r < g->nr_ranks; r++)
		if (g->conns[r].asked)
			refuse(g, r, text);
}

static void blame(struct gather *g, int rank, const char *how)
{
	if (!g->blame[0])
		snprintf(g->blame, sizeof(g->blame), "rank %d %s", rank, how);
	refuse_all_asked(g, g->blame);
}

/* ---- a complete gathering -------------------------------------------------------------------- */

/* true, with the text: ranks 0 and r do not ask for the same. */
static bool differs(const struct gather *g, int r, char *text, size_t size)
{
	const struct launch_header *a = &g->conns[0].in, *b = &g->conns[r].in;

	if (a->boot != b->boot || a->sequence != b->sequence)
		snprintf(text, size,
			"ranks gather in different orders: rank 0 is at gathering %llu of its "
			"group %llu, rank %d at "
			"gathering %llu of its group %llu",
			(unsigned long long)a->sequence, (unsigned long long)a->boot, r,
			(unsigned long long)b->sequence, (unsigned long long)b->boot);
	else if (a->bytes != b->bytes)
		snprintf(text, size,
			"gathering %llu: rank 0 passes %llu bytes, rank %d passes %llu",
			(unsigned long long)a->sequence, (unsigned long long)a->bytes, r,
			(unsigned long long)b->bytes);
	else
		return false;
	return true;
}

static bool collect(struct gather *g, size_t bytes)
{
	free(g->all);
	g->all = malloc((size_t)g->nr_ranks * bytes + 1);
	if (!g->all)
		return false;
	for (int r = 0; r < g->nr_ranks && bytes; r++)
		memcpy(g->all + (size_t)r * bytes, g->conns[r].payload, bytes);
	return true;
}

static void complete(struct gather *g)
{
	size_t bytes = g->conns[0].in.bytes;
	char text[LAUNCH_MAX_TEXT];

	for (int r = 1; r < g->nr_ranks; r++)
		if (differs(g, r, text, sizeof(text))) {
			refuse_all_asked(g, text);
			return;
		}
	if (!collect(g, bytes)) {
		refuse_all_asked(g, "the launcher has no memory for this gathering");
		return;
	}
	for (int r = 0; r < g->nr_ranks; r++)
		answer(g, r, LAUNCH_GATHERED, g->all, bytes, (size_t)g->nr_ranks * bytes);
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool header_is_sound(const struct gather *g, int rank, const struct launch_header *h)
{
	bool fits = h->kind == LAUNCH_GATHER
			    ? h->bytes <= LAUNCH_MAX_ALL / (uint64_t)g->nr_ranks
			    : h->bytes >= LAUNCH_KEY && h->bytes <= sizeof(struct launch_value);

	return h->magic == LAUNCH_MAGIC && h->version == LAUNCH_VERSION && fits &&
	       (h->kind == LAUNCH_GATHER || h->kind == LAUNCH_SET || h->kind == LAUNCH_GET) &&
	       h->rank == rank && h->nr_ranks == g->nr_ranks;
}

/* Its stream cannot be followed any further. */
static void turn_deaf(struct gather *g, int rank, const char *how)
{
	struct conn *c = &g->conns[rank];

	c->deaf = true;
	blame(g, rank, how);
	if (!c->answering)
		refuse(g, rank, g->blame);
}

static void take_header(struct gather *g, int rank)
{
	struct conn *c = &g->conns[rank];
	char how[256];

	if (!header_is_sound(g, rank, &c->in)) {
		snprintf(how, sizeof(how),
			"sent a request that makes no sense to this launcher: magic %08x, version "
			"%u, kind %u, rank %d "
			"of %d, %llu bytes",
			c->in.magic, c->in.version, c->in.kind, c->in.rank, c->in.nr_ranks,
			(unsigned long long)c->in.bytes);
		turn_deaf(g, rank, how);
		return;
	}
	if (c->answering) {
		turn_deaf(g, rank, "asks again before it has read its answer");
		return;
	}
	if (!c->in.boot && c->in.kind == LAUNCH_GATHER)
		c->in.boot = ++c->nr_boots;
	c->payload = malloc(c->in.bytes + 1);
	if (!c->payload)
		turn_deaf(g, rank, "passes more bytes than the launcher has memory for");
}

/* ---- the rendezvous -------------------------------------------------------------------------- */

static struct kept_value *value_of(const struct gather *g, const char *key)
{
	struct kept_value *v = g->values;

	while (v && strncmp(v->v.key, key, LAUNCH_KEY) != 0)
		v = v->next;
	return v;
}

static struct kept_value *new_value(struct gather *g, const char *key)
{
	struct kept_value *v = g->nr_values < LAUNCH_MAX_VALUES ? calloc(1, sizeof(*v)) : NULL;

	if (!v)
		return NULL;
	memcpy(v->v.key, key, LAUNCH_KEY);
	v->next = g->values;
	g->values = v;
	g->nr_values++;
	return v;
}

static void serve_value(struct gather *g, int rank)
{
	struct conn *c = &g->conns[rank];
	struct kept_value *v = value_of(g, c->payload);
	size_t bytes = 0;

	if (c->in.kind == LAUNCH_SET) {
		v = v ? v : new_value(g, c->payload);
		if (v) {
			v->bytes = c->in.bytes - LAUNCH_KEY;
			memcpy(v->v.value, c->payload + LAUNCH_KEY, v->bytes);
		}
	} else if (v) {
		bytes = v->bytes; /* another may set it while this is on its way */
		memcpy(c->text, v->v.value, bytes);
	}
	answer(g, rank, v ? LAUNCH_VALUE : LAUNCH_NOTHING, c->text, bytes, bytes);
}

static void take_request(struct gather *g, int rank)
{
	if (g->conns[rank].in.kind != LAUNCH_GATHER) {
		serve_value(g, rank);
		return;
	}
	g->conns[rank].asked = true;
	g->nr_asked++;
	if (g->blame[0])
		refuse(g, rank, g->blame);
	else if (g->nr_asked == g->nr_ranks)
		complete(g);
}

/* One recv towards the current request; false: nothing more for now. */
static bool pull(struct gather *g, int rank)
{
	struct conn *c = &g->conns[rank];
	size_t head = sizeof(c->in);
	bool in_head = c->in_done < head;
	char *to = in_head ? (char *)&c->in + c->in_done : c->payload + (c->in_done - head);
	size_t want = in_head ? head - c->in_done : head + c->in.bytes - c->in_done;
	ssize_t n = recv(c->fd, to, want, MSG_DONTWAIT);

	if (n < 0 && errno == EINTR)
		return true;
	if (n < 0 && errno == EAGAIN)
		return false;
	if (n <= 0) {
		c->closed_ms = now_ms();
		return false;
	}
	c->in_done += (size_t)n;
	if (in_head && c->in_done == head)
		take_header(g, rank);
	if (!c->deaf && c->in_done >= head && c->in_done == head + c->in.bytes)
		take_request(g, rank);
	return true;
}

void gather_ready(struct gather *g, int rank, short events)
{
	struct conn *c = &g->conns[rank];

	push_answer(c);
	while (!c->asked && !c->deaf && !c->closed_ms && pull(g, rank))
		;
	/* Nothing is read here while an answer is due, so the end of file is taken from poll. */
	if (events & (POLLHUP | POLLERR) && !c->closed_ms && (c->asked || c->deaf))
		c->closed_ms = now_ms();
}

void gather_rank_ended(struct gather *g, int rank, const char *how)
{
	struct conn *c = &g->conns[rank];

	g->nr_asked -= c->asked;
	c->asked = false;
	conn_close(c);
	blame(g, rank, how);
}

void gather_rank_restarted(struct gather *g, int rank, int fd)
{
	conn_close(&g->conns[rank]);
	g->conns[rank] = (struct conn){.fd = fd};
}

int gather_tick(struct gather *g)
{
	int64_t now = now_ms(), next = -1;

	for (int r = 0; r < g->nr_ranks; r++) {
		struct conn *c = &g->conns[r];
		int64_t at = c->closed_ms + END_GRACE_MS;

		if (c->fd < 0 || !c->closed_ms)
			continue;
		if (at <= now)
			gather_rank_ended(
				g, r, "gave up waiting, or closed its socket to the launcher");
		else if (next < 0 || at - now < next)
			next = at - now;
	}
	return (int)next;
}
