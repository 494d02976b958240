/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that outlive their round, on GPUs, between threads of one process: dispatched and combined
 * again in any order, with other x and y, bit for bit as the reference has it; by graphs; and what
 * is refused. Skipped where there is no GPU. TERN_TEST_SEED: where to start (1); TERN_TEST_CASES:
 * how many exchanges (20); TERN_TEST_ROUNDS: of each (24); TERN_TEST_NODES: as in
 * tests/exchange/ranks.h; TERN_TEST_RANKS: at most so many (6); TERN_TEST_SHARING: so many slots of
 * ranks on a device (16). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/draw.h"
#include "testkit/random.h"
#include "testkit/device/inside.h"
#include "tests/device/devices.h"

#define NR_KEPT 3

static const struct bench_device_ops *ops;
static int nr_devices;

/* ---- random games ---------------------------------------------------------------------------- */

struct kept {
	uint64_t plan, round, extent; /* whose routes it has; 0: none */
};

/* Copies of what is told beside a plan, and of what it is a copy of. */
struct told {
	uint64_t rows, extent, ids;
	uint8_t *device, *host;
	uint64_t bytes[3], from[3];
};

/* The same steps on all ranks. */
struct player {
	struct device_rounds rounds;
	struct kept kept[NR_KEPT];
	struct told told;
	uint64_t state, nr;
};

static struct device_manner called(const struct player *p)
{
	struct device_manner m = device_manner(&p->rounds, p->nr);

	m.graphs = m.release = false;
	return m;
}

/* By weights of the dispatch, none, or those of the combine. All call: none replays a graph, which
 * says what it said. */
static void draw_weighting(struct player *p, struct device_manner *m)
{
	const struct tern_moe_config *c = &p->rounds.job->config;
	bool comes = c->reduce == TERN_REDUCE_HOME || c->late_weights;
	uint32_t what = (uint32_t)random_below(&p->state, 4);

	m->no_floats = what == 3;
	if (what == 1)
		m->weighting = WEIGHTED_NOT;
	if (what == 2 && comes)
		m->weighting = WEIGHTED_AT_COMBINE;
}

static int end_combine(
	struct player *p, uint32_t slot, uint64_t extent, const struct device_manner *m)
{
	int rc = device_put_y(&p->rounds, slot, p->nr, extent, m);

	return rc ? rc : device_verify_results(&p->rounds, slot, p->nr, m);
}

/* ---- what is told beside a plan -------------------------------------------------------------- */

static uint64_t list_bytes(uint64_t nr, size_t each)
{
	return (nr * each + 16 + 15) / 16 * 16; /* and what nobody writes */
}

static int wrong(struct player *p, const char *what)
{
	if (!p->rounds.difference.nr++)
		snprintf(p->rounds.difference.first, sizeof(p->rounds.difference.first),
			"beside a plan: %s", what);
	return 0;
}

static int compare_told(struct player *p, const struct told *t)
{
	struct device_rounds *r = &p->rounds;
	const struct tern_moe_config *c = &r->job->config;
	const int32_t *tokens = (const int32_t *)(t->host + t->from[1]),
		      *ids = (const int32_t *)(t->host + t->from[2]);
	const int64_t *wide = (const int64_t *)t->host;
	const struct tern_row *rows = (const struct tern_row *)(t->host + t->from[2] + t->bytes[2]);
	const int32_t *local = (const int32_t *)(rows + t->extent);
	int32_t *given = calloc(t->ids + 1, sizeof(*given));
	float *weights = calloc(t->ids + 1, sizeof(*weights));

	if (given && weights)
		job_routes(r->job, p->nr, r->rank, given, weights);
	for (uint64_t i = 0; i < t->rows; i++)
		if (c->layout != TERN_PADDED && tokens[i] != rows[i].token)
			wrong(p, "a row's token");
	for (uint64_t i = 0; i < t->rows * c->topk && c->layout == TERN_BY_SOURCE; i++)
		if (wide[i] != local[i])
			wrong(p, "a local id");
	for (uint64_t i = 0; i < t->ids && given && weights; i++)
		if (ids[i] != ((uint32_t)given[i] < c->nr_experts ? given[i] : -1))
			wrong(p, "an id");
	if (tokens[t->rows] != -1 || wide[t->rows * c->topk] != -1 || ids[t->ids] != -1)
		wrong(p, "more than was asked for");
	free(given);
	free(weights);
	return 0;
}

