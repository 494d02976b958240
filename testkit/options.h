/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a command as one table, from which they are parsed and the help is printed. */
#ifndef TERN_TESTKIT_OPTIONS_H
#define TERN_TESTKIT_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct option_row;

/* args is the command's own struct. 0: well; below 0: wrong, which has been said; above 0: the rest
 * is not looked at. */
typedef int (*option_set_fn)(void *args, const struct option_row *row, const char *text);

/* A row without set is a heading, its help the text; one without help ends the table. */
struct option_row {
	const char *name;     /* "ranks": --ranks */
	char letter;          /* 'n': also -n; 0: none */
	const char *argument; /* what the help calls it; NULL: it takes none */
	option_set_fn set;
	size_t at, bytes;     /* the field that is set: OPTION_FIELD */
	uint64_t least, most; /* of a number */
	const void *values;   /* as set understands it, such as a table of words */
	const char *mark;     /* stands before the help, such as "+" */
	const char *help;     /* a # in it is the field's number before anything is set */
};

#define OPTION_FIELD(type, field)                                                                  \
	.at = offsetof(type, field), .bytes = sizeof(((type *)NULL)->field)

/* Setters for any command: a bool, a text, a whole number from 0 to `most` (values: the command's
 * name), one that returns OPTIONS_HELP; and what others end with, a whole number or an enum's value
 * into a field of any width. */
int option_flag(void *args, const struct option_row *row, const char *text);
int option_text(void *args, const struct option_row *row, const char *text);
int option_whole(void *args, const struct option_row *row, const char *text);
int option_help(void *args, const struct option_row *row, const char *text);
void option_store(void *args, const struct option_row *row, uint64_t value);

/* A whole number from 0 to `most`. Else -1, and `program` has said so on stderr. */
int option_number(const char *program, const char *text, uint64_t most, uint64_t *value);

/* 0: all went well, and optind is the first word that is no option (argv is permuted, or with
 * words_follow everything behind it is left alone). OPTIONS_UNKNOWN: getopt has said what is wrong,
 * unless opterr is 0. Else what the setter returned that was not 0. */
#define OPTIONS_UNKNOWN (-2)
#define OPTIONS_HELP 1
int options_parse(
	const struct option_row *rows, void *args, int argc, char **argv, int words_follow);

/* The rows, as a help text has them; defaults is the command's struct before parsing. */
void options_print(const struct option_row *rows, const void *defaults, FILE *file);

#endif
