/* SPDX-License-Identifier: Apache-2.0 */
/* The public halves, and the settings of single calls: what is common is checked here, the rest is
 * for who runs them (ops.h). */
#include "base/error.h"
#include "base/struct_size.h"
#include "exchange/arguments.h"
#include "exchange/elastic.h"
#include "exchange/ops.h"

/* What a half has come to. Where it has ended the exchange, peers that wait for this rank learn of
 * it now: who fails may be below what tells them. */
static int told(tern_moe *moe, int rc)
{
	if (moe->untold) {
		moe->ops->leave(moe, moe->untold);
		moe->untold = 0;
	}
	return rc;
}

/* Every half: of an exchange that has not failed, in the view that its group is in. */
static int begin(tern_moe *moe, uint32_t slot, const char *call)
{
	int rc = slot_check(moe, slot, call);

	return rc || !moe->config.elastic ? rc : elastic_check(moe);
}

static int check_plans(const tern_moe *moe, const char *call)
{
	if (moe->config.masks)
		return fail(TERN_ERR_UNSUPPORTED,
			"%s: an exchange with masks has no plans: they name ranks that may be "
			"masked",
			call);
	return 0;
}

/* Likewise, of a call that may name a plan. */
static int begin_with(tern_moe *moe, uint32_t slot, uint64_t plan, const char *call)
{
	int rc = begin(moe, slot, call);

	return rc || !plan ? rc : check_plans(moe, call);
}

int tern_dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	struct tern_dispatch room;
	int rc;

	args = struct_in(&kind_dispatch, args, &room);
	if (!args)
		return TERN_ERR_INVALID;
	rc = begin_with(moe, args->slot, args->plan, "tern_dispatch_send");
	return rc ? rc : told(moe, moe->ops->dispatch_send(moe, args));
}

int tern_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *theirs)
{
	struct tern_received room, *received = struct_in(&kind_received, theirs, &room);
	int rc;

	if (!received)
		return TERN_ERR_INVALID;
	rc = begin(moe, slot, "tern_dispatch_recv");
	rc = rc ? rc : told(moe, moe->ops->dispatch_recv(moe, slot, received));
	return rc || received == theirs ? rc : struct_out(&kind_received, theirs, received);
}

int tern_dispatch(tern_moe *moe, const struct tern_dispatch *args, struct tern_received *theirs)
{
	struct tern_received room, *received = struct_in(&kind_received, theirs, &room);
	struct tern_dispatch args_room;
	int rc;

	args = received ? struct_in(&kind_dispatch, args, &args_room) : NULL;
	if (!args)
		return TERN_ERR_INVALID;
	rc = begin_with(moe, args->slot, args->plan, "tern_dispatch");
	rc = rc ? rc : told(moe, moe->ops->dispatch(moe, args, received));
	return rc || received == theirs ? rc : struct_out(&kind_received, theirs, received);
}

int tern_received_sizes(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent)
{
	int rc = begin(moe, slot, "tern_received_sizes");

	if (!rc && (!nr_rows || !extent))
		rc = fail(TERN_ERR_INVALID, "tern_received_sizes: nr_rows or extent is NULL");
	return rc ? rc : told(moe, moe->ops->received_sizes(moe, slot, nr_rows, extent));
}

int tern_combine_send(tern_moe *moe, const struct tern_combine *args)
{
	struct tern_combine room;
	int rc;

	args = struct_in(&kind_combine, args, &room);
	if (!args)
		return TERN_ERR_INVALID;
	rc = begin_with(moe, args->slot, args->plan, "tern_combine_send");
	return rc ? rc : told(moe, moe->ops->combine_send(moe, args));
}

int tern_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride)
{
	int rc = begin(moe, slot, "tern_combine_recv");

	return rc ? rc : told(moe, moe->ops->combine_recv(moe, slot, out, out_stride));
}

int tern_combine(tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride)
{
	struct tern_combine room;
	int rc;

	if (!moe)
		return fail(TERN_ERR_INVALID, "tern_combine: moe is NULL");
	args = struct_in(&kind_combine, args, &room);
	if (!args)
		return TERN_ERR_INVALID;
	rc = begin_with(moe, args->slot, args->plan, "tern_combine");
	return rc ? rc : told(moe, moe->ops->combine(moe, args, out, out_stride));
}

