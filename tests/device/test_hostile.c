/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges on GPUs, between threads of one process, with a peer that writes what no correct one
 * does: each kind of word in a window that kernels follow is overwritten, and has to become a
 * report and an error; then any words with any values, which must not lead a kernel out of its
 * memory (AddressSanitizer sees that on emulated GPUs, compute-sanitizer on real ones). Then all of
 * it again with the ranks on two nodes, where what is followed lies in pinned memory, and the
 * engine writes there. Skipped where there is no GPU. TERN_TEST_SEED: where to start (1);
 * TERN_TEST_CASES: how many words at random (40), and half as many on two nodes. TERN_TEST_WITHOUT:
 * leaves out tests whose names contain one of these words, with commas between them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "testkit/random.h"
#include "base/clock.h"
#include "gpu/host/internode.h"
#include "gpu/host/inside.h"
#include "gpu/wire/internode.h"
#include "tests/device/devices.h"
#include "tests/device/hostile_attacks.h"

static const struct bench_device_ops *ops;

struct scene {
	struct job job;
	const struct attack *attack;
	bool internode;
	const struct internode_table *table; /* rank 1's, if so */
};

/* ---- what the peer writes -------------------------------------------------------------------- */

/* Where rank 0 writes: rank 1's window, or what the engine writes for it. */
static uint8_t *place(const struct device_rounds *r, const struct internode_table *internode,
	enum internode_part part, uint64_t offset)
{
	return internode ? internode->from[part][0] + offset
			 : (uint8_t *)r->moe->device->windows[1] + offset;
}

static int poke(struct device_rounds *r, uint8_t *to, const void *value, uint64_t bytes)
{
	int rc = ops->copy(to, value, bytes, r->lanes[0].stream);

	return rc ? rc : ops->stream_wait(r->lanes[0].stream);
}

static int poke_word(struct device_rounds *r, uint8_t *to, uint32_t value)
{
	return poke(r, to, &value, sizeof(value));
}

static uint8_t *arrival_word(const struct internode_table *internode, enum internode_kind kind)
{
	return (uint8_t *)internode->words + (uint64_t)kind * 2 * GPU_LINE_BYTES;
}

/* Rank 0's counts of the first round: zeros but for some; then their word. */
static int poke_counts(
	struct device_rounds *r, const struct internode_table *internode, const struct attack *a)
{
	const struct ht_window *w = &r->moe->device->layout.ht;
	uint32_t counts[NR_EXPERTS + 2 + 2] = {0};
	int rc;

	for (uint32_t e = 0; e < NR_EXPERTS && a->word == COUNTS; e++)
		counts[e] = e < NR_LOCAL ? 0 : a->value;
	if (a->word == COUNT)
		counts[a->index] = a->value;
	rc = poke(r, place(r, internode, INTERNODE_ODD_COUNTS, w->counts + 2 * w->counts_bytes),
		counts, sizeof(counts));
	return rc ? rc
		  : poke_word(r,
			    internode ? arrival_word(internode, INTERNODE_COUNTS_ODD)
				      : place(r, NULL, INTERNODE_PLAN,
						w->count_words + 2 * GPU_LINE_BYTES),
			    1);
}

static int poke_anything(
	struct device_rounds *r, const struct internode_table *internode, const struct attack *a)
{
	const struct device_layout *l = &r->moe->device->layout;
	bool low = a->mode == TERN_LOW_LATENCY;
	uint64_t end = low ? l->window.results : l->ht.x, state = hash2(a->index, 0x686f7374);
	uint64_t most = low && random_below(&state, 2) ? l->window.rows : end; /* plans are few
										  bytes of many */
	uint64_t offset =
		random_below(&state,
			(uint32_t)((internode ? internode->head_bytes[INTERNODE_DISPATCH] : most) /
				   4)) *
		4ull;
	const uint32_t values[] = {0, 1, random_below(&state, 64), UINT32_MAX,
		(uint32_t)random_next(&state), 0x7fffffff, 0x00080008, random_below(&state, 4096)};
	uint64_t message =
		(low ? l->window.plans : l->ht.heads) - INTERNODE_HEAD_BYTES; /* an
										 internode
										 rank's
										 begins
										 before
										 what
										 lies
										 there in
										 a window
									       */

	return poke_word(r,
		place(r, internode, low ? INTERNODE_PLAN : INTERNODE_HEADS,
			internode ? message + offset : offset),
		values[random_below(&state, 8)]);
}

static int strike(
	struct device_rounds *r, const struct internode_table *internode, const struct attack *a)
{
	const struct device_layout *l = &r->moe->device->layout;
	uint64_t own_head = l->ht.heads + NR_TOKENS * TOPK * 16;
	uint16_t id = (uint16_t)a->value;

