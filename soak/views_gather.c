/* SPDX-License-Identifier: Apache-2.0 */
/* Every few rounds all ranks gather: what their places hold. From that each finds the same next
 * placement, and which experts move until the next gathering. */
#include "soak/views_inside.h"

#include <string.h>

/* ---- parts ----------------------------------------------------------------------------------- */

static struct part *part_at(struct sim_rank *rank, uint32_t r, uint64_t number)
{
	return &rank->parts[r][number % PARTS];
}

static const struct part *part_of(struct sim_rank *rank, uint32_t r)
{
	const struct part *part = part_at(rank, r, rank->gatherings.number);

	return part->number == rank->gatherings.number ? part : NULL;
}

void hear_part(struct sim_rank *rank, uint32_t from, const struct part *part)
{
	struct part *at = part_at(rank, from, part->number);

	if (at->number < part->number)
		*at = *part;
}

static bool takes_part(const struct sim_rank *rank, uint32_t r)
{
	return is_member(rank, r) && rank->gatherings.number >= rank->first_gathering[r];
}

/* What may still come of a rank that takes no part: members have told it with their view. */
static bool is_known(const struct sim_views *v, struct sim_rank *rank, uint32_t r)
{
	if (part_of(rank, r))
		return true;
	for (uint32_t m = 0; m < v->nr_ranks; m++)
		if (is_member(rank, m) && m != rank->agreement.rank &&
			(!rank->heard[m].version ||
				rank->heard[m].view.number < rank->agreement.mine.view.number))
			return false;
	return true;
}

static bool all_are_here(const struct sim_views *v, struct sim_rank *rank)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (takes_part(rank, r) ? !part_of(rank, r) : !is_known(v, rank, r))
			return false;
	return true;
}

/* ---- what follows ---------------------------------------------------------------------------- */

static int16_t other_expert(const struct part *part, uint32_t not )
{
	for (uint32_t i = 0; i < COPIES; i++)
		if (i != not &&part->holds[i] >= 0)
			return part->holds[i];
	return -1;
}

static void owner_of(const struct sim_views *v, uint32_t p, uint32_t *r, uint32_t *i)
{
	*i = p / v->nr_ranks;
	*r = home_of(v, p % v->nr_ranks, *i);
}

/* Of who has given a part: members of now may be others, and not the same on all ranks. What is
 * there; where nothing is whole, another expert of that rank; as at first in places of others. */
static void table_of_what_is_held(struct sim_views *v, struct sim_rank *rank)
{
	for (uint32_t p = 0; p < nr_places(v); p++) {
		uint32_t r, i;
		const struct part *part;
		int16_t expert;

		owner_of(v, p, &r, &i);
		part = part_of(rank, r);
		v->now[p] = part ? part->holds[i] : -1;
		expert = part && part->holds[i] >= 0 ? part->holds[i]
			 : part                      ? other_expert(part, i)
						     : -1;
		v->logical[p] = expert >= 0 ? expert : (int32_t)(p % v->nr_ranks);
	}
}

static bool nobody_is_busy(const struct sim_views *v, struct sim_rank *rank)
{
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (part_of(rank, r) && part_of(rank, r)->busy)
			return false;
	return true;
}

static uint32_t plan(struct sim_views *v, struct sim_rank *rank)
{
	uint64_t random = hash2(v->seed, rank->gatherings.number);
	uint8_t alive[VIEW_MOST_RANKS];
	struct tern_balance_result result = {.size = sizeof(result)};
	struct tern_balance_input input = {.size = sizeof(input),
		.load = v->load,
		.now = v->now,
		.alive = alive,
		.spread = 2,
		.max_copies = 1 + random_below(&random, 3)};

	if (random_below(&random, 4) == 0 || !nobody_is_busy(v, rank))
		return 0;
	for (uint32_t e = 0; e < v->nr_ranks; e++)
		v->load[e] = 1 + random_below(&random, 64);
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		alive[r] = part_of(rank, r) != NULL;
	if (tern_balance_plan(v->balance, &input, v->planned, v->copies, &result))
		return 0; /* too few places are left for all experts */
	return result.nr_copies;
}

static uint32_t count_named(const struct sim_views *v, struct sim_rank *rank, int32_t expert)
{
	uint32_t nr = 0, r, i;

	for (uint32_t p = 0; p < nr_places(v); p++) {
		owner_of(v, p, &r, &i);
		nr += v->logical[p] == expert && part_of(rank, r);
	}
	return nr;
}

