/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `tern bench`, in the order of its help. */
#ifndef TERN_BENCH_COMMAND_FLAGS_H
#define TERN_BENCH_COMMAND_FLAGS_H

#include "testkit/options.h"

#define MOST_TOKENS (1u << 20)

extern const struct option_row bench_flags[];

#endif
