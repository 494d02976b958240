/* SPDX-License-Identifier: Apache-2.0 */
/* tern_layer.h: settings checked, and the calls of a layer in their order. */
#include "layer/layer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/struct_size.h"
#include "exchange/arguments.h"
#include "exchange/ops.h"

#define MOST_INNER (1u << 24)

/* ---- settings -------------------------------------------------------------------------------- */

void tern_layer_config_init_sized(struct tern_layer_config *config, size_t size)
{
	static const struct tern_layer_config defaults = {.activation = TERN_SWIGLU};

	struct_init(&kind_layer_config, config, size, &defaults);
}

static int check_exchange(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;

	if (c->layout == TERN_BY_SOURCE)
		return fail(TERN_ERR_INVALID,
			"layout is TERN_BY_SOURCE; a layer takes rows by expert: TERN_CONTIGUOUS "
			"or TERN_PADDED");
	if (c->weights != TERN_WEIGHTS_COMBINE)
		return fail(TERN_ERR_INVALID,
			"weights is TERN_WEIGHTS_PASS; a layer leaves gate weights to the "
			"combine: TERN_WEIGHTS_COMBINE");
	if (c->dispatch_dtype == TERN_BYTES)
		return fail(TERN_ERR_INVALID, "dispatch_dtype is TERN_BYTES; a layer multiplies "
					      "BF16, FP16, FP32 or FP8");
	if (c->dispatch_dtype == TERN_FP8_E4M3 && c->scale != TERN_SCALE_FP32)
		return fail(TERN_ERR_INVALID,
			"scale is %d; a layer's FP8 rows have TERN_SCALE_FP32, %d", (int)c->scale,
			(int)TERN_SCALE_FP32);
	return 0;
}

static int check_weights(const tern_moe *moe, const char *name, const void *weights,
	const char *scales_name, const float *scales)
{
	bool scaled = moe->config.dispatch_dtype == TERN_FP8_E4M3;

	if (moe->nr_local && !weights)
		return fail(TERN_ERR_INVALID, "%s is NULL, and this rank has %u experts", name,
			moe->nr_local);
	if ((uintptr_t)weights % 16 || (uintptr_t)scales % 16)
		return fail(TERN_ERR_INVALID,
			"%s at %p and %s at %p have to be aligned to 16 bytes", name, weights,
			scales_name, (const void *)scales);
	if (moe->nr_local && scaled != (scales != NULL))
		return fail(TERN_ERR_INVALID, "%s is %p; FP8 weights have scales, others none",
			scales_name, (const void *)scales);
	return 0;
}

