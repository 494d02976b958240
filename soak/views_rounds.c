/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/views_inside.h"

#include "exchange/elastic.h"

/* What a member has completed when it stopped, or since: it completes nothing more before this rank
 * takes part. */
static bool knows_rounds_of(const struct sim_rank *rank, uint32_t r)
{
	const struct agreement_record *theirs = &rank->heard[r];
	uint64_t mine = rank->agreement.mine.view.number;

	return theirs->version && (theirs->view.number >= mine ||
					  (theirs->view.number + 1 == mine && theirs->stopped));
}

/* By its table, and not by what its exchange makes of it. */
static bool somebody_has(const struct sim_views *v, const struct sim_rank *rank, uint32_t expert)
{
	bool has = false;

	for (uint32_t p = 0; p < nr_places(v); p++)
		has = has || (rank->placement.logical[p] == expert &&
				     serves(v, rank, home_of(v, p % v->nr_ranks, p / v->nr_ranks)));
	return has;
}

/* Each token goes to one member for each of its experts; or to nobody, where one has no member. */
static void judge_places(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool all = true;

	for (uint32_t e = 0; e < v->nr_ranks; e++) {
		uint32_t p = placement_choose(&rank->placement, e, me, (uint32_t)rank->round);

		all = all && somebody_has(v, rank, e);
		if (rank->phase == LOST ||
			(p != PLACEMENT_NOBODY && serves(v, rank, rank->placement.rank[p])))
			continue;
		views_wrong(v, "rank %u, in view %llu, sends to expert %u where no member has it",
			me, (unsigned long long)rank->agreement.mine.view.number, e);
	}
	if (all && rank->phase == LOST)
		views_wrong(v, "rank %u misses experts that members have", me);
}

void begin_round(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	bool lost = rank->placement.nr_lost && !breaks(v, VIEWS_BREAK_HIDE_LOSS);

	rank->next = 0;
	if (gather_is_due(v, rank)) {
		gather_begin(v, me);
		return;
	}
	rank->phase = rank->round == v->nr_rounds ? FINISHED : lost ? LOST : SEND_ROWS;
	if (rank->phase != FINISHED)
		judge_places(v, me);
}

static void find_round(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t least = rank->done;

	for (uint32_t r = 0; r < v->nr_ranks && serves(v, rank, me); r++) {
		if (r == me || !serves(v, rank, r))
			continue;
		if (!knows_rounds_of(rank, r))
			return;
		least = rank->heard_done[r] < least ? rank->heard_done[r] : least;
	}
	if (rank->done - least > 1)
		views_wrong(v, "rank %u has completed %llu rounds, and another %llu", me,
			(unsigned long long)rank->done, (unsigned long long)least);
	if (breaks(v, VIEWS_BREAK_NO_SERVICE))
		least = rank->done;
	if (!serves(v, rank, me)) {
		gather_begin(v, me);
		return;
	}
	rank->round = least;
	rank->owed = least < rank->done;
	begin_round(v, me);
}

/* ---- a rank acts ----------------------------------------------------------------------------- */

static void judge_word(struct sim_views *v, uint32_t me, uint32_t r, const struct word *word)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t view = rank->agreement.mine.view.number;

	if (word->view != view || word->round != rank->round)
		views_wrong(v,
			"rank %u reads in view %llu, round %llu what rank %u stored in view %llu, "
			"round %llu",
			me, (unsigned long long)view, (unsigned long long)rank->round, r,
			(unsigned long long)word->view, (unsigned long long)word->round);
	if (word->placed.hash && !rank->owed && !placed_is(&word->placed, &rank->placement.placed))
		views_wrong(v,
			"rank %u has version %u of the placement in round %llu, and rank %u "
			"version %u",
			me, rank->placement.placed.version, (unsigned long long)rank->round, r,
			word->placed.version);
}

static bool all_words_are_here(struct sim_views *v, uint32_t me, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[me];
	uint64_t view = rank->agreement.mine.view.number;
	uint32_t due = elastic_epoch(
		FIRST_EPOCH, rank->round, breaks(v, VIEWS_BREAK_OLD_EPOCHS) ? 0 : view);

	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (serves(v, rank, r) && r != me && rank->words[kind][r].epoch != due)
			return false;
	for (uint32_t r = 0; r < v->nr_ranks; r++)
		if (serves(v, rank, r) && r != me)
			judge_word(v, me, r, &rank->words[kind][r]);
	return true;
}

static void end_round(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (rank->owed && !breaks(v, VIEWS_BREAK_COUNT_TWICE)) {
		v->outcome->served++;
	} else {
		if (rank->done != rank->round)
			views_wrong(v, "rank %u sums round %llu once more, after %llu", me,
				(unsigned long long)rank->round, (unsigned long long)rank->done);
		rank->done++;
		v->outcome->rounds++;
	}
	rank->round++;
	rank->owed = false;
	begin_round(v, me);
}

/* To one peer after the other: it may die, or be stopped, between two. */
static void send_some(struct sim_views *v, uint32_t me, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[me];
	uint32_t nr = 1 + draw(v, v->nr_ranks);

	for (; nr && rank->next < v->nr_ranks; rank->next++, nr--) {
		uint32_t to = (me + 1 + rank->next) % v->nr_ranks;

		if (to != me && serves(v, rank, to))
			views_store(v, me, to, kind);
	}
	if (rank->next < v->nr_ranks)
		return;
	rank->next = 0;
	rank->phase++;
}

static void look_and_change(struct sim_views *v, uint32_t me)
{
	look_around(v, me);
	if (wants_change(v, me) && !v->ranks[me].agreement.mine.stopped)
		begin_change(v, me);
}

static void await(struct sim_views *v, uint32_t me, enum kind kind)
{
	struct sim_rank *rank = &v->ranks[me];

	if (!all_words_are_here(v, me, kind)) {
		look_and_change(v, me);
	} else if (kind == WORD_SUMS) {
		end_round(v, me);
	} else {
		judge_weights(v, me);
		rank->phase++;
	}
}

void do_something(struct sim_views *v, uint32_t me)
{
	struct sim_rank *rank = &v->ranks[me];

	if (breaks(v, VIEWS_BREAK_GO_ON) && rank->agreement.mine.stopped)
		views_change(v, me);
	move_step(v, me);
	switch (rank->phase) {
	case SEND_ROWS:
		send_some(v, me, WORD_ROWS);
		break;
	case AWAIT_ROWS:
		await(v, me, WORD_ROWS);
		break;
	case SEND_SUMS:
		send_some(v, me, WORD_SUMS);
		break;
	case AWAIT_SUMS:
		await(v, me, WORD_SUMS);
		break;
	case QUIESCE:
		look_around(v, me);
		views_quiesce(v, me);
		break;
	case CHANGE:
		look_around(v, me);
		views_change(v, me);
		break;
	case LEARN_ROUNDS:
		find_round(v, me);
		look_around(v, me);
		if (rank->phase == LEARN_ROUNDS && agreement_wanted(&rank->agreement))
			begin_change(v, me);
		break;
	case GATHER:
		if (gather_step(v, me))
			begin_round(v, me);
		else
			look_and_change(v, me);
		break;
	case JOINING:
		views_join(v, me);
		break;
	case FINISHED: /* others may still need it */
	case LOST:
		look_and_change(v, me);
		break;
	case EXPELLED:
		break;
	}
}