	switch (a->word) {
	case PLAN_TOKENS:
		return poke_word(r,
			place(r, internode, INTERNODE_PLAN, l->window.plans + 7 * 16 + 8),
			a->value);
	case PLAN_ID:
		return poke(
			r, place(r, internode, INTERNODE_PLAN, l->window.plans), &id, sizeof(id));
	case PLAN_OTHER:
		return poke(r,
			place(r, internode, INTERNODE_PLAN, l->window.plans + TOPK * sizeof(id)),
			&id, sizeof(id));
	case COUNT:
	case COUNTS:
		return poke_counts(r, internode, a);
	case POSITION:
		return poke_word(r, place(r, internode, INTERNODE_HEADS, l->ht.heads), a->value);
	case LOCAL:
		return poke_word(
			r, place(r, internode, INTERNODE_HEADS, l->ht.heads + 8), a->value);
	case NUMBER:
		return poke_word(
			r, place(r, internode, INTERNODE_NUMBERS, a->index * 4ull), a->value);
	case WAY:
	case WAY_TO:
	case WAY_POSITION:
		return poke_word(r,
			place(r, internode, INTERNODE_WAYS,
				(uint64_t)a->index * internode->way_bytes +
					(a->word == WAY_TO                ? 4
						: a->word == WAY_POSITION ? INTERNODE_WAY_BYTES
									  : 0)),
			a->value);
	case WAY_GROUP:
		return poke_word(r,
			place(r, internode, INTERNODE_WAYS, INTERNODE_WAY_BYTES + a->index * 4ull),
			a->value);
	case OWN_POSITION:
		return poke_word(r, place(r, internode, INTERNODE_HEADS, own_head), a->value);
	case OWN_EPOCH:
		return poke_word(r, place(r, internode, INTERNODE_HEADS, own_head + 12), a->value);
	case ARRIVAL:
		return poke_word(r, arrival_word(internode, INTERNODE_DISPATCH), a->value);
	case ANYTHING:
		return poke_anything(r, internode, a);
	}
	return -1;
}

/* What rank 0 has sent to another node is there when its engine, the network and rank 1's proxy
 * have done their part. */
static bool has_arrived(const struct internode_table *internode)
{
	uint64_t end = clock_ns() + 5000000000ull;

	while (__atomic_load_n((uint32_t *)arrival_word(internode, INTERNODE_DISPATCH),
		       __ATOMIC_ACQUIRE) != 1)
		if (clock_ns() > end)
			return false;
		else
			usleep(100);
	return true;
}

/* ---- a round around it ----------------------------------------------------------------------- */

/* Token 0 goes to rank 1 at once, so that its head there has a position. */
static int prepare(struct device_rounds *r)
{
	static const int32_t ids[NR_TOKENS * TOPK] = {4, 0, 5, 1, 6, 7, 2, 3};
	struct device_lane *lane = &r->lanes[0];
	int rc = ops->copy(lane->ids, ids, sizeof(ids), lane->stream);

	rc = rc ? rc : ops->fill(lane->x, 0, NR_TOKENS * 512, lane->stream);
	rc = rc ? rc : ops->fill(lane->y, 0, r->positions * 512, lane->stream);
	return rc ? rc : ops->stream_wait(lane->stream);
}

static void let_strike(struct rank *rank, struct device_rounds *r, const struct scene *scene)
{
	const struct attack *a = scene->attack;

	ranks_meet(rank);
	if (rank->rank == 0 && scene->table && a->moment != INSTEAD && !has_arrived(scene->table))
		rank_fails(rank, "nothing arrives on the other node");
	if (rank->rank == 0 && strike(r, scene->table, a))
		rank_fails(rank, "the window cannot be written: %s", ops->error_text());
	ranks_meet(rank);
}

/* Half by half, the stroke between two of them; what was told first. */
static int play(struct rank *rank, struct device_rounds *r, struct scene *scene)
{
	const struct attack *a = scene->attack;
	int rc = prepare(r);

	if (rank->rank == 1 && scene->internode)
		scene->table = device_internode_tables(r->moe->device->internode);
	for (uint32_t half = 0; half < 4; half++) {
		if (half == (a->moment == WHOLE ? 2 : (uint32_t)a->moment))
			let_strike(rank, r, scene);
		if (a->moment == WHOLE && half == 2)
			return rc ? rc : devices_combine(r);
		if (!rc && (rank->rank || half || a->moment != INSTEAD))
			rc = devices_half(r, half, NR_TOKENS);
	}
	return rc;
}

/* After any word, which may be a plan's version of the placement. Who was told so has given up, and
 * the other one may learn of that. */
static bool is_answer(int rc)
{
	return !rc || rc == TERN_ERR_PROTOCOL || rc == TERN_ERR_TIMEOUT ||
	       rc == TERN_ERR_CAPACITY || rc == TERN_ERR_PEER_LEFT || rc == TERN_ERR_MISMATCH;
}

