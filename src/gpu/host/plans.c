/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of an exchange on a device (tern.h, "plans"): their numbers. What they keep is the
 * device's.
 */
#include <stdlib.h>

#include "base/error.h"
#include "gpu/host/inside.h"

/* A round under way may have been dispatched with it, and a plan be made of that, which reads its
 * ids. */
static bool is_read(const tern_moe *moe, const struct held_plan *plan)
{
	for (uint32_t slot = 0; slot < moe->config.nr_slots; slot++)
		if (moe->device->streams[slot].plan == plan)
			return true;
	return false;
}

static void give_back(tern_moe *moe)
{
	struct device *d = moe->device;

	for (struct held_plan *plan, **at = &d->plans; (plan = *at);) {
		if (!plan->gone || is_read(moe, plan)) {
			at = &plan->next;
			continue;
		}
		*at = plan->next;
		d->ops->plan_destroy(d->exchange, plan->kept);
		free(plan);
	}
}

int device_plan_create(
	tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside, uint64_t *id)
{
	struct device *d = moe->device;
	struct device_call call = device_call_of(moe, slot, 0);
	struct held_plan *plan;
	int rc = device_look(moe);

	if (rc)
		return rc;
	if (moe->config.elastic)
		return fail(TERN_ERR_UNSUPPORTED,
			"tern_plan_create: an elastic exchange on a device has no plans");
	if (moe->slots[slot].state != SLOT_RECEIVED)
		return slot_wrong_state(moe, slot, "tern_plan_create");
	rc = device_check_reachable(moe, "wide_ids", beside->wide_ids);
	rc = rc ? rc : device_check_reachable(moe, "tokens", beside->tokens);
	rc = rc ? rc : device_check_reachable(moe, "topk_ids", beside->topk_ids);
	if (rc)
		return rc;
	give_back(moe);
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return fail(TERN_ERR_NOMEM, "no memory for a plan");
	plan->nr_tokens = moe->slots[slot].nr_tokens;
	plan->placed = moe->slots[slot].placed;
	rc = device_outcome(
		d, d->ops->plan_create(d->exchange, &call, plan->nr_tokens, beside, &plan->kept));
	if (rc) {
		free(plan);
		return rc;
	}
	plan->id = plan_number();
	plan->next = d->plans;
	d->plans = plan;
	*id = plan->id;
	return 0;
}

int device_plan_find(const tern_moe *moe, uint64_t id, struct held_plan **plan)
{
	*plan = moe->device->plans;
	while (*plan && ((*plan)->id != id || (*plan)->gone))
		*plan = (*plan)->next;
	return *plan ? 0 : plan_unknown(id);
}

int device_plan_destroy(tern_moe *moe, uint64_t id)
{
	struct held_plan *plan;
	int rc = device_plan_find(moe, id, &plan);

	if (rc)
		return rc;
	plan->gone = true;
	give_back(moe);
	return 0;
}

void device_plans_close(struct device *d)
{
	while (d->plans) {
		struct held_plan *plan = d->plans;

		d->plans = plan->next;
		free(plan);
	}
}
