/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks do in scenes: rounds up to a place, their fate there, and what the others have to be
 * told. */
#ifndef TERN_TESTS_FAULTS_ACTS_H
#define TERN_TESTS_FAULTS_ACTS_H

#include "tests/faults/processes.h"

#define NOTICED_WITHIN_NS                                                                          \
	10000000000ull /* of waits of 30 s, or a third of longer ones; some 50 ms are usual */

#define MAX_SCENES 8 /* at the same time: both modes, four phases */

#define BOTH_MODES(mode)                                                                           \
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)

/* This process's part of the scene: its own copy of the job, as its memory is made here; its node,
 * its group, and, if round is not NULL, its exchange. */
int enter(struct rank *rank, struct round *round);

/* One of the four: 0, what the library returned, or -1 for a wrong result, which is noted as the
 * rank's failure. */
int do_half(struct round *round, int half);

/* From there on without end; returns the error that ended it. */
int rounds_from(struct round *round, uint64_t number, int half);
int rounds_and_halves(struct round *round, uint64_t nr_rounds, int nr_halves);

/* Three rounds, the scene's halves of the fourth, and SIGKILL. */
void die_in_round(struct round *round, struct scene *scene);

/* The same up to the place, and then on: it does not know that it is the one whom the others have
 * lost. Returns the error that ended it. */
int meet_fate(struct round *round, struct scene *scene);

/* This rank's next store of a word for that peer is its last. It comes when nr_ahead others are
 * ready: who has been told before goes on before anybody hears of the death. */
void fall_before_telling(struct rank *rank, const tern_moe *moe, int peer, int nr_ahead);

/* All ranks are past the undisturbed rounds; the victim has met its fate. */
void await_progress(const struct scene *scene);
void await_fate(const struct scene *scene);

/* The victim is killed so long after that, and the other victim, where there is one, so long after
 * it. Of one victim all others are told once. Closes the scene; returns its nr_rounds. */
int kill_victims(struct scene *scene, rank_main body, uint64_t delay_ns, uint64_t between_ns);

/* What a rank does when members change, once: it may return TERN_ERR_MEMBERS again. */
typedef int survive_once(void *worker);
int survive_all(survive_once *survive, void *worker);

/* As tern_group_allgather, through all changes. */
int gather_through_changes(struct rank *rank, const void *mine, void *all, size_t bytes,
	survive_once *survive, void *worker);

/* Who has made all rounds stays until the others have: they may need its experts. */
int stay_until_all_are_done(struct rank *rank, survive_once *survive, void *worker);

/* Scenes at the same time: when every victim stands at its place, `strike` does it to all of them.
 * Closes them; returns what is wrong, or NULL. */
const char *play_together(struct scene *const *scenes, int nr, rank_main body, int (*strike)(void));

/* rc and the report say that the scene's victim died, and the time was short. */
int expect_death(struct rank *rank, struct round *round, struct scene *scene, int rc);

/* Those who are left join again, fewer, and go on with verified rounds. */
void carry_on(struct rank *rank, struct scene *scene);

#endif
