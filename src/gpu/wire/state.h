/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels keep between launches, and what they tell the host. */
#ifndef TERN_GPU_WIRE_STATE_H
#define TERN_GPU_WIRE_STATE_H

#include <stdint.h>

#include "gpu/wire/ll.h"

/* High throughput: what warps draw tokens from. Set by the plan: to 0, that of rows to the number
 * of early ones. */
enum ht_tickets {
	HT_TICKETS_ROWS = 0,    /* of the dispatch's senders */
	HT_TICKETS_RESULTS = 1, /* of the combine's */
	HT_TICKETS_HOME = 2,
	HT_TICKETS_COPIES = 3, /* of the dispatch's receivers */
	HT_TICKETS = 4
};

/* In device memory, all zeros but epoch_dispatch = 1. One a slot. The first four words are read as
 * one. */
struct gpu_state {
	uint32_t epoch_dispatch; /* of the round to come; moved on by the combine */
	uint32_t epoch_combine;  /* of the round under way; set by the dispatch */
	uint32_t nr_tokens;      /* dispatched from here in this round */
	uint32_t failed;         /* a wait expired: kernels return at once */
	uint64_t pane; /* elastic: of each window, how far behind its base the one in use lies;
			  beside what all kernels read first. Written when none runs */
	uint32_t nr_from[GPU_MAX_RANKS]; /* rows received from each source in this round */
	uint32_t complaining;            /* somebody writes an input error */
	uint32_t abandoned;  /* high throughput: some rank is over its capacity, and no row moves in
				this round */
	uint32_t nr_rows;    /* received in this round */
	uint32_t nr_arrived; /* (token, rank) pairs of these: where a token has several experts, one
			      */
	uint32_t extent; /* high throughput: row positions here that this round's rows span; no head
			    may name another */
	uint32_t begun;  /* high throughput: the epoch whose plan has begun, so that all that was
			    ahead of it in the stream is there */
	uint32_t exchanged; /* high throughput: the epoch whose counts of all have come */
	uint32_t nr_away;   /* high throughput: tokens of the round to come with a row for another
			       rank; counted one by one, then taken */
	uint32_t tickets[HT_TICKETS];
	uint32_t failed_in; /* epoch_dispatch when it failed, stored before `failed` */
};

/* Of an elastic exchange: the ranks that are no members any more. Rewritten between rounds, at the
 * same address. */
struct gpu_view {
	uint32_t nr_gone;
	uint32_t gone[GPU_MAX_RANKS];
};

/* What all rounds of an exchange add up to; nothing ever takes from it. Of all slots together, so
 * only added to by atomics. In the order of struct tern_stats. */
struct gpu_counters {
	uint64_t rounds;
	uint64_t tokens, routes, rows, rows_away, tokens_away; /* in this order for counters_token
								*/
	uint64_t rows_received;
	uint64_t engine_bytes; /* for ranks on other nodes, into the ring */
	uint64_t results;      /* that left for homes: of routes, or summed here */
	uint64_t load[];       /* [E] routes from here to each logical expert */
};

/* Who waited for what when the first wait expired, or what a peer has sent that no correct one
 * does: numbers that say where rows lie are looked at before they are followed. */
enum gpu_wait {
	GPU_WAIT_NONE = 0,
	GPU_WAIT_PLAN = 1,
	GPU_WAIT_ROW = 2,
	GPU_WAIT_RESULT = 3,
	GPU_WAIT_ARRIVAL = 4,
	GPU_WAIT_COUNTS = 5,
	GPU_WAIT_SENT = 6,        /* that the engine has sent what was staged before; token: enum
				     internode_kind; epochs: writes begun, and ended */
	GPU_BROKEN_TOKENS = 7,    /* more tokens than there can be */
	GPU_BROKEN_EXPERT = 8,    /* a physical expert that there is not */
	GPU_BROKEN_SENDER = 9,    /* a token that a replica sends; most: that one */
	GPU_BROKEN_ROWS = 10,     /* more rows for an expert, or a rank, than the source has tokens.
				     token: the column */
	GPU_BROKEN_POSITION = 11, /* a row's, outside of this round's */
	GPU_BROKEN_LOCAL = 12,    /* a local expert that is not here */
	GPU_BROKEN_REPLAY = 13,   /* a dispatch, of so many tokens, where this rank combines a plan
				     again */
	GPU_BROKEN_PLACED = 14,   /* value, most: a peer's version of the placement, and this rank's
				   */
	GPU_LOST_EXPERTS = 15,    /* no round begins in this view, as no member has some expert */
	GPU_WAIT_TILE = 16,       /* a tile of y, which its kernel does not mark */
	GPU_BROKEN_NUMBER = 17,   /* of a row or a result from another node: as many as that there
				     cannot be */
	GPU_WAIT_WEIGHTS = 19,    /* that come with a combine */
	GPU_BROKEN_WAY = 18       /* where a row from another node is to be passed on to. token: its
				     number; value: its token, bits of ranks of the node, or a
				     position there */
};

/* Pinned memory; reason 0: nothing has happened. */
struct gpu_report {
	uint32_t reason; /* enum gpu_wait; set last */
	uint32_t rank, peer;
	uint32_t token;
	uint32_t epoch_expected, epoch_seen;
	uint64_t waited_ns;
	uint32_t value, most; /* GPU_BROKEN...: what came, and the most that can be */
};

/* An id that no correct caller passes. The route is dropped (an id named twice is a route like any
 * other), and the round goes on. */
enum gpu_bad_id {
	GPU_ID_GOOD = 0,
	GPU_ID_RANGE = 1,
	GPU_ID_TWICE = 2,
	GPU_OVER_CAPACITY = 3 /* token: the rank; id: rows that it would receive. The round is empty
				 on all ranks */
};

struct gpu_input_error {
	uint32_t reason; /* enum gpu_bad_id; set last, cleared by the host */
	uint32_t token, k;
	uint32_t epoch;
	int64_t id;
};

#endif
