/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/row_work.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/ordering.h"
#include "exchange/cpu/kernels/kernels.h"
#include "exchange/layout.h"

#define NR_OPS 512      /* of the ring: it is finished when it is full */
#define RING_AT 16      /* ops that are worth waking threads for */
#define SPIN_ROUNDS 500 /* of a thread that finds no work, before it sleeps */

struct worker {
	struct row_work *work;
	struct row_place scratch;
	pthread_t thread;
};

struct row_work {
	const struct tern_moe_config *config;
	struct row_op *ops;
	uint64_t nr_ops;         /* 1: each is done at once */
	uint64_t told, finished; /* by the thread that calls: its own account */
	struct worker *workers;  /* [nr_threads]; the first is the thread that calls */
	uint32_t nr_started;     /* of the others */
	uint8_t *rows;           /* scratch of all */
	struct op_ring ring;
	_Atomic uint32_t nr_asleep;
	pthread_mutex_t lock;
	pthread_cond_t rung;
	uint64_t nr_rings; /* under lock */
	bool closes;       /* under lock */
};

/* ---- doing ----------------------------------------------------------------------------------- */

static void run(const struct worker *w, const struct row_op *op)
{
	row_op_run(w->work->config, op, &w->scratch);
}

/* By any thread, with a scratch of its own. Streaming stores are fenced by who made them. */
static bool run_next(struct worker *w)
{
	struct row_work *work = w->work;
	const struct row_op *op;
	uint64_t at;

	if (!ops_take(&work->ring, &at))
		return false;
	op = &work->ops[at % NR_OPS];
	run(w, op);
	if (op->nr_to && op->to[0].stream)
		stream_fence();
	ops_done(&work->ring);
	return true;
}

/* A piece of the caller's parallel_for. */
static void run_piece(void *arg, uint32_t i)
{
	struct row_work *work = arg;

	while (run_next(&work->workers[i]))
		;
}

/* ---- threads of the exchange ----------------------------------------------------------------- */

/* Correctness does not depend on who is awake: the thread that calls does what nobody else does. */
static bool sleep_until_rung(struct row_work *work, uint64_t *nr_rings)
{
	bool closes;

	pthread_mutex_lock(&work->lock);
	atomic_fetch_add_explicit(&work->nr_asleep, 1, memory_order_relaxed);
	while (!work->closes && work->nr_rings == *nr_rings)
		pthread_cond_wait(&work->rung, &work->lock);
	atomic_fetch_sub_explicit(&work->nr_asleep, 1, memory_order_relaxed);
	*nr_rings = work->nr_rings;
	closes = work->closes;
	pthread_mutex_unlock(&work->lock);
	return !closes;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	uint64_t nr_rings = 0;
	uint32_t idle;

	do
		for (idle = 0; idle < SPIN_ROUNDS; idle = run_next(w) ? 0 : idle + 1)
			spin_pause();
	while (sleep_until_rung(w->work, &nr_rings));
	return NULL;
}

static void ring(struct row_work *work, bool closes)
{
	pthread_mutex_lock(&work->lock);
	work->nr_rings++;
	work->closes = closes;
	pthread_cond_broadcast(&work->rung);
	pthread_mutex_unlock(&work->lock);
}

/* Signals are for the caller's threads. */
static int start_threads(struct row_work *work, uint32_t nr)
{
	sigset_t all, before;
	int rc = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (work->nr_started < nr && !rc) {
		struct worker *w = &work->workers[1 + work->nr_started];

		rc = pthread_create(&w->thread, NULL, worker_main, w);
		work->nr_started += !rc;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc ? fail(TERN_ERR_NOMEM, "%u of %u threads could be started", work->nr_started, nr)
		  : 0;
}

/* ---- the thread that calls ------------------------------------------------------------------- */

struct row_op *row_work_next(struct row_work *work)
{
	if (work->nr_ops > 1 && work->told - work->finished == work->nr_ops)
		row_work_finish(work);
	return &work->ops[work->told % work->nr_ops];
}

void row_work_tell(struct row_work *work)
{
	if (work->nr_ops == 1) {
		run(work->workers, work->ops);
		return;
	}
	ops_offer(&work->ring, ++work->told);
	if (work->told - work->finished == RING_AT &&
		atomic_load_explicit(&work->nr_asleep, memory_order_relaxed))
		ring(work, false);
}

void row_work_finish(struct row_work *work)
{
	const struct tern_moe_config *c = work->config;
	uint32_t waits = 0;

	if (work->told == work->finished)
		return;
	if (c->parallel_for && work->told - work->finished >= RING_AT)
		c->parallel_for(c->parallel_ctx, c->nr_threads, run_piece, work);
	while (run_next(work->workers))
		;
	while (!ops_are_done(&work->ring, work->told))
		if (waits++ < SPIN_ROUNDS)
			spin_pause();
		else
			sched_yield();
	work->finished = work->told;
}

/* ---- opening --------------------------------------------------------------------------------- */

int row_work_open(const struct tern_moe_config *c, uint32_t payload_bytes, uint32_t scales_bytes,
	uint64_t *private_bytes, struct row_work **out)
{
	uint64_t payload = align_up(payload_bytes, CACHE_LINE),
		 row = payload + align_up(scales_bytes, CACHE_LINE);
	struct row_work *work = calloc(1, sizeof(*work));

	*out = work;
	if (!work)
		return fail(TERN_ERR_NOMEM, "no memory for work on rows");
	pthread_mutex_init(&work->lock, NULL);
	pthread_cond_init(&work->rung, NULL);
	work->config = c;
	work->nr_ops = c->nr_threads > 1 ? NR_OPS : 1;
	work->ops = calloc(work->nr_ops, sizeof(*work->ops));
	work->workers = calloc(c->nr_threads, sizeof(*work->workers));
	work->rows = calloc(c->nr_threads, row);
	if (!work->ops || !work->workers || !work->rows)
		return fail(
			TERN_ERR_NOMEM, "no memory for work on rows by %u threads", c->nr_threads);
	for (uint32_t i = 0; i < c->nr_threads; i++)
		work->workers[i] = (struct worker){.work = work,
			.scratch = {.payload = work->rows + i * row,
				.scales = work->rows + i * row + payload}};
	*private_bytes += sizeof(*work) + work->nr_ops * sizeof(*work->ops) +
			  c->nr_threads * (sizeof(*work->workers) + row);
	return c->parallel_for ? 0 : start_threads(work, c->nr_threads - 1);
}

void row_work_close(struct row_work *work)
{
	if (!work)
		return;
	ring(work, true);
	for (uint32_t i = 0; i < work->nr_started; i++)
		pthread_join(work->workers[1 + i].thread, NULL);
	pthread_cond_destroy(&work->rung);
	pthread_mutex_destroy(&work->lock);
	free(work->rows);
	free(work->workers);
	free(work->ops);
	free(work);
}
