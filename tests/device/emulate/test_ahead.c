/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of high throughput that are all put on their streams before any has run, on emulated GPUs,
 * with one thread and a seed. One of two ranks sends rows; the other one has few or none to send,
 * and takes its time before it receives. So the first may be a round ahead, where its early rows go
 * to slots that the other one has not read yet. Most rounds are released: a rank that waits for
 * results knows by these that its rows were read. Each round's rows are all of one byte, and who
 * receives them looks at every one. TERN_TEST_SEED, TERN_TEST_CASES (20), TERN_TEST_SECONDS:
 * seeded.h; TERN_TEST_ROUNDS: of each case (8). */
#include <stdio.h>
#include <string.h>

#include "testkit/random.h"
#include "tests/device/emulate/seeded.h"

#define NR_RANKS 2
#define NR_LOCAL 4 /* experts of a rank, each of which gets every token of the other one */
#define MOST_TOKENS 24
#define MOST_ROUNDS 32

static struct seeded seeded;

/* How a round goes. */
struct plan {
	bool release;
	uint32_t nr_tokens[NR_RANKS];
	uint64_t pause_ns[NR_RANKS]; /* between the halves of the dispatch; 0: it is one kernel */
};

struct run {
	struct job job;
	uint64_t seed;
	uint32_t nr_rounds;
	struct plan plans[MOST_ROUNDS];
	int32_t ids[NR_RANKS][MOST_TOKENS * NR_LOCAL]; /* a rank's, in every round */
	uint8_t *received[NR_RANKS];                   /* host memory: each round's rows */
	struct device_rounds rounds[NR_RANKS];
};

static uint32_t rows_of(const struct run *run, uint32_t round, uint32_t rank)
{
	return run->plans[round].nr_tokens[1 - rank] * NR_LOCAL;
}

static uint64_t received_bytes(const struct run *run)
{
	return MOST_TOKENS * NR_LOCAL * job_received_bytes(&run->job);
}

static int byte_of(uint32_t round)
{
	return (int)(round + 1);
}

static int put_dispatch(
	struct run *run, uint32_t rank, uint32_t round, struct tern_received *received)
{
	struct device_rounds *r = &run->rounds[rank];
	const struct device_lane *lane = &r->lanes[0];
	uint64_t pause_ns = run->plans[round].pause_ns[rank];
	struct tern_dispatch args = {.size = sizeof(args),
		.nr_tokens = run->plans[round].nr_tokens[rank],
		.x = lane->x,
		.topk_ids = lane->ids};
	int rc;

	if (!pause_ns)
		return tern_dispatch(r->moe, &args, received);
	rc = tern_dispatch_send(r->moe, &args);
	rc = rc ? rc : seeded.ops->spin(pause_ns, lane->stream);
	return rc ? rc : tern_dispatch_recv(r->moe, 0, received);
}

/* One rank's kernels and copies of a round. */
static int put_round(struct run *run, uint32_t rank, uint32_t round)
{
	struct device_rounds *r = &run->rounds[rank];
	struct device_lane *lane = &r->lanes[0];
	uint32_t n = run->plans[round].nr_tokens[rank];
	uint64_t bytes = rows_of(run, round, rank) * job_received_bytes(&run->job);
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine combine = {.size = sizeof(combine), .y = lane->y};
	int rc = n ? seeded.ops->fill(
			     lane->x, byte_of(round), n * job_x_bytes(&run->job), lane->stream)
		   : 0;

	rc = rc ? rc : put_dispatch(run, rank, round, &received);
	rc = rc || !bytes ? rc
			  : seeded.ops->copy(run->received[rank] + round * received_bytes(run),
				    received.x, bytes, lane->stream);
	if (rc)
		return rc;
	return run->plans[round].release ? tern_release(r->moe, 0)
					 : tern_combine(r->moe, &combine, lane->out, 0);
}

static int look_at_rows(struct rank *rank, const struct run *run, uint32_t of)
{
	uint64_t row_bytes = job_received_bytes(&run->job);

	for (uint32_t round = 0; round < run->nr_rounds; round++)
		for (uint64_t i = 0; i < rows_of(run, round, of) * row_bytes; i++) {
			uint8_t byte = run->received[of][round * received_bytes(run) + i];

			if (byte != byte_of(round))
				return rank_fails(rank,
					"rank %u received byte %d at row %llu, %llu of round %u%s",
					of, byte, (unsigned long long)(i / row_bytes),
					(unsigned long long)(i % row_bytes), round,
					byte == byte_of(round + 1) ? ": that of the round behind"
								   : "");
		}
	return 0;
}

