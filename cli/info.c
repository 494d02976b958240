/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cmd.h"
#include "tern.h"
#include "testkit/options.h"
#include "transport/presence.h"

#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef TERN_WITH_PMIX /* 0 or 1, from the Makefile */
#define TERN_WITH_PMIX 0
#endif

/* ---- printing: the same facts as lines for people or as one JSON object ---------------------- */

struct sheet {
	bool json;
	bool any; /* something stands before */
};

static void put_name(struct sheet *s, const char *name)
{
	if (s->json)
		printf("%s\n  \"%s\": ", s->any ? "," : "", name);
	else
		printf("%-22s ", name);
	s->any = true;
}

static void put_json_text(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		if ((unsigned char)*text >= 0x20)
			putchar(*text);
	}
	putchar('"');
}

static __attribute__((format(printf, 3, 4))) void put_text(
	struct sheet *s, const char *name, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	put_name(s, name);
	if (s->json)
		put_json_text(text);
	else
		printf("%s\n", text);
}

static void put_number(struct sheet *s, const char *name, uint64_t number)
{
	put_name(s, name);
	printf(s->json ? "%llu" : "%llu\n", (unsigned long long)number);
}

static void put_bytes(struct sheet *s, const char *name, uint64_t bytes)
{
	put_name(s, name);
	if (s->json)
		printf("%llu", (unsigned long long)bytes);
	else if (bytes >= 1 << 30)
		printf("%.1f GiB\n", (double)bytes / (1 << 30));
	else if (bytes >= 1 << 20)
		printf("%.1f MiB\n", (double)bytes / (1 << 20));
	else
		printf("%llu bytes\n", (unsigned long long)bytes);
}

static void put_limit(struct sheet *s, const char *name, int resource, bool in_bytes)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit))
		return;
	if (limit.rlim_cur == RLIM_INFINITY)
		put_text(s, name, "unlimited");
	else if (in_bytes)
		put_bytes(s, name, limit.rlim_cur);
	else
		put_number(s, name, limit.rlim_cur);
}

/* A system call that is needed: "yes", or why not. */
static void put_call(struct sheet *s, const char *name, bool works)
{
	if (works)
		put_text(s, name, "yes");
	else
		put_text(s, name, "no: %s", strerror(errno));
}

/* ---- facts ----------------------------------------------------------------------------------- */

static const char *pmix_state(void)
{
	if (!TERN_WITH_PMIX)
		return "not built in";
	return dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL)
		       ? "built in"
		       : "built in, but libpmix.so.2 is not found here";
}

static bool read_line(const char *path, const char *start, char *text, int size)
{
	FILE *file = fopen(path, "re");
	bool ok = false;

	while (file && !ok && fgets(text, size, file))
		ok = !strncmp(text, start, strlen(start));
	if (file)
		fclose(file);
	text[ok ? strcspn(text, "\n") : 0] = 0;
	return ok;
}

/* Of all that the kernel lists, what matters to copying, converting and summing rows. */
static void put_cpu_features(struct sheet *s)
{
	static const char *const known[] = {"avx", "avx2", "f16c", "fma", "avx512f", "avx512bw",
		"avx512vl", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "asimdhp", "sve",
		"sve2", "bf16"};
	char line[8192], found[256] = "";
	size_t at = 0;

	if (!read_line("/proc/cpuinfo", "flags", line, sizeof(line)) &&
		!read_line("/proc/cpuinfo", "Features", line, sizeof(line)))
		return;
	for (char *save, *word = strtok_r(line, " \t:", &save); word;
		word = strtok_r(NULL, " \t:", &save))
		for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
			if (!strcmp(word, known[i]) && at < sizeof(found) - 16)
				at += (size_t)snprintf(found + at, sizeof(found) - at, "%s%s",
					at ? " " : "", word);
	put_text(s, "cpu_features", "%s", found);
}

