/* SPDX-License-Identifier: Apache-2.0 */
/* tern bench --against nccl: between Tern's rounds on a device, rounds of the same over NCCL,
 * compared with the reference and timed. */
#ifndef TERN_BENCH_COMMAND_NCCL_ROUNDS_H
#define TERN_BENCH_COMMAND_NCCL_ROUNDS_H

#include "bench/command/nccl_exchange.h"

enum nccl_way {
	NCCL_PER_ROUTE = 0, /* a row for each route, all home: the usual */
	NCCL_PER_RANK = 1,  /* a row for each rank that is used, as Tern's; summed where the case
			       sums */
	NR_NCCL_WAYS = 2
};

struct nccl_contender {
	struct job job; /* the case's; the usual way sums at home */
	struct reference *reference;
	struct nccl_exchange exchange;
};

struct nccl_rounds {
	struct device_rounds *device; /* NULL: not asked for */
	struct nccl_link link;
	struct nccl_contender ways[NR_NCCL_WAYS];
	struct device_mark *begin, *end;
	struct difference difference;
};

/* Collective. Lane 0's inputs and stream are used. nccl_rounds_close also after a failure, and
 * before device_rounds_close. */
int nccl_rounds_open(struct nccl_rounds *rounds, struct device_rounds *device);
void nccl_rounds_close(struct nccl_rounds *rounds);

/* A round of each way with inputs of its own, every element compared: differences go to
 * rounds->difference. Leaves lane 0 with other inputs. */
int nccl_rounds_verify(struct nccl_rounds *rounds, uint64_t round);

/* After device_rounds_prepare: round i of each way; times[way] receives it, unless NULL. */
int nccl_rounds_time(struct nccl_rounds *rounds, struct times *times, uint32_t i);

#endif
