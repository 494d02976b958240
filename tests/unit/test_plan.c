/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, placements and layouts against a search through all possibilities, on random shapes. */
#include "exchange/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "testkit/random.h"
#include "exchange/layout.h"

static int scaled_cases(int full)
{
	const char *divisor = getenv("TERN_TEST_DIVISOR");
	int by = divisor ? atoi(divisor) : 1;

	return by > 1 ? full / by : full;
}

/* ---- placement ------------------------------------------------------------------------------- */

struct tables {
	struct tern_placement tables;
	uint32_t nr_experts, nr_ranks;
	int32_t logical[128], rank[128];
};

/* Every expert at least once, in a random order. */
static void draw_tables(uint64_t *random, struct tables *t)
{
	uint32_t nr;

	memset(t, 0, sizeof(*t));
	t->nr_ranks = 1 + random_below(random, 9);
	t->nr_experts = 1 + random_below(random, 40);
	nr = t->nr_experts + random_below(random, 20);
	for (uint32_t p = 0; p < nr; p++) {
		uint32_t at = random_below(random, p + 1);

		t->logical[p] = t->logical[at];
		t->logical[at] =
			(int32_t)(p < t->nr_experts ? p : random_below(random, t->nr_experts));
		t->rank[p] = (int32_t)random_below(random, t->nr_ranks);
	}
	t->tables = (struct tern_placement){nr, t->logical, t->rank};
}

static void check_placement(const struct tables *t, const struct placement *p)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < p->nr_physical; i++) {
		uint32_t before = 0;

		for (uint32_t j = 0; j < i; j++)
			before += t->rank[j] == t->rank[i];
		assert_int_equal(p->rank[i], t->rank[i]);
		assert_int_equal(p->logical[i], t->logical[i]);
		assert_int_equal(p->local[i], before);
		most = before + 1 > most ? before + 1 : most;
	}
	assert_int_equal(p->max_local, most);
}

/* Number (source + token) % replicas, unless one is on the source. */
static void check_choice(const struct tables *t, const struct placement *p, uint32_t expert,
	uint32_t source, uint32_t token)
{
	int32_t here = -1, replicas[128];
	uint32_t nr = 0, chosen = placement_choose(p, expert, source, token);

	for (uint32_t i = 0; i < p->nr_physical; i++) {
		if (t->logical[i] != (int32_t)expert)
			continue;
		if (here < 0 && t->rank[i] == (int32_t)source)
			here = (int32_t)i;
		replicas[nr++] = (int32_t)i;
	}
	assert_int_equal(chosen, here >= 0 ? here : replicas[(source + token) % nr]);
}

/* As if it had been made so; and where it is refused, as it was. */
static void check_replaced(uint64_t *random, const struct tables *t, struct placement *p)
{
	int32_t logical[128];
	uint32_t nr = p->nr_physical, at = random_below(random, nr);
	struct tern_placement tables = {nr, logical, t->rank};
	struct placed before = p->placed;
	struct placement made;

	memcpy(logical, t->logical, nr * sizeof(*logical));
	for (uint32_t i = nr; i > 1; i--) {
		uint32_t other = random_below(random, i);
		int32_t expert = logical[i - 1];

		logical[i - 1] = logical[other];
		logical[other] = expert;
	}
	assert_int_equal(placement_init(&made, &tables, t->nr_experts, t->nr_ranks), 0);
	logical[at] += (int32_t)t->nr_experts;
	assert_int_equal(placement_replace(p, 7, logical, nr), TERN_ERR_INVALID);
	logical[at] -= (int32_t)t->nr_experts;
	assert_int_equal(placement_replace(p, 7, logical, nr - 1), TERN_ERR_INVALID);
	assert_int_equal(placement_replace(p, 7, NULL, nr), TERN_ERR_INVALID);
	assert_true(placed_is(&p->placed, &before));
	check_placement(t, p);
	assert_int_equal(placement_replace(p, 7, logical, nr), 0);
	assert_int_equal(p->placed.version, 7);
	assert_int_equal(p->placed.hash, made.placed.hash);
	assert_memory_equal(p->logical, made.logical, nr * sizeof(*p->logical));
	assert_memory_equal(p->replicas, made.replicas, nr * sizeof(*p->replicas));
	assert_memory_equal(p->first_replica, made.first_replica,
		((size_t)t->nr_experts + 1) * sizeof(*p->first_replica));
	placement_free(&made);
}