static bool has_memfd(void)
{
	int fd = memfd_create("tern-info", MFD_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool has_futex(void)
{
	uint32_t word = 0;

	return syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0;
}

/* Sees a peer's death, and fetches its window's descriptor. */
static bool has_pidfd(void)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool has_pidfd_getfd(void)
{
	int pid_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int fd = (int)syscall(SYS_pidfd_getfd, pid_fd, 0, 0);
	int cause = errno;

	if (pid_fd >= 0)
		close(pid_fd);
	if (fd >= 0)
		close(fd);
	errno = cause;
	return fd >= 0 || cause == EBADF; /* it ran: only stdin is closed */
}

/* As a group of ranks like this one would choose. */
static void put_network(struct sheet *s)
{
	const char *set = getenv("TERN_TRANSPORT");
	struct verbs_facts facts;

	put_text(s, "transports", "shm, verbs, ofi");
	if (set)
		put_text(s, "between_nodes", "%s, by TERN_TRANSPORT", set);
	else if (verbs_probe(getenv("TERN_NODE_ADDRESS"), &facts))
		put_text(s, "between_nodes", "ofi, as verbs cannot be used here: %s",
			tern_last_error());
	else
		put_text(s, "between_nodes",
			"verbs on %s:%u (%s %s) to ranks that have an RDMA port too, ofi to others",
			facts.device, facts.port, facts.gid_type, facts.address);
}

static void put_build(struct sheet *s)
{
	put_text(s, "version", "%s", tern_version());
	put_text(s, "compiler", "%s", __VERSION__);
	put_text(s, "pmix", "%s", pmix_state());
	put_text(s, "backends", "cpu");
	put_text(s, "paths", "self, mapped (shared memory), engine");
	put_network(s);
}

static uint64_t memory_of(int what)
{
	return (uint64_t)sysconf(what) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void put_machine(struct sheet *s)
{
	struct utsname u;
	cpu_set_t allowed;

	uname(&u);
	put_text(s, "system", "%s %s %s", u.sysname, u.release, u.machine);
	put_number(s, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
	if (!sched_getaffinity(0, sizeof(allowed), &allowed))
		put_number(s, "cores_usable", (uint64_t)CPU_COUNT(&allowed));
	put_cpu_features(s);
	put_bytes(s, "memory", memory_of(_SC_PHYS_PAGES));
	put_bytes(s, "memory_free", memory_of(_SC_AVPHYS_PAGES));
	put_bytes(s, "page", (uint64_t)sysconf(_SC_PAGESIZE));
}

static void put_shared_memory(struct sheet *s)
{
	struct statvfs shm;
	char line[128];

	put_call(s, "memfd", has_memfd());
	put_call(s, "futex", has_futex());
	put_call(s, "pidfd", has_pidfd());
	put_call(s, "pidfd_getfd", has_pidfd_getfd());
	if (!statvfs("/dev/shm", &shm))
		put_bytes(s, "dev_shm_free", (uint64_t)shm.f_bavail * shm.f_frsize);
	if (read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "", line, sizeof(line)))
		put_text(s, "huge_pages_shared", "%s", line);
	if (read_line("/proc/sys/kernel/yama/ptrace_scope", "", line, sizeof(line)))
		put_text(s, "ptrace_scope", "%s", line);
}

static void put_limits(struct sheet *s)
{
	put_limit(s, "limit_open_files", RLIMIT_NOFILE, false);
	put_limit(s, "limit_address_space", RLIMIT_AS, true);
	put_limit(s, "limit_locked_memory", RLIMIT_MEMLOCK, true);
	put_limit(s, "limit_processes", RLIMIT_NPROC, false);
}

/* ---- the command ----------------------------------------------------------------------------- */

struct arguments {
	bool json;
};

static const struct option_row options[] = {
	{.name = "json",
		.letter = 'j',
		.set = option_flag,
		OPTION_FIELD(struct arguments, json),
		.help = "as one JSON object"},
	{.name = "help", .letter = 'h', .set = option_help, .help = "this text"},
	{0},
};

static void usage(FILE *file)
{
	fputs("Usage: tern info [--json]\n"
	      "Tells what this build has, and what it finds on this machine.\n\n",
		file);
	options_print(options, NULL, file);
}

int cmd_info(int argc, char **argv)
{
	struct arguments arguments = {0};
	struct sheet sheet = {0};
	int rc;

	argv[0] = (char *)"tern info"; /* for getopt's messages */
	rc = options_parse(options, &arguments, argc, argv, false);
	if (rc == OPTIONS_HELP) {
		usage(stdout);
		return 0;
	}
	if (!rc && optind < argc)
		fprintf(stderr, "tern info: \"%s\" is one word too many\n", argv[optind]);
	if (rc || optind < argc) {
		usage(stderr);
		return EXIT_USAGE;
	}
	sheet.json = arguments.json;
	if (sheet.json)
		putchar('{');
	put_build(&sheet);
	put_machine(&sheet);
	put_shared_memory(&sheet);
	put_limits(&sheet);
	if (sheet.json)
		puts("\n}");
	return 0;
}
