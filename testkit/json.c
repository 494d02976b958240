/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/json.h"

void json_word(FILE *file, const char *text)
{
	fputc('"', file);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			fprintf(file, "\\%c", c);
		else if (c < 0x20 || c > 0x7e) /* file names may be in any encoding: escape bytes as
						  Latin-1 */
			fprintf(file, "\\u%04x", c);
		else
			fputc(c, file);
	}
	fputc('"', file);
}

void json_key(struct json *json, const char *key)
{
	fprintf(json->file, "%s\"%s\": ", json->first ? "" : ", ", key);
	json->first = false;
}

void json_text(struct json *json, const char *key, const char *text)
{
	json_key(json, key);
	json_word(json->file, text);
}

void json_number(struct json *json, const char *key, double number)
{
	json_key(json, key);
	fprintf(json->file, "%.15g", number);
}

void json_bool(struct json *json, const char *key, bool value)
{
	json_key(json, key);
	fputs(value ? "true" : "false", json->file);
}

void json_begin(struct json *json, const char *key, char bracket)
{
	json_key(json, key);
	fputc(bracket, json->file);
	json->first = true;
}

void json_end(struct json *json, char bracket)
{
	fputc(bracket, json->file);
	json->first = false;
}
