/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process is, as its environment tells it. */
#include "group/boot/boot.h"
#include "group/boot/launch_wire.h"
#include "base/environment.h"
#include "base/error.h"

#include <limits.h>
#include <stdlib.h>
#include <time.h>

int64_t boot_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int number(const char *name, int least, int most, int *value)
{
	if (!environment_number(name, least, most, value))
		return 0;
	return fail(TERN_ERR_BOOTSTRAP, "%s", tern_last_error());
}

/* One that `tern run` sets. */
static int launch_number(const char *name, int least, int most, int *value)
{
	if (!getenv(name))
		return fail(TERN_ERR_BOOTSTRAP,
			"%s is not set, though other variables of `tern run` are", name);
	return number(name, least, most, value);
}

int boot_launch_numbers(int *rank, int *nr_ranks, int *fd)
{
	int rc;

	*rank = *nr_ranks = *fd = -1;
	rc = launch_number(LAUNCH_ENV_NR_RANKS, 1, LAUNCH_MAX_RANKS, nr_ranks);
	if (!rc)
		rc = launch_number(LAUNCH_ENV_RANK, 0, *nr_ranks - 1, rank);
	return rc ? rc : launch_number(LAUNCH_ENV_FD, 0, INT_MAX, fd);
}

int tern_boot_restarts(void)
{
	int nr = 0;

	return number(LAUNCH_ENV_RESTARTS, 0, INT_MAX, &nr) ? TERN_ERR_BOOTSTRAP : nr;
}

int tern_rendezvous_env(struct tern_rendezvous *rendezvous)
{
	if (!rendezvous)
		return fail(TERN_ERR_INVALID, "tern_rendezvous_env: rendezvous is NULL");
	if (!getenv(LAUNCH_ENV_RESTARTS))
		return fail(TERN_ERR_UNSUPPORTED,
			"tern_rendezvous_env: %s is not set: nothing starts this rank anew",
			LAUNCH_ENV_RESTARTS);
	if (!getenv(LAUNCH_ENV_FD) && boot_pmix_present())
		return pmix_rendezvous(rendezvous);
	if (!getenv(LAUNCH_ENV_FD))
		return fail(TERN_ERR_UNSUPPORTED,
			"tern_rendezvous_env: this process was started neither by `tern run "
			"--restart` nor by a PMIx launcher");
	socket_rendezvous(rendezvous);
	return 0;
}

static int boot_launched(int wait_ms, struct tern_boot *boot)
{
	int rank, nr_ranks, fd, rc = boot_launch_numbers(&rank, &nr_ranks, &fd);

	return rc ? rc : boot_socket(rank, nr_ranks, fd, wait_ms, boot);
}

int tern_boot_env(struct tern_boot *boot)
{
	int wait_ms = BOOT_WAIT_MS, rc;

	if (!boot)
		return fail(TERN_ERR_INVALID, "tern_boot_env: boot is NULL");
	rc = number(LAUNCH_ENV_WAIT_MS, 0, INT_MAX, &wait_ms);
	if (rc)
		return rc;
	if (getenv(LAUNCH_ENV_RANK) || getenv(LAUNCH_ENV_NR_RANKS) || getenv(LAUNCH_ENV_FD))
		return boot_launched(wait_ms, boot);
	if (boot_pmix_present())
		return boot_pmix(wait_ms, boot);
	return tern_boot_self(boot);
}
