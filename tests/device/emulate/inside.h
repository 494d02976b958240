/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the emulation. All of it under one lock. */
#ifndef TERN_TESTS_DEVICE_EMULATE_INSIDE_H
#define TERN_TESTS_DEVICE_EMULATE_INSIDE_H

#include <stdbool.h>

#include "tests/device/emulate/emulate.h"

#define MAX_DEVICES 64

struct emulated_barrier {
	uint32_t nr_arrived, nr_threads, any, all;
	uint32_t result;
};

#define BLOCK_BARRIERS 3

struct emulated_warp {
	struct emulated_block *block;
	struct emulated_lane *lanes[WARP_LANES];
	uint64_t values[2][WARP_LANES]; /* of this meeting and of the last */
	uint32_t bits[2];               /* whose values are not 0 */
	uint32_t nr, nr_met, phase, pass;
	enum meeting what;
	int line;
	uint32_t at; /* among those that can run, from 1; 0: cannot */
};

struct emulated_block {
	struct operation *launch;
	struct emulated_warp *warps;
	uint32_t nr_warps, nr_lanes, nr_ended, has_let;
	struct emulated_barrier barriers[BLOCK_BARRIERS];
	uint32_t *shared;
};

enum operation_kind {
	OPERATION_KERNEL,
	OPERATION_COPY,
	OPERATION_FILL,
	OPERATION_EVENT,
	OPERATION_FOLLOW
};

/* What lies in a stream, or in a graph. */
struct operation {
	struct operation *next;
	struct emulated_stream *stream;
	enum operation_kind kind;
	/* Kernels: */
	emulated_run run;
	void *call;
	size_t call_bytes;
	dim3 grid, block;
	size_t shared_bytes;
	bool early, launched, done;
	uint32_t nr_blocks, nr_started, nr_let, nr_ended; /* let: that have let the next kernel
							     start, or have ended without */
	struct operation *next_launch;                    /* on its device */
	/* Others: */
	void *to;
	const void *from;
	size_t bytes;
	int byte;
	struct emulated_event *event;
	uint32_t number; /* follow: of the record that is waited for */
	char put; /* for ThreadSanitizer: what the host did before it put this on the stream */
};

struct emulated_event {
	uint64_t ns;
	uint32_t nr_put, nr_reached;    /* records */
	uint32_t refs;                  /* the caller's, and operations' */
	struct emulated_graph *capture; /* last recorded while that was captured */
	char order;                     /* for ThreadSanitizer */
};

struct emulated_graph {
	struct operation *first, **end;
	struct emulated_stream *origin; /* on which the capture began */
	uint32_t refs;
};

struct emulated_stream {
	struct emulated_stream *next;
	int device;
	struct operation *first, **end;
	struct emulated_graph *capture;
	struct emulated_lane *free_lanes;
	char order; /* for ThreadSanitizer: all of the stream, one after the other; who is started
		       early has yet to wait for it */
};

struct emulated_device {
	uint32_t room;                 /* blocks that may still start */
	struct operation *launches;    /* with blocks to start, in order */
	struct emulated_stream stream; /* the one without a name */
};

struct settings {
	uint32_t nr_devices, nr_sms;
	uint64_t seed;
	bool delayed, lines;
	uint32_t code;
	uint32_t nvlink_domain; /* so many devices in a row reach each other's memory; 0: all */
	size_t block_bytes;     /* shared memory of a block */
	const char *without;    /* function:what, or function:what:number; NULL: nothing */
};

extern struct emulated_device emulated_devices[MAX_DEVICES];
const struct settings *emulated_settings(void);
_Noreturn void emulated_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t emulated_random(uint32_t below);
void random_reset(uint64_t seed); /* settings.c */

/* warps.c */
void block_start(struct operation *launch, uint32_t number);
void lane_spare(struct emulated_lane *lane); /* for other streams: its own is empty, and gone */
void warps_reset(void);
/* A turn of a warp; false: none can run. */
bool warps_turn(void);
bool warps_idle(void); /* all of them have polled for a while, and nothing has happened */
void block_lets_next(struct operation *op);
void block_ended(struct emulated_block *block); /* processes.c */
void processes_open(const char *path);
bool processes_several(void); /* ranks may be processes */
void processes_enter(void);   /* one process at a time runs its devices */
void processes_leave(void);
void *processes_allocate(size_t bytes, int *fd); /* NULL: no memory */
void processes_free(void *memory, size_t bytes, int fd);
void processes_handle(cudaIpcMemHandle_t *handle, int fd, size_t bytes);
void *processes_map(const cudaIpcMemHandle_t *handle, size_t *bytes, int *fd); /* NULL: it is gone
										*/

