/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of GPUs on the ranks' clock: when each came where in its kernels. */
#include "bench/command/trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "gpu/host/inside.h"
#include "testkit/device/inside.h"
#include "testkit/trace/clocks.h"
#include "testkit/trace/trace.h"

#define CLOCK_READINGS 32

/* A block's warps do several things at once, and a kernel may begin before the one ahead has ended:
 * each of them has a line in the picture. */
enum part {
	PART_PLANS,
	PART_SENDS,
	PART_RECEIVES,
	PART_GATE_UP,
	PART_DOWN,
	PART_RESULTS,
	PART_HOME,
	NR_PARTS
};

struct stretch {
	enum part part;
	enum trace_kind kind;
	int from, to; /* enum gpu_trace_mark */
};

static const struct stretch of_ll[] = {
	{PART_SENDS, TRACE_GPU_ROWS_SENT, GPU_TRACE_DISPATCH, GPU_TRACE_ROWS_SENT},
	{PART_RECEIVES, TRACE_GPU_PLANS, GPU_TRACE_DISPATCH, GPU_TRACE_PLANS},
	{PART_RECEIVES, TRACE_GPU_POSITIONS, GPU_TRACE_PLANS, GPU_TRACE_POSITIONS},
	{PART_RECEIVES, TRACE_GPU_ROWS, GPU_TRACE_POSITIONS, GPU_TRACE_ROWS},
	{PART_RESULTS, TRACE_GPU_MAY_SEND, GPU_TRACE_COMBINE, GPU_TRACE_MAY_SEND},
	{PART_RESULTS, TRACE_GPU_RESULTS, GPU_TRACE_MAY_SEND, GPU_TRACE_RESULTS_SENT},
	{PART_HOME, TRACE_GPU_HOME, GPU_TRACE_COMBINE, GPU_TRACE_HOME},
	{PART_GATE_UP, TRACE_GPU_GATE_UP, GPU_TRACE_GATE_UP, GPU_TRACE_GATE_UP + 2},
	{PART_DOWN, TRACE_GPU_DOWN, GPU_TRACE_DOWN, GPU_TRACE_DOWN + 2}};

/* One block plans for all, and a combine sends and sums in one. */
static const struct stretch of_ht[] = {
	{PART_PLANS, TRACE_GPU_PLAN, GPU_TRACE_PLAN, GPU_TRACE_PLANS},
	{PART_SENDS, TRACE_GPU_ROWS_SENT, GPU_TRACE_DISPATCH, GPU_TRACE_ROWS_SENT},
	{PART_RECEIVES, TRACE_GPU_ROWS, GPU_TRACE_DISPATCH, GPU_TRACE_ROWS},
	{PART_HOME, TRACE_GPU_HOME, GPU_TRACE_COMBINE, GPU_TRACE_HOME},
	{PART_GATE_UP, TRACE_GPU_GATE_UP, GPU_TRACE_GATE_UP, GPU_TRACE_GATE_UP + 2},
	{PART_DOWN, TRACE_GPU_DOWN, GPU_TRACE_DOWN, GPU_TRACE_DOWN + 2}};

int trace_device_begin(struct trace_file *file, struct device_rounds *r)
{
	const struct device *d = r->moe->device;

	if (!file)
		return 0;
	if (!d->ops->trace) {
		fprintf(stderr,
			"--trace: libtern_cuda.so has no marks; `make traced` builds one\n");
		return TERN_ERR_UNSUPPORTED;
	}
	return d->ops->trace(d->exchange, 0, NULL);
}

/* The device's clock minus this host's, as two hosts' are compared: what it reads was read between
 * the call and the end of the wait. */
