/* SPDX-License-Identifier: Apache-2.0 */
/* New processes take the places of ranks that were killed, while the others go on: no sum is ever
 * wrong, whoever dies in the middle, and nobody waits for who is refused. */
#include "tests/faults/acts.h"
#include "tests/faults/tokens.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "group/join_wire.h"
#include "testkit/random.h"

#define COPIES 2 /* of each expert, on neighbours */
#define RANKS 4
#define STEP 4 /* rounds between gatherings */
#define LEAST_ROUNDS 40

/* ---- a rendezvous of files, each of which is there as a whole ---------------------------------
 */

static char meeting[] = "/tmp/tern-join-XXXXXX";
static bool is_forged; /* what is found there does not open any door */

static int meeting_set(void *ctx, const char *key, const void *value, size_t bytes, int wait_ms)
{
	char path[128], fresh[160];
	FILE *file;

	(void)ctx;
	(void)wait_ms;
	snprintf(path, sizeof(path), "%s/%s", meeting, key);
	snprintf(fresh, sizeof(fresh), "%s.%d", path, (int)getpid());
	file = fopen(fresh, "we");
	if (!file || fwrite(value, 1, bytes, file) != bytes || fclose(file))
		return -1;
	return rename(fresh, path);
}

static int meeting_get(void *ctx, const char *key, void *value, size_t *bytes, int wait_ms)
{
	char path[128];
	FILE *file;

	(void)ctx;
	(void)wait_ms;
	snprintf(path, sizeof(path), "%s/%s", meeting, key);
	file = fopen(path, "re");
	if (!file)
		return errno == ENOENT ? 1 : -1;
	*bytes = fread(value, 1, *bytes, file);
	fclose(file);
	if (is_forged)
		((struct join_card *)value)->address.secret[3] ^= 1;
	return 0;
}

static int open_meeting(void **state)
{
	(void)state;
	return mkdtemp(meeting) ? 0 : -1;
}

