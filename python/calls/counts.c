// SPDX-License-Identifier: Apache-2.0
/*
 * How many rows go where: counted and compared on the CPU, and told by all ranks to all, through an
 * exchange of bytes whose slot has its arguments already: x of nr_tokens rows, each of which takes
 * a part of what is told, and ids that send one to every rank.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "native.h"

/* ---- telling --------------------------------------------------------------------------------- */

/* bytes of each rank, one behind the other, into found; without the interpreter's lock. */
static int pass_on(struct tern_moe *moe, struct slot *slot, const uint8_t *mine, size_t bytes,
	uint32_t nr_ranks, uint8_t *found)
{
	size_t room = slot->dispatch.x_stride;
	uint8_t *x = (uint8_t *)(uintptr_t)slot->dispatch.x;

	for (size_t begin = 0, nr; begin < bytes; begin += nr) {
		int code;

		nr = bytes - begin < room ? bytes - begin : room;
		for (uint32_t row = 0; row < slot->dispatch.nr_tokens; row++)
			memcpy(x + row * room, mine + begin, nr);
		code = library.dispatch(moe, &slot->dispatch, &slot->received);
		if (code)
			return code;
		for (uint32_t rank = 0; rank < nr_ranks && rank < slot->received.nr_rows; rank++)
			memcpy(found + rank * bytes + begin,
				(const uint8_t *)slot->received.x + rank * room, nr);
		code = library.release(moe, slot->number);
		if (code)
			return code;
	}
	return 0;
}

/* A new bytes object. */
static PyObject *gather(
	struct calls *calls, PyObject *moe, uint32_t nr_ranks, const void *mine, size_t bytes)
{
	struct slot *slot = (struct slot *)PyTuple_GetItem(calls->slots, 0);
	struct tern_moe *native = slot ? moe_of(calls, moe) : NULL;
	PyObject *made =
		native ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(bytes * nr_ranks)) : NULL;
	uint8_t *found = made ? (uint8_t *)PyBytes_AsString(made) : NULL;
	int code;

	if (!found || enter(calls->busy)) {
		Py_XDECREF(made);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS;
	code = pass_on(native, slot, mine, bytes, nr_ranks, found);
	Py_END_ALLOW_THREADS;
	slot->turn++;
	code = check(moe, code);
	calls->busy->inside = false;
	if (code)
		Py_CLEAR(made);
	return made;
}

/* gather(exchange, nr_ranks, bytes): of all ranks, as many of each. */
PyObject *calls_gather(PyObject *calls, PyObject *const *args, Py_ssize_t nr)
{
	unsigned long nr_ranks;

	if (counted(nr, 3))
		return NULL;
	nr_ranks = PyLong_AsUnsignedLong(args[1]);
	if (PyErr_Occurred())
		return NULL;
	if (!PyBytes_Check(args[2]))
		return PyErr_Format(PyExc_TypeError, "bytes are taken");
	return gather((struct calls *)calls, args[0], (uint32_t)nr_ranks, PyBytes_AsString(args[2]),
		(size_t)PyBytes_Size(args[2]));
}

/* What each rank tells: its tokens, its held slots, [R] tokens for each rank, [E] routes to each
 * expert. */
enum {
	TOLD_TOKENS,
	TOLD_HELD,
	TOLD_COUNTS
};

struct sums {
	int64_t most, capacity, mine; /* tokens of a rank; rows that one receives; and this one */
	int32_t held;
};

static struct sums add_up(const int32_t *told, uint32_t nr_ranks, uint32_t rank, size_t words)
{
	struct sums s = {0, 0, 0, 0};

	for (uint32_t to = 0; to < nr_ranks; to++) {
		int64_t rows = 0;

		for (uint32_t from = 0; from < nr_ranks; from++)
			rows += told[from * words + TOLD_COUNTS + to];
		s.capacity = rows > s.capacity ? rows : s.capacity;
		s.mine = to == rank ? rows : s.mine;
	}
	for (uint32_t from = 0; from < nr_ranks; from++) {
		s.most = told[from * words] > s.most ? told[from * words] : s.most;
		s.held |= told[from * words + TOLD_HELD];
	}
	return s;
}

