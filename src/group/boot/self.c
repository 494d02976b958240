/* SPDX-License-Identifier: Apache-2.0 */
/* One rank alone. */
#include "group/boot/boot.h"
#include "base/error.h"

#include <string.h>

int self_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	(void)ctx;
	if (bytes)
		memmove(all, mine, bytes);
	return 0;
}

int tern_boot_self(struct tern_boot *boot)
{
	static struct boot_seat alone = {.rank = 0, .nr_ranks = 1};

	if (!boot)
		return fail(TERN_ERR_INVALID, "tern_boot_self: boot is NULL");
	*boot = (struct tern_boot){.nr_ranks = 1, .allgather = self_allgather, .ctx = &alone};
	return 0;
}
