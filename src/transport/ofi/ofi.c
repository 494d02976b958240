/* SPDX-License-Identifier: Apache-2.0 */
/* Any network that libfabric has a provider for: reliable datagram endpoints (FI_EP_RDM), one-sided
 * writes with remote completion data as the immediate, two-sided messages into posted buffers, one
 * completion queue that is polled.
 *
 * - A signalled write asks for FI_DELIVERY_COMPLETE: the default completion may come before the
 * data has landed (tcp).
 * - Completion data is cut to the 4 bytes that verbs carries.
 * - Every operation asks for a completion, so that what is under way is known at all times; only
 * signalled ones are reported.
 * - Inline writes are copied into a registered buffer of their operation: providers disagree about
 * FI_INJECT, and some take more than they say.
 * - The first operation to a peer makes a connection (27 ms on tcp;ofi_rxm), so connecting sends a
 * greeting, and writes answer AGAIN until it has gone out. */
#include "transport/ofi/ofi.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "transport/presence.h"

#define CQ_LEAST 4096

int ofi_fail(const struct ofi *o, int64_t rc, const char *what)
{
	const char *provider = o->info ? o->info->fabric_attr->prov_name : "?";

	return fail(error_of_errno((int)-rc), "libfabric (%s), %s: %s", provider, what,
		o->library.strerror((int)-rc));
}

bool ofi_is_death(int64_t err)
{
	switch (err) {
	case FI_ENOTCONN:
	case FI_ECONNREFUSED:
	case FI_ECONNRESET:
	case FI_ECONNABORTED:
	case FI_ESHUTDOWN:
	case FI_EHOSTUNREACH:
	case FI_EHOSTDOWN:
	case FI_ENETUNREACH:
	case FI_ETIMEDOUT:
	case EPIPE:
	case FI_ECANCELED: /* tcp: what was under way on a connection that broke */
	case FI_EIO:       /* sockets, and flushed work requests of verbs */
	case FI_ENOENT:    /* sockets, once the connection is gone */
		return true;
	}
	return false;
}

/* ---- which provider, which NIC --------------------------------------------------------------- */

/* The address of an interface, in digits; of the first family that libfabric will take: IPv4, then
 * IPv6 that is not link-local. */
static bool interface_address(const char *name, char *text, socklen_t bytes)
{
	struct ifaddrs *all, *best = NULL;
	bool found;

	if (getifaddrs(&all))
		return false;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || strcmp(i->ifa_name, name))
			continue;
		bool is_better =
			i->ifa_addr->sa_family == AF_INET
				? !best || best->ifa_addr->sa_family != AF_INET
				: i->ifa_addr->sa_family == AF_INET6 && !best &&
					  !IN6_IS_ADDR_LINKLOCAL(
						  &((struct sockaddr_in6 *)(void *)i->ifa_addr)
							   ->sin6_addr);

		best = is_better ? i : best;
	}
	found = best && !getnameinfo(best->ifa_addr,
				best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
								     : sizeof(struct sockaddr_in6),
				text, bytes, NULL, 0, NI_NUMERICHOST);
	freeifaddrs(all);
	return found;
}

static bool is_address(const char *device)
{
	struct in6_addr any;

	return inet_pton(AF_INET, device, &any) == 1 || inet_pton(AF_INET6, device, &any) == 1;
}

static int fill_hints(
	struct fi_info *hints, const struct ofi_facts *facts, const char *provider, bool devices)
{
	hints->caps = FI_MSG | FI_RMA | facts->ask_caps | (devices ? FI_HMEM : 0);
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
				      FI_MR_VIRT_ADDR | FI_MR_ENDPOINT | (devices ? FI_MR_HMEM : 0);
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->av_type = FI_AV_TABLE;
	hints->domain_attr->cq_data_size = sizeof(uint32_t);
	/* A provider that can keep writes in order does so only if it is asked; one that cannot
	 * refuses the question. */
	hints->tx_attr->msg_order = hints->rx_attr->msg_order =
		facts->caps & TRANSPORT_ORDERED ? FI_ORDER_WAW | FI_ORDER_SAS : FI_ORDER_SAS;
	hints->fabric_attr->prov_name = strdup(provider);
	return hints->fabric_attr->prov_name
		       ? 0
		       : fail(TERN_ERR_NOMEM, "no memory for a provider's name");
}

/* libfabric takes the hint of a domain's name lightly: what it lists may be other devices. */
static struct fi_info *of_device(struct fi_info *list, const char *device)
{
	while (list && (!list->domain_attr->name || strcmp(list->domain_attr->name, device)))
		list = list->next;
	return list;
}

