/* SPDX-License-Identifier: Apache-2.0 */
/* What libtern asks of GPUs: a table of functions in a library of its own (libtern_cuda.so), loaded
 * when the first exchange on a device is made. So libtern needs no CUDA, and is the same with and
 * without.
 *
 * Functions return 0, or an enum tern_error whose cause is in error_text() of the calling thread.
 * They work on the calling thread's current device. */
#ifndef TERN_GPU_HOST_OPS_H
#define TERN_GPU_HOST_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/host/layout.h"
#include "gpu/wire/state.h"
#include "gpu/wire/trace.h"
#include "exchange/placement.h"
#include "tern_layer.h"

#define DEVICE_OPS_VERSION 21
#define DEVICE_HANDLE_BYTES 64
#define DEVICE_MOST_ORDINALS 64

/* What ranks tell each other of their devices. */
struct device_identity {
	int32_t ordinal; /* in its process */
	uint8_t uuid[16];
	char name[64];
	uint32_t block_bytes; /* shared memory that a block may have */
	uint32_t nr_sms;
	uint32_t by_fd; /* a descriptor can stand for its memory */
};

/* Memory of a device that peers store into: this rank's own, or one that another process has made.
 */
struct device_window {
	void *base;
	uint64_t bytes; /* before window_create at least; then what is mapped */
	uint64_t room;  /* by_fd: of addresses from base on, for others that lie behind it; 0: bytes
			 */
	bool within;    /* by_fd: it lies in another one's room, where base says, and is closed
			   before that one */
	bool by_fd;     /* else by handle */
	bool mapped, opened;
	int fd;      /* what other processes open it by; the owner's to pass on, and to close */
	int ordinal; /* of the device that was current */
	uint64_t devices; /* bits: those of this process that reach it */
	uint8_t handle[DEVICE_HANDLE_BYTES];
};

/* An exchange as kernels see it. */
struct device_plan {
	const struct tern_moe_config *config;
	const struct placement *placement;
	const struct layout *layout;
	const struct device_layout *device_layout;
	uint32_t rank, nr_ranks;
	uint32_t block_bytes; /* shared memory that a block of this device may have */
	uint32_t nr_sharing; /* exchanges' slots whose kernels have to fit on this device at once */
	void *const *windows;                    /* [R] as mapped here; NULL: on another node */
	const struct internode_table *internode; /* [slots]; NULL: no rank is on another node */
	const void *leave_statuses; /* [R] of ranks of this node, as kernels find them */
};

/* A view as kernels see it, from the next round on. */
struct device_view {
	const uint8_t *alive; /* [R] */
	const struct placement *placement;
	const uint32_t *epochs; /* [slots] of the next round */
	uint64_t pane;          /* of all windows: how far behind their bases the one in use lies */
};

enum device_roles {
	DEVICE_SEND = 1,
	DEVICE_RECEIVE = 2
};

struct device_kept; /* what a plan keeps on the device */

/* One half, or both as one. */
struct device_call {
	uint32_t slot, roles;
	void *stream;
	const uint32_t *nr_tokens_at;
	uint32_t nr_sms; /* at most; 0: the default */
	uint64_t wait_ns;
	uint64_t gemm_scales_stride; /* of a dispatch whose scales are wanted column by column */
	struct device_kept *kept; /* a dispatch with this plan, or a combine of it again; else NULL
				   */
};

/* How kernels on one device may store into another's memory. */
enum device_link {
	DEVICE_LINK_NONE = 0,  /* not at all */
	DEVICE_LINK_CELLS = 1, /* 16 bytes arrive together, as over PCIe */
	DEVICE_LINK_LINES = 2  /* whole lines of 128 bytes do: NVLink, or the same device */
};

/* When kernels see what a network has written to a device's memory, of which the host was told. */
enum device_rdma_ordering {
	DEVICE_RDMA_UNKNOWN = 0,
	DEVICE_RDMA_UNORDERED = 1, /* after a flush */
	DEVICE_RDMA_ORDERED = 2    /* once the host was told: those of that device do */
};

struct device_rdma {
	enum device_rdma_ordering ordering;
	bool supported, dma_buf, can_flush;
	int ordinal;
};

struct device_exchange;
struct device_layer;

/* One call of a layer's experts: rows, and what their products are kept in. Of the device. */
struct device_layer_rows {
	const void *x;
	const float *x_scales; /* [positions][H / 128]; FP8 */
	const uint32_t *counts;
	const uint64_t *offsets;
	void *h, *y;
	float *h_scales; /* [positions][ceil(I / 512) * 4] */
};

struct device_ops {
	uint32_t version;
	const char *(*error_text)(void);

	int (*nr_devices)(int *nr);
	int (*use)(int ordinal);
	int (*identify)(struct device_identity *identity);
	int (*describe)(char *text, size_t bytes); /* the device, and whose code kernels have there
						    */
	int (*reach)(const uint8_t uuid[16], enum device_link *link);

