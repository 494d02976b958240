/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the safetensors reader refuses them or describes tensors that lie within them. */
#include "examples/generate/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void read_all(const struct safetensors *file, const uint8_t *bytes, size_t size)
{
	for (uint32_t i = 0; i < file->nr_tensors; i++) {
		const struct tensor *t = &file->tensors[i];
		const uint8_t *data = t->data;
		float value;

		if (data < bytes || data > bytes + size ||
			t->nr_bytes > (size_t)(bytes + size - data))
			abort();
		if (safetensors_find(file, t->name) != t)
			abort();
		if (t->nr_elements)
			tensor_floats(t, t->nr_elements - 1, 1, &value);
	}
}

/* Inputs starting with a brace are taken as a header, so that the fuzzer need not guess its length.
 */
static void frame(const uint8_t *data, size_t size, uint8_t *file)
{
	size_t header = 0;

	memcpy(file + 8, data, size);
	while (header < size && data[header] != 0xff)
		header++;
	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)((uint64_t)header >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t file_bytes = size && data[0] == '{' ? size + 8 : size;
	struct safetensors file;
	struct fault fault;
	uint8_t *bytes = malloc(file_bytes ? file_bytes : 1);

	if (!bytes)
		return 0;
	if (file_bytes > size)
		frame(data, size, bytes);
	else
		memcpy(bytes, data, size);
	if (!safetensors_parse(bytes, file_bytes, &file, &fault)) {
		read_all(&file, bytes, file_bytes);
		safetensors_free(&file);
	}
	free(bytes);
	return 0;
}
