/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that die, are cut off and are stopped while they make rounds, in virtual time: the
 * agreement is the library's (group/agreement.c), and so are the epochs of rounds; what lies below
 * them is simulated here. Each store is judged when it arrives, and each view when it is acted on:
 *
 *   - ranks that live never act on different views of one number;
 *   - no store reaches a rank that acts on a view without its sender, or on a later one;
 *   - what a rank reads was stored in its own view, for its own round, by all members;
 *   - each rank completes each of its rounds once, and members are at most one round apart;
 *   - tokens go to members alone, by the library's placement, and to nobody where an expert has
 *     none;
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
	VIEWS_BREAK_OLD_EPOCHS = 1 << 16,  /* epochs do not tell views apart */
	VIEWS_BREAK_NO_SERVICE = 1 << 17,  /* who is ahead does not serve the others */
	VIEWS_BREAK_KEEP_LINKS = 1 << 18,  /* says that it has fenced, and has not */
	VIEWS_BREAK_GO_ON = 1 << 19,       /* says that it has stopped, and has not */
	VIEWS_BREAK_LATE_STORES = 1 << 20, /* likewise, while its stores are under way */
	VIEWS_BREAK_OLD_PLACES = 1 << 21,  /* goes on to send to who is left out */
	VIEWS_BREAK_HIDE_LOSS = 1 << 22,   /* goes on without experts that nobody has */
	VIEWS_BREAK_COUNT_TWICE = 1 << 23, /* takes a round made for others for one of its own */
	VIEWS_BREAK_DAWDLE = 1 << 24       /* changes its view long after it could */
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
	uint64_t rounds;  /* that ranks have completed */
	uint64_t changes; /* views that ranks have acted on */
	uint64_t served;  /* rounds that ranks made for others */
	uint64_t events, digest;
	uint64_t slowest_us; /* change, where ranks only die */
	uint32_t nr_died, nr_expelled, nr_stuck, nr_lost;
};

/* 0; -1: no memory for it. */
int views_run(uint64_t seed, const struct views_wishes *wishes, struct views_outcome *outcome);

#endif
