/* SPDX-License-Identifier: Apache-2.0 */
/* What must have become of the ranks.
 *
 * A dead rank is named by everybody else. Where a link is cut nobody has died, and nobody can tell
 * which end is to blame: each end takes the other for dead, and who hears of it first from one end
 * names the other. So every rank, the ends included, names one of the two. */
#include "soak/soak_inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull

static void wrong(struct soak_outcome *o, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void wrong(struct soak_outcome *o, const char *format, ...)
{
	size_t at = strlen(o->text);
	va_list args;

	o->good = false;
	if (at > sizeof(o->text) - 64)
		return;
	va_start(args, format);
	vsnprintf(o->text + at, sizeof(o->text) - at, format, args);
	va_end(args);
}

/* The first "rank N" of a text, or -1. */
static long first_named(const char *text)
{
	const char *at = strstr(text, "rank ");

	return at ? strtol(at + strlen("rank "), NULL, 10) : -1;
}

static bool names(const char *text, uint32_t rank)
{
	for (const char *at = strstr(text, "rank "); at; at = strstr(at + 1, "rank "))
		if (strtol(at + strlen("rank "), NULL, 10) == (long)rank)
			return true;
	return false;
}

static bool is_culprit(const struct scenario *s, long rank)
{
	uint32_t victim = s->trigger.victim;

	if (s->wrong == SOAK_WRONG_BLAME)
		victim = (victim + 1) % s->job.nr_ranks;
	return rank == (long)victim ||
	       (s->trigger.fault == SOAK_CUT && rank == (long)s->trigger.other);
}

/* While groups and exchanges are made, the cause may come from the bootstrap or from another rank,
 * which is then named first. */
static bool blames(const struct scenario *s, const struct fate *fate)
{
	if (fate->creating)
		return names(fate->text, s->trigger.victim) ||
		       (s->trigger.fault == SOAK_CUT && names(fate->text, s->trigger.other));
	return fate->rc == TERN_ERR_PEER_DEAD && is_culprit(s, first_named(fate->text));
}

/* Silence is noticed after the engine's time-out, or the exchange's if that is longer, at the next
 * look (20 ms) and the end of the longest sleep (50 ms). At a cut link the end that still hears the
 * other waits until that one has left, and falls silent in turn. With fewer credits than peers,
 * what goes to one that has left holds up all others until it is missed, two looks later, and so
 * may each of those that leave in turn. */
static uint64_t longest_ns(const struct scenario *s, const struct fate *fate)
{
	int wait_ms = s->job.config.wait_ms;
	uint64_t notice =
		(uint64_t)(wait_ms > s->fleet.engine.timeout_ms ? wait_ms
								: s->fleet.engine.timeout_ms) +
		100;

	if (s->fleet.engine.depth < s->fleet.nr_ranks)
		notice += 40 * (uint64_t)s->fleet.nr_ranks;
	if (fate->creating) /* gatherings, and the engine's first words */
		notice += 2 * (uint64_t)s->fleet.wait_ms + (uint64_t)s->fleet.engine.wait_ms;
	return (s->trigger.fault == SOAK_CUT ? 2 * notice : notice) * MS;
}

static void judge_fault(
	const struct show *show, uint32_t rank, uint64_t fault_ns, struct soak_outcome *o)
{
	const struct fate *fate = &show->fates[rank];
	uint64_t took;

	if (!fate->rc) {
		wrong(o, "rank %u noticed nothing\n", rank);
		return;
	}
	took = fate->at_ns > fault_ns ? fate->at_ns - fault_ns : 0;
	o->slowest_error_ns = took > o->slowest_error_ns ? took : o->slowest_error_ns;
	if (!blames(show->scenario, fate))
		wrong(o, "rank %u blames somebody else: %s returned %d (%s)\n", rank, fate->call,
			fate->rc, fate->text);
	if (took > longest_ns(show->scenario, fate))
		wrong(o, "rank %u had its error only after %.3f ms: %s returned %d (%s)\n", rank,
			(double)took / 1e6, fate->call, fate->rc, fate->text);
}

static void judge_rank(const struct show *show, uint32_t rank, struct soak_outcome *o)
{
	const struct fate *fate = &show->fates[rank];
	uint64_t fault_ns = fleet_fault_ns(show->fleet);

	o->rounds = fate->rounds > o->rounds ? fate->rounds : o->rounds;
	o->halves += fate->halves;
	if (*fate->wrong)
		wrong(o, "rank %u: %s\n", rank, fate->wrong);
	else if (fleet_is_dead(show->fleet, rank))
		return;
	else if (fault_ns != UINT64_MAX)
		judge_fault(show, rank, fault_ns, o);
	else if (fate->rc)
		wrong(o, "rank %u: %s returned %d (%s), and nothing had happened\n", rank,
			fate->call, fate->rc, fate->text);
}

void judge(const struct show *show, const struct sim_stats *stats, struct soak_outcome *o)
{
	for (uint32_t r = 0; r < show->scenario->job.nr_ranks; r++)
		judge_rank(show, r, o);
	o->struck = fleet_fault_ns(show->fleet) != UINT64_MAX;
	if (stats->changed_retries)
		wrong(o, "%llu writes came back after a refusal with other flags\n",
			(unsigned long long)stats->changed_retries);
	if (stats->bad_keys && !o->struck)
		wrong(o, "%llu writes went outside of registered memory\n",
			(unsigned long long)stats->bad_keys);
}
