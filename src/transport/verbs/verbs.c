/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices through libibverbs: two reliable queue pairs for each peer, one for writes and one
 * for messages and credits; shared receive queues; one completion queue for what was sent and one
 * for what came.
 *
 * - A reliable queue pair carries its requests out in order, so writes to a peer land in order, and
 * so do their immediates (TRANSPORT_ORDERED; not with relaxed ordering).
 * - Completion queues have room for all that can be under way, and receives for all that peers may
 * send (data.c).
 * - Nothing is taken for granted of a site: settings.c, device.c. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/error.h"

#define SENDS 64u
#define PAGE 4096u
#define GREETING_ROOM 512u

/* ---- how much of everything ------------------------------------------------------------------ */

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Messages have so many buffers, and each connection one credit under way, those included that are
 * given up. */
static uint32_t sends_beside_writes(const struct verbs *v)
{
	return SENDS + v->nr_lookup / 2;
}

static int size_queues(struct verbs *v, const struct transport_options *options)
{
	uint32_t receives = least((uint32_t)v->device.max_srq_wr, (uint32_t)v->device.max_cqe);
	uint32_t messages = VERBS_MESSAGES * v->nr_peers;

	for (v->nr_lookup = 16; v->nr_lookup < 16 * v->nr_peers; v->nr_lookup *= 2)
		;
	if ((uint32_t)v->device.max_cqe < sends_beside_writes(v) + 64)
		return fail(TERN_ERR_UNSUPPORTED,
			"%s's completion queues hold %d; %u peers need %u at least", v->port.device,
			v->device.max_cqe, v->nr_peers, sends_beside_writes(v) + 64);
	v->depth = least(options->depth < 64 ? 64 : options->depth,
		(uint32_t)v->device.max_cqe - sends_beside_writes(v));
	v->nr_slots = least(least(v->depth, VERBS_CONNECTION_SLOTS), (uint32_t)v->device.max_qp_wr);
	if (receives < messages + 4 * v->nr_peers)
		return fail(TERN_ERR_UNSUPPORTED,
			"%s has room for %u receives; %u peers need %u at least", v->port.device,
			receives, v->nr_peers, messages + 4 * v->nr_peers);
	/* What a peer has taken it tells in quarters of the window: with half as much again as
	 * there are slots, all slots can be used. */
	v->window = least(v->nr_slots + v->nr_slots / 2, (receives - messages) / v->nr_peers);
	v->nr_receives = messages;
	v->nr_sends = SENDS;
	v->buffer_bytes = (v->message_bytes + 63) / 64 * 64;
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *carve(uint8_t **at, uint64_t bytes)
{
	void *here = *at;

	*at += (bytes + 63) / 64 * 64;
	return here;
}

static int open_pinned(struct verbs *v)
{
	uint64_t sends = (uint64_t)v->nr_sends * v->buffer_bytes,
		 receives = (uint64_t)v->nr_receives * v->buffer_bytes;
	uint64_t credits = (uint64_t)v->nr_peers * sizeof(struct verbs_credit) + 64;
	uint8_t *at;

	v->pinned_bytes =
		(2 * VERBS_GREETINGS * GREETING_ROOM + sends + receives + 2 * credits + 2 * PAGE) /
		PAGE * PAGE;
	v->pinned = mmap(
		NULL, v->pinned_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (v->pinned == MAP_FAILED) {
		v->pinned = NULL;
		return fail(TERN_ERR_NOMEM, "no memory for %llu bytes of buffers",
			(unsigned long long)v->pinned_bytes);
	}
	v->pinned_mr = v->library.reg_mr(v->pd, v->pinned, v->pinned_bytes,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!v->pinned_mr)
		return fail_errno("verbs: registering %llu bytes of buffers (the limit on locked "
				  "memory is ulimit -l)",
			(unsigned long long)v->pinned_bytes);
	at = v->pinned;
	v->greetings_out = carve(&at, VERBS_GREETINGS * GREETING_ROOM);
	v->greetings_in = carve(&at, VERBS_GREETINGS * GREETING_ROOM);
	v->messages_out = carve(&at, sends);
	v->messages_in = carve(&at, receives);
	v->credits_in = carve(&at, credits);
	v->credits_out = carve(&at, credits);
	return 0;
}

static int open_tables(struct verbs *v)
{
	v->peers = calloc(v->nr_peers, sizeof(*v->peers));
	v->lookup = calloc(v->nr_lookup, sizeof(*v->lookup));
	v->held_connections = calloc(v->nr_lookup, sizeof(struct verbs_connection *));
	v->free_sends = calloc(v->nr_sends, sizeof(uint32_t));
	v->given_out = calloc(v->nr_receives, sizeof(*v->given_out));
	if (!v->peers || !v->lookup || !v->held_connections || !v->free_sends || !v->given_out)
		return fail(TERN_ERR_NOMEM, "no memory for %u peers", v->nr_peers);
	for (; v->nr_free_sends < v->nr_sends; v->nr_free_sends++)
		v->free_sends[v->nr_free_sends] = v->nr_free_sends;
	return 0;
}

/* ---- the device's objects -------------------------------------------------------------------- */

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0
		       ? fail_errno("verbs: a device's events")
		       : 0;
}

static int open_context(struct verbs *v, const struct transport_options *options)
{
	int rc = verbs_device_open(&v->library,
		options->device ? options->device : options->provider, &v->settings, &v->context,
		&v->port);

	if (rc)
		return rc;
	if (v->library.query_device(v->context, &v->device))
		return fail_errno("verbs: asking %s what it can do", v->port.device);
	if (v->settings.mtu > 0 && v->settings.mtu < 128 << v->port.attr.active_mtu)
		for (v->port.attr.active_mtu = IBV_MTU_256;
			128 << v->port.attr.active_mtu < v->settings.mtu;)
			v->port.attr.active_mtu++;
	v->pd = v->library.alloc_pd(v->context);
	if (!v->pd)
		return fail_errno("verbs: a protection domain on %s", v->port.device);
	return set_nonblocking(v->context->async_fd);
}

/* One thread uses the transport: where the provider has thread domains it can do without its locks.
 */
static void open_thread_domain(struct verbs *v)
{
	struct ibv_td_init_attr td = {0};
	struct ibv_parent_domain_init_attr parent = {.pd = v->pd};

	v->td = ibv_alloc_td(v->context, &td);
	parent.td = v->td;
	v->parent = v->td ? ibv_alloc_parent_domain(v->context, &parent) : NULL;
}

static int open_queues(struct verbs *v)
{
	uint32_t immediates = v->window * v->nr_peers, messages = v->nr_receives;
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = immediates, .max_sge = 1}};
	uint32_t sends = v->depth + sends_beside_writes(v); /* whatever is posted may come back as
							       flushed, signalled or not */

	v->send_cq = v->library.create_cq(v->context, (int)sends, NULL, NULL, 0);
	v->receive_cq = v->send_cq ? v->library.create_cq(v->context, (int)(immediates + messages),
					     NULL, NULL, 0)
				   : NULL;
	if (!v->receive_cq)
		return fail_errno("verbs: completion queues for %u and %u on %s", sends,
			immediates + messages, v->port.device);
	v->immediate_srq = v->library.create_srq(v->pd, &srq);
	srq.attr.max_wr = messages;
	v->message_srq = v->immediate_srq ? v->library.create_srq(v->pd, &srq) : NULL;
	if (!v->message_srq)
		return fail_errno("verbs: shared receive queues for %u and %u on %s", immediates,
			messages, v->port.device);
	return 0;
}

