/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/soak_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tern.h"

static int open_show(const struct scenario *scenario, struct show *show)
{
	*show = (struct show){.scenario = scenario,
		.oracle = oracle_create(&scenario->job),
		.fates = calloc(scenario->job.nr_ranks, sizeof(*show->fates))};
	if (!show->oracle || !show->fates)
		return -1;
	return fleet_create(&scenario->fleet, rank_script, show, &show->fleet);
}

static void close_show(struct show *show)
{
	fleet_destroy(show->fleet);
	oracle_destroy(show->oracle);
	free(show->fates);
}

int soak_run(const struct scenario *scenario, struct soak_outcome *o)
{
	struct show show;

	memset(o, 0, sizeof(*o));
	if (open_show(scenario, &show)) {
		snprintf(o->text, sizeof(o->text), "no memory for %u ranks: %s",
			scenario->job.nr_ranks, tern_last_error());
		close_show(&show);
		return -1;
	}
	o->good = fleet_run(show.fleet);
	if (!o->good)
		snprintf(o->text, sizeof(o->text), "%s\n", fleet_failure(show.fleet));
	o->virtual_ns = fleet_now(show.fleet);
	o->digest = fleet_digest(show.fleet);
	sim_stats(fleet_network(show.fleet), &o->stats);
	judge(&show, &o->stats, o);
	close_show(&show);
	return 0;
}
