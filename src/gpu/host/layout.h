/* SPDX-License-Identifier: Apache-2.0 */
/* Where everything of an exchange on a GPU lies, in its window and beside it. Pure arithmetic over
 * the CPU's layout and the kernels' wire format; shared by libtern and libtern_cuda.
 *
 *   window    slot 0 | slot 1 | ...          each as in gpu/wire/ll.h, or wire/ht.h
 *   memory    slot 0: state | row tokens, row routes (low latency) | chunks, routes (high throughput) | home routes | counts | offsets |
 *             rows | ids | weights | x, scales (low latency)
 *             behind all slots: the counters, which is the exchange's
 */
#ifndef TERN_GPU_HOST_LAYOUT_H
#define TERN_GPU_HOST_LAYOUT_H

#include "gpu/wire/ht.h"
#include "exchange/layout.h"
#include "tern.h"

struct device_layout {
	enum gpu_format format;
	struct row_geometry row, result;
	struct ll_window window; /* of one slot, in low-latency mode */
	struct ht_window ht;     /* in high-throughput mode */
	uint64_t slot_window_bytes;
	uint64_t weight_cells; /* in a slot's window: [R][T][K] pieces of 16 bytes; late_weights */
	uint64_t floats;       /* in a slot's window: [T][K] pieces of 16 bytes; combine_floats */
	uint64_t window_bytes; /* of all slots */
	/* One slot's memory: */
	uint64_t gate_words, gate_ready, gate_done, route_tiles; /* gates; 0 bytes without */
	uint32_t gate_tiles;
	uint64_t state, row_tokens, row_routes, chunks, routes, home_routes, own_positions, counts,
		offsets, slices, rows, ids, weights, x, scales, slot_bytes;
	uint64_t counters, counters_bytes;    /* of the exchange */
	uint64_t output_bytes, private_bytes; /* of all slots, and the counters */
	uint32_t block_bytes;  /* shared memory that a block may have, on the device that has least
				*/
	uint64_t shared_bytes; /* that a receiving block takes at most */
	bool sliced;           /* low latency: it has no room for all plans, and receives slices */
	uint32_t noted_tokens; /* where sliced: but for so many tokens of each rank it has room */
	uint64_t row_wire_bytes, result_wire_bytes; /* that are stored for another rank: of a row,
						       its head included, and of a result */
};

/* config is valid, and l its layout. internode: some ranks are on other nodes. block_bytes: as in
 * struct device_layout. TERN_ERR_UNSUPPORTED: more than a GPU's kernels take; the text has the
 * figures. */
int device_layout_init(struct device_layout *d, const struct tern_moe_config *config,
	const struct layout *l, enum gpu_format format, bool internode, uint32_t block_bytes);

#endif
