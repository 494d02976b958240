/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL as far as it is called here: loaded when --against nccl asks for it, declared as its
 * documentation does, so that no build needs it. */
#ifndef TERN_BENCH_COMMAND_NCCL_H
#define TERN_BENCH_COMMAND_NCCL_H

#include <stddef.h>

struct nccl_comm; /* ncclComm_t points to it */

struct nccl_id {
	char bytes[128];
};

#define NCCL_BYTES 0 /* ncclInt8 */

/* 0, or an ncclResult_t; device memory, and streams of CUDA. */
struct nccl {
	const char *(*error_text)(int rc);
	int (*version)(int *version);
	int (*unique_id)(struct nccl_id *id);
	int (*init_rank)(struct nccl_comm **comm, int nr_ranks, struct nccl_id id, int rank);
	int (*destroy)(struct nccl_comm *comm);
	int (*abort)(struct nccl_comm *comm);
	int (*group_start)(void);
	int (*group_end)(void);
	int (*send)(const void *from, size_t count, int type, int peer, struct nccl_comm *comm,
		void *stream);
	int (*recv)(
		void *to, size_t count, int type, int peer, struct nccl_comm *comm, void *stream);
};

/* TERN_NCCL_LIBRARY, else libnccl.so.2 wherever the loader looks. NULL with tern_last_error. */
const struct nccl *nccl_load(void);

#endif
