// SPDX-License-Identifier: Apache-2.0
/* Reads arrays: where they lie, and all else that decides whether a call takes them. */
#include <string.h>

#include "native.h"

/* What numpy's arrays hand out as __array_struct__. */
struct numpy_array {
	int two, nr_dims;
	char kind;
	int item_bytes, flags;
	Py_ssize_t *shape, *strides;
	void *data;
};

enum {
	NOT_SEEN,
	SEEN
};

static int see_numpy(PyObject *array, struct seen *seen, void **address)
{
	PyObject *dtype, *capsule = PyObject_GetAttrString(array, "__array_struct__");
	struct numpy_array *told = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
	int i, found = NOT_SEEN;

	if (told && told->two == 2 && told->nr_dims <= MAX_DIMS) {
		dtype = PyObject_GetAttrString(array, "dtype");
		seen->nr_dims = (int8_t)told->nr_dims;
		seen->flags = (uint32_t)told->flags;
		seen->dtype = (uintptr_t)dtype;
		for (i = 0; i < told->nr_dims; i++) {
			seen->shape[i] = told->shape[i];
			seen->strides[i] = told->strides[i];
		}
		seen->held = dtype;
		*address = told->data;
		found = dtype ? SEEN : -1;
	}
	Py_XDECREF(capsule);
	return capsule && told ? found : -1;
}

/* A tensor that requires grad is refused, which DLPack does not tell. */
static int requires_grad(PyObject *tensor)
{
	static PyObject *name;
	PyObject *told;
	int yes;

	if (!name && !(name = PyUnicode_InternFromString("requires_grad")))
		return -1;
	told = PyObject_GetAttr(tensor, name);
	if (!told)
		return -1;
	yes = told == Py_False ? 0 : PyObject_IsTrue(told);
	Py_DECREF(told);
	return yes;
}

static int see_tensor(
	const struct dlpack_exchange *exchange, PyObject *array, struct seen *seen, void **address)
{
	struct dlpack_tensor tensor = {0};
	int i, yes;

	if (exchange->look(array, &tensor) < 0) {
		PyErr_Clear(); // Python says what is wrong with it
		return NOT_SEEN;
	}
	if (tensor.ndim > MAX_DIMS || !tensor.strides)
		return NOT_SEEN;
	yes = requires_grad(array);
	if (yes)
		return yes < 0 ? -1 : NOT_SEEN;
	seen->nr_dims = (int8_t)tensor.ndim;
	seen->flags = (uint32_t)tensor.device_type << 16 | (uint16_t)tensor.device_id;
	seen->dtype = (uint64_t)tensor.code << 32 | (uint64_t)tensor.bits << 16 | tensor.lanes;
	for (i = 0; i < tensor.ndim; i++) {
		seen->shape[i] = tensor.shape[i];
		seen->strides[i] = tensor.strides[i];
	}
	*address = (char *)tensor.data + tensor.byte_offset;
	return SEEN;
}

static int see_by_python(struct reader *reader, PyObject *array, struct seen *seen, void **address)
{
	PyObject *at;

	seen->held = PyObject_CallFunctionObjArgs(reader->form, array, NULL);
	at = seen->held ? PyObject_CallFunctionObjArgs(reader->address, array, NULL) : NULL;
	if (!at)
		return -1;
	*address = PyLong_AsVoidPtr(at);
	Py_DECREF(at);
	return PyErr_Occurred() ? -1 : SEEN;
}

/* Of an array that is not given: SEEN, at NULL. seen->held is the caller's, whatever is returned.
 */
static int see(struct reader *reader, PyObject *array, struct seen *seen, void **address)
{
	memset(seen, 0, sizeof(*seen));
	*address = NULL;
	if (array == Py_None)
		return SEEN;
	if ((PyObject *)Py_TYPE(array) != reader->fast)
		return NOT_SEEN;
	seen->given = true;
	if (reader->exchange)
		return see_tensor(reader->exchange, array, seen, address);
	return reader->numpy ? see_numpy(array, seen, address)
			     : see_by_python(reader, array, seen, address);
}

static int same(const struct seen *one, const struct seen *other)
{
	if (memcmp(one, other, offsetof(struct seen, held)) != 0)
		return 0;
	return one->held == other->held ? 1
					: PyObject_RichCompareBool(one->held, other->held, Py_EQ);
}

static int look_at_one(
	struct reader *reader, const struct seen *before, PyObject *array, void **address)
{
	struct seen seen;
	int found = see(reader, array, &seen, address);

	if (found == SEEN)
		found = same(&seen, before);
	Py_XDECREF(seen.held);
	return found;
}

int look_again(struct reader *reader, struct look *look, PyObject *const *arrays, int nr,
	const uint64_t *key, void **addresses)
{
	int i, found = 1;

	if (!look->valid || look->nr != nr ||
		(key && memcmp(key, look->key, sizeof(look->key)) != 0))
		return 0;
	for (i = 0; i < nr && found > 0; i++)
		found = look_at_one(reader, &look->seen[i], arrays[i], &addresses[i]);
	return found;
}

