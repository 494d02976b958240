/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases of verbs share. */
#ifndef TERN_TESTS_TRANSPORT_CASES_VERBS_H
#define TERN_TESTS_TRANSPORT_CASES_VERBS_H

#include "tests/transport/cases.h"
#include "transport/verbs/verbs.h"

struct verbs *inside(struct world *world, uint32_t who);

/* A write from one peer to another gets through. */
void expect_works(struct world *world, uint32_t from, uint32_t to);
void expect_text(const struct transport_event *event, const char *part);

/* Peers 0 and 1 give each other up and begin anew. */
void reconnect(struct world *world);

/* A command that has to succeed. */
void shell(const char *command);

/* cases_verbs_device.c */
void run_device_memory(const struct network *network);

#endif
