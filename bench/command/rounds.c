/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/rounds.h"
#include "testkit/random.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xa5
#define MOST_GAP 48                     /* bytes that a stride may add to a row */
#define TIMED_ROUND (UINT64_C(1) << 40) /* timed rounds have inputs of their own */
#define SETS_BYTES (UINT64_C(1) << 28)  /* of one rank's y rows in all sets, if several */

/* ---- buffers --------------------------------------------------------------------------------- */

static size_t mapped_bytes(size_t bytes)
{
	return bytes + 4096;
}

static void *map(size_t bytes)
{
	void *address = mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return address == MAP_FAILED ? NULL : address;
}

static void unmap(void *address, size_t bytes)
{
	if (address)
		munmap(address, mapped_bytes(bytes));
}

/* The worst case by the contract: every rank sends all that it may, to the experts of one rank. */
static uint64_t worst_positions(const struct reference *reference)
{
	const struct job *job = reference->job;
	const struct tern_moe_config *config = &job->config;
	uint64_t tokens =
		(uint64_t)job->nr_ranks *
		((config->max_tokens + config->replica_ranks - 1) / config->replica_ranks);
	uint64_t rank, most_local = 0;

	for (rank = 0; rank < job->nr_ranks; rank++)
		most_local = reference->nr_local[rank] > most_local ? reference->nr_local[rank]
								    : most_local;
	if (config->layout == TERN_BY_SOURCE)
		return tokens;
	if (config->layout == TERN_PADDED)
		return (config->capacity ? config->capacity : tokens) * most_local;
	return tokens * (config->topk < most_local ? config->topk : most_local) +
	       most_local * config->alignment;
}

struct sizes {
	size_t x, scales, y, out, into_x, into_scales, ids, weights;
};

static struct sizes buffer_sizes(const struct rounds *rounds)
{
	const struct job *job = rounds->job;
	size_t tokens = job->config.max_tokens, routes = tokens * job->config.topk;

	return (struct sizes){
		.x = tokens * (job_x_bytes(job) + MOST_GAP),
		.scales = tokens * (job_x_scales_bytes(job) + MOST_GAP),
		.y = rounds->positions * (job_y_bytes(job) + MOST_GAP),
		.out = tokens * (job_y_bytes(job) + MOST_GAP),
		.into_x = rounds->positions * job_received_bytes(job),
		.into_scales = rounds->positions * job_received_scales_bytes(job),
		.ids = routes * sizeof(int64_t),
		.weights = routes * sizeof(float),
	};
}

static bool map_all(struct rounds *rounds)
{
	struct sizes sizes = buffer_sizes(rounds);

	rounds->x = map(sizes.x);
	rounds->scales = map(sizes.scales);
	rounds->y = map(sizes.y);
	rounds->out = map(sizes.out);
	rounds->into_x = map(sizes.into_x);
	rounds->into_scales = map(sizes.into_scales);
	rounds->ids = map(sizes.ids);
	rounds->weights = map(sizes.weights);
	return rounds->x && rounds->scales && rounds->y && rounds->out && rounds->into_x &&
	       rounds->into_scales && rounds->ids && rounds->weights;
}

static void unmap_all(struct rounds *rounds)
{
	struct sizes sizes = buffer_sizes(rounds);
	uint32_t i;

	unmap(rounds->x, sizes.x);
	unmap(rounds->scales, sizes.scales);
	unmap(rounds->y, sizes.y);
	unmap(rounds->out, sizes.out);
	unmap(rounds->into_x, sizes.into_x);
	unmap(rounds->into_scales, sizes.into_scales);
	unmap(rounds->ids, sizes.ids);
	unmap(rounds->weights, sizes.weights);
	for (i = 0; i < MOST_SETS; i++) {
		unmap(rounds->sets[i].ids, sizes.ids);
		unmap(rounds->sets[i].weights, sizes.weights);
		unmap(rounds->sets[i].y, sizes.y);
		unmap(rounds->sets[i].out, sizes.out);
		free(rounds->sets[i].logical);
	}
}

/* ---- life ------------------------------------------------------------------------------------ */

