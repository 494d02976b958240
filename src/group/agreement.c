/* SPDX-License-Identifier: Apache-2.0 */
#include "group/agreement.h"

#include <string.h>

void agreement_init(
	struct agreement *a, uint32_t rank, uint32_t nr_ranks, struct agreement_record *heard)
{
	*a = (struct agreement){.rank = rank, .nr_ranks = nr_ranks, .heard = heard};
	a->mine.version = 1;
	for (uint32_t r = 0; r < nr_ranks; r++)
		set_add(&a->mine.view.alive, r);
}

void agreement_come(struct agreement *a, const struct view *view, uint64_t nonce)
{
	a->mine.view = *view;
	a->mine.nonce = nonce;
}

static bool is_broken(const struct agreement *a, enum agreement_break how)
{
	return a->broken & how;
}

static void changed(struct agreement *a)
{
	a->mine.version++;
}

static bool is_member(const struct agreement *a, uint32_t rank)
{
	return set_has(&a->mine.view.alive, rank);
}

/* The record of a rank as far as it is known here. */
static const struct agreement_record *record_of(const struct agreement *a, uint32_t rank)
{
	return rank == a->rank ? &a->mine : &a->heard[rank];
}

/* It speaks of the same view: what it promised and stored is about the one to come. */
static bool is_level(const struct agreement *a, uint32_t rank)
{
	const struct agreement_record *r = record_of(a, rank);

	return r->version && r->view.number == a->mine.view.number;
}

/* ---- what this rank knows -------------------------------------------------------------------- */

void agreement_stop(struct agreement *a)
{
	if (a->mine.stopped)
		return;
	a->mine.stopped = 1;
	changed(a);
}

void agreement_prepare(struct agreement *a, int newcomer, uint64_t nonce, uint64_t gathering)
{
	if (a->mine.stopped)
		return;
	a->mine.newcomer = (uint64_t)newcomer + 1;
	a->mine.nonce = nonce;
	a->mine.gathering = gathering;
}

void agreement_leave_out(struct agreement *a, uint32_t rank, bool ended)
{
	bool is_new = !set_has(&a->mine.gone, rank) || (ended && !set_has(&a->mine.dead, rank));

	if (!is_member(a, rank) || !is_new)
		return;
	set_add(&a->mine.gone, rank);
	if (ended)
		set_add(&a->mine.dead, rank);
	changed(a);
}

void agreement_expel(struct agreement *a, uint32_t rank)
{
	if (!is_member(a, rank) || set_has(&a->mine.expelled, rank))
		return;
	set_add(&a->mine.expelled, rank);
	set_add(&a->mine.gone, rank);
	changed(a);
}

void agreement_fence(struct agreement *a, uint32_t rank)
{
	set_add(&a->fenced, rank);
}

void agreement_hear(struct agreement *a, uint32_t rank, const struct agreement_record *record)
{
	if (rank != a->rank && record->version > a->heard[rank].version)
		a->heard[rank] = *record;
}

/* Deaths are facts, whoever tells of them; so is that a rank which leaves has stopped for good; and
 * who was asked to be left out is. Whom a member wants out is wanted out, unless that member is: of
 * two that complain about each other, who is heard first stays. Who complains about this rank will
 * not go on with it. */
static void learn_from(struct agreement *a, uint32_t rank)
{
	const struct agreement_record *theirs = record_of(a, rank);
	struct rank_set wanted = set_both(theirs->gone, &a->mine.view.alive);

	if (set_has(&wanted, a->rank) && !set_has(&theirs->expelled, a->rank))
		agreement_leave_out(a, rank, false);
	for (uint32_t g = 0; g < a->nr_ranks; g++)
		if (set_has(&wanted, g) && set_has(&theirs->expelled, g))
			agreement_expel(a, g);
	for (uint32_t g = 0; g < a->nr_ranks; g++) {
		bool ended = set_has(&theirs->dead, g) || (g == rank && theirs->stopped);

		if (g != a->rank && set_has(&wanted, g) && (ended || !set_has(&a->mine.gone, rank)))
			agreement_leave_out(a, g, ended);
	}
}

static void learn_who_is_gone(struct agreement *a)
{
	for (uint32_t r = 0; r < a->nr_ranks; r++)
		if (r != a->rank && is_member(a, r) && is_level(a, r) &&
			!set_is_empty(&record_of(a, r)->gone))
			learn_from(a, r);
}

bool agreement_wanted(const struct agreement *a)
{
	if (!set_is_empty(&a->mine.gone) || a->mine.stopped)
		return true;
	for (uint32_t r = 0; r < a->nr_ranks; r++) {
		const struct agreement_record *theirs = record_of(a, r);

		if (r != a->rank && is_member(a, r) && theirs->version &&
			(theirs->view.number > a->mine.view.number ||
				(is_level(a, r) &&
					(theirs->stopped || !set_is_empty(&theirs->gone)))))
			return true;
	}
	return false;
}

/* ---- ballots --------------------------------------------------------------------------------- */