static int close_meeting(void **state)
{
	char line[64];

	(void)state;
	snprintf(line, sizeof(line), "rm -rf %s", meeting);
	return system(line);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct worker {
	struct rank *rank;
	struct scene *scene;
	tern_moe *moe, *other; /* of two exchanges, in turn */
	uint64_t number;       /* of the round */
	bool fresh;            /* has joined, and does not know the number */
	struct tokens in;
	float out[TOKENS][HIDDEN] __attribute__((aligned(16)));
	float *y;
};

/* What ranks tell each other every few rounds. */
struct news {
	uint64_t number; /* + 1 */
	uint64_t enough;
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

static tern_moe *moe_of(const struct worker *w, uint64_t number)
{
	return number & 1 ? w->other : w->moe;
}

static int make_round(struct worker *w, uint64_t number, uint32_t nr_tokens, uint64_t tag)
{
	struct tern_dispatch dispatch = {.size = sizeof(dispatch),
		.nr_tokens = nr_tokens,
		.x = w->in.x,
		.topk_ids = w->in.ids,
		.topk_weights = &w->in.weights[0][0],
		.tag = tag};
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = w->y};
	tern_moe *moe = moe_of(w, number);
	int rc = tern_dispatch(moe, &dispatch, &received);

	if (rc)
		return rc;
	tokens_serve(moe, &received, w->y, tag);
	return tern_combine(moe, &combine, w->out, 0);
}

static int survive(void *worker)
{
	struct worker *w = worker;
	struct tern_view view = {.size = sizeof(view)};
	uint64_t tag;
	int rc = tern_group_view_change(w->rank->group, &view);

	if (!rc && view.nr_joined && !view.nr_gone) {
		atomic_fetch_add(&w->scene->nr_told, 1);
		if (view.change_ns > atomic_load(&w->scene->strike_ns))
			atomic_store(&w->scene->strike_ns, view.change_ns);
	}
	for (uint64_t i = 0; i < 2 && !rc; i++)
		if ((rc = tern_moe_owed(moe_of(w, i), 0, &tag)) == 1)
			rc = make_round(w, i, 0, tag);
	return rc;
}

/* *enough: everybody has seen all that was to happen. */
static int gather(struct worker *w, bool *enough)
{
	struct news mine = {w->fresh ? 0 : w->number + 1,
			    atomic_load(&w->scene->at_place) && w->number > LEAST_ROUNDS},
		    all[RANKS];
	int rc = gather_through_changes(w->rank, &mine, all, sizeof(mine), survive, w);

	*enough = !rc;
	for (int r = 0; r < RANKS && !rc; r++) {
		*enough = *enough && (all[r].enough || !all[r].number);
		if (all[r].number && w->fresh) {
			w->number = all[r].number - 1;
			w->fresh = false;
		}
		if (all[r].number && all[r].number != w->number + 1)
			return rank_fails(w->rank, "rank %d is at %llu, and this one at %llu", r,
				(unsigned long long)all[r].number - 1,
				(unsigned long long)w->number);
	}
	return rc;
}

static int make_exchange(struct worker *w, uint32_t hidden, tern_moe **moe)
{
	int32_t logical[EXPERTS * COPIES], rank_of[EXPERTS * COPIES];
	struct tern_moe_config config;

	tokens_config(&config, w->scene->job.config.mode);
	config.hidden = hidden;
	config.first_epoch = UINT32_MAX - 20;
	config.placement = tokens_placement(logical, rank_of, COPIES, RANKS);
	return tern_moe_create(w->rank->group, &config, moe);
}

static int open_exchanges(struct worker *w)
{
	int rc = make_exchange(w, HIDDEN, &w->moe);

	rc = rc ? rc : make_exchange(w, HIDDEN, &w->other);
	w->y = aligned_alloc(64, sizeof(float) * HIDDEN * TOKENS * TOPK * RANKS);
	return rc ? rc : w->y ? 0 : TERN_ERR_NOMEM;
}

static void close_worker(struct worker *w)
{
	tern_moe_destroy(w->moe);
	tern_moe_destroy(w->other);
	tern_group_destroy(w->rank->group);
	free(w->y);
}

/* The round of w->number, however often members change in it. */
static int right_round(struct worker *w)
{
	int rc;

	draw_inputs(w);
	while ((rc = make_round(w, w->number, w->in.nr_tokens, tag_of(w->number))) ==
		TERN_ERR_MEMBERS)
		if ((rc = survive_all(survive, w)))
			return rc;
	return rc ? rc : check_sums(w);
}

/* Whoever has come makes what is made later, as the others do. */
static int work_in_a_new_exchange(struct worker *w)
{
	tern_moe *one = w->moe, *other = w->other, *fresh = NULL;
	int rc;

	while ((rc = make_exchange(w, HIDDEN, &fresh)) == TERN_ERR_MEMBERS)
		if ((rc = survive_all(survive, w)))
			return rc;
	w->moe = w->other = fresh;
	for (int i = 0; i < 3 && !rc; i++, w->number++)
		rc = right_round(w);
	w->moe = one;
	w->other = other;
	tern_moe_destroy(fresh);
	return rc;
}

static int work(struct worker *w)
{
	bool enough = false;
	int rc = 0;

	for (; !rc && !enough; w->number++) {
		if (w->number % STEP == 0)
			rc = gather(w, &enough);
		if (rc || enough)
			break;
		rc = right_round(w);
		if (w->number == 2)
			atomic_fetch_add(&w->scene->nr_past, 1);
		atomic_fetch_add(&w->scene->nr_rounds, 1);
	}
	return rc ? rc : work_in_a_new_exchange(w);
}

static struct tern_rendezvous rendezvous(void)
{
	return (struct tern_rendezvous){.set = meeting_set, .get = meeting_get};
}

static void member_body(struct rank *rank)
{
	struct scene *s = rank->ctx;
	struct worker w = {.rank = rank, .scene = s};
	int rc;

	if (join(rank, &s->first, rank->rank))
		return;
	rc = open_exchanges(&w);
	rc = rc ? rc : work(&w);
	if (rc && !*rank->failure)
		rank_fails(rank, "round %llu: %d, %s", (unsigned long long)w.number, rc,
			tern_last_error());
	close_worker(&w);
}

static const char *other_node; /* where a newcomer comes from in place of its rank's */

static int try_to_join(struct rank *rank, int number, int silence_ms, int wait_ms)
{
	struct tern_group_config config;
	char node[16], transport[256];

	tern_group_config_init(&config);
	config.node = test_node(number, RANKS, node, sizeof(node));
	config.node = other_node ? other_node : config.node;
	config.transport = test_transport(number, transport, sizeof(transport));
	config.boot = (struct tern_boot){.rank = number, .nr_ranks = RANKS};
	config.elastic = 1;
	config.silence_ms = silence_ms;
	config.wait_ms = wait_ms;
	config.rendezvous = rendezvous();
	rank->rank = number;
	return tern_group_join(&config, &rank->group);
}

static int come_in(struct worker *w)
{
	struct tern_view view = {.size = sizeof(view)};
	struct tern_dispatch none = {.size = sizeof(none)};
	int rc = tern_group_view_change(w->rank->group, &view);

	if (rc)
		return rc;
	if (!(view.alive[0] >> w->rank->rank & 1) || view.joined[0] != 1u << w->rank->rank)
		return rank_fails(w->rank, "is in, and its view says it is not");
	if (tern_dispatch_send(w->moe, &none) != TERN_ERR_STATE)
		return rank_fails(w->rank, "serves before its first gathering");
	return 0;
}

/* From its first gathering on, which was the one of this round. */
static int serve(struct worker *w)
{
	bool enough;
	int rc = gather(w, &enough);

	if (rc)
		return rc;
	atomic_fetch_add(&w->scene->nr_past, 1);
	if (enough)
		return rank_fails(w->rank, "came when all was over");
	if (w->number % STEP)
		return rank_fails(w->rank, "began at %llu", (unsigned long long)w->number);
	rc = right_round(w);
	w->number++;
	return rc ? rc : work(w);
}

static int join_and_work(struct worker *w)
{
	struct rank *rank = w->rank;
	int rc = try_to_join(rank, rank->rank, w->scene->silence_ms, 30000);

	rc = rc ? rc : open_exchanges(w);
	rc = rc ? rc : come_in(w);
	rc = rc ? rc : serve(w);
	if (rc && !*rank->failure)
		rank_fails(rank, "newcomer, round %llu: %d, %s", (unsigned long long)w->number, rc,
			tern_last_error());
	close_worker(w);
	return rc;
}

static void newcomer_body(struct rank *rank)
{
	struct worker w = {.rank = rank, .scene = rank->ctx, .fresh = true};

	join_and_work(&w);
}

/* Others may have let it in, and left it out again: it comes as another. */
static void stubborn_body(struct rank *rank)
{
	for (int i = 0; i < 4; i++) {
		struct worker w = {.rank = rank, .scene = rank->ctx, .fresh = true};
		int rc = join_and_work(&w);

		if (rc != TERN_ERR_EXPELLED && rc != TERN_ERR_STATE)
			return;
		print_message("# %s\n", rank->failure);
		rank->group = NULL;
		*rank->failure = 0;
	}
	rank_fails(rank, "was left out again and again");
}

/* ---- scenes ---------------------------------------------------------------------------------- */

static pid_t start_one(struct scene *s, rank_main body, int r)
{
	struct rank rank = {.rank = r, .nr_ranks = s->nr_ranks, .ctx = s};
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	body(&rank);
	memcpy(s->failure[r], rank.failure, sizeof(rank.failure));
	_exit(*rank.failure ? 1 : 0);
}

static void nap_ns(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000),
			  .tv_nsec = (long)(ns % 1000000000)},
		NULL);
}

