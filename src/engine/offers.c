/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/offers.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define ALL_OFFERS 384 /* in words */

static const struct offer *find_offer(const struct offers *offers, const char *name)
{
	for (uint32_t i = 0; i < offers->nr; i++)
		if (!strcmp(offers->each[i].name, name))
			return &offers->each[i];
	return NULL;
}

static bool connects(const struct offer *one, const struct offer *other)
{
	return other && !one->cause[0] && !other->cause[0] && !strcmp(one->reaches, other->reaches);
}

const struct offer *offers_choose(const struct offers *lower, const struct offers *higher)
{
	for (uint32_t i = 0; i < lower->nr; i++)
		if (connects(&lower->each[i], find_offer(higher, lower->each[i].name)))
			return &lower->each[i];
	return NULL;
}

int offers_check(struct offers *all, uint32_t nr_ranks)
{
	for (uint32_t r = 0; r < nr_ranks; r++) {
		if (all[r].nr > TERN_MAX_NICS)
			return fail(TERN_ERR_PROTOCOL,
				"rank %u offers %u networks; %d are possible", r, all[r].nr,
				TERN_MAX_NICS);
		for (uint32_t i = 0; i < all[r].nr; i++) {
			struct offer *o = &all[r].each[i];

			o->name[sizeof(o->name) - 1] = o->reaches[sizeof(o->reaches) - 1] =
				o->cause[sizeof(o->cause) - 1] = 0;
			if (!o->nr_nics || o->nr_nics > TERN_MAX_NICS)
				return fail(TERN_ERR_PROTOCOL,
					"rank %u offers %u NICs; %d are possible", r, o->nr_nics,
					TERN_MAX_NICS);
		}
	}
	return 0;
}

/* ---- all pairs ------------------------------------------------------------------------------- */

/* "verbs, which cannot be used: there is no RDMA device; ofi:tcp;ofi_rxm" */
static void list_offers(const struct offers *offers, char *text, size_t bytes)
{
	size_t at = (size_t)snprintf(text, bytes, offers->nr ? "" : "nothing");

	for (uint32_t i = 0; i < offers->nr && at < bytes; i++) {
		const struct offer *o = &offers->each[i];

		at += (size_t)snprintf(text + at, bytes - at, "%s%s%s%s", i ? ", " : "", o->name,
			o->cause[0]     ? " (cannot be used: "
			: o->reaches[0] ? " (reaches "
					: "",
			o->cause[0] ? o->cause : o->reaches);
		if (at < bytes && (o->cause[0] || o->reaches[0]))
			at += (size_t)snprintf(text + at, bytes - at, ")");
	}
}

static int not_connected(const struct offers *all, uint32_t a, uint32_t b)
{
	char first[ALL_OFFERS], second[ALL_OFFERS];

	list_offers(&all[a], first, sizeof(first));
	list_offers(&all[b], second, sizeof(second));
	if (a == b)
		return fail(TERN_ERR_UNSUPPORTED,
			"nothing connects rank %u with itself: it offers %s", a, first);
	return fail(TERN_ERR_UNSUPPORTED,
		"nothing connects ranks %u and %u: rank %u offers %s; rank %u offers %s", a, b, a,
		first, b, second);
}

static int find_planned(const struct network_plan *plan, const char *name)
{
	for (uint32_t i = 0; i < plan->nr; i++)
		if (!strcmp(plan->each[i].offer->name, name))
			return (int)i;
	return -1;
}

static int check_nr_nics(
	const struct network_plan *plan, int which, const struct offers *all, uint32_t rank)
{
	const struct offer *first = plan->each[which].offer;
	uint32_t nr = find_offer(&all[rank], first->name)->nr_nics;

	if (nr == first->nr_nics)
		return 0;
	return fail(TERN_ERR_MISMATCH,
		"ranks disagree on nr_nics: %u on rank %u; %u on rank %u (%s)", first->nr_nics,
		plan->each[which].by, nr, rank, first->name);
}

