/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdlib.h>
#include <string.h>

struct reader {
	const uint8_t *text;
	uint32_t at, end;
	uint32_t depth;
	struct json_value *values; /* NULL while counting */
	uint32_t nr_values;
	const char *wrong; /* why reading stopped */
};

static bool wrong(struct reader *r, const char *why)
{
	if (!r->wrong)
		r->wrong = why;
	return false;
}

/* The next byte, or -1 at the end. */
static int peek(const struct reader *r)
{
	return r->at < r->end ? r->text[r->at] : -1;
}

static bool take(struct reader *r, char c)
{
	if (peek(r) != c)
		return false;
	r->at++;
	return true;
}

static void skip_space(struct reader *r)
{
	int c = peek(r);

	while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
		r->at++;
		c = peek(r);
	}
}

static bool is_digit(int c)
{
	return c >= '0' && c <= '9';
}

static int hex_digit(int c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Four hex digits at text; -1 if they are not there. */
static int32_t hex4(const uint8_t *text, uint32_t left)
{
	int32_t code = 0;

	if (left < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		int digit = hex_digit(text[i]);

		if (digit < 0)
			return -1;
		code = code << 4 | digit;
	}
	return code;
}

/* The code point of the \u escape whose digits start at text; -1 if it is none. *used: bytes from
 * there on. */
static int32_t escaped_code(const uint8_t *text, uint32_t left, uint32_t *used)
{
	int32_t high = hex4(text, left), low;

	*used = 4;
	if (high < 0xd800 || high > 0xdfff)
		return high;
	if (high > 0xdbff || left < 10 || text[4] != '\\' || text[5] != 'u')
		return -1;
	low = hex4(text + 6, left - 6);
	*used = 10;
	return low < 0xdc00 || low > 0xdfff ? -1
					    : 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* Bytes of the UTF-8 sequence at text: 0 if it is broken, overlong, a surrogate or beyond U+10FFFF.
 */
static uint32_t utf8_length(const uint8_t *text, uint32_t left)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	uint32_t length = text[0] < 0x80       ? 1
			  : text[0] >> 5 == 6  ? 2
			  : text[0] >> 4 == 14 ? 3
			  : text[0] >> 3 == 30 ? 4
					       : 0;
	uint32_t code;

	if (length <= 1 || length > left)
		return length > left ? 0 : length;
	code = text[0] & (0x7fu >> length);
	for (uint32_t i = 1; i < length; i++) {
		if (text[i] >> 6 != 2)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	return code < least[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)
		       ? 0
		       : length;
}

/* Behind a backslash. */
static bool skip_escape(struct reader *r)
{
	int c = peek(r);
	uint32_t used;

	if (c < 0 || !strchr("\"\\/bfnrtu", c) || c == 0)
		return wrong(r, "an unknown escape");
	r->at++;
	if (c != 'u')
		return true;
	if (escaped_code(r->text + r->at, r->end - r->at, &used) < 0)
		return wrong(r, "a broken \\u escape");
	r->at += used;
	return true;
}

/* Behind the opening quote; stops behind the closing one. */
static bool skip_string(struct reader *r)
{
	while (r->at < r->end) {
		uint8_t c = r->text[r->at];
		uint32_t length = utf8_length(r->text + r->at, r->end - r->at);

		if (c < 0x20)
			return wrong(r, "a control character in a string");
		if (!length)
			return wrong(r, "a string that is not UTF-8");
		r->at += length;
		if (c == '"')
			return true;
		if (c == '\\' && !skip_escape(r))
			return false;
	}
	return wrong(r, "a string without end");
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool skip_digits(struct reader *r)
{
	uint32_t from = r->at;

	while (is_digit(peek(r)))
		r->at++;
	return r->at > from || wrong(r, "a digit is missing");
}

static bool skip_number(struct reader *r)
{
	take(r, '-');
	if (!take(r, '0') && !skip_digits(r))
		return false;
	if (take(r, '.') && !skip_digits(r))
		return false;
	if (take(r, 'e') || take(r, 'E')) {
		if (!take(r, '+'))
			take(r, '-');
		return skip_digits(r);
	}
	return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool read_value(struct reader *r);

/* Opens a value; what it needs is filled in by close_value once its extent is known. */
static uint32_t open_value(struct reader *r, enum json_type type, uint32_t begin)
{
	if (r->values)
		r->values[r->nr_values] = (struct json_value){.type = type, .begin = begin};
	return r->nr_values++;
}

static bool close_value(struct reader *r, uint32_t value, uint32_t end, uint32_t nr_children)
{
	if (r->values) {
		r->values[value].end = end;
		r->values[value].next = r->nr_values;
		r->values[value].nr_children = nr_children;
	}
	return true;
}

static bool read_string(struct reader *r)
{
	uint32_t value = open_value(r, JSON_STRING, r->at + 1);

	r->at++;
	return skip_string(r) && close_value(r, value, r->at - 1, 0);
}

static bool read_number(struct reader *r)
{
	uint32_t value = open_value(r, JSON_NUMBER, r->at);

	return skip_number(r) && close_value(r, value, r->at, 0);
}

static bool read_word(struct reader *r, const char *word, enum json_type type)
{
	uint32_t length = (uint32_t)strlen(word);
	uint32_t value = open_value(r, type, r->at);

	if (r->end - r->at < length || memcmp(r->text + r->at, word, length))
		return wrong(r, "an unknown word");
	r->at += length;
	return close_value(r, value, r->at, 0);
}

static bool read_member(struct reader *r)
{
	skip_space(r);
	if (peek(r) != '"')
		return wrong(r, "a member without a name");
	if (!read_string(r))
		return false;
	skip_space(r);
	return take(r, ':') ? read_value(r) : wrong(r, "a name without a colon");
}

static bool read_items(
	struct reader *r, char closing, bool (*read_item)(struct reader *), uint32_t *nr_items)
{
	r->at++;
	skip_space(r);
	if (take(r, closing))
		return true;
	for (;;) {
		if (!read_item(r))
			return false;
		++*nr_items;
		skip_space(r);
		if (take(r, closing))
			return true;
		if (!take(r, ','))
			return wrong(r, closing == '}' ? "a comma or } is missing"
						       : "a comma or ] is missing");
	}
}

static bool read_container(struct reader *r, enum json_type type)
{
	uint32_t value = open_value(r, type, r->at), nr_items = 0;
	bool object = type == JSON_OBJECT;

	if (++r->depth > JSON_MAX_DEPTH)
		return wrong(r, "too deep");
	if (!read_items(r, object ? '}' : ']', object ? read_member : read_value, &nr_items))
		return false;
	r->depth--;
	return close_value(r, value, r->at, nr_items);
}

static bool read_value(struct reader *r)
{
	skip_space(r);
	switch (peek(r)) {
	case '{':
		return read_container(r, JSON_OBJECT);
	case '[':
		return read_container(r, JSON_ARRAY);
	case '"':
		return read_string(r);
	case 't':
		return read_word(r, "true", JSON_TRUE);
	case 'f':
		return read_word(r, "false", JSON_FALSE);
	case 'n':
		return read_word(r, "null", JSON_NULL);
	case -1:
		return wrong(r, "a value is missing");
	default:
		return read_number(r);
	}
}

static bool read_text(struct reader *r)
{
	if (!read_value(r))
		return false;
	skip_space(r);
	return r->at == r->end || wrong(r, "something after the value");
}

int json_parse(const char *text, size_t text_bytes, struct json *json, struct fault *fault)
{
	struct reader count = {.text = (const uint8_t *)text, .end = (uint32_t)text_bytes},
		      fill = count;

	if (text_bytes > UINT32_MAX / 2)
		return fault_say(fault, "JSON: %zu bytes are too many", text_bytes);
	if (!read_text(&count))
		return fault_say(fault, "JSON: %s, at byte %u", count.wrong, count.at);
	fill.values = malloc(count.nr_values * sizeof(*fill.values));
	if (!fill.values)
		return fault_say(fault, "JSON: no memory for %u values", count.nr_values);
	read_text(&fill);
	*json = (struct json){.text = text, .values = fill.values, .nr_values = fill.nr_values};
	return 0;
}

void json_free(struct json *json)
{
	free(json->values);
	*json = (struct json){0};
}

/* ---- reading what was parsed ----------------------------------------------------------------- */

static size_t put_utf8(int32_t code, uint8_t out[4])
{
	if (code < 0x80) {
		out[0] = (uint8_t)code;
		return 1;
	}
	if (code < 0x800) {
		out[0] = (uint8_t)(0xc0 | code >> 6);
		out[1] = (uint8_t)(0x80 | (code & 0x3f));
		return 2;
	}
	if (code < 0x10000) {
		out[0] = (uint8_t)(0xe0 | code >> 12);
		out[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
		out[2] = (uint8_t)(0x80 | (code & 0x3f));
		return 3;
	}
	out[0] = (uint8_t)(0xf0 | code >> 18);
	out[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
	out[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
	out[3] = (uint8_t)(0x80 | (code & 0x3f));
	return 4;
}

/* One character of a checked string, decoded into out; *at moves on. Returns its bytes. */
static size_t decode(const uint8_t *text, uint32_t *at, uint32_t end, uint8_t out[4])
{
	static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
	uint32_t used;
	int32_t code;

	if (text[*at] != '\\') {
		out[0] = text[(*at)++];
		return 1;
	}
	*at += 2;
	if (text[*at - 1] != 'u') {
		out[0] = (uint8_t)codes[strchr(names, text[*at - 1]) - names];
		return 1;
	}
	code = escaped_code(text + *at, end - *at, &used);
	*at += used;
	return put_utf8(code, out);
}

bool json_string(const struct json *json, uint32_t value, char *out, size_t out_bytes)
{
	const struct json_value *v = &json->values[value];
	size_t length = 0;

	if (v->type != JSON_STRING)
		return false;
	for (uint32_t at = v->begin; at < v->end;) {
		uint8_t bytes[4];
		size_t nr = decode((const uint8_t *)json->text, &at, v->end, bytes);

		if (!bytes[0] || length + nr >= out_bytes)
			return false;
		memcpy(out + length, bytes, nr);
		length += nr;
	}
	if (length >= out_bytes)
		return false;
	out[length] = 0;
	return true;
}

bool json_string_is(const struct json *json, uint32_t value, const char *text)
{
	const struct json_value *v = &json->values[value];
	size_t length = strlen(text), seen = 0;

	if (v->type != JSON_STRING)
		return false;
	for (uint32_t at = v->begin; at < v->end;) {
		uint8_t bytes[4];
		size_t nr = decode((const uint8_t *)json->text, &at, v->end, bytes);

		if (seen + nr > length || memcmp(text + seen, bytes, nr))
			return false;
		seen += nr;
	}
	return seen == length;
}

uint32_t json_member(const struct json *json, uint32_t object, const char *key)
{
	const struct json_value *v = &json->values[object];

	if (v->type != JSON_OBJECT)
		return 0;
	for (uint32_t at = object + 1; at < v->next; at = json->values[at + 1].next)
		if (json_string_is(json, at, key))
			return at + 1;
	return 0;
}

bool json_u64(const struct json *json, uint32_t value, uint64_t *out)
{
	const struct json_value *v = &json->values[value];
	uint64_t number = 0;

	if (v->type != JSON_NUMBER)
		return false;
	for (uint32_t at = v->begin; at < v->end; at++) {
		uint64_t digit = (uint64_t)json->text[at] - '0';

		if (digit > 9 || number > (UINT64_MAX - digit) / 10)
			return false;
		number = number * 10 + digit;
	}
	*out = number;
	return true;
}

bool json_double(const struct json *json, uint32_t value, double *out)
{
	const struct json_value *v = &json->values[value];
	char number[64];

	if (v->type != JSON_NUMBER || v->end - v->begin >= sizeof(number))
		return false;
	memcpy(number, json->text + v->begin, v->end - v->begin);
	number[v->end - v->begin] = 0;
	*out = strtod(number, NULL);
	return true;
}
