// SPDX-License-Identifier: Apache-2.0
/*
 * Turns(calls, exchange, streams, round, handle, entries, captured, event): rounds of deep_ep's
 * low-latency mode, two slots in turn, and Round, one of them until its combine. What comes as it
 * came before takes this way, past all functions of Python's; whatever else comes gets None, and
 * Python looks at it.
 */
#include <stddef.h>

#include "native.h"

enum {
	NR_TURNS = 2
};

struct turns {
	PyObject_HEAD struct calls *calls;
	PyObject *moe, *streams;
	PyObject *round, *handle; // classes
	PyObject *entries;        // of a handle: a tuple
	PyObject *captured;       // a function: whether the current stream is
	PyObject *event;          // a function: what a call returns that leaves none
	PyObject *rounds;         // a list: of each slot, or None
	PyObject *kept[NR_TURNS]; // NULL, or (into_x, into_scales, want, recv_x, counts)
	unsigned int next;
};

struct round {
	PyObject_HEAD PyObject *lane, *ids, *counts, *received, *pending;
	unsigned int slot;
	char in_graph, combining;
};

static PyObject *none(void)
{
	Py_INCREF(Py_None);
	return Py_None;
}

static PyObject *held(PyObject *object)
{
	Py_INCREF(object);
	return object;
}

/* ---- a round ---- */

static PyObject *round_make(PyTypeObject *type, PyObject *lane, unsigned int slot, PyObject *ids,
	PyObject *counts, int in_graph)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct round *made = (struct round *)alloc(type, 0);

	if (!made)
		return NULL;
	made->lane = held(lane);
	made->ids = held(ids);
	made->counts = held(counts);
	made->slot = slot;
	made->in_graph = (char)in_graph;
	return (PyObject *)made;
}

static PyObject *round_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	PyObject *lane, *ids, *counts;
	unsigned int slot;
	int in_graph;

	(void)names;
	if (!PyArg_ParseTuple(args, "OIOOp", &lane, &slot, &ids, &counts, &in_graph))
		return NULL;
	return round_make(type, lane, slot, ids, counts, in_graph);
}

static int round_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct round *r = (struct round *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(r->lane);
	Py_VISIT(r->received);
	Py_VISIT(r->pending);
	return 0;
}

static int round_clear(PyObject *object)
{
	struct round *r = (struct round *)object;

	Py_CLEAR(r->lane);
	Py_CLEAR(r->ids);
	Py_CLEAR(r->counts);
	Py_CLEAR(r->received);
	Py_CLEAR(r->pending);
	return 0;
}

static void round_free(PyObject *object)
{
	PyObject_GC_UnTrack(object);
	round_clear(object);
	free_object(object);
}

