/* SPDX-License-Identifier: Apache-2.0 */
/* A fleet's own structures; fleet.h is for everybody else.
 *   fleet.c         who runs next, and when time goes on
 *   fleet_faults.c  deaths and cuts at their time, and burials
 *   fleet_join.c    the bootstrap, the scheduler that a rank's group gets */
#ifndef TERN_SOAK_FLEET_INSIDE_H
#define TERN_SOAK_FLEET_INSIDE_H

#include "base/scheduler.h"
#include "soak/coroutine.h"
#include "soak/fleet.h"

#define MOST_FAULTS 4
#define NEVER UINT64_MAX

struct member {
	struct fleet *fleet;
	uint32_t rank;
	struct coroutine *coroutine;
	struct scheduler scheduler;
	tern_engine *engine; /* NULL: none runs */
	const char *doing;
	uint64_t since_ns;  /* it has been doing that */
	uint64_t until_ns;  /* it waits, at most so long */
	uint64_t buried_ns; /* its own time, once buried */
	bool wake, step;    /* what it has to do: go on, step its engine */
	bool queued;        /* in the list of those that have something to do */
	bool dead, buried;
	char error[1024]; /* tern_last_error is a thread's, and all ranks share one */
};

struct visitor { /* a rank inside an allgather */
	const void *mine;
	void *all;
	size_t bytes;
	bool present;
};

struct fault {
	enum {
		FAULT_KILL,
		FAULT_CUT
	} kind;
	uint32_t from, to;
	bool both_ways, done;
	uint64_t at_ns;
};

struct fleet {
	struct fleet_settings settings;
	fleet_body body;
	void *ctx;
	struct sim_network *network;
	struct member *members;         /* [nr_ranks] */
	struct member *running;         /* whose body runs; NULL: none */
	uint32_t *queue;                /* ranks with something to do, in no order */
	uint32_t nr_queued, nr_running; /* running: living, body not ended */
	uint64_t random, digest;
	uint64_t timer_ns;   /* nobody wants to be woken by the clock before */
	uint64_t idle_turns; /* at one and the same time */
	struct fault faults[MOST_FAULTS];
	uint32_t nr_faults;
	uint64_t fault_ns;
	struct visitor *visitors; /* [nr_ranks] */
	uint32_t nr_present;
	uint64_t turn;    /* allgathers completed */
	char poison[256]; /* why no allgather works any more */
	char failure[4096];
};

/* fleet.c */
void fleet_queue(struct fleet *fleet, struct member *member);
void fleet_wake(struct fleet *fleet, struct member *member);  /* its wait may be over */
void fleet_wait(struct member *member, uint64_t until_ns);    /* from its body: others go on */
void fleet_note(struct fleet *fleet, uint64_t a, uint64_t b); /* into the digest */
uint64_t fleet_draw(struct fleet *fleet, uint64_t below);
void fleet_resume(struct member *member);

/* fleet_faults.c */
void fleet_faults_strike(struct fleet *fleet);
uint64_t fleet_next_fault(const struct fleet *fleet);
void fleet_bury_all(struct fleet *fleet);

#endif