static int fetch_told(struct player *p, struct told *t, uint32_t slot, uint64_t *plan)
{
	struct device_rounds *r = &p->rounds;
	struct device_lane *lane = &r->lanes[slot];
	const struct tern_received *d = &lane->received;
	bool by_source = r->job->config.layout == TERN_BY_SOURCE;
	struct tern_plan_beside beside = {.size = sizeof(beside),
		.nr_rows = t->rows,
		.wide_ids = by_source ? (int64_t *)t->device : NULL,
		.tokens = (int32_t *)(t->device + t->from[1]),
		.topk_ids = (int32_t *)(t->device + t->from[2])};
	uint64_t all = t->from[2] + t->bytes[2], rows = t->extent * sizeof(*d->rows);
	int rc = device_passed_on(r, ops->fill(t->device, 0xff, all, lane->stream));

	rc = rc ? rc : tern_plan_create_beside(r->moe, slot, &beside, plan);
	rc = rc ? rc : device_passed_on(r, ops->copy(t->host, t->device, all, lane->stream));
	if (!rc && rows)
		rc = device_passed_on(r, ops->copy(t->host + all, d->rows, rows, lane->stream));
	if (!rc && rows && by_source)
		rc = device_passed_on(r,
			ops->copy(t->host + all + rows, d->topk_ids,
				t->extent * r->job->config.topk * sizeof(int32_t), lane->stream));
	rc = rc ? rc : device_passed_on(r, ops->stream_wait(lane->stream));
	return rc ? rc : compare_told(p, t);
}

static void lists_of(const struct device_rounds *r, struct told *t)
{
	uint64_t topk = r->job->config.topk;

	t->bytes[0] = list_bytes(r->positions * topk, sizeof(int64_t));
	t->bytes[1] = list_bytes(r->positions, sizeof(int32_t));
	t->bytes[2] = list_bytes(r->job->config.max_tokens * topk, sizeof(int32_t));
	t->from[1] = t->bytes[0];
	t->from[2] = t->from[1] + t->bytes[1];
}

/* Once for all rounds: giving memory back would wait for kernels, which wait for other ranks. */
static int told_open(struct player *p)
{
	struct device_rounds *r = &p->rounds;
	uint64_t row = sizeof(struct tern_row) + r->job->config.topk * sizeof(int32_t), bytes;
	int rc;

	lists_of(r, &p->told);
	bytes = p->told.from[2] + p->told.bytes[2];
	rc = device_passed_on(r, ops->memory_create(bytes, (void **)&p->told.device));
	return rc ? rc
		  : device_passed_on(r,
			    ops->host_create(bytes + r->positions * row, (void **)&p->told.host));
}

static void told_close(struct player *p)
{
	ops->memory_free(p->told.device);
	ops->host_free(p->told.host);
}

static int make_plan(struct player *p, uint32_t slot, uint64_t extent, uint64_t *plan)
{
	struct device_rounds *r = &p->rounds;
	struct told *t = &p->told;
	uint64_t what = random_below(&p->state, 8); /* all ranks draw alike */

	if (what < 4)
		return tern_plan_create(r->moe, slot, plan);
	t->rows = extent - (extent && what == 7);
	t->extent = extent;
	t->ids = job_nr_tokens(r->job, p->nr, r->rank) * r->job->config.topk;
	return fetch_told(p, t, slot, plan);
}

/* A round with routes of its own, which a plan may be made of, in place of another. */
static int fresh_round(struct player *p, uint32_t slot, struct kept *kept)
{
	struct device_rounds *r = &p->rounds;
	struct device_manner m = device_manner(r, p->nr);
	bool keeps = random_below(&p->state, 2);
	uint64_t extent, old = kept->plan;
	int rc;

	r->lanes[slot].plan = 0;
	if (keeps && m.graphs) /* of a graph's round a plan is made in a graph: by_graphs */
		m = called(p);
	rc = device_put_rows(r, slot, p->nr, &m);
	rc = rc ? rc : device_verify_rows(r, slot, p->nr, &extent);
	if (!rc && keeps) {
		rc = make_plan(p, slot, extent, &kept->plan);
		kept->round = p->nr;
		kept->extent = extent;
		if (!rc && old)
			rc = tern_plan_destroy(r->moe, old);
	}
	return rc ? rc : end_combine(p, slot, extent, &m);
}

