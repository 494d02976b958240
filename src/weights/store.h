/* SPDX-License-Identifier: Apache-2.0 */
/* A store's inside.
 *
 *   store.c    making and ending one; pages, and where they lie
 *   places.c   what places hold: hold, held, use; whether one is free; who has an expert
 *   serve.c    on the engine's proxy: others' asks answered, answers to this rank's asks noted
 *   copy.c     on the caller's thread: pages asked for, taken and judged; one source after the other
 *   move.c     the public calls on moves
 *   sum.c      sums
 *
 * One mutex orders all that the proxy and the caller's thread share, and is held for a few loads
 * and stores: places, slots, jobs. A place that is being filled is the caller's thread's, a page
 * that is on its way out keeps its place as it is (nr_reading). */
#ifndef TERN_WEIGHTS_STORE_H
#define TERN_WEIGHTS_STORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/wakeup.h"
#include "tern_weights.h"

#define WEIGHTS_MAX_WINDOW 64
#define WEIGHTS_NOBODY UINT32_MAX

enum place_state {
	PLACE_EMPTY,
	PLACE_FILLING,
	PLACE_WHOLE
};

struct weights_place {
	enum place_state state;
	bool named; /* by the placement in use */
	uint32_t layer;
	int32_t expert;      /* of a whole one */
	uint32_t nr_reading; /* pages that are on their way from here */
	uint64_t whole;      /* the sum of sums */
	uint64_t *sums;      /* [nr_pages] */
	uint64_t *borrowers; /* a bit for each rank that copies from here */
};

/* A page of an expert. */
struct page {
	uint32_t part;
	uint64_t offset; /* in the part */
	uint64_t at;     /* in the expert, all parts laid end to end */
	uint64_t bytes;
};

enum slot_state {
	SLOT_FREE,
	SLOT_ASKED,
	SLOT_ANSWERED /* by the proxy */
};

/* One of the pages of staging, into which peers write. Nothing in it is believed before its sum was
 * compared where it was copied to. So a slot may be used again while somebody who was passed over
 * still writes to it: the page is wrong then, and asked for once more. */
struct slot {
	enum slot_state state;
	uint32_t number; /* of the ask: answers to older ones are dropped */
	uint32_t source, page;
	uint64_t asked_ns;
	struct copy *copy; /* NULL: it has ended meanwhile */
	uint32_t status;   /* the answer: */
	uint64_t sum, whole, busy_ns;
};

struct copy {
	struct copy *next;
	struct ticket *ticket;
	struct weights_place *place;
	int32_t expert;
	uint32_t first; /* the rank that is asked first; WEIGHTS_NOBODY: none in particular */
	uint32_t turn;  /* of sources: copy.c */
	uint32_t source;
	uint32_t nr_done, nr_asked, nr_wrong, next_page;
	bool has_whole, ended;
	int error;
	uint64_t whole;
	uint64_t not_before_ns; /* its source has no more to give before */
	uint64_t *asked;        /* a bit for each rank that has to be told when it has ended */
	uint8_t *pages;         /* [nr_pages], enum page_state */
	char cause[192];        /* what was wrong with sources so far */
};

enum page_state {
	PAGE_MISSING,
	PAGE_ASKED,
	PAGE_DONE
};

struct ticket {
	struct ticket *next;
	uint64_t number;
	uint32_t nr_copies, nr_whole, nr_failed;
	uint64_t bytes_left;
	int error; /* of the first that failed */
	char cause[256];
};

/* A page on its way to a peer. */
struct weights_job {
	tern_weight_store *store;
	struct weights_job *next; /* free */
	struct weights_place *place;
	uint32_t peer, slot, number;
	uint64_t sum, whole;
};

struct bucket {
	uint64_t next_ns; /* not before */
};

struct tern_weight_store {
	tern_engine *engine;
	struct tern_weights_config config; /* rank and parts: copies of the caller's */
	uint32_t self, nr_ranks, nr_local, nr_places, nr_pages;
	uint32_t generation; /* of stores on this engine: others' messages are dropped */
	uint32_t nr_words;   /* of a bit for each rank */
	uint64_t expert_bytes;
	uint32_t first_page[TERN_WEIGHTS_MAX_PARTS + 1];
	uint64_t part_at[TERN_WEIGHTS_MAX_PARTS + 1]; /* in the expert */
	int32_t *rank_of;                             /* [P] */
	uint32_t *local_of;                           /* [P] */
	struct tern_weights_part *parts;
	struct weights_place *places; /* [nr_layers][nr_local], then [nr_backups] */
	uint64_t *sums, *borrowers;
	uint8_t *backups;
	uint8_t *staging;      /* [window][page_bytes] */
	tern_region **regions; /* [nr_layers][nr_parts], then that of backups */
	uint32_t nr_regions;
	tern_region *landing;  /* staging */
	tern_remote **remotes; /* [R]: theirs */
	pthread_mutex_t lock;
	struct wakeup wakeup; /* an answer has come */
	bool claimed, closing;

