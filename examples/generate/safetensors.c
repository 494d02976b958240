/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "json.h"

#define LENGTH_BYTES 8

/* name, object, and in it three names, the dtype, two arrays and two offsets: the fewest JSON
 * values that describe a tensor, so that a header which describes none cannot ask for much memory.
 */
#define VALUES_OF_TENSOR 10

static const struct {
	const char *name;
	enum tensor_dtype dtype;
	uint32_t bytes;
} dtypes[] = {
	{"BF16", TENSOR_BF16, 2},
	{"F16", TENSOR_F16, 2},
	{"F32", TENSOR_F32, 4},
	{"U8", TENSOR_U8, 1},
	{"I32", TENSOR_I32, 4},
	{"I64", TENSOR_I64, 8},
	{"BOOL", TENSOR_OTHER, 1},
	{"I8", TENSOR_OTHER, 1},
	{"F8_E4M3", TENSOR_OTHER, 1},
	{"F8_E5M2", TENSOR_OTHER, 1},
	{"F8_E8M0", TENSOR_OTHER, 1},
	{"I16", TENSOR_OTHER, 2},
	{"U16", TENSOR_OTHER, 2},
	{"U32", TENSOR_OTHER, 4},
	{"U64", TENSOR_OTHER, 8},
	{"F64", TENSOR_OTHER, 8},
};

static uint64_t read_u64(const uint8_t *bytes)
{
	uint64_t value = 0;

	for (int i = LENGTH_BYTES - 1; i >= 0; i--)
		value = value << 8 | bytes[i];
	return value;
}

/* The element's bytes; 0 for a dtype that the format does not have. */
static uint32_t read_dtype(const struct json *json, uint32_t value, struct tensor *tensor)
{
	for (size_t i = 0; value && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (json_string_is(json, value, dtypes[i].name)) {
			tensor->dtype = dtypes[i].dtype;
			return dtypes[i].bytes;
		}
	}
	return 0;
}

static int read_shape(const struct json *json, uint32_t value, struct tensor *tensor)
{
	if (!value || json->values[value].type != JSON_ARRAY ||
		json->values[value].nr_children > SAFETENSORS_MAX_DIMS)
		return -1;
	tensor->nr_dims = json->values[value].nr_children;
	tensor->nr_elements = 1;
	for (uint32_t d = 0; d < tensor->nr_dims; d++) {
		uint64_t *size = &tensor->shape[d];

		if (!json_u64(json, value + 1 + d, size) ||
			__builtin_mul_overflow(tensor->nr_elements, *size, &tensor->nr_elements))
			return -1;
	}
	return 0;
}

static int read_extent(const struct json *json, uint32_t value, uint64_t *begin, uint64_t *end)
{
	const struct json_value *v = &json->values[value];

	if (!value || v->type != JSON_ARRAY || v->nr_children != 2)
		return -1;
	return json_u64(json, value + 1, begin) && json_u64(json, value + 2, end) ? 0 : -1;
}

static int read_tensor(const struct json *json, uint32_t name, const uint8_t *data,
	uint64_t data_bytes, struct tensor *tensor, struct fault *fault)
{
	uint32_t object = name + 1, element_bytes;
	uint64_t end, nr_bytes;

	if (!json_string(json, name, tensor->name, sizeof(tensor->name)))
		return fault_say(
			fault, "safetensors: a tensor's name is too long or holds a 0 byte");
	element_bytes = read_dtype(json, json_member(json, object, "dtype"), tensor);
	if (!element_bytes)
		return fault_say(fault, "safetensors: %.80s has no known dtype", tensor->name);
	if (read_shape(json, json_member(json, object, "shape"), tensor))
		return fault_say(fault, "safetensors: %.80s has no usable shape", tensor->name);
	if (read_extent(json, json_member(json, object, "data_offsets"), &tensor->begin, &end))
		return fault_say(
			fault, "safetensors: %.80s has no usable data_offsets", tensor->name);
	if (tensor->begin > end || end > data_bytes)
		return fault_say(
			fault, "safetensors: %.80s lies outside of the file's data", tensor->name);
	if (__builtin_mul_overflow(tensor->nr_elements, element_bytes, &nr_bytes) ||
		nr_bytes != end - tensor->begin)
		return fault_say(fault, "safetensors: %.80s has another shape than its extent",
			tensor->name);
	tensor->nr_bytes = (size_t)nr_bytes;
	tensor->data = data + tensor->begin;
	return 0;
}

