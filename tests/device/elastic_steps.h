/* SPDX-License-Identifier: Apache-2.0 */
/* What a change of members takes on a rank's device: how often each step was made and for how long,
 * and calls that manage memory. Of the whole process. */
#ifndef TERN_TESTS_DEVICE_ELASTIC_STEPS_H
#define TERN_TESTS_DEVICE_ELASTIC_STEPS_H

#include "tern.h"

enum step {
	QUIESCE,
	RENEW,
	REOPEN,
	RESUME,
	NR_STEPS
};

extern double step_ms[NR_STEPS];
extern unsigned nr_steps[NR_STEPS];

/* From here on. */
void time_steps(tern_moe *moe);

/* All that there are where GPUs are emulated; else those of a change. */
unsigned calls_that_manage_memory(void);

#endif
