/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's transfers, handed to its transfer engine: on the simulated network and on real ones. */
#ifndef TERN_BENCH_SIGNAL_SEND_H
#define TERN_BENCH_SIGNAL_SEND_H

#include "bench/signal/signal.h"
#include "tern_engine.h"

#define WORD_BYTES 8

struct signal_sender {
	tern_engine *engine;
	tern_region *region;
	tern_remote **remotes; /* [rank] */
	struct signal_memory memory;
};

/* Begins all of a plan's transfers, whose signals are `word`; done is called for each group, and
 * *nr_groups counts these. */
int signal_send(const struct signal_job *job, const struct signal_sender *sender,
	const struct signal_plan *plan, uint64_t word, tern_done_fn done, void *ctx,
	uint32_t *nr_groups);

#endif
