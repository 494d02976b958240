/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for ofi.c where rdma/fabric.h was not found at build time. Nothing but raw_open is
 * ever called. */
#include "bench/raw/raw.h"
#include "base/error.h"

int raw_open(struct raw **raw, tern_group *group, uint32_t nr_sets)
{
	(void)raw;
	(void)group;
	(void)nr_sets;
	return fail(TERN_ERR_UNSUPPORTED, "libfabric 1.17 or newer was not found when Tern was "
					  "built: install libfabric-dev and build again");
}

void raw_close(struct raw *raw)
{
	(void)raw;
}

int raw_mark(struct raw *raw)
{
	return raw_open(&raw, NULL, 0);
}

int raw_learn(struct raw *raw, uint32_t set, enum raw_half half)
{
	(void)half;
	return raw_open(&raw, NULL, set);
}

int raw_prepare(struct raw *raw)
{
	return raw_open(&raw, NULL, 0);
}

int raw_begin(struct raw *raw, uint32_t set)
{
	return raw_open(&raw, NULL, set);
}

int raw_barrier(struct raw *raw)
{
	return raw_open(&raw, NULL, 0);
}

int raw_run(struct raw *raw, enum raw_half half)
{
	return raw_open(&raw, NULL, half);
}

int raw_check(struct raw *raw, uint64_t *nr_wrong)
{
	(void)nr_wrong;
	return raw_open(&raw, NULL, 0);
}

double raw_bytes(const struct raw *raw)
{
	(void)raw;
	return 0;
}