static int create_barrier(struct rounds *rounds)
{
	struct tern_moe_config config;

	tern_moe_config_init(&config);
	config.hidden = 8;
	config.nr_experts = rounds->job->nr_ranks;
	config.topk = 1;
	config.max_tokens = 1;
	config.wait_ms = rounds->job->config.wait_ms;
	return tern_moe_create(rounds->group, &config, &rounds->barrier);
}

int rounds_open(struct rounds *rounds, tern_group *group, struct job *job)
{
	int rc;

	memset(rounds, 0, sizeof(*rounds));
	rounds->group = group;
	rounds->job = job;
	rounds->rank = (uint32_t)tern_group_rank(group);
	rounds->reference = reference_create(job);
	if (!rounds->reference)
		return TERN_ERR_NOMEM;
	rounds->positions = worst_positions(rounds->reference);
	rc = tern_moe_create(group, &job->config, &rounds->moe);
	if (!rc) {
		job_take_mode(job, rounds->moe);
		rc = create_barrier(rounds);
	}
	if (!rc && !map_all(rounds))
		rc = TERN_ERR_NOMEM;
	return rc;
}

void rounds_close(struct rounds *rounds)
{
	if (rounds->reference)
		unmap_all(rounds);
	tern_moe_destroy(rounds->barrier);
	tern_moe_destroy(rounds->moe);
	reference_destroy(rounds->reference);
	memset(rounds, 0, sizeof(*rounds));
}

/* ---- verified rounds ------------------------------------------------------------------------- */

/* How this rank makes its calls in this round: strides, width of the ids, whose buffers. Ranks may
 * differ in all of it. */
struct manner {
	size_t x_stride, scales_stride, y_stride, out_stride; /* 0: dense */
	bool wide_ids;
	bool own_buffers;
	bool release; /* instead of combine; the same on all ranks */
};

static size_t choose_stride(uint64_t *state, size_t row_bytes, size_t unit)
{
	uint32_t gap = random_below(state, 4);

	return gap ? row_bytes + (gap - 1) * unit : 0;
}

static struct manner choose_manner(const struct rounds *rounds, uint64_t round)
{
	const struct job *job = rounds->job;
	uint64_t common = hash2(job->seed ^ 0x6d616e, round), state = hash2(common, rounds->rank);
	struct manner manner;

	manner.x_stride = choose_stride(&state, job_x_bytes(job), 16);
	manner.scales_stride = choose_stride(
		&state, job_x_scales_bytes(job), job->config.scale == TERN_SCALE_FP32 ? 4 : 1);
	manner.y_stride = choose_stride(&state, job_y_bytes(job), 16);
	manner.out_stride = choose_stride(&state, job_y_bytes(job), 16);
	manner.wide_ids = random_below(&state, 2);
	manner.own_buffers = job->config.mode == TERN_LOW_LATENCY && random_below(&state, 2);
	manner.release = common % 8 == 0;
	return manner;
}

static void set_round(struct rounds *rounds, uint64_t round)
{
	if (rounds->reference->round != round)
		reference_set_round(rounds->reference, round);
}

/* In place, from the last one on: the wide id is written where narrow ones are no longer needed. */
static void widen(void *ids, size_t nr)
{
	int32_t *narrow = ids;

	while (nr--) {
		int64_t wide = narrow[nr];

		memcpy((char *)ids + nr * sizeof(wide), &wide, sizeof(wide));
	}
}

/* Experts go where that round wants them. */
static int place(struct rounds *rounds, uint64_t round, const int32_t *logical)
{
	uint32_t version = job_version(rounds->job, round);
	int rc;

	if (version == rounds->version)
		return 0;
	rc = tern_moe_place(rounds->moe, version, logical, job_nr_physical(rounds->job));
	rounds->version = rc ? rounds->version : version;
	return rc;
}

static int32_t *make_tables(const struct rounds *rounds, uint64_t round)
{
	int32_t *logical = calloc(job_nr_physical(rounds->job), sizeof(*logical));

	if (logical)
		job_place(rounds->job, job_version(rounds->job, round), logical);
	return logical;
}

