/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct track { /* one layer */
	int32_t *ids;
	float *weights;
	uint64_t nr, room; /* routes */
};

struct trace {
	struct moe_exchange inner;
	uint32_t nr_layers, topk;
	struct track tracks[];
};

struct trace *trace_create(uint32_t nr_layers, uint32_t topk)
{
	struct trace *trace = calloc(1, sizeof(*trace) + nr_layers * sizeof(trace->tracks[0]));

	if (trace) {
		trace->nr_layers = nr_layers;
		trace->topk = topk;
	}
	return trace;
}

void trace_destroy(struct trace *trace)
{
	for (uint32_t i = 0; trace && i < trace->nr_layers; i++) {
		free(trace->tracks[i].ids);
		free(trace->tracks[i].weights);
	}
	free(trace);
}

static int make_room(struct track *track, uint64_t nr, struct fault *fault)
{
	uint64_t room = track->room ? track->room : 4096;
	int32_t *ids;
	float *weights;

	while (room < track->nr + nr)
		room *= 2;
	if (room == track->room)
		return 0;
	ids = realloc(track->ids, room * sizeof(*ids));
	track->ids = ids ? ids : track->ids;
	weights = realloc(track->weights, room * sizeof(*weights));
	track->weights = weights ? weights : track->weights;
	if (!ids || !weights)
		return fault_say(
			fault, "no memory for a trace of %llu routes", (unsigned long long)room);
	track->room = room;
	return 0;
}

static int run(void *ctx, const struct moe_call *call, struct fault *fault)
{
	struct trace *trace = ctx;
	struct track *track = &trace->tracks[call->layer];
	uint64_t nr = (uint64_t)call->nr_tokens * trace->topk;

	if (make_room(track, nr, fault))
		return -1;
	memcpy(track->ids + track->nr, call->ids, nr * sizeof(*call->ids));
	memcpy(track->weights + track->nr, call->weights, nr * sizeof(*call->weights));
	track->nr += nr;
	return trace->inner.run(trace->inner.ctx, call, fault);
}

struct moe_exchange trace_exchange(struct trace *trace, const struct moe_exchange *inner)
{
	trace->inner = *inner;
	return (struct moe_exchange){.run = run, .ctx = trace};
}

/* NumPy's format, version 1: magic, length of the header, and the header padded so that data starts
 * at a multiple of 64. */
static void write_header(FILE *file, const char *type, uint64_t rows, uint32_t columns)
{
	char header[118], text[100];
	int length = snprintf(text, sizeof(text),
		"{'descr': '%s', 'fortran_order': False, 'shape': (%llu, %u), }", type,
		(unsigned long long)rows, columns);

	memset(header, ' ', sizeof(header));
	memcpy(header, text, (size_t)length);
	header[sizeof(header) - 1] = '\n';
	fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file);
	fwrite(header, 1, sizeof(header), file);
}

static int write_file(
	const struct trace *trace, const char *name, bool weights, struct fault *fault)
{
	uint64_t routes = 0;
	char path[4096];
	FILE *file;
	bool bad;

	snprintf(path, sizeof(path), "%s_%s.npy", name, weights ? "weights" : "ids");
	file = fopen(path, "wb");
	if (!file)
		return fault_say(fault, "%s: %s", path, strerror(errno));
	for (uint32_t i = 0; i < trace->nr_layers; i++)
		routes += trace->tracks[i].nr;
	write_header(file, weights ? "<f4" : "<i4", routes / trace->topk, trace->topk);
	for (uint32_t i = 0; i < trace->nr_layers; i++) {
		const struct track *track = &trace->tracks[i];

		fwrite(weights ? (const void *)track->weights : track->ids, 4, track->nr, file);
	}
	bad = ferror(file);
	bad = fclose(file) || bad;
	return bad ? fault_say(fault, "%s: could not be written", path) : 0;
}

int trace_write(const struct trace *trace, const char *name, struct fault *fault)
{
	return write_file(trace, name, false, fault) || write_file(trace, name, true, fault) ? -1
											     : 0;
}
