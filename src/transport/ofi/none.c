/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for ofi.c where rdma/fabric.h was not found at build time. */
#include "base/error.h"
#include "transport/presence.h"
#include "transport/transport.h"

static int ofi_refuses(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	(void)options;
	(void)transport;
	(void)info;
	return fail(TERN_ERR_UNSUPPORTED, "libfabric 1.17 or newer was not found when Tern was "
					  "built: install libfabric-dev and build again");
}

int ofi_list(void (*each)(void *ctx, const char *provider, const char *domain), void *ctx)
{
	(void)each;
	(void)ctx;
	return ofi_refuses(NULL, NULL, NULL);
}

const struct transport_ops transport_ofi = {.name = "ofi", .open = ofi_refuses};
