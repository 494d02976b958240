/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the safetensors format from memory:
 *
 *	| header bytes, u64 LE | JSON header | data                                   |
 *	                         {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * Everything is checked before any of it is used: a tensor's extent is exactly its shape times its
 *element, and the extents tile the data without holes or overlap, as the format demands.
 */
#ifndef TERN_EXAMPLES_GENERATE_SAFETENSORS_H
#define TERN_EXAMPLES_GENERATE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

#define SAFETENSORS_MAX_DIMS 8
#define SAFETENSORS_MAX_NAME 256
#define SAFETENSORS_MAX_HEADER 100000000u /* bytes; the limit of the reference implementation */

enum tensor_dtype {
	TENSOR_U8,
	TENSOR_I32,
	TENSOR_I64,
	TENSOR_BF16,
	TENSOR_F16,
	TENSOR_F32,
	TENSOR_OTHER /* well-formed, but of a type that this program has no use for */
};

struct tensor {
	char name[SAFETENSORS_MAX_NAME];
	enum tensor_dtype dtype;
	uint32_t nr_dims;
	uint64_t shape[SAFETENSORS_MAX_DIMS];
	uint64_t nr_elements;
	uint64_t begin; /* offset within the data */
	size_t nr_bytes;
	const void *data; /* within the file's bytes; not aligned */
};

struct safetensors {
	struct tensor *tensors; /* by name */
	uint32_t nr_tensors;
};

/* Describes the file in bytes[size], which must outlive *file. *file is set only on success. */
int safetensors_parse(
	const void *bytes, size_t size, struct safetensors *file, struct fault *fault);
void safetensors_free(struct safetensors *file);

/* NULL if there is none of this name. */
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);

/* Elements [first, first + nr) of a BF16, F16 or F32 tensor as floats. -1 for other types. */
int tensor_floats(const struct tensor *tensor, uint64_t first, uint64_t nr, float *out);

#endif
