/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/elastic_rank.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/device/devices.h"
#include "tests/device/elastic_steps.h"
#include "tests/device/elastic_stores.h"
#include "tests/faults/tokens.h"
#include "exchange/state.h"
#include "gpu/host/inside.h"

struct elastic_way way;

/* One round's inputs and results, in memory of the device and in pinned memory of the host. */
struct round_memory {
	struct tokens in;
	float out[TOKENS][HIDDEN] __attribute__((aligned(16)));
	uint32_t counts[EXPERTS * COPIES];
	uint64_t offsets[EXPERTS * COPIES];
	float rows[MOST_RANKS * TOKENS * TOPK][HIDDEN];
};

struct worker {
	struct rank *rank;
	struct scene *scene;
	const struct bench_device_ops *ops;
	tern_moe *moe;
	uint64_t number; /* of the round */
	int32_t local[EXPERTS * COPIES];
	void *stream;
	struct round_memory *here, *there;
	struct device_graph *graph;
	unsigned long long noticed_ns, viewed_ns;
	uint64_t next; /* as it stands after a change */
	uint32_t nr_changes, nr_owed;
	uint64_t view;    /* its number, after the last change */
	uint64_t placed;  /* the view in which what was lost has come back */
	unsigned managed; /* calls that manage memory, when the change was noticed */
	bool remade;      /* a round has been made since then */
};

/* ---- rounds ---------------------------------------------------------------------------------- */

/* A graph's experts give back what they get. */
static float graph_result(float x, uint64_t number, int32_t expert)
{
	(void)number;
	(void)expert;
	return x;
}

static void draw_inputs(struct worker *w)
{
	uint64_t random = w->number * 64 + (uint64_t)w->rank->rank + 1;

	tokens_draw(&w->here->in, &random, &random);
	memset(w->here->out, 0x7f, sizeof(w->here->out));
}

static int copy(struct worker *w, void *to, const void *from, uint64_t bytes)
{
	int rc = w->ops->copy(to, from, bytes, w->stream);

	return rc ? rank_fails(w->rank, "copying: %s", w->ops->error_text()) : 0;
}

/* Low latency: from one death, whose change has fresh memory, to the round that is made again
 * there are none. Rounds that were given up come here too, and are followed by a change. */
static void look_at_calls(struct worker *w)
{
	unsigned since = calls_that_manage_memory() - w->managed;

	if (!w->noticed_ns || !w->viewed_ns || w->remade)
		return;
	w->remade = true;
	if (way.mode == TERN_LOW_LATENCY && since && (w->view == 1 || way.one_more))
		rank_fails(w->rank, "has managed memory %u times before the round was made again",
			since);
	if (way.mode == TERN_HIGH_THROUGHPUT && !since)
		rank_fails(w->rank, "has renewed nothing");
}

/* What the stream has come to. */
static int outcome(struct worker *w)
{
	if (w->ops->stream_wait(w->stream))
		return rank_fails(w->rank, "waiting: %s", w->ops->error_text());
	look_at_calls(w);
	return tern_moe_status(w->moe);
}

static struct tern_dispatch dispatch_of(struct worker *w, uint32_t nr_tokens)
{
	struct round_memory *there = w->there;

	return (struct tern_dispatch){.size = sizeof(struct tern_dispatch),
		.nr_tokens = nr_tokens,
		.x = there->in.x,
		.topk_ids = &there->in.ids[0][0],
		.topk_weights = &there->in.weights[0][0]};
}

static int run_experts(struct worker *w, const struct tern_received *received, uint64_t number)
{
	struct round_memory *here = w->here;
	uint64_t nr_rows, extent;
	int nr = tern_moe_nr_local(w->moe), rc = tern_received_sizes(w->moe, 0, &nr_rows, &extent);

	if (rc)
		return rc;
	rc = copy(w, here->counts, received->counts, (uint64_t)nr * sizeof(*here->counts));
	rc = rc ? rc
		: copy(w, here->offsets, received->offsets, (uint64_t)nr * sizeof(*here->offsets));
	rc = rc || !extent ? rc : copy(w, here->rows, received->x, extent * sizeof(*here->rows));
	rc = rc ? rc : outcome(w);
	if (rc)
		return rc;
	for (int l = 0; l < nr; l++)
		for (uint64_t i = 0; i < (uint64_t)here->counts[l] * HIDDEN; i++) {
			float *at = &here->rows[here->offsets[l]][0] + i;

			*at = tokens_result(*at, number, w->local[l]);
		}
	return extent ? copy(w, w->there->rows, here->rows, extent * sizeof(*here->rows)) : 0;
}

