/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files, as far as traces of routing need them: versions 1 and 2, little-endian int32,
 * int64 and float32, in C order, one or two dimensions. All else is refused with a reason. */
#ifndef TERN_TESTKIT_NPY_H
#define TERN_TESTKIT_NPY_H

#include "testkit/reason.h"

#include <stddef.h>
#include <stdint.h>

enum npy_type {
	NPY_INT32 = 1,
	NPY_INT64 = 2,
	NPY_FLOAT32 = 3
};

struct npy {
	enum npy_type type;
	uint32_t nr_dims; /* 1 or 2 */
	uint64_t shape[2];
	const void *data; /* within the file's bytes; not aligned */
	size_t data_bytes;
};

/* Describes the file in bytes[size], which must outlive *npy. *npy is set only on success. */
int npy_parse(const void *bytes, size_t size, struct npy *npy, struct reason *why);

/* Reads a whole file; *bytes is malloc'd, for the caller to free. */
int npy_read(const char *path, void **bytes, struct npy *npy, struct reason *why);

/* Writes version 1. */
int npy_write(const char *path, const struct npy *npy, struct reason *why);

size_t npy_item_bytes(enum npy_type type);

#endif
