/* SPDX-License-Identifier: Apache-2.0 */
/* What an exchange has on a device; for the files that make one of it. */
#ifndef TERN_DEVICE_INSIDE_H
#define TERN_DEVICE_INSIDE_H

#include "device.h"
#include "device_ops.h"

struct device_stream {
	void *stream;
	const uint32_t *nr_tokens_at;
};

struct device {
	const struct device_ops *ops;
	struct device_exchange *exchange;
	struct device_layout layout;
	struct device_far *far; /* NULL: no rank is on another node */
	void **windows; /* [R] as mapped here; NULL: on another node */
	bool *opened;	/* [R] by a handle from another process */
	void *window;	/* this rank's */
	bool busy; /* peers may still store into the window */
	uint32_t nr_sms;
	struct device_stream *streams; /* [slots] */
	struct ll_tally *tally, *since; /* as kernels have counted, when it was last asked; and at the last reset */
};

/* 0, or rc with what the device's library says of it. */
int device_outcome(const struct device *d, int rc);

/* A kernel of this slot has ended early: what the exchange has failed with from here on. */
int device_has_failed(tern_moe *moe, uint32_t slot, const struct ll_report *report);

#endif
