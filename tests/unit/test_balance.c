/* SPDX-License-Identifier: Apache-2.0 */
/* Placements that are planned: never busier than those of EPLB's two policies, which are written
 * down here from their description; bounded copies; what has to hold of any plan. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tern_balance.h"
#include "testkit/npy.h"
#include "testkit/random.h"

#define MOST 512

struct shape {
	uint32_t nr_experts, nr_places, nr_ranks, nr_nodes; /* all by even blocks */
};

/* ---- EPLB ------------------------------------------------------------------------------------ */

/* The heaviest first into the lightest pack that has room; each takes as many. */
static void pack(const double *weight, uint32_t nr, uint32_t nr_packs, uint32_t *pack_of)
{
	double sum[MOST] = {0};
	uint32_t full[MOST] = {0};
	bool placed[MOST] = {false};

	for (uint32_t n = 0; n < nr; n++) {
		uint32_t i = UINT32_MAX, best = UINT32_MAX;

		for (uint32_t j = 0; j < nr; j++)
			if (!placed[j] && (i == UINT32_MAX || weight[j] > weight[i]))
				i = j;
		for (uint32_t p = 0; p < nr_packs; p++)
			if (full[p] < nr / nr_packs && (best == UINT32_MAX || sum[p] < sum[best]))
				best = p;
		placed[i] = true;
		pack_of[i] = best;
		full[best]++;
		sum[best] += weight[i];
	}
}

/* One more for the expert whose replicas have most each, until places are full. Experts by place.
 */
static void replicate(const double *load, uint32_t nr_experts, uint32_t nr_places, uint32_t *count,
	uint32_t *expert)
{
	uint32_t nr = 0;

	for (uint32_t e = 0; e < nr_experts; e++)
		count[e] = 1;
	for (uint32_t n = nr_experts; n < nr_places; n++) {
		uint32_t best = 0;

		for (uint32_t e = 1; e < nr_experts; e++)
			if (load[e] / count[e] > load[best] / count[best])
				best = e;
		count[best]++;
	}
	for (uint32_t e = 0; e < nr_experts; e++)
		for (uint32_t i = 0; i < count[e]; i++)
			expert[nr++] = e;
}

static double busiest(const double *share, const uint32_t *rank, uint32_t nr, uint32_t nr_ranks)
{
	double sum[MOST] = {0}, most = 0;

	for (uint32_t i = 0; i < nr; i++)
		sum[rank[i]] += share[i];
	for (uint32_t r = 0; r < nr_ranks; r++)
		most = sum[r] > most ? sum[r] : most;
	return most;
}

/* Placed by one load, and judged by another. */
static double eplb_judged(const struct shape *s, const double *load, const double *by)
{
	double share[MOST] = {0};
	uint32_t rank[MOST], count[MOST], expert[MOST];

	replicate(load, s->nr_experts, s->nr_places, count, expert);
	for (uint32_t i = 0; i < s->nr_places; i++)
		share[i] = load[expert[i]] / count[expert[i]];
	pack(share, s->nr_places, s->nr_ranks, rank);
	for (uint32_t i = 0; i < s->nr_places; i++)
		share[i] = by[expert[i]] / count[expert[i]];
	return busiest(share, rank, s->nr_places, s->nr_ranks);
}

static double eplb_global(const struct shape *s, const double *load)
{
	return eplb_judged(s, load, load);
}

/* Experts to nodes, then each node for itself. Groups are single experts here. */
static double eplb_hierarchical(const struct shape *s, const double *load)
{
	uint32_t node[MOST], of_node = s->nr_experts / s->nr_nodes;
	double most = 0;

	pack(load, s->nr_experts, s->nr_nodes, node);
	for (uint32_t n = 0; n < s->nr_nodes; n++) {
		struct shape mine = {
			of_node, s->nr_places / s->nr_nodes, s->nr_ranks / s->nr_nodes, 1};
		double loads[MOST], one;
		uint32_t nr = 0;

		for (uint32_t e = 0; e < s->nr_experts; e++)
			if (node[e] == n)
				loads[nr++] = load[e];
		one = eplb_global(&mine, loads);
		most = one > most ? one : most;
	}
	return most;
}

/* ---- loads ----------------------------------------------------------------------------------- */

static double unit(uint64_t *state)
{
	return ((double)random_below(state, 1u << 30) + 0.5) / (1u << 30);
}

static double normal(uint64_t *state)
{
	return sqrt(-2 * log(unit(state))) * cos(6.283185307179586 * unit(state));
}