static PyMemberDef round_members[] = {
	{"lane", T_OBJECT, offsetof(struct round, lane), READONLY, NULL},
	{"slot", T_UINT, offsetof(struct round, slot), READONLY, NULL},
	{"ids", T_OBJECT, offsetof(struct round, ids), READONLY, NULL},
	{"counts", T_OBJECT, offsetof(struct round, counts), READONLY, NULL},
	{"in_graph", T_BOOL, offsetof(struct round, in_graph), READONLY, NULL},
	{"received", T_OBJECT, offsetof(struct round, received), 0, NULL},
	{"pending", T_OBJECT, offsetof(struct round, pending), 0,
		"What still has to be received, of the dispatch or of the combine; None: nothing."},
	{"combining", T_BOOL, offsetof(struct round, combining), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};
static PyType_Slot round_slots[] = {
	{Py_tp_new, round_new},
	{Py_tp_dealloc, round_free},
	{Py_tp_traverse, round_traverse},
	{Py_tp_clear, round_clear},
	{Py_tp_members, round_members},
	{0, NULL},
};
PyType_Spec round_spec = {
	"tern_ep._calls.Round",
	sizeof(struct round),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	round_slots,
};

/* ---- on which stream ---- */

/* Whether the current stream is that of the last call, as long as all have gone there: nothing has
 * to be waited for then, nor left behind. */
static int is_same_stream(struct turns *t, void **stream)
{
	struct reader *reader = t->calls->reader;
	PyObject *same, *address, *call;
	int found = 0;

	*stream = NULL;
	if (!t->calls->on_device)
		return 1;
	if (!reader->exchange)
		return 0;
	same = PyObject_GetAttrString(t->streams, "same");
	if (!same)
		return -1;
	address = PyTuple_GetItem(same, 0);
	call = address ? PyTuple_GetItem(same, 1) : NULL;
	if (call && call != Py_None &&
		reader->exchange->stream(DLPACK_CUDA, reader->device, stream) == 0)
		found = PyLong_AsUnsignedLongLong(address) == (uintptr_t)*stream;
	Py_DECREF(same);
	return PyErr_Occurred() ? -1 : found;
}

/* The legacy default stream cannot be captured. */
static int is_captured(struct turns *t, const void *stream)
{
	PyObject *told = stream ? PyObject_CallFunctionObjArgs(t->captured, NULL) : NULL;
	int yes;

	if (!stream || !told)
		return stream ? -1 : 0;
	yes = PyObject_IsTrue(told);
	Py_DECREF(told);
	return yes;
}

/* ---- dispatch(x, topk_idx) ---- */

/* (recv_x, counts, handle, event, None), and the round is the slot's. */
static PyObject *begun(struct turns *t, unsigned int slot, PyObject *kept, PyObject *ids,
	PyObject *received, int in_graph)
{
	PyObject *counts = PyTuple_GetItem(kept, 4), *made, *handle, *event, *result = NULL;

	made = round_make((PyTypeObject *)t->round, (PyObject *)t, slot, ids, counts, in_graph);
	if (!made)
		return NULL;
	((struct round *)made)->received = held(received);
	handle = PyObject_CallFunctionObjArgs(t->handle, t->entries, NULL);
	event = PyObject_CallFunctionObjArgs(t->event, NULL);
	if (handle && event && PyObject_SetAttrString(handle, "round", made) == 0)
		result = PyTuple_Pack(5, PyTuple_GetItem(kept, 3), counts, handle, event, Py_None);
	Py_XDECREF(handle);
	Py_XDECREF(event);
	if (PyList_SetItem(t->rounds, slot, made))
		Py_CLEAR(result);
	t->next = 1 - slot;
	return result;
}

static PyObject *turns_dispatch(PyObject *self, PyObject *const *a, Py_ssize_t nr)
{
	struct turns *t = (struct turns *)self;
	unsigned int slot = t->next;
	PyObject *arrays[4], *kept, *received, *result = NULL;
	int found, in_graph;
	struct slot *state;
	void *at[4], *stream;

	if (counted(nr, 2))
		return NULL;
	if (!t->kept[slot] || PyList_GetItem(t->rounds, slot) != Py_None)
		return none();
	state = (struct slot *)PyTuple_GetItem(t->calls->slots, slot);
	arrays[0] = a[0];
	arrays[1] = a[1];
	arrays[2] = arrays[3] = Py_None;
	found = is_same_stream(t, &stream);
	if (found > 0)
		found = look_again(t->calls->reader, &state->look_dispatch, arrays, 4, NULL, at);
	in_graph = found > 0 ? is_captured(t, stream) : 0;
	if (found <= 0 || in_graph < 0)
		return found < 0 || in_graph < 0 ? NULL : none();
	kept = held(t->kept[slot]); // other threads run meanwhile
	received = dispatch_received(t->calls, t->moe, state, arrays, kept);
	if (received)
		result = begun(t, slot, kept, a[1], received, in_graph);
	Py_XDECREF(received);
	Py_DECREF(kept);
	return result;
}

/* keep(slot, (into_x, into_scales, want, recv_x, counts)): what Python has dispatched with, of a
 * dispatch that had nothing else to do. */
static PyObject *turns_keep(PyObject *self, PyObject *const *a, Py_ssize_t nr)
{
	struct turns *t = (struct turns *)self;
	unsigned long slot = nr == 2 ? PyLong_AsUnsignedLong(a[0]) : NR_TURNS;
	PyObject *before;

	if (PyErr_Occurred())
		return NULL;
	if (slot >= NR_TURNS || !PyTuple_Check(a[1]) || PyTuple_Size(a[1]) != 5)
		return PyErr_Format(PyExc_TypeError, "a slot and a tuple of five are taken");
	before = t->kept[slot];
	t->kept[slot] = held(a[1]);
	Py_XDECREF(before);
	return none();
}

/* ---- combine(round, y, topk_idx, topk_weights, out) ---- */

/* Whether they are of the form of the slot's dispatch and its last combine, which had weights of as
 * many tokens. out: None is a new one. */
static int is_as_before(struct reader *reader, struct slot *slot, PyObject *const a[4])
{
	int found = slot->look_beside.key[1] == slot->nr_tokens;

	found = found ? look_like(reader, &slot->look_y, 0, a[0]) : 0;
	found = found <= 0 ? found : look_like(reader, &slot->look_dispatch, 1, a[1]);
	found = found <= 0 ? found : look_like(reader, &slot->look_beside, 0, a[2]);
	if (found <= 0 || a[3] == Py_None)
		return found;
	return slot->out_rows == slot->nr_tokens ? look_like(reader, &slot->look_out, 0, a[3]) : 0;
}

static PyObject *turns_combine(PyObject *self, PyObject *const *a, Py_ssize_t nr)
{
	struct turns *t = (struct turns *)self;
	PyObject *out, *event, *result = NULL;
	struct round *r;
	struct slot *state;
	void *stream;
	int found;

	if (counted(nr, 5))
		return NULL;
	r = (struct round *)a[0];
	if ((PyObject *)Py_TYPE(a[0]) != t->round || r->lane != self || r->combining ||
		(r->pending && r->pending != Py_None) || !t->kept[r->slot] ||
		PyList_GetItem(t->rounds, r->slot) != a[0])
		return none();
	state = (struct slot *)PyTuple_GetItem(t->calls->slots, r->slot);
	found = is_same_stream(t, &stream);
	if (found > 0)
		found = is_as_before(t->calls->reader, state, a + 1);
	if (found <= 0)
		return found < 0 ? NULL : none();
	out = combine_out(t->calls, t->moe, state, a[1], a[3], a[4]);
	if (!out)
		return NULL;
	event = PyObject_CallFunctionObjArgs(t->event, NULL);
	if (event)
		result = PyTuple_Pack(3, out, event, Py_None);
	Py_XDECREF(event);
	Py_DECREF(out);
	if (PyList_SetItem(t->rounds, r->slot, none()))
		Py_CLEAR(result);
	return result;
}

/* ---- the type ---- */

static PyObject *turns_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
	PyObject *given[8];
	struct turns *t;
	int i;

	(void)names;
	if (!PyArg_ParseTuple(args, "OOOOOOOO", &given[0], &given[1], &given[2], &given[3],
		    &given[4], &given[5], &given[6], &given[7]))
		return NULL;
	t = (struct turns *)PyType_GenericNew(type, NULL, NULL);
	if (!t)
		return NULL;
	for (i = 0; i < 8; i++)
		Py_INCREF(given[i]);
	t->calls = (struct calls *)given[0];
	t->moe = given[1];
	t->streams = given[2];
	t->round = given[3];
	t->handle = given[4];
	t->entries = given[5];
	t->captured = given[6];
	t->event = given[7];
	t->rounds = PyList_New(NR_TURNS);
	for (i = 0; t->rounds && i < NR_TURNS; i++)
		if (PyList_SetItem(t->rounds, i, none()))
			Py_CLEAR(t->rounds);
	if (t->rounds && PyTuple_Size(t->calls->slots) >= NR_TURNS)
		return (PyObject *)t;
	Py_DECREF(t);
	return PyErr_Occurred()
		       ? NULL
		       : PyErr_Format(PyExc_ValueError, "an exchange of two slots is taken");
}

