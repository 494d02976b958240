/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/npy.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[6] = "\x93NUMPY";

/* The header is the text of a Python dict. This reads it from left to right. */
struct text {
	const char *at;
	const char *end;
};

static void skip_space(struct text *text)
{
	while (text->at < text->end && (*text->at == ' ' || *text->at == '\n'))
		text->at++;
}

static bool take(struct text *text, const char *word)
{
	size_t length = strlen(word);

	skip_space(text);
	if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length))
		return false;
	text->at += length;
	return true;
}

static int take_number(struct text *text, uint64_t *number, struct reason *why)
{
	const char *start;
	uint64_t n = 0;

	skip_space(text);
	for (start = text->at; text->at < text->end && *text->at >= '0' && *text->at <= '9';
		text->at++) {
		if (n > UINT32_MAX)
			return refuse(why, "the .npy shape has a dimension above 2^32");
		n = n * 10 + (uint64_t)(*text->at - '0');
	}
	if (text->at == start)
		return refuse(why, "the .npy shape is not a tuple of numbers");
	*number = n;
	return 0;
}

static int take_shape(struct text *text, struct npy *npy, struct reason *why)
{
	bool comma = false;

	npy->nr_dims = 0;
	if (!take(text, "("))
		return refuse(why, "the .npy shape is not a tuple");
	while (!take(text, ")")) {
		if (npy->nr_dims == 2)
			return refuse(why, "the .npy array has more than 2 dimensions");
		if (npy->nr_dims && !comma)
			return refuse(why, "the .npy shape lacks a comma");
		if (take_number(text, &npy->shape[npy->nr_dims], why))
			return -1;
		npy->nr_dims++;
		comma = take(text, ",");
	}
	if (!npy->nr_dims || (npy->nr_dims == 1 && !comma))
		return refuse(why, "the .npy shape is not that of an array of 1 or 2 dimensions");
	return 0;
}

static int take_type(struct text *text, struct npy *npy, struct reason *why)
{
	if (take(text, "'<i4'"))
		npy->type = NPY_INT32;
	else if (take(text, "'<i8'"))
		npy->type = NPY_INT64;
	else if (take(text, "'<f4'"))
		npy->type = NPY_FLOAT32;
	else
		return refuse(why, "the .npy type is none of '<i4', '<i8' and '<f4'");
	return 0;
}

enum {
	SEEN_TYPE = 1,
	SEEN_ORDER = 2,
	SEEN_SHAPE = 4
};

static int take_item(struct text *text, struct npy *npy, unsigned int *seen, struct reason *why)
{
	unsigned int item = take(text, "'descr'")           ? SEEN_TYPE
			    : take(text, "'fortran_order'") ? SEEN_ORDER
			    : take(text, "'shape'")         ? SEEN_SHAPE
							    : 0;

	if (!item || *seen & item)
		return refuse(why, "the .npy header has an unknown or repeated key");
	*seen |= item;
	if (!take(text, ":"))
		return refuse(why, "the .npy header lacks a colon");
	if (item == SEEN_TYPE)
		return take_type(text, npy, why);
	if (item == SEEN_SHAPE)
		return take_shape(text, npy, why);
	return take(text, "False") ? 0 : refuse(why, "the .npy array is not in C order");
}

static int parse_header(struct text *text, struct npy *npy, struct reason *why)
{
	unsigned int seen = 0;
	bool comma = true;

	if (!take(text, "{"))
		return refuse(why, "the .npy header is not a dict");
	while (!take(text, "}")) {
		if (!comma)
			return refuse(why, "the .npy header lacks a comma");
		if (take_item(text, npy, &seen, why))
			return -1;
		comma = take(text, ",");
	}
	skip_space(text);
	if (text->at != text->end)
		return refuse(why, "the .npy header goes on after its dict");
	if (seen != (SEEN_TYPE | SEEN_ORDER | SEEN_SHAPE))
		return refuse(why, "the .npy header lacks 'descr', 'fortran_order' or 'shape'");
	return 0;
}

size_t npy_item_bytes(enum npy_type type)
{
	return type == NPY_INT64 ? 8 : 4;
}

