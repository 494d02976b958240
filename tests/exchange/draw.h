/* SPDX-License-Identifier: Apache-2.0 */
/* Random jobs, over all settings at once. */
#ifndef TERN_TEST_DRAW_H
#define TERN_TEST_DRAW_H

#include "bench/job.h"

void draw_job(uint64_t *state, struct job *job);

/* What was drawn, and the command that repeats it. */
void print_case(uint64_t seed, const struct job *job, const char *failure);

#endif
