/* SPDX-License-Identifier: Apache-2.0 */
#include "group/window.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sealed.h"

static uint8_t *map_shared(int fd, uint64_t bytes)
{
	uint8_t *base =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (base == MAP_FAILED)
		return NULL;
	madvise(base, bytes, MADV_HUGEPAGE); /* a wish: fewer TLB misses where the machine grants it
					      */
	madvise(base, bytes, MADV_DONTDUMP);
	return base;
}

void window_keep(struct window *window)
{
	atomic_fetch_add_explicit(&window->references, 1, memory_order_relaxed);
}

void window_drop(struct window *window)
{
	if (!window || atomic_fetch_sub_explicit(&window->references, 1, memory_order_acq_rel) > 1)
		return;
	if (window->base)
		munmap(window->base, window->bytes);
	if (window->fd >= 0)
		close(window->fd);
	free(window);
}

static int window_alloc(uint64_t bytes, int fd, struct window **out)
{
	struct window *window = calloc(1, sizeof(*window));

	if (!window)
		return fail(TERN_ERR_NOMEM, "no memory for a window's record");
	atomic_init(&window->references, 1);
	window->bytes = bytes;
	window->fd = fd;
	*out = window;
	return 0;
}

int window_make(uint64_t bytes, struct window **out)
{
	int fd, rc = sealed_memory("tern-window", bytes, &fd);

	if (rc)
		return rc;
	rc = window_alloc(bytes, fd, out);
	if (rc) {
		close(fd);
		return rc;
	}
	(*out)->base = map_shared(fd, bytes);
	if (!(*out)->base)
		return fail_errno("mapping a window of %llu bytes", (unsigned long long)bytes);
	return 0;
}

int window_map(int rank, int fd, uint64_t bytes, struct window **out)
{
	int seals = fcntl(fd, F_GET_SEALS), rc;
	struct stat st;

	if (fstat(fd, &st) || (uint64_t)st.st_size != bytes || seals < 0 ||
		!(seals & F_SEAL_SHRINK))
		return fail(TERN_ERR_PROTOCOL,
			"rank %d passed a window of %lld bytes in place of %llu", rank,
			(long long)st.st_size, (unsigned long long)bytes);
	rc = window_alloc(bytes, -1, out);
	if (rc)
		return rc;
	(*out)->base = map_shared(fd, bytes);
	return (*out)->base ? 0
			    : fail_errno("mapping the window of rank %d, %llu bytes", rank,
				      (unsigned long long)bytes);
}

/* A rank of the same process hands its record over by address: one mapping, one address for each
 * byte. */
static void share_in_process(tern_group *group, const uint64_t *records, struct window **windows)
{
	for (int r = 0; r < group->nr_ranks; r++)
		if (r != group->rank && group->peers[r].same_process && records[r] &&
			group->peers[r].path == TERN_PATH_MAPPED) {
			windows[r] = (struct window *)(uintptr_t)records[r];
			window_keep(windows[r]);
		}
}

static int share_by_descriptor(tern_group *group, uint32_t round, struct window **windows)
{
	struct window *own = windows[group->rank];
	int rc = group_pass_fd(group, round, own->fd);

	for (int r = 0; r < group->nr_ranks; r++) {
		int fd = group->guests[r].fd;

		if (fd < 0)
			continue;
		if (!rc)
			rc = window_map(r, fd, own->bytes, &windows[r]);
		close(fd);
	}
	if (!group->rendezvous.get) {
		close(own->fd);
		own->fd = -1;
	}
	return rc;
}

/* What belongs to a rank that is gone lies where nobody else looks, as it does when one dies later:
 * address space alone, for who takes addresses there. */
static int stand_in(tern_group *group, uint64_t bytes, struct window **windows)
{
	for (int r = 0; r < group->nr_ranks; r++) {
		int rc;

		if (windows[r] || group->peers[r].path != TERN_PATH_MAPPED)
			continue;
		rc = window_make(bytes, &windows[r]);
		if (rc)
			return rc;
		close(windows[r]->fd);
		windows[r]->fd = -1;
	}
	return 0;
}

int windows_create(tern_group *group, uint64_t bytes, uint32_t round, struct window **windows)
{
	uint64_t mine, *records = calloc((uint32_t)group->nr_ranks, sizeof(*records));
	int rc = records ? window_make(bytes, &windows[group->rank])
			 : fail(TERN_ERR_NOMEM, "no memory for %d windows", group->nr_ranks);

	mine = (uintptr_t)windows[group->rank];
	rc = group_agree_status(group, rc, "making windows");
	if (!rc)
		rc = group_allgather(group, &mine, records, sizeof(mine));
	if (!rc) {
		share_in_process(group, records, windows);
		rc = share_by_descriptor(group, round, windows);
		rc = rc ? rc : stand_in(group, bytes, windows);
		/* Also the point after which nobody in this process takes a reference any more: an
		 * owner may leave from here on. */
		rc = group_agree_status(group, rc, "sharing windows");
	}
	free(records);
	if (rc)
		windows_destroy(group, windows);
	return rc;
}

void windows_destroy(tern_group *group, struct window **windows)
{
	for (int r = 0; r < group->nr_ranks; r++) {
		window_drop(windows[r]);
		windows[r] = NULL;
	}
}
