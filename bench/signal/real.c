/* SPDX-License-Identifier: Apache-2.0 */
/* The experiment on a network of this machine, in real time: ranks are threads with an engine each;
 * rank 0 sends, the others are there. */
#include "bench/signal/signal.h"
#include "bench/signal/send.h"
#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARMUP 5
#define WAIT_MS 20000

struct fair;

struct stand { /* a rank's */
	struct fair *fair;
	uint32_t rank;
	struct signal_sender sender;
	tern_group *group;
	_Atomic uint32_t nr_immediates;
	int rc;
	char cause[256];
};

struct fair {
	const struct signal_job *job;
	const char *transport;
	struct tern_threads *threads;
	struct stand *stands;
	struct signal_result *result;
	double *us;
	_Atomic uint32_t nr_done, nr_failed;
};

static int took_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	struct stand *stand = ctx;

	(void)peer;
	(void)immediate;
	atomic_fetch_add_explicit(&stand->nr_immediates, 1, memory_order_release);
	return 1;
}

static void group_done(void *ctx, int error, const char *text)
{
	struct fair *fair = ctx;

	(void)text;
	if (error)
		atomic_fetch_add_explicit(&fair->nr_failed, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&fair->nr_done, 1, memory_order_release);
}

/* ---- what rank 0 does ------------------------------------------------------------------------ */

/* All ranks are threads of this process, so rank 0 may look into their memory once a round is over.
 */
static void check_round(struct fair *fair, const struct signal_plan *plan, uint64_t word)
{
	enum signal_policy policy = fair->job->policy;
	uint32_t i;

	for (i = 0; i < plan->nr; i++) {
		const struct signal_memory *memory =
			&fair->stands[plan->transfers[i].peer].sender.memory;
		uint64_t got = atomic_load_explicit(
			(_Atomic uint64_t *)(void *)(memory->base + memory->words_at +
						     plan->transfers[i].place * WORD_BYTES),
			memory_order_acquire);

		fair->result->nr_wrong +=
			policy != SIGNAL_PUT_ONLY && policy != SIGNAL_IMM && got != word;
		fair->result->nr_wrong +=
			!signal_has_data(fair->job, memory, plan->transfers[i].place);
	}
}

static int run_round(struct fair *fair, const struct signal_plan *plan, uint64_t word, double *us)
{
	uint64_t began = clock_ns(), limit = began + WAIT_MS * UINT64_C(1000000);
	uint32_t nr_groups = 0;
	int rc;

	atomic_store(&fair->nr_done, 0);
	rc = signal_send(
		fair->job, &fair->stands[0].sender, plan, word, group_done, fair, &nr_groups);
	while (!rc && atomic_load_explicit(&fair->nr_done, memory_order_acquire) < nr_groups) {
		sched_yield(); /* the proxies may need this core */
		if (clock_ns() > limit)
			rc = TERN_ERR_TIMEOUT;
	}
	*us = (double)(clock_ns() - began) * 1e-3;
	return rc;
}

