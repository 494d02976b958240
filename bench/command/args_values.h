/* SPDX-License-Identifier: Apache-2.0 */
/* What flags are given: words, numbers, lists. Each returns 0, or -1 when it is wrong, which has
 * been said on stderr with the flag's name. */
#ifndef TERN_BENCH_COMMAND_ARGS_VALUES_H
#define TERN_BENCH_COMMAND_ARGS_VALUES_H

#include "bench/command/args.h"
#include "testkit/words.h"

/* With several ranks, one of them speaks for all: each sees the same flags. */
bool args_silent(void);

/* Says so; returns -1. */
int args_wrong(const struct bench_args *args, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* -1: the list is full. */
int list_add(struct int_list *list, int value);

int value_word(const struct bench_args *args, const char *flag, const char *text,
	const struct word *words, int *value);
int value_words(const struct bench_args *args, const char *flag, const char *text,
	const struct word *words, struct int_list *list);
int value_number(const struct bench_args *args, const char *flag, const char *text, uint32_t min,
	uint32_t max, uint32_t *number);
/* "1,8,32", "1-4096" (doubling) or "1-4096*4"; also together. */
int value_numbers(const struct bench_args *args, const char *flag, const char *text, uint32_t most,
	struct int_list *list);
int value_presets(struct bench_args *args, const char *text);
int value_share(const struct bench_args *args, const char *flag, const char *text, double *share);
int value_seed(struct bench_args *args, const char *text);

#endif
