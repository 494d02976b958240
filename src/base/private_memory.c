/* SPDX-License-Identifier: Apache-2.0 */
#include "base/private_memory.h"

#include <stddef.h>
#include <sys/mman.h>

void *private_map(uint64_t bytes, enum private_use use)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return NULL;
	if (use == PRIVATE_DENSE)
		madvise(base, bytes, MADV_HUGEPAGE); /* a wish */
	return base;
}

void private_unmap(void *base, uint64_t bytes)
{
	if (base)
		munmap(base, bytes);
}