static int run_rounds(struct fair *fair)
{
	uint32_t i, nr = fair->job->iters + WARMUP;
	struct tern_engine_stats before = {.size = sizeof(before)}, after = before;
	struct signal_plan plan;
	double us;
	int rc = 0;

	if (signal_plan_make(fair->job, 0, 0, &plan))
		return TERN_ERR_NOMEM;
	fair->result->transfers = plan.nr;
	for (i = 0; i < nr && !rc; i++) {
		if (i == WARMUP)
			rc = tern_engine_stats(fair->stands[0].sender.engine, &before);
		if (!rc)
			rc = run_round(
				fair, &plan, i + 1, i < WARMUP ? &us : &fair->us[i - WARMUP]);
		if (!rc)
			check_round(fair, &plan, i + 1);
	}
	if (!rc)
		rc = tern_engine_stats(fair->stands[0].sender.engine, &after);
	fair->result->drains = (double)(after.drains - before.drains) / fair->job->iters;
	fair->result->writes = (double)(after.writes - before.writes) / fair->job->iters;
	fair->result->nr_wrong += atomic_load(&fair->nr_failed);
	signal_plan_free(&plan);
	return rc;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int open_engine(struct stand *stand)
{
	struct tern_engine_config config;

	tern_engine_config_init(&config);
	config.transport = stand->fair->transport;
	config.ring_entries = 4096;
	config.immediate = took_immediate;
	config.immediate_ctx = stand;
	return tern_engine_create(stand->group, &config, &stand->sender.engine);
}

static int share_memory(struct stand *stand)
{
	uint32_t i, nr = stand->fair->job->nr_ranks;
	struct signal_sender *sender = &stand->sender;
	struct tern_descriptor mine, *all = calloc(nr, sizeof(*all));
	int rc = all ? tern_engine_register(sender->engine, sender->memory.base,
			       sender->memory.bytes, &sender->region)
		     : TERN_ERR_NOMEM;

	memset(&mine, 0, sizeof(mine));
	if (!rc)
		rc = tern_region_descriptor(sender->region, &mine);
	if (!rc)
		rc = tern_group_allgather(stand->group, &mine, all, sizeof(mine));
	for (i = 0; i < nr && !rc; i++)
		rc = tern_engine_import(sender->engine, &all[i], &sender->remotes[i]);
	free(all);
	return rc;
}

static int open_stand(struct stand *stand)
{
	struct tern_group_config config;
	int rc;

	stand->sender.remotes = calloc(stand->fair->job->nr_ranks, sizeof(tern_remote *));
	if (!stand->sender.remotes || signal_memory_make(stand->fair->job, &stand->sender.memory))
		return TERN_ERR_NOMEM;
	tern_group_config_init(&config);
	config.wait_ms = WAIT_MS;
	rc = tern_threads_boot(stand->fair->threads, (int)stand->rank, &config.boot);
	if (!rc)
		rc = tern_group_create(&config, &stand->group);
	if (!rc)
		rc = open_engine(stand);
	return rc ? rc : share_memory(stand);
}

/* A rank that fails before the others do leaves them to their time-outs. */
static void *run_stand(void *arg)
{
	struct stand *stand = arg;
	char done = 0, all[64];

	stand->rc = open_stand(stand);
	if (!stand->rc && !stand->rank)
		stand->rc = run_rounds(stand->fair);
	if (stand->rc)
		snprintf(stand->cause, sizeof(stand->cause), "%.250s", tern_last_error());
	if (stand->group)
		tern_group_allgather(stand->group, &done, all, 1);
	tern_engine_destroy(stand->sender.engine);
	tern_group_destroy(stand->group);
	free(stand->sender.remotes);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int run_stands(struct fair *fair, pthread_t *ids)
{
	uint32_t i, nr = fair->job->nr_ranks;
	int rc = tern_threads_create((int)nr, WAIT_MS, &fair->threads);

	if (rc)
		return rc;
	for (i = 0; i < nr; i++) {
		fair->stands[i].fair = fair;
		fair->stands[i].rank = i;
		if (pthread_create(&ids[i], NULL, run_stand, &fair->stands[i]))
			break;
	}
	nr = i;
	for (i = 0; i < nr; i++)
		pthread_join(ids[i], NULL);
	tern_threads_destroy(fair->threads);
	return nr < fair->job->nr_ranks ? TERN_ERR_SYSTEM : 0;
}

int signal_measure(const struct signal_job *job, const char *transport,
	struct signal_result *result, struct reason *why)
{
	struct fair fair = {.job = job, .transport = transport, .result = result};
	pthread_t *ids = calloc(job->nr_ranks, sizeof(*ids));
	const char *cause = "";
	uint32_t i;
	int rc = TERN_ERR_NOMEM;

	memset(result, 0, sizeof(*result));
	fair.stands = calloc(job->nr_ranks, sizeof(*fair.stands));
	fair.us = calloc(job->iters, sizeof(*fair.us));
	if (ids && fair.stands && fair.us)
		rc = run_stands(&fair, ids);
	for (i = 0; fair.stands && i < job->nr_ranks; i++) {
		if (!rc && fair.stands[i].rc) {
			rc = fair.stands[i].rc;
			cause = fair.stands[i].cause;
		}
		signal_memory_free(&fair.stands[i].sender.memory);
	}
	if (rc) {
		refuse(why, "%s: %s", tern_strerror(rc), cause);
	} else {
		qsort(fair.us, job->iters, sizeof(*fair.us), compare);
		result->time_us = fair.us[job->iters / 2];
		result->min_us = fair.us[0];
		result->max_us = fair.us[job->iters - 1];
	}
	free(fair.stands);
	free(fair.us);
	free(ids);
	return rc;
}
