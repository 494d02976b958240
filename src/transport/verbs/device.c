/* SPDX-License-Identifier: Apache-2.0 */
/* Which device, which port, which GID.
 *
 * On Ethernet a GID is an address and a protocol, and an index says which: a fixed index is right
 * on one machine and RoCE v1 on the next. So the table is searched: RoCE v2 before v1, a routable
 * address before a link's own. On InfiniBand index 0 is the port's. */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const uint8_t mapped_prefix[12] = {[10] = 0xff, [11] = 0xff};

void verbs_address_text(const union ibv_gid *gid, char *text, size_t room)
{
	if (!memcmp(gid->raw, mapped_prefix, sizeof(mapped_prefix)))
		inet_ntop(AF_INET, gid->raw + 12, text, (socklen_t)room);
	else
		inet_ntop(AF_INET6, gid->raw, text, (socklen_t)room);
}

/* ---- a port's GID ---------------------------------------------------------------------------- */

/* Higher is better; 0: cannot be used. */
static int rate_gid(const struct ibv_gid_entry *gid, const char *address)
{
	static const union ibv_gid none;
	char text[INET6_ADDRSTRLEN];
	int rate = gid->gid_type == IBV_GID_TYPE_ROCE_V2 ? 8 : 1;

	if (!memcmp(&gid->gid, &none, sizeof(none)))
		return 0;
	verbs_address_text(&gid->gid, text, sizeof(text));
	if (address && !strcmp(text, address))
		rate += 16;
	if (!memcmp(gid->gid.raw, mapped_prefix, sizeof(mapped_prefix)))
		rate += 4;
	else if (gid->gid.raw[0] != 0xfe)
		rate += 2;
	return rate;
}

static bool choose_gid(const struct verbs_library *l, struct ibv_context *context,
	const struct verbs_settings *settings, const char *address, struct verbs_port *out)
{
	int best = 0;

	for (uint32_t i = 0; i < (uint32_t)out->attr.gid_tbl_len && i <= UINT8_MAX;
		i++) { /* an
			  address
			  handle
			  has 8
			  bits
			  for it
			*/
		struct ibv_gid_entry gid;
		int rate;

		if (settings->gid_index >= 0 && i != (uint32_t)settings->gid_index)
			continue;
		if (l->query_gid_ex(context, out->port, i, &gid, 0, sizeof(gid)))
			continue;
		rate = rate_gid(&gid, address);
		if (rate > best) {
			best = rate;
			out->gid = gid;
			out->gid_index = i;
		}
	}
	return best && (!address || best >= 16);
}

/* ---- a port ---------------------------------------------------------------------------------- */

static int numa_node_of(const char *device)
{
	char path[128], line[16] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/device/numa_node", device);
	file = fopen(path, "re");
	if (!file)
		return -1;
	if (!fgets(line, sizeof(line), file))
		snprintf(line, sizeof(line), "-1");
	fclose(file);
	return atoi(line);
}

static const char *state_name(enum ibv_port_state state)
{
	static const char *const names[] = {
		"of no state", "down", "initialising", "armed", "active", "deferred"};

	return (unsigned int)state < sizeof(names) / sizeof(names[0]) ? names[state]
								      : "of unknown state";
}

static bool same_interface(const struct verbs_port *port, const char *interface)
{
	unsigned int wanted = if_nametoindex(interface);

	return wanted && wanted == port->gid.ndev_ifindex;
}

