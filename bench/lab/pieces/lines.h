/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BENCH_LAB_PIECES_LINES_H
#define TERN_BENCH_LAB_PIECES_LINES_H

#include <stdint.h>

/* False: a line was not whole, or never came. Peer access is enabled. */
bool try_lines(uint32_t nr_rounds, int nr_devices);

#endif
