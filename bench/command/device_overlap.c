/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/device_overlap.h"

#include <string.h>

#include "base/error.h"

#define WORK_BYTES (256u << 20)   /* several times what a GPU caches */
#define VERIFIED_BYTES (1u << 20) /* where time does not count */
#define TRIES 3
#define FEW_WAVES 4
#define MANY_WAVES 20

/* ---- what graphs hold ------------------------------------------------------------------------ */

#define MOST_STEPS 4

const struct overlap_plan overlap_plans[NR_OVERLAP_KINDS] = {
	[OVERLAP_DISPATCH] = {"dispatch_halves", 0, 1, false},
	[OVERLAP_COMBINE] = {"combine_halves", 0, 1, false},
	[OVERLAP_HALVES] = {"split_halves", 2, 1, true},
	[OVERLAP_BATCHES] = {"two_batches", 4, 2, true},
};

/* Of a row's two graphs. */
static const struct step steps_of[NR_OVERLAP_KINDS][2][MOST_STEPS] = {
	[OVERLAP_DISPATCH] = {{{PIECE_DISPATCH_SEND, 0, WORK_NONE}},
		{{PIECE_DISPATCH_RECEIVE, 0, WORK_NONE}}},
	[OVERLAP_COMBINE] = {{{PIECE_COMBINE_SEND, 0, WORK_NONE}},
		{{PIECE_COMBINE_RECEIVE, 0, WORK_NONE}}},
	[OVERLAP_HALVES] = {{{PIECE_NONE, 0, WORK_BEHIND}, {PIECE_NONE, 0, WORK_BEHIND}},
		{{PIECE_DISPATCH_SEND, 0, WORK_BEHIND}, {PIECE_DISPATCH_RECEIVE, 0, WORK_NONE},
			{PIECE_COMBINE_SEND, 0, WORK_BEHIND},
			{PIECE_COMBINE_RECEIVE, 0, WORK_NONE}}},
	/* Beside the dispatch of one micro-batch the other's attention, then its experts; beside
	   the combine its experts, then its attention. */
	[OVERLAP_BATCHES] = {{{PIECE_NONE, 0, WORK_BEHIND}, {PIECE_NONE, 0, WORK_BEHIND},
				     {PIECE_NONE, 0, WORK_BEHIND}, {PIECE_NONE, 0, WORK_BEHIND}},
		{{PIECE_DISPATCH, 0, WORK_BESIDE}, {PIECE_DISPATCH, 1, WORK_BESIDE},
			{PIECE_COMBINE, 0, WORK_BESIDE}, {PIECE_COMBINE, 1, WORK_BESIDE}}},
};

uint32_t overlap_rows(const struct bench_args *args, struct overlap_row rows[OVERLAP_MOST_ROWS])
{
	uint32_t nr = 0;

	if (!args->overlap.nr)
		return 0;
	rows[nr++] = (struct overlap_row){OVERLAP_DISPATCH, 0};
	rows[nr++] = (struct overlap_row){OVERLAP_COMBINE, 0};
	for (enum overlap_kind kind = OVERLAP_HALVES; kind < NR_OVERLAP_KINDS; kind++)
		for (uint32_t i = 0; i < args->overlap.nr &&
				     args->job.config.nr_slots >= overlap_plans[kind].nr_slots;
			i++)
			rows[nr++] = (struct overlap_row){kind, (uint32_t)args->overlap.value[i]};
	return nr;
}

/* Both slots on the stream that goes first, if works are beside; then back to their own. */
static int choose_streams(struct device_overlap *o, bool urgent)
{
	struct device_rounds *r = o->rounds;
	int rc = 0;

	for (uint32_t slot = 0; slot < r->job->config.nr_slots && !rc; slot++)
		rc = tern_moe_set_stream(r->moe, slot, urgent ? o->urgent : r->lanes[slot].stream);
	return rc;
}

