/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sealed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"

/* A file that grows past this limit costs its process a signal, which by default kills it. */
static int check_limit(const char *name, uint64_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
		bytes <= limit.rlim_cur)
		return 0;
	return fail(TERN_ERR_NOMEM, "%s of %llu bytes: the limit on files is %llu (RLIMIT_FSIZE)",
		name, (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
}

int sealed_memory(const char *name, uint64_t bytes, int *out)
{
	int rc = check_limit(name, bytes), fd;

	if (rc)
		return rc;
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return fail_errno("memfd_create");
	if (ftruncate(fd, (off_t)bytes) ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		rc = fail_errno("sizing %s of %llu bytes", name, (unsigned long long)bytes);
		close(fd);
		return rc;
	}
	*out = fd;
	return 0;
}
