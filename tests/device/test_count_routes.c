/* SPDX-License-Identifier: Apache-2.0 */
/* tern_count_routes on a device: what the CPU counts of the same ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/random.h"
#include "tests/device/devices.h"

static const struct bench_device_ops *ops;

#define TOLD_AS 77

struct sizes {
	uint32_t nr_ranks, nr_experts, topk, nr_tokens, bits;
};

struct lists {
	void *ids;
	uint32_t *counts; /* [R], and [E] behind it or one element further on; then one more */
	uint8_t *in_rank;
	uint32_t *told; /* of the host; NULL: not wanted */
};

static uint64_t ids_bytes(const struct sizes *s)
{
	return (uint64_t)s->nr_tokens * s->topk * (s->bits / 8);
}

static uint64_t counts_bytes(const struct sizes *s)
{
	return 4ull * (s->nr_ranks + s->nr_experts + 2);
}

static void draw_ids(const struct sizes *s, uint64_t *state, void *ids)
{
	for (uint32_t i = 0; i < s->nr_tokens * s->topk; i++) {
		int64_t id = (int64_t)random_below(state, s->nr_experts + 4) - 2; /* some are none
										   */

		if (s->bits == 64)
			((int64_t *)ids)[i] = id == -2 ? INT64_C(1) << 40 : id;
		else
			((int32_t *)ids)[i] = (int32_t)id;
	}
}

static int count(const struct sizes *s, const struct lists *at, bool apart, enum tern_device device)
{
	struct tern_routes routes = {.size = sizeof(routes),
		.nr_ranks = s->nr_ranks,
		.nr_experts = s->nr_experts,
		.topk = s->topk,
		.nr_tokens = s->nr_tokens,
		.topk_ids = at->ids,
		.topk_ids_bits = s->bits,
		.device = device,
		.rank_tokens = at->counts,
		.expert_routes = at->counts + s->nr_ranks + apart,
		.in_rank = at->in_rank,
		.told = at->told,
		.told_as = TOLD_AS,
		.finished = at->counts + s->nr_ranks + apart + s->nr_experts};
	int rc = tern_count_routes(&routes);

	if (rc)
		printf("%s\n", tern_last_error());
	return rc;
}

static int open_lists(const struct sizes *s, bool tell, struct lists *host, struct lists *device)
{
	void *told_here = NULL, *told_there = NULL;
	uint64_t ids = ids_bytes(s) + 8, counts = counts_bytes(s),
		 ranks = (uint64_t)s->nr_tokens * s->nr_ranks + 1;
	void *ids_there, *counts_there, *ranks_there;

	if (tell && (ops->host_create(counts, &told_here) || ops->host_create(counts, &told_there)))
		return 1;
	*host = (struct lists){malloc(ids), malloc(counts), malloc(ranks), told_here};
	if (!host->ids || !host->counts || !host->in_rank || ops->memory_create(ids, &ids_there) ||
		ops->memory_create(counts, &counts_there) ||
		ops->memory_create(ranks, &ranks_there))
		return 1;
	*device = (struct lists){ids_there, counts_there, ranks_there, told_there};
	memset(host->counts, 0, counts);
	if (tell)
		memset(told_there, 0x5a, counts);
	return ops->fill(counts_there, 0x5a, counts, NULL) ||
	       ops->fill(ranks_there, 0x5a, ranks, NULL);
}

static void close_lists(struct lists *host, struct lists *device)
{
	free(host->ids);
	free(host->counts);
	free(host->in_rank);
	ops->memory_free(device->ids);
	ops->memory_free(device->counts);
	ops->memory_free(device->in_rank);
	if (host->told)
		ops->host_free(host->told);
	if (device->told)
		ops->host_free(device->told);
}

static int told_wrong(const struct sizes *s, const struct lists *host, const struct lists *device)
{
	return ops->stream_wait(NULL) || host->told[0] != TOLD_AS || device->told[0] != TOLD_AS ||
	       memcmp(host->told + 1, host->counts, 4ull * s->nr_ranks) ||
	       memcmp(host->told + 1, device->told + 1, 4ull * (s->nr_ranks + s->nr_experts));
}

/* apart: the lists do not lie one behind the other. */
static int compare(const struct sizes *s, bool apart, bool tell, uint64_t *state)
{
	uint64_t ranks = (uint64_t)s->nr_tokens * s->nr_ranks, counts = counts_bytes(s);
	uint8_t *there = malloc(ranks + 1), *counted = malloc(counts);
	struct lists host, device;
	int bad = open_lists(s, tell, &host, &device) || !there || !counted;

	if (!bad) {
		draw_ids(s, state, host.ids);
		bad = ops->copy(device.ids, host.ids, ids_bytes(s), NULL) ||
		      count(s, &host, apart, TERN_DEVICE_CPU) ||
		      count(s, &device, apart, TERN_DEVICE_CUDA) ||
		      (tell && told_wrong(s, &host, &device)) ||
		      ops->copy(there, device.in_rank, ranks, NULL) ||
		      ops->copy(counted, device.counts, counts, NULL) || ops->stream_wait(NULL);
	}
	if (!bad) {
		uint32_t *all = (uint32_t *)(void *)counted, end = s->nr_ranks + s->nr_experts,
			 gap = apart ? s->nr_ranks : end + 1;

		bad = memcmp(there, host.in_rank, ranks) || all[gap] != 0x5a5a5a5a ||
		      (!tell && all[end + apart] != 0x5a5a5a5a);
		all[gap] = all[end + apart] = 0;
		bad = bad || memcmp(counted, host.counts, counts);
	}
	close_lists(&host, &device);
	free(there);
	free(counted);
	return bad;
}

int main(void)
{
	static const struct sizes cases[] = {{2, 256, 8, 4096, 64}, {1, 8, 2, 5, 32},
		{3, 9, 4, 130, 32}, {8, 64, 32, 77, 64}, {256, 512, 8, 129, 64}, {2, 4, 1, 0, 32}};
	uint64_t state = devices_setting("TERN_TEST_SEED", 1);
	int nr_devices, bad = 0;

	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	if (device_choose(ops, 0))
		return 1;
	for (size_t i = 0; i < 4 * sizeof(cases) / sizeof(*cases); i++) {
		const struct sizes *s = &cases[i / 4];
		int wrong = compare(s, i % 2, i / 2 % 2, &state);

		printf("%s - %u tokens, top-%u, %u experts on %u ranks%s%s\n",
			wrong ? "not ok" : "ok", s->nr_tokens, s->topk, s->nr_experts, s->nr_ranks,
			i % 2 ? ", lists apart" : "", i / 2 % 2 ? ", told" : "");
		bad |= wrong;
	}
	return bad;
}
