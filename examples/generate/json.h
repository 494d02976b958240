/* SPDX-License-Identifier: Apache-2.0 */
/* A strict JSON reader (RFC 8259), for config.json and the header of safetensors files.
 *
 * The text is checked completely (numbers, escapes, surrogates, UTF-8, nothing after the value) and
 *becomes one flat array of values in the order of the text. A value's `next` is the index after
 *everything within it, so
 *
 *	{"a": [1, 2], "b": 3}   ->   0 object   1 "a"   2 array   3 1   4 2   5 "b"   6 3
 *	                             next 7            next 5
 *
 * and walking over members needs no pointers. Two passes over the text: the first counts, so there
 *is one allocation.
 */
#ifndef TERN_EXAMPLES_GENERATE_JSON_H
#define TERN_EXAMPLES_GENERATE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

#define JSON_MAX_DEPTH 32

enum json_type {
	JSON_NULL,
	JSON_FALSE,
	JSON_TRUE,
	JSON_NUMBER,
	JSON_STRING,
	JSON_ARRAY,
	JSON_OBJECT
};

struct json_value {
	enum json_type type;
	uint32_t begin, end; /* in the text; of a string, what is between the quotes */
	uint32_t next;
	uint32_t nr_children; /* of an array its elements, of an object its members */
};

struct json {
	const char *text; /* the caller's, must outlive this */
	struct json_value *values;
	uint32_t nr_values;
};

/* *json is set only on success, and freed by json_free. */
int json_parse(const char *text, size_t text_bytes, struct json *json, struct fault *fault);
void json_free(struct json *json);

/* The index of the value of this key in an object; 0, which no member can have, if there is none.
 */
uint32_t json_member(const struct json *json, uint32_t object, const char *key);

bool json_string_is(const struct json *json, uint32_t value, const char *text);

/* Decodes a string into out, closed by a 0. False if it does not fit, holds a 0 byte, or is no
 * string. */
bool json_string(const struct json *json, uint32_t value, char *out, size_t out_bytes);

/* A number without sign, fraction or exponent that fits. */
bool json_u64(const struct json *json, uint32_t value, uint64_t *out);
bool json_double(const struct json *json, uint32_t value, double *out);

#endif
