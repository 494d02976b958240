/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_CLI_DOCTOR_GPUS_H
#define TERN_CLI_DOCTOR_GPUS_H

/* Prints what the CUDA driver says of this machine's GPUs, what networks can do with their memory,
 * which RDMA port is near which of them, and whether this build has code for them. */
void doctor_gpus(void);

#endif