static void judge(struct rank *rank, const struct attack *a, int rc)
{
	bool any = a->word == ANYTHING;

	if (any && !is_answer(rc))
		rank_fails(rank, "%d: %s", rc, tern_last_error());
	if (!any && rank->rank == 1 && (rc != a->rc || !strstr(tern_last_error(), a->text)))
		rank_fails(rank, "got %d (%s), wanted %d (...%s...)", rc,
			rc ? tern_last_error() : "", a->rc, a->text);
}

static void body(struct rank *rank)
{
	struct scene *scene = rank->ctx;
	struct device_rounds rounds = {0};
	int rc = device_choose(ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(&rounds, rank->group, &scene->job, ops);
	if (rc)
		rank_fails(rank, "open: %s", tern_last_error());
	else
		judge(rank, scene->attack, play(rank, &rounds, scene));
	devices_close(rank, &rounds);
}

static const char *run(const struct attack *a, bool internode)
{
	struct scene scene = {.attack = a, .internode = internode};
	struct job *job = &scene.job;
	const char *failure;
	struct reason why;

	job_init(job);
	job->nr_ranks = 2;
	job->nr_tokens = job->config.max_tokens = NR_TOKENS;
	job->config.hidden = 256;
	job->config.nr_experts = NR_EXPERTS;
	job->config.topk = TOPK;
	job->config.device = TERN_DEVICE_CUDA;
	job->config.wait_ms = 300;
	job->config.mode = a->mode;
	job->config.replica_ranks = a->replicas ? 2 : 1;
	job->config.gate_rows = a->gated ? 64 : 0;
	job->spread = a->spread;
	if (a->word == NUMBER)
		job->config.reduce = TERN_REDUCE_EXPERT;
	if (a->by_source) {
		job->config.layout = TERN_BY_SOURCE;
		job->config.reduce = TERN_REDUCE_EXPERT;
		job->config.weights = TERN_WEIGHTS_PASS;
	}
	if (job_open(job, &why))
		return "no job";
	setenv("TERN_TEST_NODES", internode ? "ab" : "", 1);
	if (a->two_hops)
		setenv("TERN_FORCE_HOPS", "2", 1);
	failure = run_ranks(2, body, &scene);
	unsetenv("TERN_FORCE_HOPS");
	job_close(job);
	return failure;
}

/* ---- which ----------------------------------------------------------------------------------- */

static int words_at_random(bool internode)
{
	uint64_t seed = devices_setting("TERN_TEST_SEED", 1),
		 cases = devices_setting("TERN_TEST_CASES", 40) / (internode ? 2 : 1), done = 0;
	const char *failure = NULL;

	for (; done < cases && !failure; done++) {
		struct attack a = {
			.mode = (seed + done) % 2 ? TERN_HIGH_THROUGHPUT : TERN_LOW_LATENCY,
			.moment = SENT,
			.word = ANYTHING,
			.index = (uint32_t)(seed + done)};
		uint64_t state = hash2(a.index, 0x776f7264);

		a.moment = a.mode == TERN_HIGH_THROUGHPUT && random_below(&state, 3) == 0
				   ? random_below(&state, 2) ? WHOLE : RECEIVED
				   : SENT;
		a.spread = random_below(&state, 2);
		a.by_source = random_below(&state, 2);
		a.replicas = random_below(&state, 2) && !internode; /* these have to be on one node
								     */
		a.two_hops = internode && random_below(&state, 2);
		a.gated = internode && !a.by_source && random_below(&state, 2);
		failure = run(&a, internode);
		if (failure)
			printf("seed %llu: %s\nrepeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=2\n",
				(unsigned long long)(seed + done), failure,
				(unsigned long long)(seed + done));
	}
	printf("# seeds %llu to %llu\n%s - words_at_random%s\n", (unsigned long long)seed,
		(unsigned long long)(seed + done - 1), failure ? "not ok" : "ok",
		internode ? "_internode" : "");
	return failure != NULL;
}

static int named_words(bool internode)
{
	int bad = 0;

	for (size_t i = 0; i < nr_attacks; i++) {
		const char *failure;

		if (devices_without(attacks[i].name) ||
			(internode ? attacks[i].replicas || attacks[i].only_near
				   : attacks[i].only_internode || attacks[i].two_hops))
			continue;
		failure = run(&attacks[i], internode);
		printf("%s - %s%s%s%s\n", failure ? "not ok" : "ok", attacks[i].name,
			internode ? "_internode" : "", failure ? ": " : "", failure ? failure : "");
		bad |= failure != NULL;
	}
	return bad;
}

int main(void)
{
	int bad = 0, nr = 0;

	ops = devices_open(&nr);
	if (!ops)
		return 77;
	for (int internode = 0; internode < 2; internode++) {
		bad |= named_words(internode);
		bad |= words_at_random(internode);
	}
	return bad;
}
