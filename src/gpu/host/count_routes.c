/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "gpu/host/device.h"
#include "gpu/host/ops.h"

static int check_reachable(const struct device_ops *ops, const char *name, const void *pointer)
{
	int rc = pointer ? ops->pointer_check(pointer) : 0;

	return rc ? fail(rc, "tern_count_routes: %s: %s", name, ops->error_text()) : 0;
}

int device_count_routes(const struct tern_routes *routes)
{
	const struct device_ops *ops = device_ops_load();
	int rc;

	if (!ops)
		return TERN_ERR_UNSUPPORTED;
	rc = check_reachable(ops, "topk_ids", routes->topk_ids);
	rc = rc ? rc : check_reachable(ops, "rank_tokens", routes->rank_tokens);
	rc = rc ? rc : check_reachable(ops, "expert_routes", routes->expert_routes);
	rc = rc ? rc : check_reachable(ops, "in_rank", routes->in_rank);
	if (rc)
		return rc;
	rc = ops->count_routes(routes);
	return rc ? fail(rc, "%s", ops->error_text()) : 0;
}
