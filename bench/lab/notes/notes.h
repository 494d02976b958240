/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BENCH_LAB_NOTES_NOTES_H
#define TERN_BENCH_LAB_NOTES_NOTES_H

/* False: a table was wrong. */
bool time_slices(void);

#endif