	/* bytes and by_fd are set. Zeros. Closing is fine after any failure. */
	int (*window_create)(struct device_window *window);
	/* bytes, by_fd and fd, or handle, are set, of one that another process has created. The fd
	 * stays the caller's. */
	int (*window_open)(struct device_window *window);
	void (*window_close)(struct device_window *window);
	int (*window_grant)(struct device_window *window, int ordinal); /* to another device of this
									   process */
	/* by_fd: other memory, of zeros, at the same addresses: nobody else knows it before it is
	 * passed on. No kernel may look at it. After a failure nothing may be mapped there.
	 */
	int (*window_renew)(struct device_window *window);
	int (*window_reopen)(struct device_window *window); /* fd is the new memory's */
	int (*peer_enable)(int ordinal);                    /* of this process */
	int (*memory_create)(uint64_t bytes, void **memory);
	void (*memory_free)(void *memory);
	int (*host_create)(uint64_t bytes, void **memory); /* pinned */
	void (*host_free)(void *memory);
	int (*host_register)(void *memory, uint64_t bytes, void **there); /* memory of the host, for
									     kernels: where they
									     find it */
	void (*host_unregister)(void *memory);
	int (*pointer_check)(const void *pointer); /* TERN_ERR_INVALID: no kernel can reach it;
						      pointers.c remembers */

	int (*exchange_open)(const struct device_plan *plan, struct device_exchange **exchange);
	void (*exchange_close)(struct device_exchange *exchange);
	int (*dispatch)(struct device_exchange *exchange, const struct device_call *call,
		const struct tern_dispatch *args, struct tern_received *received);
	int (*combine)(struct device_exchange *exchange, const struct device_call *call,
		const struct tern_combine *args, void *out, size_t out_stride);
	int (*release)(struct device_exchange *exchange, const struct device_call *call);
	/* Of the slot's last dispatch: rows, and positions that they span. Waits for the stream. */
	int (*sizes)(
		struct device_exchange *exchange, const struct device_call *call, uint64_t sums[2]);
	/* The routes of the slot's round, whose dispatch has been put on the stream with at most so
	 * many tokens; read there. Destroying waits for nothing: what is on streams still reads it.
	 */
	int (*plan_create)(struct device_exchange *exchange, const struct device_call *call,
		uint32_t nr_tokens, const struct tern_plan_beside *beside,
		struct device_kept **kept);
	void (*plan_destroy)(struct device_exchange *exchange, struct device_kept *kept);
	uint64_t (*plan_bytes)(const struct device_exchange *exchange); /* of all */
	/* Whether tables may be changed, in the order of each slot's stream; TERN_ERR_TIMEOUT,
	 * without a text: earlier ones are under way still. Then the change: ranks of places stay
	 * as they were. */
	int (*place_check)(struct device_exchange *exchange, void *const *streams);
	int (*place)(struct device_exchange *exchange, const struct placement *placement,
		void *const *streams);
	void (*gate)(const struct device_exchange *exchange, uint32_t slot, uint64_t wait_ns,
		struct tern_gate *gate);
	/* A layer's experts (tern_layer.h). TERN_ERR_UNSUPPORTED with figures where the kernels or
	 * this device cannot. */
	int (*layer_open)(struct device_exchange *exchange, const struct tern_layer_config *config,
		struct device_layer **layer);
	void (*layer_close)(struct device_layer *layer);
	/* beside: right behind the dispatch on the stream, and begins before it ends; gates. */
	int (*layer_run)(struct device_layer *layer, const struct device_call *call,
		const struct device_layer_rows *rows, bool beside);
	/* On the current device, and arguments have been looked at. */
	int (*count_routes)(const struct tern_routes *routes);
	/* What kernels have reported, or a reason of 0; an input error is handed out once. */
	void (*read_report)(
		const struct device_exchange *exchange, uint32_t slot, struct gpu_report *report);
	void (*take_input_error)(struct device_exchange *exchange, uint32_t slot,
		struct gpu_input_error *input_error);
	/* Elastic exchanges. All kernels of the device have ended; the epoch of a slot's first
	 * round that this rank has not completed; and a view. */
	int (*quiesce)(const struct device_exchange *exchange);
	int (*read_epoch)(struct device_exchange *exchange, uint32_t slot, uint32_t *epoch);
	int (*resume)(struct device_exchange *exchange, const struct device_view *view);
	/* What kernels have counted so far; waits for none of them. Behind the struct,
	 * config.nr_experts counts. */
	int (*read_counters)(struct device_exchange *exchange, struct gpu_counters *counters);
	/* NULL but in a build with marks (TERN_TRACE). When a slot's blocks came to which place
	 * since the last call, by the device's clock, [GPU_TRACE_BLOCKS][GPU_TRACE_COLUMNS]
	 * nanoseconds, 0: never; from the first call on, whose marks may be NULL. No kernel runs.
	 */
	int (*trace)(struct device_exchange *exchange, uint32_t slot, uint64_t *marks);
	/* Memory that a network reads and writes, of zeros; memory_free gives it back. What the
	 * driver says of it; and, by any thread, what makes writes of which the host was told
	 * visible to kernels of that device. */
	int (*rows_create)(uint64_t bytes, void **memory);
	int (*rdma)(struct device_rdma *rdma);
	int (*rdma_flush)(int ordinal);
};

/* Exported by libtern_cuda.so. */
typedef const void *(*device_table_fn)(void); /* a struct whose first field is its version */
#define DEVICE_OPS_SYMBOL "tern_cuda_ops"

/* The table of a library whose function has this name. NULL: `why` has the cause, behind what it
 * had. */
const void *device_table_load(
	const char *path, const char *symbol, uint32_t version, char *why, size_t bytes);

/* Loads it at the first call. NULL: not there; the text says where it was looked for. */
const struct device_ops *device_ops_load(void);

/* 0 for NULL, or where a kernel reaches its first byte. */
int device_check_pointer(const struct device_ops *ops, const char *name, const void *pointer);

#endif
