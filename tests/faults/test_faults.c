/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are killed, stopped or gone: the others learn who, long before their time is over, and
 * carry on. */
#include "tests/faults/acts.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "tests/late.h"

static void killed_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};
	int rc;

	if (enter(rank, &r))
		return;
	if (rank->rank == s->victim) {
		die_in_round(&r, s);
		return;
	}
	rc = rounds_from(&r, 0, 0);
	if (expect_death(rank, &r, s, rc))
		return;
	round_close(&r);
	carry_on(rank, s);
}

/* In each phase: before its dispatch, with rows sent, with rows received, with results sent. */
static void kill_in_each_phase(enum tern_mode mode)
{
	static const int nr_ranks[] = {3, 2, 4};

	for (int i = 0; i < scaled(3); i++)
		for (int nr_halves = 0; nr_halves < 4; nr_halves++) {
			struct scene *s = scene_open(nr_ranks[i], mode);

			s->victim = (nr_halves + nr_ranks[i]) % nr_ranks[i];
			s->halves = nr_halves;
			scene_play(s, killed_body, SIGKILL);
		}
}

static void killed_in_each_phase_ll(void **state)
{
	(void)state;
	kill_in_each_phase(TERN_LOW_LATENCY);
}

static void killed_in_each_phase_ht(void **state)
{
	(void)state;
	kill_in_each_phase(TERN_HIGH_THROUGHPUT);
}

static void killed_anywhere_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};
	int rc = 0;

	if (enter(rank, &r))
		return;
	for (r.number = 0; !rc; r.number++) {
		for (int half = 0; half < 4 && !rc; half++)
			rc = do_half(&r, half);
		if (rank->rank == 0)
			atomic_store(&s->nr_rounds, (int)r.number);
	}
	if (expect_death(rank, &r, s, rc))
		return;
	round_close(&r);
	carry_on(rank, s);
}

/* At no place in particular: also in the middle of storing rows. */
static void killed_anywhere(void **state)
{
	uint64_t random = 1;

	(void)state;
	for (int i = 0; i < scaled(24); i++) {
		struct scene *s = scene_open(3, i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT);
		struct timespec delay = {.tv_nsec = 50000 + random_below(&random, 4000000)};
		unsigned long long end = now_ns() + SCENE_LIMIT_NS;
		pid_t pids[MAX_PROCESSES];

		s->victim = i % 3;
		s->halves = -1;
		scene_start(s, killed_anywhere_body, pids);
		while (atomic_load(&s->nr_rounds) < 2 && now_ns() < end)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		nanosleep(&delay, NULL);
		atomic_store(&s->fate_ns, now_ns());
		kill(pids[s->victim], SIGKILL);
		scene_finish(s, pids, SIGKILL);
		scene_close(s);
	}
}

/* A survivor that ends because of a death is not taken for the one that died. */
static void chain_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};
	int rc;

	if (enter(rank, &r))
		return;
	if (rank->rank == s->victim) {
		die_in_round(&r, s);
		return;
	}
	if (rank->rank == 3) { /* looks only when the others have come and gone */
		struct tern_received received = {.size = sizeof(received)};

		rc = rounds_and_halves(&r, 3, 0);
		while (atomic_load(&s->nr_told) < 2)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL); /* most likely their
									     processes have ended by
									     now: both ways are
									     right */
		rc = rc ? rc : round_try_send(&r);
		rc = rc ? rc : tern_dispatch_recv(r.moe, 0, &received);
		expect_death(rank, &r, s, rc);
		return;
	}
	rc = rounds_from(&r, 0, 0);
	expect_death(rank, &r, s, rc);
	atomic_fetch_add(&s->nr_told, 1);
}

static void death_is_told_apart(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (int victim = 0; victim < 3; victim++) {
		struct scene *s = scene_open(4, mode);

		s->victim = victim;
		s->halves = 0;
		scene_play(s, chain_body, SIGKILL);
	}
}

/* As on old kernels and in some sandboxes: no pidfds. Death is noticed all the same, and so is
 * leaving. */
static int forbid_pidfds(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
			       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
		       ? -1
		       : 0;
}

static void left_body(struct rank *rank);

static void killed_without_pidfd_body(struct rank *rank)
{
	if (forbid_pidfds() || syscall(SYS_pidfd_open, getpid(), 0) != -1)
		rank_fails(rank, "pidfds could not be forbidden");
	else
		killed_body(rank);
}

