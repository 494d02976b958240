/* SPDX-License-Identifier: Apache-2.0 */
#include "moe_tern.h"
#include "layers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One mode's exchange, and the rows on both ends of it. */
struct lane {
	struct moe_tern *moe;
	tern_moe *tern;
	uint32_t version;     /* of its placement */
	struct buffer x, out; /* [max_tokens][hidden] in the types that Tern takes and gives */
	struct buffer ids, weights; /* [max_tokens][topk] */
	struct durations durations; /* kept of decoding */
	bool measured;
};

struct moe_tern {
	tern_group *group;
	bool elastic;
	struct homes *homes; /* NULL: experts stay where they are */
	struct tern_view view;
	uint64_t serving[4];  /* members that do */
	uint64_t entering[4]; /* those that have not told anything yet */
	uint64_t changed[4];  /* since the last gathering began: what they told was another's */
	struct moe_change *changes;
	uint32_t nr_changes;
	struct gpu *gpu; /* NULL: the CPU */
	struct experts *experts;
	struct layers *layers; /* in their place; or NULL */
	struct moe_types types;
	uint32_t hidden, topk;
	int32_t *ids; /* [nr] of this rank's experts */
	uint32_t nr;
	struct lane prefill, decode;
	float *rows, *results; /* one expert's, as floats */
	uint64_t room;         /* of these, in rows */
	struct buffer y;       /* all experts' results, in the type that travels */
	struct buffer counts, offsets, received, scales; /* what a GPU has received, as the CPU sees
							    it */
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define AGAIN 1 /* in place of 0 or -1: a rank has died, and the others make the round again */

static int failed(struct fault *fault, const char *doing, int rc)
{
	return fault_say(fault, "%s: %s (%s)", doing, tern_last_error(), tern_strerror(rc));
}

/* Of what can be made again. */
static int tern_failed(struct fault *fault, const char *doing, int rc)
{
	return rc == TERN_ERR_MEMBERS ? AGAIN : failed(fault, doing, rc);
}

static enum tern_dtype dtype_of(enum wire_type type)
{
	return type == WIRE_BF16 ? TERN_BF16 : type == WIRE_FP32 ? TERN_FP32 : TERN_FP8_E4M3;
}

/* ---- creating -------------------------------------------------------------------------------- */

static struct tern_moe_config lane_config(
	const struct moe_tern_config *config, enum tern_mode mode, uint32_t max_tokens)
{
	struct tern_moe_config tern;

	tern_moe_config_init(&tern);
	tern.mode = mode;
	tern.layout = TERN_CONTIGUOUS;
	tern.reduce = TERN_REDUCE_HOME;
	tern.hidden = config->model->hidden;
	tern.nr_experts = config->model->nr_experts;
	tern.topk = config->model->topk;
	tern.max_tokens = max_tokens;
	tern.x_dtype = config->types.dispatch == WIRE_BF16 ? TERN_BF16 : TERN_FP32;
	tern.dispatch_dtype = dtype_of(config->types.dispatch);
	tern.scale = config->types.dispatch == WIRE_FP8 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	tern.combine_dtype = dtype_of(config->types.combine);
	tern.wait_ms = config->wait_ms;
	tern.elastic = config->elastic;
	tern.device = config->gpu ? TERN_DEVICE_CUDA : TERN_DEVICE_CPU;
	return tern;
}

/* Copy c of a block of experts is on the c-th rank behind the one that has it in any case. */
static int place_copies(const struct moe_tern_config *config, struct tern_placement *placement)
{
	uint32_t nr_ranks = (uint32_t)tern_group_nr_ranks(config->group),
		 nr_experts = config->model->nr_experts;
	uint32_t nr = nr_experts * config->nr_copies;
	int32_t *logical = malloc(2 * nr * sizeof(*logical)), *rank = logical + nr;

	if (!logical)
		return -1;
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t id = i % nr_experts, block = id * nr_ranks / nr_experts;

		logical[i] = (int32_t)id;
		rank[i] = (int32_t)((block + i / nr_experts) % nr_ranks);
	}
	*placement = (struct tern_placement){.nr_physical = nr, .logical = logical, .rank = rank};
	return 0;
}

