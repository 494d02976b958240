// SPDX-License-Identifier: Apache-2.0
/* Slot(reader, number): a slot's arguments, and the arrays that were accepted for them. */
#include <stddef.h>

#include "native.h"

static PyObject *slot_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	PyObject *reader;
	unsigned int number;
	struct slot *slot;

	(void)names;
	if (!PyArg_ParseTuple(args, "OI", &reader, &number))
		return NULL;
	slot = (struct slot *)PyType_GenericNew(type, NULL, NULL);
	if (!slot)
		return NULL;
	Py_INCREF(reader);
	slot->reader = (struct reader *)reader;
	slot->number = slot->dispatch.slot = slot->combine.slot = number;
	slot->dispatch.size = sizeof(slot->dispatch);
	slot->received.size = sizeof(slot->received);
	slot->combine.size = sizeof(slot->combine);
	return (PyObject *)slot;
}

static void forget_shown(struct slot *slot)
{
	int i;

	for (i = 0; i < NR_FIELDS; i++)
		Py_CLEAR(slot->shown[i].array);
}

static void slot_free(PyObject *object)
{
	struct slot *slot = (struct slot *)object;
	struct look *looks[] = {&slot->look_dispatch, &slot->look_into, &slot->look_wanted,
		&slot->look_y, &slot->look_out, &slot->look_beside};
	size_t i;

	for (i = 0; i < sizeof(looks) / sizeof(*looks); i++)
		look_clear(looks[i]);
	forget_shown(slot);
	Py_XDECREF(slot->beside);
	Py_XDECREF(slot->reader);
	free_object(object);
}

static PyObject *slot_give_back(PyObject *object, PyObject *none)
{
	(void)none;
	((struct slot *)object)->turn++;
	Py_RETURN_NONE;
}

static PyObject *slot_hide(PyObject *object, PyObject *none)
{
	(void)none;
	forget_shown((struct slot *)object);
	Py_RETURN_NONE;
}

/* shown(field, address, nr): the array of before, or None. show(field, address, nr, array) keeps
 * one. */
static PyObject *slot_shown(PyObject *object, PyObject *args)
{
	struct slot *slot = (struct slot *)object;
	unsigned long long address, nr;
	struct shown *there;
	unsigned int field;

	if (!PyArg_ParseTuple(args, "IKK", &field, &address, &nr))
		return NULL;
	there = &slot->shown[field % NR_FIELDS];
	if (!there->array || (uintptr_t)there->address != address || there->nr < nr)
		Py_RETURN_NONE;
	Py_INCREF(there->array);
	return there->array;
}

static PyObject *slot_show(PyObject *object, PyObject *args)
{
	struct slot *slot = (struct slot *)object;
	unsigned long long address, nr;
	struct shown *there;
	unsigned int field;
	PyObject *array, *before;

	if (!PyArg_ParseTuple(args, "IKKO", &field, &address, &nr, &array))
		return NULL;
	there = &slot->shown[field % NR_FIELDS];
	before = there->array;
	Py_INCREF(array);
	there->array = array;
	there->address = (void *)(uintptr_t)address;
	there->nr = nr;
	Py_XDECREF(before);
	Py_RETURN_NONE;
}

static PyObject *slot_dispatch_at(PyObject *object, void *unused)
{
	(void)unused;
	return PyLong_FromVoidPtr(&((struct slot *)object)->dispatch);
}

static PyObject *slot_received_at(PyObject *object, void *unused)
{
	(void)unused;
	return PyLong_FromVoidPtr(&((struct slot *)object)->received);
}

static PyObject *slot_combine_at(PyObject *object, void *unused)
{
	(void)unused;
	return PyLong_FromVoidPtr(&((struct slot *)object)->combine);
}

static PyMemberDef slot_members[] = {
	{"number", T_UINT, offsetof(struct slot, number), READONLY, NULL},
	{"nr_tokens", T_UINT, offsetof(struct slot, nr_tokens), 0, NULL},
	{"extent", T_ULONGLONG, offsetof(struct slot, extent), 0, NULL},
	{"turn", T_ULONGLONG, offsetof(struct slot, turn), 0, NULL},
	{"y_rows", T_ULONGLONG, offsetof(struct slot, y_rows), 0, NULL},
	{"out_rows", T_ULONGLONG, offsetof(struct slot, out_rows), 0, NULL},
	{"no_floats", T_UINT, offsetof(struct slot, combine.no_floats), 0, NULL},
	{"out_stride", T_ULONGLONG, offsetof(struct slot, out_stride), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};
static PyGetSetDef slot_values[] = {
	{"dispatch_at", slot_dispatch_at, NULL, "The address of its struct tern_dispatch.", NULL},
	{"received_at", slot_received_at, NULL, "Of its struct tern_received.", NULL},
	{"combine_at", slot_combine_at, NULL, "Of its struct tern_combine.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef slot_methods[] = {
	{"give_back", slot_give_back, METH_NOARGS, NULL},
	{"hide", slot_hide, METH_NOARGS, NULL},
	{"shown", slot_shown, METH_VARARGS, NULL},
	{"show", slot_show, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};
static PyType_Slot slot_slots[] = {
	{Py_tp_new, slot_new},
	{Py_tp_dealloc, slot_free},
	{Py_tp_members, slot_members},
	{Py_tp_getset, slot_values},
	{Py_tp_methods, slot_methods},
	{0, NULL},
};
PyType_Spec slot_spec = {
	"tern_ep._calls.Slot",
	sizeof(struct slot),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	slot_slots,
};
