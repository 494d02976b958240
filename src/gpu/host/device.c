/* SPDX-License-Identifier: Apache-2.0 */
/* Making and ending exchanges on a device: what ranks can reach, and windows shared between them.
 */
#include "gpu/host/inside.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/host/awake.h"
#include "gpu/host/elastic.h"
#include "gpu/host/internode.h"
#include "gpu/host/layer.h"
#include "gpu/host/reach.h"
#include "base/environment.h"
#include "base/error.h"
#include "group/select_network.h"
#include "tern_engine.h"

int device_outcome(const struct device *d, int rc)
{
	return rc ? fail(rc, "%s", d->ops->error_text()) : 0;
}

/* For tests: TERN_FORCE_BLOCK_KIB, less shared memory for a block, as other GPUs than those here
 * have it. */
static int force_block_bytes(uint32_t *bytes)
{
	int most = (int)(*bytes / 1024), kib = most;
	int rc = environment_number("TERN_FORCE_BLOCK_KIB", 1, INT_MAX, &kib);

	*bytes = kib < most ? (uint32_t)kib * 1024 : *bytes;
	return rc;
}

/* Likewise TERN_FORCE_HANDLES=1: windows are passed as where drivers have no descriptors for them.
 */
static int force_handles(uint32_t *by_fd)
{
	int forced = 0, rc = environment_number("TERN_FORCE_HANDLES", 0, 1, &forced);

	*by_fd = *by_fd && !forced;
	return rc;
}

/* Likewise TERN_FORCE_SLICES, as where a block had no room for all plans; 2: but for those of half
 * as many tokens as can be. */
static int force_slices(const struct tern_moe_config *c, struct device_layout *layout)
{
	int force = 0, rc = environment_number("TERN_FORCE_SLICES", 0, 2, &force);

	if (!force || c->gate_rows)
		return rc;
	layout->sliced = true;
	layout->noted_tokens = force == 2 ? (c->max_tokens + 1) / 2 : 0;
	return rc;
}

static int identify(const struct device *d, struct device_identity *identity)
{
	int rc = device_outcome(d, d->ops->identify(identity));

	rc = rc ? rc : force_block_bytes(&identity->block_bytes);
	return rc ? rc : force_handles(&identity->by_fd);
}

static int device_begin(tern_moe *moe, struct device_card *card)
{
	const struct tern_moe_config *c = &moe->config;
	struct device *d = moe->device;
	int rc;

	d->windows = calloc(moe->nr_ranks, sizeof(*d->windows));
	for (int pane = 0; pane < MOST_PANES; pane++)
		d->opened[pane] = calloc(moe->nr_ranks, sizeof(*d->opened[pane]));
	d->streams = calloc(c->nr_slots, sizeof(*d->streams));
	d->counters = device_counters_create(moe);
	d->since = device_counters_create(moe);
	moe->slots = calloc(c->nr_slots, sizeof(*moe->slots));
	if (!d->windows || !d->opened[0] || !d->opened[1] || !d->streams || !d->counters ||
		!d->since || !moe->slots)
		return fail(TERN_ERR_NOMEM, "no memory for %u ranks and %u slots", moe->nr_ranks,
			c->nr_slots);
	if (c->wait_ms <= 0)
		return fail(TERN_ERR_INVALID,
			"wait_ms is %d; kernels cannot poll once and go on later: it has to be "
			"more than 0",
			c->wait_ms);
	if (sched_getaffinity(0, sizeof(card->cores), &card->cores))
		CPU_ZERO(&card->cores);
	d->ops = device_ops_load();
	rc = d->ops ? identify(d, &card->identity) : TERN_ERR_UNSUPPORTED;
	d->most_sms = card->identity.nr_sms;
	d->nr_sms = moe->config.nr_sms;
	return rc;
}

static int same_device(const struct device_card *a, const struct device_card *b)
{
	return !memcmp(a->identity.uuid, b->identity.uuid, sizeof(a->identity.uuid));
}

/* Ranks of one process on one device, be it as several nodes: their kernels wait for each other
 * there. */
static uint32_t count_sharing(const tern_moe *moe, const struct device_card *cards)
{
	uint32_t nr = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		nr += same_device(&cards[r], &cards[moe->rank]) &&
		      (r == moe->rank || moe->group->peers[r].beside);
	return moe->config.slots_in_turn ? nr : nr * moe->config.nr_slots;
}

