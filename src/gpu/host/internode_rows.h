/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rows and results of messages between nodes lie: staging, which kernels store to and the
 * network reads, and landing, the other way round. In the device's memory where the network moves
 * that and the driver says when it can be seen; else in pinned memory, as heads are. Each rank
 * decides for itself: whoever writes to it knows a key alone. */
#ifndef TERN_GPU_HOST_INTERNODE_ROWS_H
#define TERN_GPU_HOST_INTERNODE_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/host/ops.h"
#include "tern_engine.h"

struct internode_rows {
	const struct device_ops *ops;
	tern_engine *engine;
	uint64_t bytes; /* of each of the two */
	uint8_t *staging, *landing;
	tern_region *staging_region, *landing_region;
	bool on_device;
	bool flushes;  /* what has landed can be seen after rdma_flush alone */
	int ordinal;   /* of the device that was current */
	char why[256]; /* for people: "rows of GPUs to and from other nodes: in pinned memory, as
			  ..." */
};

/* Closing is fine after any failure. bytes 0: there is nothing. */
int internode_rows_open(struct internode_rows *rows, const struct device_ops *ops,
	tern_engine *engine, uint64_t bytes);
/* What the network has not finished with stays until the engine has ended. */
void internode_rows_close(struct internode_rows *rows, int wait_ms);

/* On the engine's proxy, between what it was told and what it tells kernels: all rows of which it
 * was told have landed where kernels see them. False: nobody knows, and the device has failed. */
bool internode_rows_arrived(const struct internode_rows *rows);

#endif
