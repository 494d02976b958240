/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for verbs.c where infiniband/verbs.h was not found at build time. */
#include "base/error.h"
#include "transport/presence.h"
#include "transport/transport.h"

static int not_built(void)
{
	return fail(TERN_ERR_UNSUPPORTED, "libibverbs was not found when Tern was built: install "
					  "libibverbs-dev and build again");
}

static int verbs_refuses(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	(void)options;
	(void)transport;
	(void)info;
	return not_built();
}

int verbs_list(void (*each)(void *ctx, const struct verbs_facts *facts), void *ctx)
{
	(void)each;
	(void)ctx;
	return not_built();
}

int verbs_probe(const char *device, struct verbs_facts *facts)
{
	(void)device;
	(void)facts;
	return not_built();
}

const struct transport_ops transport_verbs = {.name = "verbs", .open = verbs_refuses};
