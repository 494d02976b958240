/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/routing.h"
#include "testkit/npy.h"
#include "testkit/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a hash is made for, so that no two purposes share their random numbers. */
enum purpose {
	FOR_IDS = 1,
	FOR_WEIGHTS = 2,
	FOR_COUNT = 3,
	FOR_POPULARITY = 4
};

int routing_parse(struct routing *routing, const char *text, struct reason *why)
{
	size_t length = strlen(text);
	char *end;

	if (!strcmp(text, "uniform")) {
		routing->kind = ROUTING_UNIFORM;
	} else if (!strcmp(text, "grouped")) {
		routing->kind = ROUTING_GROUPED;
	} else if (!strcmp(text, "one")) {
		routing->kind = ROUTING_ONE;
	} else if (!strncmp(text, "zipf:", 5)) {
		routing->kind = ROUTING_ZIPF;
		routing->exponent = strtod(text + 5, &end);
		if (end == text + 5 || *end || !(routing->exponent >= 0 && routing->exponent <= 10))
			return refuse(why,
				"routing '%.100s': the exponent must be a number from 0 to 10",
				text);
	} else if (length > 4 && !strcmp(text + length - 4, ".npy")) {
		if (length >= sizeof(routing->path))
			return refuse(why, "routing: the file name is longer than %zu bytes",
				sizeof(routing->path) - 1);
		routing->kind = ROUTING_TRACE;
		memcpy(routing->path, text, length + 1);
	} else {
		return refuse(why,
			"routing '%.100s' is none of uniform, zipf:S, grouped, one, IDS.npy and "
			"IDS.npy,WEIGHTS.npy",
			text);
	}
	return 0;
}

/* ---- popularity ------------------------------------------------------------------------------ */

/* Which experts are popular is drawn from the seed: in order of their ids, all of them would sit on
 * rank 0. */
static void shuffle_experts(const struct routing *routing)
{
	uint64_t state = hash2(routing->seed, FOR_POPULARITY);
	uint32_t i;

	for (i = 0; i < routing->nr_experts; i++) {
		uint32_t j = random_below(&state, i + 1);

		routing->expert[i] = routing->expert[j];
		routing->expert[j] = (int32_t)i;
	}
}

/* Thresholds are integers, so that an ulp more or less in some pow() does not make ranks disagree.
 */
static int open_zipf(struct routing *routing, struct reason *why)
{
	double total = 0, sum = 0;
	uint32_t i;

	routing->threshold = calloc(routing->nr_experts, sizeof(*routing->threshold));
	routing->expert = calloc(routing->nr_experts, sizeof(*routing->expert));
	if (!routing->threshold || !routing->expert)
		return refuse(why, "routing: out of memory for %u experts", routing->nr_experts);
	shuffle_experts(routing);
	for (i = 0; i < routing->nr_experts; i++)
		total += pow(i + 1, -routing->exponent);
	for (i = 0; i < routing->nr_experts; i++) {
		sum += pow(i + 1, -routing->exponent);
		routing->threshold[i] = (uint32_t)(sum / total * 4294967040.0);
	}
	routing->threshold[routing->nr_experts - 1] = UINT32_MAX;
	return 0;
}