/* Routes to each of this rank's experts, rounded up. */
static PyObject *experts_of(const int32_t *told, uint32_t nr_ranks, uint32_t rank, size_t words,
	uint32_t nr_experts, int64_t alignment)
{
	uint32_t nr_local = nr_experts / nr_ranks;
	size_t first = TOLD_COUNTS + nr_ranks + (size_t)rank * nr_local;
	PyObject *list = PyList_New(nr_local), *number;

	for (uint32_t local = 0; list && local < nr_local; local++) {
		int64_t routes = 0;

		for (uint32_t from = 0; from < nr_ranks; from++)
			routes += told[from * words + first + local];
		number = PyLong_FromLongLong((routes + alignment - 1) / alignment * alignment);
		if (number && PyList_SetItem(list, local, number) == 0)
			continue;
		Py_CLEAR(list);
	}
	return list;
}

/* tell(exchange, nr_ranks, rank, nr_tokens, held, rank_tokens, expert_routes, nr_experts,
 * alignment), two addresses of 32-bit counts on the host: (most tokens of a rank, most rows that a
 * rank receives, rows that this one receives, a list of routes to its experts, slots that anybody
 * holds, all that was told). */
PyObject *calls_tell(PyObject *calls, PyObject *const *args, Py_ssize_t nr)
{
	unsigned long a[9] = {0};
	PyObject *told, *list;
	const int32_t *all;
	int32_t *mine;
	struct sums s;
	size_t words;

	if (counted(nr, 9))
		return NULL;
	for (int i = 1; i < 9; i++)
		a[i] = PyLong_AsUnsignedLong(args[i]);
	if (PyErr_Occurred())
		return NULL;
	words = TOLD_COUNTS + a[1] + a[7];
	mine = malloc(words * sizeof(*mine));
	if (!mine)
		return PyErr_NoMemory();
	mine[TOLD_TOKENS] = (int32_t)a[3];
	mine[TOLD_HELD] = (int32_t)a[4];
	memcpy(mine + TOLD_COUNTS, (const void *)a[5], a[1] * sizeof(*mine));
	memcpy(mine + TOLD_COUNTS + a[1], (const void *)a[6], a[7] * sizeof(*mine));
	told = gather((struct calls *)calls, args[0], (uint32_t)a[1], mine, words * sizeof(*mine));
	free(mine);
	if (!told)
		return NULL;
	all = (const int32_t *)(const void *)PyBytes_AsString(told);
	s = add_up(all, (uint32_t)a[1], (uint32_t)a[2], words);
	list = experts_of(
		all, (uint32_t)a[1], (uint32_t)a[2], words, (uint32_t)a[7], (int64_t)a[8]);
	if (!list) {
		Py_DECREF(told);
		return NULL;
	}
	return Py_BuildValue("(LLLNiN)", (long long)s.most, (long long)s.capacity,
		(long long)s.mine, list, (int)s.held, told);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* ids, nr_tokens, topk, nr_ranks, nr_experts; then the arrays. */
static int routes_of(PyObject *const *args, struct tern_routes *r, void *arrays[3])
{
	unsigned long a[8];

	for (int i = 0; i < 8; i++)
		a[i] = PyLong_AsUnsignedLong(args[i]);
	if (PyErr_Occurred())
		return -1;
	*r = (struct tern_routes){.size = sizeof(*r),
		.topk_ids = (const void *)a[0],
		.topk_ids_bits = 64,
		.nr_tokens = (uint32_t)a[1],
		.topk = (uint32_t)a[2],
		.nr_ranks = (uint32_t)a[3],
		.nr_experts = (uint32_t)a[4]};
	for (int i = 0; i < 3; i++)
		arrays[i] = (void *)a[5 + i];
	return 0;
}

/* Of the CPU. */
static bool ids_are_experts(const struct tern_routes *r)
{
	const int64_t *ids = r->topk_ids;
	bool good = true;

	for (uint64_t i = 0; i < (uint64_t)r->nr_tokens * r->topk; i++)
		good &= ids[i] >= -1 && ids[i] < r->nr_experts;
	return good;
}

enum {
	NO_EXPERTS = 1, /* some ids */
	OTHER_RANK_TOKENS,
	OTHER_EXPERT_ROUTES,
	OTHER_IN_RANK
};

/* count_routes(ids, nr_tokens, topk, nr_ranks, nr_experts, rank_tokens, expert_routes, in_rank,
 * device, stream, told, told_as), of addresses: the library's code, or NO_EXPERTS. With told, which
 * may be 0, a word more lies behind expert_routes. */
PyObject *count_routes(PyObject *module, PyObject *const *args, Py_ssize_t nr)
{
	struct tern_routes r;
	void *arrays[3];
	int code = 0;

	(void)module;
	if (counted(nr, 12) || routes_of(args, &r, arrays))
		return NULL;
	r.rank_tokens = arrays[0];
	r.expert_routes = arrays[1];
	r.in_rank = arrays[2];
	r.device = (uint32_t)PyLong_AsUnsignedLong(args[8]);
	r.stream = PyLong_AsVoidPtr(args[9]);
	r.told = PyLong_AsVoidPtr(args[10]);
	r.told_as = (uint32_t)PyLong_AsUnsignedLongMask(args[11]);
	r.finished = r.told ? r.expert_routes + r.nr_experts : NULL;
	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (r.device == TERN_DEVICE_CPU && !ids_are_experts(&r))
		code = NO_EXPERTS;
	else
		code = library.count_routes(&r);
	Py_END_ALLOW_THREADS;
	return PyLong_FromLong(code);
}

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Whether a word of the host becomes this one in time. */
static bool becomes(const uint32_t *word, uint32_t value, int64_t us)
{
	int64_t begun = now_us();

	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
		if (now_us() - begun > us)
			return false;
	return true;
}

/* word_becomes(address, value, us) */
PyObject *word_becomes(PyObject *module, PyObject *const *args, Py_ssize_t nr)
{
	const uint32_t *word;
	unsigned long value;
	long long us;
	bool there;

	(void)module;
	if (counted(nr, 3))
		return NULL;
	word = PyLong_AsVoidPtr(args[0]);
	value = PyLong_AsUnsignedLongMask(args[1]);
	us = PyLong_AsLongLong(args[2]);
	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	there = becomes(word, (uint32_t)value, us);
	Py_END_ALLOW_THREADS;
	return PyBool_FromLong(there);
}

static int compare(struct tern_routes *r, void *const arrays[3])
{
	size_t ranks = r->nr_ranks * sizeof(uint32_t), experts = r->nr_experts * sizeof(uint32_t),
	       there = (size_t)r->nr_tokens * r->nr_ranks;
	uint8_t *room = malloc(ranks + experts + there);
	int code;

	if (!room)
		return TERN_ERR_NOMEM;
	r->rank_tokens = (uint32_t *)(void *)room;
	r->expert_routes = (uint32_t *)(void *)(room + ranks);
	r->in_rank = room + ranks + experts;
	code = ids_are_experts(r) ? library.count_routes(r) : NO_EXPERTS;
	if (!code && memcmp(r->rank_tokens, arrays[0], ranks))
		code = OTHER_RANK_TOKENS;
	if (!code && memcmp(r->expert_routes, arrays[1], experts))
		code = OTHER_EXPERT_ROUTES;
	if (!code && there && memcmp(r->in_rank, arrays[2], there))
		code = OTHER_IN_RANK;
	free(room);
	return code;
}

/* routes_agree(ids, nr_tokens, topk, nr_ranks, nr_experts, rank_tokens, expert_routes, in_rank),
 * addresses on the CPU: 0, the library's code, or what is not of these ids. */
PyObject *routes_agree(PyObject *module, PyObject *const *args, Py_ssize_t nr)
{
	struct tern_routes r;
	void *arrays[3];
	int code;

	(void)module;
	if (counted(nr, 8) || routes_of(args, &r, arrays))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	code = compare(&r, arrays);
	Py_END_ALLOW_THREADS;
	return PyLong_FromLong(code);
}
