// SPDX-License-Identifier: Apache-2.0
/* Received: the rows of one dispatch, and the arrays that show them, each made when it is first
 * asked for. */
#include <stddef.h>

#include "native.h"

PyObject *received_new(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *into)
{
	PyTypeObject *type = (PyTypeObject *)calls->received;
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct received *made = (struct received *)alloc(type, 0);

	if (!made)
		return NULL;
	Py_INCREF(made->moe = moe);
	Py_INCREF(made->into = into);
	Py_INCREF(slot);
	made->slot = slot;
	made->number = slot->number;
	made->version = slot->received.version;
	made->nr_rows = slot->received.nr_rows;
	made->extent = slot->extent = slot->received.extent;
	made->turn = slot->turn;
	return (PyObject *)made;
}

static void let_go(struct received *received)
{
	int i;

	for (i = 0; i < NR_FIELDS; i++)
		Py_CLEAR(received->shown[i]);
}

static void keep_nothing(struct received *received)
{
	PyObject *into = received->into;

	let_go(received);
	Py_INCREF(Py_None);
	received->into = Py_None;
	Py_DECREF(into);
}

static void received_free(PyObject *object)
{
	struct received *received = (struct received *)object;

	let_go(received);
	Py_XDECREF(received->moe);
	Py_XDECREF(received->into);
	Py_XDECREF(received->slot);
	free_object(object);
}

/* _show(field, name) */
static PyObject *received_show(PyObject *object, PyObject *const *args, Py_ssize_t nr)
{
	struct received *received = (struct received *)object;
	unsigned long field;
	PyObject *array;

	if (nr != 2 || (field = PyLong_AsUnsignedLong(args[0])) >= NR_FIELDS)
		return PyErr_Occurred()
			       ? NULL
			       : PyErr_Format(PyExc_TypeError, "a field and its name are taken");
	if (received->turn != received->slot->turn) {
		keep_nothing(received);
		refuse("StateError",
			"received.%U: these rows were given back by combine or release of slot %u",
			args[1], received->number);
		return NULL;
	}
	array = received->shown[field];
	if (!array)
		array = received->shown[field] =
			PyObject_CallMethod(object, "_array", "kO", field, args[1]);
	Py_XINCREF(array);
	return array;
}

static PyMemberDef received_members[] = {
	{"slot", T_UINT, offsetof(struct received, number), READONLY, NULL},
	{"nr_rows", T_ULONGLONG, offsetof(struct received, nr_rows), READONLY,
		"Rows received, without padding. On a device, where the host does not know, the "
		"most there can be; so is extent."},
	{"extent", T_ULONGLONG, offsetof(struct received, extent), READONLY,
		"Row positions spanned, padding included."},
	{"version", T_UINT, offsetof(struct received, version), READONLY,
		"Of the placement by which rows were routed: Exchange.place."},
	{"_moe", T_OBJECT, offsetof(struct received, moe), READONLY, NULL},
	{"_state", T_OBJECT, offsetof(struct received, slot), READONLY, NULL},
	{"_into", T_OBJECT, offsetof(struct received, into), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};
static PyMethodDef received_methods[] = {
	{"_show", (PyCFunction)(void (*)(void))received_show, METH_FASTCALL, NULL},
	{NULL, NULL, 0, NULL},
};
static PyType_Slot received_slots[] = {
	{Py_tp_dealloc, received_free},
	{Py_tp_members, received_members},
	{Py_tp_methods, received_methods},
	{0, NULL},
};
PyType_Spec received_spec = {
	"tern_ep._calls.Received",
	sizeof(struct received),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	received_slots,
};
