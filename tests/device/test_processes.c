/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on GPUs between processes, a GPU each if there are two, of which one is killed in any
 * half of a round, does not come, or leaves: the others are told who, within their bound. Skipped
 * where there is no GPU. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/device/devices.h"
#include "tests/faults/processes.h"
#include "tests/late.h"

#define ROUNDS 3 /* undisturbed ones */
#define LONG_MS 60000
#define NOTICED_NS 10000000000ull /* some ms are usual */
#define MOST_NS ((short_ms + 8000) * 1000000ull)

static int short_ms; /* the wait of those who notice by its end */

static int enter(struct rank *rank, struct device_rounds *rounds)
{
	static struct job job;
	struct scene *scene = rank->ctx;
	const struct bench_device_ops *ops;
	int nr, rc;

	job = scene->job;
	ops = devices_open(&nr);
	if (!ops || job_open(&job, NULL) || join(rank, &scene->first, rank->rank))
		return rank_fails(rank, "entering: %s", tern_last_error());
	rc = device_choose(ops, (uint32_t)rank->rank);
	rc = rc ? rc : device_rounds_open(rounds, rank->group, &job, ops);
	for (uint64_t i = 0; i < ROUNDS && !rc; i++)
		rc = device_rounds_verify(rounds, i);
	if (rc || rounds->difference.nr)
		return rank_fails(rank, "undisturbed rounds: %s%s", rc ? tern_last_error() : "",
			rounds->difference.first);
	rc = device_rounds_upload(rounds, 0, ROUNDS);
	rc = rc ? rc
		: ops->fill(rounds->lanes[0].y, 0, rounds->positions * job_y_bytes(&job),
			  rounds->lanes[0].stream);
	return rc ? rank_fails(rank, "inputs: %s", ops->error_text()) : 0;
}

/* Halves from the first on, until one fails or the scene's are done; without end for those who are
 * to be told. */
static int go_on(struct device_rounds *rounds, int nr_halves)
{
	uint32_t nr_tokens = job_nr_tokens(rounds->job, ROUNDS, rounds->rank);
	int rc = 0;

	for (uint32_t i = 0; !rc && (nr_halves < 0 || i < (uint32_t)nr_halves); i++)
		rc = devices_half(rounds, i % 4, nr_tokens);
	return rc;
}

static void expect(
	struct rank *rank, struct device_rounds *rounds, int rc, int wanted, const char *text)
{
	const struct scene *scene = rank->ctx;
	struct tern_wait_report report = {.size = sizeof(report)};
	unsigned long long took = passed_ns(atomic_load(&scene->fate_ns));

	if (rc != wanted || !strstr(tern_last_error(), text))
		rank_fails(rank, "returned %d, \"%s\", not %d with \"%s\"", rc, tern_last_error(),
			wanted, text);
	else if (scene->job.config.wait_ms == short_ms && took > MOST_NS)
		rank_fails(rank, "noticed after %llu ms", took / 1000000);
	else if (tern_moe_wait_report(rounds->moe, &report) || report.peer != scene->victim ||
		 report.error != wanted)
		rank_fails(rank, "report of peer %d, error %d", report.peer, report.error);
	else if (devices_half(rounds, 0, 0) != wanted)
		rank_fails(rank, "and it is not over: %s", tern_last_error());
}

/* The victim's halves before what happens to it, which is now. */
static void to_its_fate(struct rank *rank, struct device_rounds *rounds)
{
	struct scene *scene = rank->ctx;

	if (go_on(rounds, scene->halves))
		rank_fails(rank, "before its fate: %s", tern_last_error());
	atomic_store(&scene->fate_ns, now_ns());
}

/* Told before a wait has expired, long before. */
static void noticed(struct rank *rank)
{
	const struct scene *scene = rank->ctx;
	unsigned long long fate = atomic_load(&scene->fate_ns), took = passed_ns(fate);

	printf("# rank %d noticed the death of rank %d after %.1f ms\n", rank->rank, scene->victim,
		(double)(now_ns() - fate) / 1e6);
	fflush(stdout);
	if (took > NOTICED_NS)
		rank_fails(rank, "noticed after %llu ms", took / 1000000);
}

static void killed(struct rank *rank)
{
	struct scene *scene = rank->ctx;
	struct device_rounds rounds;
	char text[32];
	int rc;

	if (enter(rank, &rounds))
		return;
	if (rank->rank == scene->victim) {
		to_its_fate(rank, &rounds);
		raise(SIGKILL);
	}
	snprintf(text, sizeof(text), "rank %d died", scene->victim);
	rc = go_on(&rounds, -1);
	noticed(rank);
	expect(rank, &rounds, rc, TERN_ERR_PEER_DEAD, text);
	device_rounds_close(&rounds);
}

/* It lives on, and does nothing more until all others have been told. */
static void lives_on(struct rank *rank, bool leaves, int error, const char *format)
{
	struct scene *scene = rank->ctx;
	struct device_rounds rounds;
	char text[32];

	if (enter(rank, &rounds))
		return;
	if (rank->rank == scene->victim) {
		to_its_fate(rank, &rounds);
		if (leaves && tern_moe_leave(rounds.moe))
			rank_fails(rank, "leaving: %s", tern_last_error());
		while (atomic_load(&scene->nr_told) < scene->nr_ranks - 1 &&
			now_ns() - atomic_load(&scene->fate_ns) < SCENE_LIMIT_NS)
			usleep(1000);
	} else {
		snprintf(text, sizeof(text), format, scene->victim);
		expect(rank, &rounds, go_on(&rounds, -1), error, text);
		atomic_fetch_add(&scene->nr_told, 1);
	}
	device_rounds_close(&rounds);
}

static void stalled(struct rank *rank)
{
	lives_on(rank, false, TERN_ERR_TIMEOUT, "of rank %d");
}

static void left(struct rank *rank)
{
	lives_on(rank, true, TERN_ERR_PEER_LEFT, "rank %d left the exchange");
}

static void play(enum tern_mode mode, int halves, int wait_ms, rank_main body, int fate)
{
	struct scene *scene = scene_open(2, mode);

	scene->job.config.device = TERN_DEVICE_CUDA;
	scene->job.config.wait_ms = wait_ms;
	scene->halves = halves;
	scene_play(scene, body, fate);
}

static void rank_killed(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (int halves = 0; halves < 4; halves++)
			play(mode, halves, LONG_MS, killed, SIGKILL);
}

static void peer_stalled(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (int halves = 0; halves < 4; halves += 2)
			play(mode, halves, short_ms, stalled, 0);
}

/* It is told long before a wait expires. */
static void peer_left(void **state)
{
	(void)state;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++)
		for (int halves = 0; halves < 4; halves++)
			play(mode, halves, LONG_MS, left, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rank_killed),
		cmocka_unit_test(peer_stalled),
		cmocka_unit_test(peer_left),
	};

	short_ms = (int)devices_setting("TERN_TEST_WAIT_MS", 1500);
	if (devices_count_apart() < 1) {
		printf("no GPU\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
