/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that a PMIx launcher has started (mpirun, prterun, srun --mpi=pmix). A gathering is put,
 * commit, a fence that collects, and one get for each rank. PMIx is one for the process and counts
 * its users, so this works inside an MPI program as well. libpmix is loaded when it is needed:
 * libtern does not depend on it. */
#include "group/boot/boot.h"
#include "group/boot/pmix_inside.h"
#include "base/error.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pmix_api {
	pmix_status_t (*init)(pmix_proc_t *, pmix_info_t[], size_t);
	pmix_status_t (*finalize)(const pmix_info_t[], size_t);
	pmix_status_t (*put)(pmix_scope_t, const char[], pmix_value_t *);
	pmix_status_t (*commit)(void);
	pmix_status_t (*fence_nb)(
		const pmix_proc_t[], size_t, const pmix_info_t[], size_t, pmix_op_cbfunc_t, void *);
	pmix_status_t (*get)(
		const pmix_proc_t *, const char[], const pmix_info_t[], size_t, pmix_value_t **);
	const char *(*error_string)(pmix_status_t);
};

struct pmix_boot {
	struct boot_seat seat;
	struct pmix_api api;
	pmix_proc_t me;
	int wait_ms;
	bool broken; /* a fence was given up: nobody knows whether it will still complete */
};

/* Keys are the process's, as PMIx itself is; all ranks gather in the same order, so the numbers
 * agree. */
static _Atomic uint64_t nr_gatherings;

bool boot_pmix_present(void)
{
	return getenv("PMIX_RANK") && getenv("PMIX_NAMESPACE");
}

static int fail_pmix(
	const struct pmix_boot *p, const char *what, uint64_t number, pmix_status_t status)
{
	return fail(TERN_ERR_BOOTSTRAP, "rank %d: %s of gathering %llu: %s (PMIx status %d)",
		p->seat.rank, what, (unsigned long long)number, p->api.error_string(status),
		status);
}

/* ---- what is under way, and can be given up -------------------------------------------------- */

struct pmix_pending *pmix_pending_new(void)
{
	struct pmix_pending *f = calloc(1, sizeof(*f));
	pthread_condattr_t attr;

	if (!f)
		return NULL;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&f->done_cond, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&f->lock, NULL);
	f->nr_users = 2;
	return f;
}

/* Called with the lock held, and gives it back. */
static void leave(struct pmix_pending *f)
{
	bool last = --f->nr_users == 0;

	pthread_mutex_unlock(&f->lock);
	if (!last)
		return;
	pthread_cond_destroy(&f->done_cond);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

void pmix_pending_done(pmix_status_t status, void *arg)
{
	struct pmix_pending *f = arg;

	pthread_mutex_lock(&f->lock);
	f->done = true;
	f->status = status;
	pthread_cond_signal(&f->done_cond);
	leave(f);
}

bool pmix_pending_wait(struct pmix_pending *f, int wait_ms, pmix_status_t *status)
{
	struct timespec at;
	int late = 0;
	bool done;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_nsec += wait_ms % 1000 * 1000000L;
	at.tv_sec += wait_ms / 1000 + at.tv_nsec / 1000000000L;
	at.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&f->lock);
	while (!f->done && !late)
		late = pthread_cond_timedwait(&f->done_cond, &f->lock, &at);
	done = f->done;
	*status = f->status;
	leave(f);
	return done;
}

/* ---- a gathering ----------------------------------------------------------------------------- */

static pmix_info_t info_flag(const char *key)
{
	pmix_info_t info = {.value = {.type = PMIX_BOOL, .data.flag = true}};

	snprintf(info.key, sizeof(info.key), "%s", key);
	return info;
}

pmix_info_t pmix_info_timeout(int wait_ms)
{
	pmix_info_t info = {.value = {.type = PMIX_INT, .data.integer = wait_ms / 1000 + 1}};

	snprintf(info.key, sizeof(info.key), "%s", PMIX_TIMEOUT);
	return info;
}