static uint32_t leader_of(const struct agreement *a, uint64_t ballot)
{
	return (uint32_t)(ballot % a->nr_ranks);
}

/* The first ballot from this one on whose leader is to stay. Ballots begin at R: 0 is none. */
static uint64_t ballot_from(const struct agreement *a, uint64_t ballot)
{
	struct rank_set stay = set_without(a->mine.view.alive, &a->mine.gone);

	if (ballot < a->nr_ranks)
		ballot = a->nr_ranks;
	while (!set_has(&stay, leader_of(a, ballot)) && !set_is_empty(&stay))
		ballot++;
	return ballot;
}

/* The highest that somebody has promised: a rank that cannot hear a leader carries the others to
 * the next one. */
static void promise(struct agreement *a)
{
	uint64_t ballot = a->mine.promised;

	for (uint32_t r = 0; r < a->nr_ranks; r++)
		if (is_member(a, r) && is_level(a, r) && !set_has(&a->mine.gone, r) &&
			record_of(a, r)->promised > ballot)
			ballot = record_of(a, r)->promised;
	ballot = ballot_from(a, ballot);
	if (ballot == a->mine.promised || set_has(&a->mine.gone, a->rank))
		return;
	a->mine.promised = ballot;
	changed(a);
}

/* ---- the leader's part ----------------------------------------------------------------------- */

/* Enough to decide for all: they share a member with whoever else decides. Who is known to have
 * ended decides nothing any more, so all others are enough, too. */
static bool is_quorum(const struct agreement *a, const struct rank_set *ranks)
{
	struct rank_set rest = set_without(a->mine.view.alive, &a->mine.dead);

	rest = set_without(rest, ranks);
	return set_is_empty(&rest) || 2 * set_count(ranks) > set_count(&a->mine.view.alive) ||
	       is_broken(a, AGREEMENT_BREAK_NO_QUORUM);
}

bool agreement_lacks_quorum(const struct agreement *a)
{
	struct rank_set stay = set_without(a->mine.view.alive, &a->mine.gone);

	return !is_quorum(a, &stay);
}

static bool has_promised(const struct agreement *a, uint32_t rank)
{
	const struct agreement_record *r = record_of(a, rank);

	return is_level(a, rank) && r->promised == a->mine.promised && r->stopped;
}

static bool all_have_promised(const struct agreement *a, const struct rank_set *stay)
{
	for (uint32_t r = 0; r < a->nr_ranks; r++)
		if (set_has(stay, r) && !has_promised(a, r))
			return false;
	return true;
}

/* Fences whom `view` leaves out; false: not all are yet. */
static bool is_fenced(struct agreement *a, const struct view *view)
{
	struct rank_set out = set_without(a->mine.view.alive, &view->alive);

	if (!is_broken(a, AGREEMENT_BREAK_NO_FENCE))
		a->to_fence = set_without(out, &a->fenced);
	return set_is_empty(&a->to_fence);
}

static void store_commit(struct agreement *a, const struct view *view, uint64_t ballot)
{
	if (!is_fenced(a, view))
		return;
	a->mine.commit = *view;
	a->mine.ballot = ballot;
	changed(a);
}

static bool are_ready(const struct agreement *a, const struct rank_set *stay)
{
	for (uint32_t r = 0; r < a->nr_ranks && !is_broken(a, AGREEMENT_BREAK_UNREADY); r++) {
		const struct agreement_record *theirs = record_of(a, r);

		if (set_has(stay, r) &&
			(theirs->newcomer != a->mine.newcomer || theirs->nonce != a->mine.nonce))
			return false;
	}
	return a->mine.newcomer && !is_member(a, (uint32_t)a->mine.newcomer - 1);
}

static void let_in(const struct agreement *a, const struct rank_set *stay, struct view *view)
{
	view->newcomer = a->mine.newcomer;
	view->nonce = a->mine.nonce;
	set_add(&view->alive, (uint32_t)a->mine.newcomer - 1);
	for (uint32_t r = 0; r < a->nr_ranks; r++)
		if (set_has(stay, r) && record_of(a, r)->gathering >= view->gathering)
			view->gathering = record_of(a, r)->gathering;
	view->gathering += GATHERINGS_SKIPPED;
}

/* What was stored in the highest ballot may have been acted on; else those that stay are the next
 * view, with a newcomer for whom all of them are ready. */
static struct view choose(const struct agreement *a, const struct rank_set *stay)
{
	struct view view = {.number = a->mine.view.number + 1, .alive = *stay};
	uint64_t highest = 0;

	if (are_ready(a, stay))
		let_in(a, stay, &view);

	for (uint32_t r = 0; r < a->nr_ranks && !is_broken(a, AGREEMENT_BREAK_FORGET); r++) {
		const struct agreement_record *theirs = record_of(a, r);

		if (!set_has(stay, r) || theirs->ballot <= highest)
			continue;
		highest = theirs->ballot;
		view = theirs->commit;
	}
	return view;
}

