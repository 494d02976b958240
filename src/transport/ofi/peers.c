/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' addresses and states, and registered memory. */
#include "transport/ofi/ofi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "transport/device_memory.h"

#define KEY_DRAWS 16

struct ofi_wire_address {
	char provider[32]; /* both ends have to speak the same */
	struct ofi_key landing;
	uint64_t secret;
	uint32_t name_bytes;
	uint32_t reserved;
	uint8_t name[TRANSPORT_ADDRESS_BYTES - 64];
};

_Static_assert(sizeof(struct ofi_wire_address) <= TRANSPORT_ADDRESS_BYTES, "an address fits");

/* ---- addresses ------------------------------------------------------------------------------- */

int ofi_address(struct transport *transport, void *address, uint32_t *bytes)
{
	struct ofi *o = ofi_of(transport);
	struct ofi_wire_address a = {
		.landing = {.address = o->landing_key.address, .key = o->landing_key.key},
		.secret = o->secret};
	size_t name_bytes = sizeof(a.name);
	uint32_t used;
	int rc = fi_getname(&o->ep->fid, a.name, &name_bytes);

	if (rc)
		return ofi_fail(o, rc, "asking for the endpoint's address");
	snprintf(a.provider, sizeof(a.provider), "%s", o->info->fabric_attr->prov_name);
	a.name_bytes = (uint32_t)name_bytes;
	used = (uint32_t)(offsetof(struct ofi_wire_address, name) + name_bytes);
	if (*bytes < used)
		return fail(TERN_ERR_INVALID, "an address takes %u bytes, not %u", used, *bytes);
	memcpy(address, &a, used);
	*bytes = used;
	return 0;
}

static int read_address(const struct ofi *o, uint32_t peer, const void *address, uint32_t bytes,
	struct ofi_wire_address *a)
{
	const char *ours = o->info->fabric_attr->prov_name;

	if (peer >= o->nr_peers || bytes > sizeof(*a) ||
		bytes < offsetof(struct ofi_wire_address, name))
		return fail(TERN_ERR_INVALID, "peer %u of %u, an address of %u bytes", peer,
			o->nr_peers, bytes);
	memset(a, 0, sizeof(*a));
	memcpy(a, address, bytes);
	if (a->name_bytes != bytes - offsetof(struct ofi_wire_address, name))
		return fail(TERN_ERR_INVALID, "peer %u: an address of %u bytes that says %u", peer,
			bytes, a->name_bytes);
	if (strncmp(a->provider, ours, sizeof(a->provider) - 1))
		return fail(TERN_ERR_MISMATCH,
			"peer %u uses libfabric's provider %.31s, this rank %s", peer, a->provider,
			ours);
	return 0;
}

static int replace_abandoned(struct ofi *o, struct ofi_pool *pool)
{
	int rc = pool->nr_abandoned ? ofi_pool_grow(o, pool, pool->nr_abandoned) : 0;

	if (!rc)
		pool->nr_abandoned = 0;
	return rc;
}

int ofi_connect(struct transport *transport, uint32_t p, const void *address, uint32_t bytes)
{
	struct ofi *o = ofi_of(transport);
	struct ofi_wire_address a;
	struct ofi_peer *peer;
	int rc = read_address(o, p, address, bytes, &a);

	if (rc)
		return rc;
	peer = &o->peers[p];
	if (peer->state != OFI_UNKNOWN)
		return fail(TERN_ERR_STATE, "peer %u is connected", p);
	rc = replace_abandoned(o, &o->writes);
	rc = rc ? rc : replace_abandoned(o, &o->sends);
	rc = rc ? rc : replace_abandoned(o, &o->greetings);
	if (rc)
		return rc;
	rc = fi_av_insert(o->av, a.name, 1, &peer->address, 0, NULL);
	if (rc != 1)
		return rc < 0 ? ofi_fail(o, rc, "adding a peer's address")
			      : fail(TERN_ERR_INVALID,
					"peer %u: libfabric does not take its address", p);
	peer->landing = a.landing;
	peer->secret = a.secret;
	peer->state = OFI_GREETING;
	o->nr_greeting++;
	return 0;
}

void ofi_peer_fails(struct ofi *o, uint32_t p, int error, const char *text)
{
	struct ofi_peer *peer = &o->peers[p];

	if (peer->state != OFI_UP && peer->state != OFI_GREETING)
		return;
	o->nr_greeting -= peer->state == OFI_GREETING;
	peer->state = OFI_DOWN;
	peer->error = error;
	o->nr_down++;
	snprintf(peer->text, sizeof(peer->text), "%s", text);
}

/* The provider may still own what is under way to the peer: nobody hears of it any more. */
static void abandon(struct ofi_pool *pool, uint32_t p)
{
	for (struct ofi_slab *slab = pool->slabs; slab; slab = slab->next)
		for (uint32_t i = 0; i < slab->nr_ops; i++)
			if (slab->ops[i].busy && slab->ops[i].peer == p) {
				slab->ops[i].told = true;
				slab->ops[i].peer = UINT32_MAX;
				pool->nr_abandoned++;
			}
}

/* All but the text, which the engine may still be reading. */
static void forget(struct ofi_peer *peer)
{
	char text[sizeof(peer->text)];

	memcpy(text, peer->text, sizeof(text));
	*peer = (struct ofi_peer){.state = OFI_UNKNOWN};
	memcpy(peer->text, text, sizeof(text));
}

