/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host/internode_rows.h"

#include <stdio.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"
#include "engine/engine.h"

/* ---- in the device's memory ------------------------------------------------------------------ */

/* A completion lies in the host's memory and the rows in the device's, and one does not prove the
 * other, unless the driver says so. */
static int find_order(struct internode_rows *rows)
{
	struct device_rdma rdma = {0};
	int rc = rows->ops->rdma(&rdma);

	if (rc)
		return fail(rc, "%s", rows->ops->error_text());
	rows->ordinal = rdma.ordinal;
	rows->flushes = rdma.ordering == DEVICE_RDMA_UNORDERED;
	if (rdma.ordering == DEVICE_RDMA_UNKNOWN)
		return fail(TERN_ERR_UNSUPPORTED,
			"the driver does not say when what a network has written there can be "
			"seen");
	if (rows->flushes && !rdma.can_flush)
		return fail(TERN_ERR_UNSUPPORTED,
			"the driver neither orders what a network writes there nor flushes it");
	return 0;
}

static int create_on_device(struct internode_rows *rows, uint8_t **memory, tern_region **region)
{
	int rc = rows->ops->rows_create(rows->bytes, (void **)memory);

	if (rc) {
		*memory = NULL;
		return fail(rc, "%llu bytes of it: %s", (unsigned long long)rows->bytes,
			rows->ops->error_text());
	}
	return tern_engine_register(rows->engine, *memory, rows->bytes, region);
}

static void release_on_device(void *ctx, void *base, uint64_t bytes)
{
	(void)bytes;
	((const struct device_ops *)ctx)->memory_free(base);
}

static void release_pinned(void *ctx, void *base, uint64_t bytes)
{
	(void)bytes;
	((const struct device_ops *)ctx)->host_free(base);
}

static void give_up(
	const struct internode_rows *rows, tern_region *region, uint8_t *memory, int wait_ms)
{
	engine_release_fn release = rows->on_device ? release_on_device : release_pinned;
	void *ctx = (void *)(uintptr_t)rows->ops;

	if (region)
		engine_region_give_up(region, wait_ms, release, ctx);
	else if (memory)
		release(ctx, memory, rows->bytes);
}

void internode_rows_close(struct internode_rows *rows, int wait_ms)
{
	give_up(rows, rows->staging_region, rows->staging, wait_ms);
	give_up(rows, rows->landing_region, rows->landing, wait_ms);
	rows->staging_region = rows->landing_region = NULL;
	rows->staging = rows->landing = NULL;
}

static int open_on_device(struct internode_rows *rows)
{
	int rc = engine_moves_device_memory(rows->engine)
			 ? find_order(rows)
			 : fail(TERN_ERR_UNSUPPORTED, "%s does not move it",
				   tern_engine_describe(rows->engine));

	if (rc)
		return rc;
	rows->on_device = true;
	rc = create_on_device(rows, &rows->staging, &rows->staging_region);
	rc = rc ? rc : create_on_device(rows, &rows->landing, &rows->landing_region);
	if (!rc)
		return 0;
	internode_rows_close(rows, 0); /* sets no error of its own: nothing is under way */
	rows->on_device = false;
	return rc;
}

/* ---- pinned ---------------------------------------------------------------------------------- */

static int create_pinned(struct internode_rows *rows, uint8_t **memory, tern_region **region)
{
	int rc = rows->ops->host_create(rows->bytes, (void **)memory);

	if (rc) {
		*memory = NULL;
		return fail(rc, "%llu bytes of pinned memory for rows of ranks on other nodes: %s",
			(unsigned long long)rows->bytes, rows->ops->error_text());
	}
	memset(*memory, 0, rows->bytes);
	return tern_engine_register(rows->engine, *memory, rows->bytes, region);
}

/* TERN_FORCE_PINNED=1: for tests, and to measure one beside the other. */
int internode_rows_open(struct internode_rows *rows, const struct device_ops *ops,
	tern_engine *engine, uint64_t bytes)
{
	int forced = 0, rc = environment_number("TERN_FORCE_PINNED", 0, 1, &forced);
	char text[sizeof(rows->why)];

	*rows = (struct internode_rows){.ops = ops, .engine = engine, .bytes = bytes};
	if (rc || !bytes)
		return rc;
	rc = forced ? fail(TERN_ERR_UNSUPPORTED, "TERN_FORCE_PINNED says so")
		    : open_on_device(rows);
	snprintf(text, sizeof(text), "%s", rc ? tern_last_error() : "");
	rows->flushes = rows->flushes && !rc;
	if (!rc) {
		snprintf(rows->why, sizeof(rows->why),
			"rows of GPUs to and from other nodes: in device memory%s",
			rows->flushes ? ", flushed before kernels look" : "");
		return 0;
	}
	snprintf(rows->why, sizeof(rows->why),
		"rows of GPUs to and from other nodes: in pinned memory, as %.180s", text);
	rc = create_pinned(rows, &rows->staging, &rows->staging_region);
	return rc ? rc : create_pinned(rows, &rows->landing, &rows->landing_region);
}

/* ---- on the proxy ---------------------------------------------------------------------------- */

bool internode_rows_arrived(const struct internode_rows *rows)
{
	return !rows->flushes || !rows->ops->rdma_flush(rows->ordinal);
}
