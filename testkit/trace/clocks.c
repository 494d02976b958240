/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/trace/clocks.h"

int64_t clock_offset(struct clock_bounds bounds, uint64_t *within_ns)
{
	int64_t width = bounds.there + bounds.back;

	*within_ns = width > 0 ? (uint64_t)(width + 1) / 2 : 0;
	return bounds.there - width / 2;
}