static bool anybody_fails(const struct scene *s)
{
	for (int r = 0; r < RANKS; r++)
		if (*s->failure[r])
			return true;
	return false;
}

/* Ranks that have come to their third round, or, newcomers, to their first. */
static void await(struct scene *s, int nr_past)
{
	unsigned long long end = now_ns() + SCENE_LIMIT_NS;

	while (atomic_load(&s->nr_past) < nr_past && now_ns() < end && !anybody_fails(s))
		nap_ns(100000);
}

static void strike(const pid_t *pids, int victim)
{
	kill(pids[victim], SIGKILL);
	assert_int_equal(waitpid(pids[victim], NULL, 0), pids[victim]);
}

static struct scene *start_scene(enum tern_mode mode, int silence_ms, pid_t *pids)
{
	struct scene *s = scene_open(RANKS, mode);

	s->elastic = true;
	s->silence_ms = silence_ms;
	s->rendezvous = rendezvous();
	s->victim = -1;
	scene_start(s, member_body, pids);
	await(s, RANKS);
	return s;
}

static struct scene *begin_scene(enum tern_mode mode, pid_t *pids)
{
	return start_scene(mode, 0, pids);
}

static void end_scene(struct scene *s, const pid_t *pids)
{
	atomic_store(&s->at_place, true);
	scene_finish(s, pids, 0);
	scene_close(s);
}