/* Steps without piece and work are none; a graph without steps is NULL. */
static int capture(struct device_overlap *o, enum overlap_kind kind, uint32_t which, bool works,
	uint32_t nr_tokens, struct device_graph **graph)
{
	struct step steps[MOST_STEPS];
	uint32_t nr = 0;
	int rc;

	for (uint32_t i = 0; i < MOST_STEPS; i++) {
		steps[nr] = steps_of[kind][which][i];
		steps[nr].work = works ? steps[nr].work : WORK_NONE;
		nr += steps[nr].piece || steps[nr].work;
	}
	if (!nr)
		return 0;
	rc = choose_streams(o, kind == OVERLAP_BATCHES && which);
	rc = rc ? rc : device_capture(o->rounds, steps, nr, &o->works, nr_tokens, graph);
	return rc ? rc : choose_streams(o, false);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_works(struct device_overlap *o, bool timed)
{
	const struct bench_device_ops *ops = o->rounds->ops;
	int rc;

	o->works =
		(struct device_works){.bytes = timed ? WORK_BYTES : VERIFIED_BYTES, .nr_waves = 1};
	rc = ops->stream_create(&o->works.stream, false);
	rc = rc ? rc : ops->stream_create(&o->urgent, true);
	rc = rc ? rc : ops->memory_create(o->works.bytes, &o->works.memory);
	rc = rc ? rc : ops->fill(o->works.memory, 0x3c, o->works.bytes, o->works.stream);
	return device_passed_on(o->rounds, rc ? rc : ops->stream_wait(o->works.stream));
}

static int capture_verified(struct device_overlap *o)
{
	struct device_rounds *r = o->rounds;
	int rc = 0;

	o->works.keep = true;
	for (uint32_t slot = 0; slot < r->job->config.nr_slots && slot < 2 && !rc; slot++) {
		rc = device_keep_open(r, slot);
		rc = rc ? rc
			: tern_moe_set_nr_tokens_at(
				  r->moe, slot, (const uint32_t *)r->lanes[slot].nr_tokens);
	}
	for (enum overlap_kind kind = OVERLAP_HALVES; kind < NR_OVERLAP_KINDS && !rc; kind++)
		if (r->job->config.nr_slots >= overlap_plans[kind].nr_slots)
			rc = capture(
				o, kind, 1, true, r->job->config.max_tokens, &o->verified[kind]);
	for (uint32_t slot = 0; slot < r->job->config.nr_slots && slot < 2 && !rc; slot++)
		rc = tern_moe_set_nr_tokens_at(r->moe, slot, NULL);
	o->works.keep = false;
	return rc;
}

int device_overlap_open(
	struct device_overlap *o, struct device_rounds *rounds, const struct bench_args *args)
{
	int rc;

	memset(o, 0, sizeof(*o));
	o->rounds = rounds;
	o->nr_rows = overlap_rows(args, o->rows);
	rc = make_works(o, !args->only_verify);
	rc = rc || !args->verify ? rc : capture_verified(o);
	return device_rounds_agree(rounds, rc);
}

void device_overlap_close(struct device_overlap *o)
{
	const struct bench_device_ops *ops = o->rounds ? o->rounds->ops : NULL;

	if (!ops)
		return;
	ops->stream_wait(o->rounds->lanes[0].stream);
	for (uint32_t row = 0; row < o->nr_rows; row++)
		for (uint32_t which = 0; which < 2; which++)
			ops->graph_destroy(o->timed[row][which]);
	for (uint32_t kind = 0; kind < NR_OVERLAP_KINDS; kind++)
		ops->graph_destroy(o->verified[kind]);
	if (o->works.stream)
		ops->stream_destroy(o->works.stream);
	if (o->urgent)
		ops->stream_destroy(o->urgent);
	if (o->works.memory)
		ops->memory_free(o->works.memory);
	memset(o, 0, sizeof(*o));
}

int device_overlap_verify(struct device_overlap *o, uint64_t round)
{
	int rc = 0, nr = 0;

	for (enum overlap_kind kind = 0; kind < NR_OVERLAP_KINDS && !rc; kind++) {
		uint32_t slots = overlap_plans[kind].nr_slots;

		if (!o->verified[kind])
			continue;
		rc = device_verify_graph(o->rounds, o->verified[kind], slots, round + (uint32_t)nr);
		nr += (int)slots;
	}
	return rc ? rc : nr;
}

/* ---- how long a work takes ------------------------------------------------------------------- */

/* The fastest of a few runs of a kind's works. */
static int time_works(
	struct device_overlap *o, enum overlap_kind kind, uint32_t nr_waves, double *us)
{
	struct device_rounds *r = o->rounds;
	struct device_graph *graph = NULL;
	double took;
	int rc;

	o->works.nr_waves = nr_waves;
	rc = capture(o, kind, 0, true, 0, &graph);
	for (int i = 0; i < TRIES && !rc; i++) {
		rc = r->ops->graph_launch(graph, r->lanes[0].stream);
		rc = rc ? rc : r->ops->stream_wait(r->lanes[0].stream);
		rc = device_passed_on(r, rc ? rc : r->ops->graph_time(graph, &took));
		*us = !i || took < *us ? took : *us;
	}
	r->ops->graph_destroy(graph);
	return rc;
}

/* A graph takes some time of its own, so works are told from one with more works, or longer ones.
 * By rank 0, so that all do the same. */
static int calibrate(struct device_overlap *o)
{
	double two = 0, longer = 0, four = 0, mine[2], all[2 * o->rounds->job->nr_ranks];
	int rc = time_works(o, OVERLAP_HALVES, FEW_WAVES, &two);

	rc = rc ? rc : time_works(o, OVERLAP_HALVES, MANY_WAVES, &longer);
	rc = rc ? rc : time_works(o, OVERLAP_BATCHES, FEW_WAVES, &four);
	mine[0] = (longer - two) / (2 * (MANY_WAVES - FEW_WAVES));
	mine[1] = (four - two) / 2 - FEW_WAVES * mine[0];
	rc = device_rounds_agree(o->rounds, rc);
	rc = rc ? rc : tern_group_allgather(o->rounds->group, mine, all, sizeof(mine));
	o->wave_us = rc || all[0] < 1 ? 1 : all[0]; /* a wave takes less only on GPUs that are
						       emulated */
	o->work_us = rc || all[1] < 0 ? 0 : all[1];
	return rc;
}

static uint32_t waves_for(const struct device_overlap *o, uint32_t us)
{
	double waves = (us - o->work_us) / o->wave_us + 0.5;

	return waves < 1 ? 1 : (uint32_t)waves;
}

/* ---- timed rounds ---------------------------------------------------------------------------- */

/* Rows of y are only moved and summed, as in device_rounds_prepare. */
static int put_inputs(struct device_overlap *o)
{
	struct device_rounds *r = o->rounds;
	int rc = 0;

	for (uint32_t slot = 1; slot < r->job->config.nr_slots && slot < 2 && !rc; slot++) {
		rc = device_rounds_upload(r, slot, DEVICE_TIMED_ROUND);
		rc = rc ? rc
			: device_passed_on(
				  r, r->ops->fill(r->lanes[slot].y, 0x3c, device_lane_sizes(r).y,
					     r->lanes[slot].stream));
		rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(r->lanes[slot].stream));
	}
	return rc;
}