/* `where`: NULL, an address or an interface that the GID has to be of. */
void verbs_port_ask(const struct verbs_library *l, struct ibv_context *context, uint8_t number,
	const struct verbs_settings *settings, const char *where, struct verbs_port *out)
{
	struct in6_addr any;
	bool is_address = where && (inet_pton(AF_INET, where, &any) == 1 ||
					   inet_pton(AF_INET6, where, &any) == 1);

	*out = (struct verbs_port){.port = number};
	snprintf(out->device, sizeof(out->device), "%s", l->get_device_name(context->device));
	out->numa_node = numa_node_of(out->device);
	if (l->query_port(context, number, &out->attr)) {
		snprintf(out->reason, sizeof(out->reason), "port %u cannot be asked", number);
		return;
	}
	if (!choose_gid(l, context, settings, is_address ? where : NULL, out)) {
		snprintf(out->reason, sizeof(out->reason), "port %u has no GID%s%.48s%s", number,
			is_address ? " of address " : "", is_address ? where : "",
			settings->gid_index >= 0 ? " at that index"
						 : ": its interface needs an address");
		return;
	}
	if (out->gid.ndev_ifindex)
		if_indextoname(out->gid.ndev_ifindex, out->interface);
	verbs_address_text(&out->gid.gid, out->address, sizeof(out->address));
	if (where && !is_address && !same_interface(out, where))
		snprintf(out->reason, sizeof(out->reason), "port %u is not of interface %.32s",
			number, where);
	else if (out->attr.state != IBV_PORT_ACTIVE)
		snprintf(out->reason, sizeof(out->reason), "port %u is %s", number,
			state_name(out->attr.state));
}

static bool is_loopback(const struct verbs_port *port)
{
	return !strncmp(port->address, "127.", 4) || !strcmp(port->address, "::1");
}

/* Near this core's memory before far from it, then by speed, whose code ascends as speeds do; the
 * loopback only where there is nothing else. */
static int rate_port(const struct verbs_port *port)
{
	int rate = port->attr.active_speed * 16 + port->attr.active_width;
	unsigned int cpu, node;

	if (is_loopback(port))
		return 0;
	if (!getcpu(&cpu, &node) && port->numa_node >= 0 && (unsigned int)port->numa_node == node)
		rate += 100000;
	return rate;
}

/* ---- a device -------------------------------------------------------------------------------- */

/* What was asked for: a device, perhaps with a port; or an interface or address, on any device. */
struct wish {
	char device[64];
	int port; /* -1: any */
	const char *where;
};

static bool is_device(const struct verbs_library *l, struct ibv_device **list, const char *name)
{
	for (; *list; list++)
		if (!strcmp(l->get_device_name(*list), name))
			return true;
	return false;
}

static void read_wish(const struct verbs_library *l, struct ibv_device **list, const char *name,
	const struct verbs_settings *settings, struct wish *wish)
{
	size_t length = name ? strcspn(name, ":") : 0;

	*wish = (struct wish){.port = settings->port};
	if (!name)
		return;
	snprintf(wish->device, sizeof(wish->device), "%.*s", (int)length, name);
	if (!is_device(l, list, wish->device)) {
		wish->device[0] = 0;
		wish->where = name;
	} else if (name[length]) {
		wish->port = atoi(name + length + 1);
	}
}

/* The best of a device's ports; the reason stays in `best` if none can be used. */
static void ask_ports(const struct verbs_library *l, struct ibv_context *context,
	const struct wish *wish, const struct verbs_settings *settings, struct verbs_port *best)
{
	struct ibv_device_attr device;

	*best = (struct verbs_port){0};
	snprintf(best->reason, sizeof(best->reason), "it has no port %d", wish->port);
	if (l->query_device(context, &device))
		return;
	for (uint8_t port = 1; port <= device.phys_port_cnt; port++) {
		struct verbs_port one;

		if (wish->port >= 0 && port != wish->port)
			continue;
		verbs_port_ask(l, context, port, settings, wish->where, &one);
		if (best->reason[0] || (!one.reason[0] && rate_port(&one) > rate_port(best)))
			*best = one;
	}
}

static int open_best(const struct verbs_library *l, struct ibv_device **list,
	const struct wish *wish, const struct verbs_settings *settings,
	struct ibv_context **context, struct verbs_port *port)
{
	char reason[200] = "there is no RDMA device";

	*context = NULL;
	for (; *list; list++) {
		struct ibv_context *one;
		struct verbs_port at;

		if (wish->device[0] && strcmp(l->get_device_name(*list), wish->device))
			continue;
		one = l->open_device(*list);
		if (!one) {
			snprintf(reason, sizeof(reason), "%s cannot be opened",
				l->get_device_name(*list));
			continue;
		}
		ask_ports(l, one, wish, settings, &at);
		if (at.reason[0])
			snprintf(reason, sizeof(reason), "%s: %s", l->get_device_name(*list),
				at.reason);
		if (at.reason[0] || (*context && rate_port(&at) <= rate_port(port))) {
			l->close_device(one);
			continue;
		}
		if (*context)
			l->close_device(*context);
		*context = one;
		*port = at;
	}
	return *context ? 0 : fail(TERN_ERR_UNSUPPORTED, "verbs: %s", reason);
}

