/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that commands name: regions of this rank, descriptors of peers' (remotes), lists of peers.
 * `uses` are requests under way, and what is in use is not given up. */
#ifndef TERN_ENGINE_MEMORY_H
#define TERN_ENGINE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define MAX_TABLE 65536

struct tern_region {
	tern_engine *engine;
	uint8_t *base;
	uint64_t bytes;
	struct transport_region *on[TERN_MAX_NICS];
	struct transport_key keys[TERN_MAX_NICS];
	uint32_t id;
	uint32_t uses;             /* the proxy's own: requests that name it */
	engine_release_fn release; /* it was given up, and could not be yet */
	void *release_ctx;
	struct tern_region *next_given_up; /* when the engine ends */
};

struct tern_remote {
	tern_engine *engine;
	uint64_t bytes;
	struct transport_key keys[TERN_MAX_NICS];
	uint32_t id, peer;
	uint32_t uses; /* the proxy's own */
};

/* The work request of a member, as far as it is the same for all operations. */
struct work_template {
	uint32_t peer;
	struct tern_remote *remote;
};

struct tern_peers {
	tern_engine *engine;
	uint32_t nr, id;
	uint32_t uses; /* the proxy's own */
	struct work_template members[];
};

static inline bool in_region(const struct tern_region *region, uint64_t offset, uint64_t bytes)
{
	return region && offset <= region->bytes && bytes <= region->bytes - offset;
}

static inline bool in_remote(
	const struct tern_remote *remote, uint32_t peer, uint64_t offset, uint64_t bytes)
{
	return remote && remote->peer == peer && offset <= remote->bytes &&
	       bytes <= remote->bytes - offset;
}

/* The engine's tables of these. */
int memory_open(tern_engine *engine);
void memory_close(tern_engine *engine);
void memory_release(tern_engine *engine); /* once the transports are closed */

#endif