int tern_release(tern_moe *moe, uint32_t slot)
{
	int rc = begin(moe, slot, "tern_release");

	return rc ? rc : told(moe, moe->ops->release(moe, slot));
}

int tern_plan_create_beside(
	tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside, uint64_t *plan)
{
	struct tern_plan_beside room = {.size = sizeof(room)};
	int rc = slot_check(moe, slot, "tern_plan_create");

	if (!rc && !plan)
		rc = fail(TERN_ERR_INVALID, "tern_plan_create: plan is NULL");
	rc = rc ? rc : check_plans(moe, "tern_plan_create");
	if (rc)
		return rc;
	beside = beside ? struct_in(&kind_plan_beside, beside, &room) : &room;
	rc = beside ? arguments_beside(moe, beside) : TERN_ERR_INVALID;
	return rc ? rc : told(moe, moe->ops->plan_create(moe, slot, beside, plan));
}

int tern_plan_create(tern_moe *moe, uint32_t slot, uint64_t *plan)
{
	return tern_plan_create_beside(moe, slot, NULL, plan);
}

int tern_plan_destroy(tern_moe *moe, uint64_t plan)
{
	int rc = moe ? check_plans(moe, "tern_plan_destroy")
		     : fail(TERN_ERR_INVALID, "tern_plan_destroy: moe is NULL");

	return rc ? rc : moe->ops->plan_destroy(moe, plan);
}

int tern_moe_owed(tern_moe *moe, uint32_t slot, uint64_t *tag)
{
	int rc;

	if (!moe || !tag || !moe->config.elastic)
		return fail(TERN_ERR_INVALID,
			"tern_moe_owed: moe or tag is NULL, or the exchange is not elastic");
	rc = slot_check(moe, slot, "tern_moe_owed");
	rc = rc ? rc : members_check(moe->group);
	if (rc || !members_serve(moe->group, moe->rank))
		return rc; /* a newcomer has completed no round */
	rc = begin(moe, slot, "tern_moe_owed");
	if (rc)
		return rc;
	*tag = moe->slots[slot].tag;
	return moe->slots[slot].owed && moe->ops->still_owed ? moe->ops->still_owed(moe, slot)
							     : moe->slots[slot].owed;
}

/* ---- settings of calls on devices ------------------------------------------------------------ */

static int check_streams(tern_moe *moe, const char *call)
{
	if (!moe)
		return fail(TERN_ERR_INVALID, "%s: moe is NULL", call);
	if (!moe->ops->set_stream)
		return fail(TERN_ERR_INVALID, "%s: this exchange is not on a device", call);
	return exchange_look(moe);
}

int tern_moe_set_stream(tern_moe *moe, uint32_t slot, void *stream)
{
	int rc = check_streams(moe, "tern_moe_set_stream");

	rc = rc ? rc : slot_check(moe, slot, "tern_moe_set_stream");
	return rc ? rc : moe->ops->set_stream(moe, slot, stream);
}

int tern_moe_set_nr_tokens_at(tern_moe *moe, uint32_t slot, const uint32_t *nr_tokens)
{
	int rc = check_streams(moe, "tern_moe_set_nr_tokens_at");

	rc = rc ? rc : slot_check(moe, slot, "tern_moe_set_nr_tokens_at");
	if (!rc && (uintptr_t)nr_tokens % sizeof(*nr_tokens))
		rc = fail(TERN_ERR_INVALID,
			"tern_moe_set_nr_tokens_at: %p is not aligned to 4 bytes",
			(const void *)nr_tokens);
	return rc ? rc : moe->ops->set_nr_tokens_at(moe, slot, nr_tokens);
}

int tern_moe_set_sms(tern_moe *moe, uint32_t nr_sms)
{
	int rc = check_streams(moe, "tern_moe_set_sms");

	return rc ? rc : moe->ops->set_sms(moe, nr_sms);
}

int tern_moe_gate(tern_moe *moe, uint32_t slot, struct tern_gate *theirs)
{
	struct tern_gate room, *gate = struct_in(&kind_gate, theirs, &room);
	int rc = gate ? slot_check(moe, slot, "tern_moe_gate") : TERN_ERR_INVALID;

	rc = rc ? rc : check_streams(moe, "tern_moe_gate");
	rc = rc ? rc : moe->ops->gate(moe, slot, gate);
	return rc || gate == theirs ? rc : struct_out(&kind_gate, theirs, gate);
}
