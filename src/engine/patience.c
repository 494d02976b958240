/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/patience.h"

#include <sched.h>

#include "engine/inside.h"

#define FIRST_LOOK_NS 1000ull /* with a scheduler, doubled so many times */
#define LOOK_DOUBLINGS 10
#define MOST_ROUNDS_AT_ONE_TIME 1000000 /* of a stepped engine whose clock nobody moves */

uint64_t engine_now(const tern_engine *engine)
{
	return scheduler_now(engine->setup.scheduler);
}

bool engine_on_proxy(const tern_engine *engine)
{
	return engine->setup.scheduler
		       ? engine->inside_step
		       : engine->thread_runs && pthread_equal(engine->thread, pthread_self());
}

struct patience patience_for(tern_engine *engine, uint64_t wait_ns)
{
	uint64_t now = engine_now(engine);

	return (struct patience){.engine = engine, .deadline_ns = now + wait_ns, .last_ns = now};
}

/* A caller may look for what makes no event, such as room for one more try: so not all the way to
 * the deadline. */
static uint64_t next_look_ns(const struct patience *p, uint64_t now)
{
	uint64_t look =
		now + (FIRST_LOOK_NS << (p->rounds < LOOK_DOUBLINGS ? p->rounds : LOOK_DOUBLINGS));

	return look < p->deadline_ns ? look : p->deadline_ns;
}

bool patience_left(struct patience *p)
{
	uint64_t now = engine_now(p->engine);

	if (now >= p->deadline_ns || engine_on_proxy(p->engine))
		return false;
	p->rounds++;
	if (p->engine->setup.scheduler) {
		p->stuck = now == p->last_ns ? p->stuck + 1 : 0;
		p->last_ns = now;
		scheduler_yield(p->engine->setup.scheduler, next_look_ns(p, now));
		return p->stuck < MOST_ROUNDS_AT_ONE_TIME;
	}
	if (p->rounds < PATIENCE_SPINS)
		spin_pause();
	else
		sched_yield();
	return true;
}
