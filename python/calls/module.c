// SPDX-License-Identifier: Apache-2.0
/* The module, what its types share, and OneAtATime. */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include "native.h"

struct library library;
unsigned long nr_forks;

int refuse(const char *kind, const char *format, ...)
{
	PyObject *text, *errors = PyImport_ImportModule("tern_ep.errors");
	PyObject *class = errors ? PyObject_GetAttrString(errors, kind) : NULL;
	va_list list;

	if (class) {
		va_start(list, format);
		text = PyUnicode_FromFormatV(format, list);
		va_end(list);
		if (text)
			PyErr_SetObject(class, text);
		Py_XDECREF(text);
	}
	Py_XDECREF(class);
	Py_XDECREF(errors);
	return -1;
}

int take(PyObject *result)
{
	Py_XDECREF(result);
	return result ? 0 : -1;
}

void free_object(void *object)
{
	PyTypeObject *type = Py_TYPE(object);
	freefunc free_it = (freefunc)PyType_GetSlot(type, Py_tp_free);

	free_it(object);
	Py_DECREF(type);
}

/* ---- OneAtATime(what) ---- */

static PyObject *one_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	struct one_at_a_time *busy;
	PyObject *what;

	(void)names;
	if (!PyArg_ParseTuple(args, "U", &what))
		return NULL;
	busy = (struct one_at_a_time *)PyType_GenericNew(type, NULL, NULL);
	if (busy)
		Py_INCREF(busy->what = what);
	return (PyObject *)busy;
}

static void one_free(PyObject *object)
{
	Py_XDECREF(((struct one_at_a_time *)object)->what);
	free_object(object);
}

int enter(struct one_at_a_time *busy)
{
	if (busy->inside)
		return refuse("StateError", "another thread is in a call on this %U", busy->what);
	busy->inside = true;
	return 0;
}

static PyObject *one_enter(PyObject *object, PyObject *none)
{
	(void)none;
	if (enter((struct one_at_a_time *)object))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *one_exit(PyObject *object, PyObject *const *args, Py_ssize_t nr)
{
	(void)args;
	(void)nr;
	((struct one_at_a_time *)object)->inside = false;
	Py_RETURN_NONE;
}

static PyMethodDef one_methods[] = {
	{"__enter__", one_enter, METH_NOARGS, NULL},
	{"__exit__", (PyCFunction)(void (*)(void))one_exit, METH_FASTCALL, NULL},
	{NULL, NULL, 0, NULL},
};
static PyType_Slot one_slots[] = {
	{Py_tp_new, one_new},
	{Py_tp_dealloc, one_free},
	{Py_tp_methods, one_methods},
	{Py_tp_doc, "The library allows one thread at a time on one object. A second one is "
		    "refused here instead of breaking things there."},
	{0, NULL},
};
PyType_Spec one_at_a_time_spec = {
	"tern_ep._calls.OneAtATime",
	sizeof(struct one_at_a_time),
	0,
	Py_TPFLAGS_DEFAULT,
	one_slots,
};

/* ---- the module ---- */

static const struct {
	const char *name;
	size_t at;
} functions[] = {
	{"tern_dispatch", offsetof(struct library, dispatch)},
	{"tern_dispatch_send", offsetof(struct library, dispatch_send)},
	{"tern_dispatch_recv", offsetof(struct library, dispatch_recv)},
	{"tern_combine", offsetof(struct library, combine)},
	{"tern_combine_send", offsetof(struct library, combine_send)},
	{"tern_combine_recv", offsetof(struct library, combine_recv)},
	{"tern_release", offsetof(struct library, release)},
	{"tern_moe_set_stream", offsetof(struct library, set_stream)},
	{"tern_plan_create_beside", offsetof(struct library, plan_create_beside)},
	{"tern_plan_destroy", offsetof(struct library, plan_destroy)},
	{"tern_count_routes", offsetof(struct library, count_routes)},
	{"tern_layer_run", offsetof(struct library, layer_run)},
};
enum {
	NR_FUNCTIONS = sizeof(functions) / sizeof(*functions)
};

/* bind(address of): a function that knows where the library's functions are, by name. */
static PyObject *bind(PyObject *module, PyObject *address_of)
{
	PyObject *told;
	void *address;
	size_t i;

	(void)module;
	for (i = 0; i < NR_FUNCTIONS; i++) {
		told = PyObject_CallFunction(address_of, "s", functions[i].name);
		address = told ? PyLong_AsVoidPtr(told) : NULL;
		Py_XDECREF(told);
		if (!address)
			return PyErr_Occurred() ? NULL
						: PyErr_Format(PyExc_ValueError, "%s is nowhere",
							  functions[i].name);
		memcpy((char *)&library + functions[i].at, &address, sizeof(address));
	}
	Py_RETURN_NONE;
}

static PyObject *forked(PyObject *module, PyObject *none)
{
	(void)module;
	(void)none;
	nr_forks++;
	Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
	{"bind", bind, METH_O, "Takes the functions of the loaded libtern."},
	{"word_becomes", (PyCFunction)(void (*)(void))word_becomes, METH_FASTCALL, NULL},
	{"count_routes", (PyCFunction)(void (*)(void))count_routes, METH_FASTCALL, NULL},
	{"routes_agree", (PyCFunction)(void (*)(void))routes_agree, METH_FASTCALL, NULL},
	{"forked", forked, METH_NOARGS, "In a child: what was made before is the parent's."},
	{NULL, NULL, 0, NULL},
};
static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT, "_calls", NULL, -1, module_methods, NULL, NULL, NULL, NULL};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
	PyObject *type = PyType_FromSpec(spec);
	int rc = type ? PyModule_AddObjectRef(module, name, type) : -1;

	Py_XDECREF(type);
	return rc;
}

/* What is compiled in has to be what Python and libtern have. */
static int add_sizes(PyObject *module)
{
	PyObject *sizes = Py_BuildValue("(nnn)", (Py_ssize_t)sizeof(struct tern_dispatch),
		(Py_ssize_t)sizeof(struct tern_received), (Py_ssize_t)sizeof(struct tern_combine));
	int rc = sizes ? PyModule_AddObjectRef(module, "SIZES", sizes) : -1;

	Py_XDECREF(sizes);
	return rc;
}

PyMODINIT_FUNC PyInit__calls(void)
{
	PyObject *module = PyModule_Create(&module_def);

	if (!module)
		return NULL;
	if (add_type(module, "Reader", &reader_spec) || add_type(module, "Slot", &slot_spec) ||
		add_type(module, "OneAtATime", &one_at_a_time_spec) ||
		add_type(module, "Calls", &calls_spec) ||
		add_type(module, "Received", &received_spec) ||
		add_type(module, "Lent", &lent_spec) || add_type(module, "Round", &round_spec) ||
		add_type(module, "Turns", &turns_spec) || add_sizes(module) ||
		PyModule_AddStringConstant(module, "VERSION",
			Py_STRINGIFY(TERN_VERSION_MAJOR) "." Py_STRINGIFY(TERN_VERSION_MINOR))) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
