/* SPDX-License-Identifier: Apache-2.0 */
/* Which network leads to ranks whose memory cannot be mapped. All ranks come to the same answer, as they have to speak the same. */
#include "choose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "transport/list.h"

#define CAUSE_BYTES 128

/* What each rank finds. */
struct finding {
	int32_t usable, on_ethernet;
	char text[CAUSE_BYTES]; /* the port, or why none */
};

static void find(const char *device, struct finding *mine)
{
	struct verbs_facts facts;

	*mine = (struct finding){.usable = !verbs_probe(device, &facts)};
	if (!mine->usable) {
		snprintf(mine->text, sizeof(mine->text), "%.*s", CAUSE_BYTES - 1, tern_last_error());
		return;
	}
	mine->on_ethernet = !strcmp(facts.link, "Ethernet");
	snprintf(mine->text, sizeof(mine->text), "%.63s:%u", facts.device, facts.port);
}

/* The first rank without a port, or on another kind of network than rank 0; -1: none. */
static int first_obstacle(const struct finding *all, int nr_ranks)
{
	for (int r = 0; r < nr_ranks; r++)
		if (!all[r].usable || all[r].on_ethernet != all[0].on_ethernet)
			return r;
	return -1;
}

static int choose_together(tern_group *group, const char *device, struct choice *choice)
{
	struct finding mine, *all = calloc((size_t)group->nr_ranks, sizeof(*all));
	int rc, obstacle;

	if (!all)
		return fail(TERN_ERR_NOMEM, "no memory for what %d ranks have", group->nr_ranks);
	find(device, &mine);
	rc = group_allgather(group, &mine, all, sizeof(mine));
	obstacle = rc ? -1 : first_obstacle(all, group->nr_ranks);
	choice->transport = obstacle < 0 ? "verbs" : "ofi";
	if (obstacle < 0)
		snprintf(choice->why, sizeof(choice->why), "all ranks have an RDMA port that can be used, this one %s", mine.text);
	else if (!all[obstacle].usable)
		snprintf(choice->why, sizeof(choice->why), "rank %d has no RDMA port: %.*s", obstacle, CAUSE_BYTES - 1, all[obstacle].text);
	else
		snprintf(choice->why, sizeof(choice->why), "rank %d's RDMA port is on another kind of network than rank 0's", obstacle);
	free(all);
	return rc;
}

int choose_transport(tern_group *group, const char *setting, const char *device, struct choice *choice)
{
	const char *environment = getenv("TERN_TRANSPORT");

	*choice = (struct choice){.transport = setting ? setting : environment};
	if (!choice->transport)
		return choose_together(group, device, choice);
	snprintf(choice->why, sizeof(choice->why), "%s", setting ? "by setting" : "by TERN_TRANSPORT");
	return 0;
}