static uint64_t seed_of(uint64_t usual)
{
	const char *seed = getenv("TERN_TEST_SEED");

	return seed ? strtoull(seed, NULL, 0) : usual;
}

static void await_rounds(const struct scene *s, int nr)
{
	int end = atomic_load(&s->nr_rounds) + nr;
	unsigned long long limit = now_ns() + SCENE_LIMIT_NS;

	while (atomic_load(&s->nr_rounds) < end && now_ns() < limit && !anybody_fails(s))
		nap_ns(1000000);
}

/* least: rounds that the three others make meanwhile, each. */
static void come_in_places(int nr, int first, uint64_t random, int least)
{
	for (int i = first; i < first + nr; i++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s =
			begin_scene(i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT, pids);
		int victim = i % RANKS;

		nap_ns(random_below(&random, 8000000));
		strike(pids, victim);
		nap_ns(i & 2 ? random_below(&random, 3000000) : 0);
		await_rounds(s, least * (RANKS - 1));
		pids[victim] = start_one(s, newcomer_body, victim);
		await(s, RANKS + 1);
		print_message("# the change took up to %.3f ms\n",
			(double)atomic_load(&s->strike_ns) / 1e6);
		end_scene(s, pids);
	}
}

static void one_comes_in_its_place(void **state)
{
	(void)state;
	come_in_places(scaled(8), 0, seed_of(3), 0);
}

/* Beside others that live on its node; and as the only one there, after so many rounds that the low
 * bits of an epoch do not tell how many. */
static void one_comes_between_nodes(void **state)
{
	(void)state;
	setenv("TERN_TEST_NODES", "2", 0);
	come_in_places(scaled(2), 1, seed_of(3), 0);
	setenv("TERN_TEST_NODES", "aaab", 1);
	come_in_places(1, 3, seed_of(4), 150);
	come_in_places(1, 2, seed_of(5), 150);
	unsetenv("TERN_TEST_NODES");
}

/* The node of a rank that was alone there is gone, and one comes from another. */
static void one_comes_from_a_new_node(void **state)
{
	(void)state;
	setenv("TERN_TEST_NODES", "aaab", 1);
	other_node = "elsewhere";
	come_in_places(1, 3, seed_of(6), 0);
	other_node = NULL;
	unsetenv("TERN_TEST_NODES");
}

/* One after the other, in two places, and again in the first. */
static void several_come(void **state)
{
	uint64_t random = seed_of(5);

	(void)state;
	BOTH_MODES(mode)
	{
		pid_t pids[MAX_PROCESSES];
		struct scene *s = begin_scene(mode, pids);

		for (int i = 0; i < 3; i++) {
			int victim = i == 1 ? 3 : 1;

			strike(pids, victim);
			nap_ns(random_below(&random, 2000000));
			pids[victim] = start_one(s, newcomer_body, victim);
			await(s, RANKS + 1 + i);
		}
		end_scene(s, pids);
	}
}

/* Two places are vacant, and two come at the same time. */
static void come_at_once(int nr)
{
	for (int i = 0; i < nr; i++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s =
			begin_scene(i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT, pids);

		strike(pids, i % RANKS);
		strike(pids, (i + 2) % RANKS); /* neighbours hold the same experts */
		pids[i % RANKS] = start_one(s, newcomer_body, i % RANKS);
		pids[(i + 2) % RANKS] = start_one(s, newcomer_body, (i + 2) % RANKS);
		await(s, RANKS + 2);
		end_scene(s, pids);
	}
}

