/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's dispatch and combine over NCCL's grouped send and receive, as somebody without Tern
 * would write them: counts are exchanged and copied to the host, which needs them to call ncclSend;
 * meanwhile records are packed; those are exchanged, and placed by expert. Kernels:
 * bench/nccl/rows.h. */
#ifndef TERN_BENCH_COMMAND_NCCL_EXCHANGE_H
#define TERN_BENCH_COMMAND_NCCL_EXCHANGE_H

#include "bench/nccl/rows.h"
#include "testkit/reference.h"
#include "testkit/device/rounds.h"
#include "bench/command/nccl.h"

/* Of all exchanges of this rank. */
struct nccl_link {
	const struct nccl *nccl;
	struct nccl_comm *comm;
	const struct bench_device_ops *ops;
	void *stream;
	int wait_ms;
};

struct nccl_exchange {
	struct nccl_link *link;
	const struct job *job;
	uint32_t rank;
	struct records records;
	uint8_t *memory;
	struct record_counts *counts; /* pinned: sent and received [R] each, once `counted` is
					 reached */
	struct device_mark *counted;
	uint64_t most_received; /* records */
	uint64_t positions;     /* of rows by expert */
	uint32_t nr_received;   /* records of the last dispatch */
};

/* Collective: joins all ranks. */
int nccl_link_open(struct nccl_link *link, const struct device_rounds *device);
void nccl_link_close(struct nccl_link *link);

/* What it takes from and gives to callers is in records: x, scales, ids, weights and y are lane
 * 0's; rows_x, rows_scales, rows, counts, offsets and out its own. */
int nccl_exchange_open(struct nccl_exchange *e, struct nccl_link *link,
	const struct device_rounds *device, const struct reference *reference, bool per_rank);
void nccl_exchange_close(struct nccl_exchange *e);

/* Both put work on the stream; dispatch also waits for the counts. */
int nccl_dispatch(struct nccl_exchange *e, uint32_t nr_tokens);
int nccl_combine(struct nccl_exchange *e);

/* Until the device is there, or wait_ms are over: then the communicator is ended, and the link
 * cannot be used. */
int nccl_wait(struct nccl_link *link, struct device_mark *mark);

#endif
