/* SPDX-License-Identifier: Apache-2.0 */
/* The public halves, and the settings of single calls: what is common is checked here, the rest is
 * for who runs them (ops.h). */
#include "base/error.h"
#include "base/struct_size.h"
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

int tern_dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	struct tern_dispatch room;
	int rc;

	args = struct_in(&kind_dispatch, args, &room);
	if (!args)
		return TERN_ERR_INVALID;
	rc = slot_check(moe, args->slot, "tern_dispatch_send");
	return rc ? rc : told(moe, moe->ops->dispatch_send(moe, args));
}

int tern_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *theirs)
{
	struct tern_received room, *received = struct_in(&kind_received, theirs, &room);
	int rc;

	if (!received)
		return TERN_ERR_INVALID;
	rc = slot_check(moe, slot, "tern_dispatch_recv");
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
	rc = slot_check(moe, args->slot, "tern_dispatch");
	rc = rc ? rc : told(moe, moe->ops->dispatch(moe, args, received));
	return rc || received == theirs ? rc : struct_out(&kind_received, theirs, received);
}

int tern_combine_send(tern_moe *moe, const struct tern_combine *args)
{
	struct tern_combine room;
	int rc;

	args = struct_in(&kind_combine, args, &room);
	if (!args)
		return TERN_ERR_INVALID;
	rc = slot_check(moe, args->slot, "tern_combine_send");
	return rc ? rc : told(moe, moe->ops->combine_send(moe, args));
}

int tern_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride)
{
	int rc = slot_check(moe, slot, "tern_combine_recv");

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
	rc = slot_check(moe, args->slot, "tern_combine");
	return rc ? rc : told(moe, moe->ops->combine(moe, args, out, out_stride));
}

int tern_release(tern_moe *moe, uint32_t slot)
{
	int rc = slot_check(moe, slot, "tern_release");

	return rc ? rc : told(moe, moe->ops->release(moe, slot));
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
