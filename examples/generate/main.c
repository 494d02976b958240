/* SPDX-License-Identifier: Apache-2.0 */
/* Text from a Mixture-of-Experts model whose experts are spread over ranks:
 *
 *	options.c  ->  checkpoint.c, model.c, experts.c   load what this rank needs
 *	serve.c    ->  forward.c  ->  moe_tern.c          prompts and tokens through layers, and to experts and back
 *	gpu.c                                             memory of GPUs, if rows are to go there
 *	gather.c   ->  report.c                           what all ranks wrote and measured, to rank 0's standard output
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "elastic.h"
#include "gather.h"
#include "moe_tern.h"
#include "options.h"
#include "report.h"
#include "trace.h"

#define STEPS_BETWEEN_SHOWS 4

/* All that one rank has, in the order of creation. */
struct program {
	struct options options;
	tern_group *group;
	bool live, joins;
	struct gpu *gpu;         /* NULL: the CPU */
	struct fault why_no_gpu; /* if one was wanted */
	struct model_config config;
	struct checkpoint checkpoint;
	struct model model;
	struct moe_tern *moe;
	struct experts experts;
	struct service service;
	struct texts texts;
	struct trace *trace;
	struct figures figures;
	uint32_t nr_shown; /* changes of members */
};

/* Who speaks for all. */
static bool is_first(const struct program *p)
{
	return (uint32_t)tern_group_rank(p->group) == (p->moe ? moe_tern_lowest(p->moe) : 0);
}

/* ---- set up ---------------------------------------------------------------------------------- */

static int join(struct program *p, struct fault *fault)
{
	struct tern_group_config config;
	int rc;

	tern_group_config_init(&config);
	config.wait_ms = p->options.wait_ms;
	config.elastic = p->options.plan.elastic;
	rc = tern_boot_env(&config.boot);
	if (config.elastic)
		tern_rendezvous_env(&config.rendezvous); /* or nobody can come later */
	p->joins = config.elastic && tern_boot_restarts() > 0;
	rc = rc         ? rc
	     : p->joins ? tern_group_join(&config, &p->group)
			: tern_group_create(&config, &p->group);
	if (rc)
		return fault_say(fault, "joining the other ranks: %s", tern_last_error());
	return p->joins ? 0 : gather_agreement(p->group, &p->options, &p->live, fault);
}

static int try_gpu(struct program *p, struct fault *fault)
{
	int without, rc = gpu_open(tern_group_rank(p->group), &p->gpu, &p->why_no_gpu);

	if (gather_first_without(p->group, !rc, &without, fault))
		return -1;
	if (without >= 0 && !rc)
		fault_say(&p->why_no_gpu, "rank %d has no GPU", without);
	rc = without >= 0 ? -1 : moe_tern_try_gpus(p->group, &p->why_no_gpu);
	if (!rc)
		return 0;
	gpu_close(p->gpu);
	p->gpu = NULL;
	return 0;
}

/* On GPUs only if all ranks have one, and can reach all others': all ranks choose the same. */
static int choose_device(struct program *p, struct fault *fault)
{
	if (p->joins)
		return 0;
	if (p->options.device != DEVICE_CPU && try_gpu(p, fault))
		return -1;
	if (p->options.device == DEVICE_CUDA && !p->gpu)
		return fault_say(fault,
			"--device cuda: %s. It needs GPUs that reach each other, CUDA's runtime, "
			"and libtern_cuda.so, which make builds where nvcc is; "
			"--device cpu needs none of it",
			p->why_no_gpu.text);
	if (is_first(p))
		show_where(tern_group_nr_ranks(p->group), gpu_nr(p->gpu), p->why_no_gpu.text);
	return 0;
}

static int use_experts(struct program *p, const struct moe_tern_config *moe, const int32_t *ids,
	uint32_t nr, uint32_t nr_places, struct fault *fault)
{
	int rc = experts_load(&p->checkpoint, &p->config, ids, nr, nr_places, &p->experts, fault);

	return rc ? rc : moe_tern_use(p->moe, moe, &p->checkpoint, &p->experts, fault);
}