/* Finds the header's text: its length has 2 bytes in version 1 and 4 in version 2. */
static int find_header(
	const unsigned char *bytes, size_t size, struct text *text, struct reason *why)
{
	size_t start, length;

	if (size < 10 || memcmp(bytes, magic, sizeof(magic)))
		return refuse(why, "not a .npy file");
	if (bytes[6] < 1 || bytes[6] > 2 || bytes[7] != 0)
		return refuse(why, ".npy version %u.%u is neither 1.0 nor 2.0", bytes[6], bytes[7]);
	start = bytes[6] == 1 ? 10 : 12;
	if (size < start)
		return refuse(why, "the .npy file ends in its header");
	length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
	if (bytes[6] == 2)
		length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
	if (length > size - start)
		return refuse(why, "the .npy file ends in its header");
	text->at = (const char *)bytes + start;
	text->end = text->at + length;
	return 0;
}

int npy_parse(const void *bytes, size_t size, struct npy *npy, struct reason *why)
{
	struct npy found = {.shape = {0, 1}};
	struct text text = {NULL, NULL};
	size_t items;

	if (find_header(bytes, size, &text, why) || parse_header(&text, &found, why))
		return -1;
	found.data = text.end;
	found.data_bytes = size - (size_t)(text.end - (const char *)bytes);
	items = found.data_bytes / npy_item_bytes(found.type);
	if (found.nr_dims == 1)
		found.shape[1] = 1;
	/* Dimensions can be as large as 2^35: divide, a product could wrap. */
	if (found.shape[0] && found.shape[1] &&
		(found.shape[0] > items || found.shape[1] > items / found.shape[0]))
		return refuse(why, "the .npy file ends before its last element");
	if (found.shape[0] * found.shape[1] * npy_item_bytes(found.type) != found.data_bytes)
		return refuse(why, "the .npy file has bytes beyond its last element");
	*npy = found;
	return 0;
}

static int read_all(FILE *file, const char *path, void **bytes, size_t *size, struct reason *why)
{
	char *buffer = NULL;
	size_t capacity = 0, used = 0;

	while (!feof(file) && !ferror(file)) {
		if (used == capacity) {
			char *larger = realloc(buffer, capacity = capacity ? capacity * 2 : 65536);

			if (!larger) {
				free(buffer);
				return refuse(why, "%s: out of memory after %zu bytes", path, used);
			}
			buffer = larger;
		}
		used += fread(buffer + used, 1, capacity - used, file);
	}
	if (ferror(file)) {
		free(buffer);
		return refuse(why, "%s: cannot be read", path);
	}
	*bytes = buffer;
	*size = used;
	return 0;
}

int npy_read(const char *path, void **bytes, struct npy *npy, struct reason *why)
{
	FILE *file = fopen(path, "rb");
	struct reason inner = {""};
	size_t size = 0;
	int status;

	if (!file)
		return refuse(why, "%s: %s", path, strerror(errno));
	status = read_all(file, path, bytes, &size, why);
	fclose(file);
	if (status)
		return status;
	if (npy_parse(*bytes, size, npy, &inner)) {
		free(*bytes);
		*bytes = NULL;
		return refuse(why, "%s: %.200s", path, inner.text);
	}
	return 0;
}

int npy_write(const char *path, const struct npy *npy, struct reason *why)
{
	static const char *const types[] = {"", "<i4", "<i8", "<f4"};
	char header[128], shape[64];
	size_t length, data_bytes;
	FILE *file;
	bool good;

	if (npy->nr_dims == 1)
		snprintf(shape, sizeof(shape), "(%llu,)", (unsigned long long)npy->shape[0]);
	else
		snprintf(shape, sizeof(shape), "(%llu, %llu)", (unsigned long long)npy->shape[0],
			(unsigned long long)npy->shape[1]);
	memset(header, ' ', sizeof(header));
	memcpy(header, magic, sizeof(magic));
	memcpy(header + 6, "\1\0\166\0", 4); /* version 1.0, 118 bytes of text: 128 in all, so that
						the data is aligned */
	length = (size_t)snprintf(header + 10, sizeof(header) - 10,
		"{'descr': '%s', 'fortran_order': False, 'shape': %s, }", types[npy->type], shape);
	header[10 + length] = ' '; /* was snprintf's 0 */
	header[sizeof(header) - 1] = '\n';
	data_bytes =
		npy->shape[0] * (npy->nr_dims == 2 ? npy->shape[1] : 1) * npy_item_bytes(npy->type);

	file = fopen(path, "wb");
	if (!file)
		return refuse(why, "%s: %s", path, strerror(errno));
	good = fwrite(header, 1, sizeof(header), file) == sizeof(header);
	good = good && fwrite(npy->data, 1, data_bytes, file) == data_bytes;
	good = !fclose(file) && good;
	return good ? 0 : refuse(why, "%s: cannot be written", path);
}