/* The victim's halves before what happens to it. */
static void fall_before(const struct worker *w, int half)
{
	struct scene *s = w->scene;

	if (w->rank->rank != s->victim || w->number != STRUCK_AT || s->halves != half)
		return;
	atomic_store(&s->fate_ns, now_ns());
	if (way.change == TERN_CHANGE_EXPEL)
		leave_stores_behind(w->rank, w->moe, w->ops);
	raise(way.change == TERN_CHANGE_EXPEL ? SIGSTOP : SIGKILL);
}

/* The victim has combined, and dies: the others are told between their own combine's halves. */
static void be_told(const struct worker *w)
{
	unsigned long long limit = now_ns() + SCENE_LIMIT_NS;

	if (w->number == STRUCK_AT && w->scene->halves == 3 && !w->nr_changes &&
		way.change != TERN_CHANGE_EXPEL)
		while (!tern_moe_status(w->moe) && now_ns() < limit)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static int make_by_calls(struct worker *w, uint32_t nr_tokens, uint64_t number)
{
	struct tern_dispatch dispatch = dispatch_of(w, nr_tokens);
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = w->there->rows};
	int rc;

	fall_before(w, 0);
	rc = tern_dispatch_send(w->moe, &dispatch);
	if (rc)
		return rc;
	fall_before(w, 1);
	rc = tern_dispatch_recv(w->moe, 0, &received);
	rc = rc ? rc : run_experts(w, &received, number);
	if (rc)
		return rc;
	fall_before(w, 2);
	rc = tern_combine_send(w->moe, &combine);
	if (rc)
		return rc;
	fall_before(w, 3);
	be_told(w);
	return tern_combine_recv(w->moe, 0, w->there->out, 0);
}

static int capture(struct worker *w)
{
	struct tern_dispatch dispatch = dispatch_of(w, TOKENS);
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = w->there->rows};
	int rc = tern_moe_set_nr_tokens_at(w->moe, 0, &w->there->in.nr_tokens);

	rc = rc ? rc : w->ops->capture_begin(w->stream);
	rc = rc ? rc : tern_dispatch(w->moe, &dispatch, &received);
	rc = rc ? rc
		: w->ops->copy(w->there->rows, received.x,
			  (uint64_t)way.nr_ranks * TOKENS * TOPK * sizeof(*w->there->rows),
			  w->stream);
	rc = rc ? rc : tern_combine(w->moe, &combine, w->there->out, 0);
	rc = rc ? rc : w->ops->capture_end(w->stream, &w->graph);
	return rc ? rank_fails(w->rank, "capturing: %s %s", tern_last_error(), w->ops->error_text())
		  : 0;
}

static int make_by_graph(struct worker *w)
{
	fall_before(w, 0);
	return w->ops->graph_launch(w->graph, w->stream)
		       ? rank_fails(w->rank, "launching: %s", w->ops->error_text())
		       : 0;
}

static int make_round(struct worker *w, uint32_t nr_tokens, uint64_t number)
{
	uint32_t drawn = w->here->in.nr_tokens;
	int rc;

	w->here->in.nr_tokens = nr_tokens;
	rc = copy(w, &w->there->in, &w->here->in, sizeof(w->here->in));
	rc = rc ? rc : copy(w, w->there->out, w->here->out, sizeof(w->here->out));
	rc = rc ? rc : way.by_graph ? make_by_graph(w) : make_by_calls(w, nr_tokens, number);
	rc = rc ? rc : copy(w, w->here->out, w->there->out, sizeof(w->here->out));
	rc = rc ? rc : outcome(w);
	w->here->in.nr_tokens = drawn;
	return rc;
}

/* ---- surviving ------------------------------------------------------------------------------- */

static int serve_others(struct worker *w)
{
	uint64_t number;
	int rc = tern_moe_owed(w->moe, 0, &number);

	if (rc < 0)
		return rc;
	w->next = number + (uint64_t)rc;
	if (w->next != w->number && w->next != w->number + 1)
		return rank_fails(w->rank, "is to make round %llu in its round %llu",
			(unsigned long long)w->next, (unsigned long long)w->number);
	if (!rc)
		return 0;
	w->nr_owed++;
	rc = make_round(w, 0, number);
	if (!rc && tern_moe_owed(w->moe, 0, &number))
		rc = rank_fails(w->rank, "owes one more: %s", tern_last_error());
	return rc;
}

static void find_experts(struct worker *w)
{
	for (int l = 0; l < tern_moe_nr_local(w->moe); l++)
		w->local[l] = tern_moe_local_expert(w->moe, (uint32_t)l);
}

/* By the tables that the exchange would have had without comes_back. */
static int bring_back(struct worker *w)
{
	int32_t logical[EXPERTS * COPIES], rank_of[EXPERTS * COPIES];
	struct tern_placement p =
		tokens_placement(logical, rank_of, way.nr_copies, (uint32_t)way.nr_ranks);
	int rc = tern_moe_place(w->moe, 1, p.logical, p.nr_physical);

	w->placed = w->view;
	find_experts(w);
	return rc;
}

