/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_TESTS_TRANSPORT_CASES_H
#define TERN_TESTS_TRANSPORT_CASES_H

#include "tests/transport/world.h"

struct transport_case {
	const char *name;
	void (*run)(const struct network *network);
	bool processes;                   /* needs peers in different processes */
	const struct transport_ops *only; /* NULL: every network */
};

extern const struct transport_case basic_cases[], order_cases[], trouble_cases[], pair_cases[],
	death_cases[], verbs_cases[], verbs_greet_cases[]; /* each ends with a NULL name */

#endif
