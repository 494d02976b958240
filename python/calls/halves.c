// SPDX-License-Identifier: Apache-2.0
/*
 * Dispatch and combine, whole and by halves, with plans and without: methods of Calls (calls.c).
 */
#include "native.h"

typedef PyObject *const *arguments;

/* After a time-out the tokens may be on their way. */
static int begun(PyObject *moe, struct slot *slot, uint32_t nr_tokens, int code)
{
	if (code == TERN_OK || code == TERN_ERR_TIMEOUT)
		slot->nr_tokens = nr_tokens;
	return check(moe, code);
}

/* What Received keeps of arrays that rows went into. */
static PyObject *received(
	struct calls *calls, PyObject *moe, struct slot *slot, PyObject *const into[2])
{
	PyObject *kept, *made;

	if (into[0] == Py_None)
		return received_new(calls, moe, slot, Py_None);
	kept = PyTuple_Pack(2, into[0], into[1]);
	made = kept ? received_new(calls, moe, slot, kept) : NULL;
	Py_XDECREF(kept);
	return made;
}

/* ---- dispatch ---- */

/* `sent` has the arguments: the slot, or a plan's. */
static PyObject *dispatch_with(struct calls *calls, PyObject *moe, struct slot *slot,
	struct slot *sent, PyObject *looker, PyObject *const arrays[4], const uint64_t *key,
	PyObject *stream, uint64_t tag, PyObject *const into[2], PyObject *want)
{
	struct tern_moe *native;
	int code;

	sent->dispatch.tag = tag;
	if (set_dispatch(sent, looker, arrays, key) || set_into(slot, moe, into) ||
		set_wanted(slot, moe, want) || !(native = call_use(calls, moe, slot, stream)))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	code = library.dispatch(native, &sent->dispatch, &slot->received);
	Py_END_ALLOW_THREADS;
	if (begun(moe, slot, sent->dispatch.nr_tokens, code))
		return NULL;
	return received(calls, moe, slot, into);
}

PyObject *dispatch_received(struct calls *calls, PyObject *moe, struct slot *slot,
	PyObject *const arrays[4], PyObject *kept)
{
	PyObject *const into[2] = {PyTuple_GetItem(kept, 0), PyTuple_GetItem(kept, 1)};

	if (call_begin(calls))
		return NULL;
	return call_end(calls, dispatch_with(calls, moe, slot, slot, moe, arrays, NULL, Py_None, 0,
				       into, PyTuple_GetItem(kept, 2)));
}

/* dispatch(exchange, slot, stream, x, topk_ids, topk_weights, scales, tag, into_x, into_scales,
 * want) */
PyObject *calls_dispatch(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct slot *slot;
	uint64_t tag;

	if (counted(nr, 11) || number_of(a[7], &tag) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	return call_end(calls, slot ? dispatch_with(calls, a[0], slot, slot, a[0], a + 3, NULL,
					      a[2], tag, a + 8, a[10])
				    : NULL);
}

/* dispatch_for_good(exchange, slot, x, topk_ids, topk_weights, scales, into_x, into_scales, counts,
 * offsets): addresses. */
PyObject *calls_dispatch_for_good(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct slot *slot;
	PyObject *result = NULL;

	if (counted(nr, 10) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (slot && set_wanted(slot, a[0], Py_None) == 0) {
		slot->received.into_counts = PyLong_AsVoidPtr(a[8]);
		slot->received.into_offsets = PyLong_AsVoidPtr(a[9]);
		result = dispatch_with(
			calls, a[0], slot, slot, a[0], a + 2, NULL, Py_None, 0, a + 6, Py_None);
		slot->received.into_counts = NULL;
		slot->received.into_offsets = NULL;
	}
	return call_end(calls, result);
}

/* dispatch_plan(exchange, slot, plan, arguments, number, nr_tokens, x, scales, tag, into_x,
 * into_scales, want): of the exchange's arguments for plans. */
PyObject *calls_dispatch_plan(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	uint64_t key[3] = {0}, tag;
	struct slot *slot, *sent;
	PyObject *result = NULL;

	if (counted(nr, 12) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	sent = (struct slot *)a[3];
	if (slot && !number_of(a[4], &sent->dispatch.plan) && !number_of(a[5], &key[0]) &&
		!number_of(a[8], &tag)) {
		PyObject *arrays[4] = {a[6], Py_None, Py_None, a[7]};

		sent->dispatch.slot = slot->number;
		look_clear(&slot->look_dispatch);
		result = dispatch_with(
			calls, a[0], slot, sent, a[2], arrays, key, Py_None, tag, a + 9, a[11]);
	}
	return call_end(calls, result);
}

/* dispatch_send(exchange, slot, stream, x, topk_ids, topk_weights, scales, tag) */
PyObject *calls_dispatch_send(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 8) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || set_dispatch(slot, a[0], a + 3, NULL) ||
		number_of(a[7], &slot->dispatch.tag) ||
		!(native = call_use(calls, a[0], slot, a[2])))
		return call_end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.dispatch_send(native, &slot->dispatch);
	Py_END_ALLOW_THREADS;
	if (begun(a[0], slot, slot->dispatch.nr_tokens, code))
		return call_end(calls, NULL);
	Py_INCREF(Py_None);
	return call_end(calls, Py_None);
}

/* dispatch_recv(exchange, slot, stream, into_x, into_scales, want) */
PyObject *calls_dispatch_recv(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 6) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || set_into(slot, a[0], a + 3) || set_wanted(slot, a[0], a[5]) ||
		!(native = call_use(calls, a[0], slot, a[2])))
		return call_end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.dispatch_recv(native, slot->number, &slot->received);
	Py_END_ALLOW_THREADS;
	return call_end(calls, check(a[0], code) ? NULL : received(calls, a[0], slot, a + 3));
}

