/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that die, leave, are cut off and are stopped while they make rounds, others that take their
 * places, and experts that move meanwhile, in virtual time. The agreement is the library's
 * (group/agreement.c), and so are the epochs of rounds, the numbers of gatherings (gatherings.h),
 * placements and plans (src/balance); what lies below them is simulated here. Each store is judged
 * when it arrives, and each view when it is acted on:
 *
 *   - ranks that live never act on different views of one number;
 *   - no store reaches a rank that acts on a view without its sender, or on a later one;
 *   - what a rank reads was stored in its own view, for its own round, by all members;
 *   - each rank completes each of its rounds once, and members are at most one round apart;
 *   - tokens go to members alone, by the library's placement, and to nobody where an expert has
 *     none;
 *   - a newcomer is let in where all that let it in are ready for it, takes part from its first
 *     gathering on, and is let in in the end;
 *   - ranks that live get the same from each gathering;
 *   - all rows of a round are routed by one version of the placement;
 *   - weights that a round reads are whole, and are not overwritten while a round may read them;
 *   - in the end each rank that lives has made all rounds, or misses experts that no member has, or
 *     was left out, or lacks a quorum, and none of the last two where ranks only die; a change
 *     takes no longer than it may.
 */
#ifndef TERN_SOAK_VIEWS_H
#define TERN_SOAK_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

/* Besides enum agreement_break. */
enum views_break {
	VIEWS_BREAK_COME_AGAIN = 1 << 15, /* who was left out before it knew that it was in may come
					     in again as the same */
	VIEWS_BREAK_OLD_EPOCHS = 1 << 16, /* epochs do not tell views apart */
	VIEWS_BREAK_NO_SERVICE = 1 << 17, /* who is ahead does not serve the others */
	VIEWS_BREAK_KEEP_LINKS = 1 << 18, /* says that it has fenced, and has not */
	VIEWS_BREAK_GO_ON = 1 << 19,      /* says that it has stopped, and has not */
	VIEWS_BREAK_LATE_STORES = 1 << 20, /* likewise, while its stores are under way */
	VIEWS_BREAK_OLD_PLACES = 1 << 21,  /* goes on to send to who is left out */
	VIEWS_BREAK_HIDE_LOSS = 1 << 22,   /* goes on without experts that nobody has */
	VIEWS_BREAK_COUNT_TWICE = 1 << 23, /* takes a round made for others for one of its own */
	VIEWS_BREAK_DAWDLE = 1 << 24,      /* changes its view long after it could */
	VIEWS_BREAK_SERVE_EARLY = 1 << 25, /* who has joined is sent to before its first gathering
					    */
	VIEWS_BREAK_KEEP_PARTS = 1 << 26,  /* what the dead gave to a gathering is not told on */
	VIEWS_BREAK_NAME_EARLY = 1 << 27,  /* a place is named while its weights are on their way */
	VIEWS_BREAK_OVERWRITE = 1 << 28,   /* weights go where rounds still read others */
	VIEWS_BREAK_NO_SUMS = 1 << 29,     /* pages are taken as they come */
	VIEWS_BREAK_STALE = 1 << 30        /* a rank misses a placement */
};

struct views_wishes {
	uint32_t nr_ranks;   /* 0: drawn, 2 to most_ranks */
	uint32_t most_ranks; /* 0: 16 */
	uint32_t nr_rounds;  /* of each rank; 0: drawn */
	uint32_t broken;     /* what is made wrong */
};

struct views_outcome {
	bool good;
	char text[512]; /* what went wrong */
	char shape[256];
	uint64_t rounds;                /* that ranks have completed */
	uint64_t changes;               /* views that ranks have acted on */
	uint64_t served;                /* rounds that ranks made for others */
	uint64_t joined, moved, placed; /* processes; experts; placements, by ranks */
	uint64_t events, digest;
	uint64_t slowest_us; /* change, where ranks only die */
	uint32_t nr_died, nr_expelled, nr_stuck, nr_lost;
};

/* 0; -1: no memory for it. */
int views_run(uint64_t seed, const struct views_wishes *wishes, struct views_outcome *outcome);

#endif
