// SPDX-License-Identifier: Apache-2.0
/*
 * Calls(reader, busy, slots, received, moe, on_device): the halves of an exchange, which each of
 * them is given. All arguments are looked at before anything is sent.
 */
#include <stddef.h>

#include "native.h"

#define METHOD(name) ((PyCFunction)(void (*)(void))(name))

typedef PyObject *const *arguments;

/* ---- before and after ---- */

int call_begin(struct calls *calls)
{
	return enter(calls->busy);
}

PyObject *call_end(struct calls *calls, PyObject *result)
{
	calls->busy->inside = false;
	return result;
}

struct slot *slot_of(struct calls *calls, PyObject *number)
{
	Py_ssize_t nr = PyTuple_Size(calls->slots),
		   i = PyNumber_AsSsize_t(number, PyExc_OverflowError);

	if (i == -1 && PyErr_Occurred())
		return NULL;
	if (i >= 0 && i < nr)
		return (struct slot *)PyTuple_GetItem(calls->slots, i);
	refuse("InvalidError", "slot is %zd of %zd", i, nr);
	return NULL;
}

/* The exchange, if it is open and this process's; else what its property says. */
struct tern_moe *moe_of(struct calls *calls, PyObject *moe)
{
	if (calls->moe && calls->forks == nr_forks)
		return calls->moe;
	if (take(PyObject_GetAttrString(moe, "native")) == 0)
		refuse("StateError", "exchange is closed");
	return NULL;
}

int check(PyObject *moe, int code)
{
	return code ? take(PyObject_CallMethod(moe, "_check", "i", code)) : 0;
}

static int stream_of(struct calls *calls, PyObject *stream, void **found)
{
	struct reader *reader = calls->reader;

	if (stream != Py_None) {
		*found = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
		return PyErr_Occurred() ? -1 : 0;
	}
	return reader->exchange->stream(DLPACK_CUDA, reader->device, found);
}

/* Where a framework's functions are not to be asked. */
static int stream_by_python(PyObject *moe, PyObject *stream, void **found)
{
	PyObject *told = PyObject_CallMethod(moe, "_stream", "O", stream);

	*found = told ? (void *)(uintptr_t)PyLong_AsUnsignedLongLong(told) : NULL;
	Py_XDECREF(told);
	return PyErr_Occurred() ? -1 : 0;
}

/*
 * A half goes to the caller's stream. What kernels read is not kept: memory of that stream is not
 * given to others before they have run, and of another stream the caller has to take care.
 */
struct tern_moe *call_use(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *stream)
{
	struct tern_moe *native = moe_of(calls, moe);
	void *wanted;

	if (!native || (!calls->on_device && stream == Py_None))
		return native;
	if (!calls->on_device) {
		refuse("UnsupportedError",
			"a stream is given; this exchange was made with device CPU");
		return NULL;
	}
	if (calls->reader->exchange ? stream_of(calls, stream, &wanted)
				    : stream_by_python(moe, stream, &wanted))
		return NULL;
	if ((uintptr_t)wanted != slot->stream) {
		if (check(moe, library.set_stream(native, slot->number, wanted)))
			return NULL;
		slot->stream = (uintptr_t)wanted;
	}
	return native;
}

int counted(Py_ssize_t nr, Py_ssize_t want)
{
	if (nr == want)
		return 0;
	PyErr_Format(PyExc_TypeError, "%zd arguments, of %zd", nr, want);
	return -1;
}

int number_of(PyObject *object, uint64_t *value)
{
	*value = PyLong_AsUnsignedLongLongMask(object);
	return PyErr_Occurred() ? -1 : 0;
}

/* ---- the calls ---- */

/* release(exchange, slot, stream) */
static PyObject *calls_release(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 3) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || !(native = call_use(calls, a[0], slot, a[2])))
		return call_end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.release(native, slot->number);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		return call_end(calls, NULL);
	slot->turn++;
	Py_INCREF(Py_None);
	return call_end(calls, Py_None);
}

/* plan(exchange, slot, nr_rows, wide_ids, tokens, topk_ids): its number; addresses, or 0. */
static PyObject *calls_plan(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct tern_plan_beside beside = {.size = sizeof(beside)};
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	uint64_t plan = 0;
	int code;

	if (counted(nr, 6) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || number_of(a[2], &beside.nr_rows))
		return call_end(calls, NULL);
	beside.wide_ids = PyLong_AsVoidPtr(a[3]);
	beside.tokens = PyLong_AsVoidPtr(a[4]);
	beside.topk_ids = PyLong_AsVoidPtr(a[5]);
	native = PyErr_Occurred() ? NULL : moe_of(calls, a[0]);
	if (!native)
		return call_end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.plan_create_beside(native, slot->number, &beside, &plan);
	Py_END_ALLOW_THREADS;
	return call_end(calls, check(a[0], code) ? NULL : PyLong_FromUnsignedLongLong(plan));
}