static int create_exchange(
	const struct moe_tern_config *config, struct tern_moe_config *tern, struct lane *lane)
{
	int rc;

	if (lane->moe->homes)
		tern->placement = homes_placement(lane->moe->homes);
	else if (config->nr_copies > 1 && place_copies(config, &tern->placement))
		return TERN_ERR_NOMEM;
	rc = tern_moe_create(config->group, tern, &lane->tern);
	if (!lane->moe->homes)
		free((void *)(uintptr_t)tern->placement.logical);
	return rc;
}

static int create_lane(const struct moe_tern_config *config, enum tern_mode mode,
	uint32_t max_tokens, struct lane *lane, struct fault *fault)
{
	size_t rows = (size_t)max_tokens * config->model->hidden * sizeof(float),
	       routes = (size_t)max_tokens * config->model->topk;
	struct tern_moe_config tern = lane_config(config, mode, max_tokens);
	int rc = buffer_grow(config->gpu, &lane->x, rows, fault);

	rc = rc ? rc : buffer_grow(config->gpu, &lane->out, rows, fault);
	rc = rc ? rc : buffer_grow(config->gpu, &lane->ids, routes * sizeof(int32_t), fault);
	rc = rc ? rc : buffer_grow(config->gpu, &lane->weights, routes * sizeof(float), fault);
	if (rc)
		return rc;
	rc = create_exchange(config, &tern, lane);
	rc = rc || !config->gpu ? rc : tern_moe_set_stream(lane->tern, 0, gpu_stream(config->gpu));
	return rc ? failed(fault, "creating an exchange", rc) : 0; /* who has died is named */
}

int moe_tern_try_gpus(tern_group *group, struct fault *fault)
{
	struct tern_moe_config config;
	tern_moe *moe = NULL;
	int rc;

	tern_moe_config_init(&config);
	config.hidden = 8;
	config.nr_experts = (uint32_t)tern_group_nr_ranks(group);
	config.topk = 1;
	config.max_tokens = 1;
	config.device = TERN_DEVICE_CUDA;
	rc = tern_moe_create(group, &config, &moe);
	tern_moe_destroy(moe);
	return rc ? fault_say(fault, "%s", tern_last_error()) : 0;
}

static void destroy_lane(struct gpu *gpu, struct lane *lane)
{
	tern_moe_destroy(lane->tern);
	buffer_free(gpu, &lane->x);
	buffer_free(gpu, &lane->out);
	buffer_free(gpu, &lane->ids);
	buffer_free(gpu, &lane->weights);
	free(lane->durations.dispatch_ns);
	free(lane->durations.combine_ns);
}

static int list_experts(struct moe_tern *moe, struct fault *fault)
{
	moe->nr = (uint32_t)tern_moe_nr_local(moe->decode.tern);
	moe->ids = malloc((moe->nr + 1) * sizeof(*moe->ids));
	if (!moe->ids)
		return fault_say(fault, "no memory for %u experts", moe->nr);
	for (uint32_t local = 0; local < moe->nr; local++)
		moe->ids[local] = tern_moe_local_expert(moe->decode.tern, local);
	return 0;
}

static int make_homes(
	struct moe_tern *moe, const struct moe_tern_config *config, struct fault *fault)
{
	uint32_t nr_ranks = (uint32_t)tern_group_nr_ranks(config->group),
		 nr = config->model->nr_experts;

	if (!config->elastic || config->nr_copies > 1)
		return 0;
	if (nr < nr_ranks)
		return fault_say(fault,
			"--elastic=1 needs an expert for each rank at least: there are %u for %u",
			nr, nr_ranks);
	moe->homes = homes_create(nr, nr_ranks, (uint32_t)tern_group_rank(config->group));
	return moe->homes ? 0 : fault_say(fault, "no memory for tables of %u experts", nr);
}

static void all_serve(struct moe_tern *moe)
{
	for (int r = 0; r < tern_group_nr_ranks(moe->group); r++)
		moe->serving[r / 64] |= 1ull << r % 64;
}

