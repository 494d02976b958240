/* SPDX-License-Identifier: Apache-2.0 */
/* Whether kernels reach what a caller has passed. To ask the driver takes a twentieth of a call,
 * for each of eight arguments; so an address that was reached is taken for reachable from then on.
 * If its memory has been freed, and the host's lies there now, a kernel finds that out, as with any
 * memory that is freed. */
#include "base/error.h"
#include "gpu/host/ops.h"

#define KNOWN_BITS 6

int device_check_pointer(const struct device_ops *ops, const char *name, const void *pointer)
{
	static _Thread_local const void *known[1 << KNOWN_BITS];
	const void **at = &known[(uintptr_t)pointer * 0x9e3779b97f4a7c15u >> (64 - KNOWN_BITS)];
	int rc;

	if (!pointer || *at == pointer)
		return 0;
	rc = ops->pointer_check(pointer);
	if (rc)
		return fail(rc, "%s: %s", name, ops->error_text());
	*at = pointer;
	return 0;
}