/* One thread, all ranks. */
static void drive(struct rank *rank, void *ctx)
{
	struct run *run = ctx;
	int rc = 0;

	for (uint32_t r = 0; r < NR_RANKS && !rc; r++)
		rc = seeded.ops->copy(run->rounds[r].lanes[0].ids, run->ids[r], sizeof(run->ids[r]),
			run->rounds[r].lanes[0].stream);
	for (uint32_t r = 0; r < NR_RANKS && !rc; r++)
		rc = seeded.ops->stream_wait(run->rounds[r].lanes[0].stream);
	seeded.reseed(run->seed);
	for (uint32_t i = 0; i < run->nr_rounds * NR_RANKS && !rc; i++)
		rc = device_choose(seeded.ops, i % NR_RANKS) ||
		     put_round(run, i % NR_RANKS, i / NR_RANKS);
	for (uint32_t r = 0; r < NR_RANKS && !rc; r++)
		rc = seeded.ops->stream_wait(run->rounds[r].lanes[0].stream) ||
		     tern_moe_status(run->rounds[r].moe);
	if (rc)
		rank_fails(rank, "%s", tern_last_error());
	for (uint32_t r = 0; r < NR_RANKS && !*rank->failure; r++)
		look_at_rows(rank, run, r);
}

static void body(struct rank *rank)
{
	struct run *run = rank->ctx;
	struct device_rounds *rounds = &run->rounds[rank->rank];
	uint8_t **received = &run->received[rank->rank];
	int rc = device_choose(seeded.ops, (uint32_t)rank->rank);

	rc = rc ? rc : device_rounds_open(rounds, rank->group, &run->job, seeded.ops);
	rc = rc ? rc
		: seeded.ops->host_create(run->nr_rounds * received_bytes(run), (void **)received);
	if (rc)
		rank_fails(rank, "open: %s", tern_last_error());
	if (ranks_meet(rank) || rc)
		return;
	seeded_drive(rank, drive, run);
	device_choose(seeded.ops, (uint32_t)rank->rank);
	device_rounds_close(rounds);
	seeded.ops->host_free(*received);
}

static void draw_run(uint64_t seed, struct run *run)
{
	uint64_t state = hash2(seed, 0x61686561);
	struct tern_moe_config *c = &run->job.config;
	uint32_t quick = random_below(&state, NR_RANKS);

	job_init(&run->job);
	run->job.nr_ranks = NR_RANKS;
	run->job.nr_tokens = MOST_TOKENS;
	c->mode = TERN_HIGH_THROUGHPUT;
	c->hidden = 256 << random_below(&state, 4);
	c->nr_experts = NR_RANKS * NR_LOCAL;
	c->topk = NR_LOCAL;
	c->max_tokens = MOST_TOKENS;
	c->device = TERN_DEVICE_CUDA;
	c->wait_ms = 5000; /* of the emulation's time */
	run->seed = hash2(seed, 0x72756e);
	run->nr_rounds = (uint32_t)devices_setting("TERN_TEST_ROUNDS", 8);
	run->nr_rounds = run->nr_rounds < MOST_ROUNDS ? run->nr_rounds : MOST_ROUNDS;
	for (uint32_t i = 0; i < run->nr_rounds; i++) {
		run->plans[i].release = random_below(&state, 4) != 0;
		run->plans[i].nr_tokens[quick] = 1 + random_below(&state, MOST_TOKENS);
		run->plans[i].nr_tokens[1 - quick] =
			random_below(&state, 4) ? 0 : 1 + random_below(&state, 3);
		run->plans[i].pause_ns[1 - quick] = random_below(&state, 4) * 50000;
	}
	for (uint32_t r = 0; r < NR_RANKS; r++)
		for (uint32_t i = 0; i < MOST_TOKENS * NR_LOCAL; i++)
			run->ids[r][i] = (int32_t)((1 - r) * NR_LOCAL + i % NR_LOCAL);
}

static int is_bad(uint64_t seed)
{
	static struct run run;
	const char *failure;
	struct reason why;

	memset(&run, 0, sizeof(run));
	draw_run(seed, &run);
	if (job_open(&run.job, &why)) {
		printf("seed %llu: no job: %s\n", (unsigned long long)seed, why.text);
		return 1;
	}
	failure = run_ranks(NR_RANKS, body, &run);
	if (failure)
		printf("seed %llu: %s\n", (unsigned long long)seed, failure);
	job_close(&run.job);
	return failure != NULL;
}

int main(void)
{
	return seeded_open(&seeded, NR_RANKS) ? seeded_cases("ahead", 20, is_bad) : 77;
}
