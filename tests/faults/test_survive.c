/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are killed at any moment in an elastic group: the others agree on who is left, make
 * the round again, and no sum is ever wrong. */
#include "tests/faults/acts.h"
#include "tests/faults/tokens.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "cli/hosts.h"
#include "exchange/state.h"
#include "testkit/random.h"

#define ROUNDS 400
#define COPIES 3 /* of each expert, on neighbours, at most */
#define MOST_RANKS 8

static uint32_t nr_copies = COPIES; /* for ranks that are started next */
static enum tern_change change;     /* at round CHANGE_AT: the victim leaves, or stands still */
#define CHANGE_AT 5
static bool makes_others; /* exchanges, all the time */
static bool told_between; /* the halves of a combine, which is made by halves */

struct worker {
	struct rank *rank;
	struct scene *scene;
	tern_moe *moe;
	uint64_t number; /* of the round */
	struct tokens in;
	float out[TOKENS][HIDDEN] __attribute__((aligned(16)));
	float *y;
	uint32_t nr_changes, nr_owed;
};

static uint64_t tag_of(uint64_t number)
{
	return number * 3 + 5;
}

static void draw_inputs(struct worker *w)
{
	uint64_t random = w->number * 64 + (uint64_t)w->rank->rank + 1;

	tokens_draw(&w->in, &random, &random);
}

static int check_sums(struct worker *w)
{
	return tokens_check(w->rank, &w->in, w->out, w->number, tokens_result, tag_of(w->number));
}

/* The victim, in its half of the fourth round. Whom it has told of its results are ahead. */
static void fall(struct worker *w, int half)
{
	const struct scene *s = w->scene;
	int nr_told = (s->fate_at - s->victim - 1 + s->nr_ranks) % s->nr_ranks;

	if (w->rank->rank == s->victim && w->number == 3 && s->halves == half)
		fall_before_telling(
			w->rank, w->moe, s->fate_at, half && !told_between ? nr_told : 0);
}

/* Who is merely slow is waited for. */
static void expel_victim(struct worker *w)
{
	struct tern_wait_report report = {.size = sizeof(report)};

	if (change == TERN_CHANGE_EXPEL && !tern_moe_wait_report(w->moe, &report) &&
		report.peer == w->scene->victim &&
		tern_group_propose(w->rank->group, TERN_CHANGE_EXPEL, report.peer))
		rank_fails(w->rank, "expelling: %s", tern_last_error());
}

/* Where told_between, the victim dies in the first half; the next rank finds that out as it waits
 * in the second, and the others go there when they have heard of it. */
static int combine(struct worker *w, const struct tern_combine *combine)
{
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;
	bool hears = w->number == 3 && !w->nr_changes &&
		     w->rank->rank != (w->scene->victim + 1) % w->scene->nr_ranks;
	int rc = told_between ? tern_combine_send(w->moe, combine)
			      : tern_combine(w->moe, combine, w->out, 0);

	if (rc || !told_between)
		return rc;
	while (hears && !tern_group_pending(w->rank->group) && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	return tern_combine_recv(w->moe, 0, w->out, 0);
}

static int make_round(struct worker *w, uint32_t nr_tokens, uint64_t tag)
{
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = nr_tokens,
		.x = w->in.x,
		.topk_ids = w->in.ids,
		.topk_weights = &w->in.weights[0][0],
		.tag = tag};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine results = {.size = sizeof(results), .y = w->y};
	int rc;

	fall(w, 0);
	while ((rc = tern_dispatch(w->moe, &dispatch, &received)) == TERN_ERR_TIMEOUT)
		expel_victim(w);
	if (rc)
		return rc;
	tokens_serve(w->moe, &received, w->y, tag);
	fall(w, 2);
	while ((rc = combine(w, &results)) == TERN_ERR_TIMEOUT)
		expel_victim(w);
	return rc;
}

static int serve_others(struct worker *w)
{
	uint64_t tag;
	int rc = tern_moe_owed(w->moe, 0, &tag);

	if (rc != 1)
		return rc;
	if (tag != tag_of(w->number - 1))
		return rank_fails(w->rank, "owes a round of tag %llu before round %llu",
			(unsigned long long)tag, (unsigned long long)w->number);
	w->nr_owed++;
	return make_round(w, 0, tag);
}

