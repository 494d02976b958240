/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/plans.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/cpu/halves.h"

/* ---- what a slot knows of a round's routes --------------------------------------------------- */

struct list {
	void *at;
	size_t bytes;
};

#define NR_LISTS 10

static void lists_of(
	const tern_moe *moe, const struct slot *s, uint32_t nr_tokens, struct list *lists)
{
	size_t routes = (size_t)nr_tokens * moe->config.topk, ranks = moe->nr_ranks;
	size_t experts = moe->placement.nr_physical;
	size_t groups = ranks > moe->nr_local ? ranks : moe->nr_local;

	lists[0] = (struct list){s->place, (experts + ranks) * sizeof(*s->place)};
	lists[1] = (struct list){s->offsets, groups * sizeof(*s->offsets)};
	lists[2] = (struct list){s->physical, routes * sizeof(*s->physical)};
	lists[3] = (struct list){s->weights, routes * sizeof(*s->weights)};
	lists[4] = (struct list){s->rows_to, ranks * sizeof(*s->rows_to)};
	lists[5] = (struct list){s->routes_to, experts * sizeof(*s->routes_to)};
	lists[6] = (struct list){s->rows_home, ranks * sizeof(*s->rows_home)};
	lists[7] = (struct list){
		s->home_start, ranks * moe->config.replica_ranks * sizeof(*s->home_start)};
	lists[8] = (struct list){s->rows_from, ranks * sizeof(*s->rows_from)};
	lists[9] = (struct list){s->counts, groups * sizeof(*s->counts)};
}

static size_t bytes_of(const struct list *lists)
{
	size_t bytes = 0;

	for (int i = 0; i < NR_LISTS; i++)
		bytes += lists[i].bytes;
	return bytes;
}

/* Sending has moved each place behind the last row that it took. */
static void places_rewind(const tern_moe *moe, const struct slot *s, uint64_t *place)
{
	bool by_source = moe->config.layout == TERN_BY_SOURCE;
	const uint32_t *sent = by_source ? s->rows_to : s->routes_to;
	uint32_t nr = by_source ? moe->nr_ranks : moe->placement.nr_physical;

	for (uint32_t i = 0; i < nr && moe->config.mode == TERN_HIGH_THROUGHPUT; i++)
		place[i] -= sent[i];
}

static void copy_lists(const tern_moe *moe, const struct slot *s, struct kept_plan *plan)
{
	struct list lists[NR_LISTS];
	uint8_t *to = plan->copies;

	lists_of(moe, s, plan->nr_tokens, lists);
	for (int i = 0; i < NR_LISTS; to += lists[i++].bytes)
		memcpy(to, lists[i].at, lists[i].bytes);
	places_rewind(moe, s, (uint64_t *)(void *)plan->copies);
}

void plan_restore(const tern_moe *moe, struct slot *s, const struct kept_plan *plan)
{
	const uint8_t *from = plan->copies;
	struct list lists[NR_LISTS];

	s->nr_tokens = plan->nr_tokens;
	s->nr_rows = plan->nr_rows;
	s->extent = plan->extent;
	lists_of(moe, s, plan->nr_tokens, lists);
	for (int i = 0; i < NR_LISTS; from += lists[i++].bytes)
		memcpy(lists[i].at, from, lists[i].bytes);
}

/* Out of the window, where peers could change them: checked here, once. */
static int copy_headers(tern_moe *moe, uint32_t slot, struct kept_plan *plan)
{
	const struct slot *s = &moe->slots[slot];
	uint8_t *to = plan->headers;
	union header_copy copy;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint8_t *region = own(moe, layout_region(&moe->layout, slot, r));

		for (uint32_t i = 0; i < s->rows_from[r]; i++, to += moe->layout.header_bytes) {
			if (!header_take(moe, header_at(moe, region, i), &copy) ||
				!positions_fit(s, &copy.header)) {
				fail(TERN_ERR_PROTOCOL,
					"row %u from rank %u has a broken header (slot %u, epoch "
					"%u)",
					i, r, slot, s->epoch);
				return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
			}
			memcpy(to, &copy,
				sizeof(copy.header) +
					copy.header.nr_routes * sizeof(copy.header.routes[0]));
		}
	}
	return 0;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void plan_free(tern_moe *moe, struct kept_plan *plan)
{
	moe->private_bytes -= plan->bytes;
	free(plan->first);
	free(plan->headers);
	free(plan->copies);
	free(plan->ids);
	free(plan);
}

static struct kept_plan *plan_alloc(tern_moe *moe, const struct slot *s)
{
	struct kept_plan *plan = calloc(1, sizeof(*plan));
	struct list lists[NR_LISTS];
	uint64_t rows = 0, routes;

	if (!plan)
		return NULL;
	plan->nr_tokens = s->nr_tokens;
	plan->nr_rows = s->nr_rows;
	plan->extent = s->extent;
	plan->first = calloc(moe->nr_ranks, sizeof(*plan->first));
	for (uint32_t r = 0; r < moe->nr_ranks && plan->first; r++) {
		plan->first[r] = rows;
		rows += s->rows_from[r];
	}
	lists_of(moe, s, s->nr_tokens, lists);
	plan->headers = calloc(rows ? rows : 1, moe->layout.header_bytes);
	plan->copies = malloc(bytes_of(lists));
	routes = moe->config.elastic ? (uint64_t)s->nr_tokens * moe->config.topk : 0;
	plan->ids = calloc(routes ? routes : 1, sizeof(*plan->ids));
	plan->bytes = sizeof(*plan) + moe->nr_ranks * sizeof(*plan->first) +
		      rows * moe->layout.header_bytes + bytes_of(lists) +
		      routes * sizeof(*plan->ids);
	moe->private_bytes += plan->bytes;
	if (plan->first && plan->headers && plan->copies && plan->ids)
		return plan;
	plan_free(moe, plan);
	return NULL;
}