static int survive(void *worker)
{
	struct worker *w = worker;
	struct tern_view view = {.size = sizeof(view)};
	int rc;

	if (!w->noticed_ns) {
		w->noticed_ns = now_ns();
		w->managed = calls_that_manage_memory();
		w->remade = false;
		w->viewed_ns = 0;
	}
	rc = tern_group_view_change(w->rank->group, &view);
	if (rc)
		return rc;
	w->viewed_ns = now_ns();
	w->view = view.number;
	if (!view.nr_gone)
		return rank_fails(w->rank, "has changed its view for nobody");
	w->nr_changes++;
	rc = serve_others(w);
	if (rc != TERN_ERR_LOST_EXPERTS || !way.comes_back)
		return rc;
	rc = bring_back(w);
	return rc ? rc : serve_others(w);
}

/* A wait may also have expired for a result of another's that the victim's stores lie on. */
static int expel_victim(struct worker *w)
{
	int rc = tern_group_propose(w->rank->group, TERN_CHANGE_EXPEL, w->scene->victim);

	return rc ? rc : TERN_ERR_MEMBERS;
}

/* 1: the rank is out. */
static int leave(struct worker *w)
{
	struct tern_view view = {.size = sizeof(view)};
	struct tern_dispatch none = dispatch_of(w, 0);
	int me = w->rank->rank, rc;

	if (me != w->scene->victim || w->number != STRUCK_AT || way.change != TERN_CHANGE_LEAVE)
		return 0;
	atomic_store(&w->scene->fate_ns, now_ns());
	rc = tern_group_propose(w->rank->group, TERN_CHANGE_LEAVE, me);
	rc = rc ? rc : tern_group_view_change(w->rank->group, &view);
	if (rc || tern_dispatch_send(w->moe, &none) != TERN_ERR_EXPELLED)
		return rank_fails(w->rank, "leaving: %s", tern_last_error());
	return 1;
}

/* With one replica of each expert some have gone with the victim. */
static void expect_lost(struct worker *w, int rc)
{
	char text[32];

	snprintf(text, sizeof(text), "experts: %d, ", w->scene->victim);
	if (rc != TERN_ERR_LOST_EXPERTS || !strstr(tern_last_error(), text))
		rank_fails(w->rank, "returned %d, \"%s\", and \"%s\" is lost", rc,
			tern_last_error(), text);
	rc = make_round(w, w->here->in.nr_tokens, w->number);
	if (rc != TERN_ERR_LOST_EXPERTS)
		rank_fails(w->rank, "goes on without: %d, %s", rc, tern_last_error());
}

/* 0: the round is to be made, or was complete. */
static int handle(struct worker *w, int rc)
{
	if (rc == TERN_ERR_MEMBERS)
		return survive(w);
	if (rc == TERN_ERR_TIMEOUT && way.change == TERN_CHANGE_EXPEL)
		return expel_victim(w);
	return rc == TERN_ERR_LOST_EXPERTS && way.comes_back && w->placed != w->view ? bring_back(w)
										     : 1;
}

static int make_and_survive(struct worker *w)
{
	int rc = make_round(w, w->here->in.nr_tokens, w->number), next;

	w->next = w->number;
	while (rc && (next = handle(w, rc)) <= 0) {
		rc = next;
		if (!rc && w->next == w->number) /* else it was complete, and its sums are good */
			rc = make_round(w, w->here->in.nr_tokens, w->number);
	}
	return rc;
}

static void say_times(struct worker *w)
{
	unsigned long long fate = atomic_load(&w->scene->fate_ns);

	if (!fate || fate > w->noticed_ns) { /* of the first of two */
		w->noticed_ns = 0;
		return;
	}
	printf("# rank %d: noticed after %.2f ms, made again after %.2f ms (view %.2f: quiet %.2f, "
	       "renewed %.2f, opened %.2f, resumed %.2f)\n",
		w->rank->rank, (double)(w->noticed_ns - fate) / 1e6,
		(double)(now_ns() - fate) / 1e6, (double)(w->viewed_ns - fate) / 1e6,
		step_ms[QUIESCE], step_ms[RENEW], step_ms[REOPEN], step_ms[RESUME]);
	fflush(stdout);
	w->noticed_ns = 0;
}

/* ---- one more -------------------------------------------------------------------------------- */

#define ONE_MORE_AT (STRUCK_AT + 4)

/* All that live have other memory behind what the first victim stores into still; then another
 * dies. */