static int load(struct program *p, struct fault *fault)
{
	const struct serve_plan *plan = &p->options.plan;
	struct moe_tern_config moe = {.group = p->group,
		.gpu = p->gpu,
		.model = &p->config,
		.types = p->options.types,
		.wait_ms = p->options.wait_ms,
		.elastic = plan->elastic,
		.joins = p->joins,
		.nr_copies = p->options.nr_copies};
	uint32_t nr_ranks = (uint32_t)tern_group_nr_ranks(p->group), nr, nr_places;
	const int32_t *ids;

	if (config_read(p->options.model, &p->config, fault) ||
		checkpoint_open(p->options.model, &p->checkpoint, fault) ||
		model_load(&p->checkpoint, &p->config, &p->model, fault))
		return -1;
	moe.prefill_tokens = SERVE_PREFILL_TOKENS;
	moe.decode_tokens = serve_most_sequences(plan, nr_ranks);
	if (moe_tern_create(&moe, &p->moe, fault))
		return -1;
	ids = moe_tern_experts(p->moe, &nr, &nr_places);
	if (p->options.layer ? moe_tern_use_layers(p->moe, &moe, &p->checkpoint, fault)
			     : use_experts(p, &moe, ids, nr, nr_places, fault))
		return -1;
	if (service_create(&p->model, plan, (uint32_t)tern_group_rank(p->group), nr_ranks,
		    &p->service, fault) ||
		texts_create(plan, &p->texts, fault))
		return -1;
	if (p->joins && moe_tern_enter(p->moe, fault))
		return -1;
	p->trace = p->options.trace ? trace_create(p->config.nr_layers, p->config.topk) : NULL;
	return p->options.trace && !p->trace ? fault_say(fault, "no memory for a trace") : 0;
}

static void tear_down(struct program *p)
{
	trace_destroy(p->trace);
	texts_destroy(&p->texts);
	service_destroy(&p->service);
	moe_tern_destroy(p->moe);
	experts_destroy(&p->experts);
	gpu_close(p->gpu);
	model_destroy(&p->model);
	checkpoint_close(&p->checkpoint);
	tern_group_destroy(p->group);
	options_free(&p->options);
}

/* ---- run ------------------------------------------------------------------------------------- */

static int show(struct program *p, bool first, struct fault *fault)
{
	if (!p->live)
		return 0;
	if (gather_texts(p->group, &p->service, &p->texts, fault))
		return -1;
	if (is_first(p))
		show_live(&p->options, &p->texts, first);
	return 0;
}

/* Who tells of the first of these changes: the lowest rank that was there before it, and since. Who
 * comes in rank 0's place knows of nobody's death. */
static uint32_t teller(const struct moe_change *changes, uint32_t nr)
{
	for (uint32_t word = 0; word < 4; word++) {
		uint64_t there = changes->view.alive[word];

		for (uint32_t i = 0; i < nr; i++)
			there &= ~(changes[i].view.joined[word] | changes[i].view.gone[word]);
		if (there)
			return 64 * word + (uint32_t)__builtin_ctzll(there);
	}
	return 256;
}

/* A lower rank that tells of a change may die before it has: then this one does. */
static void show_new_changes(struct program *p)
{
	uint32_t nr, me = (uint32_t)tern_group_rank(p->group), who = me;
	const struct moe_change *changes = moe_tern_changes(p->moe, &nr);

	while (p->nr_shown < nr && who >= me) {
		who = teller(&changes[p->nr_shown], nr - p->nr_shown);
		if (who == me)
			show_change(&changes[p->nr_shown]);
		p->nr_shown += who >= me;
	}
}

/* Also who died since the last step; while texts are shown alive, at the end. */
static void show_elastic(void *ctx, uint32_t step)
{
	struct program *p = ctx;

	if (!p->live)
		show_new_changes(p);
	else if (is_first(p) && step % STEPS_BETWEEN_SHOWS == 0)
		show_live(&p->options, &p->texts, step == 0);
}

static enum verdict compare(const struct texts *a, const struct texts *b)
{
	bool same = !memcmp(a->nr_bytes, b->nr_bytes, a->nr_prompts * sizeof(*a->nr_bytes)) &&
		    !memcmp(a->fingerprints, b->fingerprints,
			    a->nr_prompts * sizeof(*a->fingerprints)) &&
		    !memcmp(a->bytes, b->bytes, (size_t)a->nr_prompts * a->nr_tokens);

