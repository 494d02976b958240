// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of tern_ep.Exchange, on CPython's limited API: one object for every Python from 3.10
 * on.
 *
 * An array is looked at by Python once. What decides whether it is accepted, all but its address,
 * is noted (struct seen), and who brings the same again is let through here. So no rule and no
 * refusal of arrays is written twice: they are Python's. All of it runs under the interpreter's
 * lock, which is let go of while the library waits.
 */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdbool.h>
#include <stdint.h>

#include "dlpack.h"
#include "tern.h"
#include "tern_layer.h"

enum {
	MAX_LOOK = 6,
	MAX_DIMS = 3
};

// How arrays of one kind are read.
struct reader {
	PyObject_HEAD PyObject *fast; // arrays of exactly this type are read; others Python looks
				      // at each time
	PyObject *form, *address;     // by Python's functions, unless
	const struct dlpack_exchange *exchange; // by a framework's
	bool numpy;                             // or by numpy's
	int device; // CUDA device whose current stream is asked for; -1: none
};

struct seen {
	bool given;
	int8_t nr_dims;
	uint32_t flags; // numpy's, or the device
	uint64_t dtype; // DLPack's, or the address of numpy's object, which is held
	int64_t shape[MAX_DIMS], strides[MAX_DIMS];
	PyObject *held;
};

// Arrays that Python has accepted together, and numbers on which that depended.
struct look {
	bool valid;
	int nr;
	struct seen seen[MAX_LOOK];
	uint64_t key[3];
};

enum field {
	FIELD_X,
	FIELD_SCALES,
	FIELD_COUNTS,
	FIELD_OFFSETS,
	FIELD_ROWS,
	FIELD_IDS,
	FIELD_WEIGHTS,
	FIELD_WEIGHT,
	NR_FIELDS
};

// The library's memory as an array, of at least nr entries.
struct shown {
	PyObject *array;
	const void *address;
	uint64_t nr;
};

// What has to be remembered of a slot, so that no array is too small for what the library does with
// it; and its arguments.
struct slot {
	PyObject_HEAD struct reader *reader;
	uint32_t number;
	uint32_t nr_tokens;
	unsigned long long extent;
	unsigned long long turn;   // rows of earlier turns were given back
	unsigned long long stream; // the library's default
	unsigned long long y_rows, out_rows, out_stride;
	PyObject *beside; // what the last combine took along, which lives until it has ended
	bool wanted;      // something, by the last dispatch
	struct tern_dispatch dispatch;
	struct tern_received received;
	struct tern_combine combine;
	struct look look_dispatch, look_into, look_wanted, look_y, look_out, look_beside;
	struct shown shown[NR_FIELDS];
};

struct one_at_a_time {
	PyObject_HEAD PyObject *what;
	bool inside;
};

struct calls {
	PyObject_HEAD struct reader *reader;
	struct one_at_a_time *busy;
	PyObject *slots;    // a tuple
	PyObject *received; // the class
	struct tern_moe *moe;
	unsigned long forks; // when it was made
	bool on_device;
};

// A field of struct tern_received, as rows of a type.
struct lent_field {
	Py_ssize_t at; // its pointer's offset there
	int64_t width;
	uint8_t code, bits; // DLPack's
};

enum {
	MAX_LENT_FIELDS = 3,
	MAX_LENT_SLOTS = 32
};

struct lent {
	PyObject_HEAD struct reader *reader;
	PyObject *owner;
	int device_type, device, nr_fields;
	struct lent_field fields[MAX_LENT_FIELDS];
	unsigned int nr_held[MAX_LENT_SLOTS]; // tensors that somebody has
};

struct received {
	PyObject_HEAD PyObject *moe, *into;
	struct slot *slot;
	uint32_t number, version;
	unsigned long long nr_rows, extent, turn;
	PyObject *shown[NR_FIELDS];
};