/* ---- combine ---- */

/* a: y, out, unweighted, topk_weights, floats, out_floats */
static PyObject *combine_with(
	struct calls *calls, PyObject *moe, struct slot *slot, PyObject *stream, arguments a)
{
	PyObject *out = a[1];
	struct tern_moe *native;
	void *at;
	int code;

	if (set_y(slot, moe, a[0]) || set_beside(slot, moe, a[2], a + 3) ||
		set_out(slot, moe, &out, &at))
		return NULL;
	native = call_use(calls, moe, slot, stream);
	if (!native)
		goto err_out;
	Py_BEGIN_ALLOW_THREADS;
	code = library.combine(native, &slot->combine, at, slot->out_stride);
	Py_END_ALLOW_THREADS;
	if (check(moe, code))
		goto err_out;
	slot->turn++;
	beside_ended(slot);
	return out;
err_out:
	Py_DECREF(out);
	return NULL;
}

PyObject *combine_out(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *y,
	PyObject *topk_weights, PyObject *out)
{
	PyObject *const arrays[6] = {y, out, Py_False, topk_weights, Py_None, Py_None};

	return call_begin(calls) ? NULL
				 : call_end(calls, combine_with(calls, moe, slot, Py_None, arrays));
}

/* combine(exchange, slot, stream, y, out, unweighted, topk_weights, floats, out_floats) */
PyObject *calls_combine(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct slot *slot;

	if (counted(nr, 9) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	return call_end(calls, slot ? combine_with(calls, a[0], slot, a[2], a + 3) : NULL);
}

/* combine_plan(exchange, slot, plan, nr_tokens, extent, tag, y, out, unweighted, topk_weights,
 * floats, out_floats) */
PyObject *calls_combine_plan(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	unsigned long long extent;
	struct slot *slot;
	uint32_t nr_tokens;
	PyObject *out;

	if (counted(nr, 12) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || number_of(a[5], &slot->combine.tag) || number_of(a[2], &slot->combine.plan))
		return call_end(calls, NULL);
	nr_tokens = slot->nr_tokens;
	extent = slot->extent;
	slot->nr_tokens = (uint32_t)PyLong_AsUnsignedLong(a[3]);
	slot->extent = PyLong_AsUnsignedLongLong(a[4]);
	out = PyErr_Occurred() ? NULL : combine_with(calls, a[0], slot, Py_None, a + 6);
	if (!out) {
		slot->nr_tokens = nr_tokens;
		slot->extent = extent;
	}
	slot->combine.plan = slot->combine.tag = 0;
	return call_end(calls, out);
}

/* combine_send(exchange, slot, stream, y, unweighted, topk_weights, floats, out_floats) */
PyObject *calls_combine_send(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 8) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || set_y(slot, a[0], a[3]) || set_beside(slot, a[0], a[4], a + 5) ||
		!(native = call_use(calls, a[0], slot, a[2])))
		return call_end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.combine_send(native, &slot->combine);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		return call_end(calls, NULL);
	slot->turn++;
	Py_INCREF(Py_None);
	return call_end(calls, Py_None);
}

/* combine_recv(exchange, slot, stream, out) */
PyObject *calls_combine_recv(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	PyObject *out;
	void *at;
	int code;

	if (counted(nr, 4) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	out = a[3];
	if (!slot || set_out(slot, a[0], &out, &at))
		return call_end(calls, NULL);
	native = call_use(calls, a[0], slot, a[2]);
	if (native) {
		Py_BEGIN_ALLOW_THREADS;
		code = library.combine_recv(native, slot->number, at, slot->out_stride);
		Py_END_ALLOW_THREADS;
	}
	if (native && check(a[0], code) == 0) {
		beside_ended(slot);
		return call_end(calls, out);
	}
	Py_DECREF(out);
	return call_end(calls, NULL);
}