static void left_without_pidfd_body(struct rank *rank)
{
	if (forbid_pidfds())
		rank_fails(rank, "pidfds could not be forbidden");
	else
		left_body(rank);
}

static bool offers_shm(void)
{
	const char *all = getenv("TERN_TRANSPORT"), *each = getenv("TERN_TEST_TRANSPORTS");

	return (all && !strncmp(all, "shm", 3)) || (each && !strncmp(each, "shm", 3));
}

static void without_pidfds(void **state)
{
	(void)state;
	if (getenv("TERN_FORCE_ENGINE") && offers_shm()) {
		print_message("# SKIP the engine's shared-memory transport needs pidfds\n");
		skip();
	}
	BOTH_MODES(mode)
	for (int leaves = 0; leaves < 2; leaves++) {
		struct scene *s = scene_open(leaves ? 2 : 4, mode);

		s->halves = 1;
		scene_play(s, leaves ? left_without_pidfd_body : killed_without_pidfd_body,
			leaves ? 0 : SIGKILL);
	}
}

/* ---- standstill ------------------------------------------------------------------------------ */

/* A wait for a rank that is slow for a moment may expire too, so only a report that names the
 * victim counts. */
static bool names_victim(struct round *r, struct scene *s)
{
	struct tern_wait_report report = {.size = sizeof(report)};
	char name[24];

	snprintf(name, sizeof(name), "rank %d ", s->victim);
	if (!strstr(tern_last_error(), name))
		return false;
	if (tern_moe_wait_report(r->moe, &report) || report.error != TERN_ERR_TIMEOUT ||
		(report.peer != s->victim && report.nr_missing < 2))
		rank_fails(r->rank, "report of peer %d, %u missing, error %d", report.peer,
			report.nr_missing, report.error);
	return true;
}

/* Repeats halves that time out; the first time-out is told to the parent, which then lets the
 * victim go on. */
static int patient_half(struct round *r, struct scene *s, int half, bool *told)
{
	int rc;

	while ((rc = do_half(r, half)) == TERN_ERR_TIMEOUT)
		if (names_victim(r, s) && !*told) {
			atomic_fetch_add(&s->nr_told, 1);
			*told = true;
		}
	return rc;
}

/* Not before the others have all of its earlier rounds: its engine would stop with them. */
static void stop_at_place(struct scene *s)
{
	while (atomic_load(&s->nr_past) < s->nr_ranks - 1)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	raise(SIGSTOP);
}

static void stopped_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	bool told = false, stops = rank->rank == s->victim;
	struct round r = {0};
	int rc;

	if (enter(rank, &r))
		return;
	rc = rounds_and_halves(&r, 2, 0);
	if (!stops) {
		atomic_fetch_add(&s->nr_past, 1);
		tern_moe_set_wait(r.moe, 150);
	}
	for (; r.number < 4 && !rc; r.number++)
		for (int half = 0; half < 4 && !rc; half++) {
			if (stops && r.number == 2 && half == s->halves)
				stop_at_place(s);
			rc = stops ? do_half(&r, half) : patient_half(&r, s, half, &told);
		}
	if (rc)
		rank_fails(rank, "around a stop: %s", tern_last_error());
	if (!rc && !stops && !told)
		rank_fails(rank, "never timed out");
	tern_moe_set_wait(r.moe, 30000);
	for (uint64_t i = 4; i < 10 && !rc; i++)
		rc = run_round(&r, i);
	round_close(&r);
	tern_group_destroy(rank->group);
}

static void stopped_and_continued(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (int nr_halves = 0; nr_halves < 4; nr_halves++) {
		struct scene *s = scene_open(3, mode);
		unsigned long long end = now_ns() + SCENE_LIMIT_NS;
		pid_t pids[MAX_PROCESSES];

		s->halves = nr_halves;
		s->victim = nr_halves % 3;
		scene_start(s, stopped_body, pids);
		while (atomic_load(&s->nr_told) < 2 && now_ns() < end)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		kill(pids[s->victim], SIGCONT);
		scene_finish(s, pids, 0);
		scene_close(s);
	}
}

static void stopped_once_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};
	int rc = 0;

	if (enter(rank, &r))
		return;
	tern_moe_set_wait(r.moe, 30000);
	for (r.number = 0; r.number < 6 && !rc; r.number++)
		for (int half = 0; half < 4 && !rc; half++) {
			if (rank->rank == s->victim && r.number == 2 && half == s->halves)
				raise(SIGSTOP);
			rc = do_half(&r, half);
		}
	if (rc)
		rank_fails(rank, "after a rank was stopped: %s", tern_last_error());
	round_close(&r);
	tern_group_destroy(rank->group);
}

