/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does, and when, for `tern bench --trace`. Only a second build of the command has
 *these marks (TERN_TRACE, `make traced`): in the product they are nothing.
 *
 * A mark is the first line of a block, and lasts until the block is left:
 *
 *	TRACE(TRACE_UNPACK_OF, source);
 */
#ifndef TERN_BASE_TRACE_H
#define TERN_BASE_TRACE_H

#include <stdint.h>

#define TRACE_NOBODY UINT32_MAX

/* X(name, what is read in the picture, before the peer's number if one is meant) */
#define TRACE_KINDS(X)                                                                             \
	X(ROUND, "round")                                                                          \
	X(DISPATCH_SEND, "dispatch: send")                                                         \
	X(PACK, "pack")                                                                            \
	X(PACK_FOR, "pack for")                                                                    \
	X(DISPATCH_RECV, "dispatch: receive")                                                      \
	X(UNPACK_OF, "unpack of")                                                                  \
	X(EXPERTS, "experts")                                                                      \
	X(COMBINE_SEND, "combine: send")                                                           \
	X(SUM_FOR, "sum for")                                                                      \
	X(COMBINE_RECV, "combine: receive")                                                        \
	X(SUM_HOME, "sum at home")                                                                 \
	X(WAIT, "wait")                                                                            \
	X(CAME_FROM, "came from")                                                                  \
	X(WRITE_TO, "write to")                                                                    \
	X(COMMAND, "command")                                                                      \
	X(GPU_PLAN, "plan")                                                                        \
	X(GPU_ROWS_SENT, "send rows")                                                              \
	X(GPU_PLANS, "await plans")                                                                \
	X(GPU_POSITIONS, "positions")                                                              \
	X(GPU_ROWS, "rows")                                                                        \
	X(GPU_GATE_UP, "gate and up")                                                              \
	X(GPU_DOWN, "down")                                                                        \
	X(GPU_MAY_SEND, "wait to send")                                                            \
	X(GPU_RESULTS, "send results")                                                             \
	X(GPU_HOME, "results and sums at home")

enum trace_kind {
#define X(name, text) TRACE_##name,
	TRACE_KINDS(X)
#undef X
	NR_TRACE_KINDS
};

#ifdef TERN_TRACE

#define TRACING 1

struct trace_mark {
	uint64_t began_ns;
	uint32_t kind, peer;
};

struct trace_mark trace_begin(enum trace_kind kind, uint32_t peer);
void trace_end(struct trace_mark *mark);
/* What has begun then, and ends now; of no thread, as several may be under way. */
void trace_ended(enum trace_kind kind, uint32_t peer, uint64_t began_ns);
/* A moment. */
void trace_moment(enum trace_kind kind, uint32_t peer);

#define TRACE(kind, peer)                                                                          \
	__attribute__((cleanup(trace_end), unused)) struct trace_mark trace_mark =                 \
		trace_begin(kind, peer)

#else

#define TRACING 0
#define TRACE(kind, peer) ((void)0)

static inline void trace_ended(enum trace_kind kind, uint32_t peer, uint64_t began_ns)
{
	(void)kind;
	(void)peer;
	(void)began_ns;
}

static inline void trace_moment(enum trace_kind kind, uint32_t peer)
{
	(void)kind;
	(void)peer;
}

#endif
#endif