static int survive(void *worker)
{
	struct worker *w = worker;
	struct tern_view view = {.size = sizeof(view)};
	int rc = tern_group_view_change(w->rank->group, &view);

	if (rc)
		return rc;
	w->nr_changes += view.nr_gone > 0;
	return serve_others(w);
}

/* The worker's from here on, if it is made. */
static int make_exchange(struct worker *w)
{
	int32_t logical[EXPERTS * COPIES], rank_of[EXPERTS * COPIES];
	struct tern_moe_config config;

	tokens_config(&config, w->scene->job.config.mode);
	config.wait_ms = w->scene->job.config.wait_ms;
	config.first_epoch = UINT32_MAX - 20;
	config.placement =
		tokens_placement(logical, rank_of, nr_copies, (uint32_t)w->scene->nr_ranks);
	return tern_moe_create(w->rank->group, &config, &w->moe);
}

static int open_worker(struct worker *w)
{
	uint32_t nr_ranks = (uint32_t)w->scene->nr_ranks;

	if (make_exchange(w))
		return rank_fails(w->rank, "tern_moe_create: %s", tern_last_error());
	w->y = aligned_alloc(64, sizeof(float) * HIDDEN * TOKENS * TOPK * nr_ranks);
	return w->y ? 0 : rank_fails(w->rank, "no memory");
}

/* In place of the one before. */
static int make_another(struct worker *w)
{
	tern_moe *before = w->moe;
	int rc;

	while ((rc = make_exchange(w)) == TERN_ERR_MEMBERS)
		if ((rc = survive_all(survive, w)))
			return rc;
	return rc ? rc : tern_moe_destroy(before);
}

static int leave(struct worker *w)
{
	struct tern_view view = {.size = sizeof(view)};
	struct tern_dispatch none = {.size = sizeof(none)};
	int me = w->rank->rank, rc = tern_group_propose(w->rank->group, TERN_CHANGE_LEAVE, me);

	rc = rc ? rc : tern_group_view_change(w->rank->group, &view);
	if (rc)
		return rank_fails(w->rank, "leaving: %s", tern_last_error());
	if (view.alive[0] >> me & 1 || view.nr_alive != (uint32_t)w->rank->nr_ranks - 1)
		return rank_fails(w->rank, "has left, and is in a view of %u", view.nr_alive);
	if (tern_dispatch_send(w->moe, &none) != TERN_ERR_EXPELLED ||
		tern_group_view_change(w->rank->group, &view) != TERN_ERR_EXPELLED)
		return rank_fails(w->rank, "has left, and goes on");
	return 1;
}

/* 1: the rank is out. */
static int meet_change(struct worker *w)
{
	if (w->rank->rank != w->scene->victim || w->number != CHANGE_AT)
		return 0;
	if (change == TERN_CHANGE_EXPEL)
		raise(SIGSTOP);
	return change == TERN_CHANGE_LEAVE ? leave(w) : 0;
}

static void survivor_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	int rc = 0;

	if (join(rank, &s->first, rank->rank) || open_worker(&w))
		return;
	for (w.number = 0; w.number < ROUNDS && !rc; w.number++) {
		if (w.number == ROUNDS - 50) /* the last come when somebody has died */
			await_fate(s);
		draw_inputs(&w);
		rc = meet_change(&w);
		if (!rc && makes_others && w.number % 4 == 3)
			rc = make_another(&w);
		if (rc)
			break;
		rc = make_round(&w, w.in.nr_tokens, tag_of(w.number));
		while (rc == TERN_ERR_MEMBERS) {
			rc = survive(&w);
			if (!rc)
				rc = make_round(&w, w.in.nr_tokens, tag_of(w.number));
		}
		rc = rc ? rc : check_sums(&w);
		if (w.number == 2)
			atomic_fetch_add(&s->nr_past, 1);
		if (w.number == 3)
			atomic_fetch_add(&s->nr_ready, 1);
	}
	rc = rc ? rc : stay_until_all_are_done(rank, survive, &w);
	if (rc < 0 && !*rank->failure)
		rank_fails(rank, "round %llu: %s", (unsigned long long)w.number, tern_last_error());
	atomic_fetch_add(&s->nr_told, (int)w.nr_changes);
	atomic_fetch_add(&s->nr_rounds, (int)w.nr_owed);
	tern_moe_destroy(w.moe);
	tern_group_destroy(rank->group);
	free(w.y);
}