/* Until it has come the table names another expert of that rank in the place. An expert that would
 * be nowhere meanwhile stays, and so does the second place of a rank. */
static void begin_copies(struct sim_views *v, struct sim_rank *rank, uint32_t nr)
{
	struct rank_set filled = {{0}};

	for (uint32_t k = 0; k < nr; k++) {
		const struct tern_copy *copy = &v->copies[k];
		uint32_t r, i, from = rank->agreement.rank, unused;
		int32_t between;

		owner_of(v, (uint32_t)copy->to, &r, &i);
		between = other_expert(part_of(rank, r), i);
		if (set_has(&filled, r) || between < 0 ||
			count_named(v, rank, v->logical[copy->to]) < 2)
			continue;
		set_add(&filled, r);
		if (!breaks(v, VIEWS_BREAK_OVERWRITE))
			v->logical[copy->to] = between;
		if (copy->from >= 0)
			owner_of(v, (uint32_t)copy->from, &from, &unused);
		if (r == rank->agreement.rank)
			move_begin(v, r, i, copy->expert, from);
	}
}

/* An expert that no member holds is named nowhere: then the table before stays. */
static void place(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint32_t version = (uint32_t)rank->gatherings.number;

	if (breaks(v, VIEWS_BREAK_STALE) && me == 1 && version % 4 == 3)
		return;
	v->outcome->placed +=
		!placement_replace(&rank->placement, version, v->logical, nr_places(v));
	leave_out(v, me);
}

/* ---- the gathering --------------------------------------------------------------------------- */

bool gather_is_due(const struct sim_views *v, const struct sim_rank *rank)
{
	return rank->round % v->every == 0 && rank->round < v->nr_rounds && !rank->owed &&
	       rank->steps < rank->round / v->every;
}

void gather_begin(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	struct part part = {
		.done = serves(v, rank, me) ? rank->done : UNKNOWN, .busy = rank->move.busy};

	rank->phase = GATHER;
	if (rank->gathers)
		return;
	gatherings_next(&rank->gatherings);
	rank->gathers = true;
	part.number = rank->gatherings.number;
	for (uint32_t i = 0; i < COPIES; i++)
		part.holds[i] = rank->places[i].expert;
	if (part.busy && breaks(v, VIEWS_BREAK_NAME_EARLY)) {
		part.holds[rank->move.place] = rank->move.expert;
		part.busy = false;
	}
	*part_at(rank, me, part.number) = part;
	views_tell(v, me);
}

/* Who lives and is a member for the other has got the same. */
static void judge_result(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t number = rank->gatherings.number, hash = number;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		const struct part *part = part_of(rank, r);

		hash = hash2(hash, r);
		for (uint32_t i = 0; part && i < COPIES; i++)
			hash = hash4(hash, part->done, part->busy, (uint64_t)(part->holds[i] + 1));
	}
	rank->results[number % PARTS].number = number;
	rank->results[number % PARTS].hash = hash;
	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		const struct sim_rank *other = &v->ranks[r];

		if (other->state != DEAD && other->phase != EXPELLED && is_member(rank, r) &&
			is_member(other, me) && rank->lives[r] == other->life &&
			other->results[number % PARTS].number == number &&
			other->results[number % PARTS].hash != hash)
			views_wrong(v,
				"ranks %u and %u have gathered different parts (gathering %llu)",
				me, r, (unsigned long long)number);
	}
}

/* All have completed the same rounds: there a newcomer begins, unless nobody is left who knows. */
static bool find_place_of_program(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t done = UNKNOWN;

	for (uint32_t r = 0; r < v->nr_ranks; r++) {
		const struct part *part = part_of(rank, r);

		if (!part || part->done == UNKNOWN)
			continue;
		if (done != UNKNOWN && part->done != done)
			views_wrong(v, "a gathering of ranks that have done %llu and %llu rounds",
				(unsigned long long)done, (unsigned long long)part->done);
		done = part->done;
	}
	if (done == UNKNOWN)
		return false;
	rank->done = rank->round = done;
	rank->steps = done / v->every;
	return true;
}

bool gather_step(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (!all_are_here(v, rank))
		return false;
	rank->gathers = false;
	rank->gatherings.complete = rank->gatherings.number;
	judge_result(v, me);
	if (!find_place_of_program(v, me)) {
		views_die(v, me);
		return false;
	}
	table_of_what_is_held(v, rank);
	begin_copies(v, rank, plan(v, rank));
	place(v, me);
	return true;
}