static int read_tensors(const struct json *json, const uint8_t *data, uint64_t data_bytes,
	struct safetensors *file, struct fault *fault)
{
	if (json->values[0].type != JSON_OBJECT)
		return fault_say(fault, "safetensors: the header is no JSON object");
	for (uint32_t name = 1; name < json->nr_values; name = json->values[name + 1].next) {
		if (json_string_is(json, name, "__metadata__"))
			continue;
		if (json->values[name + 1].next - name < VALUES_OF_TENSOR)
			return fault_say(
				fault, "safetensors: a tensor lacks dtype, shape or data_offsets");
		if (read_tensor(
			    json, name, data, data_bytes, &file->tensors[file->nr_tensors], fault))
			return -1;
		file->nr_tensors++;
	}
	return 0;
}

/* Empty tensors lie anywhere; of two at one place they come first, so that the other closes the
 * gap. */
static int by_place(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->nr_bytes > y->nr_bytes) - (x->nr_bytes < y->nr_bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int check_tiling(struct safetensors *file, uint64_t data_bytes, struct fault *fault)
{
	uint64_t at = 0;

	qsort(file->tensors, file->nr_tensors, sizeof(*file->tensors), by_place);
	for (uint32_t i = 0; i < file->nr_tensors; i++) {
		if (file->tensors[i].begin != at)
			return fault_say(fault, "safetensors: a hole or an overlap before %.80s",
				file->tensors[i].name);
		at += file->tensors[i].nr_bytes;
	}
	if (at != data_bytes)
		return fault_say(fault, "safetensors: %llu bytes of data belong to no tensor",
			(unsigned long long)(data_bytes - at));
	return 0;
}

static int check_names(struct safetensors *file, struct fault *fault)
{
	qsort(file->tensors, file->nr_tensors, sizeof(*file->tensors), by_name);
	for (uint32_t i = 1; i < file->nr_tensors; i++)
		if (!by_name(&file->tensors[i - 1], &file->tensors[i]))
			return fault_say(fault, "safetensors: two tensors are called %.80s",
				file->tensors[i].name);
	return 0;
}

static int parse_header(const struct json *json, const uint8_t *data, uint64_t data_bytes,
	struct safetensors *file, struct fault *fault)
{
	struct safetensors found = {
		.tensors = calloc(json->nr_values / VALUES_OF_TENSOR + 1, sizeof(*found.tensors))};

	if (!found.tensors)
		return fault_say(fault, "safetensors: no memory for %u tensors",
			json->values[0].nr_children);
	if (read_tensors(json, data, data_bytes, &found, fault) ||
		check_tiling(&found, data_bytes, fault) || check_names(&found, fault)) {
		free(found.tensors);
		return -1;
	}
	*file = found;
	return 0;
}

int safetensors_parse(const void *bytes, size_t size, struct safetensors *file, struct fault *fault)
{
	uint64_t header_bytes;
	struct json json;
	int rc;

	if (size < LENGTH_BYTES)
		return fault_say(fault, "safetensors: %zu bytes are no file", size);
	header_bytes = read_u64(bytes);
	if (header_bytes > SAFETENSORS_MAX_HEADER || header_bytes > size - LENGTH_BYTES)
		return fault_say(fault, "safetensors: a header of %llu bytes in a file of %zu",
			(unsigned long long)header_bytes, size);
	if (json_parse((const char *)bytes + LENGTH_BYTES, (size_t)header_bytes, &json, fault))
		return -1;
	rc = parse_header(&json, (const uint8_t *)bytes + LENGTH_BYTES + header_bytes,
		size - LENGTH_BYTES - header_bytes, file, fault);
	json_free(&json);
	return rc;
}

void safetensors_free(struct safetensors *file)
{
	free(file->tensors);
	*file = (struct safetensors){0};
}

const struct tensor *safetensors_find(const struct safetensors *file, const char *name)
{
	uint32_t low = 0, high = file->nr_tensors;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(name, file->tensors[middle].name);

		if (!order)
			return &file->tensors[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

static float bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float half_float(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fffu;
	float magnitude = rest >= 0x7c00 ? bits_float(0x7f800000u | rest << 13)
					 : bits_float(rest << 13) * 0x1p112f;

	return sign ? -magnitude : magnitude;
}

int tensor_floats(const struct tensor *tensor, uint64_t first, uint64_t nr, float *out)
{
	const uint8_t *data = tensor->data;

	if (first > tensor->nr_elements || nr > tensor->nr_elements - first)
		return -1;
	if (tensor->dtype == TENSOR_F32) {
		memcpy(out, data + 4 * first, 4 * nr);
		return 0;
	}
	if (tensor->dtype != TENSOR_BF16 && tensor->dtype != TENSOR_F16)
		return -1;
	for (uint64_t i = 0; i < nr; i++) {
		uint16_t half;

		memcpy(&half, data + 2 * (first + i), sizeof(half));
		out[i] = tensor->dtype == TENSOR_BF16 ? bits_float((uint32_t)half << 16)
						      : half_float(half);
	}
	return 0;
}