enum {
	UNIFORM,
	ZIPF,
	STEEP,
	LOGNORMAL,
	ONE_HOT,
	ZEROS,
	GROUPS,
	ALL_ZERO,
	NR_KINDS
};

static void draw_load(uint64_t *state, uint32_t kind, uint32_t nr, double *load)
{
	for (uint32_t e = 0; e < nr; e++) {
		double place = 1 + (double)((e * 97 + 31) % nr);

		load[e] = kind == ZIPF        ? pow(place, -0.8)
			  : kind == STEEP     ? pow(place, -1.2)
			  : kind == LOGNORMAL ? exp(0.5 * normal(state))
			  : kind == ONE_HOT   ? (e == nr / 3 ? 1000 : 0.01 * unit(state))
			  : kind == ZEROS     ? (random_below(state, 3) ? 0 : unit(state))
			  : kind == GROUPS    ? (e < nr / 4 ? 5 : 0.2) * unit(state)
			  : kind == ALL_ZERO  ? 0
					      : unit(state);
	}
}

static tern_balance *open_balance(const struct shape *s, bool nodes)
{
	struct tern_balance_config c = {.size = sizeof(c),
		.nr_experts = s->nr_experts,
		.nr_physical = s->nr_places,
		.nr_ranks = s->nr_ranks};
	int32_t domain[MOST];
	tern_balance *b = NULL;

	for (uint32_t r = 0; r < s->nr_ranks; r++)
		domain[r] = (int32_t)(r / (s->nr_ranks / s->nr_nodes));
	c.domain = nodes ? domain : NULL;
	assert_int_equal(tern_balance_create(&c, &b), 0);
	return b;
}

/* ---- what holds of any plan ------------------------------------------------------------------ */

struct plan {
	int32_t next[MOST];
	struct tern_copy copies[MOST];
	struct tern_balance_result result;
};

static uint32_t rank_of(const struct shape *s, uint32_t place)
{
	return place / (s->nr_places / s->nr_ranks);
}

static bool lives(const struct shape *s, const struct tern_balance_input *in, uint32_t place)
{
	return !in->alive || in->alive[rank_of(s, place)];
}

static void check_loads(
	const struct shape *s, const struct tern_balance_input *in, const struct plan *p)
{
	double sum[MOST] = {0}, all = 0, most = 0;
	uint32_t count[MOST] = {0}, nr_alive = 0;

	for (uint32_t i = 0; i < s->nr_places; i++) {
		assert_true(p->next[i] >= -1 && p->next[i] < (int32_t)s->nr_experts);
		if (!lives(s, in, i))
			assert_int_equal(p->next[i], -1);
		else if (p->next[i] >= 0)
			count[p->next[i]]++;
	}
	for (uint32_t e = 0; e < s->nr_experts; e++) {
		assert_true(count[e] > 0);
		all += in->load[e];
	}
	for (uint32_t i = 0; i < s->nr_places; i++)
		if (p->next[i] >= 0)
			sum[rank_of(s, i)] += in->load[p->next[i]] / count[p->next[i]];
	for (uint32_t r = 0; r < s->nr_ranks; r++) {
		nr_alive += !in->alive || in->alive[r];
		most = sum[r] > most ? sum[r] : most;
	}
	if (all > 0)
		assert_true(fabs(most / all * nr_alive - p->result.after) < 1e-9);
}

static void check_copies(
	const struct shape *s, const struct tern_balance_input *in, const struct plan *p)
{
	int32_t after[MOST];

	for (uint32_t i = 0; i < s->nr_places; i++)
		after[i] = lives(s, in, i) ? in->now[i] : -1;
	for (uint32_t n = 0; n < p->result.nr_copies; n++) {
		const struct tern_copy *c = &p->copies[n];
		bool held = false;

		assert_true(lives(s, in, (uint32_t)c->to));
		assert_int_not_equal(after[c->to], c->expert);
		for (uint32_t i = 0; i < s->nr_places; i++)
			held |= lives(s, in, i) && in->now[i] == c->expert;
		assert_int_equal(c->from >= 0, held);
		if (held)
			assert_true(
				in->now[c->from] == c->expert && lives(s, in, (uint32_t)c->from));
		after[c->to] = c->expert;
	}
	assert_memory_equal(after, p->next, s->nr_places * sizeof(*after));
}

