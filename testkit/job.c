/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/job.h"
#include "testkit/convert.h"
#include "testkit/pool.h"
#include "testkit/random.h"

#include <stdlib.h>
#include <string.h>

enum purpose {
	FOR_X = 0x101,
	FOR_SCALES = 0x102,
	FOR_Y = 0x103
};

void job_init(struct job *job)
{
	memset(job, 0, sizeof(*job));
	tern_moe_config_init(&job->config);
	job->config.mode = TERN_LOW_LATENCY;
	job->config.reduce = TERN_REDUCE_HOME;
	job->config.hidden = 7168;
	job->config.nr_experts = 256;
	job->config.topk = 8;
	job->config.max_tokens = 128;
	job->nr_ranks = 1;
	job->nr_tokens = 128;
	job->seed = 1;
}

void job_take_mode(struct job *job, const tern_moe *moe)
{
	if (job->config.mode == TERN_AUTO)
		job->config.mode = (enum tern_mode)tern_moe_mode(moe);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int check(const struct job *job, struct reason *why)
{
	const struct tern_moe_config *config = &job->config;

	if (!job->nr_ranks)
		return refuse(why, "the number of ranks is 0");
	if (!config->hidden || config->hidden > 1u << 20)
		return refuse(
			why, "hidden is %u: it must be from 1 to %u", config->hidden, 1u << 20);
	if (!config->nr_experts || config->nr_experts > 1u << 16)
		return refuse(why, "the number of experts is %u: it must be from 1 to %u",
			config->nr_experts, 1u << 16);
	if (config->topk > TERN_MAX_TOPK)
		return refuse(
			why, "topk is %u: it must be from 1 to %u", config->topk, TERN_MAX_TOPK);
	if (job->nr_tokens > config->max_tokens)
		return refuse(why, "%u tokens a rank are more than max_tokens, %u", job->nr_tokens,
			config->max_tokens);
	if (!config->replica_ranks || job->nr_ranks % config->replica_ranks)
		return refuse(why, "replica_ranks is %u: it must divide the number of ranks, %u",
			config->replica_ranks, job->nr_ranks);
	if (config->dispatch_dtype == TERN_FP8_E4M3 && !one_scale_bytes(config->scale))
		return refuse(why, "fp8 rows need scales: fp32 or ue8m0");
	if (config->x_dtype == TERN_BYTES && !config->payload_bytes)
		return refuse(why, "payload_bytes is 0");
	return 0;
}

/* Replicas go to experts that lie apart, as a balancer would pick them. */
static int make_placement(struct job *job, struct reason *why)
{
	uint32_t p, nr_experts = job->config.nr_experts, nr = nr_experts + job->nr_redundant;

	if (!job->nr_redundant && !job->spread && !job->place_in)
		return 0;
	job->logical = calloc(nr, sizeof(*job->logical));
	job->rank = calloc(nr, sizeof(*job->rank));
	if (!job->logical || !job->rank)
		return refuse(why, "out of memory for %u physical experts", nr);
	for (p = 0; p < nr; p++) {
		job->logical[p] =
			(int32_t)(p < nr_experts ? p : (uint64_t)(p - nr_experts) * 5 % nr_experts);
		job->rank[p] = (int32_t)(p % job->nr_ranks);
	}
	job->config.placement.nr_physical = nr;
	job->config.placement.logical = job->logical;
	job->config.placement.rank = job->spread ? job->rank : NULL;
	return 0;
}

static int open_routing(struct job *job, struct reason *why)
{
	struct routing *routing = &job->routing;

	routing->seed = job->seed;
	routing->nr_experts = job->config.nr_experts;
	routing->topk = job->config.topk;
	routing->nr_homes = job_nr_homes(job);
	routing->nr_tokens = job->nr_tokens;
	routing->nr_first = (job->config.nr_experts + job->nr_ranks - 1) / job->nr_ranks;
	routing->weights = job->input == INPUT_EXACT     ? WEIGHTS_EXACT
			   : job->input == INPUT_SPECIAL ? WEIGHTS_SPECIAL
							 : WEIGHTS_SOFTMAX;
	return routing_open(routing, why);
}

int job_open(struct job *job, struct reason *why)
{
	const struct tern_moe_config *config = &job->config;
	bool scaled = config->x_dtype == TERN_FP8_E4M3;

	if (check(job, why) || make_placement(job, why) || open_routing(job, why))
		return -1;
	job->x_pool = pool_elements(POOL_X, config->x_dtype, job->input, job->seed,
		config->x_dtype == TERN_BYTES ? config->payload_bytes : config->hidden);
	job->y_pool =
		pool_elements(POOL_Y, config->combine_dtype, job->input, job->seed, config->hidden);
	job->scale_pool = scaled ? pool_scales(config->scale, job->seed, job_nr_blocks(job)) : NULL;
	if (!job->x_pool || !job->y_pool || (scaled && !job->scale_pool))
		return refuse(why, "out of memory for the pools of input values");
	return 0;
}

void job_close(struct job *job)
{
	routing_close(&job->routing);
	free(job->logical);
	free(job->rank);
	free(job->x_pool);
	free(job->scale_pool);
	free(job->y_pool);
	memset(&job->config.placement, 0, sizeof(job->config.placement));
	job->logical = job->rank = NULL;
	job->x_pool = job->scale_pool = job->y_pool = NULL;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

uint32_t job_home(const struct job *job, uint32_t rank)
{
	return rank / job->config.replica_ranks;
}

uint32_t job_nr_homes(const struct job *job)
{
	return job->nr_ranks / job->config.replica_ranks;
}

uint32_t job_sender(const struct job *job, uint32_t home, uint32_t token)
{
	return home * job->config.replica_ranks + token % job->config.replica_ranks;
}

uint32_t job_nr_blocks(const struct job *job)
{
	return (job->config.hidden + SCALE_BLOCK - 1) / SCALE_BLOCK;
}

static size_t row_bytes(const struct job *job, enum tern_dtype dtype)
{
	return dtype == TERN_BYTES ? job->config.payload_bytes
				   : (size_t)job->config.hidden * element_bytes(dtype);
}

static size_t scales_bytes(const struct job *job, enum tern_dtype dtype)
{
	return dtype == TERN_FP8_E4M3
		       ? (size_t)job_nr_blocks(job) * one_scale_bytes(job->config.scale)
		       : 0;
}

size_t job_x_bytes(const struct job *job)
{
	return row_bytes(job, job->config.x_dtype);
}

size_t job_x_scales_bytes(const struct job *job)
{
	return scales_bytes(job, job->config.x_dtype);
}

size_t job_received_bytes(const struct job *job)
{
	return row_bytes(job, job->config.dispatch_dtype);
}

size_t job_received_scales_bytes(const struct job *job)
{
	return scales_bytes(job, job->config.dispatch_dtype);
}

size_t job_y_bytes(const struct job *job)
{
	return row_bytes(job, job->config.combine_dtype);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

uint32_t job_nr_tokens(const struct job *job, uint64_t round, uint32_t rank)
{
	return routing_nr_tokens(&job->routing, round, job_home(job, rank));
}

void job_routes(const struct job *job, uint64_t round, uint32_t rank, int32_t *ids, float *weights)
{
	uint32_t home = job_home(job, rank), topk = job->config.topk;
	uint32_t token, k, nr = job_nr_tokens(job, round, rank);

	for (token = 0; token < nr; token++)
		routing_token(&job->routing, round, home, token, ids + (size_t)token * topk,
			weights + (size_t)token * topk);
	for (k = 0; job->no_weights && k < nr * topk; k++)
		weights[k] = 1;
}

uint32_t job_version(const struct job *job, uint64_t round)
{
	return job->place_in ? (uint32_t)(round / job->place_in) : 0;
}

uint32_t job_nr_physical(const struct job *job)
{
	uint32_t nr = job->config.placement.nr_physical;

	return nr ? nr : job->config.nr_experts;
}

/* Each version has other replicas, and all of it in other places. */
void job_place(const struct job *job, uint32_t version, int32_t *logical)
{
	uint32_t p, nr = job_nr_physical(job), nr_experts = job->config.nr_experts;
	uint64_t state = hash2(job->seed, version);

	for (p = 0; p < nr; p++) {
		logical[p] = (int32_t)p;
		if (job->config.placement.nr_physical && job->config.placement.logical)
			logical[p] = job->config.placement.logical[p];
		if (version && p >= nr_experts)
			logical[p] = (int32_t)random_below(&state, nr_experts);
	}
	for (p = nr; version && p > 1; p--) {
		uint32_t other = random_below(&state, p);
		int32_t expert = logical[p - 1];

		logical[p - 1] = logical[other];
		logical[other] = expert;
	}
}

static uint64_t draw_start(
	const struct job *job, uint64_t purpose, uint64_t round, uint32_t home, uint32_t token)
{
	return hash4(hash2(job->seed, purpose), round, home, token) % POOL_STARTS;
}

const void *job_x_row(const struct job *job, uint64_t round, uint32_t home, uint32_t token)
{
	uint32_t element =
		element_bytes(job->config.x_dtype) ? element_bytes(job->config.x_dtype) : 1;

	return job->x_pool + draw_start(job, FOR_X, round, home, token) * element;
}

const void *job_scales_row(const struct job *job, uint64_t round, uint32_t home, uint32_t token)
{
	return job->scale_pool +
	       draw_start(job, FOR_SCALES, round, home, token) * one_scale_bytes(job->config.scale);
}

const void *job_y_row(
	const struct job *job, uint64_t round, uint32_t expert, uint32_t home, uint32_t token)
{
	uint64_t purpose = FOR_Y + ((uint64_t)expert << 32);

	return job->y_pool + draw_start(job, purpose, round, home, token) *
				     element_bytes(job->config.combine_dtype);
}

static uint64_t draw_route(const struct job *job, uint64_t purpose, uint64_t round, uint32_t home,
	uint32_t token, uint32_t k)
{
	return hash4(hash2(job->seed, purpose), round, home, (uint64_t)token << 32 | k);
}

float job_combine_weight(
	const struct job *job, uint64_t round, uint32_t home, uint32_t token, uint32_t k)
{
	return (float)(int32_t)(draw_route(job, 1, round, home, token, k) >> 40) / (1 << 23) - 1;
}

float job_float(const struct job *job, uint64_t round, uint32_t home, uint32_t token, uint32_t k)
{
	uint32_t bits = (uint32_t)draw_route(job, 2, round, home, token, k);
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

void job_x(const struct job *job, uint64_t round, uint32_t rank, void *x, size_t stride,
	void *scales, size_t scales_stride)
{
	uint32_t token, home = job_home(job, rank), nr = job_nr_tokens(job, round, rank);
	size_t bytes = job_x_bytes(job), scale_row = job_x_scales_bytes(job);

	for (token = 0; token < nr; token++) {
		memcpy((char *)x + token * stride, job_x_row(job, round, home, token), bytes);
		if (scales && scale_row)
			memcpy((char *)scales + token * scales_stride,
				job_scales_row(job, round, home, token), scale_row);
	}
}
