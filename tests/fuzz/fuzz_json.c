/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: the JSON reader refuses them or describes values that can all be read. */
#include "examples/generate/json.h"

#include <stdlib.h>
#include <string.h>

static void read_all(const struct json *json)
{
	for (uint32_t i = 0; i < json->nr_values; i++) {
		const struct json_value *v = &json->values[i];
		char text[32];
		uint64_t number;
		double real;

		if (v->begin > v->end || v->next <= i || v->next > json->nr_values)
			abort();
		if (json_string(json, i, text, sizeof(text)) && !json_string_is(json, i, text))
			abort();
		json_u64(json, i, &number);
		json_double(json, i, &real);
		json_member(json, i, "dtype");
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fault fault;
	struct json json;
	char *text = malloc(size ? size : 1); /* exactly as long, so that reading beyond is seen */

	if (!text)
		return 0;
	memcpy(text, data, size);
	if (!json_parse(text, size, &json, &fault)) {
		read_all(&json);
		json_free(&json);
	}
	free(text);
	return 0;
}
