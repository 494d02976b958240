/* SPDX-License-Identifier: Apache-2.0 */
/* tern_moe_place on a device: one copy on each slot's stream. */
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "gpu/host/elastic.h"

#define NAP_NS 20000

static void streams_of(const tern_moe *moe, void **streams)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		streams[slot] = moe->device->streams[slot].stream;
}

/* Copies of eight calls may be under way; for the ninth the streams have to go on first. */
int device_place_check(tern_moe *moe)
{
	uint64_t end_ns = clock_ns() + (uint64_t)moe->wait_ms * 1000000;
	void *streams[moe->config.nr_slots];
	int rc;

	streams_of(moe, streams);
	if (moe->config.elastic) {
		rc = device_elastic_place_check(moe);
		if (rc)
			return rc;
	}
	while ((rc = moe->device->ops->place_check(moe->device->exchange, streams)) ==
			TERN_ERR_TIMEOUT &&
		clock_ns() < end_ns)
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	if (rc == TERN_ERR_TIMEOUT)
		return fail(rc,
			"tern_moe_place: after %d ms a slot's stream has not come to the copies of "
			"the last calls",
			moe->wait_ms);
	return rc ? fail(rc, "tern_moe_place: %s", moe->device->ops->error_text()) : 0;
}

int device_place(tern_moe *moe)
{
	void *streams[moe->config.nr_slots];

	if (moe->config.elastic)
		return device_elastic_place(moe);
	streams_of(moe, streams);
	return device_outcome(moe->device,
		moe->device->ops->place(moe->device->exchange, &moe->placement, streams));
}