int look_like(struct reader *reader, const struct look *look, int which, PyObject *array)
{
	void *address;

	return look->valid && which < look->nr
		       ? look_at_one(reader, &look->seen[which], array, &address)
		       : 0;
}

void look_clear(struct look *look)
{
	int i;

	look->valid = false;
	for (i = 0; i < look->nr; i++)
		Py_CLEAR(look->seen[i].held);
	look->nr = 0;
}

/* Of arrays that Python has accepted. Without a form for all of them nothing is kept. */
int look_keep(struct reader *reader, struct look *look, PyObject *const *arrays, int nr,
	const uint64_t *key)
{
	void *address;
	int found;

	look_clear(look);
	while (look->nr < nr) {
		found = see(reader, arrays[look->nr], &look->seen[look->nr], &address);
		look->nr++;
		if (found == SEEN)
			continue;
		look_clear(look);
		return found;
	}
	if (key)
		memcpy(look->key, key, sizeof(look->key));
	look->valid = true;
	return 0;
}

/* ---- Reader(fast, form, address, numpy, exchange, device) ---- */

static int usable(struct reader *reader, PyObject *capsule)
{
	struct dlpack_exchange *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");

	if (!found)
		return -1;
	while (found && found->version.major != DLPACK_MAJOR)
		found = found->older;
	if (found && found->look && found->stream)
		reader->exchange = found;
	return 0;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	PyObject *fast, *form, *address, *capsule;
	struct reader *reader;
	int numpy, device;

	(void)names;
	if (!PyArg_ParseTuple(args, "OOOpOi", &fast, &form, &address, &numpy, &capsule, &device))
		return NULL;
	reader = (struct reader *)PyType_GenericNew(type, NULL, NULL);
	if (!reader)
		return NULL;
	Py_INCREF(reader->fast = fast);
	Py_INCREF(reader->form = form);
	Py_INCREF(reader->address = address);
	reader->numpy = numpy;
	reader->device = device;
	if (capsule != Py_None && usable(reader, capsule)) {
		Py_DECREF(reader);
		return NULL;
	}
	return (PyObject *)reader;
}

static void reader_free(PyObject *object)
{
	struct reader *reader = (struct reader *)object;

	Py_XDECREF(reader->fast);
	Py_XDECREF(reader->form);
	Py_XDECREF(reader->address);
	free_object(object);
}

static PyObject *reader_direct(PyObject *object, void *unused)
{
	(void)unused;
	return PyBool_FromLong(((struct reader *)object)->exchange != NULL);
}

/* fits(tensor, shape, type): whether it is dense, of that type (DLPack's code << 8 | bits) and shape, where None is any length, and requires
 * no grad. False, too, of what only Python can tell. */
static PyObject *reader_fits(PyObject *object, PyObject *const *args, Py_ssize_t nr)
{
	struct reader *reader = (struct reader *)object;
	struct seen seen;
	unsigned long type;
	void *address;
	int found, i;
	int64_t step = 1;
	PyObject *length;

	type = nr == 3 ? PyLong_AsUnsignedLong(args[2]) : 0;
	if (PyErr_Occurred())
		return NULL;
	if (nr != 3 || !PyTuple_Check(args[1]))
		return PyErr_Format(PyExc_TypeError, "a tensor, a tuple and a type are taken");
	if (!reader->exchange || args[0] == Py_None)
		Py_RETURN_FALSE;
	found = see(reader, args[0], &seen, &address);
	if (found != SEEN || seen.nr_dims != PyTuple_Size(args[1]))
		return found < 0 ? NULL : PyBool_FromLong(0);
	for (i = seen.nr_dims - 1; i >= 0; i--) {
		length = PyTuple_GetItem(args[1], i);
		if (length != Py_None && PyLong_AsLongLong(length) != seen.shape[i])
			return PyErr_Occurred() ? NULL : PyBool_FromLong(0);
		if (seen.shape[i] > 1 && seen.strides[i] != step)
			Py_RETURN_FALSE;
		step *= seen.shape[i];
	}
	return PyBool_FromLong(seen.dtype == ((type & 0xff00) << 24 | (type & 0xff) << 16 | 1));
}

static PyMethodDef reader_methods[] = {
	{"fits", (PyCFunction)(void (*)(void))reader_fits, METH_FASTCALL, NULL},
	{NULL, NULL, 0, NULL},
};
static PyGetSetDef reader_values[] = {
	{"direct", reader_direct, NULL, "Whether a framework's own functions are asked.", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot reader_slots[] = {
	{Py_tp_new, reader_new},
	{Py_tp_dealloc, reader_free},
	{Py_tp_getset, reader_values},
	{Py_tp_methods, reader_methods},
	{0, NULL},
};
PyType_Spec reader_spec = {
	"tern_ep._calls.Reader", sizeof(struct reader), 0, Py_TPFLAGS_DEFAULT, reader_slots};