static int enable_peers(tern_moe *moe, const struct device_card *cards)
{
	struct device *d = moe->device;
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!is_internode(moe, r) && moe->group->peers[r].same_process)
			rc = device_outcome(d, d->ops->peer_enable(cards[r].identity.ordinal));
	return rc;
}

/* Addresses are the driver's in units of 2 MiB. */
#define PANE_UNIT (2u << 20)

static int create_pane(tern_moe *moe, const struct device_card *cards, struct device_window *w)
{
	struct device *d = moe->device;
	int rc = device_outcome(d, d->ops->window_create(w));

	if (!rc && d->nr_panes > 1 && w->bytes > d->pane_bytes)
		rc = fail(TERN_ERR_UNSUPPORTED,
			"elastic: the driver maps %llu bytes for %llu of a window",
			(unsigned long long)w->bytes, (unsigned long long)d->pane_bytes);
	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++)
		if (!is_internode(moe, r) && moe->group->peers[r].same_process)
			rc = device_outcome(d, d->ops->window_grant(w, cards[r].identity.ordinal));
	return rc;
}

static void lay_pane(const struct device *d, struct device_window *w, uint32_t pane, void *first)
{
	w->by_fd = d->window[0].by_fd;
	w->within = pane > 0;
	w->room = pane || d->nr_panes == 1 ? 0 : d->nr_panes * d->pane_bytes;
	w->base = pane ? (uint8_t *)first + pane * d->pane_bytes : NULL;
}

/* By descriptors where all ranks' devices have them. In high throughput callers have the addresses
 * of rows in the window, which stay what they are: so it has one pane. */
static int create_window(tern_moe *moe, const struct device_card *cards)
{
	struct device *d = moe->device;
	bool by_fd = true;
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		by_fd = by_fd && cards[r].identity.by_fd;
	d->nr_panes = by_fd && moe->config.elastic && moe->config.mode == TERN_LOW_LATENCY ? 2 : 1;
	d->pane_bytes = d->nr_panes > 1 ? align_up(d->layout.window_bytes, PANE_UNIT) : 0;
	d->window[0].by_fd = by_fd;
	for (uint32_t pane = 0; pane < d->nr_panes && !rc; pane++) {
		lay_pane(d, &d->window[pane], pane, d->window[0].base);
		d->window[pane].bytes = d->layout.window_bytes;
		rc = create_pane(moe, cards, &d->window[pane]);
	}
	return rc;
}

static int make_window(tern_moe *moe, const struct device_card *cards, struct device_card *mine)
{
	struct device *d = moe->device;
	uint32_t block_bytes = UINT32_MAX;
	int rc = enable_peers(moe, cards);

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		block_bytes = gpu_least(block_bytes, cards[r].identity.block_bytes);
	rc = rc ? rc
		: device_layout_init(&d->layout, &moe->config, &moe->layout, d->format,
			  moe->topology.nr_nodes > 1, block_bytes);
	rc = rc ? rc : force_slices(&moe->config, &d->layout);
	rc = rc ? rc : create_window(moe, cards);
	memcpy(mine->handle, d->window[0].handle, sizeof(mine->handle));
	mine->address = (uintptr_t)d->window[0].base;
	mine->bytes = d->window[0].bytes;
	return rc;
}

static int open_window(tern_moe *moe, const struct device_card *card, uint32_t rank, uint32_t pane)
{
	struct device *d = moe->device;
	struct device_window *w = &d->opened[pane][rank];

	lay_pane(d, w, pane, d->opened[0][rank].base);
	w->bytes = card->bytes;
	w->fd = moe->group->guests[rank].fd;
	memcpy(w->handle, card->handle, sizeof(w->handle));
	return device_outcome(d, d->ops->window_open(w));
}

/* Descriptors have come. */
static int open_windows(tern_moe *moe, const struct device_card *cards, uint32_t pane)
{
	struct device *d = moe->device;
	int rc = 0;

	for (uint32_t r = 0; r < moe->nr_ranks && !rc; r++) {
		if (is_internode(moe, r))
			continue;
		if (r == moe->rank || moe->group->peers[r].same_process) {
			d->windows[r] = (void *)(uintptr_t)cards[r].address;
			continue;
		}
		rc = open_window(moe, &cards[r], r, pane);
		d->windows[r] = d->opened[0][r].base;
	}
	return rc;
}

