/* SPDX-License-Identifier: Apache-2.0 */
/* What an exchange has on a device; for the files that make one of it. */
#ifndef TERN_GPU_HOST_INSIDE_H
#define TERN_GPU_HOST_INSIDE_H

#include <sched.h>

#include "gpu/host/device.h"
#include "gpu/host/ops.h"
#include "group/death_watch.h"

struct device_stream {
	void *stream;
	const uint32_t *nr_tokens_at;
	struct held_plan *plan; /* that the round under way was dispatched with, or NULL */
};

/* One of the caller's. */
struct held_plan {
	struct held_plan *next;
	uint64_t id;
	uint32_t nr_tokens;
	struct placed placed; /* its rows' */
	bool gone; /* a round under way was dispatched with it, of which a plan may be made yet */
	struct device_kept *kept;
};

/* What a rank tells the others, in two steps. */
struct device_card {
	struct device_identity identity;
	cpu_set_t cores;                     /* where its process may run; none: not known */
	uint8_t handle[DEVICE_HANDLE_BYTES]; /* second */
	uint64_t address, bytes;
};

#define MOST_PANES 2

struct device {
	const struct device_ops *ops;
	struct device_exchange *exchange;
	struct device_layout layout;
	enum gpu_format format;     /* that all links bear */
	struct tern_engine *engine; /* the exchange's own, where devices of a node do not reach each
				       other and the group has none; else NULL */
	struct device_internode *internode;       /* NULL: no rank is on another node */
	void **windows;                           /* [R] as mapped here; NULL: on another node */
	uint32_t nr_panes;                        /* of a window, each with memory of its own */
	uint64_t pane_bytes;                      /* from one to the next */
	struct device_window *opened[MOST_PANES]; /* [panes][R] of other processes; base NULL: none
						   */
	struct device_window window[MOST_PANES];  /* [panes] this rank's */
	_Atomic uint64_t *board; /* [R][R] leave words of this node's ranks, a row for each that
				    looks; host/leave_status.c */
	void *board_there; /* this rank's row as the device finds it; NULL: it does not know it */
	struct death_watcher watcher;   /* marks the dead on the board */
	struct device_elastic *elastic; /* NULL: it is not */
	struct fresh *fresh;            /* likewise */
	bool busy;                      /* peers may still store into the window */
	uint32_t nr_sms;                /* that a half takes at most; 0: the library's choice */
	uint32_t most_sms;              /* that the device has */
	struct device_stream *streams;  /* [slots] */
	struct held_plan *plans;
	struct gpu_counters *counters, *since; /* as kernels have counted, when it was last asked;
						  and at the last reset */
};

/* No slot has a round under way here, as far as calls tell. */
bool device_at_rest(const tern_moe *moe);

/* What writes to ranks on other nodes. */
static inline struct tern_engine *device_engine(const tern_moe *moe)
{
	return moe->device->engine ? moe->device->engine : moe->group->engine;
}

/* exchange/ops.h has what these do. */
int device_look(tern_moe *moe);
int device_status(tern_moe *moe);
void device_leave(tern_moe *moe, uint64_t leave_status);

int device_dispatch_send(tern_moe *moe, const struct tern_dispatch *args);
int device_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received);
int device_dispatch(
	tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received);
int device_received_sizes(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent);
int device_combine_send(tern_moe *moe, const struct tern_combine *args);
int device_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride);
int device_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride);
int device_release(tern_moe *moe, uint32_t slot);
int device_plan_create(
	tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside, uint64_t *plan);
/* 0 for NULL, or where a kernel reaches its first byte. */
int device_check_reachable(const tern_moe *moe, const char *name, const void *pointer);
int device_plan_destroy(tern_moe *moe, uint64_t plan);
/* TERN_ERR_STATE where there is no such plan (any more). */
int device_plan_find(const tern_moe *moe, uint64_t id, struct held_plan **plan);
void device_plans_close(struct device *d);
int device_place_check(tern_moe *moe);
int device_place(tern_moe *moe);
int device_set_stream(tern_moe *moe, uint32_t slot, void *stream);
int device_set_nr_tokens_at(tern_moe *moe, uint32_t slot, const uint32_t *nr_tokens);
int device_set_sms(tern_moe *moe, uint32_t nr_sms);
int device_gate(tern_moe *moe, uint32_t slot, struct tern_gate *gate);

/* A slot's next call, as it is put on its stream. */
struct device_call device_call_of(const tern_moe *moe, uint32_t slot, uint32_t roles);

/* What kernels have counted so far. */
int device_stats(const tern_moe *moe, struct tern_stats *stats);
int device_expert_load(const tern_moe *moe, uint64_t *counts);
int device_stats_reset(tern_moe *moe);
struct gpu_counters *device_counters_create(const tern_moe *moe); /* zeros; NULL: no memory */

/* 0, or rc with what the device's library says of it. */
int device_outcome(const struct device *d, int rc);

/* Collective, once it is known which ranks' devices reach each other. Closing is fine after any
 * failure. */
int device_board_open(tern_moe *moe);
void device_board_close(tern_moe *moe);

/* On the board: what rank `looks` sees of rank `of`; for elastic exchanges, the rounds that each
 * rank has completed, [R][slots], and the view for which a rank has all that it needs. */
_Atomic uint64_t *device_leave_word(const tern_moe *moe, uint32_t looks, uint32_t of);
struct slot_progress *device_progress(const tern_moe *moe);
_Atomic uint64_t *device_ready_word(const tern_moe *moe, uint32_t rank);

/* The leave word of a rank, 0 while it takes part, and if it has died. */
uint64_t device_leave_status(const tern_moe *moe, uint32_t rank);
/* Of this node: its process has ended, and it has not left. */
bool device_has_died(const tern_moe *moe, uint32_t rank);

#endif
