/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/signal/signal.h"
#include "testkit/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROOM (4u << 20)
#define MOST_RANKS 512

static const char *const names[NR_SIGNAL_POLICIES] = {
	"put-only", "coupled", "coupled-all-peers", "decoupled", "nic-fence", "perseus", "imm"};

const char *signal_policy_name(enum signal_policy policy)
{
	return names[policy];
}

bool signal_policy_drains(enum signal_policy policy)
{
	return policy == SIGNAL_COUPLED || policy == SIGNAL_COUPLED_ALL_PEERS ||
	       policy == SIGNAL_DECOUPLED;
}

bool signal_policy_groups(enum signal_policy policy)
{
	return policy == SIGNAL_DECOUPLED || policy == SIGNAL_PERSEUS;
}

/* ---- the model: docs/signals.md says where each number comes from ---------------------------- */

void signal_job_init(struct signal_job *job)
{
	memset(job, 0, sizeof(*job));
	job->nr_ranks = 32;
	job->ranks_per_node = 4;
	job->spread_all = true;
	job->concurrency = 96;
	job->bytes = 4096;
	job->seed = 1;
	job->iters = 10;
	job->drain_ns = 2162;
	sim_settings_init(&job->network);
	job->network.fence = true;
	job->network.depth = 8192;
	job->network.inline_bytes = 8; /* signals, and no puts */
	job->network.far = (struct sim_link){.latency_ns = 2000, .jitter_ns = 200};
	job->network.nic = (struct sim_nic){.post_ns = 1415,
		.inline_post_ns = 526,
		.request_ns = 50,
		.completion_ns = 500,
		.bytes_per_second = 25000000000,
		.nr_queue_pairs = 0};
}

int signal_job_check(const struct signal_job *job, struct reason *why)
{
	if (job->nr_ranks < 2 || job->nr_ranks > MOST_RANKS)
		return refuse(why, "%u ranks: allowed are 2 to %u", job->nr_ranks, MOST_RANKS);
	if (!job->ranks_per_node || job->ranks_per_node >= job->nr_ranks)
		return refuse(why, "%u ranks a node leave no remote rank among %u",
			job->ranks_per_node, job->nr_ranks);
	if (job->bytes <= sizeof(uint64_t) || job->bytes > MOST_ROOM)
		return refuse(why, "%llu bytes: allowed are 9 to %u",
			(unsigned long long)job->bytes, MOST_ROOM);
	if (!job->concurrency || job->concurrency > 65536)
		return refuse(why, "concurrency is %u: allowed are 1 to 65536", job->concurrency);
	if (job->nr_peers > signal_nr_remote(job))
		return refuse(why, "%u peers, but there are %u remote ranks", job->nr_peers,
			signal_nr_remote(job));
	return 0;
}

uint32_t signal_nr_remote(const struct signal_job *job)
{
	return job->nr_ranks - job->ranks_per_node;
}

uint64_t signal_drain_cost(const struct signal_job *job)
{
	uint32_t nr = job->policy == SIGNAL_COUPLED_ALL_PEERS ? job->nr_ranks - 1 : 1;

	return job->drain_ns * (job->nr_drained ? job->nr_drained : nr);
}

/* ---- who sends what to whom ------------------------------------------------------------------ */

/* The peers' popularity, summed up; the order of popularity is the same for all ranks. */
static void make_weights(const struct signal_job *job, double *sums)
{
	uint64_t state = job->seed * 77 + 5;
	uint32_t i, j, order[MOST_RANKS];
	double sum = 0;

	for (i = 0; i < job->nr_ranks; i++) {
		j = random_below(&state, i + 1);
		order[i] = order[j];
		order[j] = i;
	}
	for (i = 0; i < job->nr_ranks; i++)
		sums[order[i]] = pow(i + 1, -job->zipf);
	for (i = 0; i < job->nr_ranks; i++)
		sums[i] = sum += sums[i];
}

static uint32_t draw_rank(const double *sums, uint32_t nr, uint64_t *state)
{
	double at = (double)(random_next(state) >> 11) * 0x1p-53 * sums[nr - 1];
	uint32_t i = 0;

	while (i + 1 < nr && sums[i] <= at)
		i++;
	return i;
}

/* The remote rank number `i`, counted from the next node on. */
static uint32_t remote_rank(const struct signal_job *job, uint32_t rank, uint32_t i)
{
	uint32_t node_end = (rank / job->ranks_per_node + 1) * job->ranks_per_node;

	return (node_end + i) % job->nr_ranks;
}