int moe_tern_create(
	const struct moe_tern_config *config, struct moe_tern **moe, struct fault *fault)
{
	struct moe_tern *made = calloc(1, sizeof(*made));

	if (!made)
		return fault_say(fault, "no memory for an exchange");
	made->types = config->types;
	made->gpu = config->gpu;
	made->group = config->group;
	made->elastic = config->elastic;
	made->hidden = config->model->hidden;
	made->topk = config->model->topk;
	made->prefill.moe = made->decode.moe = made;
	made->decode.measured = true;
	if (!config->joins)
		all_serve(made);
	if (make_homes(made, config, fault) ||
		create_lane(config, TERN_HIGH_THROUGHPUT, config->prefill_tokens, &made->prefill,
			fault) ||
		create_lane(
			config, TERN_LOW_LATENCY, config->decode_tokens, &made->decode, fault)) {
		moe_tern_destroy(made);
		return -1;
	}
	made->view.size = sizeof(made->view);
	if (list_experts(made, fault) ||
		(made->elastic && !config->joins && moe_tern_enter(made, fault))) {
		moe_tern_destroy(made);
		return -1;
	}
	*moe = made;
	return 0;
}

void moe_tern_destroy(struct moe_tern *moe)
{
	if (!moe)
		return;
	gpu_wait(moe->gpu, NULL); /* not for longer than kernels wait */
	layers_destroy(moe->layers);
	destroy_lane(moe->gpu, &moe->prefill);
	destroy_lane(moe->gpu, &moe->decode);
	homes_destroy(moe->homes);
	buffer_free(moe->gpu, &moe->y);
	buffer_free(moe->gpu, &moe->counts);
	buffer_free(moe->gpu, &moe->offsets);
	buffer_free(moe->gpu, &moe->received);
	buffer_free(moe->gpu, &moe->scales);
	free(moe->rows);
	free(moe->results);
	free(moe->ids);
	free(moe->changes);
	free(moe);
}

const int32_t *moe_tern_experts(const struct moe_tern *moe, uint32_t *nr, uint32_t *nr_places)
{
	if (moe->homes)
		return homes_mine(moe->homes, nr, nr_places);
	*nr = *nr_places = moe->nr;
	return moe->ids;
}

int moe_tern_use(struct moe_tern *moe, const struct moe_tern_config *config,
	const struct checkpoint *checkpoint, struct experts *experts, struct fault *fault)
{
	const struct homes_config homes = {.group = config->group,
		.model = config->model,
		.checkpoint = checkpoint,
		.experts = experts,
		.joins = config->joins,
		.wait_ms = config->wait_ms};

	moe->experts = experts;
	return moe->homes ? homes_open(moe->homes, &homes, fault) : 0;
}

