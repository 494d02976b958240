/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 80
#define FIRST_LONG 256 /* above all letters */
#define WIDTH 100
#define LEFT 100

int option_flag(void *args, const struct option_row *row, const char *text)
{
	(void)text;
	*(bool *)((char *)args + row->at) = true;
	return 0;
}

int option_text(void *args, const struct option_row *row, const char *text)
{
	memcpy((char *)args + row->at, &text, sizeof(text));
	return 0;
}

int option_help(void *args, const struct option_row *row, const char *text)
{
	(void)args;
	(void)row;
	(void)text;
	return OPTIONS_HELP;
}

int option_number(const char *program, const char *text, uint64_t most, uint64_t *value)
{
	unsigned long long number;
	char *end;

	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end || end == text || *text == '-' || number > most) {
		fprintf(stderr, "%s: \"%.40s\" is not a number from 0 to %llu\n", program, text,
			(unsigned long long)most);
		return -1;
	}
	*value = number;
	return 0;
}

void option_store(void *args, const struct option_row *row, uint64_t value)
{
	void *field = (char *)args + row->at;
	uint32_t value32 = (uint32_t)value;
	uint16_t value16 = (uint16_t)value;

	memcpy(field,
		row->bytes == sizeof(value16)   ? (void *)&value16
		: row->bytes == sizeof(value32) ? (void *)&value32
						: (void *)&value,
		row->bytes);
}

int option_whole(void *args, const struct option_row *row, const char *text)
{
	uint64_t number;
	int rc = option_number(row->values, text, row->most, &number);

	if (!rc)
		option_store(args, row, number);
	return rc;
}

static uint64_t load(const void *args, const struct option_row *row)
{
	const void *field = (const char *)args + row->at;
	uint64_t value = 0;
	uint32_t value32;

	if (row->bytes == sizeof(value)) {
		memcpy(&value, field, sizeof(value));
		return value;
	}
	memcpy(&value32, field, sizeof(value32));
	return value32;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static void fill(const struct option_row *rows, struct option *flags, char *letters)
{
	int nr = 0;

	for (int i = 0; rows[i].help && nr < MOST_ROWS; i++) {
		if (!rows[i].set)
			continue;
		flags[nr++] = (struct option){.name = rows[i].name,
			.has_arg = rows[i].argument ? required_argument : no_argument,
			.val = FIRST_LONG + i};
		if (!rows[i].letter)
			continue;
		*letters++ = rows[i].letter;
		if (rows[i].argument)
			*letters++ = ':';
	}
	*letters = 0;
	flags[nr] = (struct option){0};
}

static const struct option_row *find(const struct option_row *rows, int flag)
{
	if (flag >= FIRST_LONG)
		return &rows[flag - FIRST_LONG];
	while (rows->help && (!rows->letter || rows->letter != flag))
		rows++;
	return rows->help ? rows : NULL;
}

int options_parse(
	const struct option_row *rows, void *args, int argc, char **argv, int words_follow)
{
	struct option flags[MOST_ROWS + 1];
	char letters[MOST_ROWS * 2 + 2] = "+";
	int flag, rc = 0;

	fill(rows, flags, letters + (words_follow != 0));
	optind = 0; /* anew, with these letters */
	while (!rc && (flag = getopt_long(argc, argv, letters, flags, NULL)) != -1) {
		const struct option_row *row = find(rows, flag);

		rc = row ? row->set(args, row, optarg) : OPTIONS_UNKNOWN;
	}
	return rc;
}

/* ---- help ------------------------------------------------------------------------------------ */

static bool has_letters(const struct option_row *rows)
{
	for (; rows->help; rows++)
		if (rows->letter)
			return true;
	return false;
}

static size_t put_left(const struct option_row *row, bool letters, char *text)
{
	char letter[8] = "    ";

	if (row->letter)
		snprintf(letter, sizeof(letter), "-%c, ", row->letter);
	return (size_t)snprintf(text, LEFT, "  %s--%s%s%s", letters ? letter : "", row->name,
		row->argument ? " " : "", row->argument ? row->argument : "");
}

static size_t column(const struct option_row *rows, bool letters)
{
	char text[LEFT];
	size_t widest = 0;

	for (; rows->help; rows++) {
		size_t width = rows->set ? put_left(rows, letters, text) : 0;

		if (width > widest)
			widest = width;
	}
	return widest + 4;
}

/* The help with its default in place of #. */
static void put_help(const struct option_row *row, const void *defaults, char *text, size_t bytes)
{
	const char *mark = strchr(row->help, '#');

	if (mark)
		snprintf(text, bytes, "%.*s%llu%s", (int)(mark - row->help), row->help,
			(unsigned long long)load(defaults, row), mark + 1);
	else
		snprintf(text, bytes, "%s", row->help);
}

/* Words, from `at` on, in lines that begin there. */
static void wrap(const char *text, size_t at, FILE *file)
{
	size_t used = at;

	while (*text) {
		size_t length = strcspn(text, " ");

		if (used > at && used + 1 + length > WIDTH) {
			fprintf(file, "\n%*s", (int)at, "");
			used = at;
		}
		used += (size_t)fprintf(file, "%s%.*s", used > at ? " " : "", (int)length, text);
		text += length;
		text += *text == ' ';
	}
	fputc('\n', file);
}

void options_print(const struct option_row *rows, const void *defaults, FILE *file)
{
	bool letters = has_letters(rows);
	size_t at = column(rows, letters);

	for (; rows->help; rows++) {
		char left[LEFT], help[1024];
		size_t width;

		if (!rows->set) {
			fprintf(file, "\n%s:\n", rows->help);
			continue;
		}
		width = put_left(rows, letters, left);
		fprintf(file, "%s%*s%s ", left, (int)(at - width - 2), "",
			rows->mark ? rows->mark : " ");
		put_help(rows, defaults, help, sizeof(help));
		wrap(help, at, file);
	}
}
