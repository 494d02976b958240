/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between exchanges whose halves run on the CPU (cpu/cpu.h) and those whose halves are
 * kernels (gpu/host/device.h): a table, chosen when an exchange is created. The public calls check
 * what is common and call through it. */
#ifndef TERN_EXCHANGE_OPS_H
#define TERN_EXCHANGE_OPS_H

#include "exchange/state.h"

struct tern_layer;
struct layer_room;

struct exchange_ops {
	/* Collective: settings have been checked and compared, and the layout is known. What this
	 * kind cannot do is refused here, on all ranks. Closed also after a failure. */
	int (*open)(tern_moe *moe);
	void (*close)(tern_moe *moe);

	/* The halves, and two of them as one. Slots are the exchange's, and it has not failed. */
	int (*dispatch_send)(tern_moe *moe, const struct tern_dispatch *args);
	int (*dispatch_recv)(tern_moe *moe, uint32_t slot, struct tern_received *received);
	int (*dispatch)(
		tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received);
	int (*received_sizes)(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent);
	int (*combine_send)(tern_moe *moe, const struct tern_combine *args);
	int (*combine_recv)(tern_moe *moe, uint32_t slot, void *out, size_t out_stride);
	int (*combine)(
		tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride);
	int (*release)(tern_moe *moe, uint32_t slot);
	int (*plan_create)(tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside,
		uint64_t *plan);
	int (*plan_destroy)(tern_moe *moe, uint64_t plan);

	/* Of an exchange that has not failed: 0, or the error that has ended it since the last
	 * call. status: also what was wrong with a caller's input. */
	int (*look)(tern_moe *moe);
	int (*status)(tern_moe *moe);

	/* Of a slot whose round was owed when the view changed: 1, or 0 if it has been made since,
	 * without the host. NULL: calls alone make rounds. */
	int (*still_owed)(tern_moe *moe, uint32_t slot);

	/* Before this rank leaves with all well. Not 0: it has failed, and its peers know. */
	int (*settle)(tern_moe *moe);
	/* Peers that wait for this rank are told that it has left: wire.h, leave words. */
	void (*leave)(tern_moe *moe, uint64_t leave_status);

	int (*check_wait)(int wait_ms);
	void (*memory)(const tern_moe *moe, struct tern_memory *memory);
	int (*stats)(const tern_moe *moe, struct tern_stats *stats);
	int (*expert_load)(const tern_moe *moe, uint64_t *counts);
	int (*stats_reset)(tern_moe *moe);

	/* NULL: tables are looked at when a dispatch is called, and there is nothing to do. Else
	 * whether they may be changed, before anything is; and when they have been. */
	int (*place_check)(tern_moe *moe);
	int (*place)(tern_moe *moe);
	/* Experts between a dispatch and its combine: layer/layer.h. What this kind cannot do is
	 * refused by open; close is called after that, too. */
	int (*layer_open)(struct tern_layer *layer);
	void (*layer_close)(struct tern_layer *layer);
	int (*layer_room_open)(tern_moe *moe, struct layer_room *room); /* likewise */
	void (*layer_room_close)(tern_moe *moe, struct layer_room *room);
	void *(*layer_lend)(struct tern_layer *layer, uint32_t slot); /* its own rows of y */
	int (*layer_experts)(struct tern_layer *layer, uint32_t slot,
		const struct tern_received *received, void *y);
	/* Where there are gates: how many SMs a dispatch takes with experts beside it, 0: they are
	 * better behind it; and both, into the layer's own rows of y. */
	uint32_t (*layer_beside_sms)(const struct tern_layer *layer, uint32_t nr_tokens);
	int (*layer_beside)(
		struct tern_layer *layer, const struct tern_dispatch *dispatch, uint32_t nr_sms);

	/* NULL: there are no streams. */
	int (*set_stream)(tern_moe *moe, uint32_t slot, void *stream);
	int (*set_nr_tokens_at)(tern_moe *moe, uint32_t slot, const uint32_t *nr_tokens);
	int (*set_sms)(tern_moe *moe, uint32_t nr_sms);
	int (*gate)(tern_moe *moe, uint32_t slot, struct tern_gate *gate);
};

/* For calls that go on after a failure: 0, or the error that ended the exchange since the last
 * call. Sets what tern_moe_wait_report says. Whoever holds a const exchange may be told, too: none
 * is made const. */
static inline int exchange_look(const tern_moe *moe)
{
	return moe->failed ? 0 : moe->ops->look((tern_moe *)(uintptr_t)moe);
}

#endif
