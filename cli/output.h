/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks' output, line by line, with the rank in front. */
#ifndef TERN_CLI_OUTPUT_H
#define TERN_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

struct output {
	int fd; /* reading end, non-blocking; -1: ended */
	int to;
	int rank;
	char *text; /* the line so far */
	size_t used;
	size_t room;
};

void output_init(struct output *o, int fd, int to, int rank);
void output_ready(struct output *o); /* passes on what is there */
void output_end(struct output *o);   /* the same, then the rest without a newline, and closes fd */

#endif
