/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a tern_moe, shared by the files that make the four halves. */
#ifndef TERN_EXCHANGE_STATE_H
#define TERN_EXCHANGE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "group/group.h"
#include "exchange/layout.h"
#include "group/topology.h"
#include "base/wait.h"
#include "exchange/placement.h"
#include "tern.h"
#include "group/window.h"

enum slot_state {
	SLOT_IDLE,    /* next: dispatch_send */
	SLOT_COUNTED, /* counts are out; dispatch_send waits for the others' and goes on when called
			 again */
	SLOT_SENDING, /* rows are being sent; likewise */
	SLOT_FINISHING,  /* all rows are in their chunks, the last of which wait to leave; likewise
			  */
	SLOT_DISPATCHED, /* next: dispatch_recv */
	SLOT_RECEIVED,   /* next: combine_send or release */
	SLOT_COMBINING,  /* results are being sent; combine_send goes on when called again */
	SLOT_COMBINED,   /* next: combine_recv */
	SLOT_RELEASED,   /* next: dispatch_send, which waits until all have released */
	SLOT_REPLAYING   /* combine_send with a plan waits for the others', and goes on when called
			    again */
};

/* The results sent to one group of replicas, which lie together in each of their homes. */
struct sent_results {
	uint32_t first, nr;
	uint32_t nr_pieces; /* high throughput, for homes that are not mapped */
};

/* How far combine_send has come. */
struct combine_at {
	uint32_t nr_sources, row, result;
};

/* One micro-batch in flight. */
struct slot {
	enum slot_state state;
	bool owed;      /* elastic: the round is made for others, without tokens of this rank */
	bool served;    /* elastic: it is, on some rank */
	uint64_t round; /* elastic: of the slot, however often it was made */
	uint64_t tag;   /* elastic, owed: of that round */
	uint32_t epoch; /* of the round under way, or of the next one when idle */
	uint32_t rounds[NR_PHASES];       /* that completed each phase: what the event_counts have
					     counted, over nr_ranks */
	struct placed placed;             /* likewise; owed: that of the others */
	uint64_t plan;                    /* of the round under way, 0: none */
	bool replays;                     /* that one is combined again, in place of a dispatch */
	const struct kept_plan *replayed; /* until its rows have been read; else NULL */
	uint32_t nr_tokens;
	int32_t *physical;    /* [T * K] the expert of each route, -1: none */
	float *weights;       /* [T * K] */
	uint32_t *rows_to;    /* [R] rows for each rank */
	uint32_t *routes_to;  /* [P] routes to each physical expert */
	uint32_t *rows_home;  /* [R] rows that combine brings from each rank */
	uint32_t *home_start; /* [R][replica_ranks] where the results from each rank begin, for the
				 tokens that each replica sends */
	uint32_t *home_next;  /* [R][replica_ranks] how far dispatch_send has come, from home_start
			       */
	uint32_t *row_of;     /* [R] likewise: rows that were stored for each rank */
	uint32_t *chunks_to;  /* [nodes] likewise: chunks that left for it */
	uint32_t next_token, next_node;
	bool weighted;     /* by the combine under way */
	float *out_floats; /* of that */
	struct combine_at combine_at;
	struct sent_results *sent; /* [R] at the first of each group of replicas */
	uint64_t *place; /* [P] high throughput: where this rank's next row for each expert goes;
			    BY_SOURCE: [R] */
	uint32_t *rows_from; /* [R] received rows of each source */
	uint32_t *counts;    /* [max(L, R)] tern_received.counts */
	uint64_t *offsets;   /* [max(L, R)] tern_received.offsets */
	uint64_t nr_rows, extent;
	uint8_t *output;     /* base of struct output_layout: private, or in the window */
	uint8_t *x, *scales; /* received rows of this round: in output, or the caller's */
};

/* What low latency keeps of its tokens while it sends them, rank by rank. */
struct outgoing {
	struct token_rows *plans;   /* [T] */
	struct row_source *sources; /* [T] what is copied; payload NULL: not known yet */
	struct outgoing_row *rows;  /* [T * min(K, R)] */
};

/* plans[token].rows[row] */
struct outgoing_row {
	uint32_t token, row;
};

