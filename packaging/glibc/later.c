/* SPDX-License-Identifier: Apache-2.0 */
/* What the headers of a later glibc call, and that of 2.28 does not have: it had stat and fstat in
 * what it linked into every program, and left getcpu to the kernel. And atexit, which any glibc has
 * in there: CUDA's runtime calls it. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__dso_handle __attribute__((visibility("hidden")));
int __cxa_atexit(void (*function)(void *), void *arg, void *dso_handle);

int atexit(void (*function)(void))
{
	return __cxa_atexit((void (*)(void *))function, NULL, __dso_handle);
}

int stat(const char *restrict path, struct stat *restrict buf)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, buf, 0);
}

int fstat(int fd, struct stat *buf)
{
	return (int)syscall(SYS_newfstatat, fd, "", buf, AT_EMPTY_PATH);
}

int getcpu(unsigned int *cpu, unsigned int *node)
{
	return (int)syscall(SYS_getcpu, cpu, node, (void *)0);
}