/* How much a request can carry, and which post functions there are, shows when a queue pair is
 * made. */
static int try_connection(struct verbs *v)
{
	static const uint32_t sizes[] = {192, 64, 16, 0};
	struct verbs_connection *connection;
	int rc = -1;

	for (uint32_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]) && rc; i++) {
		v->inline_bytes = sizes[i / 2];
		v->extended = i % 2 == 0;
		if (v->settings.post == (v->extended ? VERBS_POST_CLASSIC : VERBS_POST_EXTENDED))
			continue;
		rc = verbs_connection_make(v, v->self, VERBS_DATA, &connection);
	}
	if (rc)
		return rc;
	v->inline_bytes = least(connection->inline_bytes, 512);
	verbs_connection_free(v, connection);
	return 0;
}

static int post_all(struct verbs *v)
{
	int rc = verbs_post_immediates(v, v->window * v->nr_peers);

	for (uint32_t i = 0; i < v->nr_receives && !rc; i++)
		rc = verbs_post_buffers(v, &(struct verbs_given){.number = i}, 1);
	return rc;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void verbs_close(struct transport *transport)
{
	struct verbs *v = verbs_of(transport);

	while (v->connections)
		verbs_connection_free(v, v->connections);
	for (uint32_t p = 0; v->peers && p < v->nr_peers; p++)
		if (v->peers[p].ah)
			v->library.destroy_ah(v->peers[p].ah);
	if (v->greet_qp)
		v->library.destroy_qp(v->greet_qp);
	if (v->immediate_srq)
		v->library.destroy_srq(v->immediate_srq);
	if (v->message_srq)
		v->library.destroy_srq(v->message_srq);
	if (v->greet_cq)
		v->library.destroy_cq(v->greet_cq);
	if (v->send_cq)
		v->library.destroy_cq(v->send_cq);
	if (v->receive_cq)
		v->library.destroy_cq(v->receive_cq);
	while (v->regions)
		verbs_dereg(transport, v->regions);
	if (v->pinned_mr)
		v->library.dereg_mr(v->pinned_mr);
	if (v->pinned)
		munmap(v->pinned, v->pinned_bytes);
	if (v->parent)
		v->library.dealloc_pd(v->parent);
	if (v->td)
		ibv_dealloc_td(v->td);
	if (v->pd)
		v->library.dealloc_pd(v->pd);
	if (v->context)
		v->library.close_device(v->context);
	free(v->peers);
	free(v->lookup);
	free(v->held_connections);
	free(v->free_sends);
	free(v->given_out);
	free(v);
}

/* The identity tells this rank from one that had its number before, and from strangers. */
static int open_all(struct verbs *v, const struct transport_options *options)
{
	int rc = verbs_settings_read(&v->settings);

	rc = rc ? rc : verbs_load(&v->library);
	rc = rc ? rc : open_context(v, options);
	rc = rc ? rc : size_queues(v, options);
	rc = rc ? rc : open_tables(v);
	if (!rc && getrandom(&v->identity, sizeof(v->identity), 0) != sizeof(v->identity))
		rc = fail_errno("verbs: a random number");
	rc = rc ? rc : open_pinned(v);
	if (rc)
		return rc;
	open_thread_domain(v);
	rc = open_queues(v);
	rc = rc ? rc : verbs_greet_open(v);
	rc = rc ? rc : try_connection(v);
	return rc ? rc : post_all(v);
}

static void fill_info(const struct verbs *v, struct transport_info *info)
{
	*info = (struct transport_info){.name = "verbs",
		.caps = TRANSPORT_SHUTS_OUT | TRANSPORT_PINS |
			(v->library.reg_dmabuf_mr ? TRANSPORT_DEVICE_MEMORY : 0) |
			(v->settings.relaxed_ordering ? 0 : TRANSPORT_ORDERED | TRANSPORT_FENCE),
		.depth = v->depth,
		.inline_bytes = v->inline_bytes,
		.message_bytes = v->message_bytes,
		.write_bytes = v->port.attr.max_msg_sz};
	snprintf(info->provider, sizeof(info->provider), "%.24s:%u, GID %u", v->port.device,
		v->port.port, v->port.gid_index);
}

static int verbs_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	struct verbs *v;
	int rc;

	if (!options->nr_peers || options->nr_peers > 1u << 16 ||
		options->self >= options->nr_peers || options->message_bytes > 1u << 20 ||
		options->depth > 1u << 16)
		return fail(TERN_ERR_INVALID, "rank %u of %u, %u writes, messages of %u bytes",
			options->self, options->nr_peers, options->depth, options->message_bytes);
	v = calloc(1, sizeof(*v));
	if (!v)
		return fail(TERN_ERR_NOMEM, "no memory for a transport");
	v->base.ops = &transport_verbs;
	v->self = options->self;
	v->nr_peers = options->nr_peers;
	v->message_bytes = options->message_bytes;
	rc = open_all(v, options);
	if (rc) {
		verbs_close(&v->base);
		return rc;
	}
	fill_info(v, info);
	*transport = &v->base;
	return 0;
}

const struct transport_ops transport_verbs = {
	.name = "verbs",
	.open = verbs_open,
	.close = verbs_close,
	.address = verbs_address,
	.connect = verbs_connect,
	.disconnect = verbs_disconnect,
	.reg = verbs_reg,
	.dereg = verbs_dereg,
	.write = verbs_write,
	.send = verbs_send,
	.poll = verbs_poll,
};
