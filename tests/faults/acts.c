/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/acts.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <cmocka.h>

#include "cli/hosts.h"
#include "exchange/state.h"
#include "tests/late.h"

int enter(struct rank *rank, struct round *r)
{
	static struct job job;
	struct scene *s = rank->ctx;

	if (s->hosts && hosts_enter(s->hosts, rank->rank))
		return rank_fails(rank, "entering a node: %s", strerror(errno));
	job = s->job;
	if (job_open(&job, NULL))
		return rank_fails(rank, "no memory");
	return join(rank, &s->first, rank->rank) || (r && round_open(r, rank, &job, NULL)) ? -1 : 0;
}

static int (*const halves[])(struct round *) = {
	round_dispatch_send, round_dispatch_recv, round_combine_send, round_combine_recv};

int do_half(struct round *r, int half)
{
	char before[sizeof(r->rank->failure)];

	memcpy(before, r->rank->failure, sizeof(before));
	r->rc = 0;
	if (!halves[half](r))
		return 0;
	if (!r->rc)
		return -1;
	memcpy(r->rank->failure, before, sizeof(before)); /* an error is what the scene is about */
	return r->rc;
}

int rounds_from(struct round *r, uint64_t number, int half)
{
	int rc = 0;

	for (r->number = number; !rc; r->number++, half = 0)
		for (; half < 4 && !rc; half++)
			rc = do_half(r, half);
	return rc;
}

int rounds_and_halves(struct round *r, uint64_t nr_rounds, int nr_halves)
{
	int rc = 0;

	for (r->number = 0; r->number < nr_rounds && !rc; r->number++)
		for (int half = 0; half < 4 && !rc; half++)
			rc = do_half(r, half);
	for (int half = 0; half < nr_halves && !rc; half++)
		rc = do_half(r, half);
	return rc;
}

int expect_death(struct rank *rank, struct round *r, struct scene *s, int rc)
{
	struct tern_wait_report report = {.size = sizeof(report)};
	unsigned long long fate = atomic_load(&s->fate_ns),
			   begun = fate ? fate : atomic_load(&s->strike_ns),
			   took = passed_ns(begun),
			   third = (unsigned long long)s->job.config.wait_ms * 1000000 / 3;
	char text[32];

	if (*rank->failure)
		return -1;
	snprintf(text, sizeof(text), "rank %d died", s->victim);
	if (rc != TERN_ERR_PEER_DEAD || !strstr(tern_last_error(), text))
		return rank_fails(rank, "returned %d, \"%s\", not TERN_ERR_PEER_DEAD with \"%s\"",
			rc, tern_last_error(), text);
	if (!begun)
		return rank_fails(rank, "before anything was done: %s", tern_last_error());
	if (took > NOTICED_WITHIN_NS && took > third)
		return rank_fails(rank, "noticed after %llu ms", took / 1000000);
	if (tern_moe_wait_report(r->moe, &report) || report.peer != s->victim ||
		report.error != TERN_ERR_PEER_DEAD)
		return rank_fails(rank, "report of peer %d, error %d", report.peer, report.error);
	return 0;
}

void carry_on(struct rank *rank, struct scene *s)
{
	struct job job = s->job;

	tern_group_destroy(rank->group);
	rank->group = NULL;
	if (s->second.nr_ranks == 0)
		return;
	job.nr_ranks = (uint32_t)s->second.nr_ranks;
	job.seed += 1;
	if (job_open(&job, NULL))
		rank_fails(rank, "no memory");
	else if (!join(rank, &s->second, rank->rank - (rank->rank > s->victim)))
		run_rounds(rank, &job, 20);
	job_close(&job);
	tern_group_destroy(rank->group);
}

void die_in_round(struct round *r, struct scene *s)
{
	if (rounds_and_halves(r, 3, s->halves))
		return;
	atomic_store(&s->fate_ns, now_ns());
	raise(SIGKILL);
}

int meet_fate(struct round *r, struct scene *s)
{
	int rc = rounds_and_halves(r, 3, s->halves);

	if (rc)
		return rc;
	atomic_store(&s->at_place, true);
	while (!atomic_load(&s->fate_ns))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return rounds_from(r, 3, s->halves);
}

