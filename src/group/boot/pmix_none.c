/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for pmix.c where pmix.h was not found at build time. */
#include "group/boot/boot.h"
#include "base/error.h"

#include <stdlib.h>

bool boot_pmix_present(void)
{
	return getenv("PMIX_RANK") && getenv("PMIX_NAMESPACE");
}

/* Refusing is better than n processes that each believe they are alone. */
int boot_pmix(int wait_ms, struct tern_boot *boot)
{
	(void)wait_ms;
	(void)boot;
	return fail(TERN_ERR_UNSUPPORTED,
		"started by a PMIx launcher (PMIX_NAMESPACE is set), but PMIx was not found "
		"when Tern was built: use `tern run`, or "
		"pass an allgather of your own");
}

int pmix_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	(void)ctx;
	(void)mine;
	(void)all;
	(void)bytes;
	return fail(TERN_ERR_UNSUPPORTED, "PMIx was not found when Tern was built");
}

int pmix_rendezvous(struct tern_rendezvous *rendezvous)
{
	(void)rendezvous;
	return fail(TERN_ERR_UNSUPPORTED, "PMIx was not found when Tern was built");
}