int verbs_device_open(const struct verbs_library *l, const char *name,
	const struct verbs_settings *settings, struct ibv_context **context,
	struct verbs_port *port)
{
	struct ibv_device **list = l->get_device_list(NULL);
	struct wish wish;
	int rc;

	if (!list)
		return fail(TERN_ERR_UNSUPPORTED, "verbs: the kernel tells of no RDMA devices: %s",
			strerror(errno));
	read_wish(l, list, name, settings, &wish);
	rc = open_best(l, list, &wish, settings, context, port);
	l->free_device_list(list);
	if (rc && wish.where)
		rc = fail(TERN_ERR_UNSUPPORTED,
			"verbs: no RDMA device is called %s or has that interface or address",
			name);
	return rc;
}

/* ---- for people ------------------------------------------------------------------------------ */

static void fill_facts(const struct verbs_port *port, struct verbs_facts *f)
{
	*f = (struct verbs_facts){.link = port->attr.link_layer == IBV_LINK_LAYER_ETHERNET
						  ? "Ethernet"
						  : "InfiniBand",
		.port = port->port,
		.gid_index = port->gid_index,
		.mtu_bytes = 128u << port->attr.active_mtu,
		.message_bytes = port->attr.max_msg_sz,
		.numa_node = port->numa_node};
	snprintf(f->device, sizeof(f->device), "%s", port->device);
	snprintf(f->interface, sizeof(f->interface), "%s", port->interface);
	snprintf(f->address, sizeof(f->address), "%s", port->address);
	snprintf(f->reason, sizeof(f->reason), "%s", port->reason);
	snprintf(f->gid_type, sizeof(f->gid_type), "%s",
		port->gid.gid_type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
		: port->gid.gid_type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
							     : "InfiniBand");
}

static void list_device(const struct verbs_library *l, struct ibv_device *device,
	const struct verbs_settings *settings,
	void (*each)(void *ctx, const struct verbs_facts *facts), void *ctx)
{
	struct ibv_context *context = l->open_device(device);
	struct verbs_port port = {0};
	struct ibv_device_attr attr = {0};
	struct verbs_facts facts;

	if (!context || l->query_device(context, &attr)) {
		snprintf(port.device, sizeof(port.device), "%s", l->get_device_name(device));
		snprintf(port.reason, sizeof(port.reason), "it cannot be opened");
		fill_facts(&port, &facts);
		each(ctx, &facts);
	}
	for (uint8_t i = 1; i <= attr.phys_port_cnt; i++) {
		verbs_port_ask(l, context, i, settings, NULL, &port);
		fill_facts(&port, &facts);
		each(ctx, &facts);
	}
	if (context)
		l->close_device(context);
}

int verbs_list(void (*each)(void *ctx, const struct verbs_facts *facts), void *ctx)
{
	struct verbs_settings settings;
	struct ibv_device **list;
	struct verbs_library l;
	int rc = verbs_load(&l), nr = 0;

	rc = rc ? rc : verbs_settings_read(&settings);
	if (rc)
		return rc;
	list = l.get_device_list(&nr);
	if (!list)
		return fail(TERN_ERR_UNSUPPORTED, "verbs: the kernel tells of no RDMA devices: %s",
			strerror(errno));
	if (!nr)
		rc = fail(TERN_ERR_UNSUPPORTED, "verbs: there is no RDMA device");
	for (int i = 0; i < nr; i++)
		list_device(&l, list[i], &settings, each, ctx);
	l.free_device_list(list);
	return rc;
}

int verbs_probe(const char *device, struct verbs_facts *facts)
{
	struct verbs_settings settings;
	struct ibv_context *context;
	struct verbs_library l;
	struct verbs_port port;
	int rc = verbs_load(&l);

	rc = rc ? rc : verbs_settings_read(&settings);
	rc = rc ? rc : verbs_device_open(&l, device, &settings, &context, &port);
	if (rc)
		return rc;
	l.close_device(context);
	if (facts)
		fill_facts(&port, facts);
	return 0;
}
