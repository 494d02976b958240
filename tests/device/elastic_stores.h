/* SPDX-License-Identifier: Apache-2.0 */
/* What a stopped peer stores on, where the others' results come home. */
#ifndef TERN_TESTS_DEVICE_ELASTIC_STORES_H
#define TERN_TESTS_DEVICE_ELASTIC_STORES_H

#include "testkit/device/ops.h"
#include "tests/faults/acts.h"

/* By the scene's victim, before it is stopped. It begins when the others have read what came home
 * in the rounds before: nothing keeps a member from spoiling that. */
void leave_stores_behind(
	struct rank *rank, const tern_moe *moe, const struct bench_device_ops *ops);

#endif
