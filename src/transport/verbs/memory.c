/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory, the host's and a GPU's.
 *
 * A GPU's memory is registered through a dma-buf, which the CUDA driver makes of an address range
 * and the RDMA device's driver takes: no module of a vendor between them. Never run on a NIC:
 * no machine with both was at hand. What is asked of each is what tests/unit/test_device_memory.c
 * has seen. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/device_memory.h"

/* Relaxed ordering lets the target's PCIe bus pass a write's bytes by another's. What is promised
 * then is what a completion says: a device writes completions strictly behind all bytes that came
 * before them. See docs/transports.md. */
static unsigned int access_of(const struct verbs *v)
{
	return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
	       (v->settings.relaxed_ordering ? (unsigned int)IBV_ACCESS_RELAXED_ORDERING : 0);
}

/* ---- a GPU's --------------------------------------------------------------------------------- */

static int register_device(struct verbs *v, void *base, uint64_t bytes, struct ibv_mr **out)
{
	struct dma_buffer buffer;
	int rc;

	if (!v->library.reg_dmabuf_mr)
		return fail(TERN_ERR_UNSUPPORTED, "verbs: this libibverbs cannot register a GPU's "
						  "memory (it has no ibv_reg_dmabuf_mr)");
	rc = device_memory_buffer(base, bytes, &buffer);
	if (rc)
		return fail(rc, "verbs: %s", tern_last_error());
	*out = v->library.reg_dmabuf_mr(
		v->pd, buffer.offset, bytes, (uintptr_t)base, buffer.fd, (int)access_of(v));
	rc = *out ? 0
		  : fail_errno("verbs: registering %llu bytes of a GPU's memory on %s",
			    (unsigned long long)bytes, v->port.device);
	close(buffer.fd); /* the region holds the buffer */
	return rc;
}

/* ---- the host's ------------------------------------------------------------------------------ */

static int register_host(struct verbs *v, void *base, uint64_t bytes, struct ibv_mr **out)
{
	unsigned int access = access_of(v);

	*out = v->settings.relaxed_ordering
		       ? v->library.reg_mr_iova2(v->pd, base, bytes, (uintptr_t)base, access)
		       : v->library.reg_mr(v->pd, base, bytes, (int)access);
	if (*out)
		return 0;
	return fail_errno("verbs: registering %llu bytes on %s%s", (unsigned long long)bytes,
		v->port.device,
		errno == ENOMEM ? " (is the limit on locked memory, ulimit -l, too low?)" : "");
}

/* ---- regions --------------------------------------------------------------------------------- */

static int register_any(
	struct verbs *v, void *base, uint64_t bytes, struct transport_region *region)
{
	int ordinal;

	region->on_device = device_memory_is(base, &ordinal);
	if (region->on_device)
		return register_device(v, base, bytes, &region->mr);
	return register_host(v, base, bytes, &region->mr);
}

int verbs_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **out, struct transport_key *key)
{
	struct verbs *v = verbs_of(transport);
	struct transport_region *region = calloc(1, sizeof(*region));
	int rc;

	if (!region)
		return fail(TERN_ERR_NOMEM, "no memory for a region's record");
	rc = register_any(v, base, bytes, region);
	if (rc) {
		free(region);
		return rc;
	}
	region->base = (uintptr_t)base;
	region->bytes = bytes;
	region->next = v->regions;
	region->at = &v->regions;
	if (v->regions)
		v->regions->at = &region->next;
	v->regions = region;
	*key = (struct transport_key){
		.address = (uintptr_t)base, .bytes = bytes, .key = region->mr->rkey};
	*out = region;
	return 0;
}

void verbs_dereg(struct transport *transport, struct transport_region *region)
{
	if (!region)
		return;
	*region->at = region->next;
	if (region->next)
		region->next->at = region->at;
	verbs_of(transport)->library.dereg_mr(region->mr);
	free(region);
}
