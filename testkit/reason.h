/* SPDX-License-Identifier: Apache-2.0 */
/* Why something was refused, for the caller to print: the benchmark's own counterpart of the
 * library's error text. */
#ifndef TERN_TESTKIT_REASON_H
#define TERN_TESTKIT_REASON_H

struct reason {
	char text[384];
};

/* Sets the text, printf-like, and returns -1: `return refuse(why, "topk is %u", topk);`. why may be
 * NULL. */
int refuse(struct reason *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