static int keep_info(struct ofi *o, struct fi_info *list, const char *device)
{
	struct fi_info *one = device ? of_device(list, device) : list;

	if (!one)
		return fail(TERN_ERR_UNSUPPORTED, "libfabric (%s) has no device %s",
			list->fabric_attr->prov_name, device);
	o->info = o->library.dupinfo(one);
	if (!o->info)
		return fail(TERN_ERR_NOMEM, "no memory for a device's description");
	o->facts = ofi_facts(o->info->fabric_attr->prov_name);
	return 0;
}

static int ask(struct ofi *o, struct fi_info *hints, const char *provider, const char *device)
{
	char address[NI_MAXHOST];
	const char *node = NULL;
	struct fi_info *list;
	int rc;

	if (device && o->facts->by_interface && is_address(device))
		node = device;
	else if (device && o->facts->by_interface &&
		 interface_address(device, address, sizeof(address)))
		node = address;
	else if (device && !(hints->domain_attr->name = strdup(device)))
		return fail(TERN_ERR_NOMEM, "no memory for a device's name");
	rc = o->library.getinfo(
		FI_VERSION(1, 17), node, NULL, node ? FI_SOURCE | FI_NUMERICHOST : 0, hints, &list);
	if (rc)
		return fail(TERN_ERR_UNSUPPORTED,
			"libfabric has no provider \"%s\"%s%s that can do what Tern needs: %s",
			provider, device ? " on device " : "", device ? device : "",
			o->library.strerror(-rc));
	rc = keep_info(o, list, node ? NULL : device);
	o->library.freeinfo(list);
	return rc;
}

static int choose_for(
	struct ofi *o, const char *provider, const struct transport_options *options, bool devices)
{
	struct fi_info *hints = o->library.dupinfo(NULL);
	int rc;

	if (!hints)
		return fail(TERN_ERR_NOMEM, "no memory to ask libfabric");
	o->facts = ofi_facts(provider);
	rc = fill_hints(hints, o->facts, provider, devices);
	if (!rc)
		rc = ask(o, hints, provider, options->device);
	o->library.freeinfo(hints);
	return rc;
}

/* Memory of GPUs where the provider has it: who is asked for what it has not refuses everything.
 * Providers that would have the processor copy it are not asked: such a copy may wait for the
 * kernels that wait for it. */
static int choose(struct ofi *o, const struct transport_options *options)
{
	const char *provider = options->provider ? options->provider : OFI_DEFAULT_PROVIDER;
	bool devices = ofi_facts(provider)->peer_to_peer;
	int rc = choose_for(o, provider, options, devices);

	if (rc && devices) {
		devices = false;
		rc = choose_for(o, provider, options, false);
	}
	o->moves_devices = !rc && devices && (o->info->caps & FI_HMEM);
	return rc;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static uint32_t nr_receives(const struct ofi *o)
{
	uint64_t wish = OFI_RECEIVES > 4 * o->nr_peers ? OFI_RECEIVES : 4 * o->nr_peers;

	return (uint32_t)(wish < o->info->rx_attr->size ? wish : o->info->rx_attr->size);
}

static uint32_t nr_writes(const struct ofi *o, uint32_t depth)
{
	uint32_t wish = depth < 64 ? 64 : depth;

	return wish < o->info->tx_attr->size ? wish : (uint32_t)o->info->tx_attr->size;
}

static uint32_t nr_sends(const struct ofi *o)
{
	return OFI_SENDS > OFI_PEER_SENDS * o->nr_peers ? OFI_SENDS : OFI_PEER_SENDS * o->nr_peers;
}

static int open_queues(struct ofi *o, uint32_t nr_ops)
{
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av = {.type = FI_AV_TABLE, .count = o->nr_peers};
	int rc;

	cq.size = 4 * nr_ops < CQ_LEAST ? CQ_LEAST : 4 * nr_ops;
	rc = fi_cq_open(o->domain, &cq, &o->cq, NULL);
	if (rc)
		return ofi_fail(o, rc, "opening a completion queue");
	rc = fi_av_open(o->domain, &av, &o->av, NULL);
	return rc ? ofi_fail(o, rc, "opening an address table") : 0;
}

static int open_endpoint(struct ofi *o)
{
	int rc = fi_endpoint(o->domain, o->info, &o->ep, NULL), p2p = FI_HMEM_P2P_REQUIRED;

	if (!rc && o->moves_devices)
		o->moves_devices = !fi_setopt(
			&o->ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof(p2p));
	if (!rc)
		rc = fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV);
	if (!rc)
		rc = fi_ep_bind(o->ep, &o->av->fid, 0);
	if (!rc)
		rc = fi_enable(o->ep);
	return rc ? ofi_fail(o, rc, "opening an endpoint") : 0;
}

