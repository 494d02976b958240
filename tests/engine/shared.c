/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/shared.h"

#include <stdlib.h>

int share_memory(struct rank *rank, tern_engine *engine, void *memory, uint64_t bytes,
	tern_region **region, tern_remote **remotes)
{
	struct tern_descriptor mine, *all = calloc((size_t)rank->nr_ranks, sizeof(*all));
	int rc = tern_engine_register(engine, memory, bytes, region);

	if (!rc)
		rc = tern_region_descriptor(*region, &mine);
	if (!rc)
		rc = tern_group_allgather(rank->group, &mine, all, sizeof(mine));
	for (int r = 0; r < rank->nr_ranks && !rc; r++)
		rc = tern_engine_import(engine, &all[r], &remotes[r]);
	free(all);
	return rc;
}