	return same ? VERDICT_SAME : VERDICT_DIFFERENT;
}

/* Prompts of ranks that are gone are taken over again. */
static int begin_again(struct program *p, struct fault *fault)
{
	struct service before = p->service;

	if (service_create(
		    &p->model, before.plan, before.rank, before.nr_ranks, &p->service, fault))
		return -1;
	p->service.prefill_ns = before.prefill_ns;
	p->service.decode_ns = before.decode_ns;
	p->service.nr_prefilled = before.nr_prefilled;
	p->service.nr_decoded = before.nr_decoded;
	service_destroy(&before);
	texts_destroy(&p->texts);
	return texts_create(&p->options.plan, &p->texts, fault);
}

/* A length that lasts: for who kills ranks. Who joined in the last time has done all there is. */
static int repeat(struct program *p, struct elastic_run *run, struct fault *fault)
{
	int rc = 0;

	for (uint32_t i = run->nr_before + 1; i < p->options.nr_repeats && !rc; i++) {
		struct texts before = p->texts;

		p->texts = (struct texts){0};
		rc = begin_again(p, fault);
		run->nr_before = i;
		rc = rc ? rc : elastic_generate(run, fault);
		if (!rc && compare(&before, &p->texts) != VERDICT_SAME)
			rc = fault_say(
				fault, "time %u gave other texts than the one before", i + 1);
		texts_destroy(&before);
	}
	return rc;
}

static int generate_elastic(struct program *p, struct fault *fault)
{
	struct elastic_run run = {.service = &p->service,
		.moe = p->moe,
		.prefill = moe_tern_prefill(p->moe),
		.decode = moe_tern_decode(p->moe),
		.texts = &p->texts,
		.shown = show_elastic,
		.ctx = p,
		.joins = p->joins};

	if (p->trace)
		return fault_say(fault, "--trace and --elastic do not go together");
	if (elastic_generate(&run, fault))
		return -1;
	return p->options.nr_repeats > 1 ? repeat(p, &run, fault) : 0;
}

static int generate_fixed(struct program *p, struct fault *fault)
{
	struct moe_exchange prefill = moe_tern_prefill(p->moe), decode = moe_tern_decode(p->moe);
	struct moe_exchange through = p->trace ? trace_exchange(p->trace, &prefill) : prefill;

	if (service_prefill(&p->service, &through, fault) || show(p, true, fault))
		return -1;
	through = p->trace ? trace_exchange(p->trace, &decode) : decode;
	for (uint32_t i = 1; i < p->options.plan.nr_tokens; i++)
		if (service_step(&p->service, &through, fault) ||
			(i % STEPS_BETWEEN_SHOWS == 0 && show(p, false, fault)))
			return -1;
	return gather_texts(p->group, &p->service, &p->texts, fault);
}

static int generate(struct program *p, struct fault *fault)
{
	if (p->options.plan.elastic ? generate_elastic(p, fault) : generate_fixed(p, fault))
		return -1;
	if (gather_figures(p->group, &p->service, p->moe, &p->figures, fault))
		return -1;
	p->figures.nr_gpus = gpu_nr(p->gpu);
	if (is_first(p)) {
		if (p->live)
			clear_live(&p->options);
		show_texts(&p->options, &p->texts, p->service.nr_ranks);
	}
	return 0;
}

/* Prompts in one process, over no exchange at all. */
static int run_alone(const struct program *p, const struct moe_exchange *exchange,
	struct service *alone, struct fault *fault)
{
	int rc = service_prefill(alone, exchange, fault);

	for (uint32_t i = 1; !rc && i < p->options.plan.nr_tokens; i++)
		rc = service_step(alone, exchange, fault);
	return rc;
}