static int place_verified(struct rounds *rounds, uint64_t round)
{
	int32_t *logical = make_tables(rounds, round);
	int rc = logical ? place(rounds, round, logical) : TERN_ERR_NOMEM;

	free(logical);
	return rc;
}

static int send_tokens(struct rounds *rounds, uint32_t slot, uint64_t round)
{
	const struct job *job = rounds->job;
	struct manner manner = choose_manner(rounds, round);
	size_t x_stride = manner.x_stride ? manner.x_stride : job_x_bytes(job);
	size_t scales_stride =
		manner.scales_stride ? manner.scales_stride : job_x_scales_bytes(job);
	bool scaled = job_x_scales_bytes(job) > 0;
	struct tern_dispatch args = {
		.size = sizeof(args),
		.slot = slot,
		.nr_tokens = job_nr_tokens(job, round, rounds->rank),
		.x = rounds->x,
		.x_stride = manner.x_stride,
		.scales = scaled ? rounds->scales : NULL,
		.scales_stride = scaled ? manner.scales_stride : 0,
		.topk_ids = rounds->ids,
		.topk_ids_bits = manner.wide_ids ? 64 : 0,
		.topk_weights = job->no_weights ? NULL : rounds->weights,
	};
	size_t routes = (size_t)args.nr_tokens * job->config.topk;
	int rc = place_verified(rounds, round);

	if (rc)
		return rc;
	job_x(job, round, rounds->rank, rounds->x, x_stride, scaled ? rounds->scales : NULL,
		scales_stride);
	job_routes(job, round, rounds->rank, rounds->ids, rounds->weights);
	if (manner.wide_ids)
		widen(rounds->ids, routes);
	rc = tern_dispatch_send(rounds->moe, &args);
	/* The library has read all it wanted: what it reads later is wrong. */
	memset(rounds->x, POISON, args.nr_tokens * x_stride);
	memset(rounds->scales, POISON, args.nr_tokens * scales_stride);
	memset(rounds->ids, POISON, routes * (manner.wide_ids ? 8 : 4));
	memset(rounds->weights, POISON, routes * sizeof(float));
	return rc;
}

/* Over all rows of the current round, where the received rows were. */
static int poison_rows(const struct rounds *rounds, char *rows, size_t stride)
{
	struct received_layout layout;
	uint32_t i;

	if (received_layout_create(rounds->reference, rounds->rank, &layout))
		return -1;
	for (i = 0; i < layout.nr_groups; i++)
		memset(rows + layout.offsets[i] * stride, POISON, layout.counts[i] * stride);
	received_layout_destroy(&layout);
	return 0;
}

static int receive_tokens(struct rounds *rounds, uint32_t slot, uint64_t round)
{
	const struct job *job = rounds->job;
	struct tern_received *received = &rounds->received[slot];
	int rc;

	*received = (struct tern_received){.size = sizeof(*received)};
	set_round(rounds, round);
	/* Slots share one buffer of ours, so only the first of them gets it. */
	if (choose_manner(rounds, round).own_buffers && slot == 0) {
		if (poison_rows(rounds, rounds->into_x, job_received_bytes(job)) ||
			poison_rows(rounds, rounds->into_scales, job_received_scales_bytes(job)))
			return TERN_ERR_NOMEM;
		received->into_x = rounds->into_x;
		received->into_scales = job_received_scales_bytes(job) ? rounds->into_scales : NULL;
	}
	rc = tern_dispatch_recv(rounds->moe, slot, received);
	if (rc)
		return rc;
	return verify_received(rounds->reference, rounds->rank, received, &rounds->difference)
		       ? TERN_ERR_NOMEM
		       : 0;
}

static int send_results(struct rounds *rounds, uint32_t slot, uint64_t round)
{
	const struct job *job = rounds->job;
	struct manner manner = choose_manner(rounds, round);
	size_t stride = manner.y_stride ? manner.y_stride : job_y_bytes(job);
	struct tern_combine args = {
		.size = sizeof(args), .slot = slot, .y = rounds->y, .y_stride = manner.y_stride};
	int rc;

	if (manner.release)
		return tern_release(rounds->moe, slot);
	set_round(rounds, round);
	if (fill_y(rounds->reference, rounds->rank, rounds->y, stride))
		return TERN_ERR_NOMEM;
	rc = tern_combine_send(rounds->moe, &args);
	if (poison_rows(rounds, rounds->y, stride))
		return TERN_ERR_NOMEM;
	return rc;
}

