/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts on a device: memory beside rows, and what is put on streams. */
#include "gpu/host/layer.h"

#include "base/error.h"
#include "gpu/host/inside.h"

/* Where a slot's rows lie in a room. */
struct room_parts {
	uint64_t h, h_scales, y, bytes;
};

static uint64_t take(uint64_t *end, uint64_t bytes)
{
	uint64_t at = *end;

	*end = align_up(at + bytes, 256);
	return at;
}

static struct room_parts parts_of(const tern_moe *moe, uint32_t inner)
{
	const struct layout *l = &moe->layout;
	uint64_t h_scales = l->scales_bytes ? ((uint64_t)inner + 511) / 512 * 16 : 0;
	struct room_parts p = {0};

	p.h = take(&p.bytes, l->positions * inner * dtype_bytes(moe->config.dispatch_dtype));
	p.h_scales = take(&p.bytes, l->positions * h_scales);
	p.y = take(&p.bytes, l->positions * l->combine_row_bytes);
	return p;
}

int device_layer_room_open(tern_moe *moe, struct layer_room *room)
{
	struct device *d = moe->device;
	int rc = 0;

	room->slot_bytes = parts_of(moe, room->inner).bytes;
	for (uint32_t slot = 0; slot < moe->config.nr_slots && !rc; slot++)
		rc = device_outcome(
			d, d->ops->memory_create(room->slot_bytes, (void **)&room->slots[slot]));
	return rc;
}

void device_layer_room_close(tern_moe *moe, struct layer_room *room)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		if (room->slots[slot])
			moe->device->ops->memory_free(room->slots[slot]);
}

int device_layer_make(struct tern_layer *layer)
{
	const struct tern_layer_config *c = &layer->config;
	struct device *d = layer->moe->device;
	struct device_layer *inside = NULL;
	int rc = device_check_pointer(d->ops, "gate_up", c->gate_up);

	rc = rc ? rc : device_check_pointer(d->ops, "gate_up_scales", c->gate_up_scales);
	rc = rc ? rc : device_check_pointer(d->ops, "down", c->down);
	rc = rc ? rc : device_check_pointer(d->ops, "down_scales", c->down_scales);
	rc = rc ? rc : device_outcome(d, d->ops->layer_open(d->exchange, c, &inside));
	layer->inside = inside;
	return rc;
}

void device_layer_drop(struct tern_layer *layer)
{
	if (layer->inside)
		layer->moe->device->ops->layer_close(layer->inside);
}

void *device_layer_lend(struct tern_layer *layer, uint32_t slot)
{
	return layer->room->slots[slot] + parts_of(layer->moe, layer->room->inner).y;
}

static int put_experts(struct tern_layer *layer, uint32_t slot,
	const struct tern_received *received, void *y, bool beside)
{
	const tern_moe *moe = layer->moe;
	struct device *d = moe->device;
	struct room_parts p = parts_of(moe, layer->room->inner);
	struct device_call call = device_call_of(moe, slot, 0);
	uint8_t *at = layer->room->slots[slot];
	struct device_layer_rows rows = {.x = received->x,
		.x_scales = received->scales,
		.counts = received->counts,
		.offsets = received->offsets,
		.h = at + p.h,
		.h_scales = (float *)(void *)(at + p.h_scales),
		.y = y};

	return device_outcome(d, d->ops->layer_run(layer->inside, &call, &rows, beside));
}

int device_layer_experts(
	struct tern_layer *layer, uint32_t slot, const struct tern_received *received, void *y)
{
	int rc = device_check_pointer(layer->moe->device->ops, "y", y);

	return rc ? rc : put_experts(layer, slot, received, y, false);
}

uint32_t device_layer_sms(const struct tern_layer *layer, uint32_t nr_tokens)
{
	const tern_moe *moe = layer->moe;
	const struct tern_moe_config *c = &moe->config;
	uint32_t chosen = layer->config.beside_sms;
	uint64_t weights = 3ull * moe->nr_local * c->hidden * layer->config.inner *
			   dtype_bytes(c->dispatch_dtype);

	if (chosen)
		return chosen == TERN_BESIDE_NEVER ? 0 : chosen;
	return moe->topology.nr_nodes > 1
		       ? 0
		       : layer_rule_beside(c->mode, nr_tokens, weights, moe->device->most_sms);
}

int device_layer_beside(
	struct tern_layer *layer, const struct tern_dispatch *dispatch, uint32_t nr_sms)
{
	struct tern_received received = {.size = sizeof(received)};
	struct device *d = layer->moe->device;
	uint32_t most = d->nr_sms;
	int rc;

	d->nr_sms = most && most < nr_sms ? most : nr_sms;
	rc = tern_dispatch(layer->moe, dispatch, &received);
	d->nr_sms = most;
	return rc ? rc
		  : put_experts(layer, dispatch->slot, &received,
			    device_layer_lend(layer, dispatch->slot), true);
}
