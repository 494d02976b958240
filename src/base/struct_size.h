/* SPDX-License-Identifier: Apache-2.0 */
/* How public structs grow: at their end, and each begins with its size, as its caller's header has
 * it.
 *
 *            an older header's             a newer header's
 *   read     what it lacks is the default  what is not known here has to be 0
 *   filled   only its bytes are written    what is not known here becomes 0
 */
#ifndef TERN_BASE_STRUCT_SIZE_H
#define TERN_BASE_STRUCT_SIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "tern_balance.h"
#include "tern_engine.h"
#include "tern_layer.h"
#include "tern_weights.h"

#define STRUCT_MOST 4096 /* bytes that any header's may have: more is no size */

struct struct_kind {
	const char *name;
	size_t known; /* bytes that this library knows */
	size_t least; /* bytes up to the last field that no call can do without; it never grows */
	const char *set_by;
};

#define STRUCT_END(type, field) (offsetof(struct type, field) + sizeof(((struct type *)0)->field))
#define STRUCT_KIND_SET_BY(type, last, set_by)                                                     \
	{                                                                                          \
#type, sizeof(struct type), STRUCT_END(type, last), set_by                         \
	}
#define STRUCT_KIND(type, last) STRUCT_KIND_SET_BY(type, last, "sizeof(struct " #type ")")
#define STRUCT_KIND_CONFIG(type, last) STRUCT_KIND_SET_BY(type, last, #type "_init")

static const struct struct_kind kind_group_config = STRUCT_KIND_CONFIG(tern_group_config, boot);
static const struct struct_kind kind_moe_config = STRUCT_KIND_CONFIG(tern_moe_config, max_tokens);
static const struct struct_kind kind_memory = STRUCT_KIND(tern_memory, window_bytes);
static const struct struct_kind kind_dispatch = STRUCT_KIND(tern_dispatch, topk_ids);
static const struct struct_kind kind_received = STRUCT_KIND(tern_received, offsets);
static const struct struct_kind kind_combine = STRUCT_KIND(tern_combine, y);
static const struct struct_kind kind_plan_beside = STRUCT_KIND(tern_plan_beside, topk_ids);
static const struct struct_kind kind_routes = STRUCT_KIND(tern_routes, in_rank);
static const struct struct_kind kind_gate = STRUCT_KIND(tern_gate, failed);
static const struct struct_kind kind_wait_report = STRUCT_KIND(tern_wait_report, peer);
static const struct struct_kind kind_view = STRUCT_KIND(tern_view, alive);
static const struct struct_kind kind_stats = STRUCT_KIND(tern_stats, rounds);
static const struct struct_kind kind_engine_config =
	STRUCT_KIND_CONFIG(tern_engine_config, transport);
static const struct struct_kind kind_engine_stats = STRUCT_KIND(tern_engine_stats, operations);
static const struct struct_kind kind_write = STRUCT_KIND(tern_write, bytes);
static const struct struct_kind kind_paged_write = STRUCT_KIND(tern_paged_write, remote_pages);
static const struct struct_kind kind_scatter = STRUCT_KIND(tern_scatter, slices);
static const struct struct_kind kind_expect = STRUCT_KIND(tern_expect, count);
static const struct struct_kind kind_barrier = STRUCT_KIND(tern_barrier, peers);
static const struct struct_kind kind_balance_config = STRUCT_KIND(tern_balance_config, nr_ranks);
static const struct struct_kind kind_balance_input = STRUCT_KIND(tern_balance_input, load);
static const struct struct_kind kind_balance_result = STRUCT_KIND(tern_balance_result, after);
static const struct struct_kind kind_weights_config = STRUCT_KIND(tern_weights_config, parts);
static const struct struct_kind kind_weights_progress =
	STRUCT_KIND(tern_weights_progress, nr_failed);
static const struct struct_kind kind_weights_stats = STRUCT_KIND(tern_weights_stats, copies);
static const struct struct_kind kind_layer_config = STRUCT_KIND_CONFIG(tern_layer_config, down);
static const struct struct_kind kind_send = STRUCT_KIND(tern_send, bytes);

/* True if a caller's struct of this kind may have so many bytes. */
bool struct_size_is_possible(const struct struct_kind *kind, size_t size);

/* Copies what both know from the caller's struct; the rest of `mine` keeps its defaults. */
int struct_read(const struct struct_kind *kind, const void *theirs, void *mine);

/* The same with 0 for defaults. `room` takes this library's size. NULL where it is refused. */
void *struct_copy(const struct struct_kind *kind, const void *theirs, void *room);

/* The caller's own struct where its size is this library's, else a copy in `room`. NULL where it is
 * refused. */
static inline void *struct_in(const struct struct_kind *kind, const void *theirs, void *room)
{
	if (__builtin_expect(theirs && *(const size_t *)theirs == kind->known, 1))
		return (void *)theirs;
	return struct_copy(kind, theirs, room);
}

/* Whether a struct to be filled later has a size that a version has. */
int struct_check(const struct struct_kind *kind, const void *theirs);

/* Fills the caller's struct, but for its size. */
int struct_out(const struct struct_kind *kind, void *theirs, const void *mine);

/* The same where the caller has told the size in an argument: it is set, too. */
void struct_init(const struct struct_kind *kind, void *theirs, size_t size, const void *mine);

#endif