static void lead(struct agreement *a)
{
	struct rank_set stay = set_without(a->mine.view.alive, &a->mine.gone);
	struct view view;

	if (a->mine.ballot == a->mine.promised || !all_have_promised(a, &stay) ||
		!is_quorum(a, &stay))
		return;
	view = choose(a, &stay);
	store_commit(a, &view, a->mine.promised);
}

/* ---- everybody's part ------------------------------------------------------------------------ */

static void follow(struct agreement *a)
{
	uint32_t leader = leader_of(a, a->mine.promised);

	for (uint32_t r = 0; r < a->nr_ranks; r++) {
		const struct agreement_record *theirs = record_of(a, r);
		bool due = r == leader && theirs->ballot == a->mine.promised;

		if (is_broken(a, AGREEMENT_BREAK_NO_PROMISE) && !a->mine.ballot)
			due = theirs->ballot && leader_of(a, theirs->ballot) == r;
		if (r != a->rank && is_member(a, r) && is_level(a, r) && due &&
			a->mine.ballot != theirs->ballot)
			store_commit(a, &theirs->commit, theirs->ballot);
	}
}

static bool is_decided(const struct agreement *a)
{
	struct rank_set stored = {{0}};

	for (uint32_t r = 0; r < a->nr_ranks; r++)
		if (is_member(a, r) && is_level(a, r) && record_of(a, r)->ballot == a->mine.ballot)
			set_add(&stored, r);
	return a->mine.ballot && (is_quorum(a, &stored) || is_broken(a, AGREEMENT_BREAK_ACT_ALONE));
}

/* Somebody acts on the next view already: it was decided. Only the next one can have this rank,
 * which has promised nothing in a later one. */
static int catch_up(struct agreement *a)
{
	for (uint32_t r = 0; r < a->nr_ranks; r++) {
		const struct view *theirs = &record_of(a, r)->view;

		if (theirs->number <= a->mine.view.number)
			continue;
		if (!set_has(&theirs->alive, a->rank))
			return AGREEMENT_EXPELLED;
		if (theirs->number != a->mine.view.number + 1 || !a->mine.stopped ||
			!is_fenced(a, theirs))
			continue;
		a->next = *theirs;
		return AGREEMENT_DECIDED;
	}
	return 0;
}

int agreement_look(struct agreement *a, const struct view *theirs)
{
	if (theirs->number <= a->mine.view.number)
		return 0;
	if (!set_has(&theirs->alive, a->rank)) {
		a->mine.view = *theirs;
		return 0;
	}
	if (theirs->newcomer != a->rank + 1 || theirs->nonce != a->mine.nonce)
		return AGREEMENT_EXPELLED; /* another has come in its place */
	a->next = *theirs;
	return AGREEMENT_DECIDED;
}

/* A newcomer: it promises nothing and is asked nothing before it is a member. */
static int look_for_entry(struct agreement *a)
{
	int news = 0;

	for (uint32_t r = 0; r < a->nr_ranks && !news; r++)
		if (r != a->rank && a->heard[r].version)
			news = agreement_look(a, &a->heard[r].view);
	return news;
}

int agreement_step(struct agreement *a)
{
	uint64_t version = a->mine.version;
	int news;

	if (!is_member(a, a->rank))
		return look_for_entry(a);
	a->to_fence = (struct rank_set){{0}};
	news = catch_up(a);
	if (news)
		return news;
	learn_who_is_gone(a);
	if (a->mine.stopped) {
		promise(a);
		if (leader_of(a, a->mine.promised) == a->rank)
			lead(a);
		else
			follow(a);
	}
	if (a->mine.stopped && is_decided(a)) {
		a->next = a->mine.commit;
		if (!set_has(&a->next.alive, a->rank))
			return AGREEMENT_EXPELLED;
		news |= AGREEMENT_DECIDED;
	}
	return news | (a->mine.version != version ? AGREEMENT_CHANGED : 0);
}

void agreement_act(struct agreement *a)
{
	struct agreement_record *mine = &a->mine;
	uint32_t newcomer = (uint32_t)a->next.newcomer - 1;

	if (a->next.newcomer && newcomer != a->rank) {
		if (!is_broken(a, AGREEMENT_BREAK_OLD_RECORD))
			memset(&a->heard[newcomer], 0, sizeof(a->heard[newcomer]));
		set_remove(&a->fenced, newcomer);
	}
	mine->view = a->next;
	/* Whom it has fenced for a commit that was not chosen it cannot hear any more. */
	mine->gone = set_either(mine->gone, &a->fenced);
	mine->gone = set_both(mine->gone, &mine->view.alive);
	mine->dead = set_both(mine->dead, &mine->view.alive);
	mine->expelled = set_both(mine->expelled, &mine->view.alive);
	mine->stopped = mine->promised = mine->ballot = 0;
	mine->newcomer = mine->nonce = 0;
	memset(&mine->commit, 0, sizeof(mine->commit));
	changed(a);
}