/* streams.c */
extern uint64_t emulated_clock_ns;

#define PAGE 4096

static inline size_t pages(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* memory.c: a block's. Nothing behind it can be touched, but up to 127 bytes that alignment adds.
 * NULL: there is none. */
uint32_t *shared_take(size_t bytes);
void shared_give(uint32_t *shared, size_t bytes);
/* -1: of none */
int memory_device(const void *pointer);
bool memory_is_pinned(const void *pointer);
/* rdma.c */
cudaError_t rdma_attribute(int *value, enum cudaDeviceAttr attribute);
/* driver.c: memory of the current device from here on, until it is forgotten, for which nothing is
 * waited. */
/* A call that manages memory: counted. */
void memory_called(void);
void memory_keep(void *memory, size_t bytes);
void memory_forget(const void *memory);

/* warps.c: one store or copy of so many rests for some turns of warps, so that what may not
 * overtake it has time to; the clock does not run for who waits for it. */
uint64_t rest_until(uint32_t one_of);
bool rests(uint64_t until);

/* How far what is under way has been handed on to others than the lane that stored it: a fence
 * makes that arrive which has been handed on to its lane. */
enum scope {
	SCOPE_LANE,
	SCOPE_WARP, /* met in __syncwarp */
	SCOPE_BLOCK /* met at a barrier, or by all of its lanes handed on through one */
};

struct handed_on {
	const struct emulated_warp *warp; /* NULL: its block has ended */
	const struct emulated_block *block;
	uint32_t lanes, arrived; /* arrived: lanes that have passed a barrier of their block's since
				  */
	enum scope scope;
};

static inline bool is_handed_to(const struct handed_on *h, const struct emulated_lane *lane)
{
	return (h->warp == lane->warp && (h->scope != SCOPE_LANE || h->lanes >> lane->index & 1)) ||
	       (h->block == lane->warp->block && h->scope == SCOPE_BLOCK);
}

static inline void handed_on_met(struct handed_on *h, const struct emulated_warp *warp)
{
	if (h->warp == warp && h->scope == SCOPE_LANE)
		h->scope = SCOPE_WARP;
}

static inline void handed_on_at_barrier(struct handed_on *h, const struct emulated_block *block)
{
	if (h->block == block)
		h->scope = SCOPE_BLOCK;
}

/* This lane arrives at a barrier in shared memory. */
static inline void handed_on_by_lane(struct handed_on *h, const struct emulated_lane *lane)
{
	if (h->warp != lane->warp || !(h->lanes >> lane->index & 1))
		return;
	h->arrived |= 1u << lane->index;
	if (h->arrived == h->lanes)
		h->scope = SCOPE_BLOCK;
}

/* stores.c */
void stores_met(const struct emulated_warp *warp);
void stores_at_barrier(const struct emulated_block *block);
void stores_arrive(void); /* this lane's, at a barrier of the block's */
void stores_without_block(const struct emulated_block *block); /* it has ended, and they are still
								  under way */
void stores_of_kernel(const struct operation *launch);
void stores_trim(void); /* after a pass */
void stores_some(void); /* after a turn */

/* copies.c. What a lane has waited for is like a store of its own from then on: it is under way to
 * all others, until a fence makes it arrive. */
void copies_fence(void); /* as emulated_fence, for copies; so are the next ones */
void copies_met(const struct emulated_warp *warp);
void copies_at_barrier(const struct emulated_block *block);
void copies_handed_on(void);
void copies_overtaken_by(const void *at, uint32_t bytes);      /* what this lane does to these bytes
								  comes after what it knows of */
void copies_some(void);                                        /* after a turn */
void copies_without_block(const struct emulated_block *block); /* it has ended */
void copies_of_kernel(const struct operation *launch);

/* streams.c */
struct emulated_stream *stream_of(cudaStream_t stream);
void stream_put(struct emulated_stream *stream, const struct operation *operation);
void stream_wait(struct emulated_stream *stream);
void device_wait(int device);
void devices_run(void); /* for a while, if nobody else does */
void stream_add(struct emulated_stream *stream);
void stream_remove(struct emulated_stream *stream);
void operation_free(struct operation *operation);
void event_drop(struct emulated_event *event); /* under the lock */
void capture_end(struct emulated_graph *graph);
void emulated_enter(void);
bool emulated_one_thread(void); /* under the lock: only one thread has ever been here */
void emulated_leave(void);

#endif
