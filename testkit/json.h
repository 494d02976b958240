/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON key by key, with commas where they belong. */
#ifndef TERN_TESTKIT_JSON_H
#define TERN_TESTKIT_JSON_H

#include <stdbool.h>
#include <stdio.h>

struct json {
	FILE *file;
	bool first; /* nothing stands in the object yet */
};

void json_word(FILE *file, const char *text); /* quoted */
void json_key(struct json *json, const char *key);
void json_text(struct json *json, const char *key, const char *text);
void json_number(struct json *json, const char *key, double number);
void json_bool(struct json *json, const char *key, bool value);
void json_begin(struct json *json, const char *key, char bracket);
void json_end(struct json *json, char bracket);

#endif