static void two_come_at_once(void **state)
{
	(void)state;
	come_at_once(scaled(4));
}

/* At any moment of its way in, and after it; then another one comes. */
static void kill_newcomers(int nr, uint64_t random)
{
	for (int i = 0; i < nr; i++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s =
			begin_scene(i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT, pids);
		int victim = i % RANKS, past;

		strike(pids, victim);
		for (int k = 0; k < 4; k++) {
			pids[victim] = start_one(s, newcomer_body, victim);
			nap_ns(random_below(&random, k & 1 ? 6000000 : 25000000));
			strike(pids, victim);
		}
		past = atomic_load(&s->nr_past);
		pids[victim] = start_one(s, newcomer_body, victim);
		await(s, past + 1);
		end_scene(s, pids);
	}
}

static void newcomers_are_killed(void **state)
{
	(void)state;
	kill_newcomers(scaled(8), seed_of(7));
}

/* At any moment of another's way in. In its place comes one, too. */
static void kill_members(int nr, uint64_t random)
{
	for (int i = 0; i < nr; i++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s =
			begin_scene(i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT, pids);
		int victim = i % RANKS, second = (victim + 2) % RANKS;

		strike(pids, victim);
		pids[victim] = start_one(s, newcomer_body, victim);
		nap_ns(random_below(&random, 20000000));
		strike(pids, second);
		await(s, RANKS + 1);
		pids[second] = start_one(s, newcomer_body, second);
		await(s, RANKS + 2);
		end_scene(s, pids);
	}
}

static void members_are_killed(void **state)
{
	(void)state;
	kill_members(scaled(8), seed_of(9));
}

/* The second is of the other node, where its neighbour knows of its death. */
static void deaths_between_nodes(void **state)
{
	(void)state;
	setenv("TERN_TEST_NODES", "2", 0);
	come_at_once(1);
	kill_newcomers(scaled(2), seed_of(7));
	kill_members(scaled(2), seed_of(9));
	unsetenv("TERN_TEST_NODES");
}

/* Alone on its node, where nobody can tell a process that is stopped from one that is gone: if it
 * was let in before it heard of that, it is left out as silent, and comes again. */
static void newcomers_are_stopped(void **state)
{
	uint64_t random = seed_of(15);

	(void)state;
	setenv("TERN_TEST_NODES", "aaab", 1);
	for (int i = 0; i < scaled(2); i++) {
		pid_t pids[MAX_PROCESSES];
		struct scene *s =
			start_scene(i & 1 ? TERN_LOW_LATENCY : TERN_HIGH_THROUGHPUT, 1000, pids);

		strike(pids, 3);
		pids[3] = start_one(s, stubborn_body, 3);
		nap_ns(random_below(&random, 60000000));
		kill(pids[3], SIGSTOP);
		nap_ns(1500000000);
		kill(pids[3], SIGCONT);
		await(s, RANKS + 1);
		end_scene(s, pids);
	}
	unsetenv("TERN_TEST_NODES");
}

/* ---- who is refused -------------------------------------------------------------------------- */

static void expect(struct rank *rank, const char *what, int rc, int due, const char *text)
{
	if (rc != due || !strstr(tern_last_error(), text))
		rank_fails(rank, "%s: returned %d, \"%s\"", what, rc, tern_last_error());
	tern_group_destroy(rank->group);
	rank->group = NULL;
}