/* The one in turn, unless another's rank has less: then the next such one behind it. */
static void check_least(uint64_t *random, const struct tables *t, const struct placement *p)
{
	uint32_t load[64], expert = random_below(random, t->nr_experts),
			   source = random_below(random, t->nr_ranks),
			   token = random_below(random, 1000);
	uint32_t nr = 0, replicas[128], best, chosen;

	for (uint32_t r = 0; r < t->nr_ranks; r++)
		load[r] = random_below(random, 3);
	for (uint32_t i = 0; i < p->nr_physical; i++)
		if (t->logical[i] == (int32_t)expert)
			replicas[nr++] = i;
	best = placement_choose(p, expert, source, token);
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t other = replicas[((source + token) % nr + i) % nr];

		best = load[t->rank[other]] < load[t->rank[best]] ? other : best;
	}
	chosen = placement_choose_least(p, expert, source, token, load);
	assert_int_equal(chosen, best);
	for (uint32_t i = 0; i < nr; i++)
		assert_true(load[t->rank[chosen]] <= load[t->rank[replicas[i]]]);
}

static void placements(void **state)
{
	uint64_t random = 1;

	(void)state;
	for (int i = 0; i < scaled_cases(2000); i++) {
		struct placement p;
		struct tables t;

		draw_tables(&random, &t);
		assert_int_equal(placement_init(&p, &t.tables, t.nr_experts, t.nr_ranks), 0);
		check_placement(&t, &p);
		for (int j = 0; j < 20; j++)
			check_choice(&t, &p, random_below(&random, t.nr_experts),
				random_below(&random, t.nr_ranks), random_below(&random, 1000));
		for (int j = 0; j < 20; j++)
			check_least(&random, &t, &p);
		check_replaced(&random, &t, &p);
		placement_free(&p);
	}
}

/* Without tables: contiguous blocks, the first ones one longer. */
static void default_placements(void **state)
{
	(void)state;
	for (uint32_t ranks = 1; ranks <= 20; ranks++)
		for (uint32_t experts = 1; experts <= 70; experts++) {
			struct placement p;
			uint32_t at = 0;

			assert_int_equal(
				placement_init(&p, &(struct tern_placement){0}, experts, ranks), 0);
			for (uint32_t r = 0; r < ranks; r++) {
				uint32_t nr = experts / ranks + (r < experts % ranks);

				assert_int_equal(p.nr_local[r], nr);
				for (uint32_t i = 0; i < nr; i++, at++) {
					assert_int_equal(p.rank[at], r);
					assert_int_equal(p.local[at], i);
					assert_int_equal(
						placement_choose(&p, at, ranks - 1, 17), at);
				}
			}
			assert_int_equal(at, experts);
			placement_free(&p);
		}
}

static void placement_hashes(void **state)
{
	uint64_t random = 3;

	(void)state;
	for (int i = 0; i < 500; i++) {
		struct placement p;
		struct tables t;
		uint64_t before;
		uint32_t at;

		draw_tables(&random, &t);
		if (t.nr_ranks == 1)
			continue;
		assert_int_equal(placement_init(&p, &t.tables, t.nr_experts, t.nr_ranks), 0);
		before = placement_hash(&p);
		placement_free(&p);
		assert_int_equal(placement_init(&p, &t.tables, t.nr_experts, t.nr_ranks), 0);
		assert_true(placement_hash(&p) == before);
		placement_free(&p);
		at = random_below(&random, t.tables.nr_physical);
		t.rank[at] = (t.rank[at] + 1) % (int32_t)t.nr_ranks;
		assert_int_equal(placement_init(&p, &t.tables, t.nr_experts, t.nr_ranks), 0);
		assert_true(placement_hash(&p) != before);
		placement_free(&p);
	}
}

/* ---- one token's rows ------------------------------------------------------------------------ */

static void check_token(const struct placement *p, const int32_t *physical, uint32_t topk)
{
	struct token_rows rows;
	uint32_t row = 0, at = 0;

	plan_token(p, physical, topk, &rows);
	for (uint32_t rank = 0; rank < p->nr_ranks; rank++) {
		uint32_t nr = 0;

		for (uint32_t k = 0; k < topk; k++) {
			if (physical[k] < 0 || p->rank[physical[k]] != rank)
				continue;
			assert_int_equal(rows.k[at + nr], k);
			nr++;
		}
		if (!nr)
			continue;
		assert_true(row < rows.nr_rows);
		assert_int_equal(rows.rows[row].rank, rank);
		assert_int_equal(rows.rows[row].first, at);
		assert_int_equal(rows.rows[row].nr, nr);
		row++;
		at += nr;
	}
	assert_int_equal(rows.nr_rows, row);
}

