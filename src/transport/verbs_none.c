/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for verbs.c where infiniband/verbs.h was not found at build time. */
#include "error.h"
#include "transport/transport.h"

static int verbs_refuses(const struct transport_options *options, struct transport **transport, struct transport_info *info)
{
	(void)options;
	(void)transport;
	(void)info;
	return fail(TERN_ERR_UNSUPPORTED, "libibverbs was not found when Tern was built: install libibverbs-dev and build again");
}

const struct transport_ops transport_verbs = {.name = "verbs", .open = verbs_refuses};
