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

static int begin(struct calls *calls)
{
	return enter(calls->busy);
}

static PyObject *end(struct calls *calls, PyObject *result)
{
	calls->busy->inside = false;
	return result;
}

static struct slot *slot_of(struct calls *calls, PyObject *number)
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
static struct tern_moe *use(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *stream)
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

/* After a time-out the tokens may be on their way. */
static int begun(PyObject *moe, struct slot *slot, uint32_t nr_tokens, int code)
{
	if (code == TERN_OK || code == TERN_ERR_TIMEOUT)
		slot->nr_tokens = nr_tokens;
	return check(moe, code);
}

int counted(Py_ssize_t nr, Py_ssize_t want)
{
	if (nr == want)
		return 0;
	PyErr_Format(PyExc_TypeError, "%zd arguments, of %zd", nr, want);
	return -1;
}

static int number(PyObject *object, uint64_t *value)
{
	*value = PyLong_AsUnsignedLongLongMask(object);
	return PyErr_Occurred() ? -1 : 0;
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

/* ---- the calls ---- */

/* `sent` has the arguments: the slot, or a plan's. */
static PyObject *dispatch_with(struct calls *calls, PyObject *moe, struct slot *slot,
	struct slot *sent, PyObject *looker, PyObject *const arrays[4], const uint64_t *key,
	PyObject *stream, uint64_t tag, PyObject *const into[2], PyObject *want)
{
	struct tern_moe *native;
	int code;

	sent->dispatch.tag = tag;
	if (set_dispatch(sent, looker, arrays, key) || set_into(slot, moe, into) ||
		set_wanted(slot, moe, want) || !(native = use(calls, moe, slot, stream)))
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

	if (begin(calls))
		return NULL;
	return end(calls, dispatch_with(calls, moe, slot, slot, moe, arrays, NULL, Py_None, 0, into,
				  PyTuple_GetItem(kept, 2)));
}

/* dispatch(exchange, slot, stream, x, topk_ids, topk_weights, scales, tag, into_x, into_scales,
 * want) */
static PyObject *calls_dispatch(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct slot *slot;
	uint64_t tag;

	if (counted(nr, 11) || number(a[7], &tag) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	return end(calls, slot ? dispatch_with(calls, a[0], slot, slot, a[0], a + 3, NULL, a[2],
					 tag, a + 8, a[10])
			       : NULL);
}

/* dispatch_for_good(exchange, slot, x, topk_ids, topk_weights, scales, into_x, into_scales, counts,
 * offsets): addresses. */
static PyObject *calls_dispatch_for_good(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct slot *slot;
	PyObject *result = NULL;

	if (counted(nr, 10) || begin(calls))
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
	return end(calls, result);
}

/* dispatch_plan(exchange, slot, plan, arguments, number, nr_tokens, x, scales, tag, into_x,
 * into_scales, want): of the exchange's arguments for plans. */
static PyObject *calls_dispatch_plan(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	uint64_t key[3] = {0}, tag;
	struct slot *slot, *sent;
	PyObject *result = NULL;

	if (counted(nr, 12) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	sent = (struct slot *)a[3];
	if (slot && !number(a[4], &sent->dispatch.plan) && !number(a[5], &key[0]) &&
		!number(a[8], &tag)) {
		PyObject *arrays[4] = {a[6], Py_None, Py_None, a[7]};

		sent->dispatch.slot = slot->number;
		look_clear(&slot->look_dispatch);
		result = dispatch_with(
			calls, a[0], slot, sent, a[2], arrays, key, Py_None, tag, a + 9, a[11]);
	}
	return end(calls, result);
}

/* dispatch_send(exchange, slot, stream, x, topk_ids, topk_weights, scales, tag) */
static PyObject *calls_dispatch_send(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 8) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || set_dispatch(slot, a[0], a + 3, NULL) || number(a[7], &slot->dispatch.tag) ||
		!(native = use(calls, a[0], slot, a[2])))
		return end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.dispatch_send(native, &slot->dispatch);
	Py_END_ALLOW_THREADS;
	if (begun(a[0], slot, slot->dispatch.nr_tokens, code))
		return end(calls, NULL);
	Py_INCREF(Py_None);
	return end(calls, Py_None);
}

/* dispatch_recv(exchange, slot, stream, into_x, into_scales, want) */
static PyObject *calls_dispatch_recv(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 6) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || set_into(slot, a[0], a + 3) || set_wanted(slot, a[0], a[5]) ||
		!(native = use(calls, a[0], slot, a[2])))
		return end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.dispatch_recv(native, slot->number, &slot->received);
	Py_END_ALLOW_THREADS;
	return end(calls, check(a[0], code) ? NULL : received(calls, a[0], slot, a + 3));
}

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
	native = use(calls, moe, slot, stream);
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

	return begin(calls) ? NULL : end(calls, combine_with(calls, moe, slot, Py_None, arrays));
}