static pmix_proc_t proc_of(const struct pmix_boot *p, pmix_rank_t rank)
{
	pmix_proc_t proc = p->me;

	proc.rank = rank;
	return proc;
}

static int publish(
	struct pmix_boot *p, const char *key, uint64_t number, const void *mine, size_t bytes)
{
	pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
	pmix_status_t status;
	char nothing = 0;

	/* PMIx takes a missing object for an error, so an empty one is sent as one byte that nobody
	 * reads. */
	value.data.bo.bytes = bytes ? (char *)(uintptr_t)mine : &nothing;
	value.data.bo.size = bytes ? bytes : 1;
	status = p->api.put(PMIX_GLOBAL, key, &value);
	if (status == PMIX_SUCCESS)
		status = p->api.commit();
	return status == PMIX_SUCCESS ? 0 : fail_pmix(p, "put", number, status);
}

static int cross_fence(struct pmix_boot *p, uint64_t number)
{
	pmix_info_t info = info_flag(PMIX_COLLECT_DATA); /* no PMIX_TIMEOUT: not every server knows
							    it, and we have our own */
	pmix_proc_t all = proc_of(p, PMIX_RANK_WILDCARD);
	struct pmix_pending *f = pmix_pending_new();
	pmix_status_t status;

	if (!f)
		return fail(TERN_ERR_NOMEM, "no memory for a fence");
	status = p->api.fence_nb(&all, 1, &info, 1, pmix_pending_done, f);
	if (status != PMIX_SUCCESS) /* then nobody will call back: done at once, or refused */
		pmix_pending_done(status == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : status, f);
	if (!pmix_pending_wait(f, p->wait_ms, &status)) {
		p->broken = true;
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d: gathering %llu: not all of the %d ranks came to the fence within "
			"%d ms",
			p->seat.rank, (unsigned long long)number, p->seat.nr_ranks, p->wait_ms);
	}
	if (status == PMIX_ERR_PARTIAL_SUCCESS)
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d: gathering %llu: some of the %d ranks have ended", p->seat.rank,
			(unsigned long long)number, p->seat.nr_ranks);
	return status == PMIX_SUCCESS ? 0 : fail_pmix(p, "fence", number, status);
}

static int fetch(
	struct pmix_boot *p, const char *key, uint64_t number, int rank, void *to, size_t bytes)
{
	pmix_info_t info[2] = {info_flag(PMIX_IMMEDIATE), pmix_info_timeout(p->wait_ms)};
	pmix_proc_t proc = proc_of(p, (pmix_rank_t)rank);
	pmix_value_t *value = NULL;
	pmix_status_t status = p->api.get(&proc, key, info, 2, &value);
	size_t got;
	int rc = 0;

	if (status != PMIX_SUCCESS)
		return fail(TERN_ERR_BOOTSTRAP,
			"rank %d: gathering %llu: nothing from rank %d: %s (PMIx status %d)",
			p->seat.rank, (unsigned long long)number, rank, p->api.error_string(status),
			status);
	got = value->type == PMIX_BYTE_OBJECT ? value->data.bo.size : 0;
	if (got != (bytes ? bytes : 1))
		rc = fail(TERN_ERR_BOOTSTRAP,
			"gathering %llu: rank %d passes %zu bytes, rank %d passes %zu",
			(unsigned long long)number, p->seat.rank, bytes, rank, got);
	else if (bytes)
		memcpy(to, value->data.bo.bytes, bytes);
	if (value->type == PMIX_BYTE_OBJECT)
		free(value->data.bo.bytes);
	free(value);
	return rc;
}

int pmix_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct pmix_boot *p = ctx;
	uint64_t number = atomic_fetch_add(&nr_gatherings, 1) + 1;
	char key[64];
	int rc;

	if (p->broken)
		return fail(
			TERN_ERR_BOOTSTRAP, "rank %d gave up an earlier gathering", p->seat.rank);
	snprintf(key, sizeof(key), "tern.gathering.%llu", (unsigned long long)number);
	rc = publish(p, key, number, mine, bytes);
	if (!rc)
		rc = cross_fence(p, number);
	for (int r = 0; r < p->seat.nr_ranks && !rc; r++)
		rc = fetch(p, key, number, r, (char *)all + (size_t)r * bytes, bytes);
	return rc;
}

