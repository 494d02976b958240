/* SPDX-License-Identifier: Apache-2.0 */
/* How a failure travels: the code is returned, the cause with its figures stays in a text of this
 * thread. */
#ifndef TERN_BASE_ERROR_H
#define TERN_BASE_ERROR_H

#include "tern.h"

/* Sets this thread's text, printf-like, and returns code: `return fail(TERN_ERR_INVALID, "hidden is
 * %u", hidden);` */
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* TERN_ERR_NOMEM where memory or descriptors have run out, else TERN_ERR_SYSTEM. */
int error_of_errno(int cause);

/* The same as fail for a failed system call: appends errno's text. */
int fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* 0, or TERN_ERR_INVALID with name, value and range. */
int check_range(const char *name, int64_t value, int64_t least, int64_t most);

/* For who runs several ranks in one thread: the text that belongs to the one that goes on. */
void error_put_back(const char *text);

#endif
