/* SPDX-License-Identifier: Apache-2.0 */
#include "acts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/hosts.h"

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

static int (*const halves[])(struct round *) = {round_dispatch_send, round_dispatch_recv, round_combine_send, round_combine_recv};

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
	unsigned long long took = now_ns() - atomic_load(&s->fate_ns);
	char text[32];

	if (*rank->failure)
		return -1;
	snprintf(text, sizeof(text), "rank %d died", s->victim);
	if (rc != TERN_ERR_PEER_DEAD || !strstr(tern_last_error(), text))
		return rank_fails(rank, "returned %d, \"%s\", not TERN_ERR_PEER_DEAD with \"%s\"", rc, tern_last_error(), text);
	if (took > NOTICED_WITHIN_NS)
		return rank_fails(rank, "noticed after %llu ms", took / 1000000);
	if (tern_moe_wait_report(r->moe, &report) || report.peer != s->victim || report.error != TERN_ERR_PEER_DEAD)
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
