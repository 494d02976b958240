/* SPDX-License-Identifier: Apache-2.0 */
/* A network inside a test: transports that hand each other bytes under one lock, late, out of
 * order, not at all, or only when asked again. It checks what the engine owes a transport: refused
 * posts come again unchanged, and no source changes before it was reported. */
#ifndef TERN_TESTS_ENGINE_LOOP_H
#define TERN_TESTS_ENGINE_LOOP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

#define LOOP_RANKS 16
#define LOOP_LANES 4

/* What becomes of a write. */
enum loop_fate {
	LOOP_LANDS,
	LOOP_REFUSED, /* write returns TERN_ERR_INVALID */
	LOOP_AGAIN,   /* write returns TRANSPORT_AGAIN */
	LOOP_FAILS,   /* EVENT_FAILED */
	LOOP_VANISHES /* nothing is ever reported */
};

struct loop_settings {
	uint32_t caps, depth, inline_bytes;
	uint64_t write_bytes;
	uint32_t again_first; /* each write and message is refused so many times */
	uint32_t slowest;     /* a write lands after up to so many polls of its sender */
	uint64_t seed;
	enum loop_fate (*fate)(uint32_t from, const struct transport_write *write); /* NULL: all
										       land */
};

struct loop_net {
	struct loop_settings settings;
	pthread_mutex_t lock;
	struct loop *members[LOOP_RANKS][LOOP_LANES];
	uint32_t nr_open[LOOP_RANKS];
	bool dead[LOOP_RANKS]; /* nothing comes from it, and what goes to it is lost */
	bool told;             /* whether its death is reported, too */
	_Atomic bool broken;   /* polling it is an error */
	uint64_t random;
	uint64_t nr_writes, nr_unsignalled, nr_fenced, nr_changed; /* changed: posts that did not
								      come again as they were
								      refused */
	uint32_t most_under_way;
};

extern const struct transport_ops transport_loop;

void loop_net_init(struct loop_net *net, const struct loop_settings *settings);
void loop_net_close(struct loop_net *net);
void loop_kill(struct loop_net *net, uint32_t rank, bool told);
uint32_t loop_under_way(struct loop_net *net, uint32_t rank); /* writes that it posted and that have
								 neither landed nor failed */

#endif
