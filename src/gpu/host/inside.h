/* SPDX-License-Identifier: Apache-2.0 */
/* What an exchange has on a device; for the files that make one of it. */
#ifndef TERN_GPU_HOST_INSIDE_H
#define TERN_GPU_HOST_INSIDE_H

#include "gpu/host/device.h"
#include "gpu/host/ops.h"

struct device_stream {
	void *stream;
	const uint32_t *nr_tokens_at;
};

/* What a rank tells the others, in two steps. */
struct device_card {
	struct device_identity identity;
	uint8_t handle[DEVICE_HANDLE_BYTES]; /* second */
	uint64_t address;
};

struct device {
	const struct device_ops *ops;
	struct device_exchange *exchange;
	struct device_layout layout;
	enum gpu_format format;     /* that all links bear */
	struct tern_engine *engine; /* the exchange's own, where devices of a node do not reach each
				       other and the group has none; else NULL */
	struct device_internode *internode; /* NULL: no rank is on another node */
	void **windows;                     /* [R] as mapped here; NULL: on another node */
	bool *opened;                       /* [R] by a handle from another process */
	void *window;                       /* this rank's */
	_Atomic uint64_t *board; /* [R] leave words of this node's ranks; host/leave_status.c */
	void *board_there;       /* as the device finds them; NULL: it does not know them */
	bool busy;               /* peers may still store into the window */
	uint32_t nr_sms;
	struct device_stream *streams;         /* [slots] */
	struct gpu_counters *counters, *since; /* as kernels have counted, when it was last asked;
						  and at the last reset */
};

/* What writes to ranks on other nodes. */
static inline struct tern_engine *device_engine(const tern_moe *moe)
{
	return moe->device->engine ? moe->device->engine : moe->group->engine;
}

/* 0, or rc with what the device's library says of it. */
int device_outcome(const struct device *d, int rc);

/* Collective, once it is known which ranks' devices reach each other. Closing is fine after any
 * failure. */
int device_board_open(tern_moe *moe);
void device_board_close(struct device *d);

/* The leave word of a rank, 0 while it takes part. */
uint64_t device_leave_status(const tern_moe *moe, uint32_t rank);

#endif
