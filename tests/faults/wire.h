/* SPDX-License-Identifier: Apache-2.0 */
/* The wire between two RDMA devices of the virtual machine, which a test may pull
 * (scripts/vm/wire.sh). */
#ifndef TERN_TESTS_FAULTS_WIRE_H
#define TERN_TESTS_FAULTS_WIRE_H

#include <stdbool.h>

bool wire_is_there(void);

/* 0, or not. */
int wire_pull(void);
int wire_mend(void);

#endif
