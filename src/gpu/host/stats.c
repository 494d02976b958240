/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of an exchange on a device: kernels add them up there, and never take from them; a
 * reset is remembered here. */
#include <stdlib.h>
#include <string.h>

#include "gpu/host/inside.h"
#include "base/error.h"

struct gpu_counters *device_counters_create(const tern_moe *moe)
{
	return calloc(1, sizeof(struct gpu_counters) + moe->config.nr_experts * sizeof(uint64_t));
}

static int read_counters(const tern_moe *moe)
{
	const struct device *d = moe->device;
	int rc = exchange_look(moe);

	if (rc)
		return rc;
	rc = d->ops->read_counters(d->exchange, d->counters);
	return rc ? fail(rc, "statistics: %s", d->ops->error_text()) : 0;
}

int device_stats(const tern_moe *moe, struct tern_stats *stats)
{
	const struct device *d = moe->device;
	const struct gpu_counters *now = d->counters, *then = d->since;
	int rc = read_counters(moe);

	if (rc)
		return rc;
	*stats = (struct tern_stats){.size = sizeof(*stats),
		.rounds = now->rounds - then->rounds,
		.tokens = now->tokens - then->tokens,
		.routes = now->routes - then->routes,
		.rows = now->rows - then->rows,
		.rows_away = now->rows_away - then->rows_away,
		.tokens_away = now->tokens_away - then->tokens_away,
		.rows_received = now->rows_received - then->rows_received,
		.engine_bytes = now->engine_bytes - then->engine_bytes};
	stats->dispatch_bytes = stats->rows * d->layout.row_wire_bytes;
	stats->combine_bytes = (now->results - then->results) * d->layout.result_wire_bytes;
	return 0;
}

int device_expert_load(const tern_moe *moe, uint64_t *counts)
{
	int rc = read_counters(moe);

	for (uint32_t e = 0; e < moe->config.nr_experts && !rc; e++)
		counts[e] = moe->device->counters->load[e] - moe->device->since->load[e];
	return rc;
}

int device_stats_reset(tern_moe *moe)
{
	struct device *d = moe->device;
	int rc = read_counters(moe);

	if (!rc)
		memcpy(d->since, d->counters,
			sizeof(*d->since) + moe->config.nr_experts * sizeof(uint64_t));
	return rc;
}
