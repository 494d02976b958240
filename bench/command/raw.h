/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench --against libfabric: between the exchange's timed rounds, rounds of raw writes of the
 * same bytes. */
#ifndef TERN_BENCH_COMMAND_RAW_H
#define TERN_BENCH_COMMAND_RAW_H

#include "bench/raw/raw.h"
#include "bench/command/rounds.h"

struct raw_rounds {
	struct rounds *rounds;
	struct raw *raw; /* NULL: not asked for */
	struct times times;
};

/* Collective; the sets are prepared. Runs each set once, to learn what it sends. */
int raw_rounds_open(struct raw_rounds *raw_rounds, struct rounds *rounds);
void raw_rounds_close(struct raw_rounds *raw_rounds);

/* With struct raw_rounds as context. */
extern const struct timed_method raw_method;

#endif