static void await_stop(pid_t pid)
{
	siginfo_t info;

	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
}

/* Longer than the group would wait for it on joining, shorter than the exchange: its silence is not
 * its death. */
static void stopped_for_long(void **state)
{
	struct scene *scenes[TERN_HIGH_THROUGHPUT + 1];
	pid_t pids[TERN_HIGH_THROUGHPUT + 1][MAX_PROCESSES];

	(void)state;
	BOTH_MODES(mode)
	{
		struct scene *s = scenes[mode] = scene_open(3, mode);

		s->wait_ms = 2000;
		s->halves = (int)mode;
		scene_start(s, stopped_once_body, pids[mode]);
		await_stop(pids[mode][s->victim]);
	}
	nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
	BOTH_MODES(mode)
	kill(pids[mode][scenes[mode]->victim], SIGCONT);
	BOTH_MODES(mode)
	scene_finish(scenes[mode], pids[mode], 0);
	BOTH_MODES(mode)
	scene_close(scenes[mode]);
}

/* ---- departure ------------------------------------------------------------------------------- */

static void leaver(struct rank *rank, struct round *r, struct scene *s)
{
	if (rounds_and_halves(r, 3, s->halves))
		rank_fails(rank, "before leaving: %s", tern_last_error());
	atomic_store(&s->fate_ns, now_ns());
	round_close(r);
	tern_group_destroy(rank->group);
}

static void left_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};
	char text[48];
	int rc;

	if (enter(rank, &r))
		return;
	if (rank->rank == s->victim) {
		leaver(rank, &r, s);
		return;
	}
	rc = rounds_from(&r, 0, 0);
	snprintf(text, sizeof(text), "rank %d left the exchange", s->victim);
	if (!*rank->failure && (rc != TERN_ERR_PEER_LEFT || !strstr(tern_last_error(), text)))
		rank_fails(rank, "returned %d, \"%s\", not TERN_ERR_PEER_LEFT with \"%s\"", rc,
			tern_last_error(), text);
	if (passed_ns(atomic_load(&s->fate_ns)) > NOTICED_WITHIN_NS)
		rank_fails(rank, "noticed after %llu ms",
			passed_ns(atomic_load(&s->fate_ns)) / 1000000);
	round_close(&r);
	carry_on(rank, s);
}

/* Destroyed its exchange and ended: it left, it did not die. */
static void left_in_order(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (int nr_halves = 0; nr_halves < 4; nr_halves++) {
		struct scene *s = scene_open(2, mode);

		s->halves = nr_halves;
		s->victim = nr_halves & 1;
		scene_play(s, left_body, 0);
	}
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Rank 1 is gone before its exchange is made: nobody waits for ever. */
static void never_made_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	tern_moe *moe = NULL;
	int rc;

	if (enter(rank, NULL))
		return;
	if (rank->rank == s->victim)
		raise(SIGKILL);
	rc = tern_moe_create(rank->group, &s->job.config, &moe);
	if (rc != TERN_ERR_BOOTSTRAP || moe)
		rank_fails(rank, "tern_moe_create returned %d, %s", rc, tern_last_error());
	tern_group_destroy(rank->group);
}

static void killed_before_creation(void **state)
{
	struct scene *s = scene_open(3, TERN_LOW_LATENCY);

	(void)state;
	s->first.limit_ms = 1500;
	scene_play(s, never_made_body, SIGKILL);
}

/* test_faults [PATTERN]: those of that name. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_in_each_phase_ll),
		cmocka_unit_test(killed_in_each_phase_ht),
		cmocka_unit_test(killed_anywhere),
		cmocka_unit_test(death_is_told_apart),
		cmocka_unit_test(without_pidfds),
		cmocka_unit_test(stopped_and_continued),
		cmocka_unit_test(stopped_for_long),
		cmocka_unit_test(left_in_order),
		cmocka_unit_test(killed_before_creation),
	};
	const char *each = getenv("TERN_TEST_TRANSPORTS"),
		   *network = each && strstr(each, "ofi") ? "ofi" : getenv("TERN_TRANSPORT");

	if (getenv("TERN_FORCE_ENGINE") && network && !transport_is_there(network)) {
		printf("%s\n", tern_last_error());
		return 77;
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