static void other_settings(struct rank *rank)
{
	struct worker w = {.rank = rank, .scene = rank->ctx};
	int place = rank->rank, rc;

	expect(rank, "a place that is not vacant", try_to_join(rank, (place + 1) % RANKS, 0, 30000),
		TERN_ERR_STATE, "not vacant");
	if (getenv("TERN_TEST_NODES")) {
		other_node = "elsewhere";
		expect(rank, "another node", try_to_join(rank, place, 0, 30000),
			TERN_ERR_UNSUPPORTED,
			"newcomers come to the node of those that live there");
		other_node = NULL;
	}
	expect(rank, "another silence", try_to_join(rank, place, 5000, 30000), TERN_ERR_MISMATCH,
		"silence_ms is 5000; the members have 0");
	rc = try_to_join(rank, place, 0, 30000);
	rc = rc ? rc : make_exchange(&w, 2 * HIDDEN, &w.moe);
	expect(rank, "another exchange", rc, TERN_ERR_MISMATCH,
		"the newcomer has hidden 128; the members have 64");
	rc = try_to_join(rank, place, 0, 30000);
	rc = rc ? rc : make_exchange(&w, HIDDEN, &w.moe);
	if (!rc) {
		struct tern_view view = {.size = sizeof(view)};

		rc = tern_group_view_change(rank->group, &view);
		tern_moe_destroy(w.moe);
	}
	expect(rank, "one exchange too few", rc, TERN_ERR_STATE, "1 of the 2 elastic exchanges");
	is_forged = true;
	expect(rank, "a wrong secret", try_to_join(rank, place, 0, 300), TERN_ERR_BOOTSTRAP,
		"none of 3 has");
	is_forged = false;
}

/* They say nothing, or anything, or hang up. */
static void strangers(struct rank *rank)
{
	unsigned char noise[sizeof(struct join_message)];
	struct join_card card;
	uint64_t random = 17;

	for (int i = 0; i < 300; i++) {
		size_t bytes = sizeof(card);
		char key[32];
		int s;

		snprintf(key, sizeof(key), JOIN_KEY, (rank->rank + 1 + i % 3) % RANKS);
		if (meeting_get(NULL, key, &card, &bytes, 0) ||
			(s = i & 4 && card.far.nr ? far_connect(&card.far, 1000)
						  : local_connect(&card.address)) < 0) {
			rank_fails(rank, "no door of %s", key);
			return;
		}
		for (size_t b = 0; b < sizeof(noise); b++)
			noise[b] = (unsigned char)random_below(&random, 256);
		if (i % 3)
			send(s, noise, i % 3 == 1 ? sizeof(noise) : 7, MSG_NOSIGNAL);
		if (i % 2)
			close(s);
	}
}

static void refused_body(struct rank *rank)
{
	strangers(rank);
	if (!*rank->failure)
		other_settings(rank);
}

/* Meanwhile the others go on, and have no change of members; then the right one comes. */
static void refuse_some(enum tern_mode least)
{
	for (enum tern_mode mode = least; mode <= TERN_HIGH_THROUGHPUT; mode++) {
		pid_t pids[MAX_PROCESSES], refused;
		struct scene *s = begin_scene(mode, pids);
		int status, rounds;

		strike(pids, 2);
		rounds = atomic_load(&s->nr_rounds);
		refused = start_one(s, refused_body, 2);
		assert_int_equal(waitpid(refused, &status, 0), refused);
		if (*s->failure[2])
			fail_msg("%s", s->failure[2]);
		assert_int_equal(status, 0);
		assert_true(atomic_load(&s->nr_rounds) > rounds + 3);
		assert_int_equal(atomic_load(&s->nr_told), 0);
		pids[2] = start_one(s, newcomer_body, 2);
		await(s, RANKS + 1);
		end_scene(s, pids);
	}
}

static void who_is_refused_holds_up_nobody(void **state)
{
	(void)state;
	refuse_some(TERN_LOW_LATENCY);
}

static void refusals_between_nodes(void **state)
{
	(void)state;
	setenv("TERN_TEST_NODES", "2", 0);
	refuse_some(TERN_HIGH_THROUGHPUT);
	unsetenv("TERN_TEST_NODES");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_comes_in_its_place),
		cmocka_unit_test(several_come),
		cmocka_unit_test(two_come_at_once),
		cmocka_unit_test(newcomers_are_killed),
		cmocka_unit_test(members_are_killed),
		cmocka_unit_test(who_is_refused_holds_up_nobody),
		cmocka_unit_test(one_comes_between_nodes),
		cmocka_unit_test(one_comes_from_a_new_node),
		cmocka_unit_test(deaths_between_nodes),
		cmocka_unit_test(newcomers_are_stopped),
		cmocka_unit_test(refusals_between_nodes),
	};

	if (getenv("TERN_FORCE_ENGINE")) {
		printf("newcomers join on the nodes that there are\n");
		return 77;
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, open_meeting, close_meeting);
}
