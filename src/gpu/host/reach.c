/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host/reach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/host/internode.h"
#include "base/error.h"

/* ---- NVLink domains -------------------------------------------------------------------------- */

static bool reaches_all(const uint8_t *links, const int *nvlink_domain_of, uint32_t nr_ranks,
	uint32_t rank, uint32_t nvlink_domain)
{
	for (uint32_t r = nvlink_domain; r < rank; r++)
		if (nvlink_domain_of[r] == (int)nvlink_domain &&
			(!links[r * nr_ranks + rank] || !links[rank * nr_ranks + r]))
			return false;
	return true;
}

void device_nvlink_domains(
	const uint8_t *links, const uint32_t *node_of, uint32_t nr_ranks, int *nvlink_domain_of)
{
	for (uint32_t r = 0; r < nr_ranks; r++) {
		uint32_t nvlink_domain = 0;

		while (nvlink_domain < r &&
			(nvlink_domain_of[nvlink_domain] != (int)nvlink_domain ||
				node_of[nvlink_domain] != node_of[r] ||
				!reaches_all(links, nvlink_domain_of, nr_ranks, r, nvlink_domain)))
			nvlink_domain++;
		nvlink_domain_of[r] = (int)nvlink_domain;
	}
}

/* ---- links ----------------------------------------------------------------------------------- */

/* For tests: TERN_FORCE_LINK=cells or none, no link between ranks counts as better. */
static int forced_link(enum device_link *most)
{
	const char *text = getenv("TERN_FORCE_LINK");

	*most = DEVICE_LINK_LINES;
	if (!text)
		return 0;
	if (!strcmp(text, "none"))
		*most = DEVICE_LINK_NONE;
	else if (!strcmp(text, "cells"))
		*most = DEVICE_LINK_CELLS;
	else
		return fail(TERN_ERR_INVALID,
			"TERN_FORCE_LINK is \"%.64s\"; cells and none are known", text);
	return 0;
}

static int ask_links(const tern_moe *moe, const struct device_card *cards, uint8_t *mine)
{
	const struct device *d = moe->device;
	enum device_link most;
	int rc = forced_link(&most);

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		enum device_link link = DEVICE_LINK_NONE;
		const uint8_t *here = cards[moe->rank].identity.uuid;
		bool shared = !memcmp(cards[r].identity.uuid, here, sizeof(cards[r].identity.uuid));

		if (is_internode(moe, r))
			continue;
		rc = device_outcome(d, d->ops->reach(cards[r].identity.uuid, &link));
		/* none does not part ranks that share a device */
		if (link > most && !(shared && most == DEVICE_LINK_NONE))
			link = most;
		mine[r] = (uint8_t)link;
	}
	return rc;
}

static enum gpu_format choose_format(const uint8_t *links, const struct topology *nodes)
{
	uint32_t nr = nodes->nr_ranks;

	for (uint32_t a = 0; a < nr; a++)
		for (uint32_t b = 0; b < nr; b++)
			if (nodes->node_of[a] == nodes->node_of[b] &&
				links[a * nr + b] < DEVICE_LINK_LINES)
				return GPU_FLAG16;
	return GPU_FLAG128;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* True in *divided: there are more nodes now. */
static int divide_nodes(tern_moe *moe, const uint8_t *links, bool *divided)
{
	int *nvlink_domain_of = calloc(moe->nr_ranks, sizeof(*nvlink_domain_of)), rc;
	struct topology nodes = {0};

	if (!nvlink_domain_of)
		return fail(TERN_ERR_NOMEM, "no memory for %u ranks", moe->nr_ranks);
	device_nvlink_domains(links, moe->topology.node_of, moe->nr_ranks, nvlink_domain_of);
	rc = topology_init(&nodes, nvlink_domain_of, moe->nr_ranks);
	free(nvlink_domain_of);
	*divided = !rc && nodes.nr_nodes > moe->topology.nr_nodes;
	if (*divided) {
		topology_free(&moe->topology);
		moe->topology = nodes;
	} else {
		topology_free(&nodes);
	}
	moe->device->format = choose_format(links, &moe->topology);
	return rc;
}

static int open_engine(tern_moe *moe)
{
	char cause[400];
	int rc = moe->group->engine ? 0 : group_make_engine(moe->group, &moe->device->engine);

	if (!rc)
		return 0;
	snprintf(cause, sizeof(cause), "%s", tern_last_error());
	return fail(rc,
		"some GPUs of a node do not reach each other's memory (tern doctor), so rows "
		"between them have to go through the host, and no network could be opened for "
		"that: %s",
		cause);
}

int device_reach(tern_moe *moe, const struct device_card *cards)
{
	uint32_t nr = moe->nr_ranks;
	uint8_t *mine = calloc(nr, 1), *links = calloc((size_t)nr * nr, 1);
	bool divided = false;
	int rc = mine && links ? ask_links(moe, cards, mine)
			       : fail(TERN_ERR_NOMEM, "no memory for links between %u ranks", nr);

	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(moe->group, mine, links, nr);
	if (!rc)
		rc = group_agree_status(
			moe->group, divide_nodes(moe, links, &divided), "tern_moe_create");
	if (!rc && divided)
		rc = open_engine(moe);
	free(mine);
	free(links);
	return rc;
}
