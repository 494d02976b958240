/* SPDX-License-Identifier: Apache-2.0 */
#include "elastic.h"

#include <stdlib.h>
#include <string.h>

/* What all ranks know of a prompt, besides its text. */
struct entry {
	uint32_t owner;
	bool is_new; /* to its owner, which has to read it first */
	uint64_t sampler_state;
};

/* What a rank tells of a sequence of its own. */
struct parcel {
	uint64_t fingerprint, sampler_state;
	uint32_t nr_generated; /* 0: there is no such sequence */
	uint8_t last;
};

/* From each rank: zeros from one that is gone. */
struct told {
	uint64_t members[4];     /* as it sees them */
	uint64_t is_new;         /* it has come just now, and knows nothing else */
	struct parcel parcels[]; /* [nr_prompts] */
};

/* What all know, for who is new: entries follow, fingerprints, texts' lengths, and texts. */
struct state {
	uint32_t is_there, nr_before;
};

struct ledger {
	struct elastic_run *run;
	struct entry *entries; /* [nr_prompts] */
	struct told *mine;
	uint8_t *all; /* [nr_ranks] of struct told */
	size_t told_bytes;
	uint32_t *load; /* [nr_ranks] scratch */
};

static uint32_t nr_prompts(const struct ledger *l)
{
	return l->run->texts->nr_prompts;
}

static const struct told *told_by(const struct ledger *l, uint32_t rank)
{
	return (const struct told *)(l->all + rank * l->told_bytes);
}

static uint32_t prompt_bytes(const struct ledger *l, uint32_t prompt)
{
	return (uint32_t)strlen(l->run->service->plan->prompts[prompt]);
}

static bool is_whole(const struct ledger *l, uint32_t prompt)
{
	return l->run->texts->nr_bytes[prompt] == l->run->texts->nr_tokens;
}

/* ---- reading what is new to a rank ----------------------------------------------------------- */

/* Of the rank that has most to read; the others take part with what they have. The last byte is for
 * the next step. */
static uint32_t count_batches(const struct ledger *l)
{
	uint32_t nr_ranks = l->run->service->nr_ranks, most = 0;

	memset(l->load, 0, nr_ranks * sizeof(*l->load));
	for (uint32_t i = 0; i < nr_prompts(l); i++) {
		const struct entry *e = &l->entries[i];

		if (!e->is_new)
			continue;
		l->load[e->owner] += prompt_bytes(l, i) + l->run->texts->nr_bytes[i] - 1;
		most = l->load[e->owner] > most ? l->load[e->owner] : most;
	}
	return (most + SERVE_PREFILL_TOKENS - 1) / SERVE_PREFILL_TOKENS;
}

static uint32_t fill_batch(struct service *service)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < service->nr_sequences; i++) {
		struct sequence *s = &service->sequences[i];

		while (nr < SERVE_PREFILL_TOKENS && s->nr_cached + 1 < s->nr_bytes) {
			service->batch[nr++] = (struct batch_token){
				s->text[s->nr_cached], s->nr_cached, &s->cache, NULL};
			s->nr_cached++;
		}
	}
	return nr;
}

