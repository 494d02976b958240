/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process is, as its environment tells it. */
#include "boot/boot.h"
#include "boot/launch_wire.h"
#include "error.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>

int64_t boot_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int boot_env_number(const char *name, long min, long max, int *number)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text)
		return fail(TERN_ERR_BOOTSTRAP, "%s is not set, though other variables of `tern run` are", name);
	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || errno)
		return fail(TERN_ERR_BOOTSTRAP, "%s is \"%.64s\", not a number", name, text);
	if (value < min || value > max)
		return fail(TERN_ERR_BOOTSTRAP, "%s is %ld, not within %ld to %ld", name, value, min, max);
	*number = (int)value;
	return 0;
}

static int wait_ms_of_env(int *wait_ms)
{
	*wait_ms = BOOT_WAIT_MS;
	return getenv(LAUNCH_ENV_WAIT_MS) ? boot_env_number(LAUNCH_ENV_WAIT_MS, 0, INT_MAX, wait_ms) : 0;
}

static int boot_launched(int wait_ms, struct tern_boot *boot)
{
	int rank, nr_ranks, fd, rc;

	rc = boot_env_number(LAUNCH_ENV_NR_RANKS, 1, LAUNCH_MAX_RANKS, &nr_ranks);
	if (!rc)
		rc = boot_env_number(LAUNCH_ENV_RANK, 0, nr_ranks - 1, &rank);
	if (!rc)
		rc = boot_env_number(LAUNCH_ENV_FD, 0, INT_MAX, &fd);
	return rc ? rc : boot_socket(rank, nr_ranks, fd, wait_ms, boot);
}

int tern_boot_env(struct tern_boot *boot)
{
	int wait_ms, rc;

	if (!boot)
		return fail(TERN_ERR_INVALID, "tern_boot_env: boot is NULL");
	rc = wait_ms_of_env(&wait_ms);
	if (rc)
		return rc;
	if (getenv(LAUNCH_ENV_RANK) || getenv(LAUNCH_ENV_NR_RANKS) || getenv(LAUNCH_ENV_FD))
		return boot_launched(wait_ms, boot);
	if (boot_pmix_present())
		return boot_pmix(wait_ms, boot);
	return tern_boot_self(boot);
}
