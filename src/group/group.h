/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_GROUP_GROUP_H
#define TERN_GROUP_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/scheduler.h"
#include "group/fd_passing.h"
#include "tern.h"

/* What a rank knows of another. */
struct peer {
	enum tern_path path;
	bool same_process; /* and on the same node */
	bool beside;       /* a thread of this process, whatever its node */
	int node;
	int lifeline; /* tells when the peer's process has ended; -1: not known, or this process */
	int line;     /* to a member on another node: line.h; -1: none */
	_Atomic uint64_t line_ended; /* likewise: 0, or 1 + engine_polls when it was seen ended */
};

struct tern_group {
	int rank, nr_ranks, nr_nodes;
	int wait_ms;
	int silence_ms;   /* tern_group_config.silence_ms; 0: as the waits have it */
	int own_lifeline; /* what others have of this process */
	int lifeline; /* held open while this process lives, where peers have no pidfd of it; else
			 -1 */
	struct tern_boot boot;
	const struct scheduler *scheduler; /* NULL: the real clock */
	struct fd_passing *passing;        /* where peers on this machine pass descriptors */
	struct fd_passing_guest *guests;   /* [nr_ranks] with whom; group_pass_fd */
	struct peer *peers;                /* [nr_ranks] */
	int nr_exchanges;                  /* alive */
	struct tern_engine *engine;        /* where some peers are not mapped; else NULL */
	bool engine_forced;                /* each rank is a node of its own to an exchange */
	char no_engine[512];               /* why there is none though there should be */
	char description[1024];            /* how peers are reached, and why so */
	char *transport; /* the networks that the caller has asked for; NULL: none in particular */
	int nr_engines;  /* alive */
	_Atomic uint32_t round;  /* of sharing windows; 0 was joining */
	bool elastic;            /* as the setting is, and */
	struct members *members; /* of an elastic group; else NULL */
	uint64_t view;           /* its number; 0: as it was made */
	uint64_t shape;          /* of exchanges: rises with each view, and when a newcomer
				    begins to take part */
	struct tern_rendezvous rendezvous;
	struct introduction *me;         /* with a rendezvous: as others were told */
	struct join_offer *offers;       /* exchanges that newcomers make, too; join.h */
	struct door *door;               /* where newcomers knock; NULL: there is no rendezvous */
	struct newcomer *newcomer;       /* this rank is none of the members yet; else NULL */
	struct death_watch *death_watch; /* NULL: nobody has asked for one */
};

/* tern_group_create for a rank that a scheduler runs; it has to outlive the group. */
int group_create_scheduled(const struct tern_group_config *config,
	const struct scheduler *scheduler, tern_group **group);

/* What tern_group_create and tern_group_join have in common: the config is read, and its bootstrap
 * taken over; a group with nobody in it. */
int group_read_config(const struct tern_group_config *theirs, const struct scheduler *scheduler,
	tern_group **out, struct tern_group_config *config);
int group_new(const struct tern_group_config *config, const struct scheduler *scheduler,
	tern_group **group);
void group_free(tern_group *group);

/* Collective: an engine over the networks that the group's own has, or would have. The caller
 * destroys it. */
int group_make_engine(tern_group *group, struct tern_engine **engine);

/* Local, of a rank that joins: the group's own engine, over networks that the members have. */
struct engine_networks;
int group_make_engine_alone(tern_group *group, const struct engine_networks *networks);

/* By all ranks: each rank of this machine that is another process is given `fd`, and gives one.
 * What came is in group->guests[r].fd, -1: nothing, and the caller's to close; after a failure
 * nothing did. `round` is as in fd_passing_exchange. */
int group_pass_fd(tern_group *group, uint32_t round, int fd);

/* The bootstrap's allgather, with its failure turned into TERN_ERR_BOOTSTRAP. Collective. */
int group_allgather(tern_group *group, const void *mine, void *all, size_t bytes);

/* Collective: every rank tells whether its part went well. If one did not, all ranks return its
 * code, with the ranks and the first one's cause in the text. `rc` and this thread's text are this
 * rank's own. */
int group_agree_status(tern_group *group, int rc, const char *what);

/* A setting that has to be the same on all ranks. */
struct setting {
	const char *name;
	uint64_t value;
};

/* Collective: TERN_ERR_MISMATCH on all ranks, naming the first differing setting, its values and
 * ranks. */
int group_agree_settings(tern_group *group, const struct setting *settings, int nr_settings);

/* True when this rank's process is known to have ended. */
bool group_has_died(const tern_group *group, uint32_t rank);

/* The group has gone on without the process that had this rank at first; another may have come. Any
 * thread. */
bool group_has_lost(const tern_group *group, uint32_t rank);

/* Ends this rank's process, if this one may and knows how. */
void group_kill(const tern_group *group, uint32_t rank);

#endif
