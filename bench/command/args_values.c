/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/args_values.h"
#include "testkit/presets.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool args_silent(void)
{
	const char *rank = getenv("TERN_RANK") ? getenv("TERN_RANK") : getenv("PMIX_RANK");

	return rank && strcmp(rank, "0");
}

int args_wrong(const struct bench_args *args, const char *format, ...)
{
	va_list list;

	if (args_silent())
		return -1;
	fprintf(stderr, "%s: ", args->program);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, "\nTry '%s --help'.\n", args->program);
	return -1;
}

static int wrong_word(const struct bench_args *args, const char *flag, const char *text,
	const struct word *words, bool many)
{
	char allowed[160] = "";
	size_t at = 0;

	for (; words->name; words++)
		at += (size_t)snprintf(
			allowed + at, sizeof(allowed) - at, "%s%s", at ? ", " : "", words->name);
	return args_wrong(args, "--%s is \"%.100s\": allowed: %s%s", flag, text, allowed,
		many ? ", several with commas between them, or all" : "");
}

int value_word(const struct bench_args *args, const char *flag, const char *text,
	const struct word *words, int *value)
{
	const struct word *word;

	for (word = words; word->name; word++) {
		if (strcmp(word->name, text))
			continue;
		*value = word->value;
		return 0;
	}
	return wrong_word(args, flag, text, words, false);
}

int list_add(struct int_list *list, int value)
{
	if (list->nr == ARGS_MAX_LIST)
		return -1;
	list->value[list->nr++] = value;
	return 0;
}

int value_words(const struct bench_args *args, const char *flag, const char *text,
	const struct word *words, struct int_list *list)
{
	const struct word *word;
	const char *at = text;

	list->nr = 0;
	for (word = words; word->name && !strcmp(text, "all"); word++)
		if (words != mode_words || word->value != TERN_AUTO) /* one of the others */
			list_add(list, word->value);
	while (!list->nr || *at == ',') {
		at += list->nr != 0;
		for (word = words; word->name; word++) {
			size_t length = strlen(word->name);

			if (!strncmp(word->name, at, length) && (!at[length] || at[length] == ','))
				break;
		}
		if (!word->name || list_add(list, word->value))
			return wrong_word(args, flag, text, words, true);
		at += strlen(word->name);
	}
	return 0;
}

int value_number(const struct bench_args *args, const char *flag, const char *text, uint32_t min,
	uint32_t max, uint32_t *number)
{
	unsigned long long value;
	char *end;

	value = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)*text) || *end || value < min || value > max)
		return args_wrong(args,
			"--%s is \"%.100s\": allowed are whole numbers from %u to %u", flag, text,
			min, max);
	*number = (uint32_t)value;
	return 0;
}

int value_numbers(const struct bench_args *args, const char *flag, const char *text, uint32_t most,
	struct int_list *list)
{
	const char *at = text;
	char *end = NULL;

	list->nr = 0;
	while (at == text || *at == ',') {
		unsigned long first, last, factor = 2;

		at += at != text;
		if (!isdigit((unsigned char)*at))
			break;
		first = last = strtoul(at, &end, 10);
		if (*end == '-' && isdigit((unsigned char)end[1]))
			last = strtoul(end + 1, &end, 10);
		if (*end == '*' && isdigit((unsigned char)end[1]))
			factor = strtoul(end + 1, &end, 10);
		if (first > last || last > most || factor < 2 || factor > most ||
			(first < last && !first))
			break;
		for (at = end; first <= last; first *= factor) {
			if (list_add(list, (int)first))
				return args_wrong(
					args, "--%s has more than %d values", flag, ARGS_MAX_LIST);
			if (!first)
				break;
		}
	}
	if (!end || at != end || *end)
		return args_wrong(args,
			"--%s is \"%.100s\": allowed are numbers from 0 to %u such as 1,8,32, and "
			"ranges such as 1-128 "
			"(doubling) or 1-4096*4",
			flag, text, most);
	return 0;
}

static int add_shape(struct bench_args *args, const struct preset *preset)
{
	struct bench_shape *shape = &args->shapes[args->nr_shapes];

	if (args->nr_shapes == ARGS_MAX_LIST)
		return -1;
	*shape = (struct bench_shape){.name = "custom"};
	if (preset)
		*shape = (struct bench_shape){preset->name, preset->hidden, preset->nr_experts,
			preset->topk, preset->inner};
	args->nr_shapes++;
	return 0;
}

static int wrong_preset(const struct bench_args *args, const char *text)
{
	char allowed[256] = "";
	size_t at = 0;
	unsigned int i;

	for (i = 0; i < nr_presets; i++)
		at += (size_t)snprintf(allowed + at, sizeof(allowed) - at, "%s, ", presets[i].name);
	return args_wrong(args,
		"--preset is \"%.100s\": allowed are %scustom, several with commas between them, "
		"or all",
		text, allowed);
}

int value_presets(struct bench_args *args, const char *text)
{
	char copy[512], *name, *rest = copy;
	unsigned int i;

	args->nr_shapes = 0;
	for (i = 0; i < nr_presets && !strcmp(text, "all"); i++)
		add_shape(args, &presets[i]);
	if (args->nr_shapes)
		return 0;
	if (!*text || strlen(text) >= sizeof(copy))
		return wrong_preset(args, text);
	strcpy(copy, text);
	while ((name = strsep(&rest, ","))) {
		const struct preset *preset = preset_find(name);

		if (!preset && strcmp(name, "custom"))
			return wrong_preset(args, text);
		if (add_shape(args, preset))
			return args_wrong(args, "--preset has more than %d values", ARGS_MAX_LIST);
	}
	return 0;
}

int value_share(const struct bench_args *args, const char *flag, const char *text, double *share)
{
	char *end;

	*share = strtod(text, &end);
	if (end == text || *end || !(*share >= 0 && *share <= 1))
		return args_wrong(
			args, "--%s is \"%.100s\": allowed are numbers from 0 to 1", flag, text);
	return 0;
}

int value_seed(struct bench_args *args, const char *text)
{
	char *end;

	args->job.seed = strtoull(text, &end, 0);
	if (!isdigit((unsigned char)*text) || *end)
		return args_wrong(args, "--seed is \"%.100s\": allowed are whole numbers", text);
	return 0;
}
