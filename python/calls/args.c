// SPDX-License-Identifier: Apache-2.0
/*
 * Sets a slot's arguments from arrays. The exchange's methods look at what is new:
 * _look_at_dispatch, _look_at_into, _look_at_wanted, _look_at_y, _look_at_beside and _look_at_out,
 * which set the same, or raise.
 */
#include "native.h"

/* looker: the exchange, or a plan. */
int set_dispatch(
	struct slot *slot, PyObject *looker, PyObject *const arrays[4], const uint64_t *key)
{
	struct tern_dispatch *args = &slot->dispatch;
	void *at[4];
	int again = look_again(slot->reader, &slot->look_dispatch, arrays, 4, key, at);

	if (again > 0) {
		args->x = at[0];
		args->topk_ids = at[1];
		args->topk_weights = at[2];
		args->scales = at[3];
		return 0;
	}
	slot->look_dispatch.valid = false;
	if (again < 0 || take(PyObject_CallMethod(looker, "_look_at_dispatch", "OOOOO", slot,
				 arrays[0], arrays[1], arrays[2], arrays[3])))
		return -1;
	return look_keep(slot->reader, &slot->look_dispatch, arrays, 4, key);
}

int set_into(struct slot *slot, PyObject *moe, PyObject *const arrays[2])
{
	struct tern_received *args = &slot->received;
	void *at[2];
	int again;

	if (arrays[0] == Py_None && arrays[1] == Py_None) {
		args->into_x = args->into_scales = NULL;
		return 0;
	}
	again = look_again(slot->reader, &slot->look_into, arrays, 2, NULL, at);
	if (again > 0) {
		args->into_x = at[0];
		args->into_scales = at[1];
		return 0;
	}
	slot->look_into.valid = false;
	if (again < 0 ||
		take(PyObject_CallMethod(moe, "_look_at_into", "OOO", slot, arrays[0], arrays[1])))
		return -1;
	return look_keep(slot->reader, &slot->look_into, arrays, 2, NULL);
}

static void want_nothing(struct tern_received *args)
{
	args->wide_ids = NULL;
	args->expert_counts = NULL;
	args->expert_totals = NULL;
	args->waited_ns = NULL;
	args->gemm_scales = NULL;
	args->into_counts = NULL;
	args->counts_alignment = 1;
}

/* Borrowed, of a Wanted, which is a tuple with the alignment last but one. */
static int get_wanted(PyObject *want, PyObject *arrays[6], uint64_t *alignment)
{
	int i;

	if (!PyTuple_Check(want) || PyTuple_Size(want) != 7) {
		PyErr_SetString(PyExc_TypeError, "want takes a Wanted");
		return -1;
	}
	for (i = 0; i < 6; i++)
		arrays[i] = PyTuple_GetItem(want, i < 5 ? i : 6);
	*alignment = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(want, 5));
	return PyErr_Occurred() ? -1 : 0;
}

static int set_wanted_arrays(struct slot *slot, PyObject *moe, PyObject *want,
	PyObject *const arrays[6], uint64_t alignment)
{
	struct tern_received *args = &slot->received;
	uint64_t key[3] = {alignment};
	void *at[6];
	int again = look_again(slot->reader, &slot->look_wanted, arrays, 6, key, at);

	if (again > 0) {
		args->wide_ids = at[0];
		args->expert_counts = at[1];
		args->expert_totals = at[2];
		args->waited_ns = at[3];
		args->gemm_scales = at[4];
		args->into_counts = at[5];
		args->counts_alignment = (uint32_t)alignment;
		return 0;
	}
	slot->look_wanted.valid = false;
	if (again < 0 || take(PyObject_CallMethod(moe, "_look_at_wanted", "OO", slot, want)))
		return -1;
	return look_keep(slot->reader, &slot->look_wanted, arrays, 6, key);
}

int set_wanted(struct slot *slot, PyObject *moe, PyObject *want)
{
	PyObject *arrays[6];
	uint64_t alignment;

	if (want == Py_None) {
		if (slot->wanted)
			want_nothing(&slot->received);
		slot->wanted = false;
		return 0;
	}
	slot->wanted = true;
	return get_wanted(want, arrays, &alignment)
		       ? -1
		       : set_wanted_arrays(slot, moe, want, arrays, alignment);
}

