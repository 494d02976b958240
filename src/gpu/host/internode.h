/* SPDX-License-Identifier: Apache-2.0 */
/* A device's exchange with ranks on other nodes: memory on both sides that kernels and the engine
 * reach, the engine's writes between them, and what kernels need to know of it.
 * gpu/wire/internode.h has the messages. */
#ifndef TERN_GPU_HOST_INTERNODE_H
#define TERN_GPU_HOST_INTERNODE_H

#include "gpu/host/ops.h"
#include "exchange/state.h"

struct device_internode;

/* Is this rank on another node, so that no window leads to it? */
static inline bool is_internode(const tern_moe *moe, uint32_t rank)
{
	return moe->topology.node_of[rank] != moe->topology.node_of[moe->rank];
}

/* Collective, where nodes are several: before this, layouts and windows. awake: the proxy does not
 * sleep until it is closed. *internode is set where something has to be closed. */
int device_internode_open(tern_moe *moe, const struct device_ops *ops,
	const struct device_layout *layout, void *const *windows, bool awake,
	struct device_internode **internode);
/* When no kernel runs any more. NULL is fine. */
void device_internode_close(tern_moe *moe, struct device_internode *internode);

const struct internode_table *device_internode_tables(
	const struct device_internode *internode); /* [slots] */
/* Of the device's memory, or of pinned. NULL is fine. */
uint64_t device_internode_bytes(const struct device_internode *internode, bool on_device);
/* Where rows lie and why there: "in pinned memory, as ...". */
const char *device_internode_describe(const struct device_internode *internode);

/* Before this rank leaves with all well: what its kernels have sent has landed, or time is over.
 * None may run any more. */
void device_internode_settle(struct device_internode *internode);
/* To all ranks on other nodes; and the word of one of these, 0 while it takes part. */
void device_internode_leave(struct device_internode *internode, uint64_t leave_status);
uint64_t device_internode_leave_status(const struct device_internode *internode, uint32_t rank);

/* The first rank of all whose death the engine has seen: others may have ended since because of it.
 * -1: none. */
int device_internode_first_lost(const struct device_internode *internode);

#endif