static int again(struct player *p, uint32_t slot, const struct kept *kept)
{
	struct device_rounds *r = &p->rounds;
	struct device_manner m = called(p);
	uint64_t extent;
	int rc;

	r->lanes[slot].plan = kept->plan;
	r->lanes[slot].routes = kept->round;
	m.release = random_below(&p->state, 3) == 0;
	draw_weighting(p, &m);
	rc = device_put_rows(r, slot, p->nr, &m);
	rc = rc ? rc : device_verify_rows(r, slot, p->nr, &extent);
	return rc ? rc : end_combine(p, slot, extent, &m);
}

static int combine_again(struct player *p, uint32_t slot, const struct kept *kept)
{
	struct device_lane *lane = &p->rounds.lanes[slot];
	struct device_manner m = called(p);
	int rc;

	lane->plan = kept->plan;
	lane->routes = kept->round;
	lane->replays = true;
	draw_weighting(p, &m);
	rc = end_combine(p, slot, kept->extent, &m);
	lane->replays = false;
	return rc;
}

static int step(struct player *p)
{
	uint32_t slot = (uint32_t)random_below(&p->state, p->rounds.job->config.nr_slots),
		 number = (uint32_t)random_below(&p->state, NR_KEPT),
		 what = (uint32_t)random_below(&p->state, 5);
	struct kept *kept = &p->kept[number];

	if (!kept->plan || what == 0)
		return fresh_round(p, slot, kept);
	return what < 3 ? again(p, slot, kept) : combine_again(p, slot, kept);
}

static void judge(struct rank *rank, const struct player *p, int rc)
{
	if (rc)
		rank_fails(rank, "round %llu: %s: %s", (unsigned long long)p->nr, tern_strerror(rc),
			tern_last_error());
	else if (p->rounds.difference.nr)
		rank_fails(rank, "%llu differences; the first: %s",
			(unsigned long long)p->rounds.difference.nr, p->rounds.difference.first);
	if (*rank->failure)
		printf("# %s\n", rank->failure);
}

static void play(struct rank *rank)
{
	const struct job *job = rank->ctx;
	struct player p = {.state = hash2(job->seed, 0x706c616e)};
	uint64_t nr = devices_setting("TERN_TEST_ROUNDS", 24);
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&p.rounds, rank->group, job, ops);
	rc = rc ? rc : told_open(&p);
	for (; p.nr < nr && !rc && !p.rounds.difference.nr; p.nr++)
		rc = step(&p);
	judge(rank, &p, rc);
	devices_close(rank, &p.rounds);
	told_close(&p);
}

/* ---- by graphs ------------------------------------------------------------------------------- */

enum plan_graph {
	GRAPH_ROUND, /* a dispatch, and a plan of it */
	GRAPH_COMBINE,
	GRAPH_AGAIN,         /* a dispatch with the plan */
	GRAPH_COMBINE_AGAIN, /* without a dispatch */
	NR_GRAPHS
};

struct graphs {
	struct device_graph *of[NR_GRAPHS];
	uint64_t plan;
};

static int put_captured(struct player *p, enum plan_graph which, uint64_t *plan)
{
	const struct device_manner plain = {.graphs = true};
	struct device_rounds *r = &p->rounds;
	uint32_t most = r->job->config.max_tokens;
	int rc;

	r->lanes[0].plan = which == GRAPH_AGAIN || which == GRAPH_COMBINE_AGAIN ? *plan : 0;
	r->lanes[0].replays = which == GRAPH_COMBINE_AGAIN;
	rc = which == GRAPH_COMBINE || which == GRAPH_COMBINE_AGAIN
		     ? device_put_combine(r, 0, &plain)
		     : device_put_dispatch(r, 0, &plain, most);
	r->lanes[0].replays = false;
	return rc || which != GRAPH_ROUND ? rc : tern_plan_create(r->moe, 0, plan);
}

static int capture(struct player *p, enum plan_graph which, struct graphs *g)
{
	struct device_lane *lane = &p->rounds.lanes[0];
	int rc = device_passed_on(&p->rounds, ops->capture_begin(lane->stream)), end;

	if (rc)
		return rc;
	rc = put_captured(p, which, &g->plan);
	end = ops->capture_end(lane->stream, &g->of[which]);
	return rc ? rc : device_passed_on(&p->rounds, end);
}