static void close_fds(tern_moe *moe, uint32_t pane)
{
	struct device *d = moe->device;

	for (uint32_t r = 0; d->window[0].by_fd && r < moe->nr_ranks; r++) {
		d->opened[pane][r].fd = -1;
		if (moe->group->guests[r].fd >= 0)
			close(moe->group->guests[r].fd);
		moe->group->guests[r].fd = -1;
	}
	if (d->window[pane].fd >= 0)
		close(d->window[pane].fd);
	d->window[pane].fd = -1;
}

/* Each rank of another process passes its window's descriptor, where devices have any. */
static int share_pane(tern_moe *moe, const struct device_card *cards, uint32_t pane)
{
	struct device *d = moe->device;
	uint32_t round = ++moe->group->round;
	int rc = d->window[0].by_fd ? group_pass_fd(moe->group, round, d->window[pane].fd) : 0;

	rc = group_agree_status(
		moe->group, rc ? rc : open_windows(moe, cards, pane), "tern_moe_create");
	close_fds(moe, pane);
	return rc;
}

static int share_windows(tern_moe *moe, const struct device_card *cards)
{
	int rc = 0;

	for (uint32_t pane = 0; pane < moe->device->nr_panes && !rc; pane++)
		rc = share_pane(moe, cards, pane);
	return rc;
}

static int open_exchange(tern_moe *moe, const struct device_card *cards)
{
	struct device *d = moe->device;
	struct device_plan plan = {.config = &moe->config,
		.placement = &moe->placement,
		.layout = &moe->layout,
		.device_layout = &d->layout,
		.rank = moe->rank,
		.nr_ranks = moe->nr_ranks,
		.block_bytes = cards[moe->rank].identity.block_bytes,
		.nr_sharing = count_sharing(moe, cards),
		.windows = d->windows,
		.internode = d->internode ? device_internode_tables(d->internode) : NULL,
		.leave_statuses = d->board_there};

	return device_outcome(d, d->ops->exchange_open(&plan, &d->exchange));
}

/* Where ranks are on other nodes, or their devices do not reach each other's memory. */
static int open_internode(tern_moe *moe, const struct device_card *cards)
{
	const tern_group *group = moe->group;
	struct core_share *shares = calloc(moe->nr_ranks, sizeof(*shares));
	bool awake = false;
	int rc = shares ? 0 : fail(TERN_ERR_NOMEM, "no memory for %u ranks", moe->nr_ranks);

	for (uint32_t r = 0; r < moe->nr_ranks && shares; r++)
		shares[r] = (struct core_share){.cores = cards[r].cores,
			.here = group->peers[r].beside || group->peers[r].lifeline >= 0};
	rc = rc ? rc : proxy_awake(shares, moe->nr_ranks, moe->rank, &awake);
	free(shares);
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc
		: device_internode_open(moe, moe->device->ops, &moe->device->layout,
			  moe->device->windows, awake, &moe->device->internode);
	if (!rc)
		describe_more(moe->group, device_internode_describe(moe->device->internode));
	return rc;
}

/* Each step is local, and its outcome is compared before anybody relies on it. */
static int share(tern_moe *moe, struct device_card *cards, struct device_card *mine)
{
	tern_group *group = moe->group;
	int rc = device_begin(moe, mine);

	rc = group_agree_status(group, rc, "tern_moe_create");
	rc = rc ? rc : group_allgather(group, mine, cards, sizeof(*mine));
	rc = rc ? rc : device_reach(moe, cards);
	rc = rc ? rc : device_board_open(moe);
	if (!rc)
		rc = group_agree_status(group, make_window(moe, cards, mine), "tern_moe_create");
	rc = rc ? rc : group_allgather(group, mine, cards, sizeof(*mine));
	rc = rc ? rc : share_windows(moe, cards);
	if (!rc && moe->topology.nr_nodes > 1)
		rc = open_internode(moe, cards);
	if (!rc)
		rc = group_agree_status(group, open_exchange(moe, cards), "tern_moe_create");
	return rc || !moe->config.elastic ? rc : device_elastic_open(moe);
}

static int device_open(tern_moe *moe)
{
	struct device_card mine = {.address = 0}, *cards = calloc(moe->nr_ranks, sizeof(*cards));
	int rc;

	moe->device = calloc(1, sizeof(*moe->device));
	rc = cards && moe->device ? 0
				  : fail(TERN_ERR_NOMEM, "no memory for %u ranks", moe->nr_ranks);
	rc = group_agree_status(moe->group, rc, "tern_moe_create");
	rc = rc ? rc : share(moe, cards, &mine);
	free(cards);
	return rc;
}