static void make_plan(
	const struct shape *s, tern_balance *b, const struct tern_balance_input *in, struct plan *p)
{
	p->result.size = sizeof(p->result);
	if (tern_balance_plan(b, in, p->next, p->copies, &p->result))
		fail_msg("%s", tern_last_error());
	check_loads(s, in, p);
	if (in->now)
		check_copies(s, in, p);
	else
		assert_int_equal(p->result.nr_copies, 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void against_eplb(const struct shape *s, const double *load)
{
	struct tern_balance_input in = {.size = sizeof(in), .load = load, .max_copies = UINT32_MAX};
	tern_balance *b = open_balance(s, true);
	struct plan p;
	double all = 0, mine;

	for (uint32_t e = 0; e < s->nr_experts; e++)
		all += load[e];
	make_plan(s, b, &in, &p);
	mine = p.result.after * all / s->nr_ranks;
	if (mine > eplb_global(s, load) * (1 + 1e-9) ||
		mine > eplb_hierarchical(s, load) * (1 + 1e-9))
		fail_msg("%u experts, %u places, %u ranks, %u nodes: %.6f; global %.6f, "
			 "hierarchical %.6f",
			s->nr_experts, s->nr_places, s->nr_ranks, s->nr_nodes, mine,
			eplb_global(s, load), eplb_hierarchical(s, load));
	tern_balance_destroy(b);
}

static void at_most_as_busy_as_eplb(void **unused)
{
	static const struct shape fixed[] = {{256, 288, 32, 4}, {256, 256, 32, 4}, {64, 80, 8, 2},
		{128, 160, 16, 2}, {12, 16, 4, 2}, {8, 64, 8, 1}};
	double load[MOST];
	uint64_t state = 1;

	(void)unused;
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		for (uint32_t kind = 0; kind < NR_KINDS; kind++) {
			draw_load(&state, kind, fixed[i].nr_experts, load);
			against_eplb(&fixed[i], load);
		}
	for (uint32_t i = 0; i < 1000; i++) {
		struct shape s;

		s.nr_nodes = 1u << random_below(&state, 3);
		s.nr_ranks = s.nr_nodes << random_below(&state, 3);
		s.nr_experts = s.nr_ranks * (1 + (uint32_t)random_below(&state, 4));
		s.nr_places = s.nr_experts + s.nr_ranks * (uint32_t)random_below(&state, 3);
		draw_load(&state, (uint32_t)random_below(&state, NR_KINDS), s.nr_experts, load);
		against_eplb(&s, load);
	}
}

/* ---- a recorded trace ------------------------------------------------------------------------ */

#define LAYERS 4
#define PARTS 4

/* Routes of a layer in each part of it: a file of [layers * tokens][topk]. */
static void count_routes(const struct npy *trace, uint32_t layer, double load[PARTS][MOST])
{
	uint64_t nr = trace->data_bytes / sizeof(int32_t) / LAYERS;
	const uint8_t *ids = (const uint8_t *)trace->data + layer * nr * sizeof(int32_t);

	memset(load, 0, PARTS * sizeof(load[0]));
	for (uint64_t i = 0; i < nr; i++) {
		int32_t id;

		memcpy(&id, ids + i * sizeof(id), sizeof(id));
		load[i * PARTS / nr][id]++;
	}
}

static double mine_judged(const struct shape *s, const double *load, const double *by)
{
	struct tern_balance_input in = {.size = sizeof(in), .load = load, .max_copies = UINT32_MAX};
	tern_balance *b = open_balance(s, false);
	uint32_t rank[MOST], count[MOST] = {0};
	double share[MOST];
	struct plan p;

	make_plan(s, b, &in, &p);
	for (uint32_t i = 0; i < s->nr_places; i++)
		count[p.next[i]]++;
	for (uint32_t i = 0; i < s->nr_places; i++) {
		share[i] = by[p.next[i]] / count[p.next[i]];
		rank[i] = rank_of(s, i);
	}
	tern_balance_destroy(b);
	return busiest(share, rank, s->nr_places, s->nr_ranks);
}

/* The demo's model, 32 experts. Placed by one part of a trace and judged by another, where what is
 * left is that loads change, so that of two pairs either may be better: on the whole no worse. */
static void of_a_recorded_trace(void **unused)
{
	const struct shape s = {32, 40, 8, 1};
	double load[PARTS][MOST], mine = 0, eplb = 0;
	struct reason why = {""};
	struct npy trace;
	void *file;

	(void)unused;
	if (npy_read("examples/generate/model/trace_ids.npy", &file, &trace, &why)) {
		print_message("# SKIP %s\n", why.text);
		skip();
	}
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		count_routes(&trace, layer, load);
		for (uint32_t i = 0; i < PARTS; i++)
			for (uint32_t k = 0; k < PARTS; k++) {
				mine += i == k ? 0 : mine_judged(&s, load[i], load[k]);
				eplb += i == k ? 0 : eplb_judged(&s, load[i], load[k]);
			}
	}
	print_message("# %.4f of what is the busiest of EPLB\n", mine / eplb);
	assert_true(mine <= 1.01 * eplb);
	free(file);
}

/* ---- few copies ------------------------------------------------------------------------------ */

/* Log loads that return to their mean: 0.95 of what they were, and a new part. */
static void few_copies_follow_drift(void **unused)
{
	const struct shape s = {256, 288, 32, 4};
	tern_balance *b = open_balance(&s, false);
	double log_load[256], load[256], sum = 0;
	int32_t now[288];
	struct plan p;
	uint64_t state = 7;

	(void)unused;
	for (uint32_t e = 0; e < 256; e++)
		log_load[e] = normal(&state);
	for (int step = 0; step < 60; step++) {
		struct tern_balance_input in = {.size = sizeof(in),
			.load = load,
			.now = step ? now : NULL,
			.max_copies = step ? 16 : UINT32_MAX};

		for (uint32_t e = 0; e < 256; e++) {
			log_load[e] = 0.95 * log_load[e] + sqrt(1 - 0.95 * 0.95) * normal(&state);
			load[e] = exp(0.5 * log_load[e]);
		}
		make_plan(&s, b, &in, &p);
		assert_true(p.result.nr_copies <= 16);
		assert_true(p.result.after <= p.result.before + 1e-12 || !step);
		memcpy(now, p.next, sizeof(now));
		sum += step < 10 ? 0 : p.result.after;
	}
	print_message("# 16 copies a step: %.4f of the mean\n", sum / 50);
	assert_true(sum / 50 <= 1.02);
	tern_balance_destroy(b);
}

static void some_die(void **unused)
{
	uint64_t state = 11;

	(void)unused;
	for (int i = 0; i < 600; i++) {
		struct shape s = {.nr_nodes = 1, .nr_ranks = 2 + (uint32_t)random_below(&state, 7)};
		uint8_t alive[MOST];
		int32_t now[MOST];
		double load[MOST];
		struct tern_balance_input in = {.size = sizeof(in),
			.load = load,
			.now = now,
			.alive = alive,
			.max_copies = (uint32_t)random_below(&state, 20),
			.spread = (uint32_t)random_below(&state, 4)};
		uint32_t nr_alive = 0, of_rank = 1 + (uint32_t)random_below(&state, 6), lost = 0;
		struct plan p;
		tern_balance *b;

		s.nr_places = s.nr_ranks * of_rank;
		for (uint32_t r = 0; r < s.nr_ranks; r++)
			nr_alive += alive[r] = r == 0 || random_below(&state, 4) > 0;
		s.nr_experts = 1 + (uint32_t)random_below(&state, nr_alive * of_rank);
		for (uint32_t k = 0; k < s.nr_places; k++)
			now[k] = (int32_t)random_below(&state, s.nr_experts + 1) - 1;
		draw_load(&state, (uint32_t)random_below(&state, NR_KINDS), s.nr_experts, load);
		for (uint32_t e = 0; e < s.nr_experts; e++) {
			bool held = false;

			for (uint32_t k = 0; k < s.nr_places; k++)
				held |= now[k] == (int32_t)e && lives(&s, &in, k);
			lost += !held;
		}
		b = open_balance(&s, false);
		make_plan(&s, b, &in, &p);
		assert_int_equal(p.result.before == 0, lost > 0);
		assert_true(p.result.nr_copies <= (lost > in.max_copies ? lost : in.max_copies));
		tern_balance_destroy(b);
	}
}

/* Where places allow, every expert is on two nodes, from scratch and by copies. */
static void apart(void **unused)
{
	const struct shape s = {64, 128, 16, 4};
	tern_balance *b = open_balance(&s, true);
	double load[64];
	int32_t now[128];
	uint64_t state = 5;

	(void)unused;
	for (int scratch = 0; scratch < 2; scratch++) {
		struct tern_balance_input in = {.size = sizeof(in),
			.load = load,
			.now = now,
			.max_copies = scratch ? UINT32_MAX : 128,
			.spread = 2};
		struct plan p;

		draw_load(&state, LOGNORMAL, 64, load);
		for (uint32_t i = 0; i < 128; i++)
			now[i] = (int32_t)i / 2;
		make_plan(&s, b, &in, &p);
		assert_int_equal(p.result.nr_spread, 64);
		for (int32_t e = 0; e < 64; e++) {
			uint32_t nodes = 0;

			for (uint32_t i = 0; i < 128; i++)
				nodes |= p.next[i] == e ? 1u << (i / 32) : 0;
			assert_true(nodes & (nodes - 1));
		}
	}
	tern_balance_destroy(b);
}

static void same_bits(void **unused)
{
	const struct shape s = {128, 144, 16, 1};
	double load[128];
	int32_t now[144];
	struct plan p, q;
	uint64_t state = 3;

	(void)unused;
	for (int i = 0; i < 20; i++) {
		tern_balance *one = open_balance(&s, false), *two = open_balance(&s, false);
		struct tern_balance_input in = {.size = sizeof(in),
			.load = load,
			.now = now,
			.max_copies = i % 2 ? 12 : UINT32_MAX};

		draw_load(&state, ZEROS, 128, load);
		for (uint32_t k = 0; k < 144; k++)
			now[k] = (int32_t)(k % 128);
		make_plan(&s, one, &in, &p); /* what a balance has planned leaves nothing behind */
		make_plan(&s, two, &in, &q);
		make_plan(&s, one, &in, &p);
		assert_memory_equal(p.next, q.next, sizeof(now));
		assert_memory_equal(
			p.copies, q.copies, p.result.nr_copies * sizeof(struct tern_copy));
		tern_balance_destroy(one);
		tern_balance_destroy(two);
	}
}

static void refused(int rc, const char *text)
{
	assert_int_equal(rc, TERN_ERR_INVALID);
	if (!strstr(tern_last_error(), text))
		fail_msg("\"%s\" has no \"%s\"", tern_last_error(), text);
}

static void refusals(void **unused)
{
	double load[4] = {1, 1, 1, 1};
	int32_t rank[4] = {0, 1, 2, 0}, now[4] = {0, 1, 2, 3}, next[4] = {7, 7, 7, 7};
	uint8_t alive[2] = {1, 0};
	struct tern_balance_config c = {
		.size = sizeof(c), .nr_experts = 4, .nr_physical = 4, .nr_ranks = 2};
	struct tern_balance_input in = {.size = sizeof(in), .load = load, .now = now};
	tern_balance *b = NULL;

	(void)unused;
	refused(tern_balance_create(NULL, &b), "NULL");
	c.nr_physical = 3;
	refused(tern_balance_create(&c, &b), "4 experts, 3 places");
	c.nr_physical = 4;
	c.rank = rank;
	refused(tern_balance_create(&c, &b), "rank[2] is 2; ranks are 0 to 1");
	c.rank = NULL;
	c.size = 3;
	refused(tern_balance_create(&c, &b), "size");
	c.size = sizeof(c);
	assert_null(b);
	assert_int_equal(tern_balance_create(&c, &b), 0);

	load[2] = NAN;
	refused(tern_balance_plan(b, &in, next, NULL, NULL), "load[2] is nan");
	load[2] = -1;
	refused(tern_balance_plan(b, &in, next, NULL, NULL), "load[2] is -1");
	load[2] = INFINITY;
	refused(tern_balance_plan(b, &in, next, NULL, NULL), "load[2] is inf");
	load[2] = 1;
	now[1] = 4;
	refused(tern_balance_plan(b, &in, next, NULL, NULL), "now[1] is 4");
	now[1] = 1;
	in.alive = alive;
	refused(tern_balance_plan(b, &in, next, NULL, NULL), "2 places for 4 experts");
	in.alive = NULL;
	in.load = NULL;
	refused(tern_balance_plan(b, &in, next, NULL, NULL), "load is NULL");
	for (int i = 0; i < 4; i++)
		assert_int_equal(next[i], 7);
	tern_balance_destroy(b);
	tern_balance_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(at_most_as_busy_as_eplb),
		cmocka_unit_test(of_a_recorded_trace), cmocka_unit_test(few_copies_follow_drift),
		cmocka_unit_test(some_die), cmocka_unit_test(apart), cmocka_unit_test(same_bits),
		cmocka_unit_test(refusals)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