int set_y(struct slot *slot, PyObject *moe, PyObject *y)
{
	void *at;
	int again;

	if (y == Py_None) {
		if (slot->extent)
			return refuse("InvalidError",
				"y is None; the received rows span %llu positions", slot->extent);
		slot->look_y.valid = false;
		slot->combine.y = NULL;
		slot->combine.y_stride = 0;
		return 0;
	}
	again = look_again(slot->reader, &slot->look_y, &y, 1, NULL, &at);
	if (again > 0) {
		slot->combine.y = at;
	} else {
		slot->look_y.valid = false;
		if (again < 0 || take(PyObject_CallMethod(moe, "_look_at_y", "OO", slot, y)) ||
			look_keep(slot->reader, &slot->look_y, &y, 1, NULL))
			return -1;
	}
	if (slot->y_rows < slot->extent)
		return refuse("InvalidError",
			"y has %llu rows; the received rows span %llu positions", slot->y_rows,
			slot->extent);
	return 0;
}

static int keep_beside(struct slot *slot, PyObject *const arrays[3], bool any)
{
	PyObject *before = slot->beside;

	slot->beside = any ? PyTuple_Pack(3, arrays[0], arrays[1], arrays[2]) : NULL;
	Py_XDECREF(before);
	return any && !slot->beside ? -1 : 0;
}

/* The next combine that says nothing takes nothing along. */
void beside_ended(struct slot *slot)
{
	if (!slot->beside)
		return;
	slot->combine.unweighted = 0;
	slot->combine.topk_weights = slot->combine.floats = NULL;
	slot->combine.out_floats = NULL;
	Py_CLEAR(slot->beside);
}

/* arrays: topk_weights, floats, out_floats. With nothing: as the next combine has it that says
 * nothing. */
int set_beside(struct slot *slot, PyObject *moe, PyObject *unweighted, PyObject *const arrays[3])
{
	int plain = PyObject_IsTrue(unweighted), again;
	bool any = plain || arrays[0] != Py_None || arrays[1] != Py_None || arrays[2] != Py_None;
	uint64_t key[3] = {(uint64_t)plain, slot->nr_tokens, slot->extent};
	struct tern_combine *args = &slot->combine;
	void *at[3];

	if (plain < 0 || (!any && !slot->beside))
		return plain < 0 ? -1 : 0;
	again = look_again(slot->reader, &slot->look_beside, arrays, 3, key, at);
	if (again > 0) {
		args->unweighted = (uint32_t)plain;
		args->topk_weights = at[0];
		args->floats = at[1];
		args->out_floats = at[2];
		return keep_beside(slot, arrays, any);
	}
	slot->look_beside.valid = false;
	if (again < 0 ||
		take(PyObject_CallMethod(moe, "_look_at_beside", "OOOOO", slot, unweighted,
			arrays[0], arrays[1], arrays[2])) ||
		keep_beside(slot, arrays, any))
		return -1;
	return any ? look_keep(slot->reader, &slot->look_beside, arrays, 3, key) : 0;
}

/* *out: a new one if None was given; the caller's reference. */
int set_out(struct slot *slot, PyObject *moe, PyObject **out, void **at)
{
	PyObject *told;
	int again;

	if (*out == Py_None)
		*out = PyObject_CallMethod(moe, "_new_out", "I", slot->nr_tokens);
	else
		Py_INCREF(*out);
	if (!*out)
		return -1;
	again = look_again(slot->reader, &slot->look_out, out, 1, NULL, at);
	if (again <= 0) {
		slot->look_out.valid = false;
		told = again < 0 ? NULL
				 : PyObject_CallMethod(moe, "_look_at_out", "OO", slot, *out);
		*at = told ? PyLong_AsVoidPtr(told) : NULL;
		Py_XDECREF(told);
		if (!told || PyErr_Occurred() ||
			look_keep(slot->reader, &slot->look_out, out, 1, NULL))
			goto err_out;
	}
	if (slot->out_rows == slot->nr_tokens)
		return 0;
	refuse("InvalidError", "out has %llu rows; %u tokens were dispatched", slot->out_rows,
		slot->nr_tokens);
err_out:
	Py_CLEAR(*out);
	return -1;
}
