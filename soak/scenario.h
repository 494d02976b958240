/* SPDX-License-Identifier: Apache-2.0 */
/* One run of an exchange on the simulated network, all of it drawn from one seed: shape, network,
 * engine, pauses, and perhaps a fault. */
#ifndef TERN_SOAK_SCENARIO_H
#define TERN_SOAK_SCENARIO_H

#include <stddef.h>

#include "testkit/job.h"
#include "soak/fleet.h"

enum soak_fault {
	SOAK_NO_FAULT,
	SOAK_KILL, /* a rank dies */
	SOAK_CUT,  /* a link swallows everything, one way or both */
	SOAK_DRAWN /* the seed says which of these */
};

enum soak_phase { /* the half in which it happens */
	SOAK_DISPATCH_SEND,
	SOAK_DISPATCH_RECV,
	SOAK_COMBINE_SEND,
	SOAK_COMBINE_RECV,
	SOAK_ANY_TIME, /* at some time, joining and creating included */
	SOAK_PHASE_DRAWN
};

/* Made wrong on purpose, to see that it is found. */
enum soak_wrong {
	SOAK_NOTHING_WRONG,
	SOAK_LYING_NETWORK, /* claims order and does not keep it */
	SOAK_WRONG_BLAME,   /* another rank than the dead one is expected to be named */
	SOAK_SPOILED_ROW,   /* one bit of a received row */
	SOAK_DEAF_RANK,     /* one rank stops calling, and lives */
	SOAK_STALE_RANK,    /* one rank's experts do not move with the others' */
	SOAK_LIAR           /* likewise, and its rounds say that they have */
};

/* What the caller wants of all scenarios; zero where the seed is to say. */
struct soak_wishes {
	uint32_t most_ranks; /* 0: 8 */
	uint32_t nr_ranks;   /* exactly so many */
	uint32_t ranks_per_node;
	enum tern_mode mode;
	enum soak_fault fault; /* SOAK_NO_FAULT is a wish, too */
	enum soak_phase phase;
	enum soak_wrong wrong;
	uint32_t rounds;
	/* A fixed shape, with bf16 or fp8 rows, a fair network and no pauses. */
	uint32_t hidden, nr_experts, topk, nr_tokens;
	enum tern_dtype dtype;
};

struct soak_trigger {
	enum soak_fault fault; /* SOAK_NO_FAULT, SOAK_KILL or SOAK_CUT */
	enum soak_phase phase;
	uint32_t victim, other; /* other: the far end of the link */
	bool both_ways;
	uint64_t round;    /* in which the victim meets it */
	bool after;        /* when the half has returned */
	uint64_t delay_ns; /* and so much later; with SOAK_ANY_TIME: from the beginning */
};

struct scenario {
	uint64_t seed;
	struct job job;
	struct fleet_settings fleet;
	struct soak_trigger trigger;
	enum soak_wrong wrong;
	uint32_t rounds;     /* without a fault; with one they go on until it is noticed */
	uint64_t flow_seed;  /* of the order of halves over slots, the same on all ranks */
	uint32_t release_in; /* one round in so many is released; 0: none */
	uint64_t half_ns;    /* that a half takes */
	uint32_t pause_in;   /* one half in so many comes after a pause; 0: none */
	uint64_t pause_ns;   /* the longest */
	uint32_t rows_apart;
	bool wide_ids, in_place, check_twice;
};

/* -1: the wishes fit no job, why says it. scenario_close also then. */
int scenario_open(struct scenario *scenario, uint64_t seed, const struct soak_wishes *wishes,
	struct reason *why);
void scenario_close(struct scenario *scenario);

/* Shape and troubles in a few lines. */
void scenario_describe(const struct scenario *scenario, char *text, size_t bytes);

extern const char *const soak_fault_names[];
extern const char *const soak_phase_names[];

#endif
