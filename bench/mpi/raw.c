/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mpi/bench.h"
#include "group/group.h"

void raw_dispatch(struct bench *b)
{
	check(raw_run(b->raw, RAW_DISPATCH), "raw dispatch");
}

void raw_combine(struct bench *b)
{
	check(raw_run(b->raw, RAW_COMBINE), "raw combine");
}

void open_raw(struct bench *b)
{
	if (!b->group->engine || raw_open(&b->raw, b->group, 1))
		return;
	check(raw_mark(b->raw), "raw libfabric");
	tern_method_dispatch(b);
	check(raw_learn(b->raw, 0, RAW_DISPATCH), "raw libfabric");
	tern_method_combine(b);
	check(raw_learn(b->raw, 0, RAW_COMBINE), "raw libfabric");
	check(raw_prepare(b->raw), "raw libfabric");
	check(raw_begin(b->raw, 0), "raw libfabric");
}

uint64_t close_raw(struct bench *b)
{
	uint64_t wrong = 0, all = 0;

	if (b->raw)
		check(raw_check(b->raw, &wrong), "raw libfabric");
	MPI_Allreduce(&wrong, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	raw_close(b->raw);
	b->raw = NULL;
	return all;
}
