/* SPDX-License-Identifier: Apache-2.0 */
/* tern doctor: what this machine has to move tokens with, whether each of it works, and if not, why
 * and what to do. */
#include "cli/cmd.h"
#include "cli/doctor_gpus.h"
#include "cli/doctor_try.h"

#include <getopt.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tern.h"
#include "testkit/options.h"
#include "transport/presence.h"

/* ---- what is there --------------------------------------------------------------------------- */

static bool first_line(const char *path, char *text, int room)
{
	FILE *file = fopen(path, "re");
	bool ok = file && fgets(text, room, file);

	if (file)
		fclose(file);
	text[ok ? strcspn(text, "\n") : 0] = 0;
	return ok;
}

static void show_host(void)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	char name[256] = "", line[256];
	int rc;

	gethostname(name, sizeof(name) - 1);
	rc = getaddrinfo(name, NULL, &hints, &list);
	printf("host                   %s%s%s\n", name, rc ? ", which has no address here: " : "",
		rc ? gai_strerror(rc) : "");
	if (!rc)
		freeaddrinfo(list);
	if (getenv("TERN_NODE_ADDRESS"))
		printf("address by setting     %s (TERN_NODE_ADDRESS)\n",
			getenv("TERN_NODE_ADDRESS"));
	if (first_line("/proc/sys/vm/nr_hugepages", line, sizeof(line)))
		printf("huge pages             %s reserved\n", line);
	if (first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof(line)))
		printf("huge pages, shared     %s\n", line);
}

static void show_locked_memory(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return;
	if (limit.rlim_cur == RLIM_INFINITY) {
		printf("locked memory          unlimited\n");
		return;
	}
	printf("locked memory          %llu KiB; RDMA devices lock what they register%s\n",
		(unsigned long long)limit.rlim_cur / 1024,
		geteuid() ? ": raise it with ulimit -l unlimited, or memlock in "
			    "/etc/security/limits.conf"
			  : " (root is exempt)");
}

static void show_port(void *ctx, const struct verbs_facts *f)
{
	(void)ctx;
	printf("RDMA port              %s:%u, %s%s%s", f->device, f->port, f->link,
		f->interface[0] ? ", interface " : "", f->interface);
	if (f->address[0])
		printf(", GID %u (%s, %s), MTU %u", f->gid_index, f->gid_type, f->address,
			f->mtu_bytes);
	if (f->numa_node >= 0)
		printf(", NUMA node %d", f->numa_node);
	printf("%s%s\n", f->reason[0] ? ": cannot be used: " : "", f->reason);
}

static void show_ports(void)
{
	if (verbs_list(show_port, NULL))
		printf("RDMA devices           none: %s\n", tern_last_error());
}

/* What has been shown: libfabric lists a domain once for each address and each kind of progress. */
struct shown {
	char lines[64][96];
	int nr;
};

static void show_provider(void *ctx, const char *provider, const char *domain)
{
	struct shown *shown = ctx;
	char line[sizeof(shown->lines[0])];

	snprintf(line, sizeof(line), "%.60s on %.30s", provider, domain);
	for (int i = 0; i < shown->nr; i++)
		if (!strcmp(shown->lines[i], line))
			return;
	printf("libfabric              %s\n", line);
	if (shown->nr < 64)
		memcpy(shown->lines[shown->nr++], line, sizeof(line));
}

static void show_providers(void)
{
	struct shown shown = {.nr = 0};

	if (ofi_list(show_provider, &shown))
		printf("libfabric              none: %s\n", tern_last_error());
}

/* ---- what works ------------------------------------------------------------------------------ */

struct advice {
	const char *when, *what;
};

static const char *advise(const char *cause)
{
	static const struct advice known[] = {
		{"not found when Tern was built", "install what it names, then build Tern again"},
		{"libibverbs cannot be loaded", "install libibverbs1 and ibverbs-providers"},
		{"libfabric cannot be loaded", "install libfabric1"},
		{"there is no RDMA device", "load the device's driver (modprobe mlx5_ib), or try "
					    "without one: rdma link add rxe0 type rxe netdev eth0"},
		{"tells of no RDMA devices",
			"load the device's driver and the access to it: modprobe mlx5_ib "
			"ib_uverbs; is there a device at all?"},
		{"is down", "check the cable and the switch; ip link set ... up"},
		{"has no GID",
			"give the port's interface an address, or unset TERN_VERBS_GID_INDEX"},
		{"cannot be opened", "check the rights of /dev/infiniband/uverbs*"},
		{"locked memory", "ulimit -l unlimited, or memlock in /etc/security/limits.conf"},
		{"ptrace", "sysctl kernel.yama.ptrace_scope=0, or the capability CAP_SYS_PTRACE"},
		{"process_vm",
			"sysctl kernel.yama.ptrace_scope=0, or the capability CAP_SYS_PTRACE"},
		{"has no provider",
			"install libfabric's provider, or leave TERN_TRANSPORT to choose another"},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strstr(cause, known[i].when))
			return known[i].what;
	return NULL;
}

/* True: it works. */
static bool show_trial(const char *name, const struct transport_ops *ops, const char *provider)
{
	char text[400];
	bool works = !doctor_try(ops, provider, text, sizeof(text));
	const char *what = works ? NULL : advise(text);

	printf("%-22s %s%s%s\n", name, works ? "works" : "does not work: ", works ? ": " : "",
		text);
	if (what)
		printf("%-22s to do: %s\n", "", what);
	return works;
}

static int show_trials(void)
{
	bool across = false;

	show_trial("transport shm", &transport_shm, NULL);
	across |= show_trial("transport verbs", &transport_verbs, NULL);
	across |= show_trial("transport ofi (tcp)", &transport_ofi, "tcp;ofi_rxm");
	across |= show_trial("transport ofi (udp)", &transport_ofi, "udp;ofi_rxd");
	show_trial("transport ofi (shm)", &transport_ofi, "shm");
	printf("between nodes          %s\n", across ? "verbs where both ranks have it, else ofi; "
						       "TERN_TRANSPORT decides otherwise"
						     : "no transport works");
	return across ? 0 : 1;
}

/* ---- the command ----------------------------------------------------------------------------- */

struct arguments {
	bool quick;
};

static const struct option_row options[] = {
	{.name = "quick",
		.letter = 'q',
		.set = option_flag,
		OPTION_FIELD(struct arguments, quick),
		.help = "do not try"},
	{.name = "help", .letter = 'h', .set = option_help, .help = "this text"},
	{0},
};

static void usage(FILE *file)
{
	fputs("Usage: tern doctor [--quick]\n"
	      "Lists networks, devices and limits, and tries each transport with a write to this "
	      "process itself.\n\n",
		file);
	options_print(options, NULL, file);
	fputs("\n"
	      "The exit code is 0 if ranks on different nodes can be reached by some transport, "
	      "else "
	      "1.\n",
		file);
}

int cmd_doctor(int argc, char **argv)
{
	struct arguments arguments = {0};
	int rc;

	argv[0] = (char *)"tern doctor"; /* for getopt's messages */
	rc = options_parse(options, &arguments, argc, argv, false);
	if (rc == OPTIONS_HELP) {
		usage(stdout);
		return 0;
	}
	if (!rc && optind < argc)
		fprintf(stderr, "tern doctor: \"%s\" is one word too many\n", argv[optind]);
	if (rc || optind < argc) {
		usage(stderr);
		return EXIT_USAGE;
	}
	show_host();
	show_locked_memory();
	show_ports();
	show_providers();
	doctor_gpus();
	return arguments.quick ? 0 : show_trials();
}