/* With all experts here. */
static int with_all_experts(struct program *p, struct service *alone, struct fault *fault)
{
	uint32_t most = p->options.plan.nr_prompts > SERVE_PREFILL_TOKENS
				? p->options.plan.nr_prompts
				: SERVE_PREFILL_TOKENS;
	struct moe_local *local = NULL;
	struct moe_exchange exchange;
	struct experts all = {0};
	uint32_t nr = p->config.nr_experts;
	int rc = experts_load(&p->checkpoint, &p->config, NULL, nr, nr, &all, fault);

	if (!rc) {
		local = moe_local_create(&all, p->config.topk, most, p->options.types);
		rc = local ? 0 : fault_say(fault, "no memory to run on one rank");
	}
	if (!rc) {
		exchange = moe_local_exchange(local);
		rc = run_alone(p, &exchange, alone, fault);
	}
	moe_local_destroy(local);
	experts_destroy(&all);
	return rc;
}

/* By the first rank: the same prompts, every bit. */
static int check(struct program *p, enum verdict *verdict, struct fault *fault)
{
	struct service alone = {0};
	struct texts texts = {0};
	int rc = service_create(&p->model, &p->options.plan, 0, 1, &alone, fault);

	rc = rc ? rc : with_all_experts(p, &alone, fault);
	rc = rc ? rc : texts_create(&p->options.plan, &texts, fault);
	if (!rc) {
		texts_take(&texts, &alone);
		*verdict = compare(&p->texts, &texts);
	}
	texts_destroy(&texts);
	service_destroy(&alone);
	return rc;
}

/* By each rank, with --layer: it reads its texts again, whichever bytes it would have chosen, and
 * compares all logits. */
static int check_layer(struct program *p, struct fault *fault)
{
	struct service alone = {0};
	double far[2] = {0};
	int rc = service_create(
		&p->model, &p->options.plan, p->service.rank, p->service.nr_ranks, &alone, fault);

	alone.told = &p->service;
	rc = rc ? rc : with_all_experts(p, &alone, fault);
	if (!rc)
		service_distance(&p->service, &alone, far);
	service_destroy(&alone);
	rc = rc ? rc : gather_sums(p->group, far, 2, fault);
	p->figures.logits_far = far[1] > 0 ? sqrt(far[0] / far[1]) : 0;
	return rc;
}

static int write_trace(const struct program *p, struct fault *fault)
{
	char name[3072];

	if (!p->trace)
		return 0;
	if (p->service.nr_ranks == 1)
		return trace_write(p->trace, p->options.trace, fault);
	snprintf(name, sizeof(name), "%s.%u", p->options.trace, p->service.rank);
	return trace_write(p->trace, name, fault);
}

static void show_changes(struct program *p)
{
	uint32_t nr;
	const struct moe_change *changes = moe_tern_changes(p->moe, &nr);

	for (uint32_t i = 0; i < nr; i++)
		show_change(&changes[i]);
}

/* The first rank's part once all are done. */
static int conclude(struct program *p, struct fault *fault)
{
	enum verdict verdict = VERDICT_UNKNOWN;

	if (p->options.check && p->options.layer)
		verdict = p->figures.logits_far <= LAYER_FAR ? VERDICT_NEAR : VERDICT_DIFFERENT;
	else if (p->options.check && check(p, &verdict, fault))
		return -1;
	if (p->live)
		show_changes(p);
	show_figures(&p->options, &p->figures, verdict);
	if (p->options.json &&
		write_json(p->options.json, &p->options, &p->texts, &p->figures, verdict, fault))
		return -1;
	return verdict == VERDICT_DIFFERENT
		       ? fault_say(fault, "the ranks together did not do what one rank does")
		       : 0;
}

static int run(struct program *p, struct fault *fault)
{
	if (join(p, fault) || choose_device(p, fault) || load(p, fault) || generate(p, fault) ||
		write_trace(p, fault) ||
		(p->options.layer && p->options.check && check_layer(p, fault)))
		return -1;
	return is_first(p) ? conclude(p, fault) : 0;
}

int main(int argc, char **argv)
{
	struct program program = {0};
	struct fault fault = {""};
	int rc = options_read(argc, argv, &program.options, &fault);

	if (!rc && program.options.help)
		fputs(options_usage, stdout);
	else if (!rc)
		rc = run(&program, &fault);
	if (rc)
		fprintf(stderr, "generate: %s\n", fault.text);
	tear_down(&program);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
