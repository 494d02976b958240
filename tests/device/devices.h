/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of exchanges on GPUs have in common: ranks are threads of one process, and share GPUs
 * when there are fewer of these. */
#ifndef TERN_TESTS_DEVICE_DEVICES_H
#define TERN_TESTS_DEVICE_DEVICES_H

#include "testkit/draw.h"
#include "testkit/device/rounds.h"
#include "tests/exchange/ranks.h"

/* To be called first in main. NULL: there is no GPU, and the reason has been printed: exit with 77.
 */
const struct bench_device_ops *devices_open(int *nr_devices);

/* How many there are, as a process finds that is over then: the parent of processes that use
 * devices may not have used one. 0: none, and the reason has been printed. */
int devices_count_apart(void);

/* A random job of a state, for devices: TERN_TEST_REPLICAS (1; 0: no replica ranks),
 * TERN_TEST_SHARING (so many slots of ranks on a device, 16). */
void devices_draw_job(
	uint64_t *state, const struct draw_limits *limits, int nr_devices, struct job *job);

/* Some of those whose weights can come with the combine: late_weights, by drawn. */
void devices_draw_late_weights(uint64_t drawn, struct job *job);

/* No replica ranks in high throughput, if they would be on several nodes. */
void devices_keep_homes_together(struct job *job);

/* TERN_TEST_MODE: ll, ht; without it both, one after the other. Whether one went wrong. */
int devices_run_modes(int (*run_mode)(enum tern_mode mode));

/* A number of the environment. */
uint64_t devices_setting(const char *name, uint64_t otherwise);
/* Whether TERN_TEST_WITHOUT, words with commas between them, leaves this test out. */
bool devices_without(const char *name);

/* Where ranks share a device, freeing memory waits for the kernels of all of them, and these may
 * wait for a rank that has not launched its own yet. */
void devices_close(struct rank *rank, struct device_rounds *rounds);

/* After rounds 0 to nr - 1, each verified: what is wrong becomes the rank's failure, statistics
 * included, and is printed, since the others wait for it in vain, and rank 0 is the first to be
 * named. rc: what ended the rounds. */
void devices_judge(struct rank *rank, struct device_rounds *rounds, uint64_t nr, int rc);

/* One of the four halves of a round on lane 0, of its rows without gaps, ids of 32 bits, and no
 * weights; waits for its stream. What the call returned, or tern_moe_status. */
int devices_half(struct device_rounds *rounds, uint32_t half, uint32_t nr_tokens);

/* A combine in one call. */
int devices_combine(struct device_rounds *r);

/* A job that a failure is about, in a line. */
void devices_print_job(const struct job *job);

#endif