/* The logical experts of this rank's tokens; -1: none. */
static void list_ids(const tern_moe *moe, const struct slot *s, int32_t *ids)
{
	for (size_t i = 0; i < (size_t)s->nr_tokens * moe->config.topk; i++)
		ids[i] = s->physical[i] < 0 ? -1 : (int32_t)moe->placement.logical[s->physical[i]];
}

/* Where some ranks make the round for others, without their tokens, the parts do not fit together:
 * theirs are of the round as it was. */
static void note_view(const tern_moe *moe, const struct slot *s, struct kept_plan *plan)
{
	if (moe->config.elastic)
		list_ids(moe, s, plan->ids);
	plan->shape = s->served ? 0 : moe->shape + 1;
	plan->placed = s->placed;
}

/* Of the slot's round, whose rows are here. */
static int plan_make(tern_moe *moe, uint32_t slot, struct kept_plan **out)
{
	const struct slot *s = &moe->slots[slot];
	struct kept_plan *plan = plan_alloc(moe, s);
	int rc;

	if (!plan)
		return fail(TERN_ERR_NOMEM, "no memory for the plan of %u tokens", s->nr_tokens);
	rc = copy_headers(moe, slot, plan);
	if (rc) {
		plan_free(moe, plan);
		return rc;
	}
	copy_lists(moe, s, plan);
	note_view(moe, s, plan);
	*out = plan;
	return 0;
}

/* Rows by position. */
static void tell_beside(
	const tern_moe *moe, const struct slot *s, const struct tern_plan_beside *beside)
{
	const struct output_layout *o = &moe->layout.output;
	const struct tern_row *rows = (const struct tern_row *)(s->output + o->rows);
	uint64_t nr = beside->nr_rows < s->extent ? beside->nr_rows : s->extent;

	for (uint64_t i = 0; i < nr && beside->tokens; i++)
		beside->tokens[i] = rows[i].token;
	for (uint64_t i = 0; i < nr * moe->config.topk && beside->wide_ids; i++)
		beside->wide_ids[i] = ((const int32_t *)(s->output + o->topk_ids))[i];
	if (beside->topk_ids)
		list_ids(moe, s, beside->topk_ids);
}

int cpu_plan_create(
	tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside, uint64_t *out)
{
	const struct slot *s = &moe->slots[slot];
	struct kept_plan *plan;
	int rc;

	if (s->state != SLOT_RECEIVED || s->replayed)
		return slot_wrong_state(moe, slot, "tern_plan_create");
	rc = plan_make(moe, slot, &plan);
	if (rc)
		return rc;
	tell_beside(moe, s, beside);
	plan->id = plan_number();
	plan->next = moe->plans;
	moe->plans = plan;
	*out = plan->id;
	return 0;
}

int plan_renew(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];
	struct kept_plan *plan, *now, old;
	int rc;

	if (plan_find(moe, s->plan, &plan) || s->served ||
		(plan->shape == moe->shape + 1 && placed_is(&plan->placed, &s->placed)))
		return 0;
	rc = plan_make(moe, slot, &now);
	if (rc) /* it goes on to be less than whole */
		return rc == TERN_ERR_NOMEM ? 0 : rc;
	now->id = plan->id;
	now->next = plan->next;
	old = *plan;
	*plan = *now;
	*now = old;
	plan_free(moe, now);
	return 0;
}

int plan_check_whole(const tern_moe *moe, const struct kept_plan *plan)
{
	if (!moe->config.elastic || plan->shape == moe->shape + 1)
		return 0;
	return fail(TERN_ERR_STATE,
		"plan %llu is not whole in view %llu: members have gone or come. "
		"Dispatch with it first",
		(unsigned long long)plan->id, (unsigned long long)moe->view);
}

/* The fourth of its lists. */
const float *plan_weights(const tern_moe *moe, const struct kept_plan *plan)
{
	const uint8_t *at = plan->copies;
	struct list lists[NR_LISTS];

	lists_of(moe, &moe->slots[0], plan->nr_tokens, lists);
	for (int i = 0; i < 3; i++)
		at += lists[i].bytes;
	return (const float *)(const void *)at;
}

int plan_find(const tern_moe *moe, uint64_t id, struct kept_plan **plan)
{
	*plan = moe->plans;
	while (*plan && (*plan)->id != id)
		*plan = (*plan)->next;
	return *plan ? 0 : plan_unknown(id);
}

int cpu_plan_destroy(tern_moe *moe, uint64_t id)
{
	struct kept_plan *plan, **at = &moe->plans;
	int rc = plan_find(moe, id, &plan);

	for (uint32_t i = 0; i < moe->config.nr_slots && !rc; i++)
		if (moe->slots[i].replayed == plan)
			return slot_wrong_state(moe, i, "tern_plan_destroy of the plan in use");
	if (rc)
		return rc;
	while (*at != plan)
		at = &(*at)->next;
	*at = plan->next;
	plan_free(moe, plan);
	return 0;
}

void plans_close(tern_moe *moe)
{
	while (moe->plans) {
		struct kept_plan *plan = moe->plans;

		moe->plans = plan->next;
		plan_free(moe, plan);
	}
}