static int compare_clock(struct device_rounds *r, int64_t *offset)
{
	struct clock_bounds bounds = {INT64_MAX, INT64_MAX};
	uint64_t within_ns;
	void *memory;
	int rc = device_passed_on(r, r->ops->host_create(sizeof(uint64_t), &memory));

	for (int i = 0; i < CLOCK_READINGS && !rc; i++) {
		uint64_t before = clock_ns(), after, there;

		rc = device_passed_on(r, r->ops->clock(memory, r->lanes[0].stream));
		rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(r->lanes[0].stream));
		after = clock_ns();
		there = *(volatile uint64_t *)memory;
		if ((int64_t)(there - before) < bounds.there)
			bounds.there = (int64_t)(there - before);
		if ((int64_t)(after - there) < bounds.back)
			bounds.back = (int64_t)(after - there);
	}
	*offset = clock_offset(bounds, &within_ns);
	if (!rc)
		r->ops->host_free(memory);
	return rc;
}

static uint16_t line_of(uint32_t block, enum part part)
{
	static const char *const names[NR_PARTS] = {
		"plans", "sends", "receives", "gate, up", "down", "results", "home"};
	static uint16_t lines[GPU_TRACE_BLOCKS][NR_PARTS]; /* + 1 */
	char name[TRACE_NAME_BYTES];

	if (!lines[block][part]) {
		snprintf(name, sizeof(name), "%u %s", block, names[part]);
		lines[block][part] = (uint16_t)(trace_thread_add(name) + 1);
	}
	return (uint16_t)(lines[block][part] - 1);
}

static void put_block(
	const struct device_rounds *r, uint32_t block, const uint64_t *marks, int64_t offset)
{
	bool ht = tern_moe_mode(r->moe) == TERN_HIGH_THROUGHPUT;
	const struct stretch *s = ht ? of_ht : of_ll;
	size_t nr = ht ? sizeof(of_ht) / sizeof(*of_ht) : sizeof(of_ll) / sizeof(*of_ll);

	for (size_t i = 0; i < nr; i++) {
		/* Some warp may be there before the one that says when the block began. */
		uint64_t from = marks[s[i].from], to = marks[s[i].to];
		struct trace_event event = {.began_ns = (from < to ? from : to) - (uint64_t)offset,
			.ended_ns = to - (uint64_t)offset,
			.kind = (uint8_t)s[i].kind,
			.shape = TRACE_IS_SPAN,
			.peer = TRACE_NOBODY};

		if (!from || !to)
			continue;
		event.thread = line_of(block, s[i].part);
		trace_put(&event);
	}
}

/* One replay of the graph. */
static int trace_round(
	struct device_rounds *r, struct device_graph *graph, uint64_t *marks, int64_t offset)
{
	const struct device *d = r->moe->device;
	struct device_lane *lane = &r->lanes[0];
	int rc = d->ops->trace(d->exchange, 0, NULL);

	rc = rc ? rc : device_rounds_start(r);
	rc = rc ? rc : device_passed_on(r, r->ops->graph_launch(graph, lane->stream));
	rc = rc ? rc : device_passed_on(r, r->ops->stream_wait(lane->stream));
	rc = rc ? rc : tern_moe_status(r->moe);
	rc = rc ? rc : d->ops->trace(d->exchange, 0, marks);
	trace_start();
	for (uint32_t b = 0; b < GPU_TRACE_BLOCKS && !rc; b++)
		put_block(r, b, marks + b * GPU_TRACE_COLUMNS, offset);
	trace_stop();
	return rc;
}

int trace_device_rounds(
	struct trace_file *file, struct device_rounds *r, struct device_graph *graph)
{
	uint64_t *marks;
	int64_t offset;
	int rc = 0;

	if (!file)
		return 0;
	marks = calloc(GPU_TRACE_BLOCKS * GPU_TRACE_COLUMNS, sizeof(*marks));
	rc = marks ? compare_clock(r, &offset) : TERN_ERR_NOMEM;
	for (int i = 0; i < TRACED_ROUNDS && !rc; i++)
		rc = trace_round(r, graph, marks, offset);
	free(marks);
	return rc;
}
