/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank must receive and get back, by round: one reference for all ranks of a process. */
#ifndef TERN_SOAK_ORACLE_H
#define TERN_SOAK_ORACLE_H

#include "testkit/verify.h"

struct oracle;

struct oracle *oracle_create(const struct job *job); /* NULL: no memory */
void oracle_destroy(struct oracle *oracle);

/* The reference of a round; valid until the next call. */
struct reference *oracle_round(struct oracle *oracle, uint64_t round);

/* The first rank that would receive more than its capacity in this round, or -1. */
int oracle_over_capacity(struct oracle *oracle, uint64_t round);

#endif
