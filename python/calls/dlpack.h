// SPDX-License-Identifier: Apache-2.0
/*
 * What is used of DLPack 1.3: a tensor, and the table of functions by which a framework shows its
 * own, as capsule "dlpack_exchange_api" at the type's __dlpack_c_exchange_api__.
 */
#pragma once
#include <stdint.h>

enum {
	DLPACK_CPU = 1,
	DLPACK_CUDA = 2,
	DLPACK_MAJOR = 1
};

struct dlpack_tensor {
	void *data;
	int32_t device_type;
	int32_t device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape;
	int64_t *strides; // in elements
	uint64_t byte_offset;
};

// One that is handed over: who has taken it calls deleter, from any thread.
struct dlpack_managed {
	struct {
		uint32_t major, minor;
	} version;
	void *context;
	void (*deleter)(struct dlpack_managed *tensor);
	uint64_t flags;
	struct dlpack_tensor tensor;
};

struct dlpack_exchange {
	struct {
		uint32_t major, minor;
	} version;
	struct dlpack_exchange *older; // of another major version
	void *allocate, *export_owned;
	int (*take)(struct dlpack_managed *tensor, void **object); // -1: still the caller's
	int (*look)(void *object, struct dlpack_tensor *tensor); // holds while the object does; may
								 // be NULL
	int (*stream)(int32_t device_type, int32_t device_id, void **stream);
};
