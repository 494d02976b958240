/* SPDX-License-Identifier: Apache-2.0 */
/* clang -fsanitize=fuzzer,address: the .npy reader on any bytes. What it accepts must lie within
 * them. */
#include "testkit/npy.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct reason why;
	struct npy npy;
	const uint8_t *data;
	size_t i;
	unsigned int sum = 0;

	if (npy_parse(bytes, size, &npy, &why))
		return 0;
	data = npy.data;
	for (i = 0; i < npy.data_bytes; i++)
		sum += data[i];
	if (data < bytes || data + npy.data_bytes != bytes + size || npy.nr_dims < 1 ||
		npy.nr_dims > 2 ||
		npy.shape[0] * npy.shape[1] * npy_item_bytes(npy.type) != npy.data_bytes ||
		sum == 1u << 31)
		abort();
	return 0;
}