/* Removing an address closes its connection (facts.c): what of a write has not landed by then does
 * not land any more. libfabric 1.17 trips over a peer that it knows and has no connection to. One
 * more greeting begins a connection there, or cannot, and then there is nothing to close. */
static bool can_be_removed(struct ofi *o, uint32_t p)
{
	return !o->facts->reconnects || ofi_greet(o, p) >= 0;
}

int ofi_disconnect(struct transport *transport, uint32_t p)
{
	struct ofi *o = ofi_of(transport);
	struct ofi_peer *peer;
	bool removed;
	int rc = 0;

	if (p >= o->nr_peers)
		return fail(TERN_ERR_INVALID, "peer %u of %u", p, o->nr_peers);
	peer = &o->peers[p];
	if (peer->state == OFI_UNKNOWN)
		return 0;
	removed = can_be_removed(o, p);
	abandon(&o->writes, p);
	abandon(&o->sends, p);
	abandon(&o->greetings, p);
	o->nr_greeting -= peer->state == OFI_GREETING;
	o->nr_down -= peer->state == OFI_DOWN && !peer->reported;
	if (removed)
		rc = fi_av_remove(o->av, &peer->address, 1, 0);
	forget(peer);
	return rc ? ofi_fail(o, rc, "removing a peer's address") : 0;
}

int ofi_draw(uint64_t *secret)
{
	if (getrandom(secret, sizeof(*secret), 0) == sizeof(*secret))
		return 0;
	return fail_errno("getrandom");
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Whoever can reach the endpoint and knows a key can write. So keys are drawn, as wide as the
 * provider takes them, and again when one is in use; providers that choose keys ignore it. */
static int register_drawn(struct ofi *o, const struct fi_mr_attr *as, struct fid_mr **mr)
{
	struct fi_mr_attr attr = *as;
	size_t key_bytes = o->info->domain_attr->mr_key_size;
	uint64_t mask = key_bytes < sizeof(mask) ? (1ull << 8 * key_bytes) - 1 : UINT64_MAX, key;
	int rc = -FI_ENOKEY;

	for (int i = 0; i < KEY_DRAWS && rc == -FI_ENOKEY; i++) {
		rc = ofi_draw(&key);
		if (rc)
			return rc;
		attr.requested_key = key & mask;
		rc = fi_mr_regattr(o->domain, &attr, 0, mr);
	}
	return rc ? ofi_fail(o, rc, "registering memory") : 0;
}

int ofi_reg_mr(struct ofi *o, const struct fi_mr_attr *attr, struct fid_mr **out)
{
	struct fid_mr *mr;
	int rc = register_drawn(o, attr, &mr);

	if (rc)
		return rc;
	if (o->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		rc = fi_mr_bind(mr, &o->ep->fid, 0);
		if (!rc)
			rc = fi_mr_enable(mr);
		if (rc)
			fi_close(&mr->fid);
	}
	if (rc)
		return ofi_fail(o, rc, "registering memory");
	*out = mr;
	return 0;
}

static void link_region(struct ofi *o, struct transport_region *region)
{
	region->next = o->regions;
	region->at = &o->regions;
	if (o->regions)
		o->regions->at = &region->next;
	o->regions = region;
}

/* A GPU's by FI_HMEM_CUDA, which was never run on a NIC. */
static int register_any(struct ofi *o, void *base, uint64_t bytes, struct transport_region *region)
{
	struct iovec memory = {.iov_base = base, .iov_len = bytes};
	struct fi_mr_attr attr = {
		.mr_iov = &memory, .iov_count = 1, .access = FI_WRITE | FI_REMOTE_WRITE};
	int ordinal;

	region->on_device = device_memory_is(base, &ordinal);
	if (region->on_device && !o->moves_devices)
		return fail(TERN_ERR_UNSUPPORTED,
			"libfabric (%s) does not move a GPU's memory (FI_HMEM)",
			o->info->fabric_attr->prov_name);
	if (region->on_device) {
		attr.iface = FI_HMEM_CUDA;
		attr.device.cuda = ordinal;
	}
	return ofi_reg_mr(o, &attr, &region->mr);
}

int ofi_reg(struct transport *transport, void *base, uint64_t bytes, struct transport_region **out,
	struct transport_key *key)
{
	struct ofi *o = ofi_of(transport);
	struct transport_region *region = calloc(1, sizeof(*region));
	int rc;

	if (!region)
		return fail(TERN_ERR_NOMEM, "no memory for a region's record");
	rc = register_any(o, base, bytes, region);
	if (!rc && fi_mr_key(region->mr) == FI_KEY_NOTAVAIL) {
		fi_close(&region->mr->fid);
		rc = fail(TERN_ERR_UNSUPPORTED, "libfabric (%s): keys of more than 8 bytes",
			o->info->fabric_attr->prov_name);
	}
	if (rc) {
		free(region);
		return rc;
	}
	region->base = (uintptr_t)base;
	region->bytes = bytes;
	region->desc = fi_mr_desc(region->mr);
	link_region(o, region);
	*key = (struct transport_key){
		.address = o->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)base : 0,
		.bytes = bytes,
		.key = fi_mr_key(region->mr)};
	*out = region;
	return 0;
}

void ofi_dereg(struct transport *transport, struct transport_region *region)
{
	(void)transport;
	if (!region)
		return;
	*region->at = region->next;
	if (region->next)
		region->next->at = region->at;
	fi_close(&region->mr->fid);
	free(region);
}