int device_overlap_prepare(struct device_overlap *o)
{
	struct device_rounds *r = o->rounds;
	uint32_t n = job_nr_tokens(r->job, DEVICE_TIMED_ROUND, r->rank);
	int rc = calibrate(o);

	rc = rc ? rc : put_inputs(o);
	for (uint32_t row = 0; row < o->nr_rows && !rc; row++) {
		o->works.nr_waves = waves_for(o, o->rows[row].work_us);
		for (uint32_t which = 0; which < 2 && !rc; which++)
			rc = capture(o, o->rows[row].kind, which, o->rows[row].work_us > 0, n,
				&o->timed[row][which]);
	}
	rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(r->lanes[0].stream));
	return device_rounds_agree(r, rc);
}

static int read_times(struct device_overlap *o, struct times *times, uint32_t i)
{
	int rc = 0;

	for (uint32_t row = 0; row < o->nr_rows && !rc; row++) {
		double us[2] = {0, 0};

		for (uint32_t which = 0; which < 2 && !rc; which++)
			if (o->timed[row][which])
				rc = device_passed_on(
					o->rounds, o->rounds->ops->graph_time(
							   o->timed[row][which], &us[which]));
		times[row].us[0][i] = us[0];
		times[row].us[1][i] = us[1];
		times[row].us[2][i] =
			overlap_plans[o->rows[row].kind].difference ? us[1] - us[0] : us[0] + us[1];
	}
	return rc;
}

/* Each graph begins behind a barrier of all devices: so what a half before it has sent is there. */
int device_overlap_time(struct device_overlap *o, struct times *times, uint32_t i)
{
	struct device_rounds *r = o->rounds;
	int rc = 0;

	for (uint32_t row = 0; row < o->nr_rows && !rc; row++)
		for (uint32_t which = 0; which < 2 && !rc; which++) {
			rc = o->timed[row][which] ? device_rounds_start(r) : 0;
			if (!rc && o->timed[row][which])
				rc = device_passed_on(r, r->ops->graph_launch(o->timed[row][which],
								 r->lanes[0].stream));
		}
	rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(r->lanes[0].stream));
	rc = rc ? rc : tern_moe_status(r->moe);
	return rc || !times ? rc : read_times(o, times, i);
}