// The functions of the libtern that Python has loaded.
struct library {
	int (*dispatch)(struct tern_moe *, const struct tern_dispatch *, struct tern_received *);
	int (*dispatch_send)(struct tern_moe *, const struct tern_dispatch *);
	int (*dispatch_recv)(struct tern_moe *, uint32_t, struct tern_received *);
	int (*combine)(struct tern_moe *, const struct tern_combine *, void *, size_t);
	int (*combine_send)(struct tern_moe *, const struct tern_combine *);
	int (*combine_recv)(struct tern_moe *, uint32_t, void *, size_t);
	int (*release)(struct tern_moe *, uint32_t);
	int (*set_stream)(struct tern_moe *, uint32_t, void *);
	int (*plan_create_beside)(
		struct tern_moe *, uint32_t, const struct tern_plan_beside *, uint64_t *);
	int (*plan_destroy)(struct tern_moe *, uint64_t);
	int (*count_routes)(const struct tern_routes *);
	int (*layer_run)(struct tern_layer *, const struct tern_dispatch *, void *, size_t);
};

extern struct library library;
extern unsigned long nr_forks;
extern PyType_Spec reader_spec, slot_spec, look_spec, one_at_a_time_spec, calls_spec, received_spec,
	lent_spec, round_spec, turns_spec;

/* array.c: 1: as before, and addresses are those of now. 0: somebody has to look. -1: an exception.
 */
int look_again(struct reader *reader, struct look *look, PyObject *const *arrays, int nr,
	const uint64_t *key, void **addresses);
int look_like(struct reader *reader, const struct look *look, int which, PyObject *array); // of one
int look_keep(struct reader *reader, struct look *look, PyObject *const *arrays, int nr,
	const uint64_t *key);
void look_clear(struct look *look);

/* args.c: 0, or an exception and -1. looker: the exchange, or a plan, whose tokens are key. out: a
 * new one for None; the caller's reference. */
int set_dispatch(
	struct slot *slot, PyObject *looker, PyObject *const arrays[4], const uint64_t *key);
int set_into(struct slot *slot, PyObject *moe, PyObject *const arrays[2]);
int set_wanted(struct slot *slot, PyObject *moe, PyObject *want);
int set_y(struct slot *slot, PyObject *moe, PyObject *y);
int set_beside(struct slot *slot, PyObject *moe, PyObject *unweighted, PyObject *const arrays[3]);
int set_out(struct slot *slot, PyObject *moe, PyObject **out, void **at);
void beside_ended(struct slot *slot);

/* calls.c. What comes between call_begin and call_end, by which everything returns, has the calls
 * for itself. */
int call_begin(struct calls *calls);
PyObject *call_end(struct calls *calls, PyObject *result);
struct tern_moe *call_use(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *stream);
struct tern_moe *moe_of(struct calls *calls, PyObject *moe);
struct slot *slot_of(struct calls *calls, PyObject *number);
int check(PyObject *moe, int code);
int counted(Py_ssize_t nr, Py_ssize_t want);
int number_of(PyObject *object, uint64_t *value);

/* halves.c: of METH_FASTCALL. */
PyObject *calls_dispatch(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_dispatch_for_good(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_dispatch_plan(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_dispatch_send(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_dispatch_recv(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_combine(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_combine_plan(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_combine_send(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_combine_recv(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
/* kept begins with into_x, into_scales and want. */
PyObject *dispatch_received(struct calls *calls, PyObject *moe, struct slot *slot,
	PyObject *const arrays[4], PyObject *kept);
PyObject *combine_out(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *y,
	PyObject *topk_weights, PyObject *out);

/* counts.c: of METH_FASTCALL. */
PyObject *calls_gather(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *calls_tell(PyObject *calls, PyObject *const *args, Py_ssize_t nr);
PyObject *count_routes(PyObject *module, PyObject *const *args, Py_ssize_t nr);
PyObject *word_becomes(PyObject *module, PyObject *const *args, Py_ssize_t nr);
PyObject *routes_agree(PyObject *module, PyObject *const *args, Py_ssize_t nr);

/* received.c */
PyObject *received_new(struct calls *calls, PyObject *moe, struct slot *slot, PyObject *into);

/* module.c: raises an exception of tern_ep.errors, and returns -1. */
int refuse(const char *kind, const char *format, ...);
int enter(struct one_at_a_time *busy);
int take(PyObject *result); // gives it back; -1: there was none
void free_object(void *object);
