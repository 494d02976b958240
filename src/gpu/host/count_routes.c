/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "gpu/host/device.h"
#include "gpu/host/ops.h"

int device_count_routes(const struct tern_routes *r)
{
	const struct device_ops *ops = device_ops_load();
	int rc;

	if (!ops)
		return TERN_ERR_UNSUPPORTED;
	rc = device_check_pointer(ops, "tern_count_routes: topk_ids", r->topk_ids);
	rc = rc ? rc : device_check_pointer(ops, "tern_count_routes: rank_tokens", r->rank_tokens);
	rc = rc ? rc
		: device_check_pointer(ops, "tern_count_routes: expert_routes", r->expert_routes);
	rc = rc ? rc : device_check_pointer(ops, "tern_count_routes: in_rank", r->in_rank);
	rc = rc ? rc : device_check_pointer(ops, "tern_count_routes: told", r->told);
	rc = rc ? rc : device_check_pointer(ops, "tern_count_routes: finished", r->finished);
	if (rc)
		return rc;
	rc = ops->count_routes(r);
	return rc ? fail(rc, "%s", ops->error_text()) : 0;
}
