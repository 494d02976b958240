/* SPDX-License-Identifier: Apache-2.0 */
/* What tests need whose every step follows from a seed: emulated GPUs, and one thread that makes
 * all ranks' calls. */
#ifndef TERN_TESTS_DEVICE_EMULATE_SEEDED_H
#define TERN_TESTS_DEVICE_EMULATE_SEEDED_H

#include "tests/device/devices.h"

struct seeded {
	const struct bench_device_ops *ops;
	void (*reseed)(uint64_t seed);
	uint64_t (*history)(void);
};

/* To be called first in main. False: TERN_CUDA_LIBRARY names no emulated GPUs, or too few, which
 * has been printed: exit with 77. */
bool seeded_open(struct seeded *seeded, int nr_devices);

/* Rank 0's thread makes all ranks' calls, which takes as long as it takes; the others wait for its
 * end, whatever the group's bound, and may only then touch their exchanges again. */
void seeded_drive(struct rank *rank, void (*drive)(struct rank *rank, void *ctx), void *ctx);

/* Seeds from TERN_TEST_SEED (1) on, as many as TERN_TEST_CASES says, or for TERN_TEST_SECONDS; up
 * to the first that is bad. Prints how to repeat that one, and what came out. */
int seeded_cases(const char *name, uint64_t cases, int (*is_bad)(uint64_t seed));

#endif