/* Rounds are in the order of the graphs, so that calls alternate as they do. */
static int capture_all(struct player *p, struct graphs *g)
{
	static const enum plan_graph order[] = {
		GRAPH_ROUND, GRAPH_COMBINE, GRAPH_AGAIN, GRAPH_COMBINE, GRAPH_COMBINE_AGAIN};
	struct device_rounds *r = &p->rounds;
	int rc = tern_moe_set_nr_tokens_at(r->moe, 0, (const uint32_t *)r->lanes[0].nr_tokens);

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]) && !rc; i++) {
		ops->graph_destroy(g->of[order[i]]);
		g->of[order[i]] = NULL;
		rc = capture(p, order[i], g);
	}
	rc = rc ? rc : tern_moe_set_nr_tokens_at(r->moe, 0, NULL);
	return device_rounds_agree(r, rc);
}

static int replay(struct player *p, const struct graphs *g, enum plan_graph dispatch,
	enum plan_graph combine, uint64_t *extent)
{
	const struct device_manner plain = {.graphs = true};
	struct device_rounds *r = &p->rounds;
	struct device_lane *lane = &r->lanes[0];
	struct device_graph *own[2] = {lane->dispatch, lane->combine};
	int rc = 0;

	lane->dispatch = g->of[dispatch];
	lane->combine = g->of[combine];
	lane->plan = dispatch == GRAPH_AGAIN ? g->plan : 0;
	if (combine == GRAPH_COMBINE)
		rc = device_put_rows(r, 0, p->nr, &plain);
	if (combine == GRAPH_COMBINE)
		rc = rc ? rc : device_verify_rows(r, 0, p->nr, extent);
	rc = rc ? rc : end_combine(p, 0, *extent, &plain);
	lane->dispatch = own[0];
	lane->combine = own[1];
	p->nr++;
	return rc;
}

/* Each round's plan is the graph's, made over again. */
static int replay_all(struct player *p, const struct graphs *g)
{
	struct device_lane *lane = &p->rounds.lanes[0];
	uint64_t extent;
	int rc = 0;

	for (int i = 0; i < 4 && !rc; i++) {
		lane->routes = p->nr;
		rc = replay(p, g, GRAPH_ROUND, GRAPH_COMBINE, &extent);
		rc = rc ? rc : replay(p, g, GRAPH_AGAIN, GRAPH_COMBINE_AGAIN, &extent);
		rc = rc ? rc : replay(p, g, GRAPH_AGAIN, GRAPH_COMBINE, &extent);
		rc = rc ? rc : replay(p, g, GRAPH_AGAIN, GRAPH_COMBINE_AGAIN, &extent);
	}
	return rc;
}

static void by_graphs(struct rank *rank)
{
	struct player p = {.nr = 0};
	struct graphs g = {.plan = 0};
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&p.rounds, rank->group, rank->ctx, ops);
	rc = rc ? rc : capture_all(&p, &g);
	rc = rc ? rc : replay_all(&p, &g);
	judge(rank, &p, rc);
	if (p.rounds.lanes[0].stream)
		ops->stream_wait(p.rounds.lanes[0].stream);
	for (int i = 0; i < NR_GRAPHS; i++)
		ops->graph_destroy(g.of[i]);
	devices_close(rank, &p.rounds);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static int wants(struct rank *rank, const char *what, int rc, int wanted, const char *text)
{
	if (rc == wanted && strstr(tern_last_error(), text))
		return 0;
	return rank_fails(rank, "%s: got %d (%s), wanted %d (...%s...)", what, rc,
		tern_last_error(), wanted, text);
}