struct tern_moe {
	const struct exchange_ops *ops; /* who runs the halves */
	tern_group *group;
	struct tern_moe_config config;
	struct placement placement;
	struct layout layout;
	struct window **windows;  /* [R]; NULL where not mapped */
	struct topology topology; /* as the paths see them: with a forced engine each rank is alone
				   */
	struct engine_path *engine; /* to ranks that are not mapped; NULL: there are none */
	uint32_t nr_ranks, rank, nr_local;
	uint64_t view; /* of the group, that this exchange is in; it sees a later one when called */
	uint64_t shape;             /* likewise */
	struct join_offer *offer;   /* NULL: nobody joins later */
	struct slot_progress *told; /* [R][slots] elastic, with an engine: by ranks that are not
				       mapped; on a device: all ranks', in memory that they share */
	uint8_t *alive; /* [R] members that are not masked; all, where it is neither elastic nor has
			   masks */
	int wait_ms;
	struct wait_policy wait_policy;
	uint64_t stream_bytes; /* a half that sends more than this goes past the caches */
	struct slot *slots;
	struct outgoing outgoing;
	struct row_work *work; /* what is done to rows */
	uint32_t *seen;        /* [E] token + 1 that named the expert last, to find duplicates */
	uint32_t *rank_load;   /* [R] routes while replicas are chosen */
	uint8_t *all_counts;   /* high throughput: [R] counts of all sources, copied from the window
				*/
	uint64_t *totals;      /* [P + R] sums over all sources while counts are added up */
	uint32_t *cursor;      /* [max_local] positions while one half fills in */
	uint32_t *home_next;   /* [R][replica_ranks] likewise, from slot->home_start */
	struct kept_plan *plans;
	int failed; /* 0, or the error that ended this exchange */
	char failed_text[512];
	uint64_t untold; /* the leave word that peers have to be told yet; 0: none */
	struct tern_wait_report report;
	struct tern_stats stats;
	uint64_t *expert_load;          /* [E] */
	struct device *device;          /* what it has there; the CPU has none */
	struct layer_room *layer_rooms; /* layer/layer.h */
	uint32_t nr_layers;
	uint64_t private_bytes;
};

/* This rank's own window. */
static inline uint8_t *own(const tern_moe *moe, uint64_t offset)
{
	return moe->windows[moe->rank]->base + offset;
}

/* In a half: ends the exchange with this error and this thread's text, which later calls return
 * again; peers are told when the half is over. `peer`: who caused it, or -1. Returns code. */
int exchange_fail(tern_moe *moe, int code, int peer);

/* A plan's, of no other plan of this process; never 0. */
uint64_t plan_number(void);
int plan_unknown(uint64_t id); /* TERN_ERR_STATE, with its text */
/* TERN_ERR_STATE: experts have moved since it was routed. */
int plan_check_placed(const tern_moe *moe, uint64_t id, const struct placed *placed);

/* Checks slot number and order of calls; a failed exchange reports its error again. */
int slot_check(tern_moe *moe, uint32_t slot, const char *call);
int slot_wrong_state(const tern_moe *moe, uint32_t slot, const char *call);

/* Ranks [home_first, home_first + replica_ranks) get the results of tokens from `source`. */
static inline uint32_t home_first(const tern_moe *moe, uint32_t source)
{
	return source / moe->config.replica_ranks * moe->config.replica_ranks;
}

/* How many results of a row come home. */
static inline uint32_t results_of_row(const tern_moe *moe, uint32_t nr_routes)
{
	return moe->config.reduce == TERN_REDUCE_HOME ? nr_routes : 1;
}

/* The replica that sends token t of this rank's group. */
static inline uint32_t token_source(const tern_moe *moe, uint32_t token)
{
	return home_first(moe, moe->rank) + token % moe->config.replica_ranks;
}

/* Of counters [R][replica_ranks], the one for token t's results from `rank`. */
static inline uint32_t *home_counter(
	const tern_moe *moe, uint32_t *counters, uint32_t rank, uint32_t token)
{
	return &counters[rank * moe->config.replica_ranks + token % moe->config.replica_ranks];
}

static inline struct row_header *header_at(const tern_moe *moe, uint8_t *region, uint32_t row)
{
	const struct layout *l = &moe->layout;

	uint64_t head = moe->config.mode == TERN_LOW_LATENCY ? l->counts_bytes : 0;

	return (struct row_header *)(region + head + (uint64_t)row * l->region_stride);
}

#endif
