/* SPDX-License-Identifier: Apache-2.0 */
/* tern-kills: how long it takes from SIGKILL until all that live have ended the round that was made
 * again. Ranks are processes of this machine, on one node or on several by name; each run starts
 * them anew, and kills one at a moment that is drawn.
 *
 *   tern-kills [RUNS [RANKS [TOKENS [HIDDEN [NODES]]]]]
 *                                              200 runs of 4 ranks, 16 tokens of 2048 elements, 1
 *   tern-kills --rounds N ELASTIC [RANKS ...]  no death: what N rounds cost, elastic or not */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tern.h"
#include "testkit/random.h"

#define MOST_RANKS 16
#define EXPERTS 32
#define TOPK 4
#define GATHERINGS 64
#define GATHERING_BYTES 8192

struct shared {
	_Atomic int present[GATHERINGS][MOST_RANKS];
	uint8_t gathered[GATHERINGS][MOST_RANKS][GATHERING_BYTES];
	_Atomic int nr_ready; /* ranks that have made some rounds */
	_Atomic int nr_done;
	_Atomic uint64_t end; /* the round to end at; 0: not known */
	_Atomic uint64_t told_ns[MOST_RANKS], changed_ns[MOST_RANKS], replayed_ns[MOST_RANKS];
};

struct shape {
	int nr_runs, nr_ranks, nr_nodes;
	uint32_t nr_tokens, hidden;
	uint64_t nr_rounds; /* 0: until somebody dies */
	int elastic;
};

struct worker {
	const struct shape *shape;
	struct shared *shared;
	int rank, gathering;
	tern_group *group;
	tern_moe *moe;
	float *x, *out, *y;
	int32_t *ids;
};

static int allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct worker *w = ctx;
	int g = w->gathering++;

	if (g >= GATHERINGS || bytes > GATHERING_BYTES)
		return -1;
	memcpy(w->shared->gathered[g][w->rank], mine, bytes);
	atomic_store(&w->shared->present[g][w->rank], 1);
	for (int r = 0; r < w->shape->nr_ranks; r++) {
		while (!atomic_load(&w->shared->present[g][r]))
			usleep(50);
		memcpy((char *)all + (size_t)r * bytes, w->shared->gathered[g][r], bytes);
	}
	return 0;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static _Noreturn void give_up(const char *what)
{
	fprintf(stderr, "tern-kills: %s: %s\n", what, tern_last_error());
	_exit(1);
}

static void place(struct tern_moe_config *config, int nr_ranks)
{
	static int32_t logical[2 * EXPERTS], rank[2 * EXPERTS];

	for (int i = 0; i < 2 * EXPERTS; i++) {
		logical[i] = i % EXPERTS;
		rank[i] = (i % EXPERTS + i / EXPERTS) % nr_ranks;
	}
	config->placement = (struct tern_placement){
		.nr_physical = 2 * EXPERTS, .logical = logical, .rank = rank};
}

static void open_worker(struct worker *w)
{
	const struct shape *s = w->shape;
	struct tern_group_config group;
	struct tern_moe_config config;
	char node[16];
	size_t rows = (size_t)s->nr_ranks * s->nr_tokens * TOPK + 1;
	uint64_t random = (uint64_t)w->rank + 1;

	tern_group_config_init(&group);
	group.boot = (struct tern_boot){
		.rank = w->rank, .nr_ranks = s->nr_ranks, .allgather = allgather, .ctx = w};
	group.elastic = s->elastic;
	snprintf(node, sizeof(node), "%d", w->rank * s->nr_nodes / s->nr_ranks);
	group.node = s->nr_nodes > 1 ? node : NULL;
	if (tern_group_create(&group, &w->group))
		give_up("joining");
	tern_moe_config_init(&config);
	config.reduce = TERN_REDUCE_HOME;
	config.hidden = s->hidden;
	config.nr_experts = EXPERTS;
	config.topk = TOPK;
	config.max_tokens = s->nr_tokens;
	config.x_dtype = config.dispatch_dtype = config.combine_dtype = TERN_FP32;
	config.elastic = (uint32_t)s->elastic;
	place(&config, s->nr_ranks);
	if (tern_moe_create(w->group, &config, &w->moe))
		give_up("an exchange");
	w->x = aligned_alloc(64, (size_t)s->nr_tokens * s->hidden * sizeof(float));
	w->out = aligned_alloc(64, (size_t)s->nr_tokens * s->hidden * sizeof(float));
	w->y = aligned_alloc(64, rows * s->hidden * sizeof(float));
	w->ids = malloc((size_t)s->nr_tokens * TOPK * sizeof(*w->ids));
	if (!w->x || !w->out || !w->y || !w->ids)
		give_up("memory");
	memset(w->x, 0, (size_t)s->nr_tokens * s->hidden * sizeof(float));
	memset(w->y, 0, rows * s->hidden * sizeof(float));
	for (uint32_t t = 0; t < s->nr_tokens; t++)
		for (uint32_t k = 0, first = random_below(&random, EXPERTS); k < TOPK; k++)
			w->ids[t * TOPK + k] = (int32_t)((first + k * 7) % EXPERTS);
}

