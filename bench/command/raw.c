/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/raw.h"

static int learn_set(struct raw_rounds *r, uint32_t set)
{
	int rc = raw_mark(r->raw);

	rc = rc ? rc : rounds_dispatch(r->rounds, set);
	rc = rc ? rc : raw_learn(r->raw, set, RAW_DISPATCH);
	rc = rc ? rc : rounds_combine(r->rounds, set);
	return rc ? rc : raw_learn(r->raw, set, RAW_COMBINE);
}

int raw_rounds_open(struct raw_rounds *r, struct rounds *rounds)
{
	int rc = raw_open(&r->raw, rounds->group, rounds->nr_sets);

	r->rounds = rounds;
	for (uint32_t set = 0; set < rounds->nr_sets && !rc; set++)
		rc = learn_set(r, set);
	return rc ? rc : raw_prepare(r->raw);
}

void raw_rounds_close(struct raw_rounds *r)
{
	raw_close(r->raw);
	r->raw = NULL;
}

static int begin(void *ctx, uint32_t i)
{
	struct raw_rounds *r = ctx;

	return raw_begin(r->raw, i % r->rounds->nr_sets);
}

static int barrier(void *ctx)
{
	return raw_barrier(((struct raw_rounds *)ctx)->raw);
}

static int dispatch(void *ctx, uint32_t i)
{
	(void)i;
	return raw_run(((struct raw_rounds *)ctx)->raw, RAW_DISPATCH);
}

static int combine(void *ctx, uint32_t i)
{
	(void)i;
	return raw_run(((struct raw_rounds *)ctx)->raw, RAW_COMBINE);
}

const struct timed_method raw_method = {begin, barrier, dispatch, combine};
