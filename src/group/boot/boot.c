/* SPDX-License-Identifier: Apache-2.0 */
#include "group/boot/boot.h"
#include "base/error.h"

/* NULL: the caller's own boot, of which nothing is known. */
static struct boot_seat *seat_of(const struct tern_boot *boot)
{
	static const tern_allgather_fn built_in[] = {
		self_allgather, threads_allgather, socket_allgather, pmix_allgather};

	for (size_t i = 0; i < sizeof(built_in) / sizeof(built_in[0]); i++)
		if (boot->allgather == built_in[i])
			return boot->ctx;
	return NULL;
}

int boot_check(const struct tern_boot *boot)
{
	const struct boot_seat *seat = seat_of(boot);

	if (!seat || (boot->rank == seat->rank && boot->nr_ranks == seat->nr_ranks))
		return 0;
	return fail(TERN_ERR_INVALID, "the boot says rank %d of %d; it was made for rank %d of %d",
		boot->rank, boot->nr_ranks, seat->rank, seat->nr_ranks);
}

int boot_take(const struct tern_boot *boot)
{
	struct boot_seat *seat = boot->close ? seat_of(boot) : NULL;

	if (!seat || atomic_fetch_sub(&seat->nr_free, 1) > 0)
		return 0;
	atomic_fetch_add(&seat->nr_free, 1);
	return fail(TERN_ERR_INVALID, "the boot of rank %d of %d belongs to another group",
		seat->rank, seat->nr_ranks);
}
