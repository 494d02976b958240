/* SPDX-License-Identifier: Apache-2.0 */
/* A link that swallows everything without a word: nobody gets an error from the network, and yet
 * all ranks learn, within their time-out, whom they wait for.
 *
 * Each rank is in a network namespace of its own, on a bridge. All scenes of one direction play at
 * the same time: when every victim stands at its place, the node that all victims are on is cut
 * off, by a queue of no length. */
#include "tests/faults/acts.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "cli/hosts.h"
#include "tests/late.h"

#define NETWORK "ofi:tcp;ofi_rxm"
#define RANKS 3
#define VICTIM 1
#define WAIT_MS                                                                                    \
	8000 /* 24 processes: on a busy machine one may be kept from its heartbeats for 3 s */
#define SLACK_MS 1000 /* a heartbeat, and the way to the caller */
#define NR_SCENES MAX_SCENES

enum direction {
	TO_VICTIM = 1,
	FROM_VICTIM = 2,
	BOTH = TO_VICTIM | FROM_VICTIM
};

static struct hosts hosts;
static enum direction directions; /* that are cut */

static int command(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int command(const char *format, ...)
{
	char line[256];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	return system(line);
}

/* Frames to the victim's node are dropped by the bridge's port, frames from it by its own device.
 */
static int cut(void)
{
	int rc = 0;

	if (directions & TO_VICTIM)
		rc = command("tc -n tern-%d-hub qdisc add dev port0-%d root pfifo limit 0",
			hosts.id, VICTIM);
	if (directions & FROM_VICTIM)
		rc = rc ? rc
			: command("tc -n tern-%d-%d qdisc add dev eth0 root pfifo limit 0",
				  hosts.id, VICTIM);
	return rc;
}

/* ---- the ranks ------------------------------------------------------------------------------- */

/* The first error: it names the victim, in time. Who waits for a survivor that waits for the victim
 * has both in its report. */
static void expect_named(
	struct rank *rank, struct round *r, struct scene *s, int rc, unsigned long long begun_ns)
{
	struct tern_wait_report report = {.size = sizeof(report)};
	unsigned long long took_ms = passed_ns(begun_ns) / 1000000;
	char name[24];

	snprintf(name, sizeof(name), "rank %d ", s->victim);
	if ((rc != TERN_ERR_PEER_DEAD && rc != TERN_ERR_TIMEOUT) ||
		!strstr(tern_last_error(), name))
		rank_fails(rank, "returned %d, \"%s\"", rc, tern_last_error());
	else if (took_ms > WAIT_MS + SLACK_MS)
		rank_fails(rank, "returned only after %llu ms: %s", took_ms, tern_last_error());
	else if (tern_moe_wait_report(r->moe, &report) || report.error != rc ||
		 (report.peer != s->victim && report.nr_missing < 2))
		rank_fails(rank, "report of peer %d, error %d, %u missing", report.peer,
			report.error, report.nr_missing);
}

/* A wait that has expired may be begun again: now the silence has lasted as long as anybody was
 * willing to wait, and is a death. A wait that began before the wire was cut, when all scenes have
 * come so far, was for whoever was slow, and need not name the victim: however late it expires, the
 * one that is judged begins behind the cut. */
static int survivor(struct rank *rank, struct round *r, struct scene *s)
{
	unsigned long long begun_ns;
	bool was_cut;
	int rc = 0;

	for (r->number = 0; !rc; r->number++)
		for (int half = 0; half < 4 && !rc; half++) {
			do {
				was_cut = atomic_load(&s->fate_ns) != 0;
				begun_ns = now_ns();
				rc = do_half(r, half);
			} while (rc == TERN_ERR_TIMEOUT && !was_cut);
			if (rc != TERN_ERR_TIMEOUT)
				continue;
			expect_named(rank, r, s, rc, begun_ns);
			rc = do_half(r, half);
		}
	return rc;
}

static void body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct round r = {0};
	int rc;

	if (enter(rank, &r))
		return;
	if (rank->rank != s->victim) {
		rc = survivor(rank, &r, s);
		if (expect_death(rank, &r, s, rc))
			return;
		round_close(&r);
		carry_on(rank, s);
		return;
	}
	rc = meet_fate(&r, s);
	if (*rank->failure || !atomic_load(&s->fate_ns) ||
		(rc != TERN_ERR_PEER_DEAD && rc != TERN_ERR_TIMEOUT))
		rank_fails(rank, "the victim returned %d, %s", rc, tern_last_error());
	round_close(&r);
	if (tern_group_destroy(rank->group))
		rank_fails(rank, "leaving: %s", tern_last_error());
}

/* ---- the scenes ------------------------------------------------------------------------------ */

static struct scene *open_scene(int number)
{
	struct scene *s =
		scene_open(RANKS, number < NR_SCENES / 2 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT);

	s->hosts = &hosts;
	s->victim = VICTIM;
	s->halves = number % (NR_SCENES / 2);
	s->wait_ms = s->job.config.wait_ms = WAIT_MS;
	return s;
}

/* Every phase once, in one mode or the other; with LONG, in both directions, all eight. */
static int open_scenes(struct scene **scenes)
{
	int nr = 0;

	for (int i = 0; i < NR_SCENES; i++)
		if ((directions == BOTH && getenv("LONG")) ||
			(i / 4 == i % 2) == (directions != FROM_VICTIM))
			scenes[nr++] = open_scene(i);
	return nr;
}

static const char *what_is_missing(void)
{
	if (!transport_is_there(NETWORK))
		return tern_last_error();
	if (hosts_open(&hosts, RANKS, 1, true, "test_blackhole") || !hosts.namespaces)
		return "network namespaces take root and iproute2";
	if (command("tc -n tern-%d-hub qdisc add dev port0-0 root pfifo limit 1000", hosts.id))
		return "this kernel or this tc has no pfifo queues";
	return NULL;
}

static void play(enum direction cut_directions)
{
	const char *missing = what_is_missing(), *wrong;
	struct scene *scenes[NR_SCENES];

	if (missing) {
		hosts_close(&hosts);
		print_message("# SKIP %s\n", missing);
		skip();
	}
	directions = cut_directions;
	wrong = play_together(scenes, open_scenes(scenes), body, cut);
	hosts_close(&hosts);
	if (wrong)
		fail_msg("%s", wrong);
}

static void both_directions(void **state)
{
	(void)state;
	play(BOTH);
}

/* Half of a cut is in the whole, in the end: for make soak. */
static void only_if_long(void)
{
	if (getenv("LONG"))
		return;
	print_message("# SKIP without LONG=1\n");
	skip();
}

static void to_the_victim(void **state)
{
	(void)state;
	only_if_long();
	play(TO_VICTIM);
}

static void from_the_victim(void **state)
{
	(void)state;
	only_if_long();
	play(FROM_VICTIM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_directions),
		cmocka_unit_test(to_the_victim),
		cmocka_unit_test(from_the_victim),
	};

	setenv("TERN_TRANSPORT", NETWORK, 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