static int turns_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct turns *t = (struct turns *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(t->moe);
	Py_VISIT(t->streams);
	Py_VISIT(t->rounds);
	for (int i = 0; i < NR_TURNS; i++)
		Py_VISIT(t->kept[i]);
	return 0;
}

static int turns_clear(PyObject *object)
{
	struct turns *t = (struct turns *)object;

	Py_CLEAR(t->moe);
	Py_CLEAR(t->streams);
	Py_CLEAR(t->rounds);
	for (int i = 0; i < NR_TURNS; i++)
		Py_CLEAR(t->kept[i]);
	return 0;
}

static void turns_free(PyObject *object)
{
	struct turns *t = (struct turns *)object;

	PyObject_GC_UnTrack(object);
	turns_clear(object);
	Py_XDECREF(t->calls);
	Py_XDECREF(t->round);
	Py_XDECREF(t->handle);
	Py_XDECREF(t->entries);
	Py_XDECREF(t->captured);
	Py_XDECREF(t->event);
	free_object(object);
}

static PyMemberDef turns_members[] = {
	{"moe", T_OBJECT, offsetof(struct turns, moe), READONLY, NULL},
	{"streams", T_OBJECT, offsetof(struct turns, streams), READONLY, NULL},
	{"entries", T_OBJECT, offsetof(struct turns, entries), READONLY, NULL},
	{"rounds", T_OBJECT, offsetof(struct turns, rounds), READONLY, NULL},
	{"next", T_UINT, offsetof(struct turns, next), 0, "The slot of the next dispatch."},
	{NULL, 0, 0, 0, NULL},
};
static PyMethodDef turns_methods[] = {
	{"dispatch", (PyCFunction)(void (*)(void))turns_dispatch, METH_FASTCALL, NULL},
	{"keep", (PyCFunction)(void (*)(void))turns_keep, METH_FASTCALL, NULL},
	{"combine", (PyCFunction)(void (*)(void))turns_combine, METH_FASTCALL, NULL},
	{NULL, NULL, 0, NULL},
};
static PyType_Slot turns_slots[] = {
	{Py_tp_new, turns_new},
	{Py_tp_dealloc, turns_free},
	{Py_tp_traverse, turns_traverse},
	{Py_tp_clear, turns_clear},
	{Py_tp_members, turns_members},
	{Py_tp_methods, turns_methods},
	{0, NULL},
};
PyType_Spec turns_spec = {
	"tern_ep._calls.Turns",
	sizeof(struct turns),
	0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	turns_slots,
};