/* At no place in particular. */
static void kill_one(int nr_times)
{
	const char *seed = getenv("TERN_TEST_SEED");
	uint64_t random = seed ? strtoull(seed, NULL, 0) : 7;
	int nr_owed = 0;

	for (int i = 0; i < nr_times; i++) {
		struct scene *s = scene_open(4, i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT);

		s->elastic = true;
		s->victim = i % 4;
		s->halves = -1;
		nr_owed += kill_victims(s, survivor_body, random_below(&random, 12000000), 0);
	}
	print_message("# %d rounds were made for others\n", nr_owed);
}

static void one_dies(void **state)
{
	(void)state;
	kill_one(scaled(24));
}

/* On other nodes it is seen by a line's end, or heard from a rank of its own. */
static void one_dies_between_nodes(void **state)
{
	(void)state;
	setenv("TERN_TEST_NODES", "2", 0);
	kill_one(getenv("LONG") ? 24 : 2);
	unsetenv("TERN_TEST_NODES");
}

/* Two of five: at once, or the second while the others change their view. */
static void kill_two(int nr_times)
{
	const char *seed = getenv("TERN_TEST_SEED");
	uint64_t random = seed ? strtoull(seed, NULL, 0) : 9;

	for (int i = 0; i < nr_times; i++) {
		struct scene *s = scene_open(5, i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT);
		uint64_t first_ns = random_below(&random, 12000000),
			 between_ns = i % 3 ? random_below(&random, 2000000) : 0;

		s->elastic = true;
		s->halves = -1;
		s->victim = i % 5;
		s->other_victim = (s->victim + 1 + i / 5 % 4) % 5;
		(void)kill_victims(s, survivor_body, first_ns, between_ns);
	}
}

/* Exchanges are made and destroyed all the time: it dies before one is made, in its middle, or
 * after it. */
static void dies_while_exchanges_are_made(void **state)
{
	(void)state;
	makes_others = true;
	kill_one(scaled(6));
	setenv("TERN_TEST_NODES", "2", 0);
	kill_one(getenv("LONG") ? 24 : 2);
	unsetenv("TERN_TEST_NODES");
	if (getenv("LONG"))
		kill_two(24);
	makes_others = false;
}

/* One round before the others, one behind: it dies when it has told some that all is there, and
 * others not. Those are ahead, and serve the others once more. */
static int fall_between_peers(int first)
{
	int nr_owed = 0;

	BOTH_MODES(mode)
	for (int i = first; i < 6; i++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s = scene_open(4, mode);

		s->elastic = true;
		s->victim = (i + (int)mode) % 4;
		s->halves = i / 3 * 2;
		s->fate_at = (s->victim + 1 + i % 3) % 4;
		atomic_store(&s->fate_ns, 1);
		scene_start(s, survivor_body, pids);
		scene_finish(s, pids, SIGSEGV);
		assert_int_equal(atomic_load(&s->nr_told), 3);
		nr_owed += atomic_load(&s->nr_rounds);
		scene_close(s);
	}
	return nr_owed;
}

static void dies_between_peers(void **state)
{
	(void)state;
	assert_int_equal(fall_between_peers(0), 2 * (1 + 2));
}

/* Who has not received when it is told has not completed the round, whatever has come. */
static void told_between_halves(void **state)
{
	(void)state;
	told_between = true;
	(void)fall_between_peers(3);
	told_between = false;
}

static void two_die(void **state)
{
	(void)state;
	kill_two(scaled(24));
}

/* Two of a node of two may die: the others are three. */
static void two_die_between_nodes(void **state)
{
	(void)state;
	if (!getenv("LONG")) {
		print_message("# SKIP without LONG=1\n");
		skip();
	}
	setenv("TERN_TEST_NODES", "2", 0);
	kill_two(24);
	unsetenv("TERN_TEST_NODES");
}

/* A rank that stands still is ended before the others go on, and one that leaves is done without.
 */