static int check_config(const tern_moe *moe, const struct tern_layer_config *config)
{
	int rc = check_exchange(moe);

	rc = rc ? rc : check_range("inner", config->inner, 1, MOST_INNER);
	if (!rc && config->beside_sms && config->beside_sms != TERN_BESIDE_NEVER &&
		!moe->config.gate_rows)
		rc = fail(TERN_ERR_INVALID,
			"beside_sms is %u, and the exchange's gate_rows 0; who reads rows while "
			"others come needs gates",
			config->beside_sms);
	rc = rc ? rc
		: check_range("activation", config->activation, TERN_SWIGLU, TERN_LINEAR_GATED);
	rc = rc ? rc
		: check_weights(moe, "gate_up", config->gate_up, "gate_up_scales",
			  config->gate_up_scales);
	return rc ? rc
		  : check_weights(moe, "down", config->down, "down_scales", config->down_scales);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void room_leave(tern_moe *moe, struct layer_room *room)
{
	struct layer_room **at = &moe->layer_rooms;

	if (--room->nr_layers)
		return;
	while (*at != room)
		at = &(*at)->next;
	*at = room->next;
	moe->ops->layer_room_close(moe, room);
	free(room);
}

static int room_enter(tern_moe *moe, uint32_t inner, struct layer_room **out)
{
	struct layer_room *room = moe->layer_rooms;
	int rc = 0;

	while (room && room->inner != inner)
		room = room->next;
	if (!room) {
		room = calloc(1, sizeof(*room));
		if (!room)
			return fail(TERN_ERR_NOMEM, "no memory for a layer");
		room->inner = inner;
		room->next = moe->layer_rooms;
		moe->layer_rooms = room;
		rc = moe->ops->layer_room_open(moe, room);
	}
	room->nr_layers++;
	if (rc)
		room_leave(moe, room);
	else
		*out = room;
	return rc;
}

int tern_layer_destroy(tern_layer *layer)
{
	tern_moe *moe = layer ? layer->moe : NULL;

	if (!layer)
		return 0;
	moe->ops->layer_close(layer);
	if (layer->room)
		room_leave(moe, layer->room);
	moe->nr_layers--;
	free(layer);
	return 0;
}

int tern_layer_create(tern_moe *moe, const struct tern_layer_config *theirs, tern_layer **out)
{
	struct tern_layer_config config;
	tern_layer *layer;
	int rc;

	if (!moe || !out)
		return fail(TERN_ERR_INVALID, "tern_layer_create: moe or layer is NULL");
	tern_layer_config_init(&config);
	rc = struct_read(&kind_layer_config, theirs, &config);
	rc = rc ? rc : check_config(moe, &config);
	if (rc)
		return rc;
	layer = calloc(1, sizeof(*layer));
	if (!layer)
		return fail(TERN_ERR_NOMEM, "no memory for a layer");
	layer->moe = moe;
	layer->config = config;
	moe->nr_layers++;
	rc = moe->ops->layer_open(layer);
	rc = rc ? rc : room_enter(moe, config.inner, &layer->room);
	if (rc)
		tern_layer_destroy(layer);
	else
		*out = layer;
	return rc;
}

uint64_t tern_layer_memory(const tern_layer *layer)
{
	return layer ? layer->room->slot_bytes * layer->moe->config.nr_slots : 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

int tern_layer_experts(
	tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y)
{
	struct tern_received room;
	int rc;

	received = layer ? struct_in(&kind_received, received, &room) : NULL;
	if (!received)
		return layer ? TERN_ERR_INVALID
			     : fail(TERN_ERR_INVALID, "tern_layer_experts: layer is NULL");
	rc = slot_check(layer->moe, slot, "tern_layer_experts");
	if (!rc && layer->moe->slots[slot].state != SLOT_RECEIVED)
		rc = slot_wrong_state(layer->moe, slot, "tern_layer_experts");
	if (!rc && (!y || (uintptr_t)y % 16))
		rc = fail(TERN_ERR_INVALID,
			"tern_layer_experts: y is %p; it has to be aligned to 16 bytes", y);
	return rc ? rc : layer->moe->ops->layer_experts(layer, slot, received, y);
}

static int check_run(const tern_layer *layer, const struct tern_dispatch *dispatch, const void *out,
	size_t out_stride)
{
	int rc;

	if (layer->moe->config.elastic || dispatch->plan)
		return fail(TERN_ERR_INVALID,
			"tern_layer_run: plan is %llu, elastic %u; these take tern_dispatch, "
			"tern_layer_experts and tern_combine",
			(unsigned long long)dispatch->plan, layer->moe->config.elastic);
	rc = slot_check(layer->moe, dispatch->slot, "tern_layer_run");
	return rc ? rc : arguments_out(layer->moe, dispatch->nr_tokens, out, out_stride);
}

/* Up to the combine, which has a wait of its own on the CPU. */
static int run_experts(tern_layer *layer, const struct tern_dispatch *dispatch)
{
	tern_moe *moe = layer->moe;
	struct tern_received received = {.size = sizeof(received)};
	uint32_t nr_sms =
		moe->config.gate_rows ? moe->ops->layer_beside_sms(layer, dispatch->nr_tokens) : 0;
	int rc;

	if (nr_sms)
		return moe->ops->layer_beside(layer, dispatch, nr_sms);
	rc = tern_dispatch(moe, dispatch, &received);
	return rc ? rc
		  : tern_layer_experts(layer, dispatch->slot, &received,
			    moe->ops->layer_lend(layer, dispatch->slot));
}

int tern_layer_run(
	tern_layer *layer, const struct tern_dispatch *dispatch, void *out, size_t out_stride)
{
	struct tern_combine combine = {.size = sizeof(combine)};
	struct tern_dispatch room;
	int rc;

	if (!layer)
		return fail(TERN_ERR_INVALID, "tern_layer_run: layer is NULL");
	dispatch = struct_in(&kind_dispatch, dispatch, &room);
	if (!dispatch)
		return TERN_ERR_INVALID;
	rc = check_run(layer, dispatch, out, out_stride);
	if (!rc && !layer->combines[dispatch->slot])
		rc = run_experts(layer, dispatch);
	if (rc)
		return rc;
	combine.slot = dispatch->slot;
	combine.y = layer->moe->ops->layer_lend(layer, dispatch->slot);
	rc = tern_combine(layer->moe, &combine, out, out_stride);
	layer->combines[dispatch->slot] = rc == TERN_ERR_TIMEOUT && !layer->moe->failed;
	return rc;
}