/* Notes that a pair uses this network. Its number, or an error. */
static int plan_pair(const struct offers *all, uint32_t a, uint32_t b, struct network_plan *plan)
{
	const struct offer *offer = offers_choose(&all[a], &all[b]);
	int which, rc;

	if (!offer)
		return not_connected(all, a, b);
	which = find_planned(plan, offer->name);
	if (which < 0 && plan->nr == TERN_MAX_NICS)
		return fail(TERN_ERR_MISMATCH,
			"the ranks need more than %d networks between them: %s too, from rank %u "
			"to rank %u",
			TERN_MAX_NICS, offer->name, a, b);
	if (which < 0) {
		which = (int)plan->nr++;
		plan->each[which].offer = offer;
		plan->each[which].by = a;
		plan->each[which].here = false;
	}
	rc = check_nr_nics(plan, which, all, a);
	rc = rc ? rc : check_nr_nics(plan, which, all, b);
	return rc ? rc : which;
}

/* A rank reaches itself by a network that it uses anyway, the one that it likes best. */
static int plan_self(
	const struct offers *all, uint32_t nr_ranks, uint32_t self, struct network_plan *plan)
{
	if (nr_ranks == 1)
		return plan_pair(all, self, self, plan);
	for (uint32_t i = 0; i < all[self].nr; i++) {
		int which = find_planned(plan, all[self].each[i].name);

		if (which >= 0 && plan->each[which].here)
			return which;
	}
	return not_connected(all, self, self);
}

static int check_total(const struct network_plan *plan)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < plan->nr; i++)
		nr += plan->each[i].offer->nr_nics;
	return nr <= TERN_MAX_NICS
		       ? 0
		       : fail(TERN_ERR_MISMATCH,
				 "the ranks' networks have %u NICs together; %d are possible", nr,
				 TERN_MAX_NICS);
}

int offers_plan(
	const struct offers *all, uint32_t nr_ranks, uint32_t self, struct network_plan *plan)
{
	int which;

	plan->nr = 0;
	for (uint32_t a = 0; a < nr_ranks; a++)
		for (uint32_t b = a + 1; b < nr_ranks; b++) {
			which = plan_pair(all, a, b, plan);
			if (which < 0)
				return which;
			if (a != self && b != self)
				continue;
			plan->network_of[a == self ? b : a] = (uint8_t)which;
			plan->each[which].here = true;
		}
	which = plan_self(all, nr_ranks, self, plan);
	if (which < 0)
		return which;
	plan->network_of[self] = (uint8_t)which;
	plan->each[which].here = true;
	return check_total(plan);
}

/* ---- in words -------------------------------------------------------------------------------- */

/* Of a network that one of the two would rather have had. */
static void why_not(
	const struct offer *mine, const struct offer *theirs, const char *name, char *text)
{
	bool here = mine && mine->cause[0];

	if (!mine || !theirs)
		snprintf(text, OFFER_WHY, "as %s is not offered %s", name, mine ? "there" : "here");
	else if (here || theirs->cause[0])
		snprintf(text, OFFER_WHY, "as %s cannot be used %s: %s", name,
			here ? "here" : "there", here ? mine->cause : theirs->cause);
	else if (strcmp(mine->reaches, theirs->reaches))
		snprintf(text, OFFER_WHY, "as %s reaches %s here and %s there", name, mine->reaches,
			theirs->reaches);
	else
		snprintf(text, OFFER_WHY, "which the lower rank prefers");
}

void offers_why(const struct offers *all, uint32_t self, uint32_t peer, char *text)
{
	const struct offers *lower = &all[self < peer ? self : peer],
			    *higher = &all[self < peer ? peer : self];
	const struct offer *chosen = offers_choose(lower, higher), *wish = &lower->each[0];

	if (chosen && !strcmp(wish->name, chosen->name))
		wish = &higher->each[0];
	if (!chosen || !strcmp(wish->name, chosen->name))
		snprintf(text, OFFER_WHY, "which both offer");
	else
		why_not(find_offer(&all[self], wish->name), find_offer(&all[peer], wish->name),
			wish->name, text);
}
