/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong, in words for the person who started the program. Written once, where it is first
 * seen. */
#ifndef TERN_EXAMPLES_GENERATE_FAULT_H
#define TERN_EXAMPLES_GENERATE_FAULT_H

struct fault {
	char text[640];
};

/* Always returns -1, so that a check reads `return fault_say(fault, "...")`. fault may be NULL. */
int fault_say(struct fault *fault, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
