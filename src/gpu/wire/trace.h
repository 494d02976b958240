/* SPDX-License-Identifier: Apache-2.0 */
/* Places of kernels whose times a build with marks (TERN_TRACE) keeps, a block a row. */
#ifndef TERN_GPU_WIRE_TRACE_H
#define TERN_GPU_WIRE_TRACE_H

#define GPU_TRACE_BLOCKS 1024

/* Where blocks come to, in a build with marks; of several warps the last one's. */
enum gpu_trace_mark {
	GPU_TRACE_DISPATCH,  /* a dispatch kernel begins */
	GPU_TRACE_ROWS_SENT, /* all of the block's */
	GPU_TRACE_FIRST_ROW, /* is sent */
	GPU_TRACE_LAST_PLAN, /* has come */
	GPU_TRACE_PLANS,     /* of all are noted; high throughput: the plan is made */
	GPU_TRACE_POSITIONS, /* are known */
	GPU_TRACE_ROWS,      /* the block's have come and are in place */
	GPU_TRACE_PLAN_SENT,
	GPU_TRACE_COMBINE, /* a combine kernel begins */
	GPU_TRACE_RESULTS_SENT,
	GPU_TRACE_HOME, /* the block's tokens are summed */
	GPU_TRACE_FIRST_RESULT,
	GPU_TRACE_FIRST_HOME,
	GPU_TRACE_MAY_SEND, /* what the combine waits for before it sends has come */
	GPU_TRACE_PLAN,     /* high throughput: the plan's kernel begins */
	GPU_TRACE_MARKS = 16,
	/* Behind these, in what the host is told: of each product of a layer what its kernels mark,
	 * of which the first three are times (layer/gemm.h). */
	GPU_TRACE_GATE_UP = 16,
	GPU_TRACE_DOWN = 24,
	GPU_TRACE_COLUMNS = 32
};

#endif