static int make_round(struct worker *w, uint32_t nr_tokens)
{
	struct tern_dispatch dispatch = {
		.size = sizeof(dispatch), .nr_tokens = nr_tokens, .x = w->x, .topk_ids = w->ids};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = w->y};
	int rc = tern_dispatch(w->moe, &dispatch, &received);

	return rc ? rc : tern_combine(w->moe, &combine, w->out, 0);
}

static int recover(struct worker *w)
{
	struct tern_view view = {.size = sizeof(view)};
	uint64_t tag;
	int rc = tern_group_view_change(w->group, &view);

	w->shared->changed_ns[w->rank] = clock_ns();
	if (!rc && (rc = tern_moe_owed(w->moe, 0, &tag)) == 1)
		rc = make_round(w, 0);
	return rc;
}

/* One rank may be a round ahead of the others: who is first to have its round again says where all
 * end. */
static void say_where_to_end(struct worker *w, uint64_t number)
{
	uint64_t none = 0;

	w->shared->replayed_ns[w->rank] = clock_ns();
	atomic_compare_exchange_strong(&w->shared->end, &none, number + 4);
}

/* Until some rounds after the one in which another has died. */
static void live(struct worker *w)
{
	uint64_t end;

	for (uint64_t i = 1; !(end = atomic_load(&w->shared->end)) || i < end; i++) {
		int rc = make_round(w, w->shape->nr_tokens);
		bool died = rc == TERN_ERR_MEMBERS;

		if (died)
			w->shared->told_ns[w->rank] = clock_ns();
		while (rc == TERN_ERR_MEMBERS) {
			rc = recover(w);
			rc = rc ? rc : make_round(w, w->shape->nr_tokens);
		}
		if (rc)
			give_up("a round");
		if (died)
			say_where_to_end(w, i);
		if (i == 20)
			atomic_fetch_add(&w->shared->nr_ready, 1);
	}
	atomic_fetch_add(&w->shared->nr_done, 1);
	while (atomic_load(&w->shared->nr_done) < w->shape->nr_ranks - 1)
		usleep(100); /* others may need it */
}