/* All rounds are over on this rank: what peers store here for them has come, since this rank's last
 * kernels waited for it. */
bool device_at_rest(const tern_moe *moe)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		if (moe->slots[slot].state != SLOT_IDLE)
			return false;
	return true;
}

/* Who leaves wants no change, which would end what the others are in. */
static int device_settle(tern_moe *moe)
{
	int rc = moe->config.elastic && device_elastic_changes(moe) ? TERN_ERR_MEMBERS
								    : device_look(moe);

	if (rc)
		return rc;
	moe->device->busy = !device_at_rest(moe);
	if (moe->device->internode)
		device_internode_settle(moe->device->internode);
	return 0;
}

static void device_close(tern_moe *moe)
{
	struct device *d = moe->device;

	if (!d)
		return;
	for (int pane = MOST_PANES - 1; pane >= 0; pane--)
		for (uint32_t r = 0; d->opened[pane] && r < moe->nr_ranks; r++)
			if (d->opened[pane][r].base)
				d->ops->window_close(&d->opened[pane][r]);
	if (d->exchange)
		d->ops->exchange_close(d->exchange);
	device_plans_close(d);
	device_elastic_close(moe);
	device_board_close(moe);
	device_internode_close(moe, d->internode);
	tern_engine_destroy(d->engine);
	/* Else a peer's late store would end that peer's process. */
	for (int pane = MOST_PANES - 1; pane >= 0 && !d->busy; pane--)
		if (d->window[pane].base)
			d->ops->window_close(&d->window[pane]);
	free(d->windows);
	for (int pane = 0; pane < MOST_PANES; pane++)
		free(d->opened[pane]);
	free(d->streams);
	free(d->counters);
	free(d->since);
	free(d);
	moe->device = NULL;
}

static void device_memory(const tern_moe *moe, struct tern_memory *memory)
{
	const struct device_layout *l = &moe->device->layout;

	uint64_t inside = moe->config.mode == TERN_HIGH_THROUGHPUT
				  ? moe->config.nr_slots * (l->ht.results - l->ht.x)
				  : 0; /* rows, as far as they lie in the window */

	*memory = (struct tern_memory){
		.window_bytes = moe->device->nr_panes * l->window_bytes - inside,
		.output_bytes = l->output_bytes,
		.private_bytes = l->private_bytes +
				 moe->device->ops->plan_bytes(moe->device->exchange) +
				 device_internode_bytes(moe->device->internode, true),
		.staging_bytes = device_internode_bytes(moe->device->internode, false)};
}

static int device_check_wait(int wait_ms)
{
	return wait_ms ? 0
		       : fail(TERN_ERR_INVALID,
				 "wait_ms is 0; kernels cannot poll once and go on later");
}

const struct exchange_ops exchange_gpu_ops = {.open = device_open,
	.close = device_close,
	.dispatch_send = device_dispatch_send,
	.dispatch_recv = device_dispatch_recv,
	.dispatch = device_dispatch,
	.received_sizes = device_received_sizes,
	.combine_send = device_combine_send,
	.combine_recv = device_combine_recv,
	.combine = device_combine,
	.release = device_release,
	.plan_create = device_plan_create,
	.plan_destroy = device_plan_destroy,
	.place_check = device_place_check,
	.place = device_place,
	.layer_open = device_layer_make,
	.layer_close = device_layer_drop,
	.layer_room_open = device_layer_room_open,
	.layer_room_close = device_layer_room_close,
	.layer_lend = device_layer_lend,
	.layer_experts = device_layer_experts,
	.layer_beside_sms = device_layer_sms,
	.layer_beside = device_layer_beside,
	.look = device_look,
	.still_owed = device_still_owed,
	.status = device_status,
	.settle = device_settle,
	.leave = device_leave,
	.check_wait = device_check_wait,
	.memory = device_memory,
	.stats = device_stats,
	.expert_load = device_expert_load,
	.stats_reset = device_stats_reset,
	.set_stream = device_set_stream,
	.set_nr_tokens_at = device_set_nr_tokens_at,
	.set_sms = device_set_sms,
	.gate = device_gate};