static void token_plans(void **state)
{
	uint64_t random = 5;

	(void)state;
	for (int i = 0; i < scaled_cases(3000); i++) {
		int32_t physical[TERN_MAX_TOPK];
		struct placement p;
		struct tables t;

		draw_tables(&random, &t);
		assert_int_equal(placement_init(&p, &t.tables, t.nr_experts, t.nr_ranks), 0);
		for (int j = 0; j < 10; j++) {
			uint32_t topk = 1 + random_below(&random, TERN_MAX_TOPK);

			for (uint32_t k = 0; k < topk; k++)
				physical[k] = (int32_t)random_below(&random, p.nr_physical + 3) - 3;
			for (uint32_t k = 0; k < topk; k++)
				physical[k] = physical[k] < 0 ? -1 : physical[k];
			check_token(&p, physical, topk);
		}
		placement_free(&p);
	}
}

/* ---- places in high-throughput mode ---------------------------------------------------------- */

struct all_counts {
	struct plan_counts c;
	uint32_t *data;
};

static uint32_t *counts_at(const struct all_counts *a, uint32_t source)
{
	return a->data + source * (a->c.nr_physical + a->c.nr_ranks + 3);
}

static void draw_counts(uint64_t *random, const struct placement *p, struct all_counts *a)
{
	uint64_t stride = p->nr_physical + p->nr_ranks + 3;

	a->data = calloc(stride * p->nr_ranks, sizeof(*a->data));
	assert_non_null(a->data);
	a->c = (struct plan_counts){
		(const uint8_t *)a->data, stride * sizeof(*a->data), p->nr_ranks, p->nr_physical};
	for (uint32_t i = 0; i < stride * p->nr_ranks; i++)
		a->data[i] = random_below(random, 3) ? random_below(random, 9) : 0;
}

/* Row positions one after the other, as the layout in tern.h says; -1 where none. Returns the span
 * of the rank's output. */
static uint64_t lay_out(const struct placement *p, const struct all_counts *a,
	const struct plan_limits *limits, uint32_t rank, uint32_t me, uint64_t *place,
	uint64_t *most)
{
	uint64_t at = 0;

	*most = 0;
	for (uint32_t e = 0; e < p->nr_physical; e++) {
		uint64_t rows = 0;

		if (p->rank[e] != rank)
			continue;
		if (limits->layout == TERN_PADDED)
			at = p->local[e] * limits->capacity;
		while (limits->layout == TERN_CONTIGUOUS && at % limits->alignment)
			at++;
		for (uint32_t s = 0; s < p->nr_ranks; s++) {
			if (s == me)
				place[e] = at + rows;
			rows += counts_at(a, s)[e];
		}
		*most = rows > *most ? rows : *most;
		at += limits->layout == TERN_PADDED ? limits->capacity : rows;
	}
	return at;
}

static uint64_t lay_out_by_source(const struct placement *p, const struct all_counts *a,
	uint32_t rank, uint32_t me, uint64_t *place)
{
	uint64_t at = 0;

	for (uint32_t s = 0; s < p->nr_ranks; s++) {
		if (s == me)
			place[rank] = at;
		at += counts_at(a, s)[p->nr_physical + rank];
	}
	return at;
}

static void check_places(const struct placement *p, const struct all_counts *a,
	const struct plan_limits *limits, uint32_t me)
{
	bool by_source = limits->layout == TERN_BY_SOURCE;
	uint64_t want[160] = {0}, got[160] = {0}, totals[160], most = 0;
	int over = plan_places(p, &a->c, limits, me, got, totals), want_over = -1;

	for (uint32_t rank = 0; rank < p->nr_ranks; rank++) {
		uint64_t span = by_source ? lay_out_by_source(p, a, rank, me, want)
					  : lay_out(p, a, limits, rank, me, want, &most);

		if ((limits->layout == TERN_PADDED ? most : span) > limits->capacity &&
			want_over < 0)
			want_over = (int)rank;
		if (p->nr_local[rank] || by_source)
			assert_true(totals[p->nr_physical + rank] == span);
	}
	assert_int_equal(over, want_over);
	for (uint32_t i = 0; i < (by_source ? p->nr_ranks : p->nr_physical); i++)
		assert_true(got[i] == want[i]);
}