static void be_rank(struct worker *w)
{
	open_worker(w);
	if (!w->shape->nr_rounds)
		live(w);
	for (uint64_t i = 0; i < w->shape->nr_rounds; i++)
		if (make_round(w, w->shape->nr_tokens))
			give_up("a round");
	tern_moe_destroy(w->moe);
	tern_group_destroy(w->group);
	_exit(0);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void start(const struct shape *shape, struct shared *shared, pid_t *pids)
{
	memset(shared, 0, sizeof(*shared));
	for (int r = 0; r < shape->nr_ranks; r++) {
		struct worker w = {.shape = shape, .shared = shared, .rank = r};

		pids[r] = fork();
		if (pids[r])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		be_rank(&w);
	}
}

static int finish(const struct shape *shape, const pid_t *pids, int victim)
{
	int failed = 0;

	for (int r = 0; r < shape->nr_ranks; r++) {
		int status;

		waitpid(pids[r], &status, 0);
		failed |= r != victim && status;
	}
	return failed;
}

struct times {
	double told_ms, changed_ms, replayed_ms; /* of the last rank, from the kill */
};

static void at_most(double *most, uint64_t end_ns, uint64_t start_ns)
{
	double ms = (double)(int64_t)(end_ns - start_ns) / 1e6;

	*most = ms > *most ? ms : *most;
}

static int run_once(const struct shape *shape, struct shared *shared, int run, struct times *times)
{
	pid_t pids[MOST_RANKS];
	int victim = run % shape->nr_ranks;
	uint64_t random = (uint64_t)run, killed_ns;

	*times = (struct times){0};
	start(shape, shared, pids);
	while (atomic_load(&shared->nr_ready) < shape->nr_ranks)
		if (waitpid(pids[victim], NULL, WNOHANG))
			return -1;
		else
			usleep(200);
	usleep(random_below(&random, 5000));
	killed_ns = clock_ns();
	kill(pids[victim], SIGKILL);
	if (finish(shape, pids, victim))
		return -1;
	for (int r = 0; r < shape->nr_ranks; r++) {
		if (r == victim)
			continue;
		at_most(&times->told_ms, shared->told_ns[r], killed_ns);
		at_most(&times->changed_ms, shared->changed_ns[r], killed_ns);
		at_most(&times->replayed_ms, shared->replayed_ns[r], killed_ns);
	}
	return 0;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print_line(const char *name, double *ms, int nr)
{
	qsort(ms, (size_t)nr, sizeof(*ms), ascending);
	printf("%-44s p50 %6.2f ms, p99 %6.2f ms, max %6.2f ms\n", name, ms[(nr - 1) / 2],
		ms[(nr - 1) * 99 / 100], ms[nr - 1]);
}

static int kill_many(const struct shape *shape, struct shared *shared)
{
	double *told = calloc((size_t)shape->nr_runs * 3, sizeof(*told)),
	       *changed = told + shape->nr_runs, *replayed = changed + shape->nr_runs;

	for (int i = 0; i < shape->nr_runs; i++) {
		struct times times;

		if (!told || run_once(shape, shared, i, &times)) {
			fprintf(stderr, "tern-kills: run %d failed\n", i);
			return 1;
		}
		told[i] = times.told_ms;
		changed[i] = times.changed_ms;
		replayed[i] = times.replayed_ms;
	}
	printf("%d kills, %d ranks on %d nodes, %u tokens of %u elements\n", shape->nr_runs,
		shape->nr_ranks, shape->nr_nodes, shape->nr_tokens, shape->hidden);
	print_line("SIGKILL until all have returned", told, shape->nr_runs);
	print_line("SIGKILL until all have the next view", changed, shape->nr_runs);
	print_line("SIGKILL until all have ended the round", replayed, shape->nr_runs);
	free(told);
	return 0;
}

static uint32_t number(char **argv, int argc, int at, uint32_t otherwise)
{
	return at < argc ? (uint32_t)strtoul(argv[at], NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
	bool at_rest = argc > 3 && !strcmp(argv[1], "--rounds");
	int at = at_rest ? 4 : 2;
	struct shape shape = {.nr_runs = (int)number(argv, argc, 1, 200),
		.nr_ranks = (int)number(argv, argc, at, 4),
		.nr_tokens = number(argv, argc, at + 1, 16),
		.hidden = number(argv, argc, at + 2, 2048),
		.nr_nodes = (int)number(argv, argc, at + 3, 1),
		.elastic = 1};
	struct shared *shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[MOST_RANKS];

	if (at_rest) {
		shape.nr_rounds = strtoull(argv[2], NULL, 0);
		shape.elastic = atoi(argv[3]);
	}
	if (shared == MAP_FAILED || shape.nr_ranks < 1 || shape.nr_ranks > MOST_RANKS ||
		(!at_rest && (shape.nr_ranks < 2 || shape.nr_runs < 1))) {
		fprintf(stderr, "tern-kills: 2 to %d ranks, 1 run or more\n", MOST_RANKS);
		return 2;
	}
	if (!at_rest)
		return kill_many(&shape, shared);
	if (shape.nr_ranks == 1) { /* in this process, for tools that count */
		struct worker w = {.shape = &shape, .shared = shared};

		be_rank(&w);
	}
	start(&shape, shared, pids);
	return finish(&shape, pids, -1);
}