static void expelled_or_left(void **state)
{
	(void)state;
	BOTH_MODES(mode)
	for (change = TERN_CHANGE_LEAVE; change <= TERN_CHANGE_EXPEL; change++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s = scene_open(4, mode);

		s->elastic = true;
		s->victim = (int)mode;
		s->halves = -1;
		s->job.config.wait_ms = change == TERN_CHANGE_EXPEL ? 150 : 30000;
		atomic_store(&s->fate_ns, 1);
		scene_start(s, survivor_body, pids);
		scene_finish(s, pids, change == TERN_CHANGE_EXPEL ? SIGKILL : 0);
		assert_int_equal(atomic_load(&s->nr_told), 3);
		scene_close(s);
	}
	change = 0;
}

/* ---- stopped, left out, and woken ------------------------------------------------------------ */

#define POISON 0xa5
#define MOST_PLACES 64

/* Where a rank's rows and words land in this one's window. */
struct places {
	uint8_t *at[MOST_PLACES];
	uint64_t bytes[MOST_PLACES], words[NR_WORD_KINDS];
	int nr;
};

static void add_place(struct places *p, const tern_moe *moe, uint64_t offset, uint64_t bytes)
{
	p->at[p->nr] = own(moe, offset);
	p->bytes[p->nr++] = bytes;
}

static uint64_t word_of(const tern_moe *moe, int kind, uint32_t rank)
{
	return arrival_observe((const struct arrival *)own(
		moe, layout_word(&moe->layout, 0, (enum word_kind)kind, rank)));
}

static void poison_places_of(const tern_moe *moe, uint32_t rank, struct places *p)
{
	const struct layout *l = &moe->layout;

	p->nr = 0;
	add_place(p, moe, layout_region(l, 0, rank), l->region_bytes);
	if (moe->config.mode == TERN_HIGH_THROUGHPUT) {
		add_place(p, moe, layout_counts(l, 0, 0, rank), l->counts_bytes);
		add_place(p, moe, layout_counts(l, 0, 1, rank), l->counts_bytes);
	}
	for (uint32_t i = 0; i < l->nr_chunks && moe->config.mode == TERN_HIGH_THROUGHPUT; i++)
		if (p->nr < MOST_PLACES)
			add_place(p, moe, layout_chunk(l, rank, i), l->chunk_bytes);
	for (int i = 0; i < p->nr; i++)
		memset(p->at[i], POISON, p->bytes[i]);
	for (int kind = 0; kind < NR_WORD_KINDS; kind++)
		p->words[kind] = word_of(moe, kind, rank);
}

static int check_poison(struct worker *w, const struct places *p, uint32_t rank)
{
	for (int i = 0; i < p->nr; i++)
		for (uint64_t b = 0; b < p->bytes[i]; b++)
			if (p->at[i][b] != POISON)
				return rank_fails(w->rank,
					"byte %llu of place %d of rank %u was written",
					(unsigned long long)b, i, rank);
	for (int kind = 0; kind < NR_WORD_KINDS; kind++)
		if (word_of(w->moe, kind, rank) != p->words[kind])
			return rank_fails(w->rank, "a word %d of rank %u came", kind, rank);
	return 0;
}

/* *all: everybody that lives says so. */
static int gather_whether(struct worker *w, uint8_t mine, bool *all)
{
	uint8_t told[MOST_RANKS];
	int rc = gather_through_changes(w->rank, &mine, told, 1, survive, w);

	*all = !rc;
	for (int r = 0; r < w->rank->nr_ranks && *all; r++)
		*all = told[r] || r == w->scene->victim;
	return rc;
}

static int expect_expelled(struct worker *w, int rc)
{
	struct tern_dispatch none = {.size = sizeof(none)};

	if (rc != TERN_ERR_EXPELLED)
		return rank_fails(w->rank, "woken, and gets %d, \"%s\"", rc, tern_last_error());
	if (tern_dispatch_send(w->moe, &none) != TERN_ERR_EXPELLED)
		return rank_fails(w->rank, "left out, and goes on");
	atomic_store(&w->scene->at_place, true);
	return 0;
}