int moe_tern_use_layers(struct moe_tern *moe, const struct moe_tern_config *config,
	const struct checkpoint *checkpoint, struct fault *fault)
{
	const struct layers_config layers = {.gpu = config->gpu,
		.checkpoint = checkpoint,
		.model = config->model,
		.ids = moe->ids,
		.nr = moe->nr,
		.prefill = moe->prefill.tern,
		.decode = moe->decode.tern};

	return layers_create(&layers, &moe->layers, fault);
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Room for the rows that arrived; grows in powers of two, so that it soon stops growing. */
static int make_room(struct moe_tern *moe, uint64_t most, uint64_t extent, struct fault *fault)
{
	uint64_t row = moe->hidden * sizeof(float);

	if (most > moe->room || !moe->rows) {
		moe->room = most < 64 ? 64 : 2 * most;
		free(moe->rows);
		free(moe->results);
		moe->rows = malloc(moe->room * row);
		moe->results = malloc(moe->room * row);
	}
	if (!moe->rows || !moe->results)
		return fault_say(fault, "no memory for %llu rows", (unsigned long long)most);
	return buffer_grow(moe->gpu, &moe->y, (extent < 64 ? 64 : extent) * row, fault);
}

static void rows_to_floats(const struct moe_tern *moe, const struct tern_received *received,
	uint64_t first, uint32_t nr)
{
	uint32_t hidden = moe->hidden, nr_scales = (hidden + WIRE_BLOCK - 1) / WIRE_BLOCK;

	if (moe->types.dispatch == WIRE_FP32)
		memcpy(moe->rows, (const float *)received->x + first * hidden,
			(size_t)nr * hidden * sizeof(float));
	else if (moe->types.dispatch == WIRE_BF16)
		row_from_bf16(
			(const uint16_t *)received->x + first * hidden, nr * hidden, moe->rows);
	else
		for (uint32_t i = 0; i < nr; i++)
			row_from_e4m3((const uint8_t *)received->x + (first + i) * hidden,
				(const float *)received->scales + (first + i) * nr_scales, hidden,
				moe->rows + (size_t)i * hidden);
}

static void results_to_rows(const struct moe_tern *moe, uint64_t first, uint32_t nr)
{
	uint64_t at = first * moe->hidden;

	if (moe->types.combine == WIRE_BF16)
		row_to_bf16(moe->results, nr * moe->hidden, (uint16_t *)moe->y.here + at);
	else
		memcpy((float *)moe->y.here + at, moe->results,
			(size_t)nr * moe->hidden * sizeof(float));
}

static int run_experts(struct moe_tern *moe, uint32_t layer, const struct tern_received *received,
	struct fault *fault)
{
	uint32_t most = 0;

	for (uint32_t local = 0; local < moe->nr; local++)
		most = received->counts[local] > most ? received->counts[local] : most;
	if (make_room(moe, most, received->extent, fault))
		return -1;
	for (uint32_t local = 0; local < moe->nr; local++) {
		uint32_t nr = received->counts[local];

		if (!nr)
			continue;
		rows_to_floats(moe, received, received->offsets[local], nr);
		experts_run(moe->experts, layer,
			moe->homes ? homes_weights(moe->homes, local) : local, moe->rows, nr,
			moe->results);
		results_to_rows(moe, received->offsets[local], nr);
	}
	return 0;
}

static size_t wire_bytes(enum wire_type type)
{
	return type == WIRE_FP32 ? sizeof(float) : type == WIRE_BF16 ? sizeof(uint16_t) : 1;
}

/* What Tern takes: bf16 made here, or the floats themselves, which it quantises on the way out for
 * fp8. */
static int fill_inputs(const struct lane *lane, const struct moe_call *call, struct fault *fault)
{
	const struct moe_tern *moe = lane->moe;
	uint32_t nr = call->nr_tokens * moe->hidden, routes = call->nr_tokens * moe->topk;
	bool half = moe->types.dispatch == WIRE_BF16;
	int rc;

	if (half)
		row_to_bf16(call->hidden, nr, lane->x.here);
	else
		memcpy(lane->x.here, call->hidden, nr * sizeof(float));
	memcpy(lane->ids.here, call->ids, routes * sizeof(*call->ids));
	memcpy(lane->weights.here, call->weights, routes * sizeof(*call->weights));
	rc = buffer_send(moe->gpu, &lane->x, nr * (half ? sizeof(uint16_t) : sizeof(float)), fault);
	rc = rc ? rc : buffer_send(moe->gpu, &lane->ids, routes * sizeof(*call->ids), fault);
	return rc ? rc
		  : buffer_send(moe->gpu, &lane->weights, routes * sizeof(*call->weights), fault);
}

static void read_out(const struct lane *lane, const struct moe_call *call)
{
	uint32_t nr = call->nr_tokens * lane->moe->hidden;

	if (lane->moe->types.combine == WIRE_BF16)
		row_from_bf16(lane->out.here, nr, call->out);
	else
		memcpy(call->out, lane->out.here, nr * sizeof(float));
}

/* Waits for the stream, and asks what kernels have found; on the CPU all is done and known. */
static int settle(const struct lane *lane, const char *doing, struct fault *fault)
{
	int rc = gpu_wait(lane->moe->gpu, fault);

	if (rc)
		return rc;
	rc = tern_moe_status(lane->tern);
	return rc ? tern_failed(fault, doing, rc) : 0;
}

/* A GPU's counts say how many rows there are to copy; then *received is as it would be on the CPU.
 */
static int take_received(
	const struct lane *lane, struct tern_received *received, struct fault *fault)
{
	struct moe_tern *moe = lane->moe;
	uint64_t most = received->extent, row = moe->hidden * wire_bytes(moe->types.dispatch);
	uint64_t scales =
		received->scales ? (moe->hidden + WIRE_BLOCK - 1) / WIRE_BLOCK * sizeof(float) : 0;
	int rc = buffer_take(moe->gpu, &moe->counts, received->counts,
		moe->nr * sizeof(*received->counts), fault);

	rc = rc ? rc
		: buffer_take(moe->gpu, &moe->offsets, received->offsets,
			  (moe->nr + 2) * sizeof(*received->offsets), fault);
	rc = rc ? rc : settle(lane, "dispatch", fault);
	if (rc)
		return rc;
	received->counts = moe->counts.here;
	received->offsets = moe->offsets.here;
	received->extent = received->offsets[moe->nr + 1];
	if (received->extent > most)
		return fault_say(fault, "dispatch: rows span %llu positions of %llu",
			(unsigned long long)received->extent, (unsigned long long)most);
	rc = buffer_take(moe->gpu, &moe->received, received->x, received->extent * row, fault);
	rc = rc || !scales ? rc
			   : buffer_take(moe->gpu, &moe->scales, received->scales,
				     received->extent * scales, fault);
	received->x = moe->received.here;
	received->scales = moe->scales.here;
	return rc ? rc : gpu_wait(moe->gpu, fault);
}

static struct tern_dispatch dispatch_of(const struct lane *lane, const struct moe_call *call)
{
	return (struct tern_dispatch){
		.size = sizeof(struct tern_dispatch),
		.nr_tokens = call->nr_tokens,
		.x = lane->x.there,
		.topk_ids = lane->ids.there,
		.topk_ids_bits = 32,
		.topk_weights = lane->weights.there,
		.tag = call->layer,
	};
}

static int dispatch(struct lane *lane, const struct moe_call *call, struct tern_received *received,
	struct fault *fault)
{
	struct tern_dispatch args = dispatch_of(lane, call);
	int rc;

	if (fill_inputs(lane, call, fault))
		return -1;
	rc = tern_dispatch(lane->tern, &args, received);
	if (rc)
		return tern_failed(fault, "dispatch", rc);
	return lane->moe->gpu ? take_received(lane, received, fault) : 0;
}

/* What has come home is on the stream. */
static int bring_out(struct lane *lane, const struct moe_call *call, struct fault *fault)
{
	struct moe_tern *moe = lane->moe;
	size_t row = moe->hidden * wire_bytes(moe->types.combine);

	if (buffer_fetch(moe->gpu, &lane->out, call->nr_tokens * row, fault) ||
		settle(lane, "combine", fault))
		return -1;
	read_out(lane, call);
	return 0;
}

static int combine(
	struct lane *lane, const struct moe_call *call, uint64_t extent, struct fault *fault)
{
	struct moe_tern *moe = lane->moe;
	struct tern_combine args = {.size = sizeof(args), .y = moe->y.there};
	size_t row = moe->hidden * wire_bytes(moe->types.combine);
	int rc;

	if (buffer_send(moe->gpu, &moe->y, extent * row, fault))
		return -1;
	rc = tern_combine(lane->tern, &args, lane->out.there, 0);
	if (rc)
		return tern_failed(fault, "combine", rc);
	return bring_out(lane, call, fault);
}

/* Dispatch, experts and combine, without the CPU in between. */
static int run_layer(struct lane *lane, const struct moe_call *call, struct fault *fault)
{
	struct tern_dispatch args = dispatch_of(lane, call);
	struct moe_tern *moe = lane->moe;
	int rc;

	if (fill_inputs(lane, call, fault))
		return -1;
	rc = tern_layer_run(layers_at(moe->layers, lane == &moe->decode, call->layer), &args,
		lane->out.there, 0);
	return rc ? tern_failed(fault, "a layer", rc) : bring_out(lane, call, fault);
}

static int note_durations(
	struct durations *d, uint64_t dispatch_ns, uint64_t combine_ns, struct fault *fault)
{
	if (d->nr == d->room) {
		uint32_t room = d->room ? 2 * d->room : 1024;
		uint64_t *dispatches = realloc(d->dispatch_ns, room * sizeof(*dispatches));
		uint64_t *combines =
			dispatches ? realloc(d->combine_ns, room * sizeof(*combines)) : NULL;

		d->dispatch_ns = dispatches ? dispatches : d->dispatch_ns;
		d->combine_ns = combines ? combines : d->combine_ns;
		if (!dispatches || !combines)
			return fault_say(fault, "no memory for durations");
		d->room = room;
	}
	d->dispatch_ns[d->nr] = dispatch_ns;
	d->combine_ns[d->nr++] = combine_ns;
	return 0;
}

/* Without tokens it serves the others' alone. */
static int make_round(struct lane *lane, const struct moe_call *call, uint64_t *arrived_ns,
	uint64_t *computed_ns, struct fault *fault)
{
	struct tern_received received = {.size = sizeof(received)};
	int rc = dispatch(lane, call, &received, fault);

	if (!rc && received.version != lane->version)
		rc = fault_say(fault, "rows of placement %u, and this rank has %u",
			received.version, lane->version);
	*arrived_ns = now_ns();
	rc = rc ? rc : run_experts(lane->moe, call->layer, &received, fault);
	*computed_ns = now_ns();
	return rc ? rc : combine(lane, call, received.extent, fault);
}

/* ---- ranks that die -------------------------------------------------------------------------- */

static int recover(struct moe_tern *moe, struct fault *fault);

/* Who has come serves when it has told something; its predecessor does not, whoever it was. */
static void note_members(struct moe_tern *moe, const struct tern_view *view)
{
	for (int i = 0; i < 4; i++) {
		moe->serving[i] &= view->alive[i] & ~view->joined[i];
		moe->entering[i] = (moe->entering[i] | view->joined[i]) & view->alive[i];
		moe->changed[i] |= view->gone[i] | view->joined[i];
	}
}

static int note_change(struct moe_tern *moe, const struct tern_view *view, struct fault *fault)
{
	struct moe_change *changes =
		realloc(moe->changes, (moe->nr_changes + 1) * sizeof(*changes));

	moe->view = *view;
	note_members(moe, view);
	if (!changes)
		return fault_say(fault, "no memory for a change of members");
	moe->changes = changes;
	changes[moe->nr_changes++] = (struct moe_change){.view = *view, .made_ns = now_ns()};
	return 0;
}

static int place(struct lane *lane, struct fault *fault)
{
	struct tern_placement placement = homes_placement(lane->moe->homes);
	uint32_t version = homes_version(lane->moe->homes);
	int rc = tern_moe_place(lane->tern, version, placement.logical, placement.nr_physical);

	if (rc)
		return tern_failed(fault, "placing experts", rc);
	lane->version = version;
	return 0;
}

/* Experts go to where those that serve now have them. Nobody has to agree on it: rounds that come
 * wait for who is not there yet. */
static int follow(struct moe_tern *moe, struct fault *fault)
{
	struct homes_brought brought;
	bool any = false;
	int rc;

	for (int i = 0; i < 4; i++)
		any = any || moe->serving[i];
	if (!moe->homes || !any) /* who has not entered does not know yet who serves */
		return 0;
	if (homes_follow(moe->homes, moe->serving, &brought, fault))
		return -1;
	if (moe->nr_changes && brought.nr)
		moe->changes[moe->nr_changes - 1].brought = brought;
	if (moe->decode.version == homes_version(moe->homes))
		return 0;
	rc = place(&moe->prefill, fault);
	return rc ? rc : place(&moe->decode, fault);
}

int moe_tern_told(
	struct moe_tern *moe, const uint64_t told[4], const uint64_t is_new[4], struct fault *fault)
{
	int rc;

	for (int i = 0; i < 4; i++) {
		uint64_t enter = is_new[i] & ~moe->changed[i];

		moe->entering[i] &= ~enter;
		moe->serving[i] =
			told[i] & moe->view.alive[i] & ~moe->changed[i] & ~moe->entering[i];
	}
	rc = follow(moe, fault);
	while (rc == AGAIN)
		rc = recover(moe, fault);
	return rc;
}

int moe_tern_enter(struct moe_tern *moe, struct fault *fault)
{
	int rc = tern_group_view_change(moe->group, &moe->view);

	if (rc)
		return fault_say(
			fault, "becoming a member: %s (%s)", tern_last_error(), tern_strerror(rc));
	return moe->view.nr_joined ? note_change(moe, &moe->view, fault) : 0;
}

/* A round of others that this rank has ended: its experts are needed once more. */
static int serve_others(struct lane *lane, struct fault *fault)
{
	struct moe_call call = {.hidden = lane->x.here,
		.ids = lane->ids.here,
		.weights = lane->weights.here,
		.out = lane->out.here};
	uint64_t tag, arrived_ns, computed_ns;
	int rc = tern_moe_owed(lane->tern, 0, &tag);

	if (rc != 1)
		return rc ? tern_failed(fault, "a round for others", rc) : 0;
	call.layer = (uint32_t)tag;
	return make_round(lane, &call, &arrived_ns, &computed_ns, fault);
}

static int recover_once(struct moe_tern *moe, struct fault *fault)
{
	struct tern_view view = {.size = sizeof(view)};
	int rc = tern_group_view_change(moe->group, &view);

	if (rc)
		return tern_failed(fault, "going on without a rank", rc);
	if (view.number != moe->view.number && note_change(moe, &view, fault))
		return -1;
	rc = follow(moe, fault);
	rc = rc ? rc : serve_others(&moe->prefill, fault);
	return rc ? rc : serve_others(&moe->decode, fault);
}

/* Until the others are agreed with and served, whoever dies meanwhile. */
static int recover(struct moe_tern *moe, struct fault *fault)
{
	int rc = recover_once(moe, fault);

	while (rc == AGAIN)
		rc = recover_once(moe, fault);
	return rc;
}

/* What was interrupted is made again: all changes since then are over. */
static void end_changes(struct moe_tern *moe)
{
	for (uint32_t i = 0; i < moe->nr_changes; i++)
		if (!moe->changes[i].replayed_ns)
			moe->changes[i].replayed_ns =
				now_ns() - moe->changes[i].made_ns + moe->changes[i].view.change_ns;
}

int moe_tern_gather(
	struct moe_tern *moe, const void *mine, void *all, size_t bytes, struct fault *fault)
{
	int rc;

	memset(moe->changed, 0, sizeof(moe->changed));
	rc = tern_group_allgather(moe->group, mine, all, bytes);
	while (rc == TERN_ERR_MEMBERS) {
		if (recover(moe, fault))
			return -1;
		rc = tern_group_allgather(moe->group, mine, all, bytes);
	}
	end_changes(moe);
	return rc ? tern_failed(fault, "gathering from all ranks", rc) : 0;
}

const struct moe_change *moe_tern_changes(const struct moe_tern *moe, uint32_t *nr)
{
	*nr = moe->nr_changes;
	return moe->changes;
}

bool moe_tern_has(const struct moe_tern *moe, uint32_t rank)
{
	return moe->serving[rank / 64] >> rank % 64 & 1;
}

uint32_t moe_tern_lowest(const struct moe_tern *moe)
{
	uint32_t rank = 0;

	while (rank < 255 && !moe_tern_has(moe, rank))
		rank++;
	return rank;
}

static int run(void *ctx, const struct moe_call *call, struct fault *fault)
{
	struct lane *lane = ctx;
	uint64_t start = now_ns(), arrived, computed;
	int rc;

	if (lane->moe->layers) {
		if (run_layer(lane, call, fault))
			return -1;
		return lane->measured ? note_durations(&lane->durations, now_ns() - start, 0, fault)
				      : 0;
	}
	rc = make_round(lane, call, &arrived, &computed, fault);
	while (rc == AGAIN) {
		rc = recover(lane->moe, fault);
		start = now_ns();
		rc = rc ? rc : make_round(lane, call, &arrived, &computed, fault);
	}
	if (rc)
		return -1;
	end_changes(lane->moe);
	if (lane->moe->homes)
		homes_step(lane->moe->homes);
	return lane->measured ? note_durations(&lane->durations, arrived - start,
					now_ns() - computed, fault)
			      : 0;
}

struct moe_exchange moe_tern_prefill(struct moe_tern *moe)
{
	return (struct moe_exchange){.run = run, .ctx = &moe->prefill};
}

struct moe_exchange moe_tern_decode(struct moe_tern *moe)
{
	return (struct moe_exchange){.run = run, .ctx = &moe->decode};
}

const struct durations *moe_tern_decode_durations(const struct moe_tern *moe)
{
	return &moe->decode.durations;
}

int moe_tern_stats(const struct moe_tern *moe, struct tern_stats *stats, struct fault *fault)
{
	struct tern_stats prefill = {.size = sizeof(prefill)}, decode = {.size = sizeof(decode)};
	int rc = tern_moe_stats(moe->prefill.tern, &prefill);

	rc = rc ? rc : tern_moe_stats(moe->decode.tern, &decode);
	if (rc)
		return failed(fault, "reading statistics", rc);
	*stats = (struct tern_stats){
		.size = sizeof(*stats),
		.rounds = prefill.rounds + decode.rounds,
		.tokens = prefill.tokens + decode.tokens,
		.routes = prefill.routes + decode.routes,
		.rows = prefill.rows + decode.rows,
		.rows_away = prefill.rows_away + decode.rows_away,
		.tokens_away = prefill.tokens_away + decode.tokens_away,
		.dispatch_bytes = prefill.dispatch_bytes + decode.dispatch_bytes,
		.combine_bytes = prefill.combine_bytes + decode.combine_bytes,
		.rows_received = prefill.rows_received + decode.rows_received,
	};
	return 0;
}