/* plan_destroy(exchange, number) */
static PyObject *calls_plan_destroy(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	uint64_t plan;
	int code;

	if (counted(nr, 2) || call_begin(calls))
		return NULL;
	if (number_of(a[1], &plan) || !(native = moe_of(calls, a[0])))
		return call_end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.plan_destroy(native, plan);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		return call_end(calls, NULL);
	Py_INCREF(Py_None);
	return call_end(calls, Py_None);
}

/* run(exchange, slot, stream, layer, x, topk_ids, topk_weights, scales, out): a layer's dispatch,
 * experts and combine. */
static PyObject *calls_run(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_layer *layer;
	struct slot *slot;
	uint32_t before;
	PyObject *out;
	void *at;
	int code;

	if (counted(nr, 9) || call_begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	layer = PyLong_AsVoidPtr(a[3]);
	if (!slot || !layer || set_dispatch(slot, a[0], a + 4, NULL))
		return call_end(calls, NULL);
	slot->dispatch.tag = 0;
	before = slot->nr_tokens;
	slot->nr_tokens = slot->dispatch.nr_tokens;
	out = a[8];
	if (set_out(slot, a[0], &out, &at))
		goto err_tokens;
	if (!call_use(calls, a[0], slot, a[2]))
		goto err_out;
	Py_BEGIN_ALLOW_THREADS;
	code = library.layer_run(layer, &slot->dispatch, at, slot->out_stride);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		goto err_out;
	slot->turn++;
	return call_end(calls, out);
err_out:
	Py_DECREF(out);
err_tokens:
	slot->nr_tokens = before;
	return call_end(calls, NULL);
}

/* use(exchange, slot, stream): before another call on the slot; the tern_moe's address. Inside
 * OneAtATime. */
static PyObject *calls_use(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native = NULL;
	struct slot *slot;

	if (counted(nr, 3))
		return NULL;
	slot = slot_of(calls, a[1]);
	native = slot ? call_use(calls, a[0], slot, a[2]) : NULL;
	return native ? PyLong_FromVoidPtr(native) : NULL;
}

static PyObject *calls_close(PyObject *self, PyObject *none)
{
	(void)none;
	((struct calls *)self)->moe = NULL;
	Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	PyObject *reader, *busy, *slots, *received;
	unsigned long long moe;
	struct calls *calls;
	int on_device;

	(void)names;
	if (!PyArg_ParseTuple(args, "OOO!OKp", &reader, &busy, &PyTuple_Type, &slots, &received,
		    &moe, &on_device))
		return NULL;
	calls = (struct calls *)PyType_GenericNew(type, NULL, NULL);
	if (!calls)
		return NULL;
	Py_INCREF(reader);
	Py_INCREF(busy);
	calls->reader = (struct reader *)reader;
	calls->busy = (struct one_at_a_time *)busy;
	Py_INCREF(calls->slots = slots);
	Py_INCREF(calls->received = received);
	calls->moe = (struct tern_moe *)(uintptr_t)moe;
	calls->forks = nr_forks;
	calls->on_device = on_device;
	return (PyObject *)calls;
}

static void calls_free(PyObject *object)
{
	struct calls *calls = (struct calls *)object;

	Py_XDECREF(calls->reader);
	Py_XDECREF(calls->busy);
	Py_XDECREF(calls->slots);
	Py_XDECREF(calls->received);
	free_object(object);
}

static PyMethodDef calls_methods[] = {
	{"dispatch", METHOD(calls_dispatch), METH_FASTCALL, NULL},
	{"dispatch_for_good", METHOD(calls_dispatch_for_good), METH_FASTCALL, NULL},
	{"dispatch_plan", METHOD(calls_dispatch_plan), METH_FASTCALL, NULL},
	{"dispatch_send", METHOD(calls_dispatch_send), METH_FASTCALL, NULL},
	{"dispatch_recv", METHOD(calls_dispatch_recv), METH_FASTCALL, NULL},
	{"combine", METHOD(calls_combine), METH_FASTCALL, NULL},
	{"combine_plan", METHOD(calls_combine_plan), METH_FASTCALL, NULL},
	{"combine_send", METHOD(calls_combine_send), METH_FASTCALL, NULL},
	{"combine_recv", METHOD(calls_combine_recv), METH_FASTCALL, NULL},
	{"release", METHOD(calls_release), METH_FASTCALL, NULL},
	{"plan", METHOD(calls_plan), METH_FASTCALL, NULL},
	{"plan_destroy", METHOD(calls_plan_destroy), METH_FASTCALL, NULL},
	{"gather", METHOD(calls_gather), METH_FASTCALL, NULL},
	{"tell", METHOD(calls_tell), METH_FASTCALL, NULL},
	{"run", METHOD(calls_run), METH_FASTCALL, NULL},
	{"use", METHOD(calls_use), METH_FASTCALL, NULL},
	{"close", calls_close, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
static PyType_Slot calls_slots[] = {
	{Py_tp_new, calls_new},
	{Py_tp_dealloc, calls_free},
	{Py_tp_methods, calls_methods},
	{0, NULL},
};
PyType_Spec calls_spec = {
	"tern_ep._calls.Calls", sizeof(struct calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};