/* When the victim has been left out its places are poisoned; when it knows, they are looked at. */
static void woken_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	struct places places = {.nr = 0};
	bool all = false;
	int rc = 0;

	if (s->hosts && hosts_enter(s->hosts, rank->rank)) {
		rank_fails(rank, "entering a node");
		return;
	}
	if (join(rank, &s->first, rank->rank) || open_worker(&w))
		return;
	for (w.number = 0; !rc && !all; w.number++) {
		draw_inputs(&w);
		rc = make_round(&w, w.in.nr_tokens, tag_of(w.number));
		while (rc == TERN_ERR_MEMBERS) {
			rc = survive(&w);
			rc = rc ? rc : make_round(&w, w.in.nr_tokens, tag_of(w.number));
		}
		rc = rc ? rc : check_sums(&w);
		rc = rc ? rc : gather_whether(&w, atomic_load(&s->at_place), &all);
		if (!rc && w.nr_changes && !places.nr) {
			poison_places_of(w.moe, (uint32_t)s->victim, &places);
			atomic_fetch_add(&s->nr_told, 1);
		}
		if (w.number == 2)
			atomic_fetch_add(&s->nr_past, 1);
	}
	if (rank->rank == s->victim)
		expect_expelled(&w, rc);
	else if (rc && !*rank->failure)
		rank_fails(rank, "round %llu: %s", (unsigned long long)w.number, tern_last_error());
	else if (!rc)
		check_poison(&w, &places, (uint32_t)s->victim);
	tern_moe_destroy(w.moe);
	tern_group_destroy(rank->group);
	free(w.y);
}

/* Rank 3 is silenced, wherever it is, until the others have gone on without it. */
static void leave_out(const struct hosts *hosts, enum tern_mode mode, uint64_t delay_ns,
	int (*silence)(pid_t victim, bool on))
{
	pid_t pids[MAX_PROCESSES];
	struct scene *s = scene_open(4, mode);
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	s->hosts = hosts;
	s->elastic = true;
	s->silence_ms = getenv("LONG") ? 5000 : 3000;
	s->victim = 3;
	s->halves = -1;
	scene_start(s, woken_body, pids);
	await_progress(s);
	nanosleep(&(struct timespec){.tv_nsec = (long)delay_ns}, NULL);
	assert_int_equal(silence(pids[s->victim], true), 0);
	while (atomic_load(&s->nr_told) < 3 && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_int_equal(silence(pids[s->victim], false), 0);
	scene_finish(s, pids, 0);
	scene_close(s);
}

static int stop(pid_t victim, bool on)
{
	return kill(victim, on ? SIGSTOP : SIGCONT);
}

/* Alone on its node, so that nobody can end it. */
static void woken_after_it_was_left_out(void **state)
{
	uint64_t random = 11;

	(void)state;
	setenv("TERN_TEST_NODES", "aaab", 1);
	for (int i = 0; i < (getenv("LONG") ? 8 : 1); i++)
		leave_out(NULL, i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT,
			random_below(&random, 12000000), stop);
	unsetenv("TERN_TEST_NODES");
}

static struct hosts hosts;

/* Frames to and from it go nowhere, and nobody is told. */
static int cut(pid_t victim, bool on)
{
	char line[256];

	(void)victim;
	snprintf(line, sizeof(line),
		"tc -n tern-%d-hub qdisc %s dev port0-3 root pfifo limit %d && "
		"tc -n tern-%d-3 qdisc %s dev eth0 root pfifo limit %d",
		hosts.id, "replace", on ? 0 : 1000, hosts.id, "replace", on ? 0 : 1000);
	return system(line);
}

/* It lacks a majority and waits; when it is heard again it finds that it was left out. */
static void cut_off_and_healed(void **state)
{
	uint64_t random = 13;

	(void)state;
	if (!transport_is_there("ofi:tcp;ofi_rxm") ||
		hosts_open(&hosts, 4, 1, true, "test_survive") || !hosts.namespaces ||
		cut(0, true) || cut(0, false)) {
		hosts_close(&hosts);
		print_message("# SKIP namespaces take root and iproute2, with pfifo queues\n");
		skip();
	}
	for (int i = 0; i < (getenv("LONG") ? 4 : 1); i++)
		leave_out(&hosts, i & 1 ? TERN_HIGH_THROUGHPUT : TERN_LOW_LATENCY,
			random_below(&random, 12000000), cut);
	hosts_close(&hosts);
}

static bool is_stopped_there(int rank)
{
	return rank == 0 || rank == 2;
}

static void half_left_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct tern_view view = {.size = sizeof(view)};
	uint8_t mine = 1, all[MOST_RANKS];

	if (join(rank, &s->first, rank->rank))
		return;
	atomic_fetch_add(&s->nr_past, 1);
	while (is_stopped_there(rank->rank))
		pause();
	if (tern_group_allgather(rank->group, &mine, all, 1) != TERN_ERR_MEMBERS)
		rank_fails(rank, "gathering: %s", tern_last_error());
	atomic_fetch_add(&s->nr_told, 1);
	if (tern_group_view_change(rank->group, &view))
		rank_fails(rank, "going on: %s", tern_last_error());
	else if (view.alive[0] != 0xa)
		rank_fails(rank, "goes on in a view of %llx", (unsigned long long)view.alive[0]);
	atomic_fetch_add(&s->nr_told, 1);
	while (!*rank->failure && atomic_load(&s->nr_told) < 4) /* neither leaves the other alone */
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	tern_group_destroy(rank->group);
}

