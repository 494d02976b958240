/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of several processes: all name one file, and lock it in turns to run theirs, so that a
 * pass is whole here, too. Devices' memory is then files that others can map. The kernel chooses
 * who is next: such a run does not repeat. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/emulate/inside.h"

/* Bytes of the file: who waits to be next has the first, who runs has the second. Without the
 * first, whoever has just run would mostly be next again. */
enum turnstile {
	NEXT,
	RUNS
};

struct handle {
	pid_t pid;
	int fd;
	size_t bytes;
};

static int file = -1;

void processes_open(const char *path)
{
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		emulated_die("TERN_EMULATED_PROCESSES is %s: %s", path, strerror(errno));
}

bool processes_several(void)
{
	return file >= 0;
}

static void set_lock(short type, enum turnstile byte)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	int rc;

	do
		rc = fcntl(file, F_OFD_SETLKW, &lock);
	while (rc && errno == EINTR);
	if (rc)
		emulated_die("locking the file of all processes: %s", strerror(errno));
}

/* Whoever dies inside has let go of both. What others stored in their turns is seen from here on.
 */
void processes_enter(void)
{
	if (!processes_several())
		return;
	set_lock(F_WRLCK, NEXT);
	set_lock(F_WRLCK, RUNS);
	set_lock(F_UNLCK, NEXT);
}

void processes_leave(void)
{
	if (processes_several())
		set_lock(F_UNLCK, RUNS);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *map(int fd, size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

void *processes_allocate(size_t bytes, int *fd)
{
	void *memory = NULL;

	*fd = memfd_create("emulated-device", MFD_CLOEXEC);
	if (*fd >= 0 && !ftruncate(*fd, (off_t)bytes))
		memory = map(*fd, bytes);
	if (!memory && *fd >= 0)
		close(*fd);
	return memory;
}

void processes_free(void *memory, size_t bytes, int fd)
{
	munmap(memory, bytes);
	close(fd);
}

void processes_handle(cudaIpcMemHandle_t *handle, int fd, size_t bytes)
{
	struct handle mine = {.pid = getpid(), .fd = fd, .bytes = bytes};

	_Static_assert(sizeof(mine) <= sizeof(*handle), "a handle fits");
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &mine, sizeof(mine));
}

void *processes_map(const cudaIpcMemHandle_t *handle, size_t *bytes, int *fd)
{
	struct handle theirs;
	void *memory = NULL;
	char path[64];

	memcpy(&theirs, handle, sizeof(theirs));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)theirs.pid, theirs.fd);
	*bytes = theirs.bytes;
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd >= 0)
		memory = map(*fd, *bytes);
	if (!memory && *fd >= 0)
		close(*fd);
	return memory;
}