static struct {
	struct scene *scene;
	int nr_ahead;
} falling;

/* The store comes again, and ends this process. */
static void wait_and_fall(int number)
{
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	while (atomic_load(&falling.scene->nr_ready) < falling.nr_ahead && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	signal(number, SIG_DFL);
}

void fall_before_telling(struct rank *rank, const tern_moe *moe, int peer, int nr_ahead)
{
	falling.scene = rank->ctx;
	falling.nr_ahead = nr_ahead;
	if (signal(SIGSEGV, wait_and_fall) == SIG_ERR ||
		mprotect(moe->windows[peer]->base, moe->layout.slots, PROT_READ))
		rank_fails(rank, "mprotect: %s", strerror(errno));
}

void await_progress(const struct scene *s)
{
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	while (atomic_load(&s->nr_past) < s->nr_ranks && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

void await_fate(const struct scene *s)
{
	while (!atomic_load(&s->fate_ns))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

int kill_victims(struct scene *s, rank_main body, uint64_t delay_ns, uint64_t between_ns)
{
	bool two = s->other_victim >= 0;
	pid_t pids[MAX_PROCESSES];
	int nr_rounds;

	scene_start(s, body, pids);
	await_progress(s);
	nanosleep(&(struct timespec){.tv_nsec = (long)delay_ns}, NULL);
	if (two) {
		kill(pids[s->victim], SIGKILL);
		nanosleep(&(struct timespec){.tv_nsec = (long)between_ns}, NULL);
	}
	atomic_store(&s->fate_ns, now_ns());
	kill(pids[two ? s->other_victim : s->victim], SIGKILL);
	scene_finish(s, pids, SIGKILL);
	if (!two && atomic_load(&s->nr_told) != s->nr_ranks - 1)
		fail_msg("%d changes on %d ranks", atomic_load(&s->nr_told), s->nr_ranks - 1);
	nr_rounds = atomic_load(&s->nr_rounds);
	scene_close(s);
	return nr_rounds;
}

int survive_all(survive_once *survive, void *worker)
{
	int rc;

	do
		rc = survive(worker);
	while (rc == TERN_ERR_MEMBERS);
	return rc;
}

int gather_through_changes(struct rank *rank, const void *mine, void *all, size_t bytes,
	survive_once *survive, void *worker)
{
	int rc;

	while ((rc = tern_group_allgather(rank->group, mine, all, bytes)) == TERN_ERR_MEMBERS)
		if ((rc = survive_all(survive, worker)))
			return rc;
	return rc;
}

int stay_until_all_are_done(struct rank *rank, survive_once *survive, void *worker)
{
	uint8_t mine = 1, all[MAX_PROCESSES];

	return gather_through_changes(rank, &mine, all, 1, survive, worker);
}

static bool all_at_place(struct scene *const *scenes, int nr)
{
	for (int i = 0; i < nr; i++)
		if (!atomic_load(&scenes[i]->at_place))
			return false;
	return true;
}

const char *play_together(struct scene *const *scenes, int nr, rank_main body, int (*strike)(void))
{
	static char text[1200];
	pid_t pids[MAX_SCENES][MAX_PROCESSES];
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;
	bool struck;

	*text = 0;
	for (int i = 0; i < nr; i++)
		scene_start(scenes[i], body, pids[i]);
	while (!all_at_place(scenes, nr) && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	for (int i = 0; i < nr; i++)
		atomic_store(&scenes[i]->strike_ns, now_ns());
	struck = !strike();
	for (int i = 0; i < nr; i++)
		atomic_store(&scenes[i]->fate_ns, now_ns());
	for (int i = 0; i < nr; i++) {
		const char *wrong;

		for (int r = 0; r < scenes[i]->nr_ranks && !struck; r++)
			kill(pids[i][r], SIGKILL);
		wrong = scene_verdict(scenes[i], pids[i], 0);
		if (wrong && !*text)
			snprintf(text, sizeof(text), "mode %d, after %d halves: %s",
				(int)scenes[i]->job.config.mode, scenes[i]->halves, wrong);
	}
	for (int i = 0; i < nr; i++)
		scene_close(scenes[i]);
	return !struck ? "the link could not be cut" : *text ? text : NULL;
}