/* ---- coming and going ------------------------------------------------------------------------ */

int pmix_load_symbol(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	if (!symbol)
		return fail(TERN_ERR_UNSUPPORTED, "%s has no %s", PMIX_LIBRARY, name);
	memcpy(function, &symbol, sizeof(symbol));
	return 0;
}

/* Never unloaded: PMIx leaves threads and exit handlers behind. */
int pmix_load(void **library)
{
	*library = dlopen(PMIX_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	return *library ? 0
			: fail(TERN_ERR_UNSUPPORTED,
				  "started by a PMIx launcher, but PMIx cannot be loaded: %s",
				  dlerror());
}

static int load_api(struct pmix_api *api)
{
	void *library;
	int rc = pmix_load(&library);

	if (rc)
		return rc;
	rc = pmix_load_symbol(library, "PMIx_Init", &api->init);
	if (!rc)
		rc = pmix_load_symbol(library, "PMIx_Finalize", &api->finalize);
	if (!rc)
		rc = pmix_load_symbol(library, "PMIx_Put", &api->put);
	if (!rc)
		rc = pmix_load_symbol(library, "PMIx_Commit", &api->commit);
	if (!rc)
		rc = pmix_load_symbol(library, "PMIx_Fence_nb", &api->fence_nb);
	if (!rc)
		rc = pmix_load_symbol(library, "PMIx_Get", &api->get);
	if (!rc)
		rc = pmix_load_symbol(library, "PMIx_Error_string", &api->error_string);
	return rc;
}

static int read_job_size(struct pmix_boot *p)
{
	pmix_info_t info = pmix_info_timeout(p->wait_ms);
	pmix_proc_t all = proc_of(p, PMIX_RANK_WILDCARD);
	pmix_value_t *value = NULL;
	pmix_status_t status = p->api.get(&all, PMIX_JOB_SIZE, &info, 1, &value);

	if (status != PMIX_SUCCESS)
		return fail(TERN_ERR_BOOTSTRAP, "PMIx does not tell the number of ranks: %s",
			p->api.error_string(status));
	p->seat.nr_ranks = value->type == PMIX_UINT32 ? (int)value->data.uint32 : 0;
	free(value);
	p->seat.rank = (int)p->me.rank;
	if (p->seat.nr_ranks < 1 || p->seat.rank < 0 || p->seat.rank >= p->seat.nr_ranks)
		return fail(TERN_ERR_BOOTSTRAP, "PMIx says rank %d of %d", p->seat.rank,
			p->seat.nr_ranks);
	return 0;
}

static void pmix_close(void *ctx)
{
	struct pmix_boot *p = ctx;

	p->api.finalize(NULL, 0);
	free(p);
}

static int join(struct pmix_boot *p)
{
	pmix_status_t status;
	int rc = load_api(&p->api);

	if (rc)
		return rc;
	status = p->api.init(&p->me, NULL, 0);
	if (status != PMIX_SUCCESS)
		return fail(TERN_ERR_BOOTSTRAP, "PMIx_Init: %s (PMIx status %d)",
			p->api.error_string(status), status);
	rc = read_job_size(p);
	if (rc)
		p->api.finalize(NULL, 0);
	return rc;
}

int boot_pmix(int wait_ms, struct tern_boot *boot)
{
	struct pmix_boot *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return fail(TERN_ERR_NOMEM, "no memory for the PMIx bootstrap");
	p->wait_ms = wait_ms;
	rc = join(p);
	if (rc) {
		free(p);
		return rc;
	}
	atomic_init(&p->seat.nr_free, 1);
	*boot = (struct tern_boot){
		.rank = p->seat.rank,
		.nr_ranks = p->seat.nr_ranks,
		.allgather = pmix_allgather,
		.ctx = p,
		.close = pmix_close,
	};
	return 0;
}
