/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy: one bounded round after the other, and when it sleeps.
 *
 * Awake.   While anything happens, and SPIN_NS after it, the proxy goes round without a pause; then
 *          it yields, so that ranks which share its core get on.
 * Asleep.  After YIELD_NS without news it sleeps on its wakeup. Whoever puts a command into the
 *          ring signals it: entry first, then the bell. The proxy listens first, then looks at the
 *          ring once more, then sleeps (wakeup.h): it sees the entry, or is woken.
 * Slices.  Networks wake nobody: what arrives is seen by polling, and with TRANSPORT_TARGET_POLLS
 *          it does not even land before. So no sleep is longer than a slice, and a slice is short.
 *          It grows while nothing comes, and what is under way keeps it at its shortest. Devices
 *          that write rings wake nobody either: where there is a core for it, a ring keeps the
 *          proxy awake, for a slice is longer than all the rest of a half (gpu/host/awake.c).
 */
#include "engine/proxy.h"

#include <sched.h>
#include <string.h>
#include <sys/prctl.h>

#include "engine/dequeue.h"
#include "engine/events.h"
#include "engine/failure_detector.h"
#include "engine/inside.h"
#include "engine/leave.h"
#include "engine/patience.h"
#include "engine/peer.h"
#include "engine/post.h"

#define COMMANDS_PER_STEP 64
#define POSTS_PER_STEP 256
#define SPIN_NS 20000u
#define YIELD_NS 500000u
#define FIRST_SLICE_NS 20000u
#define LONGEST_SLICE_NS 1000000u
#define LONGEST_SLICE_POLLED_NS 200000u

static void begin_time(tern_engine *engine, uint64_t now_ns)
{
	for (uint32_t p = 0; p < engine->setup.nr_peers; p++) {
		engine->peers[p].heard_ns = engine->peers[p].progress_ns = now_ns;
		/* Heartbeats to all peers at once would be a burst. */
		engine->peers[p].told_ns =
			now_ns - engine->heartbeat_ns * p / engine->setup.nr_peers;
	}
	engine->last_look_ns = now_ns;
	engine->next_look_ns = now_ns + engine->look_every_ns;
	engine->time_runs = true;
}

/* Those that ask once more in this turn have theirs in the next step. */
static bool serve_asked_again(tern_engine *engine)
{
	if (!engine->nr_asked_again)
		return false;
	for (uint32_t i = 0; i < sizeof(engine->claims) / sizeof(engine->claims[0]); i++) {
		if (!engine->asked_again[i])
			continue;
		engine->asked_again[i] = false;
		engine->nr_asked_again--;
		if (engine->claims[i].more)
			engine->claims[i].more(engine->claims[i].ctx);
	}
	return true;
}

bool engine_step(tern_engine *engine, uint64_t now_ns)
{
	bool any;

	engine->inside_step = true;
	engine->now_ns = now_ns;
	if (!engine->time_runs)
		begin_time(engine, now_ns);
	engine->stats.steps++;
	any = poll_transports(engine);
	polls_publish(engine);
	any = take_commands(engine, COMMANDS_PER_STEP) || any;
	any = serve_asked_again(engine) || any;
	any = post_work(engine, POSTS_PER_STEP) || any;
	if (now_ns >= engine->next_look_ns)
		look_after_peers(engine);
	engine->inside_step = false;
	return any;
}

uint64_t engine_next_ns(const tern_engine *engine)
{
	return engine->next_look_ns;
}

static bool is_busy(const tern_engine *engine)
{
	return engine->nr_free_requests != engine->nr_requests || engine->nr_messages_queued ||
	       engine->command_held || atomic_load_explicit(&engine->leaving, memory_order_relaxed);
}

/* Returns the next slice. */
static uint64_t sleep_slice(tern_engine *engine, uint64_t slice_ns)
{
	uint64_t longest = engine->nr_rings || engine->caps & TRANSPORT_TARGET_POLLS
				   ? LONGEST_SLICE_POLLED_NS
				   : LONGEST_SLICE_NS;
	uint32_t count = wakeup_listen(&engine->wakeup);

	slice_ns = slice_ns < longest ? slice_ns : longest;
	if (!commands_wait(engine) &&
		!atomic_load_explicit(&engine->leaving, memory_order_acquire)) {
		engine->stats.sleeps++;
		wakeup_sleep(&engine->wakeup, count, is_busy(engine) ? FIRST_SLICE_NS : slice_ns);
	}
	wakeup_leave(&engine->wakeup);
	return slice_ns * 2 < longest ? slice_ns * 2 : longest;
}

static void pin(const tern_engine *engine)
{
	cpu_set_t cores;

	prctl(PR_SET_NAME, "tern-proxy");
	prctl(PR_SET_TIMERSLACK, 1000ul); /* else each slice is 50 us longer */
	if (engine->config.core < 0)
		return;
	CPU_ZERO(&cores);
	CPU_SET((unsigned)engine->config.core, &cores);
	sched_setaffinity(0, sizeof(cores), &cores); /* engine_open has seen that it is allowed */
}

void *proxy_main(void *arg)
{
	tern_engine *engine = arg;
	uint64_t news_ns = engine_now(engine), slice_ns = FIRST_SLICE_NS;

	pin(engine);
	for (;;) {
		uint64_t now = engine_now(engine);

		if (engine_step(engine, now)) {
			news_ns = now;
			slice_ns = FIRST_SLICE_NS;
		} else if (now - news_ns < SPIN_NS) {
			spin_pause();
		} else if (now - news_ns < YIELD_NS || now < engine->awake_until_ns ||
			   engine->nr_awake) {
			sched_yield();
		} else {
			slice_ns = sleep_slice(engine, slice_ns);
		}
		if (atomic_load_explicit(&engine->leaving, memory_order_acquire) &&
			leave_done(engine))
			return NULL;
	}
}