	/* under the lock */
	struct slot slots[WEIGHTS_MAX_WINDOW];
	struct weights_job *jobs, *free_jobs;
	uint32_t nr_jobs, nr_busy_jobs;
	struct bucket giving;
	struct tern_weights_stats stats;

	/* the caller's thread's */
	struct bucket taking;
	struct copy *copies;
	struct ticket *tickets;
	uint64_t nr_tickets;
	bool doubtful; /* somebody who was passed over may still write a page */
};

/* store.c */
void page_of(const tern_weight_store *store, uint32_t number, struct page *page);
uint8_t *page_address(
	const tern_weight_store *store, const struct weights_place *place, const struct page *page);
/* And for the engine: */
tern_region *page_region(const tern_weight_store *store, const struct weights_place *place,
	const struct page *page, uint64_t *offset);
bool is_backup(const tern_weight_store *store, const struct weights_place *place);

/* 0: so many bytes may go now; else in so many nanoseconds. */
uint64_t bucket_take(struct bucket *bucket, uint64_t rate, uint64_t bytes, uint64_t now_ns);

static inline bool bit_of(const uint64_t *words, uint32_t bit)
{
	return words[bit / 64] >> bit % 64 & 1;
}

static inline void set_bit(uint64_t *words, uint32_t bit)
{
	words[bit / 64] |= 1ull << bit % 64;
}

static inline void clear_bit(uint64_t *words, uint32_t bit)
{
	words[bit / 64] &= ~(1ull << bit % 64);
}

/* As engine_peer_down; and a rank that the group has gone on without is not waited for either,
 * though a network may be slow to notice, and though another has come in its place. */
int store_peer_down(const tern_weight_store *store, uint32_t rank, const char **text);

/* places.c; under the lock */
struct weights_place *place_of(const tern_weight_store *store, uint32_t layer, uint32_t physical);
struct weights_place *first_backup(const tern_weight_store *store);
struct weights_place *place_with(const tern_weight_store *store, uint32_t layer, int32_t expert);
/* 0, or why not: TERN_ERR_STATE. */
int place_is_free(tern_weight_store *store, const struct weights_place *place, const char *name);
const char *place_name(const tern_weight_store *store, const struct weights_place *place,
	char *text, size_t bytes);
int check_layer(const tern_weight_store *store, uint32_t layer);
/* Of a table of placements: an expert or -1. */
int check_logical(const tern_weight_store *store, const int32_t *logical, uint32_t p);

/* serve.c */
enum message_kind_of_store {
	STORE_ASK = 1,
	STORE_ANSWER,
	STORE_END /* of a copy: the place may be used for others */
};

enum answer {
	ANSWER_PAGE = 1, /* it lies in the slot */
	ANSWER_NO,       /* not here */
	ANSWER_BUSY      /* again in busy_ns */
};

struct store_message {
	uint32_t generation;
	uint16_t kind, status;
	uint32_t slot, number;
	uint32_t layer, page;
	int32_t expert;
	uint32_t reserved;
	uint64_t sum, whole, busy_ns;
};

int serve_open(tern_weight_store *store);
void serve_message(void *ctx, uint32_t peer, const void *data, uint32_t bytes);
int serve_send(tern_weight_store *store, uint32_t peer, struct store_message *message);

/* As if rank `peer` had said that its copy has ended. */
void serve_end(tern_weight_store *store, uint32_t peer, const struct store_message *message);

/* copy.c; all on the caller's thread */
struct copy *copy_make(tern_weight_store *store, struct ticket *ticket, struct weights_place *place,
	int32_t expert, uint32_t first); /* NULL: no memory */
void copy_free(struct copy *copy);
bool copies_step(tern_weight_store *store); /* one page at most; false: there was nothing to do */
void copies_abandon(tern_weight_store *store);
bool asks_are_open(tern_weight_store *store); /* to ranks that live */

#endif