static int read_new(struct ledger *l, struct fault *fault)
{
	struct service *service = l->run->service;
	uint32_t nr_batches = count_batches(l);
	uint64_t start = serve_now_ns();

	for (uint32_t i = 0; i < nr_batches; i++) {
		uint32_t nr = fill_batch(service);

		if (model_forward(service->model, service->workspace, service->batch, nr,
			    &l->run->prefill, fault))
			return -1;
		service->nr_prefilled += nr;
	}
	for (uint32_t i = 0; i < nr_prompts(l); i++)
		l->entries[i].is_new = false;
	service->prefill_ns += serve_now_ns() - start;
	return 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int step(struct ledger *l, struct fault *fault)
{
	struct service *service = l->run->service;
	uint64_t start = serve_now_ns();
	uint32_t nr = 0;

	for (uint32_t i = 0; i < service->nr_sequences; i++) {
		struct sequence *s = &service->sequences[i];

		if (is_whole(l, s->prompt))
			continue;
		service->batch[nr++] = (struct batch_token){
			s->text[s->nr_cached], s->nr_cached, &s->cache, s->logits};
		s->nr_cached++;
	}
	if (model_forward(
		    service->model, service->workspace, service->batch, nr, &l->run->decode, fault))
		return -1;
	for (uint32_t i = 0; i < service->nr_sequences; i++)
		if (!is_whole(l, service->sequences[i].prompt))
			service_choose(service, &service->sequences[i]);
	service->nr_decoded += nr;
	service->decode_ns += serve_now_ns() - start;
	return 0;
}

/* ---- telling --------------------------------------------------------------------------------- */

static void write_told(struct ledger *l)
{
	const struct service *service = l->run->service;

	memset(l->mine, 0, l->told_bytes);
	for (uint32_t r = 0; r < service->nr_ranks; r++)
		if (moe_tern_has(l->run->moe, r))
			l->mine->members[r / 64] |= 1ull << r % 64;
	for (uint32_t i = 0; i < service->nr_sequences; i++) {
		const struct sequence *s = &service->sequences[i];

		l->mine->parcels[s->prompt] = (struct parcel){.fingerprint = s->fingerprint,
			.sampler_state = s->sampler.state,
			.nr_generated = s->nr_bytes - s->prompt_bytes,
			.last = s->text[s->nr_bytes - 1]};
	}
}

static void read_told(struct ledger *l)
{
	struct texts *texts = l->run->texts;

	for (uint32_t i = 0; i < nr_prompts(l); i++) {
		const struct parcel *p = &told_by(l, l->entries[i].owner)->parcels[i];

		if (p->nr_generated != texts->nr_bytes[i] + 1)
			continue; /* whole, or its owner was gone before it could tell */
		texts->bytes[(size_t)i * texts->nr_tokens + texts->nr_bytes[i]++] = p->last;
		texts->fingerprints[i] = p->fingerprint;
		l->entries[i].sampler_state = p->sampler_state;
	}
}

static bool told_nothing(const struct told *told)
{
	return !(told->members[0] | told->members[1] | told->members[2] | told->members[3]);
}

/* In the eyes of all that have told: these may be in different views yet, but what they told is the
 * same to all. */
static bool is_left(const struct ledger *l, uint32_t rank)
{
	for (uint32_t r = 0; r < l->run->service->nr_ranks; r++) {
		const struct told *told = told_by(l, r);

		if (!told_nothing(told) && !(told->members[rank / 64] >> rank % 64 & 1))
			return false;
	}
	return true;
}

/* ---- taking over ----------------------------------------------------------------------------- */

static uint32_t least_loaded(const struct ledger *l)
{
	uint32_t nr_ranks = l->run->service->nr_ranks, best = nr_ranks;

	memset(l->load, 0, nr_ranks * sizeof(*l->load));
	for (uint32_t i = 0; i < nr_prompts(l); i++)
		l->load[l->entries[i].owner] += !is_whole(l, i);
	for (uint32_t r = 0; r < nr_ranks; r++)
		if (is_left(l, r) && (best == nr_ranks || l->load[r] < l->load[best]))
			best = r;
	return best;
}

static int take_over(struct ledger *l, uint32_t prompt, struct fault *fault)
{
	struct service *service = l->run->service;
	const struct texts *texts = l->run->texts;
	struct sequence *s;

	if (service_add(service, prompt, fault))
		return -1;
	s = &service->sequences[service->nr_sequences - 1];
	memcpy(s->text + s->nr_bytes, texts->bytes + (size_t)prompt * texts->nr_tokens,
		texts->nr_bytes[prompt]);
	s->nr_bytes += texts->nr_bytes[prompt];
	s->fingerprint = texts->fingerprints[prompt];
	if (texts->nr_bytes[prompt])
		s->sampler.state = l->entries[prompt].sampler_state;
	return 0;
}

static int hand_over(struct ledger *l, struct fault *fault)
{
	for (uint32_t i = 0; i < nr_prompts(l); i++) {
		struct entry *e = &l->entries[i];

		if (is_whole(l, i) || is_left(l, e->owner))
			continue;
		e->owner = least_loaded(l);
		e->is_new = true;
		l->run->nr_taken_over++;
		if (e->owner == l->run->service->rank && take_over(l, i, fault))
			return -1;
	}
	return 0;
}

/* ---- who is new ------------------------------------------------------------------------------ */

static size_t state_bytes(const struct ledger *l)
{
	size_t nr = nr_prompts(l), each = l->run->texts->nr_tokens;

	return sizeof(struct state) +
	       nr * (sizeof(struct entry) + sizeof(uint64_t) + sizeof(uint32_t) + each);
}

/* Copies one part of the state, to or from where it is used. */
static uint8_t *copy_part(uint8_t *at, void *ours, size_t bytes, bool take)
{
	memcpy(take ? ours : at, take ? at : ours, bytes);
	return at + bytes;
}

static void copy_state(struct ledger *l, uint8_t *at, bool take)
{
	struct texts *texts = l->run->texts;
	size_t nr = nr_prompts(l);

	at = copy_part(at, l->entries, nr * sizeof(*l->entries), take);
	at = copy_part(at, texts->fingerprints, nr * sizeof(*texts->fingerprints), take);
	at = copy_part(at, texts->nr_bytes, nr * sizeof(*texts->nr_bytes), take);
	copy_part(at, texts->bytes, nr * texts->nr_tokens, take);
}

/* *any: there are some that are new. */
static int settle(struct ledger *l, bool *any, struct fault *fault)
{
	uint64_t told[4] = {0}, is_new[4] = {0};

	*any = false;
	for (uint32_t r = 0; r < l->run->service->nr_ranks; r++) {
		const struct told *t = told_by(l, r);
		uint64_t bit = 1ull << r % 64;

		is_new[r / 64] |= t->is_new ? bit : 0;
		told[r / 64] |= t->is_new || !told_nothing(t) ? bit : 0;
		*any = *any || t->is_new;
	}
	return moe_tern_told(l->run->moe, told, is_new, fault);
}

static int take_state(struct ledger *l, uint8_t *all, size_t bytes, struct fault *fault)
{
	struct state state;

	for (uint32_t r = 0; r < l->run->service->nr_ranks; r++) {
		memcpy(&state, all + r * bytes, sizeof(state));
		if (!state.is_there)
			continue;
		l->run->nr_before = state.nr_before;
		copy_state(l, all + r * bytes + sizeof(state), true);
		return 0;
	}
	return fault_say(fault, "nobody is left who knows the texts");
}

/* All give it, as any may die: who is new takes the first that is there. */
static int tell_state(struct ledger *l, struct fault *fault)
{
	size_t bytes = state_bytes(l);
	uint8_t *mine = calloc(l->run->service->nr_ranks + 1, bytes);
	struct state state = {!l->run->joins, l->run->nr_before};
	int rc;

	if (!mine)
		return fault_say(fault, "no memory for all texts");
	memcpy(mine, &state, sizeof(state));
	if (!l->run->joins)
		copy_state(l, mine + sizeof(state), false);
	rc = moe_tern_gather(l->run->moe, mine, mine + bytes, bytes, fault);
	if (!rc && l->run->joins)
		rc = take_state(l, mine + bytes, bytes, fault);
	free(mine);
	return rc;
}

/* At the end of a step of the others. */
static int come_in(struct ledger *l, struct fault *fault)
{
	bool any;

	l->mine->is_new = 1;
	if (moe_tern_gather(l->run->moe, l->mine, l->all, l->told_bytes, fault) ||
		settle(l, &any, fault) || tell_state(l, fault))
		return -1;
	service_clear(l->run->service);
	l->run->joins = false;
	return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool all_are_whole(const struct ledger *l)
{
	for (uint32_t i = 0; i < nr_prompts(l); i++)
		if (!is_whole(l, i))
			return false;
	return true;
}

static int run_steps(struct ledger *l, struct fault *fault)
{
	bool any_new;

	for (uint32_t i = 0; !all_are_whole(l); i++) {
		if (read_new(l, fault) || step(l, fault))
			return -1;
		write_told(l);
		if (moe_tern_gather(l->run->moe, l->mine, l->all, l->told_bytes, fault))
			return -1;
		read_told(l);
		if (hand_over(l, fault) || settle(l, &any_new, fault) ||
			(any_new && tell_state(l, fault)))
			return -1;
		l->run->shown(l->run->ctx, i);
	}
	return 0;
}

int elastic_generate(struct elastic_run *run, struct fault *fault)
{
	uint32_t nr = run->texts->nr_prompts, nr_ranks = run->service->nr_ranks;
	struct ledger l = {
		.run = run, .told_bytes = sizeof(struct told) + nr * sizeof(struct parcel)};
	int rc = -1;

	l.entries = calloc(nr, sizeof(*l.entries));
	l.mine = calloc(1, l.told_bytes);
	l.all = calloc(nr_ranks, l.told_bytes);
	l.load = calloc(nr_ranks, sizeof(*l.load));
	for (uint32_t i = 0; l.entries && i < nr; i++)
		l.entries[i] = (struct entry){.owner = i % nr_ranks, .is_new = true};
	if (l.entries && l.mine && l.all && l.load)
		rc = run->joins && come_in(&l, fault) ? -1 : run_steps(&l, fault);
	else
		fault_say(fault, "no memory for %u prompts of %u ranks", nr, nr_ranks);
	free(l.entries);
	free(l.mine);
	free(l.all);
	free(l.load);
	return rc;
}