/* Nothing has changed: rounds follow that are as they should be. */
static int refuse_calls(struct rank *rank, struct player *p)
{
	struct device_rounds *r = &p->rounds;
	struct device_lane *lane = &r->lanes[0];
	struct tern_dispatch args = {.size = sizeof(args), .nr_tokens = 4, .x = lane->x};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
	struct device_manner m = {.graphs = false};
	uint64_t plan = 0, extent;
	int rc;

	if (wants(rank, "too early", tern_plan_create(r->moe, 0, &plan), TERN_ERR_STATE,
		    "dispatch_send") ||
		wants(rank, "none", tern_plan_destroy(r->moe, 7), TERN_ERR_STATE, "no plan 7"))
		return -1;
	rc = device_put_rows(r, 0, 1, &m);
	rc = rc ? rc : device_verify_rows(r, 0, 1, &extent);
	rc = rc ? rc : tern_plan_create(r->moe, 0, &plan);
	if (rc)
		return rc;
	combine.plan = plan;
	if (wants(rank, "in a round", tern_combine_send(r->moe, &combine), TERN_ERR_INVALID,
		    "0: it was"))
		return -1;
	p->nr = 1;
	rc = end_combine(p, 0, extent, &m);
	if (rc)
		return rc;
	args.plan = plan;
	args.nr_tokens = 3;
	if (wants(rank, "tokens", tern_dispatch_send(r->moe, &args), TERN_ERR_INVALID, "has 4"))
		return -1;
	args.nr_tokens = 4;
	args.topk_ids = lane->ids;
	if (wants(rank, "ids", tern_dispatch_send(r->moe, &args), TERN_ERR_INVALID, "topk_ids"))
		return -1;
	args.topk_ids = NULL;
	args.x = NULL;
	if (wants(rank, "x", tern_dispatch_send(r->moe, &args), TERN_ERR_INVALID, "x is NULL") ||
		wants(rank, "out", tern_combine(r->moe, &combine, NULL, 0), TERN_ERR_INVALID,
			"out is NULL"))
		return -1;
	args.x = lane->x;
	p->nr = 2;
	rc = again(p, 0, &(struct kept){plan, 1, extent});
	p->nr = 3;
	rc = rc ? rc : combine_again(p, 0, &(struct kept){plan, 1, extent});
	rc = rc ? rc : tern_plan_destroy(r->moe, plan);
	if (rc)
		return rc;
	lane->plan = 0;
	if (wants(rank, "dead", tern_dispatch_send(r->moe, &args), TERN_ERR_STATE, "or no more") ||
		wants(rank, "dead", tern_combine_send(r->moe, &combine), TERN_ERR_STATE,
			"or no more") ||
		wants(rank, "dead", tern_plan_destroy(r->moe, plan), TERN_ERR_STATE, "or no more"))
		return -1;
	rc = device_put_rows(r, 0, 4, &m);
	rc = rc ? rc : device_verify_rows(r, 0, 4, &extent);
	p->nr = 4;
	return rc ? rc : end_combine(p, 0, extent, &m);
}

static void refusals(struct rank *rank)
{
	struct player p = {.nr = 0};
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&p.rounds, rank->group, rank->ctx, ops);
	rc = rc ? rc : refuse_calls(rank, &p);
	if (!*rank->failure)
		judge(rank, &p, rc);
	devices_close(rank, &p.rounds);
}

/* A plan that is made of a round with another, which is gone; and memory, which does not grow while
 * as many plans live. */
static int heirs(struct player *p)
{
	struct tern_memory before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	struct device_rounds *r = &p->rounds;
	struct device_manner m = {.graphs = false};
	struct kept kept = {0};
	uint64_t extent, heir;
	int rc = device_put_rows(r, 0, 0, &m);

	rc = rc ? rc : device_verify_rows(r, 0, 0, &kept.extent);
	rc = rc ? rc : tern_plan_create(r->moe, 0, &kept.plan);
	rc = rc ? rc : end_combine(p, 0, kept.extent, &m);
	for (int i = 0; i < 8 && !rc; i++) {
		r->lanes[0].plan = kept.plan;
		r->lanes[0].routes = 0;
		p->nr++;
		rc = device_put_rows(r, 0, p->nr, &m);
		rc = rc ? rc : device_verify_rows(r, 0, p->nr, &extent);
		rc = rc ? rc : tern_plan_destroy(r->moe, kept.plan);
		rc = rc ? rc : tern_plan_create(r->moe, 0, &heir);
		kept.plan = heir;
		rc = rc ? rc : end_combine(p, 0, extent, &m);
		rc = rc ? rc : tern_moe_memory(r->moe, i < 2 ? &before : &after);
	}
	p->nr++;
	rc = rc ? rc : combine_again(p, 0, &kept);
	if (!rc && after.private_bytes != before.private_bytes)
		r->difference.nr++, snprintf(r->difference.first, sizeof(r->difference.first),
					    "plans take %llu bytes, and then %llu",
					    (unsigned long long)before.private_bytes,
					    (unsigned long long)after.private_bytes);
	return rc;
}