static void places(void **state)
{
	static const uint32_t alignments[] = {1, 1, 3, 8, 128};
	uint64_t random = 7;

	(void)state;
	for (int i = 0; i < scaled_cases(3000); i++) {
		struct all_counts a;
		struct placement p;
		struct tables t;

		draw_tables(&random, &t);
		assert_int_equal(placement_init(&p, &t.tables, t.nr_experts, t.nr_ranks), 0);
		draw_counts(&random, &p, &a);
		for (enum tern_layout layout = TERN_PADDED; layout <= TERN_BY_SOURCE; layout++) {
			struct plan_limits limits = {layout,
				layout == TERN_CONTIGUOUS ? alignments[random_below(&random, 5)]
							  : 1,
				1 + random_below(&random, layout == TERN_PADDED ? 60 : 1200)};

			check_places(&p, &a, &limits, random_below(&random, t.nr_ranks));
		}
		free(a.data);
		placement_free(&p);
	}
}

/* ---- where everything lies ------------------------------------------------------------------- */

struct area {
	uint64_t from, to;
	const char *name;
};

static int compare_areas(const void *a, const void *b)
{
	const struct area *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

struct areas {
	struct area list[4096];
	size_t nr;
};

static void add_area(
	struct areas *areas, uint64_t from, uint64_t bytes, uint32_t alignment, const char *name)
{
	if (!bytes)
		return;
	assert_true(areas->nr < sizeof(areas->list) / sizeof(areas->list[0]));
	if (from % alignment)
		fail_msg("%s at %llu is not aligned to %u", name, (unsigned long long)from,
			alignment);
	areas->list[areas->nr++] = (struct area){from, from + bytes, name};
}

static void add_slot(
	struct areas *areas, const struct layout *l, const struct tern_moe_config *c, uint32_t slot)
{
	bool asks = c->mode == TERN_HIGH_THROUGHPUT;

	for (uint32_t r = 0; r < l->nr_ranks; r++) {
		for (uint32_t kind = 0; kind < NR_WORD_KINDS; kind++)
			add_area(areas, layout_word(l, slot, (enum word_kind)kind, r),
				sizeof(struct arrival), CACHE_LINE, "word");
		for (uint32_t epoch = 0; epoch < 2 && asks; epoch++)
			add_area(areas, layout_counts(l, slot, epoch, r),
				(l->nr_physical + l->nr_ranks) * 4ull, 4, "counts");
		add_area(areas, layout_region(l, slot, r),
			asks ? (uint64_t)l->share_tokens * l->region_stride
			     : l->counts_bytes + (uint64_t)l->share_tokens * l->row_bytes,
			16, "region");
	}
	for (uint32_t phase = 0; phase < NR_PHASES; phase++)
		add_area(areas, layout_event_count(l, slot, (enum tern_phase)phase),
			sizeof(struct event_count), CACHE_LINE, "event_count");
	if (asks)
		add_area(areas, layout_output(l, slot), l->output.bytes, 4096, "output");
	for (uint32_t row = 0; row < l->combine_rows; row++)
		add_area(areas, layout_combine_row(l, slot, row), l->result_bytes, 16,
			"combine row");
}

static void add_channels(struct areas *areas, const struct layout *l)
{
	for (uint32_t channel = 0; channel < l->nr_channels; channel++)
		for (uint32_t chunk = 0; chunk < l->nr_chunks; chunk++)
			add_area(areas, layout_chunk(l, channel, chunk), l->chunk_bytes, CACHE_LINE,
				"chunk");
	for (uint32_t slot = 0; l->nr_chunks && slot < l->nr_slots; slot++)
		for (uint32_t r = 0; r < l->nr_ranks; r++)
			add_area(areas, layout_note(l, slot, r), sizeof(struct results_note),
				CACHE_LINE, "note");
}

static void check_areas(struct areas *areas, uint64_t end)
{
	qsort(areas->list, areas->nr, sizeof(areas->list[0]), compare_areas);
	for (size_t i = 1; i < areas->nr; i++)
		if (areas->list[i].from < areas->list[i - 1].to)
			fail_msg("%s at %llu overlaps %s at %llu", areas->list[i].name,
				(unsigned long long)areas->list[i].from, areas->list[i - 1].name,
				(unsigned long long)areas->list[i - 1].from);
	assert_true(areas->nr > 0 && areas->list[areas->nr - 1].to <= end);
}

static void check_output(struct areas *areas, const struct layout *l)
{
	const struct output_layout *o = &l->output;
	uint64_t ids = o->topk_weights > o->topk_ids ? l->topk * 4ull : 0;

	areas->nr = 0;
	add_area(areas, o->x, l->positions * l->payload_bytes, 64, "x");
	add_area(areas, o->scales, l->positions * l->scales_bytes, 16, "scales");
	add_area(areas, o->rows, l->positions * sizeof(struct tern_row), 16, "rows");
	add_area(areas, o->topk_ids, l->positions * ids, 16, "ids");
	add_area(areas, o->topk_weights, l->positions * ids, 16, "weights");
	check_areas(areas, o->bytes);
}

static void draw_config(uint64_t *random, struct tern_moe_config *c)
{
	tern_moe_config_init(c);
	c->mode = (enum tern_mode)(1 + random_below(random, 2));
	c->layout = (enum tern_layout)(1 + random_below(random, 3));
	c->reduce = c->layout == TERN_BY_SOURCE ? TERN_REDUCE_EXPERT
						: (enum tern_reduce)(1 + random_below(random, 2));
	c->hidden = 16 * (1 + random_below(random, 70));
	c->nr_experts = 1 + random_below(random, 40);
	c->topk = 1 + random_below(random, c->nr_experts < 12 ? c->nr_experts : 12);
	c->max_tokens = 1 + random_below(random, 40);
	c->nr_slots = 1 + random_below(random, 3);
	c->alignment = 1 + random_below(random, 20);
	c->dispatch_dtype = random_below(random, 2) ? TERN_BF16 : TERN_FP8_E4M3;
	c->scale = c->dispatch_dtype == TERN_BF16 ? TERN_SCALE_NONE
						  : (enum tern_scale)(1 + random_below(random, 2));
	c->capacity = c->mode == TERN_HIGH_THROUGHPUT ? random_below(random, 100) : 0;
}

static void layouts(void **state)
{
	struct areas *areas = calloc(1, sizeof(*areas));
	uint64_t random = 9;

	(void)state;
	assert_non_null(areas);
	for (int i = 0; i < scaled_cases(1500); i++) {
		uint32_t nr_ranks = 1 + random_below(&random, 8);
		struct channel_shape shape = {random_below(&random, 4),
			2 + random_below(&random, 4), 1 + random_below(&random, 5000)};
		const struct channel_shape *channels = random_below(&random, 2) ? &shape : NULL;
		struct tern_moe_config c;
		struct layout l, same;

		draw_config(&random, &c);
		c.replica_ranks = random_below(&random, 2) ? 1 : nr_ranks;
		layout_init(&l, &c, nr_ranks, c.nr_experts,
			(c.nr_experts + nr_ranks - 1) / nr_ranks, channels);
		layout_init(&same, &c, nr_ranks, c.nr_experts,
			(c.nr_experts + nr_ranks - 1) / nr_ranks, channels);
		assert_memory_equal(&l, &same, sizeof(l));
		areas->nr = 0;
		add_area(areas, 0, sizeof(struct window_head), CACHE_LINE, "head");
		for (uint32_t slot = 0; slot < c.nr_slots; slot++)
			add_slot(areas, &l, &c, slot);
		add_channels(areas, &l);
		check_areas(areas, l.window_bytes);
		check_output(areas, &l);
	}
	free(areas);
}

/* ---- words ----------------------------------------------------------------------------------- */

static void words(void **state)
{
	static const uint32_t values[] = {
		0, 1, 2, 0x7fffffff, 0x80000000, UINT32_MAX - 1, UINT32_MAX};

	(void)state;
	for (size_t i = 0; i < 7; i++)
		for (size_t j = 0; j < 7; j++) {
			assert_int_equal(word_epoch(word_make(values[i], values[j])), values[i]);
			assert_int_equal(word_count(word_make(values[i], values[j])), values[j]);
		}
	for (int error = TERN_ERR_LOST_EXPERTS; error <= 0; error++)
		for (int peer = -1; peer < 70000; peer += 9999) {
			assert_true(leave_status_make(error, peer) != 0);
			assert_int_equal(leave_status_error(leave_status_make(error, peer)), error);
			assert_int_equal(leave_status_peer(leave_status_make(error, peer)), peer);
		}
}

/* A ring is answered when the count that the sleeper waits for is reached, also across 2^32. */
static void event_counts(void **state)
{
	static const uint32_t starts[] = {0, 5, UINT32_MAX - 2, UINT32_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct event_count events = {.count = starts[i]};

		assert_false(event_count_advance(&events)); /* nobody sleeps */
		assert_int_equal(event_count_listen(&events, starts[i] + 4), starts[i] + 1);
		assert_false(event_count_advance(&events));
		assert_false(event_count_advance(&events));
		assert_true(event_count_advance(&events));
		assert_true(event_count_advance(&events)); /* and later ones, in case the first was
							      lost on it */
		event_count_leave(&events);
		assert_false(event_count_advance(&events));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(placements),
		cmocka_unit_test(default_placements),
		cmocka_unit_test(placement_hashes),
		cmocka_unit_test(token_plans),
		cmocka_unit_test(places),
		cmocka_unit_test(layouts),
		cmocka_unit_test(words),
		cmocka_unit_test(event_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