/* Bytes between rows, and after the last one, are the caller's. */
static void check_gaps(struct rounds *rounds, uint32_t nr_tokens, size_t row_bytes, size_t stride)
{
	uint32_t token;
	size_t i;

	for (token = 0; token <= nr_tokens; token++)
		for (i = token < nr_tokens ? row_bytes : 0; i < (token < nr_tokens ? stride : 64);
			i++)
			if ((unsigned char)rounds->out[token * stride + i] != POISON &&
				!rounds->difference.nr++)
				strcpy(rounds->difference.first,
					"combine_recv wrote beyond a row of out");
}

static int receive_results(struct rounds *rounds, uint32_t slot, uint64_t round)
{
	const struct job *job = rounds->job;
	struct manner manner = choose_manner(rounds, round);
	uint32_t nr_tokens = job_nr_tokens(job, round, rounds->rank);
	size_t stride = manner.out_stride ? manner.out_stride : job_y_bytes(job);
	int rc;

	if (manner.release)
		return 0;
	set_round(rounds, round);
	memset(rounds->out, POISON, nr_tokens * stride + 64);
	rc = tern_combine_recv(rounds->moe, slot, rounds->out, manner.out_stride);
	if (rc)
		return rc;
	check_gaps(rounds, nr_tokens, job_y_bytes(job), stride);
	return verify_combined(
		       rounds->reference, rounds->rank, rounds->out, stride, &rounds->difference)
		       ? TERN_ERR_NOMEM
		       : 0;
}

/* Ranks drift apart, so that each of them is the one that comes late. */
static void sleep_a_little(const struct rounds *rounds, uint64_t round, uint32_t half)
{
	uint64_t state = hash4(rounds->job->seed, round, half, rounds->rank);

	if (rounds->jitter_us)
		usleep(random_below(&state, rounds->jitter_us + 1));
}

int rounds_verify(struct rounds *rounds, uint64_t round)
{
	static int (*const halves[])(struct rounds *, uint32_t, uint64_t) = {
		send_tokens, receive_tokens, send_results, receive_results};
	uint32_t half, slot;
	int rc = 0;

	for (half = 0; half < 4; half++) {
		for (slot = 0; slot < rounds->job->config.nr_slots && !rc; slot++) {
			sleep_a_little(rounds, round + slot, half);
			rc = halves[half](rounds, slot, round + slot);
		}
	}
	return rc;
}

/* ---- timed rounds ---------------------------------------------------------------------------- */

static int prepare_set(struct rounds *rounds, struct round_set *set)
{
	struct sizes sizes = buffer_sizes(rounds);
	const struct job *job = rounds->job;

	set->nr_tokens = job_nr_tokens(job, set->round, rounds->rank);
	set->ids = map(sizes.ids);
	set->weights = map(sizes.weights);
	set->y = map(sizes.y);
	set->out = map(sizes.out);
	set->logical = make_tables(rounds, set->round);
	if (!set->ids || !set->weights || !set->y || !set->out || !set->logical)
		return TERN_ERR_NOMEM;
	job_routes(job, set->round, rounds->rank, set->ids, set->weights);
	set_round(rounds, set->round);
	memset(set->out, POISON, set->nr_tokens * job_y_bytes(job));
	/* Needed even if nobody compares: pages never written are all one page of zeros, fast
	 * beyond belief. */
	return fill_y(rounds->reference, rounds->rank, set->y, 0) ? TERN_ERR_NOMEM : 0;
}