static void plans_of_plans(struct rank *rank)
{
	struct player p = {.nr = 0};
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&p.rounds, rank->group, rank->ctx, ops);
	judge(rank, &p, rc ? rc : heirs(&p));
	devices_close(rank, &p.rounds);
}

/* Rank 0 dispatches where the others combine again. It is told so by what they send first. They may
 * wait for what it has not sent when it gives up, and learn it when it leaves. */
static bool says_at_odds(const struct rank *rank, int rc)
{
	const char *text = tern_last_error();

	if (rc == TERN_ERR_PROTOCOL)
		return strstr(text, "combines a plan again where rank 0");
	return rank->rank && rc == TERN_ERR_PEER_LEFT && strstr(text, "rank 0 left") &&
	       strstr(text, tern_strerror(TERN_ERR_PROTOCOL));
}

static void at_odds(struct rank *rank)
{
	struct player p = {.nr = 0};
	struct device_rounds *r = &p.rounds;
	struct device_manner m = {.graphs = false};
	uint64_t plan = 0, extent;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(r, rank->group, rank->ctx, ops);
	rc = rc ? rc : device_put_rows(r, 0, 0, &m);
	rc = rc ? rc : device_verify_rows(r, 0, 0, &extent);
	rc = rc ? rc : tern_plan_create(r->moe, 0, &plan);
	rc = rc ? rc : end_combine(&p, 0, extent, &m);
	if (rc) {
		judge(rank, &p, rc);
	} else {
		r->lanes[0].plan = plan;
		r->lanes[0].replays = rank->rank != 0;
		rc = rank->rank ? device_put_combine(r, 0, &m) : device_put_dispatch(r, 0, &m, 4);
		rc = rc ? rc : device_passed_on(r, ops->stream_wait(r->lanes[0].stream));
		if (rank->rank)
			ranks_meet(rank);
		rc = rc ? rc : tern_moe_status(r->moe);
		if (!says_at_odds(rank, rc))
			rank_fails(rank, "got %d (%s)", rc, tern_last_error());
		if (!rank->rank)
			ranks_meet(rank);
	}
	devices_close(rank, r);
}

/* A round that is over some rank's capacity has a plan too: again it is over. Combined again, it
 * brings zeros. */
static int put_over(struct device_rounds *r, uint64_t *plan)
{
	static const int32_t one[] = {7, -1, 7, -1, -1, 7, 7, -1}; /* of the last rank */
	struct device_lane *lane = &r->lanes[0];
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = 4, .x = lane->x, .topk_ids = lane->ids};
	int rc = device_passed_on(r, ops->copy(lane->ids, one, sizeof(one), lane->stream));

	rc = rc ? rc : tern_dispatch(r->moe, &args, &received);
	rc = rc ? rc : tern_plan_create(r->moe, 0, plan);
	rc = rc ? rc : tern_combine(r->moe, &combine, lane->out, 0);
	return rc ? rc : device_passed_on(r, ops->stream_wait(lane->stream));
}

static int again_over(struct rank *rank, struct device_rounds *r, uint64_t plan)
{
	struct device_lane *lane = &r->lanes[0];
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y, .plan = plan};
	struct tern_dispatch args = {
		.size = sizeof(args), .nr_tokens = 4, .x = lane->x, .plan = plan};
	uint16_t out[4 * 256] = {0};
	int rc = device_passed_on(r, ops->fill(lane->out, 0xa5, sizeof(out), lane->stream));

	rc = rc ? rc : tern_combine(r->moe, &combine, lane->out, 0);
	rc = rc ? rc : device_passed_on(r, ops->copy(out, lane->out, sizeof(out), lane->stream));
	rc = rc ? rc : device_passed_on(r, ops->stream_wait(lane->stream));
	rc = rc ? rc : tern_moe_status(r->moe);
	for (size_t i = 0; i < sizeof(out) / sizeof(*out) && !rc; i++)
		if (out[i])
			return rank_fails(rank, "element %zu of out is %x", i, out[i]);
	rc = rc ? rc : tern_dispatch(r->moe, &args, &received);
	rc = rc ? rc : tern_release(r->moe, 0);
	rc = rc ? rc : device_passed_on(r, ops->stream_wait(lane->stream));
	return rc ? rc
		  : wants(rank, "over again", tern_moe_status(r->moe), TERN_ERR_CAPACITY,
			    "12 rows; its capacity is 11");
}

