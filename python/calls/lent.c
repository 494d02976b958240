// SPDX-License-Identifier: Apache-2.0
/*
 * Lent(reader, owner, device_type, device, fields): tensors over rows that slots have received, and
 * whether somebody still has one of them. Each tensor has memory of its own, as its framework sees
 * it, and with the last view of that it is given back here. owner outlives them all.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

struct lent_tensor {
	struct dlpack_managed managed;
	struct lent *lent;
	uint32_t slot;
	int64_t shape[2], strides[2];
};

/* By any thread. Behind the interpreter's end nothing is given back. */
static void give_back(struct dlpack_managed *managed)
{
	struct lent_tensor *t = managed->context;
	PyGILState_STATE state;

	if (!Py_IsInitialized())
		return;
	state = PyGILState_Ensure();
	t->lent->nr_held[t->slot]--;
	Py_DECREF(t->lent);
	free(t);
	PyGILState_Release(state);
}

static struct lent_tensor *describe(
	struct lent *lent, const struct slot *slot, const struct lent_field *field, int64_t nr)
{
	struct lent_tensor *t = calloc(1, sizeof(*t));
	struct dlpack_tensor *tensor;

	if (!t)
		return NULL;
	t->lent = lent;
	t->slot = slot->number;
	t->shape[0] = nr;
	t->shape[1] = t->strides[0] = field->width;
	t->strides[1] = 1;
	t->managed.version.major = DLPACK_MAJOR;
	t->managed.version.minor = lent->reader->exchange->version.minor;
	t->managed.context = t;
	t->managed.deleter = give_back;
	tensor = &t->managed.tensor;
	memcpy(&tensor->data, (const char *)&slot->received + field->at, sizeof(tensor->data));
	tensor->device_type = lent->device_type;
	tensor->device_id = lent->device;
	tensor->ndim = 2;
	tensor->code = field->code;
	tensor->bits = field->bits;
	tensor->lanes = 1;
	tensor->shape = t->shape;
	tensor->strides = t->strides;
	return t;
}

static PyObject *lend(
	struct lent *lent, const struct slot *slot, const struct lent_field *field, int64_t nr)
{
	struct lent_tensor *t = describe(lent, slot, field, nr);
	void *object = NULL;

	if (!t)
		return PyErr_NoMemory();
	Py_INCREF(lent);
	lent->nr_held[t->slot]++;
	if (lent->reader->exchange->take(&t->managed, &object) < 0 || !object) {
		/* It may have been given back on the way: left as it is, and the slot held. */
		return PyErr_Occurred() ? NULL
					: PyErr_Format(PyExc_RuntimeError,
						  "the framework has made no tensor");
	}
	return object;
}

/* lend(slot, nr): of each field of a Slot, [nr][width]; a tuple. */
static PyObject *lent_lend(PyObject *self, PyObject *const *args, Py_ssize_t nr)
{
	struct lent *lent = (struct lent *)self;
	struct slot *slot = nr == 2 ? (struct slot *)args[0] : NULL;
	int64_t rows = nr == 2 ? PyLong_AsLongLong(args[1]) : -1;
	PyObject *made, *tensor;
	int i;

	if (PyErr_Occurred())
		return NULL;
	if (!slot || slot->number >= MAX_LENT_SLOTS || rows < 0)
		return PyErr_Format(PyExc_ValueError, "a slot and a number of rows are taken");
	made = PyTuple_New(lent->nr_fields);
	for (i = 0; made && i < lent->nr_fields; i++) {
		tensor = lend(lent, slot, &lent->fields[i], rows);
		if (tensor && PyTuple_SetItem(made, i, tensor) == 0)
			continue;
		Py_CLEAR(made);
	}
	return made;
}

/* held(): a bit for each slot of which somebody has a tensor. */
static PyObject *lent_held(PyObject *self, PyObject *none)
{
	struct lent *lent = (struct lent *)self;
	unsigned long held = 0;
	int slot;

	(void)none;
	for (slot = 0; slot < MAX_LENT_SLOTS; slot++)
		held |= lent->nr_held[slot] ? 1ul << slot : 0;
	return PyLong_FromUnsignedLong(held);
}

static int take_fields(struct lent *lent, PyObject *fields)
{
	int i, nr = (int)PyTuple_Size(fields);

	if (nr > MAX_LENT_FIELDS)
		return refuse("InvalidError", "%d fields; at most %d", nr, MAX_LENT_FIELDS);
	for (i = 0; i < nr; i++) {
		struct lent_field *field = &lent->fields[i];
		long long width;

		if (!PyArg_ParseTuple(PyTuple_GetItem(fields, i), "nLbb", &field->at, &width,
			    &field->code, &field->bits))
			return -1;
		field->width = width;
	}
	lent->nr_fields = nr;
	return 0;
}

static PyObject *lent_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	PyObject *reader, *owner, *fields;
	struct lent *lent;
	int device_type, device;

	(void)names;
	if (!PyArg_ParseTuple(
		    args, "OOiiO!", &reader, &owner, &device_type, &device, &PyTuple_Type, &fields))
		return NULL;
	if (!((struct reader *)reader)->exchange)
		return PyErr_Format(PyExc_TypeError, "the reader has no framework's functions");
	lent = (struct lent *)PyType_GenericNew(type, NULL, NULL);
	if (!lent)
		return NULL;
	Py_INCREF(reader);
	lent->reader = (struct reader *)reader;
	Py_INCREF(lent->owner = owner);
	lent->device_type = device_type;
	lent->device = device;
	if (take_fields(lent, fields)) {
		Py_DECREF(lent);
		return NULL;
	}
	return (PyObject *)lent;
}

static void lent_free(PyObject *object)
{
	struct lent *lent = (struct lent *)object;

	Py_XDECREF(lent->reader);
	Py_XDECREF(lent->owner);
	free_object(object);
}

static PyMethodDef lent_methods[] = {
	{"lend", (PyCFunction)(void (*)(void))lent_lend, METH_FASTCALL, NULL},
	{"held", lent_held, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
static PyType_Slot lent_slots[] = {
	{Py_tp_new, lent_new},
	{Py_tp_dealloc, lent_free},
	{Py_tp_methods, lent_methods},
	{0, NULL},
};
PyType_Spec lent_spec = {
	"tern_ep._calls.Lent", sizeof(struct lent), 0, Py_TPFLAGS_DEFAULT, lent_slots};