static bool is_remote(const struct signal_job *job, uint32_t a, uint32_t b)
{
	return a / job->ranks_per_node != b / job->ranks_per_node;
}

static uint32_t choose_peer(const struct signal_job *job, uint32_t rank, uint32_t i,
	const double *sums, uint64_t *state)
{
	uint32_t nr = job->nr_peers ? job->nr_peers : signal_nr_remote(job), peer;

	if (job->zipf > 0) {
		do
			peer = draw_rank(sums, job->nr_ranks, state);
		while (!job->spread_all && !is_remote(job, rank, peer));
		return peer;
	}
	if (job->spread_all && !job->nr_peers)
		return (rank + i) % job->nr_ranks;
	return remote_rank(job, rank, i % nr);
}

/* The peer's number counted from this rank: groups are made of neighbours in this order, so that
 * ranks do not all begin with the same peer. */
static uint32_t turn_of(const struct signal_job *job, uint32_t rank, uint32_t peer)
{
	uint32_t first = remote_rank(job, rank, 0);

	return (peer + job->nr_ranks - first) % job->nr_ranks;
}

/* Sorts by group, keeping the order otherwise: counting sort. */
static int sort_by_group(const struct signal_job *job, uint32_t rank, struct signal_plan *plan)
{
	uint32_t size = job->group ? job->group : job->nr_ranks,
		 nr_groups = (job->nr_ranks + size - 1) / size, g, i, at = 0;
	struct signal_transfer *sorted = calloc(plan->nr + 1, sizeof(*sorted));
	bool seen[MOST_RANKS] = {false};

	if (!sorted)
		return -1;
	for (g = 0; g < nr_groups; g++) {
		for (i = 0; i < plan->nr; i++) {
			struct signal_transfer *transfer = &plan->transfers[i];

			if (turn_of(job, rank, transfer->peer) / size != g)
				continue;
			transfer->first = !seen[transfer->peer];
			seen[transfer->peer] = true;
			sorted[at++] = *transfer;
		}
		if (at)
			sorted[at - 1].last_of_group = true;
	}
	free(plan->transfers);
	plan->transfers = sorted;
	return 0;
}

int signal_plan_make(
	const struct signal_job *job, uint32_t rank, uint32_t iter, struct signal_plan *plan)
{
	uint64_t state = hash4(job->seed, rank, iter, 0x51);
	uint32_t i, nr_to[MOST_RANKS] = {0};
	double sums[MOST_RANKS];

	plan->nr = 0;
	plan->transfers = calloc(job->concurrency, sizeof(*plan->transfers));
	if (!plan->transfers)
		return -1;
	if (job->one_sender && rank)
		return 0;
	make_weights(job, sums);
	for (i = 0; i < job->concurrency; i++) {
		uint32_t peer = choose_peer(job, rank, i, sums, &state);

		if (!is_remote(job, rank, peer))
			continue;
		plan->transfers[plan->nr++] = (struct signal_transfer){
			.peer = peer, .place = rank * job->concurrency + nr_to[peer]++};
	}
	return sort_by_group(job, rank, plan);
}

void signal_plan_free(struct signal_plan *plan)
{
	free(plan->transfers);
	plan->transfers = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + 63) & ~(uint64_t)63;
}

int signal_memory_make(const struct signal_job *job, struct signal_memory *memory)
{
	uint64_t i, all;

	memory->nr_places = job->nr_ranks * job->concurrency;
	all = round_up(job->bytes) * memory->nr_places;
	memory->room = all < MOST_ROOM ? all : MOST_ROOM;
	memory->words_at = memory->room;
	memory->source_at = round_up(memory->words_at + memory->nr_places * sizeof(uint64_t));
	memory->bytes = memory->source_at + memory->room;
	memory->base = calloc(1, memory->bytes);
	if (!memory->base)
		return -1;
	for (i = 0; i < memory->room; i++)
		memory->base[memory->source_at + i] = (uint8_t)(mix64(i) | 1);
	return 0;
}

void signal_memory_free(struct signal_memory *memory)
{
	free(memory->base);
	memory->base = NULL;
}

uint64_t signal_data_at(
	const struct signal_job *job, const struct signal_memory *memory, uint32_t place)
{
	return place % (memory->room / round_up(job->bytes)) * round_up(job->bytes);
}

/* Every rank's source is the same, and data lands where it came from: places that share room do no
 * harm. */
bool signal_has_data(
	const struct signal_job *job, const struct signal_memory *memory, uint32_t place)
{
	uint64_t at = signal_data_at(job, memory, place);

	return !memcmp(memory->base + at, memory->base + memory->source_at + at, job->bytes);
}