static uint32_t popularity_rank(const struct routing *routing, uint32_t number)
{
	uint32_t low = 0, high = routing->nr_experts - 1;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (number < routing->threshold[middle])
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* ---- traces ---------------------------------------------------------------------------------- */

static int check_trace_row(const struct routing *routing, uint64_t row, struct reason *why)
{
	const int32_t *ids = routing->trace_ids + row * routing->topk;
	uint32_t k, other;

	for (k = 0; k < routing->topk; k++) {
		if (ids[k] < -1 || ids[k] >= (int64_t)routing->nr_experts)
			return refuse(why,
				"routing trace: token %llu, k %u has expert %d; experts are 0 to "
				"%u, or -1",
				(unsigned long long)row, k, ids[k], routing->nr_experts - 1);
		for (other = 0; other < k; other++)
			if (ids[k] >= 0 && ids[k] == ids[other])
				return refuse(why, "routing trace: token %llu has expert %d twice",
					(unsigned long long)row, ids[k]);
	}
	return 0;
}

static int copy_ids(struct routing *routing, const struct npy *npy, struct reason *why)
{
	uint64_t i, nr;

	if (npy->type == NPY_FLOAT32 || npy->nr_dims != 2 || npy->shape[1] != routing->topk ||
		!npy->shape[0])
		return refuse(why, "routing trace: need integer ids of shape [tokens][%u]",
			routing->topk);
	nr = npy->shape[0] * routing->topk;
	routing->trace_tokens = npy->shape[0];
	routing->trace_ids = malloc(nr * sizeof(*routing->trace_ids));
	if (!routing->trace_ids)
		return refuse(
			why, "routing trace: out of memory for %llu ids", (unsigned long long)nr);
	for (i = 0; i < nr; i++) {
		int64_t wide = 0;
		int32_t narrow = 0;

		memcpy(npy->type == NPY_INT64 ? (void *)&wide : (void *)&narrow,
			(const char *)npy->data + i * npy_item_bytes(npy->type),
			npy_item_bytes(npy->type));
		if (npy->type == NPY_INT32)
			wide = narrow;
		/* What does not fit in 32 bits is refused below as what it becomes here. */
		routing->trace_ids[i] = wide < -1 || wide > INT32_MAX ? INT32_MIN : (int32_t)wide;
	}
	for (i = 0; i < npy->shape[0]; i++)
		if (check_trace_row(routing, i, why))
			return -1;
	return 0;
}

static int copy_weights(struct routing *routing, const struct npy *npy, struct reason *why)
{
	if (npy->type != NPY_FLOAT32 || npy->nr_dims != 2 || npy->shape[1] != routing->topk ||
		npy->shape[0] != routing->trace_tokens)
		return refuse(why,
			"routing trace: need float32 weights of the same shape as the ids, "
			"[%llu][%u]",
			(unsigned long long)routing->trace_tokens, routing->topk);
	routing->trace_weights = malloc(npy->data_bytes);
	if (!routing->trace_weights)
		return refuse(why, "routing trace: out of memory for %zu bytes", npy->data_bytes);
	memcpy(routing->trace_weights, npy->data, npy->data_bytes);
	return 0;
}

static int open_trace(struct routing *routing, struct reason *why)
{
	char path[sizeof(routing->path)];
	struct npy npy;
	char *weights;
	void *bytes;
	int status;

	strcpy(path, routing->path);
	weights = strchr(path, ',');
	if (weights)
		*weights++ = 0;
	if (npy_read(path, &bytes, &npy, why))
		return -1;
	status = copy_ids(routing, &npy, why);
	free(bytes);
	if (status || !weights)
		return status;
	if (npy_read(weights, &bytes, &npy, why))
		return -1;
	status = copy_weights(routing, &npy, why);
	free(bytes);
	return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

int routing_open(struct routing *routing, struct reason *why)
{
	if (!routing->topk || routing->topk > routing->nr_experts)
		return refuse(why, "topk is %u: it must be from 1 to the number of experts, %u",
			routing->topk, routing->nr_experts);
	if (!(routing->drop >= 0 && routing->drop <= 1))
		return refuse(why, "the share of dropped routes is %g: it must be from 0 to 1",
			routing->drop);
	if (routing->kind == ROUTING_GROUPED &&
		(routing->nr_experts % ROUTING_GROUPS ||
			routing->topk > routing->nr_experts / ROUTING_GROUPS * ROUTING_TOP_GROUPS))
		return refuse(why,
			"routing grouped: %u experts must be a multiple of %u, and top-%u fit in "
			"%u groups of them",
			routing->nr_experts, ROUTING_GROUPS, routing->topk, ROUTING_TOP_GROUPS);
	if (routing->kind == ROUTING_ZIPF)
		return open_zipf(routing, why);
	if (routing->kind == ROUTING_TRACE)
		return open_trace(routing, why);
	return 0;
}

void routing_close(struct routing *routing)
{
	free(routing->threshold);
	free(routing->expert);
	free(routing->trace_ids);
	free(routing->trace_weights);
	routing->threshold = NULL;
	routing->expert = NULL;
	routing->trace_ids = NULL;
	routing->trace_weights = NULL;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

uint32_t routing_nr_tokens(const struct routing *routing, uint64_t round, uint32_t home)
{
	uint64_t state = hash4(routing->seed, FOR_COUNT, round, home);

	if (!routing->uneven)
		return routing->nr_tokens;
	switch (random_below(&state, 8)) { /* the borders more often than by chance */
	case 0:
		return 0;
	case 1:
		return routing->nr_tokens;
	case 2:
		return routing->nr_tokens ? 1 : 0;
	}
	return random_below(&state, routing->nr_tokens + 1);
}

static bool contains(const int32_t *ids, uint32_t nr, int32_t id)
{
	uint32_t i;

	for (i = 0; i < nr; i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* nr different numbers below `below`, all sets equally likely (Floyd's way, which never has to draw
 * again), then shuffled. */
static void draw_distinct(uint64_t *state, uint32_t below, uint32_t nr, int32_t *numbers)
{
	uint32_t i;

	for (i = 0; i < nr; i++) {
		uint32_t top = below - nr + i;
		int32_t number = (int32_t)random_below(state, top + 1);

		numbers[i] = contains(numbers, i, number) ? (int32_t)top : number;
	}
	for (i = nr; i > 1; i--) {
		uint32_t j = random_below(state, i);
		int32_t number = numbers[i - 1];

		numbers[i - 1] = numbers[j];
		numbers[j] = number;
	}
}

static void draw_zipf(const struct routing *routing, uint64_t *state, int32_t *ids)
{
	uint32_t k, tries, rank;

	for (k = 0; k < routing->topk; k++) {
		for (tries = 0; tries < 64; tries++) {
			rank = popularity_rank(routing, (uint32_t)(random_next(state) >> 32));
			if (!contains(ids, k, routing->expert[rank]))
				break;
		}
		/* A steep law leaves next to nothing for the rest: take the most popular one that
		 * is left. */
		for (rank = tries < 64 ? rank : 0; contains(ids, k, routing->expert[rank]); rank++)
			;
		ids[k] = routing->expert[rank];
	}
}

static void draw_grouped(const struct routing *routing, uint64_t *state, int32_t *ids)
{
	uint32_t group_size = routing->nr_experts / ROUTING_GROUPS;
	int32_t groups[ROUTING_TOP_GROUPS];
	uint32_t k;

	draw_distinct(state, ROUTING_GROUPS, ROUTING_TOP_GROUPS, groups);
	draw_distinct(state, group_size * ROUTING_TOP_GROUPS, routing->topk, ids);
	for (k = 0; k < routing->topk; k++)
		ids[k] = groups[(uint32_t)ids[k] / group_size] * (int32_t)group_size +
			 ids[k] % (int32_t)group_size;
}

static void draw_one(const struct routing *routing, int32_t *ids)
{
	uint32_t k;

	for (k = 0; k < routing->topk; k++)
		ids[k] = k < routing->nr_first ? (int32_t)k : -1;
}

/* Those of all experts' routes that are here, in their order. */
static void draw_share(const struct routing *routing, uint64_t *state, int32_t *ids)
{
	int32_t all[64];
	uint32_t nr = 0;

	while (!nr) {
		draw_distinct(
			state, routing->nr_experts * routing->share, routing->share_topk, all);
		for (uint32_t k = 0; k < routing->share_topk; k++)
			if (all[k] < (int32_t)routing->nr_experts && nr < routing->topk)
				ids[nr++] = all[k];
	}
	while (nr < routing->topk)
		ids[nr++] = -1;
}

uint32_t routing_share_tokens(uint64_t tokens, uint32_t share, uint32_t nr_experts, uint32_t topk)
{
	double none = 1;

	for (uint32_t i = 0; i < topk; i++)
		none *= (double)(nr_experts - nr_experts / share - i) / (nr_experts - i);
	return (uint32_t)((double)tokens * (1 - none) + 0.5);
}

static float draw_weight(const struct routing *routing, uint64_t *state)
{
	static const float exact[] = {0.5f, 1, 1, 2};
	static const float special[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, -1.5f, 1e-42f, 3e38f};
	uint32_t number = (uint32_t)(random_next(state) >> 32);

	if (routing->weights == WEIGHTS_EXACT)
		return exact[number % 4];
	if (routing->weights == WEIGHTS_SPECIAL && number % 16 == 0)
		return special[number / 16 % 8];
	return (float)(number >> 8) * 0x1p-24f + 0x1p-10f;
}

static void draw_weights(const struct routing *routing, uint64_t *state, float *weights)
{
	float sum = 0;
	uint32_t k;

	for (k = 0; k < routing->topk; k++)
		sum += weights[k] = draw_weight(routing, state);
	for (k = 0; k < routing->topk && routing->weights == WEIGHTS_SOFTMAX; k++)
		weights[k] /= sum;
}

void routing_token(const struct routing *routing, uint64_t round, uint32_t home, uint32_t token,
	int32_t *ids, float *weights)
{
	uint64_t state = hash2(hash4(routing->seed, FOR_IDS, round, home), token);
	uint64_t weight_state = hash2(hash4(routing->seed, FOR_WEIGHTS, round, home), token);
	uint64_t row = 0;
	uint32_t k;

	draw_weights(routing, &weight_state, weights);
	switch (routing->kind) {
	case ROUTING_UNIFORM:
		draw_distinct(&state, routing->nr_experts, routing->topk, ids);
		break;
	case ROUTING_ZIPF:
		draw_zipf(routing, &state, ids);
		break;
	case ROUTING_GROUPED:
		draw_grouped(routing, &state, ids);
		break;
	case ROUTING_ONE:
		draw_one(routing, ids);
		break;
	case ROUTING_SHARE:
		draw_share(routing, &state, ids);
		break;
	case ROUTING_TRACE:
		row = ((round * routing->nr_homes + home) * routing->nr_tokens + token) %
		      routing->trace_tokens;
		memcpy(ids, routing->trace_ids + row * routing->topk, routing->topk * sizeof(*ids));
		if (routing->trace_weights)
			memcpy(weights, routing->trace_weights + row * routing->topk,
				routing->topk * sizeof(*weights));
		break;
	}
	for (k = 0; k < routing->topk && routing->drop > 0; k++)
		if ((double)(random_next(&state) >> 32) < routing->drop * 4294967296.0)
			ids[k] = -1;
}
