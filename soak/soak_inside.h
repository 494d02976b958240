/* SPDX-License-Identifier: Apache-2.0 */
/*   soak.c   one scenario from its beginning to its end
 *   rank_script.c   what a rank does: halves over all slots, each result compared
 *   judge.c  what must have become of the ranks */
#ifndef TERN_SOAK_SOAK_INSIDE_H
#define TERN_SOAK_SOAK_INSIDE_H

#include "soak/oracle.h"
#include "soak/soak.h"

/* What became of a rank. */
struct fate {
	int rc;           /* 0, or the error that ended it, */
	const char *call; /* of this call, */
	char text[1024];  /* with this cause, */
	uint64_t at_ns;   /* at this time */
	bool creating;    /* before its first half */
	char wrong[512];  /* the first promise that was broken; "": none */
	uint64_t rounds, halves;
};

struct show {
	const struct scenario *scenario;
	struct fleet *fleet;
	struct oracle *oracle;
	struct fate *fates; /* [nr_ranks] */
	bool struck;        /* the trigger was pulled */
};

void rank_script(struct fleet *fleet, uint32_t rank, void *show); /* a fleet_body */
void judge(const struct show *show, const struct sim_stats *stats, struct soak_outcome *outcome);

#endif