/* combine(exchange, slot, stream, y, out, unweighted, topk_weights, floats, out_floats) */
static PyObject *calls_combine(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct slot *slot;

	if (counted(nr, 9) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	return end(calls, slot ? combine_with(calls, a[0], slot, a[2], a + 3) : NULL);
}

/* combine_plan(exchange, slot, plan, nr_tokens, extent, tag, y, out, unweighted, topk_weights,
 * floats, out_floats) */
static PyObject *calls_combine_plan(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	unsigned long long extent;
	struct slot *slot;
	uint32_t nr_tokens;
	PyObject *out;

	if (counted(nr, 12) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || number(a[5], &slot->combine.tag) || number(a[2], &slot->combine.plan))
		return end(calls, NULL);
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
	return end(calls, out);
}

/* combine_send(exchange, slot, stream, y, unweighted, topk_weights, floats, out_floats) */
static PyObject *calls_combine_send(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 8) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || set_y(slot, a[0], a[3]) || set_beside(slot, a[0], a[4], a + 5) ||
		!(native = use(calls, a[0], slot, a[2])))
		return end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.combine_send(native, &slot->combine);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		return end(calls, NULL);
	slot->turn++;
	Py_INCREF(Py_None);
	return end(calls, Py_None);
}

/* combine_recv(exchange, slot, stream, out) */
static PyObject *calls_combine_recv(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	PyObject *out;
	void *at;
	int code;

	if (counted(nr, 4) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	out = a[3];
	if (!slot || set_out(slot, a[0], &out, &at))
		return end(calls, NULL);
	native = use(calls, a[0], slot, a[2]);
	if (native) {
		Py_BEGIN_ALLOW_THREADS;
		code = library.combine_recv(native, slot->number, at, slot->out_stride);
		Py_END_ALLOW_THREADS;
	}
	if (native && check(a[0], code) == 0) {
		beside_ended(slot);
		return end(calls, out);
	}
	Py_DECREF(out);
	return end(calls, NULL);
}

/* release(exchange, slot, stream) */
static PyObject *calls_release(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	struct slot *slot;
	int code;

	if (counted(nr, 3) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || !(native = use(calls, a[0], slot, a[2])))
		return end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.release(native, slot->number);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		return end(calls, NULL);
	slot->turn++;
	Py_INCREF(Py_None);
	return end(calls, Py_None);
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

	if (counted(nr, 6) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	if (!slot || number(a[2], &beside.nr_rows))
		return end(calls, NULL);
	beside.wide_ids = PyLong_AsVoidPtr(a[3]);
	beside.tokens = PyLong_AsVoidPtr(a[4]);
	beside.topk_ids = PyLong_AsVoidPtr(a[5]);
	native = PyErr_Occurred() ? NULL : moe_of(calls, a[0]);
	if (!native)
		return end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.plan_create_beside(native, slot->number, &beside, &plan);
	Py_END_ALLOW_THREADS;
	return end(calls, check(a[0], code) ? NULL : PyLong_FromUnsignedLongLong(plan));
}

/* plan_destroy(exchange, number) */
static PyObject *calls_plan_destroy(PyObject *self, arguments a, Py_ssize_t nr)
{
	struct calls *calls = (struct calls *)self;
	struct tern_moe *native;
	uint64_t plan;
	int code;

	if (counted(nr, 2) || begin(calls))
		return NULL;
	if (number(a[1], &plan) || !(native = moe_of(calls, a[0])))
		return end(calls, NULL);
	Py_BEGIN_ALLOW_THREADS;
	code = library.plan_destroy(native, plan);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		return end(calls, NULL);
	Py_INCREF(Py_None);
	return end(calls, Py_None);
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

	if (counted(nr, 9) || begin(calls))
		return NULL;
	slot = slot_of(calls, a[1]);
	layer = PyLong_AsVoidPtr(a[3]);
	if (!slot || !layer || set_dispatch(slot, a[0], a + 4, NULL))
		return end(calls, NULL);
	slot->dispatch.tag = 0;
	before = slot->nr_tokens;
	slot->nr_tokens = slot->dispatch.nr_tokens;
	out = a[8];
	if (set_out(slot, a[0], &out, &at))
		goto err_tokens;
	if (!use(calls, a[0], slot, a[2]))
		goto err_out;
	Py_BEGIN_ALLOW_THREADS;
	code = library.layer_run(layer, &slot->dispatch, at, slot->out_stride);
	Py_END_ALLOW_THREADS;
	if (check(a[0], code))
		goto err_out;
	slot->turn++;
	return end(calls, out);
err_out:
	Py_DECREF(out);
err_tokens:
	slot->nr_tokens = before;
	return end(calls, NULL);
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
	native = slot ? use(calls, a[0], slot, a[2]) : NULL;
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