static int open_objects(struct ofi *o, uint32_t depth)
{
	int rc = o->library.fabric(o->info->fabric_attr, &o->fabric, NULL);

	if (rc)
		return ofi_fail(o, rc, "opening a fabric");
	rc = fi_domain(o->fabric, o->info, &o->domain, NULL);
	if (rc)
		return ofi_fail(o, rc, "opening a domain");
	rc = open_queues(o,
		nr_writes(o, depth) + nr_sends(o) + OFI_GREETINGS * o->nr_peers + nr_receives(o));
	return rc ? rc : open_endpoint(o);
}

static int open_buffers(struct ofi *o, uint32_t depth)
{
	int rc = ofi_reg(
		&o->base, o->landing_bytes, sizeof(o->landing_bytes), &o->landing, &o->landing_key);

	o->writes.buffer_bytes = OFI_INLINE_BYTES;
	o->greetings.buffer_bytes = OFI_LANDING_BYTES;
	o->sends.buffer_bytes = o->receives.buffer_bytes =
		(uint32_t)((sizeof(struct ofi_header) + o->message_bytes + 63) / 64 * 64);
	if (!rc)
		rc = ofi_pool_grow(o, &o->writes, nr_writes(o, depth));
	if (!rc)
		rc = ofi_pool_grow(o, &o->sends, nr_sends(o));
	if (!rc)
		rc = ofi_pool_grow(o, &o->greetings, OFI_GREETINGS * o->nr_peers);
	if (!rc)
		rc = ofi_pool_grow(o, &o->receives, nr_receives(o));
	if (rc)
		return rc;
	for (struct ofi_op *op; (op = ofi_op_take(o, OFI_RECEIVE, 0));) {
		op->next = o->to_post;
		o->to_post = op;
	}
	ofi_post_receives(o);
	return 0;
}

static void close_fid(struct fid *fid)
{
	if (fid)
		fi_close(fid);
}

static void ofi_close(struct transport *transport)
{
	struct ofi *o = ofi_of(transport);

	close_fid(o->ep ? &o->ep->fid : NULL);
	while (o->regions)
		ofi_dereg(transport, o->regions);
	ofi_pool_free(&o->writes);
	ofi_pool_free(&o->sends);
	ofi_pool_free(&o->greetings);
	ofi_pool_free(&o->receives);
	close_fid(o->cq ? &o->cq->fid : NULL);
	close_fid(o->av ? &o->av->fid : NULL);
	close_fid(o->domain ? &o->domain->fid : NULL);
	close_fid(o->fabric ? &o->fabric->fid : NULL);
	if (o->info)
		o->library.freeinfo(o->info);
	free(o->peers);
	free(o);
}

static int open_all(struct ofi *o, const struct transport_options *options)
{
	int rc = ofi_load(&o->library);

	if (!rc)
		rc = ofi_draw(&o->secret);
	if (!rc)
		rc = choose(o, options);
	if (!rc)
		rc = open_objects(o, options->depth);
	return rc ? rc : open_buffers(o, options->depth);
}

static int ofi_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	struct ofi *o;
	int rc;

	if (!options->nr_peers || options->nr_peers > 1u << 16 ||
		options->self >= options->nr_peers || options->message_bytes > 1u << 20)
		return fail(TERN_ERR_INVALID, "rank %u of %u, messages of %u bytes", options->self,
			options->nr_peers, options->message_bytes);
	o = calloc(1, sizeof(*o));
	if (!o)
		return fail(TERN_ERR_NOMEM, "no memory for a transport");
	o->base.ops = &transport_ofi;
	o->self = options->self;
	o->nr_peers = options->nr_peers;
	o->message_bytes = options->message_bytes;
	o->peers = calloc(o->nr_peers, sizeof(*o->peers));
	rc = o->peers ? open_all(o, options)
		      : fail(TERN_ERR_NOMEM, "no memory for %u peers", o->nr_peers);
	if (rc) {
		ofi_close(&o->base);
		return rc;
	}
	*info = (struct transport_info){.name = "ofi",
		.caps = o->facts->caps | (o->moves_devices ? TRANSPORT_DEVICE_MEMORY : 0) |
			(o->info->domain_attr->mr_mode & FI_MR_ALLOCATED ? TRANSPORT_PINS : 0),
		.depth = nr_writes(o, options->depth),
		.inline_bytes = OFI_INLINE_BYTES,
		.message_bytes = options->message_bytes,
		.write_bytes = o->info->ep_attr->max_msg_size};
	snprintf(info->provider, sizeof(info->provider), "%s", o->info->fabric_attr->prov_name);
	*transport = &o->base;
	return 0;
}

const struct transport_ops transport_ofi = {
	.name = "ofi",
	.open = ofi_open,
	.close = ofi_close,
	.address = ofi_address,
	.connect = ofi_connect,
	.disconnect = ofi_disconnect,
	.reg = ofi_reg,
	.dereg = ofi_dereg,
	.write = ofi_write,
	.send = ofi_send,
	.poll = ofi_poll,
};