static int meet_one_more(struct worker *w)
{
	struct scene *s = w->scene;
	unsigned long long limit = now_ns() + SCENE_LIMIT_NS;
	unsigned nr_others = (unsigned)way.nr_ranks - 2;
	bool told = false;
	int rc = 0;

	if (!way.one_more || w->number != ONE_MORE_AT || w->nr_changes != 1)
		return 0;
	while (atomic_load(&s->nr_ready) < way.nr_ranks - 1 && !rc) {
		rc = tern_moe_status(w->moe);
		if (!told && nr_steps[RENEW] == 1 && nr_steps[REOPEN] == nr_others)
			told = atomic_fetch_add(&s->nr_ready, 1) >= 0;
		if (now_ns() > limit)
			return rank_fails(w->rank, "has renewed %u and opened %u windows",
				nr_steps[RENEW], nr_steps[REOPEN]);
	}
	if (!rc && w->rank->rank == s->other_victim) {
		atomic_store(&s->fate_ns, now_ns());
		raise(SIGKILL);
	}
	return rc == TERN_ERR_MEMBERS ? 0 : rc; /* it has died */
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int make_exchange(struct worker *w)
{
	int32_t logical[EXPERTS * COPIES], rank_of[EXPERTS * COPIES];
	struct tern_moe_config config;

	tokens_config(&config, w->scene->job.config.mode);
	config.device = TERN_DEVICE_CUDA;
	config.wait_ms = w->scene->job.config.wait_ms;
	config.first_epoch = UINT32_MAX - 8;
	config.placement =
		tokens_placement(logical, rank_of, way.nr_copies, (uint32_t)way.nr_ranks);
	for (int i = 0; i < EXPERTS && way.comes_back; i++) /* both copies on one rank */
		logical[EXPERTS + i] = (i + 1) % EXPERTS;
	return tern_moe_create(w->rank->group, &config, &w->moe);
}

static int open_worker(struct worker *w)
{
	int nr;

	w->ops = devices_open(&nr);
	if (!w->ops || device_choose(w->ops, (uint32_t)w->rank->rank) ||
		w->ops->host_create(sizeof(*w->here), (void **)&w->here) ||
		w->ops->memory_create(sizeof(*w->there), (void **)&w->there) ||
		w->ops->stream_create(&w->stream, false))
		return rank_fails(w->rank, "opening: %s", w->ops ? w->ops->error_text() : "");
	if (make_exchange(w))
		return rank_fails(w->rank, "tern_moe_create: %s", tern_last_error());
	time_steps(w->moe);
	find_experts(w);
	if (tern_moe_set_stream(w->moe, 0, w->stream))
		return rank_fails(w->rank, "tern_moe_set_stream: %s", tern_last_error());
	return way.by_graph ? capture(w) : 0;
}

static void close_worker(struct worker *w)
{
	tern_moe_destroy(w->moe);
	if (w->graph)
		w->ops->graph_destroy(w->graph);
	if (w->stream)
		w->ops->stream_destroy(w->stream);
	w->ops->memory_free(w->there);
	w->ops->host_free(w->here);
	tern_group_destroy(w->rank->group);
}

void elastic_rank(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	uint64_t undisturbed = s->halves < 0 ? 3 : STRUCK_AT; /* below 0: at any moment then */
	int rc = 0;

	if (join(rank, &s->first, rank->rank) || open_worker(&w))
		return;
	for (w.number = 0; w.number < way.nr_rounds && !rc; w.number++) {
		if (w.number == way.nr_rounds - 4) /* the last come when somebody has died */
			await_fate(s);
		draw_inputs(&w);
		rc = leave(&w);
		rc = rc ? rc : meet_one_more(&w);
		rc = rc ? rc : make_and_survive(&w);
		if (!rc)
			rc = tokens_check(rank, &w.here->in, w.here->out, w.number,
				way.by_graph ? graph_result : tokens_result, w.number);
		if (!rc && w.noticed_ns)
			say_times(&w);
		if (w.number + 1 == undisturbed)
			atomic_fetch_add(&s->nr_past, 1);
	}
	if (way.nr_copies == 1) {
		expect_lost(&w, rc);
		rc = 0;
	}
	rc = rc ? rc : stay_until_all_are_done(rank, survive, &w);
	atomic_store(&s->strike_ns, now_ns());
	if (rc < 0 && !*rank->failure)
		rank_fails(rank, "round %llu: %s", (unsigned long long)w.number, tern_last_error());
	if (*rank->failure) /* the others may wait for it in vain */
		printf("# rank %d: %s\n", rank->rank, rank->failure);
	atomic_fetch_add(&s->nr_told, (int)w.nr_changes);
	atomic_fetch_add(&s->nr_rounds, (int)w.nr_owed);
	close_worker(&w);
}
