/* SPDX-License-Identifier: Apache-2.0 */
/* The put-with-signal experiment: every rank sends `concurrency` transfers, each a put and a word
 * that says it has landed, under one of several policies for keeping the word behind the put. See
 * docs/signals.md. */
#ifndef TERN_BENCH_SIGNAL_SIGNAL_H
#define TERN_BENCH_SIGNAL_SIGNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "testkit/reason.h"
#include "testkit/sim/sim.h"

enum signal_policy {
	SIGNAL_PUT_ONLY,
	SIGNAL_COUPLED,
	SIGNAL_COUPLED_ALL_PEERS,
	SIGNAL_DECOUPLED,
	SIGNAL_NIC_FENCE,
	SIGNAL_PERSEUS,
	SIGNAL_IMM,
	NR_SIGNAL_POLICIES
};

struct signal_job {
	enum signal_policy policy;
	uint32_t nr_ranks, ranks_per_node;
	uint32_t nr_peers;    /* transfers go to so many remote ranks; 0: to all of them */
	bool spread_all;      /* transfers are dealt to all ranks, own node included; only those for
				 other nodes are sent */
	uint32_t concurrency; /* transfers of each rank, before that */
	uint64_t bytes;
	uint32_t group; /* peers whose transfers share one drain, or the order of puts and signals;
			   0: all */
	double zipf;    /* skew of the peers' popularity; 0: dealt evenly */
	uint64_t seed;
	uint32_t iters;
	bool watch;      /* look after each event whether a signal is there before its data: slow,
			    through the engine only */
	bool one_sender; /* rank 0 alone sends */
	uint32_t nr_drained; /* ranks that each drain looks at, one after the other; 0: one, or all
				others under coupled-all-peers */
	uint64_t drain_ns;   /* the proxy's time for each look */
	uint64_t compute_ns; /* what a rank computes of what comes to it, a tile for each transfer,
				if as many come as on average: one after the other, each from when
				its signal is there */
	struct sim_settings network; /* its seed is ignored */
};

struct signal_transfer {
	uint32_t peer;
	uint32_t place; /* where at the peer: of its words and, modulo the room, of its data */
	bool first;     /* of its peer in its group */
	bool last_of_group;
};

struct signal_plan {
	struct signal_transfer *transfers; /* in the order of sending */
	uint32_t nr;
};

struct signal_result {
	double time_us; /* from the first post until the last transfer is known to have landed: mean
			   over iterations of the slowest rank */
	double min_us, max_us;
	double layer_us;  /* with compute_ns: until the slowest rank has computed its tiles, too */
	double fence_us;  /* a rank's time between the end of posting puts and the start of posting
			     their signals, summed up: mean */
	double transfers; /* sent by a rank: mean */
	double drains;    /* of a rank: mean */
	double fences_waited; /* fenced writes that the NIC held back, of a rank: mean */
	double writes;        /* of a rank: mean */
	uint64_t nr_wrong;    /* words or bytes that are not as they should be */
	uint64_t early;       /* signals seen before their data */
	uint64_t trace;       /* hash of the last iteration's events */
};

const char *signal_policy_name(enum signal_policy policy);
bool signal_policy_drains(enum signal_policy policy);
bool signal_policy_groups(enum signal_policy policy);

void signal_job_init(struct signal_job *job); /* 8 nodes of 4 ranks, 96 transfers of 4 KB, on the
						 model of docs/signals.md */
int signal_job_check(const struct signal_job *job, struct reason *why);
uint32_t signal_nr_remote(const struct signal_job *job);
uint64_t signal_drain_cost(const struct signal_job *job); /* ns, of one drain */

/* What `rank` sends in iteration `iter`. */
int signal_plan_make(
	const struct signal_job *job, uint32_t rank, uint32_t iter, struct signal_plan *plan);
void signal_plan_free(struct signal_plan *plan);

/* Each rank's memory: data that arrives, words that arrive, data to send. */
struct signal_memory {
	uint8_t *base;
	uint64_t bytes, room, words_at, source_at; /* room: of data; it wraps */
	uint32_t nr_places;                        /* of words */
};
int signal_memory_make(const struct signal_job *job, struct signal_memory *memory);
void signal_memory_free(struct signal_memory *memory);
uint64_t signal_data_at(
	const struct signal_job *job, const struct signal_memory *memory, uint32_t place);
bool signal_has_data(
	const struct signal_job *job, const struct signal_memory *memory, uint32_t place);

/* Runs job->iters iterations in virtual time, through the transfer engine, or with the policies
 * written out over the bare transport, as a second opinion. 0, or a negative code with why. */
int signal_simulate_engine(
	const struct signal_job *job, struct signal_result *result, struct reason *why);
int signal_simulate_steps(
	const struct signal_job *job, struct signal_result *result, struct reason *why);

/* The same in real time over "shm" or "ofi:...", rank 0 sending: nr_ranks threads, at most 64.
 * time_us is the median. */
int signal_measure(const struct signal_job *job, const char *transport,
	struct signal_result *result, struct reason *why);

#endif
