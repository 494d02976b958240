/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIVE_MOST_PROMPTS 20 /* lines that fit on any terminal */

static int allgather(
	tern_group *group, const void *mine, void *all, size_t bytes, struct fault *fault)
{
	int rc = tern_group_allgather(group, mine, all, bytes);

	return rc ? fault_say(fault, "gathering from all ranks: %s", tern_last_error()) : 0;
}

/* Zeroed memory for this many bytes of every rank. */
static void *room_for_all(tern_group *group, size_t bytes, struct fault *fault)
{
	void *all = calloc((size_t)tern_group_nr_ranks(group), bytes ? bytes : 1);

	if (!all)
		fault_say(fault, "no memory for %zu bytes of each rank", bytes);
	return all;
}

/* ---- agreement ------------------------------------------------------------------------------- */

struct hello {
	uint64_t settings; /* a hash */
	uint64_t live;
};

static uint64_t hash(uint64_t value, const void *bytes, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		value = (value ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
	return value;
}

static uint64_t hash_settings(const struct options *options)
{
	const struct serve_plan *plan = &options->plan;
	const uint32_t numbers[] = {plan->nr_prompts, plan->nr_tokens, options->types.dispatch,
		options->types.combine, options->device, options->nr_copies, options->nr_repeats,
		options->layer, options->check};
	const float reals[] = {plan->temperature, plan->top_p};
	uint64_t value = hash(0xcbf29ce484222325u, numbers, sizeof(numbers));

	value = hash(value, reals, sizeof(reals));
	value = hash(value, &plan->seed, sizeof(plan->seed));
	for (uint32_t i = 0; i < plan->nr_prompts; i++)
		value = hash(value, plan->prompts[i], strlen(plan->prompts[i]) + 1);
	return value;
}

int gather_agreement(
	tern_group *group, const struct options *options, bool *live, struct fault *fault)
{
	bool fits = options->plan.nr_prompts <= LIVE_MOST_PROMPTS;
	struct hello mine = {.settings = hash_settings(options),
		.live = options->live && fits && isatty(STDOUT_FILENO)};
	struct hello *all = room_for_all(group, sizeof(mine), fault);
	int rc = all ? allgather(group, &mine, all, sizeof(mine), fault) : -1;

	for (int i = 1; !rc && i < tern_group_nr_ranks(group); i++)
		if (all[i].settings != all[0].settings)
			rc = fault_say(fault,
				"rank %d was started with other prompts or settings than rank 0",
				i);
	if (!rc)
		*live = all[0].live;
	free(all);
	return rc;
}

int gather_first_without(tern_group *group, bool mine, int *rank, struct fault *fault)
{
	uint8_t flag = mine, *all = room_for_all(group, sizeof(flag), fault);
	int rc = all ? allgather(group, &flag, all, sizeof(flag), fault) : -1;

	*rank = -1;
	for (int i = tern_group_nr_ranks(group) - 1; !rc && i >= 0; i--)
		*rank = all[i] ? *rank : i;
	free(all);
	return rc;
}

int gather_sums(tern_group *group, double *numbers, uint32_t nr, struct fault *fault)
{
	uint32_t nr_ranks = (uint32_t)tern_group_nr_ranks(group);
	double *all = room_for_all(group, nr * sizeof(*all), fault);
	int rc = all ? allgather(group, numbers, all, nr * sizeof(*all), fault) : -1;

	for (uint32_t i = 0; i < nr && !rc; i++) {
		numbers[i] = 0;
		for (uint32_t r = 0; r < nr_ranks; r++)
			numbers[i] += all[r * nr + i];
	}
	free(all);
	return rc;
}

/* ---- texts ----------------------------------------------------------------------------------- */

int texts_create(const struct serve_plan *plan, struct texts *texts, struct fault *fault)
{
	*texts = (struct texts){
		.nr_prompts = plan->nr_prompts,
		.nr_tokens = plan->nr_tokens,
		.nr_bytes = calloc(plan->nr_prompts, sizeof(*texts->nr_bytes)),
		.fingerprints = calloc(plan->nr_prompts, sizeof(*texts->fingerprints)),
		.bytes = calloc(plan->nr_prompts, plan->nr_tokens),
	};
	if (texts->nr_bytes && texts->fingerprints && texts->bytes)
		return 0;
	texts_destroy(texts);
	return fault_say(fault, "no memory for the texts of %u prompts", plan->nr_prompts);
}

void texts_destroy(struct texts *texts)
{
	free(texts->nr_bytes);
	free(texts->fingerprints);
	free(texts->bytes);
	*texts = (struct texts){0};
}

void texts_take(struct texts *texts, const struct service *service)
{
	for (uint32_t i = 0; i < service->nr_sequences; i++) {
		const struct sequence *s = &service->sequences[i];

		texts->nr_bytes[s->prompt] = s->nr_bytes - s->prompt_bytes;
		texts->fingerprints[s->prompt] = s->fingerprint;
		memcpy(texts->bytes + (size_t)s->prompt * texts->nr_tokens,
			s->text + s->prompt_bytes, s->nr_bytes - s->prompt_bytes);
	}
}

/* What a rank sends for each prompt that it may have: this, then nr_tokens bytes. */
struct parcel {
	uint64_t fingerprint;
	uint32_t nr_bytes;
};

static void pack(const struct texts *texts, uint32_t prompt, uint8_t *to)
{
	struct parcel parcel = {
		.fingerprint = texts->fingerprints[prompt], .nr_bytes = texts->nr_bytes[prompt]};

	memcpy(to, &parcel, sizeof(parcel));
	memcpy(to + sizeof(parcel), texts->bytes + (size_t)prompt * texts->nr_tokens,
		texts->nr_tokens);
}

static void unpack(struct texts *texts, uint32_t prompt, const uint8_t *from)
{
	struct parcel parcel;

	memcpy(&parcel, from, sizeof(parcel));
	texts->fingerprints[prompt] = parcel.fingerprint;
	texts->nr_bytes[prompt] = parcel.nr_bytes;
	memcpy(texts->bytes + (size_t)prompt * texts->nr_tokens, from + sizeof(parcel),
		texts->nr_tokens);
}

int gather_texts(
	tern_group *group, const struct service *service, struct texts *texts, struct fault *fault)
{
	uint32_t nr_ranks = service->nr_ranks, most = serve_most_sequences(service->plan, nr_ranks);
	size_t each = sizeof(struct parcel) + texts->nr_tokens, bytes = most * each;
	uint8_t *mine = calloc(1, bytes), *all = room_for_all(group, bytes, fault);
	int rc = mine && all ? 0 : fault_say(fault, "no memory for texts");

	texts_take(texts, service);
	for (uint32_t i = 0; !rc && i < service->nr_sequences; i++)
		pack(texts, service->sequences[i].prompt, mine + i * each);
	rc = rc ? rc : allgather(group, mine, all, bytes, fault);
	for (uint32_t prompt = 0; !rc && prompt < texts->nr_prompts; prompt++)
		unpack(texts, prompt, all + prompt % nr_ranks * bytes + prompt / nr_ranks * each);
	free(mine);
	free(all);
	return rc;
}

/* ---- figures --------------------------------------------------------------------------------- */

struct account { /* of one rank */
	uint64_t prefill_ns, decode_ns;
	uint64_t prefill_tokens, decode_tokens;
	struct tern_stats stats;
	uint32_t is_there, nr_calls; /* whose durations it has */
};

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void percentiles(uint64_t *ns, uint32_t nr, double *p50, double *p99)
{
	qsort(ns, nr, sizeof(*ns), ascending);
	*p50 = (double)ns[(nr - 1) / 2] / 1e3;
	*p99 = (double)ns[(uint64_t)(nr - 1) * 99 / 100] / 1e3;
}

/* all[rank][call]; rank 0's row becomes the slowest of all, and `fastest` the fastest of those that
 * are left. */
static void across_ranks(uint64_t *all, uint32_t nr_ranks, uint32_t nr, const struct moe_tern *moe,
	uint64_t *fastest)
{
	memset(fastest, 0xff, nr * sizeof(*all));
	for (uint32_t rank = 0; rank < nr_ranks; rank++) {
		for (uint32_t i = 0; i < nr && moe_tern_has(moe, rank); i++) {
			uint64_t ns = all[(size_t)rank * nr + i];

			all[i] = ns > all[i] ? ns : all[i];
			fastest[i] = ns < fastest[i] ? ns : fastest[i];
		}
	}
}

/* Of the last calls, as many as all have made: who has come later has made fewer. */
static uint32_t fewest_calls(const struct account *all, uint32_t nr_ranks)
{
	uint32_t fewest = UINT32_MAX;

	for (uint32_t r = 0; r < nr_ranks; r++)
		if (all[r].is_there && all[r].nr_calls < fewest)
			fewest = all[r].nr_calls;
	return fewest;
}

static int gather_latency(tern_group *group, struct moe_tern *moe, const uint64_t *ns, uint32_t nr,
	struct latency *latency, struct fault *fault)
{
	uint64_t *all = room_for_all(group, nr * sizeof(*all), fault),
		 *fastest = calloc(nr + 1, sizeof(*fastest));
	int rc = !all ? -1 : !fastest ? fault_say(fault, "no memory for %u durations", nr) : 0;

	*latency = (struct latency){0};
	if (!rc && nr) {
		rc = moe_tern_gather(moe, ns, all, nr * sizeof(*all), fault);
		across_ranks(all, (uint32_t)tern_group_nr_ranks(group), nr, moe, fastest);
		percentiles(all, nr, &latency->slowest_p50, &latency->slowest_p99);
		percentiles(fastest, nr, &latency->fastest_p50, &latency->fastest_p99);
	}
	free(all);
	free(fastest);
	return rc;
}

static void add_account(struct figures *figures, const struct account *account)
{
	double prefill_s = (double)account->prefill_ns / 1e9,
	       decode_s = (double)account->decode_ns / 1e9;

	figures->prefill_s = prefill_s > figures->prefill_s ? prefill_s : figures->prefill_s;
	figures->decode_s = decode_s > figures->decode_s ? decode_s : figures->decode_s;
	figures->prefill_tokens += account->prefill_tokens;
	figures->decode_tokens += account->decode_tokens;
	figures->dispatch_bytes += account->stats.dispatch_bytes;
	figures->combine_bytes += account->stats.combine_bytes;
	figures->tokens += account->stats.tokens;
	figures->tokens_away += account->stats.tokens_away;
}

int gather_figures(tern_group *group, const struct service *service, struct moe_tern *moe,
	struct figures *figures, struct fault *fault)
{
	const struct durations *durations = moe_tern_decode_durations(moe);
	struct account mine = {service->prefill_ns, service->decode_ns, service->nr_prefilled,
		service->nr_decoded, {0}, 1, durations->nr};
	struct account *all = room_for_all(group, sizeof(mine), fault);
	uint32_t nr, first;
	int rc = all ? moe_tern_stats(moe, &mine.stats, fault) : -1;

	rc = rc ? rc : moe_tern_gather(moe, &mine, all, sizeof(mine), fault);
	*figures = (struct figures){.nr_ranks = service->nr_ranks};
	for (uint32_t i = 0; !rc && i < service->nr_ranks; i++)
		add_account(figures, &all[i]);
	nr = rc ? 0 : fewest_calls(all, service->nr_ranks);
	first = durations->nr - nr;
	free(all);
	rc = rc ? rc
		: gather_latency(group, moe, durations->dispatch_ns + first, nr, &figures->dispatch,
			  fault);
	return rc ? rc
		  : gather_latency(group, moe, durations->combine_ns + first, nr, &figures->combine,
			    fault);
}