static void over_capacity(struct rank *rank)
{
	struct player p = {.nr = 0};
	const struct device_manner plain = {.graphs = false};
	uint64_t plan = 0, extent;
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&p.rounds, rank->group, rank->ctx, ops);
	rc = rc ? rc : put_over(&p.rounds, &plan);
	rc = rc ? rc
		: wants(rank, "over", tern_moe_status(p.rounds.moe), TERN_ERR_CAPACITY,
			  "12 rows; its capacity is 11");
	rc = rc ? rc : again_over(rank, &p.rounds, plan);
	rc = rc ? rc : device_put_rows(&p.rounds, 0, 0, &plain);
	rc = rc ? rc : device_verify_rows(&p.rounds, 0, 0, &extent);
	rc = rc ? rc : end_combine(&p, 0, extent, &plain);
	if (!*rank->failure)
		judge(rank, &p, rc);
	devices_close(rank, &p.rounds);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Not between nodes, nor NVLink domains, which are nodes. */
static bool floats_travel(void)
{
	return !getenv("TERN_TEST_NODES") && !getenv("TERN_EMULATED_NVLINK_DOMAIN") &&
	       !getenv("TERN_FORCE_LINK");
}

static int run_job(const char *name, rank_main body, struct job *job)
{
	const char *failure;
	struct reason why;

	if (job_open(job, &why)) {
		printf("not ok - %s: no job: %s\n", name, why.text);
		return 1;
	}
	failure = run_ranks((int)job->nr_ranks, body, job);
	if (failure) {
		printf("not ok - %s: %s\n", name, failure);
		devices_print_job(job);
	}
	job_close(job);
	return failure != NULL;
}

static int run_small(const char *name, rank_main body, enum tern_mode mode)
{
	struct job job;
	int bad;

	job_init(&job);
	job.nr_ranks = 3;
	job.nr_tokens = job.config.max_tokens = 4;
	if (body == over_capacity) {
		job.config.capacity = 11;
		job.nr_tokens = 2;
		job.routing.drop = 0.5; /* so that other rounds are within it */
	}
	job.config.hidden = 256;
	job.config.nr_experts = 8;
	job.config.topk = 2;
	job.config.mode = mode;
	job.config.device = TERN_DEVICE_CUDA;
	job.config.wait_ms = 20000;
	job.config.combine_floats = floats_travel();
	bad = run_job(name, body, &job);
	if (!bad)
		printf("ok - %s%s\n", mode == TERN_HIGH_THROUGHPUT ? "ht_" : "", name);
	return bad;
}

static int random_games(void)
{
	const struct draw_limits limits = {
		.nr_ranks = (uint32_t)devices_setting("TERN_TEST_RANKS", 6),
		.hidden = 640,
		.nr_experts = 64,
		.nr_tokens = 40};
	uint64_t seed = devices_setting("TERN_TEST_SEED", 1),
		 cases = devices_setting("TERN_TEST_CASES", 20);
	int bad = 0;

	for (uint64_t i = 0; i < cases && !bad; i++) {
		uint64_t state = hash2(seed + i, 0x67616d65);
		char name[64];
		struct job job;

		devices_draw_job(&state, &limits, nr_devices, &job);
		job.config.combine_floats = i % 2 && floats_travel();
		job.wants = i % 3;
		devices_draw_late_weights(random_next(&state), &job);
		snprintf(name, sizeof(name), "seed %llu", (unsigned long long)(seed + i));
		bad = run_job(name, i % 4 == 3 ? by_graphs : play, &job);
	}
	printf("%s - random_games, %llu exchanges, %llu rounds each\n", bad ? "not ok" : "ok",
		(unsigned long long)cases,
		(unsigned long long)devices_setting("TERN_TEST_ROUNDS", 24));
	return bad;
}

int main(void)
{
	static const struct {
		const char *name;
		rank_main body;
	} tests[] = {{"refusals", refusals}, {"plans_of_plans", plans_of_plans},
		{"at_odds", at_odds}, {"by_graphs", by_graphs}};
	int bad = 0;

	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		for (int mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
			bad |= run_small(tests[i].name, tests[i].body, (enum tern_mode)mode);
	bad |= run_small("over_capacity", over_capacity, TERN_HIGH_THROUGHPUT);
	return bad ? bad : random_games();
}
