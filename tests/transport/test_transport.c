/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance suite: every case on every network that is there, each in a process of its own
 * with a time limit, in TAP.
 *
 *   test_transport                 everything
 *   test_transport shm             one network
 *   test_transport shm order ...   some of its cases
 *   test_transport --list          the networks' names */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/presence.h"
#include "tests/transport/cases.h"

#define CASE_LIMIT_MS 180000 /* what hangs is ended sooner by tests/within */

static const struct transport_case *const suites[] = {basic_cases, order_cases, trouble_cases,
	pair_cases, death_cases, verbs_cases, verbs_greet_cases};
static int nr_tests, nr_failed;

/* Opens and closes, to learn whether the network is there. */
static void run_presence(const struct network *n)
{
	struct world w;
	int rc;

	world_begin(&w, n, 1, 4096);
	rc = peer_open(&w, 0);
	if (rc == TERN_ERR_UNSUPPORTED)
		skip_case(tern_last_error());
	expect_ok(rc, "open");
	world_close(&w);
}

/* Its exit status, or -1 when it took too long. The case's process group goes with it. */
static int await_case(pid_t pid)
{
	uint64_t end = now_ms() + CASE_LIMIT_MS;
	int status = -1;
	pid_t got;

	while ((got = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < end)
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	kill(-pid, SIGKILL);
	if (got == 0)
		waitpid(pid, NULL, 0);
	remove_leftovers(pid);
	return got == pid ? status : -1;
}

/* Its outcome: 0, 77 or another. */
static int run_case(const struct network *n, const char *name, void (*run)(const struct network *))
{
	uint64_t from = now_ms();
	int status, code;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		run(n);
		exit(0); /* with the leak check, where there is one */
	}
	setpgid(pid, pid);
	status = await_case(pid);
	code = status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	if (status < 0)
		printf("# longer than %d ms\n", CASE_LIMIT_MS);
	else if (WIFSIGNALED(status))
		printf("# killed by signal %d\n", WTERMSIG(status));
	printf("%s %d - %s/%s%s # %.1f s\n", code == 0 || code == 77 ? "ok" : "not ok", ++nr_tests,
		n->name, name, code == 77 ? " # SKIP" : "", (double)(now_ms() - from) / 1000);
	nr_failed += code != 0 && code != 77;
	return code;
}

static int wanted(const char *name, char **names)
{
	if (!names[0])
		return 1;
	for (; *names; names++)
		if (!strcmp(*names, name))
			return 1;
	return 0;
}

static void pass_over(void *ctx, const char *provider, const char *domain)
{
	(void)ctx;
	(void)provider;
	(void)domain;
}

static void run_network(const struct network *n, char **names)
{
	if (n->ops == &transport_ofi)
		ofi_list(pass_over, NULL); /* libfabric's start reads all names of the kernel,
					      twice: once for all cases */
	if (run_case(n, "presence", run_presence))
		return;
	for (size_t s = 0; s < (n->brief ? 1 : sizeof(suites) / sizeof(suites[0])); s++)
		for (const struct transport_case *c = suites[s]; c->name; c++)
			if (wanted(c->name, names) && !(c->processes && n->alone) &&
				(!c->only || c->only == n->ops))
				run_case(n, c->name, c->run);
}

int main(int argc, char **argv)
{
	static char *none[] = {NULL};
	bool found = argc < 2;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (uint32_t i = 0; i < nr_networks; i++) {
		if (argc > 1 && !strcmp(argv[1], "--list")) {
			printf("%s\n", networks[i].name);
			found = true;
		} else if (argc < 2 || !strcmp(argv[1], networks[i].name)) {
			run_network(&networks[i], argc > 2 ? argv + 2 : none);
			found = true;
		}
	}
	if (nr_tests)
		printf("1..%d\n", nr_tests);
	return !found || nr_failed > 0;
}