int rounds_prepare(struct rounds *rounds, bool verify)
{
	const struct job *job = rounds->job;
	uint64_t set_bytes =
		(uint64_t)job->config.max_tokens * job->config.topk * job_y_bytes(job) + 1;
	uint32_t i;
	int rc = 0;

	rounds->nr_sets =
		SETS_BYTES / set_bytes < MOST_SETS ? (uint32_t)(SETS_BYTES / set_bytes) : MOST_SETS;
	rounds->nr_sets = rounds->nr_sets < 1 || (!verify && set_bytes > SETS_BYTES / 8)
				  ? 1
				  : rounds->nr_sets;
	for (i = 0; i < rounds->nr_sets && !rc; i++) {
		rounds->sets[i].round = TIMED_ROUND + i;
		rc = prepare_set(rounds, &rounds->sets[i]);
	}
	/* Of x, one set will do: nothing compares it here. */
	job_x(job, TIMED_ROUND, rounds->rank, rounds->x, job_x_bytes(job), rounds->scales,
		job_x_scales_bytes(job));
	return rc;
}

static int barrier(struct rounds *rounds)
{
	struct tern_dispatch args = {.size = sizeof(args)};
	struct tern_received received = {.size = sizeof(received)};
	int rc = tern_dispatch(rounds->barrier, &args, &received);

	return rc ? rc : tern_release(rounds->barrier, 0);
}

int rounds_dispatch(struct rounds *rounds, uint32_t i)
{
	const struct job *job = rounds->job;
	struct round_set *set = &rounds->sets[i % rounds->nr_sets];
	struct tern_dispatch dispatch = {
		.size = sizeof(dispatch),
		.slot = i % job->config.nr_slots,
		.nr_tokens = set->nr_tokens,
		.x = rounds->x,
		.scales = job_x_scales_bytes(job) ? rounds->scales : NULL,
		.topk_ids = set->ids,
		.topk_weights = job->no_weights ? NULL : set->weights,
	};
	struct tern_received received = {.size = sizeof(received)};
	int rc = place(rounds, set->round, set->logical);

	return rc ? rc : tern_dispatch(rounds->moe, &dispatch, &received);
}

int rounds_combine(struct rounds *rounds, uint32_t i)
{
	struct round_set *set = &rounds->sets[i % rounds->nr_sets];
	struct tern_combine combine = {
		.size = sizeof(combine), .slot = i % rounds->job->config.nr_slots, .y = set->y};

	set->timed = true;
	return tern_combine(rounds->moe, &combine, set->out, 0);
}

static int exchange_begin(void *ctx, uint32_t i)
{
	(void)i;
	return barrier(ctx);
}

static int exchange_barrier(void *ctx)
{
	return barrier(ctx);
}

static int exchange_dispatch(void *ctx, uint32_t i)
{
	return rounds_dispatch(ctx, i);
}

static int exchange_combine(void *ctx, uint32_t i)
{
	return rounds_combine(ctx, i);
}

const struct timed_method exchange_method = {
	exchange_begin, exchange_barrier, exchange_dispatch, exchange_combine};

int rounds_time(
	const struct timed_method *method, void *ctx, struct times *times, uint32_t i, bool split)
{
	double start, middle, restart, end;
	int rc = method->begin(ctx, i);

	start = now_us();
	rc = rc ? rc : method->dispatch(ctx, i);
	middle = restart = now_us();
	if (!rc && split) {
		rc = method->barrier(ctx);
		restart = now_us();
	}
	rc = rc ? rc : method->combine(ctx, i);
	end = now_us();
	if (!times)
		return rc;
	if (split) {
		times->us[MEASURE_DISPATCH][i] = middle - start;
		times->us[MEASURE_COMBINE][i] = end - restart;
	} else {
		times->us[MEASURE_PAIR][i] = end - start;
	}
	return rc;
}

int rounds_check(struct rounds *rounds)
{
	uint32_t i;
	int status = 0;

	for (i = 0; i < rounds->nr_sets && !status; i++) {
		if (!rounds->sets[i].timed)
			continue;
		set_round(rounds, rounds->sets[i].round);
		status = verify_combined(rounds->reference, rounds->rank, rounds->sets[i].out, 0,
			&rounds->difference);
	}
	return status ? TERN_ERR_NOMEM : 0;
}
