/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/elastic_stores.h"

#include <stdlib.h>
#include <string.h>
#include <linux/close_range.h>
#include <time.h>
#include <unistd.h>

#include "tests/device/elastic_rank.h"
#include "exchange/state.h"
#include "gpu/host/inside.h"

/* Where the others' results come home, there are lines and words of no epoch, again and again,
 * until the scene is over: with a GPU by copies that it has before it when the process is stopped
 * and killed; where GPUs are emulated by a process that has nothing but the mappings. */
#define JUNK_COPIES 2000
#define JUNK_LAUNCHES 400

static uint8_t *results_of(const tern_moe *moe, int rank, uint64_t *bytes)
{
	const struct device_layout *l = &moe->device->layout;
	bool low = way.mode == TERN_LOW_LATENCY;
	uint64_t first = low ? l->window.results : l->ht.result_words;

	*bytes = (low ? l->window.bytes : l->ht.bytes) - first;
	return (uint8_t *)moe->device->windows[rank] + first;
}

static void store_without_end(const struct scene *s, const tern_moe *moe)
{
	unsigned long long limit = now_ns() + SCENE_LIMIT_NS;
	uint64_t bytes;

	close_range(3, ~0u, 0);
	while (!atomic_load(&s->strike_ns) && now_ns() < limit) {
		for (int r = 0; r < way.nr_ranks; r++) {
			uint8_t *results = results_of(moe, r, &bytes);

			memset(results, 0x5a, bytes);
		}
		/* often in each of the others' steps, and a core is left to them */
		nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
	}
	_exit(0);
}

static void put_junk(struct rank *rank, const tern_moe *moe, const struct bench_device_ops *ops)
{
	uint64_t bytes;
	struct device_graph *graph;
	void *junk, *stream;
	int rc = ops->stream_create(&stream, false);

	(void)results_of(moe, 0, &bytes);
	rc = rc ? rc : ops->memory_create(bytes, &junk);
	rc = rc ? rc : ops->fill(junk, 0x5a, bytes, stream);
	rc = rc ? rc : ops->stream_wait(stream);
	rc = rc ? rc : ops->capture_begin(stream);
	for (int i = 0; i < JUNK_COPIES && !rc; i++)
		rc = ops->copy(results_of(moe, i % way.nr_ranks, &bytes), junk, bytes, stream);
	rc = rc ? rc : ops->capture_end(stream, &graph);
	for (int i = 0; i < JUNK_LAUNCHES && !rc; i++)
		rc = ops->graph_launch(graph, stream);
	if (rc)
		rank_fails(rank, "storing junk: %s", ops->error_text());
}

void leave_stores_behind(struct rank *rank, const tern_moe *moe, const struct bench_device_ops *ops)
{
	const struct scene *s = rank->ctx;

	await_progress(s);
	if (!getenv("TERN_EMULATED_PROCESSES"))
		put_junk(rank, moe, ops);
	else if (!fork())
		store_without_end(s, moe);
}