/* One of each node is silent before it ends. The others are no majority: each has to hear that the
 * silent one on the other node has ended, from who first could say of it only that it was silent.
 */
static void half_fall_silent_and_end(void **state)
{
	pid_t pids[MAX_PROCESSES];
	struct scene *s = scene_open(4, TERN_LOW_LATENCY);
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	(void)state;
	setenv("TERN_TEST_NODES", "aabb", 1);
	s->elastic = true;
	s->silence_ms = 500;
	s->victim = 0;
	s->other_victim = 2;
	scene_start(s, half_left_body, pids);
	await_progress(s);
	for (int r = 0; r < 4; r += 2)
		assert_int_equal(kill(pids[r], SIGSTOP), 0);
	while (atomic_load(&s->nr_told) < 2 && now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* both have told it */
	for (int r = 0; r < 4; r += 2)
		assert_int_equal(kill(pids[r], SIGKILL), 0);
	scene_finish(s, pids, SIGKILL);
	scene_close(s);
	unsetenv("TERN_TEST_NODES");
}

static void lost_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	int rc = 0;

	if (join(rank, &s->first, rank->rank) || open_worker(&w))
		return;
	for (w.number = 0; !rc; w.number++) {
		if (w.number == CHANGE_AT && rank->rank == s->victim)
			raise(SIGKILL);
		draw_inputs(&w);
		rc = make_round(&w, w.in.nr_tokens, tag_of(w.number));
		while (rc == TERN_ERR_MEMBERS) {
			rc = survive(&w);
			if (!rc)
				rc = make_round(&w, w.in.nr_tokens, tag_of(w.number));
		}
	}
	if (rc != TERN_ERR_LOST_EXPERTS || !strstr(tern_last_error(), "1, 5, 9"))
		rank_fails(rank, "returned %d, \"%s\"", rc, tern_last_error());
	atomic_fetch_add(&s->nr_told, 1);
	while (!*rank->failure && atomic_load(&s->nr_told) < s->nr_ranks - 1)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	tern_moe_destroy(w.moe);
	tern_group_destroy(rank->group);
	free(w.y);
}

/* Without replicas there is no wrong sum, but an error that names them. */
static void experts_are_lost(void **state)
{
	(void)state;
	nr_copies = 1;
	BOTH_MODES(mode)
	{
		struct scene *s = scene_open(4, mode);

		s->elastic = true;
		s->victim = 1;
		s->halves = -1;
		scene_play(s, lost_body, SIGKILL);
	}
	nr_copies = COPIES;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_dies),
		cmocka_unit_test(one_dies_between_nodes),
		cmocka_unit_test(dies_while_exchanges_are_made),
		cmocka_unit_test(dies_between_peers),
		cmocka_unit_test(told_between_halves),
		cmocka_unit_test(two_die),
		cmocka_unit_test(two_die_between_nodes),
		cmocka_unit_test(expelled_or_left),
		cmocka_unit_test(woken_after_it_was_left_out),
		cmocka_unit_test(cut_off_and_healed),
		cmocka_unit_test(half_fall_silent_and_end),
		cmocka_unit_test(experts_are_lost),
	};

	if (getenv("TERN_FORCE_ENGINE")) {
		printf("it chooses itself which ranks are mapped\n");
		return 77;
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
